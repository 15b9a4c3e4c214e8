"""Multi-label neighbours: scores are shares of the nearest private points."""

import numpy as np
import pytest

from mpc_vote.learning.voters.knn import AttributeVoter

X = np.array([[0.0], [1.0], [10.0], [11.0]], dtype=np.float32)
Y = np.array([[1, 0, 0], [1, 1, 0], [0, 0, 1], [0, 1, 1]])


def test_a_score_is_the_share_of_the_nearest_points_with_the_attribute() -> None:
    voter = AttributeVoter(X, Y, 3, k=2)
    scores = voter.scores(np.array([[0.4], [10.6]], dtype=np.float32))
    assert scores.tolist() == [[1.0, 0.5, 0.0], [0.0, 0.5, 1.0]]


def test_fewer_points_than_k_all_count() -> None:
    scores = AttributeVoter(X, Y, 3, k=100).scores(np.zeros((1, 1), dtype=np.float32))
    assert scores.tolist() == [[0.5, 0.5, 0.5]]


@pytest.mark.parametrize("size", [1e20, 3.4e38])
def test_far_from_everything_nobody_has_any_attribute(size: float) -> None:
    scores = AttributeVoter(X, Y, 3, k=2).scores(np.full((2, 1), size, dtype=np.float32))
    assert not scores.any()


def test_a_point_beyond_all_distances_is_not_among_the_nearest() -> None:
    points = np.concatenate([X, np.full((1, 1), 3e38, np.float32)])
    attributes = np.concatenate([Y, np.ones((1, 3), np.int64)])
    scores = AttributeVoter(points, attributes, 3, k=100).scores(np.zeros((1, 1), np.float32))
    assert scores.tolist() == [[0.5, 0.5, 0.5]]


@pytest.mark.parametrize(
    ("y", "k"), [(Y[:3], 2), (Y, 0), (Y * 2, 2), (Y.astype(np.int32), 2), (Y[:, :2], 2)]
)
def test_unusable_data_is_refused(y: np.ndarray, k: int) -> None:
    with pytest.raises(ValueError, match="attributes"):
        AttributeVoter(X, y, 3, k)


def test_a_query_of_another_shape_is_refused() -> None:
    with pytest.raises(ValueError, match="shape"):
        AttributeVoter(X, Y, 3, 2).scores(np.zeros((1, 2), dtype=np.float32))
