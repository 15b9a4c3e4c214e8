"""The student of centres: few and partly wrong labels spread over clustered public points."""

from __future__ import annotations

import numpy as np
import pytest

from mpc_vote.data.embedded import load_embedded
from mpc_vote.learning.features.maps import strokes, unit
from mpc_vote.learning.query_selection import representatives
from mpc_vote.learning.students.prototypes import (
    Directions,
    PrototypeRecipe,
    train_prototypes,
)

RECIPE = PrototypeRecipe()


def _clumps(each: int, seed: int, classes: int = 5) -> tuple[np.ndarray, np.ndarray]:
    """Positive features whose direction tells the class; the same classes for every seed."""
    centres = np.abs(np.random.default_rng(99).normal(size=(classes, 40)))
    rng = np.random.default_rng(seed)
    y = np.repeat(np.arange(classes), each)
    x = np.abs(centres[y] + 0.35 * rng.normal(size=(len(y), 40))) * rng.uniform(1, 50, (len(y), 1))
    return x.astype(np.float32), y


@pytest.fixture(scope="module")
def digits() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    data = load_embedded()
    rows = np.random.default_rng(0).permutation(len(data))
    x, y = strokes(data.x[rows[:900]]), data.y[rows[:900]]
    see = Directions.of(x[:400], 30)
    return see(x[:400]), y[:400], see(x[400:]), y[400:]


def _spoilt(y: np.ndarray, share: float, classes: int, seed: int) -> np.ndarray:
    """Labels of which this share is wrong."""
    rng = np.random.default_rng(seed)
    wrong = rng.permutation(len(y))[: round(share * len(y))]
    labels = y.copy()
    labels[wrong] = (labels[wrong] + rng.integers(1, classes, len(wrong))) % classes
    return labels


def test_a_few_labels_are_enough_where_classes_are_apart() -> None:
    x, y = _clumps(40, 0)
    new, truth = _clumps(100, 1)
    asked = representatives(unit(x), 10, 0)
    student = train_prototypes(x, asked, y[asked], 5, RECIPE)
    assert student.agreement(new, truth) > 0.97
    assert student.metrics["agreement"] == student.agreement(x[asked], y[asked])
    assert student.metrics["classes"] == 5
    assert (student.classes, student.shape) == (5, (40,))


def test_the_length_of_a_point_says_nothing() -> None:
    x, y = _clumps(40, 0)
    student = train_prototypes(x, np.arange(0, 200, 10), y[::10], 5, RECIPE)
    assert np.array_equal(student.predict(x), student.predict(x * np.float32(8)))


def test_spreading_labels_outvotes_wrong_ones(
    digits: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray],
) -> None:
    x, y, new, truth = digits
    gained = []
    for seed in range(3):
        asked = representatives(x, 50, seed)
        labels = _spoilt(y[asked], 0.2, 10, seed)
        spread, by_asked = (
            train_prototypes(x, asked, labels, 10, recipe).agreement(new, truth)
            for recipe in (PrototypeRecipe(), PrototypeRecipe(rounds=0))
        )
        gained.append(spread - by_asked)
    assert np.mean(gained) > 0.03


@pytest.mark.parametrize("rounds", [0, 5])
def test_classes_without_a_label_are_never_predicted(rounds: int) -> None:
    x, y = _clumps(20, 0)
    recipe = PrototypeRecipe(rounds=rounds)
    for held in ([3], [1, 4]):
        asked = np.flatnonzero(np.isin(y, held))[::5]
        student = train_prototypes(x, asked, y[asked], 9, recipe)
        assert set(student.predict(x).tolist()) == set(held)
        assert student.metrics["classes"] == len(held)


def test_directions_are_unit_vectors_of_no_more_than_the_points_have() -> None:
    x, _ = _clumps(4, 0)
    assert Directions.of(x, 30)(x).shape == (20, 19)
    seven = Directions.of(x, 7)(x)
    assert seven.shape == (20, 7)
    assert np.allclose(np.linalg.norm(seven, axis=1), 1, atol=1e-5)


def test_a_rare_class_stays_rare() -> None:
    """Half of the points around the common centre are no nearer to it than to the rare one."""
    rng = np.random.default_rng(0)
    centres = np.abs(np.random.default_rng(99).normal(size=(2, 40)))
    y = (rng.random(2000) < 0.05).astype(np.int64)
    x = np.abs(centres[y] + 1.6 * rng.normal(size=(2000, 40))).astype(np.float32)
    student = train_prototypes(x, np.arange(200), y[:200], 2, RECIPE)
    assert np.mean(student.predict(x[200:]) == 1) < 0.1
    assert student.agreement(x[200:], y[200:]) > 0.94


def test_images_are_points_too_and_arguments_stay_as_they_were() -> None:
    x, y = _clumps(10, 0)
    images, asked = x.reshape(-1, 5, 8), np.arange(0, 50, 5)
    labels = y[asked]
    before = images.copy(), asked.copy(), labels.copy()
    student = train_prototypes(images, asked, labels, 5, RECIPE)
    assert student.agreement(images, y) > 0.9
    assert all(map(np.array_equal, before, (images, asked, labels)))
    with pytest.raises(ValueError, match="shape"):
        student.predict(x)


def test_what_cannot_be_learnt_from_is_refused() -> None:
    x, y = _clumps(4, 0)
    for asked, labels in (([], []), ([1], [0, 1])):
        with pytest.raises(ValueError, match="needs its label"):
            train_prototypes(x, np.array(asked, np.int64), np.array(labels, np.int64), 5, RECIPE)
    for asked in ([0, 0], [-1, 2], [0, 20]):
        with pytest.raises(ValueError, match="distinct and in"):
            train_prototypes(x, np.array(asked), np.array([0, 1]), 5, RECIPE)
    with pytest.raises(ValueError, match="label 5"):
        train_prototypes(x, np.array([0]), np.array([5]), 5, RECIPE)
    student = train_prototypes(x, np.array([0, 5]), y[[0, 5]], 5, RECIPE)
    with pytest.raises(ValueError, match="to compare"):
        student.agreement(x, y[:-1])
    for wrong in ({"rounds": -1}, {"decay": 0.0}, {"dimensions": 0}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            PrototypeRecipe(**wrong)
