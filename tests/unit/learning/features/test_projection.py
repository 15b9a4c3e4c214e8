"""Principal directions of public points, and of nothing else."""

from __future__ import annotations

import numpy as np
import pytest

from mpc_vote.learning.features.projection import project


def _public(count: int = 200) -> np.ndarray:
    """Points that spread along the first axis most, then the third, far from the origin."""
    draws = np.random.default_rng(0)
    return (draws.normal(size=(count, 4)) * [9, 0.1, 3, 0.2] + 50).astype(np.float32)


def test_the_largest_spreads_are_kept_in_order() -> None:
    mapped = project(_public(), 2)(_public())
    correlation = np.abs(np.corrcoef(mapped.T, _public().T)[:2, 2:])
    assert correlation[0].argmax() == 0 and correlation[1].argmax() == 2
    assert mapped.shape == (200, 2) and mapped.dtype == np.float32


def test_public_points_are_centred_and_of_mean_square_norm_one() -> None:
    mapped = project(_public(), 3)(_public())
    assert np.allclose(mapped.mean(axis=0), 0, atol=1e-5)
    assert (mapped**2).sum(axis=1).mean() == pytest.approx(1, rel=1e-4)


def test_images_are_taken_as_vectors() -> None:
    images = _public().reshape(200, 2, 2)
    assert np.array_equal(project(images, 2)(images), project(_public(), 2)(_public()))


@pytest.mark.parametrize("dimensions", [0, 5])
def test_no_more_directions_than_there_are(dimensions: int) -> None:
    with pytest.raises(ValueError, match="1 to 4 directions"):
        project(_public(), dimensions)


def test_points_without_spread_have_no_directions() -> None:
    with pytest.raises(ValueError, match="all the same"):
        project(np.ones((5, 3), np.float32), 1)


def test_a_point_is_mapped_to_the_same_bits_in_any_company() -> None:
    points = np.random.default_rng(1).normal(size=(65, 300)).astype(np.float32)
    mapped = project(points, 20)
    together = mapped(points)
    for row in range(len(points)):
        assert np.array_equal(mapped(points[row : row + 1])[0], together[row])
    assert np.array_equal(mapped(points[::-1])[::-1], together)
