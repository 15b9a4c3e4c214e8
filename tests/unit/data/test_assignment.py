"""Deals give every agent what was asked for, no point twice, and the same for the same seed."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from mpc_vote.data.assignment import (
    Deal,
    deal_by_class,
    deal_dirichlet,
    deal_iid,
    deal_repeatedly,
    deal_shards,
)

# How many there are of each digit in MNIST's train set.
MNIST_COUNTS = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]

seeds = st.integers(0, 2**32)
stocks = st.lists(st.integers(1, 60), min_size=2, max_size=8)


def _labels(stock: list[int], seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).permutation(np.repeat(np.arange(len(stock)), stock))


def _counts(labels: np.ndarray, deal: Deal) -> np.ndarray:
    """One row per agent, one column per class."""
    return np.array([np.bincount(labels[rows], minlength=labels.max() + 1) for rows in deal])


def _assert_disjoint(deal: Deal, points: int) -> None:
    rows = np.concatenate(deal)
    assert len(np.unique(rows)) == len(rows)
    assert rows.min() >= 0
    assert rows.max() < points


@given(stocks, st.integers(1, 12), st.integers(1, 20), st.integers(1, 8), seeds)
def test_by_class_every_agent_has_the_exact_size_and_number_of_classes(
    stock: list[int], agents: int, size: int, each: int, seed: int
) -> None:
    labels = _labels(stock)
    try:
        deal = deal_by_class(labels, agents, size, each, seed)
    except ValueError:
        assume(False)
    _assert_disjoint(deal, len(labels))
    counts = _counts(labels, deal)
    assert counts.shape[0] == agents
    assert (counts.sum(axis=1) == size).all()
    assert ((counts > 0).sum(axis=1) == each).all()


@given(st.integers(2, 6), st.integers(1, 10), st.integers(1, 6), st.integers(1, 6), seeds)
def test_by_class_is_never_refused_where_every_class_alone_would_do(
    classes: int, agents: int, each: int, share: int, seed: int
) -> None:
    assume(each <= classes)
    labels = _labels([agents * each * share] * classes)
    assert len(deal_by_class(labels, agents, each * share, each, seed)) == agents


def test_by_class_uses_up_classes_of_unlike_size() -> None:
    labels = _labels(MNIST_COUNTS)
    deal = deal_by_class(labels, 100, 600, 6, 0)
    _assert_disjoint(deal, 60_000)
    assert sum(map(len, deal)) == 60_000
    counts = _counts(labels, deal)
    assert ((counts > 0).sum(axis=1) == 6).all()
    assert (counts.sum(axis=1) == 600).all()
    shares = counts[counts > 0]
    assert shares.min() >= 95
    assert shares.max() <= 105
    assert np.ptp((counts > 0).sum(axis=0)) <= 15


def test_by_class_agents_differ_in_their_classes() -> None:
    counts = _counts(labels := _labels([100] * 10), deal_by_class(labels, 40, 25, 6, 0))
    assert len({tuple(row) for row in counts > 0}) > 20


def test_by_class_shifts_from_a_scarce_class_to_the_others() -> None:
    labels = _labels([10, 500, 500])
    counts = _counts(labels, deal_by_class(labels, 10, 60, 3, 0))
    assert counts[:, 0].tolist() == [1] * 10
    assert np.ptp(counts[:, 1:]) <= 1


@pytest.mark.parametrize(
    ("stock", "agents", "size", "each"),
    [
        ([9, 4, 1, 8, 6], 4, 7, 3),
        ([9, 9, 2, 4, 1], 4, 6, 2),
        ([9, 3, 2, 3, 11], 3, 6, 4),
        ([4, 4, 9, 11, 5], 4, 7, 4),
    ],
)
def test_by_class_takes_no_class_away_from_an_agent_where_points_are_scarce(
    stock: list[int], agents: int, size: int, each: int
) -> None:
    labels = _labels(stock)
    for seed in range(150):
        counts = _counts(labels, deal_by_class(labels, agents, size, each, seed))
        assert ((counts > 0).sum(axis=1) == each).all()
        assert (counts.sum(axis=1) == size).all()


@pytest.mark.parametrize(
    ("stock", "agents", "size", "each", "message"),
    [
        ([50, 50], 2, 10, 3, "exactly 3"),
        ([50, 50], 2, 10, 0, "exactly 0"),
        ([50, 50], 2, 1, 2, "exactly 2"),
        ([50, 50], 0, 10, 2, "agents must be at least 1"),
        ([50, 50], 11, 10, 2, "can't give 11 agents 10 points of 2 classes"),
        ([9, 1000], 10, 20, 2, "can't give 10 agents"),
        ([15, 15, 15], 4, 10, 1, "can't give 4 agents"),
        # All ten points would be needed, as two pairs of classes with five each.
        ([4, 2, 2, 2], 2, 5, 2, "found no way"),
    ],
)
def test_by_class_refuses_the_impossible(
    stock: list[int], agents: int, size: int, each: int, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        deal_by_class(_labels(stock), agents, size, each, 0)


@given(st.integers(1, 300), st.integers(1, 20), st.none() | st.integers(1, 30), seeds)
def test_iid_deals_the_sizes_asked_for(
    points: int, agents: int, size: int | None, seed: int
) -> None:
    if points < agents * (size or 1):
        with pytest.raises(ValueError, match="lower agents or size"):
            deal_iid(points, agents, size, seed)
        return
    deal = deal_iid(points, agents, size, seed)
    _assert_disjoint(deal, points)
    sizes = [len(rows) for rows in deal]
    if size is None:
        assert sum(sizes) == points
        assert max(sizes) - min(sizes) <= 1
    else:
        assert sizes == [size] * agents


@given(stocks, st.integers(1, 8), st.integers(1, 4), seeds)
def test_shards_are_equal_and_each_a_run_of_the_sorted_labels(
    stock: list[int], agents: int, each: int, seed: int
) -> None:
    labels = _labels(stock)
    assume(len(labels) >= agents * each)
    deal = deal_shards(labels, agents, each, seed)
    _assert_disjoint(deal, len(labels))
    shard = len(labels) // (agents * each)
    assert [len(rows) for rows in deal] == [shard * each] * agents
    # Cutting a sorted list of C classes into S shards splits classes at most S + C - 1 times.
    assert (_counts(labels, deal) > 0).sum() <= agents * each + len(stock) - 1


def test_two_shards_of_mnist_are_about_two_digits() -> None:
    labels = _labels(MNIST_COUNTS)
    held = (_counts(labels, deal_shards(labels, 100, 2, 0)) > 0).sum(axis=1)
    assert held.max() <= 4
    assert np.median(held) == 2


@given(stocks, st.integers(1, 6), st.sampled_from([0.3, 1.0, 100.0]), st.integers(1, 3), seeds)
def test_dirichlet_deals_every_point_and_at_least_the_least(
    stock: list[int], agents: int, alpha: float, least: int, seed: int
) -> None:
    labels = _labels(stock)
    try:
        deal = deal_dirichlet(labels, agents, alpha, seed, least)
    except ValueError:
        assume(False)
    _assert_disjoint(deal, len(labels))
    assert sum(map(len, deal)) == len(labels)
    assert min(map(len, deal)) >= least
    assert len(deal) == agents


def test_dirichlet_is_more_skewed_for_a_smaller_alpha() -> None:
    labels = _labels([500] * 10)

    def largest_share(alpha: float) -> float:
        counts = _counts(labels, deal_dirichlet(labels, 10, alpha, 0))
        return float((counts.max(axis=1) / counts.sum(axis=1)).mean())

    assert largest_share(0.1) > 0.4 > 0.2 > largest_share(100.0)


@pytest.mark.parametrize(
    ("alpha", "agents", "least", "message"),
    [
        (0.0, 2, 1, "alpha must be positive"),
        (float("nan"), 2, 1, "alpha must be positive"),
        (float("inf"), 2, 1, "alpha must be positive"),
        (1.0, 2, 0, "at least 0"),
        (1.0, 21, 1, "can't give each of 21 agents"),
        (0.01, 10, 2, "raise alpha"),
    ],
)
def test_dirichlet_refuses_the_impossible(
    alpha: float, agents: int, least: int, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        deal_dirichlet(_labels([10, 10]), agents, alpha, 0, least)


@given(st.integers(1, 40), st.integers(1, 10), seeds)
def test_repeated_deals_give_no_agent_a_point_twice(agents: int, at_once: int, seed: int) -> None:
    deal = deal_repeatedly(lambda count, own: deal_iid(50, count, 5, own), agents, at_once, seed)
    assert [len(np.unique(rows)) for rows in deal] == [5] * agents
    copies = np.bincount(np.concatenate(deal), minlength=50)
    assert copies.max() <= -(-agents // at_once)


def test_repeated_deals_keep_the_classes_and_copy_every_point_alike() -> None:
    labels = _labels([60] * 10)
    deal = deal_repeatedly(
        lambda count, own: deal_by_class(labels, count, 60, 6, own), agents=80, at_once=10, seed=0
    )
    assert ((_counts(labels, deal) > 0).sum(axis=1) == 6).all()
    assert (np.bincount(np.concatenate(deal)) == 8).all()
    assert not np.array_equal(deal[0], deal[10])


def test_repeated_deals_need_an_agent_at_once() -> None:
    with pytest.raises(ValueError, match="at once"):
        deal_repeatedly(lambda count, own: deal_iid(50, count, 5, own), 10, 0, 0)


Dealer = Callable[[np.ndarray, int], Deal]


@pytest.mark.parametrize(
    "deal",
    [
        lambda labels, seed: deal_iid(len(labels), 5, 30, seed),
        lambda labels, seed: deal_by_class(labels, 5, 30, 2, seed),
        lambda labels, seed: deal_shards(labels, 5, 2, seed),
        lambda labels, seed: deal_dirichlet(labels, 5, 1.0, seed),
        lambda labels, seed: deal_repeatedly(
            lambda count, own: deal_by_class(labels, count, 30, 2, own), 5, 2, seed
        ),
    ],
    ids=["iid", "by_class", "shards", "dirichlet", "repeatedly"],
)
def test_a_deal_depends_on_its_seed_only(deal: Dealer) -> None:
    labels = _labels([50] * 4)
    first, again, other = (deal(labels, seed) for seed in (7, 7, 8))
    for one, two in zip(first, again, strict=True):
        assert np.array_equal(one, two)
    assert any(not np.array_equal(one, two) for one, two in zip(first, other, strict=True))
    assert all(rows.dtype == np.int64 and (np.diff(rows) > 0).all() for rows in first)
    with pytest.raises(ValueError, match="seed"):
        deal(labels, -1)


@pytest.mark.parametrize(
    "deal",
    [
        lambda labels: deal_by_class(labels, 2, 2, 1, 0),
        lambda labels: deal_shards(labels, 2, 1, 0),
        lambda labels: deal_dirichlet(labels, 2, 1.0, 0),
    ],
)
def test_attributes_have_no_class_to_divide_by(deal: Callable[[np.ndarray], Deal]) -> None:
    with pytest.raises(ValueError, match="several attributes"):
        deal(np.zeros((10, 3), np.int64))


def test_shards_need_a_point_each() -> None:
    with pytest.raises(ValueError, match="can't be cut"):
        deal_shards(_labels([3, 3]), 4, 2, 0)
    with pytest.raises(ValueError, match="can't be cut"):
        deal_shards(_labels([3, 3]), 4, 0, 0)
