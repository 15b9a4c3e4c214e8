"""How points are seen, and what labels say of the shares of classes."""

from __future__ import annotations

import numpy as np
import pytest

from mpc_vote.learning.students.folds import stratified
from mpc_vote.learning.students.lesson import Lesson, PublicPoints, Sight, class_shares


def _table(rows: int, seed: int) -> np.ndarray:
    scales = np.array([1.0, 1000.0, 0.001])
    points: np.ndarray = np.random.default_rng(seed).normal(size=(rows, 3)) * scales + 5
    return points.astype(np.float32)


def test_columns_of_unlike_units_are_brought_to_one_scale() -> None:
    see = Sight.of(_table(400, 0), "")
    assert np.allclose(see(_table(400, 1)).std(axis=0), 1, atol=0.2)


@pytest.mark.parametrize(
    ("shape", "features"), [((16, 16), ""), ((3,), ""), ((3,), "raw"), ((3,), "unit")]
)
def test_pixels_features_and_columns_that_are_much_alike_keep_their_scale(
    shape: tuple[int, ...], features: str
) -> None:
    x = np.random.default_rng(0).random((20, *shape)).astype(np.float32)
    seen = Sight.of(x, features)(x)
    assert seen.shape == (20, int(np.prod(shape)))
    wanted = x.reshape(20, -1)
    if features == "unit":
        wanted = wanted / np.linalg.norm(wanted, axis=1, keepdims=True)
    np.testing.assert_allclose(seen, wanted, rtol=1e-5)


def test_a_column_that_is_always_the_same_does_no_harm() -> None:
    x = _table(50, 0)
    x[:, 1] = 7
    assert np.allclose(Sight.of(x, "")(x).std(axis=0), [1, 0, 1], atol=1e-3)
    x[:] = 7
    assert np.isfinite(Sight.of(x, "")(x)).all()


def test_networks_take_images_as_they_are_and_vectors_through_the_feature_map() -> None:
    images = PublicPoints(np.ones((4, 16, 16), np.float32), "strokes")
    assert images.inputs.shape == (4, 16, 16) and images.input_features == ""
    vectors = PublicPoints(np.ones((4, 16), np.float32), "unit")
    assert np.allclose(vectors.inputs, 0.25) and vectors.input_features == "unit"


def test_labels_are_held_out_while_their_points_stay() -> None:
    told: list[int] = []
    lesson = Lesson(
        PublicPoints(_table(10, 0)),
        np.arange(6),
        np.array([0, 1, 0, 1, 2, 2]),
        3,
        on_progress=lambda *_: told.append(1),
    )
    part = lesson.only(np.array([1, 4]))
    assert part.public is lesson.public
    assert (part.asked.tolist(), part.labels.tolist()) == ([1, 4], [1, 2])
    assert (lesson.further, part.further) == (4, 8)
    part.tell(1, 1, 0.0)
    assert not told


def test_shares_that_may_be_equal_are_taken_for_equal() -> None:
    drawn = np.random.default_rng(0).multinomial(40, np.full(10, 0.1), size=200)
    shares = np.array([class_shares(row.astype(float)) for row in drawn])
    seen = drawn / 40
    assert np.mean(np.abs(shares - 0.1)) < 0.5 * np.mean(np.abs(seen - 0.1))


def test_shares_that_are_clearly_unequal_stay() -> None:
    np.testing.assert_allclose(class_shares(np.array([87.0, 13.0])), [0.87, 0.13], atol=0.01)
    np.testing.assert_allclose(class_shares(np.array([97.0, 3.0])), [0.97, 0.03], atol=0.01)


def test_a_class_without_a_label_has_no_share() -> None:
    shares = class_shares(np.array([5.0, 0.0, 4.0]))
    assert shares.tolist() == [0.5, 0.0, 0.5]
    assert class_shares(np.array([0.0, 3.0])).tolist() == [0.0, 1.0]


def test_folds_hold_each_class_as_evenly_as_can_be() -> None:
    labels = np.repeat([0, 1, 2], [50, 10, 3])
    fold = stratified(labels, 5, np.random.default_rng(0))
    counts = np.array([np.bincount(fold[labels == label], minlength=5) for label in range(3)])
    assert (counts.max(axis=1) - counts.min(axis=1) <= 1).all()
    assert np.bincount(fold).max() - np.bincount(fold).min() <= 1
    assert not np.array_equal(fold, stratified(labels, 5, np.random.default_rng(1)))
