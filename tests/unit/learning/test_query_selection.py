"""Representatives of clusters cover the public data; the choice depends on features and seed."""

from __future__ import annotations

import numpy as np
import pytest

from mpc_vote.data.embedded import load_embedded
from mpc_vote.learning.features.maps import strokes
from mpc_vote.learning.query_selection import SELECTORS, random_points, representatives, selector


def _clumps(sizes: list[int], seed: int, offset: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    home = np.repeat(np.arange(len(sizes)), sizes)
    centres = rng.normal(size=(len(sizes), 5)) * 20
    points = centres[home] + rng.normal(size=(len(home), 5)) + offset
    return points.astype(np.float32), home


@pytest.fixture(scope="module")
def digits() -> tuple[np.ndarray, np.ndarray]:
    data = load_embedded()
    rows = np.random.default_rng(0).choice(len(data), 1200, replace=False)
    return strokes(data.x[rows]), data.y[rows]


@pytest.mark.parametrize("offset", [0.0, 5000.0])
@pytest.mark.parametrize("seed", range(5))
def test_each_clump_is_asked_once_however_rare_it_is(seed: int, offset: float) -> None:
    points, home = _clumps([400, 300, 200, 60, 5], seed, offset)
    assert sorted(home[representatives(points, 5, seed)]) == [0, 1, 2, 3, 4]


def test_a_representative_lies_in_the_middle_of_its_clump() -> None:
    points, home = _clumps([200, 200, 200], 3)
    for row in representatives(points, 3, 0):
        clump = points[home == home[row]]
        distances = np.linalg.norm(clump - clump.mean(axis=0), axis=1)
        own = np.linalg.norm(points[row] - clump.mean(axis=0))
        assert own == pytest.approx(distances.min())


def test_representatives_are_nearer_to_everything_than_random_points(
    digits: tuple[np.ndarray, np.ndarray],
) -> None:
    features, _ = digits

    def gap(rows: np.ndarray) -> float:
        return float((2 - 2 * features @ features[rows].T).min(axis=1).mean())

    chosen = gap(representatives(features, 40, 0))
    assert chosen < 0.95 * min(gap(random_points(features, 40, seed)) for seed in range(5))


def test_thirty_representatives_know_all_ten_digits(
    digits: tuple[np.ndarray, np.ndarray],
) -> None:
    features, labels = digits
    assert len(np.unique(labels[representatives(features, 30, 1)])) == 10


@pytest.mark.parametrize("name", sorted(SELECTORS))
def test_the_choice_repeats_itself_and_leaves_global_randomness_alone(name: str) -> None:
    points, _ = _clumps([80, 80, 80], 1)
    np.random.seed(7)
    before = np.random.get_state(legacy=False)["state"]["key"].copy()
    first = selector(name)(points, 20, 5)
    assert np.array_equal(first, selector(name)(points, 20, 5))
    assert not np.array_equal(first, selector(name)(points, 20, 6))
    assert np.array_equal(before, np.random.get_state(legacy=False)["state"]["key"])
    assert first.dtype == np.int64


@pytest.mark.parametrize("name", sorted(SELECTORS))
@pytest.mark.parametrize("count", [1, 7, 30])
def test_rows_are_distinct_even_where_points_are_equal(name: str, count: int) -> None:
    few = np.repeat(np.arange(3, dtype=np.float32)[:, None], 10, axis=0)
    rows = selector(name)(few, count, 0)
    assert len(rows) == count
    assert np.all(np.diff(rows) > 0)
    assert rows.min() >= 0
    assert rows.max() < 30


def test_what_cannot_be_asked_is_refused() -> None:
    points, _ = _clumps([10], 0)
    for choose in SELECTORS.values():
        with pytest.raises(ValueError, match="ask about 1 to 10 public points, not 11"):
            choose(points, 11, 0)
        with pytest.raises(ValueError, match="not 0"):
            choose(points, 0, 0)
        with pytest.raises(ValueError, match="must be vectors"):
            choose(points[:, :, None], 2, 0)
    with pytest.raises(ValueError, match="choose one of: random, clusters"):
        selector("best")
