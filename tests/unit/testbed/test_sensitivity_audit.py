"""Every way to vote keeps its claimed sensitivity under hostile queries, and broken ones do not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mpc_vote.app.config import Method
from mpc_vote.data.dataset import FloatArray, PointArray
from mpc_vote.learning.features import FeatureMap, maps
from mpc_vote.learning.features.backbones import Backbone
from mpc_vote.learning.features.sentence import SentenceModel
from mpc_vote.learning.voters import knn
from mpc_vote.privacy.mechanisms import Level
from mpc_vote.privacy.sensitivity import Sensitivity
from mpc_vote.tasks import ImageInput, Input, TextInput
from mpc_vote.testbed.audit.hostile import LARGEST, DataShape, neighbours, queries
from mpc_vote.testbed.audit.rows import nearest_rows
from mpc_vote.testbed.audit.sensitivity import (
    ObservedSensitivity,
    SensitivityFinding,
    VoterSetup,
    compare,
    measure,
)
from mpc_vote.testbed.audit.voters import neighbour_styles, styles
from mpc_vote.voting.ballots import (
    BALLOTS,
    KNN_COUNT,
    KNN_FREQUENCY,
    MULTI_LABEL,
    ONE_HOT,
    BallotKind,
    IntArray,
)
from tests.unit.learning.features.models import untrained_model

STYLES = styles()
NETWORKS = ("local model", "local model that abstains")
QUICK = [style for style in STYLES if style.voter not in NETWORKS]


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return untrained_model(tmp_path_factory.mktemp("model"))


def _name(style: VoterSetup) -> str:
    return f"{style.voter}-{style.features}-{style.reach}-{style.kind.name}"


def _exceeded(found: list[SensitivityFinding]) -> set[Level]:
    return {each.level for each in found if each.exceeded}


def test_no_voter_feature_map_reach_or_ballot_is_left_out() -> None:
    combinations = {(s.kind, s.features, s.reach) for s in STYLES if s.voter == "neighbours"}
    names = {*maps.FEATURE_MAPS, "standard of tables", "unit of images"}
    assert {s.kind for s in STYLES if s.voter == "neighbours"} == set(knn.KnnVoter.kinds)
    assert len(combinations) == 3 * len(names) * 3
    assert {s.features for s in STYLES if s.voter == "attributes"} == names
    assert {s.kind for s in STYLES} == set(BALLOTS)
    assert {s.voter for s in STYLES} == {"neighbours", "attributes", *NETWORKS}
    assert len(Method) == 2


@pytest.mark.parametrize(
    "style",
    [pytest.param(s, marks=pytest.mark.slow if "abstains" in s.voter else ()) for s in STYLES],
    ids=map(_name, STYLES),
)
def test_no_ballot_moves_further_than_claimed_and_the_attack_is_not_idle(style: VoterSetup) -> None:
    found = measure(style)
    assert not _exceeded(found)
    rounds = {False, True} if style.kind in (ONE_HOT, KNN_COUNT, MULTI_LABEL) else {False}
    assert {each.verified for each in found} == rounds
    for each in found:
        # The worst that the claim allows is there, but for the last unit of a rounded vote.
        assert each.move.l2_squared >= 0.9 * each.claimed.l2_squared


@pytest.mark.parametrize("index", range(len(QUICK)), ids=map(_name, QUICK))
@settings(max_examples=5, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    k=st.integers(1, 12),
    classes=st.integers(2, 6),
    tau=st.integers(1, 4),
    shape=st.sampled_from([(4, 4), (5, 9), (2, 4, 6)]),
)
def test_nor_for_other_numbers_of_neighbours_classes_and_shapes(
    index: int, seed: int, k: int, classes: int, tau: int, shape: tuple[int, ...]
) -> None:
    style = styles(k, classes, min(tau, classes), shape)[index]
    rng = np.random.default_rng(seed)
    pairs = list(neighbours(style.terrain, rng))
    chosen = [pairs[at] for at in rng.permutation(len(pairs))[:6]]
    assert not _exceeded(compare(style, chosen, rng))


class _Halves(torch.nn.Module):
    """A network that is quick, and rounds as larger ones do."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.network = torch.nn.Conv2d(3, 512, 32, 112)

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.network(pictures).mean(dim=(2, 3))
        return found


@pytest.mark.parametrize("name", ["backbone", "sentence"])
def test_nor_where_features_are_those_of_a_network(name: str, model_folder: Path) -> None:
    schema: Input = ImageInput(8, 8, 1)
    features: FeatureMap = Backbone("resnet18", _Halves().eval().requires_grad_(False))
    if name == "sentence":
        schema = TextInput(24, "text", "label")
        features = SentenceModel(model_folder, schema)
    terrain, rng = DataShape(schema.shape, 3, 4, schema=schema), np.random.default_rng(0)
    made = neighbour_styles(name, features, terrain)
    style = next(one for one in made if (one.kind, one.reach) == (KNN_COUNT, 0.5))
    pairs = list(neighbours(terrain, rng))
    found = compare(style, [pairs[at] for at in rng.permutation(len(pairs))[:4]], rng)
    assert not _exceeded(found)
    assert all(each.move.l1 for each in found if each.level is Level.INSTANCE)


def test_rows_of_a_task_are_let_through_by_it_and_as_hostile_as_it_allows() -> None:
    terrain, rng = _style(KNN_COUNT, None, "standard of tables").terrain, np.random.default_rng(0)
    pairs = list(neighbours(terrain, rng))
    asked = np.concatenate([batch for pair in pairs for batch in queries(pair, terrain, rng)])
    assert terrain.schema is not None
    for rows in (asked, *(pair.one.x for pair in pairs)):
        terrain.schema.check(rows)
        assert np.array_equal(nearest_rows(terrain.schema, rows), rows)
    assert np.abs(asked).max() == np.float32(1e12)
    assert (asked[:, 1] == 0).any() and set(asked[:, 6]) == {0, 1, 2, 3, 4}


def test_scales_of_ones_own_records_are_found() -> None:
    """The mistake that tasks exclude: features that follow from private records."""

    def own_scales(rows: PointArray) -> FloatArray:
        spread: FloatArray = rows.astype(np.float32) / (rows.std(axis=0) + np.float32(1e-6))
        return spread

    terrain = _style(KNN_COUNT, None, "standard of tables").terrain
    style = next(s for s in neighbour_styles("own", own_scales, terrain) if s.kind is KNN_COUNT)
    assert _exceeded(measure(style)) == {Level.INSTANCE}


def test_queries_and_records_are_as_hostile_as_a_float32_allows() -> None:
    terrain, rng = STYLES[0].terrain, np.random.default_rng(0)
    pairs = list(neighbours(terrain, rng))
    sizes = {len(pair.one) - len(pair.other) for pair in pairs}
    assert sizes == {0, 1}
    assert min(len(pair.other) for pair in pairs) < terrain.k
    assert any(len(np.unique(pair.one.y)) == 1 for pair in pairs)
    assert any(len(np.unique(pair.one.x, axis=0)) == 1 for pair in pairs)
    asked = np.concatenate([batch for pair in pairs for batch in queries(pair, terrain, rng)])
    assert np.isfinite(asked).all()
    assert np.abs(asked).max() == np.float32(LARGEST)
    assert (np.abs(asked[asked != 0]) < np.finfo(np.float32).tiny).any()


def _style(kind: BallotKind, reach: float | None = None, name: str = "raw") -> VoterSetup:
    return next(s for s in STYLES if (s.kind, s.reach, s.features) == (kind, reach, name))


@pytest.mark.parametrize("kind", [KNN_COUNT, KNN_FREQUENCY])
@pytest.mark.parametrize("reach", [None, 0.1])
def test_the_place_of_nothing_taken_for_the_last_record_is_found(
    kind: BallotKind, reach: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What faiss gives where distances overflow: place -1 at the largest float32."""
    sound = knn._nearest

    def believed(*given: Any) -> tuple[FloatArray, IntArray]:
        distances, places = sound(*given)
        return np.where(places < 0, np.float32(LARGEST), distances), places

    monkeypatch.setattr(knn, "_nearest", believed)
    found = measure(_style(kind, reach))
    assert Level.INSTANCE in _exceeded(found)
    worst = max(each.move.l2_squared / each.claimed.l2_squared for each in found)
    assert worst >= 0.9 * STYLES[0].terrain.k ** 2


def test_features_that_depend_on_other_records_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def centred(points: FloatArray) -> FloatArray:
        with np.errstate(over="ignore", invalid="ignore"):
            moved: FloatArray = maps.raw(points) - maps.raw(points).mean(axis=0)
            return moved

    monkeypatch.setitem(maps.FEATURE_MAPS, "raw", centred)
    assert _exceeded(measure(_style(KNN_COUNT))) == {Level.INSTANCE}


def test_distances_that_round_by_their_place_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """By matrix products: a record's place in its block decides its last bit."""
    monkeypatch.setattr(knn, "_NEVER", 1)
    style = _style(KNN_COUNT)
    # How blocks are cut differs between processors.
    assert any(_exceeded(measure(style, seed)) == {Level.INSTANCE} for seed in range(10))


def test_a_vote_divided_by_ones_own_records_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def own_share(counts: IntArray, fraction_bits: int, **_: int) -> IntArray:
        shares: IntArray = (counts << fraction_bits) // np.maximum(counts.sum(axis=1), 1)[:, None]
        return shares

    monkeypatch.setattr(KNN_FREQUENCY, "encode", own_share)
    assert _exceeded(measure(_style(KNN_FREQUENCY))) == {Level.INSTANCE}


def test_a_ballot_without_its_cap_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = MULTI_LABEL.encode
    monkeypatch.setattr(
        MULTI_LABEL, "encode", lambda given, **public: sound(given, **{**public, "tau": 99})
    )
    style = _style(MULTI_LABEL)
    # A verified round would refuse such a ballot before it is shared.
    monkeypatch.setattr(MULTI_LABEL, "layout", lambda *_: None)
    assert _exceeded(measure(style)) == {Level.INSTANCE, Level.AGENT}


@pytest.mark.parametrize(
    "move",
    [
        ObservedSensitivity(l1=5),
        ObservedSensitivity(l2_squared=9),
        ObservedSensitivity(cells=3),
        ObservedSensitivity(step=3),
    ],
)
def test_every_norm_that_an_account_may_use_is_judged(move: ObservedSensitivity) -> None:
    claimed = Sensitivity.of_cells(2, 2)
    assert move.exceeds(claimed)
    assert not ObservedSensitivity(4, 8, 2, 2).exceeds(claimed)
    loose = replace(claimed, cells=None, step=None)
    assert move.exceeds(loose) == (move.l1 > 4 or move.l2_squared > 8)


def test_a_move_is_the_largest_of_each_norm() -> None:
    moves = np.array([[3, 0, 0], [-1, 1, 1], [0, 0, 0]])
    assert ObservedSensitivity.of(moves) == ObservedSensitivity(3, 9, 3, 3)
    assert ObservedSensitivity.of(moves[:0]) == ObservedSensitivity()
