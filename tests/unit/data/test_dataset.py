"""Data is checked where it enters, and the embedded digits are what they claim to be."""

from __future__ import annotations

import numpy as np
import pytest

from mpc_vote.data import Dataset, load_embedded


def test_embedded_digits_are_whole_and_balanced() -> None:
    digits = load_embedded()
    assert digits.x.shape == (5000, 28, 28)
    assert digits.shape == (28, 28)
    assert digits.x.dtype == np.float32
    assert (digits.x.min(), digits.x.max()) == (0.0, 1.0)
    assert np.bincount(digits.y, minlength=digits.classes).tolist() == [500] * 10


def test_take_copies_rows() -> None:
    points = Dataset("p", np.arange(6, dtype=np.float32).reshape(3, 2), np.array([0, 1, 1]), 2)
    part = points.take(np.array([2, 0]), "part")
    part.x[0] = -1
    assert part.name == "part"
    assert part.y.tolist() == [1, 0]
    assert points.x[2].tolist() == [4, 5]


@pytest.mark.parametrize(
    ("x", "y", "classes", "message"),
    [
        (np.zeros((2, 3)), np.zeros(2, np.int64), 2, "float32"),
        (np.zeros(2, np.float32), np.zeros(2, np.int64), 2, "shape"),
        (np.zeros((2, 0), np.float32), np.zeros(2, np.int64), 2, "shape"),
        (np.array([[0.0], [np.nan]], np.float32), np.zeros(2, np.int64), 2, "point 1 holds NaN"),
        (np.array([[np.inf], [0.0]], np.float32), np.zeros(2, np.int64), 2, "point 0 holds NaN"),
        (np.zeros((2, 3), np.float32), np.zeros(3, np.int64), 2, "2 points but 3 labels"),
        (np.zeros((2, 3), np.float32), np.zeros(2, np.int32), 2, "int64"),
        (np.zeros((2, 3), np.float32), np.zeros((2, 1), np.int64), 2, "attributes must be"),
        (np.zeros((2, 3), np.float32), np.full((2, 2), 2), 2, "attributes must be 0 or 1"),
        (np.zeros((2, 3), np.float32), np.zeros((2, 2, 1), np.int64), 2, "vector"),
        (np.zeros((2, 3), np.float32), np.array([0, 2]), 2, "label 2 of point 1"),
        (np.zeros((2, 3), np.float32), np.array([-1, 0]), 2, "label -1 of point 0"),
        (np.zeros((2, 3), np.float32), np.zeros(2, np.int64), 1, "two classes"),
    ],
)
def test_malformed_data_is_refused_with_its_reason(
    x: np.ndarray, y: np.ndarray, classes: int, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Dataset("bad", x, y, classes)


def test_attributes_are_rows_of_zeros_and_ones() -> None:
    faces = Dataset("faces", np.zeros((2, 3), np.float32), np.array([[0, 1], [1, 1]]), 2)
    assert faces.multi_label
    assert not load_embedded().multi_label
