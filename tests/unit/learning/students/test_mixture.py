"""Several models in one file, which decide together."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from mpc_vote.learning.students import StudentOptions, load_model
from mpc_vote.learning.students.chooser import SINGLE
from mpc_vote.learning.students.mixture import Mixture
from mpc_vote.learning.students.packed import PackedModel

rng = np.random.default_rng(0)
Y = np.arange(60) % 3
X = (2 * np.eye(5)[Y] + rng.normal(size=(60, 5))).astype(np.float32)


def _members(classes: int = 3) -> list[PackedModel]:
    return [SINGLE[name].train(X, Y, None, StudentOptions(classes)) for name in SINGLE]


@pytest.fixture(scope="module")
def members() -> list[PackedModel]:
    return _members()


def test_it_says_what_its_members_say_by_their_weight(members: list[PackedModel]) -> None:
    linear, network = members[0], members[3]
    mixture = Mixture([linear, network], [3.0, 1.0])
    wanted = 0.75 * linear.scores(X) + 0.25 * network.scores(X)
    np.testing.assert_allclose(mixture.scores(X), wanted, atol=1e-6)
    assert mixture.classes == 3
    assert mixture.scores(X[:0]).shape == (0, 3)


def test_scores_that_are_no_chances_are_made_such(members: list[PackedModel]) -> None:
    prototypes = members[1]
    assert prototypes.scores(X).min() < 0
    scores = Mixture([prototypes], [1.0]).scores(X)
    assert scores.min() == 0
    np.testing.assert_allclose(scores.sum(axis=1), 1)
    assert np.array_equal(scores.argmax(axis=1), prototypes.predict(X))


def test_it_survives_its_file(members: list[PackedModel], tmp_path: Path) -> None:
    mixture = Mixture(members, [0.4, 0.3, 0.2, 0.1])
    mixture.save(tmp_path / "model", {"epsilon": "2"})
    np.testing.assert_allclose(load_model(tmp_path / "model").scores(X), mixture.scores(X))


def test_what_can_not_be_mixed_is_refused(members: list[PackedModel]) -> None:
    for wrong in ([], [1.0, 2.0]):
        with pytest.raises(ValueError, match="each with its weight"):
            Mixture(members[:1] if wrong else [], wrong)
    for weight in (0.0, -1.0, float("nan")):
        with pytest.raises(ValueError, match="positive"):
            Mixture(members[:1], [weight])
    other = SINGLE["linear"].train(X, Y, None, StudentOptions(4))
    with pytest.raises(ValueError, match="unlike classes"):
        Mixture([members[0], other], [1.0, 1.0])


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("mpc_vote.weights", "[1]", None),
        ("mpc_vote.weights", "[]", "1 to 16 members"),
        ("mpc_vote.weights", "[1, -1]", "positive"),
        ("mpc_vote.weights", "[1, 1, 1]", "member 2 is missing"),
        ("mpc_vote.weights", "7", "weights can't be read"),
        ("mpc_vote.weights", json.dumps([1] * 99), "member 2 is missing"),
        ("mpc_vote.0.reader", "mixture", "can't be a member"),
        ("mpc_vote.0.reader", "os:system", "pass the student"),
        ("mpc_vote.0.shape", "[]", "shape"),
    ],
)
def test_a_file_that_was_tampered_with_is_refused(
    members: list[PackedModel], key: str, value: str, words: str | None, tmp_path: Path
) -> None:
    path = tmp_path / "model"
    Mixture(members[:2], [1.0, 1.0]).save(path, {})
    with safe_open(path, framework="pt") as stored:
        metadata = dict(stored.metadata())
    save_file(load_file(path), path, metadata | {key: value})
    if words is None:
        np.testing.assert_allclose(load_model(path).scores(X), members[0].scores(X))
    else:
        with pytest.raises(ValueError, match=words):
            load_model(path)
