"""PATE and Private-kNN: right votes, and the sensitivity that their account claims."""

from __future__ import annotations

import math

import numpy as np
import pytest

from mpc_vote.data.dataset import Dataset
from mpc_vote.learning.baselines.centralised import (
    CentralTotals,
    pate,
    pool,
    private_knn,
    teacher_parts,
)
from mpc_vote.privacy import Level, epsilon, exact_epsilon, gaussian_exact_epsilon


def _blobs(count: int, seed: int, name: str = "blobs") -> Dataset:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 3, count)
    centres = np.array([[0, 0], [6, 0], [0, 6]], np.float32)
    return Dataset(name, (centres[labels] + rng.normal(size=(count, 2))).astype("f4"), labels, 3)


def test_pooling_keeps_every_record_and_teachers_share_none() -> None:
    parts = [_blobs(20, 0), _blobs(30, 1)]
    pooled = pool(parts)
    assert np.array_equal(pooled.x, np.concatenate([part.x for part in parts]))
    assert np.array_equal(pooled.y, np.concatenate([part.y for part in parts]))
    taught = teacher_parts(pooled, 7, seed=2)
    assert {len(part) for part in taught} == {7, 8}
    rows = np.concatenate([part.x for part in taught])
    assert sorted(map(tuple, rows.tolist())) == sorted(map(tuple, pooled.x.tolist()))


@pytest.mark.parametrize(
    "parts", [[], [_blobs(5, 0), Dataset("other", np.zeros((2, 2), "f4"), np.array([0, 1]), 2)]]
)
def test_what_does_not_fit_together_is_not_pooled(parts: list[Dataset]) -> None:
    with pytest.raises(ValueError, match="same classes"):
        pool(parts)


def test_pate_counts_teachers() -> None:
    reference = pate(np.array([[0, 1], [0, 2], [1, 2]]), 3, sigma=1e-9)
    assert reference.totals.tolist() == [[2, 1, 0], [0, 1, 2]]
    assert reference.release(0).tolist() == [0, 2]


def test_pate_costs_a_swapped_vote_per_record_and_all_votes_per_agent() -> None:
    mechanism = pate(np.zeros((50, 100), np.int64), 10, sigma=40.0).mechanism
    instance = exact_epsilon([mechanism], Level.INSTANCE, 1e-5)
    assert instance == pytest.approx(gaussian_exact_epsilon(math.sqrt(2 * 100) / 40, 1e-5))
    agent = exact_epsilon([mechanism], Level.AGENT, 1e-5)
    assert agent == pytest.approx(gaussian_exact_epsilon(50 * math.sqrt(2 * 100) / 40, 1e-5))


@pytest.mark.parametrize("predictions", [np.zeros(4, np.int64), np.zeros((0, 4), np.int64)])
def test_pate_needs_teachers_and_queries(predictions: np.ndarray) -> None:
    with pytest.raises(ValueError, match="teachers, queries"):
        pate(predictions, 3, 1.0)


def test_the_noise_has_the_deviation_that_is_accounted_for() -> None:
    """Of two cells 10 votes apart under noise of 5, the first wins with Phi(10 / 5 / sqrt(2))."""
    votes = np.repeat(np.array([0] * 30 + [1] * 20)[:, None], 20_000, axis=1)
    labels = pate(votes, 2, sigma=5.0).release(seed=1)
    assert np.mean(labels == 0) == pytest.approx(0.92135, abs=0.008)
    assert np.array_equal(labels, pate(votes, 2, sigma=5.0).release(seed=1))
    assert not np.array_equal(labels, pate(votes, 2, sigma=5.0).release(seed=2))


def test_private_knn_finds_the_nearest_of_all_where_all_are_sampled() -> None:
    x = np.array([[0], [1], [2], [10], [11]], np.float32)
    pooled = Dataset("line", x, np.array([0, 0, 1, 2, 2]), 3)
    asked = np.array([[0.4], [10.4]], np.float32)
    reference = private_knn(pooled, asked, k=3, sampling=1.0, sigma=1e-6, seed=0)
    assert reference.totals.tolist() == [[2, 1, 0], [0, 1, 2]]
    flipped = private_knn(pooled, asked, 1, 1.0, 1e-6, 0, features=lambda points: -np.abs(points))
    assert flipped.release(0).tolist() == [0, 2]


def _sampled(pooled: Dataset, sampling: float, k: int = 10) -> CentralTotals:
    asked = np.tile(np.array([[6.0, 0.0]], np.float32), (400, 1))
    return private_knn(pooled, asked, k, sampling, sigma=3.0, seed=5)


def test_private_knn_samples_anew_for_each_query() -> None:
    found = _sampled(_blobs(20, 3), sampling=0.25, k=20).totals.sum(axis=1)
    assert found.mean() == pytest.approx(5, abs=0.5)
    assert found.var() == pytest.approx(20 * 0.25 * 0.75, rel=0.35)
    assert (_sampled(_blobs(300, 3), sampling=0.5).totals.argmax(axis=1) == 1).all()


def test_private_knn_is_cheaper_by_its_sampling() -> None:
    pooled = _blobs(50, 0)
    sampled = _sampled(pooled, sampling=0.1).mechanism
    whole = _sampled(pooled, sampling=1.0).mechanism
    mu = math.sqrt(2 * 400) / 3
    assert epsilon([whole], Level.INSTANCE, 1e-5) >= gaussian_exact_epsilon(mu, 1e-5)
    assert epsilon([sampled], Level.INSTANCE, 1e-5) < epsilon([whole], Level.INSTANCE, 1e-5) / 5
    assert epsilon([sampled], Level.AGENT, 1e-5) == math.inf


def test_a_record_moves_one_neighbour_of_the_queries_that_sampled_it() -> None:
    """Taken away from the end, so that the others' coins stay the same but for its own."""
    pooled = _blobs(61, 4)
    rest = pooled.take(np.arange(60))
    asked = _blobs(200, 9).x
    for row in range(200):
        query = asked[row : row + 1]
        given, without = (
            private_knn(data, query, 5, 0.5, 1.0, seed=row).totals for data in (pooled, rest)
        )
        assert np.square(given - without).sum() <= 2


def test_attributes_are_refused() -> None:
    many = Dataset("many", np.zeros((4, 2), "f4"), np.zeros((4, 3), np.int64), 3)
    with pytest.raises(ValueError, match="one class per point"):
        private_knn(many, np.zeros((1, 2), "f4"), 1, 1.0, 1.0, 0)
