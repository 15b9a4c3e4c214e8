"""Every way to vote keeps its claimed sensitivity under hostile queries, and broken ones do not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpc_vote.app.config import Method
from mpc_vote.data.dataset import FloatArray
from mpc_vote.learning.features import maps
from mpc_vote.learning.voters import knn
from mpc_vote.privacy.mechanisms import Level
from mpc_vote.privacy.sensitivity import Sensitivity
from mpc_vote.testbed.audit.hostile import LARGEST, neighbours, queries
from mpc_vote.testbed.audit.sensitivity import (
    ObservedSensitivity,
    SensitivityFinding,
    VoterSetup,
    compare,
    measure,
)
from mpc_vote.testbed.audit.voters import styles
from mpc_vote.voting.ballots import (
    BALLOTS,
    KNN_COUNT,
    KNN_FREQUENCY,
    MULTI_LABEL,
    ONE_HOT,
    BallotKind,
    IntArray,
)

STYLES = styles()


def _name(style: VoterSetup) -> str:
    return f"{style.voter}-{style.features}-{style.reach}-{style.kind.name}"


def _exceeded(found: list[SensitivityFinding]) -> set[Level]:
    return {each.level for each in found if each.exceeded}


def test_no_voter_feature_map_reach_or_ballot_is_left_out() -> None:
    combinations = {(s.kind, s.features, s.reach) for s in STYLES if s.voter == "neighbours"}
    assert len(combinations) == 3 * len(maps.FEATURE_MAPS) * 3
    assert {s.features for s in STYLES if s.voter == "attributes"} == set(maps.FEATURE_MAPS)
    assert {s.kind for s in STYLES} == set(BALLOTS)
    models = {"local model", "local model that abstains"}
    assert {s.voter for s in STYLES} == {"neighbours", "attributes"} | models
    assert len(Method) == 2


@pytest.mark.parametrize("style", STYLES, ids=_name)
def test_no_ballot_moves_further_than_claimed_and_the_attack_is_not_idle(style: VoterSetup) -> None:
    found = measure(style)
    assert not _exceeded(found)
    rounds = {False, True} if style.kind in (ONE_HOT, KNN_COUNT, MULTI_LABEL) else {False}
    assert {each.verified for each in found} == rounds
    for each in found:
        # The worst that the claim allows is there, but for the last unit of a rounded vote.
        assert each.move.l2_squared >= 0.9 * each.claimed.l2_squared


@pytest.mark.parametrize("index", range(len(STYLES) - 2), ids=map(_name, STYLES[:-2]))
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
