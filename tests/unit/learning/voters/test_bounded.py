"""Votes of records that contribute a bounded number of times, against the rule said plainly."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpc_vote.data.dataset import Dataset, FloatArray
from mpc_vote.learning.voters import bounded
from mpc_vote.learning.voters.bounded import BoundedVoter, distances_between
from mpc_vote.learning.voters.knn import KnnVoter, limits
from mpc_vote.voting.ballots import KNN_COUNT


def line(*places: float) -> FloatArray:
    return np.array(places, np.float32).reshape(-1, 1)


def voter(places: FloatArray, labels: list[int], k: int, radius: float, bound: int) -> BoundedVoter:
    data = Dataset("line", places, np.array(labels, np.int64), 3)
    return BoundedVoter(data, k, radius, bound)


def unused(of: BoundedVoter) -> np.ndarray:
    return np.zeros(len(of.identities), np.uint32)


def test_a_record_answers_as_often_as_it_may_and_then_makes_room() -> None:
    mine = voter(line(0, 0.1, 0.2), [0, 1, 2], k=1, radius=1, bound=2)
    counts, used = mine.answer(line(0, 0, 0, 0), unused(mine))
    # All three lie within the radius, so all are counted, whoever of them is the nearest.
    assert counts.tolist() == [[1, 0, 0], [1, 0, 0], [0, 0, 0], [0, 0, 0]]
    assert used.tolist() == [2, 2, 2]
    left = voter(line(0, 0.9), [0, 1], k=1, radius=1, bound=2)
    counts, _ = left.answer(line(-0.5, -0.5, 0.5), unused(left))
    assert counts.tolist() == [[1, 0, 0], [1, 0, 0], [0, 1, 0]]


def test_a_record_beyond_the_radius_is_neither_counted_nor_used_up() -> None:
    mine = voter(line(0, 5), [0, 1], k=2, radius=1, bound=1)
    counts, used = mine.answer(line(100, 100, 5, 5), unused(mine))
    assert counts.tolist() == [[0, 0, 0], [0, 0, 0], [0, 1, 0], [0, 0, 0]]
    assert sorted(used.tolist()) == [0, 1]


def test_counters_go_on_from_where_they_were() -> None:
    mine = voter(line(0), [0], k=1, radius=1, bound=3)
    _, used = mine.answer(line(0, 0), unused(mine))
    counts, used = mine.answer(line(0, 0), used)
    assert counts[:, 0].tolist() == [1, 0] and used.tolist() == [3]
    counts, used = mine.answer(line(0), np.array([7], np.uint32))
    assert counts.sum() == 0 and used.tolist() == [7]


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    records=st.integers(1, 40),
    k=st.integers(1, 50),
    bound=st.integers(1, 12),
    radius=st.sampled_from([0.5, 2.0, 1e6]),
    reach=st.sampled_from([None, 0.2]),
    coarse=st.booleans(),
)
def test_votes_are_those_of_the_rule_one_query_after_the_other(
    seed: int, records: int, k: int, bound: int, radius: float, reach: float | None, coarse: bool
) -> None:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(records, 3)).astype(np.float32)
    if coarse:
        x = np.rint(x)
    data = Dataset("any", x, rng.integers(0, 3, records), 3)
    mine = BoundedVoter(data, k, radius, bound, reach=reach)
    queries = (np.rint(rng.normal(size=(20, 3)) * 2) / 2).astype(np.float32)
    counts, used = mine.answer(queries, unused(mine))
    times = np.zeros(records, np.int64)
    limit = limits(queries, reach, radius)
    for row, query in enumerate(queries):
        distances = ((mine._vectors - query) ** 2).sum(axis=1)
        near = [at for at in range(records) if distances[at] <= limit[row]]
        takes = [at for at in near if times[at] < bound]
        times[takes] += 1
        nearest = sorted(takes, key=lambda at: (distances[at], at))[:k]
        expected = np.bincount(mine._labels[nearest], minlength=3)
        assert counts[row].tolist() == expected.tolist()
    assert used.tolist() == times.tolist()


def test_with_a_bound_that_nobody_meets_votes_are_those_of_all_neighbours() -> None:
    rng = np.random.default_rng(2)
    x, y = rng.normal(size=(300, 7)).astype(np.float32), rng.integers(0, 3, 300)
    queries = rng.normal(size=(60, 7)).astype(np.float32)
    data = Dataset("any", x, y, 3)
    for radius, reach in ((3.0, None), (3.0, 0.1), (1e9, None)):
        loose = BoundedVoter(data, 9, radius, 10_000, reach=reach)
        plain = KnnVoter(x, y, 3, 9, reach=reach, radius=radius)
        assert (loose.vote(queries, KNN_COUNT) == plain.counts(queries)).all()


def test_the_order_of_the_file_and_the_cut_into_blocks_change_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng = np.random.default_rng(3)
    x = np.rint(rng.normal(size=(200, 2))).astype(np.float32)
    data = Dataset("ties", x, rng.integers(0, 3, 200), 3)
    queries = np.rint(rng.normal(size=(50, 2))).astype(np.float32)
    mine = BoundedVoter(data, 5, 2.0, 6)
    counts, used = mine.answer(queries, unused(mine))
    other = BoundedVoter(data.take(rng.permutation(200)), 5, 2.0, 6)
    assert (other.identities == mine.identities).all()
    monkeypatch.setattr(bounded, "_QUERIES", 7)
    monkeypatch.setattr(bounded, "_RECORDS", 11)
    monkeypatch.setattr(bounded, "_MAPPED", 13)
    again = BoundedVoter(data, 5, 2.0, 6)
    for one in (other, again):
        found, after = one.answer(queries, unused(one))
        assert (found == counts).all() and (after == used).all()


def test_a_distance_is_of_one_pair_alone_to_the_last_bit() -> None:
    rng = np.random.default_rng(4)
    for width in (3, 37, 588):
        records = rng.normal(size=(70, width)).astype(np.float32)
        queries = rng.normal(size=(33, width)).astype(np.float32)
        whole = distances_between(queries, records)
        for _ in range(40):
            row, at = rng.integers(33), rng.integers(70)
            alone = distances_between(queries[row : row + 1], records[at : at + 1].copy())
            assert alone.view(np.uint32)[0, 0] == whole.view(np.uint32)[row, at]


@pytest.mark.parametrize("size", [1e19, 1e30, 3.4028235e38])
def test_distances_that_overflow_are_within_no_radius(size: float) -> None:
    mine = voter(line(0, 1), [0, 1], k=2, radius=1e15, bound=2)
    counts, used = mine.answer(line(size, -size), unused(mine))
    assert counts.sum() == 0 and used.sum() == 0


def test_no_queries_count_nobody_and_other_shapes_are_refused() -> None:
    mine = voter(line(0, 1), [0, 1], k=2, radius=1, bound=2)
    counts, used = mine.answer(np.zeros((0, 1), np.float32), unused(mine))
    assert counts.shape == (0, 3) and used.tolist() == [0, 0]
    with pytest.raises(ValueError, match="a query has shape"):
        mine.answer(np.zeros((2, 5), np.float32), unused(mine))


@pytest.mark.parametrize(
    ("k", "radius", "bound", "why"),
    [
        (0, 1.0, 1, "k must be"),
        (1, 0.0, 1, "radius"),
        (1, 1e16, 1, "radius"),
        (1, 1.0, 0, "at least once"),
    ],
)
def test_parameters_that_make_no_sense_are_refused(
    k: int, radius: float, bound: int, why: str
) -> None:
    with pytest.raises(ValueError, match=why):
        voter(line(0), [0], k, radius, bound)
