"""Neighbours' votes: right counts, and the sensitivity on which the accounting rests."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpc_vote.learning.voters import knn
from mpc_vote.learning.voters.knn import AttributeVoter, KnnVoter, _index, _nearest
from mpc_vote.voting.ballots import ABSTAIN, KNN_COUNT, ONE_HOT


def _line(*places: float) -> np.ndarray:
    return np.array(places, np.float32).reshape(-1, 1)


def test_the_nearest_labels_are_counted() -> None:
    voter = KnnVoter(_line(0, 1, 2, 10, 11), np.array([0, 0, 1, 2, 2]), 4, k=3)
    counts = voter.counts(_line(0.4, 10.4))
    assert counts.tolist() == [[2, 1, 0, 0], [0, 1, 2, 0]]
    assert counts.dtype == np.int64


def test_fewer_points_than_k_give_fewer_votes() -> None:
    voter = KnnVoter(_line(0, 1), np.array([0, 1]), 2, k=9)
    assert voter.counts(_line(5)).tolist() == [[1, 1]]


def test_no_queries_give_no_rows() -> None:
    voter = KnnVoter(_line(0, 1), np.array([0, 1]), 3, k=1)
    assert voter.counts(np.zeros((0, 1), np.float32)).shape == (0, 3)


def test_a_majority_is_one_vote_the_lower_of_equals_or_none() -> None:
    counts = np.array([[1, 3, 2], [2, 0, 2], [0, 0, 0], [0, 0, 1]])
    assert knn.majority(counts).tolist() == [1, 0, ABSTAIN, 2]


def test_neighbours_cast_one_vote_where_one_hot_is_asked_for() -> None:
    queries = _line(0, 1, 2, 100, 101, 102)
    voter = KnnVoter(_line(0.5, 1.5, 2.5), np.array([1, 1, 0]), 2, k=3, reach=0.5)
    assert voter.vote(queries, ONE_HOT).tolist() == [1, 1, 1, ABSTAIN, ABSTAIN, ABSTAIN]
    assert voter.vote(queries, KNN_COUNT).tolist() == voter.counts(queries).tolist()


def test_reach_lets_an_agent_abstain_far_from_its_data() -> None:
    queries = _line(0, 1, 2, 100, 101, 102)
    points, labels = _line(0.5, 1.5, 2.5), np.array([1, 1, 1])
    assert KnnVoter(points, labels, 2, k=3).counts(queries).sum(axis=1).tolist() == [3] * 6
    reached = KnnVoter(points, labels, 2, k=3, reach=0.5).counts(queries)
    assert reached[:, 1].tolist() == [2, 2, 3, 0, 0, 0]


def test_a_single_query_has_no_radius() -> None:
    voter = KnnVoter(_line(0, 1), np.array([0, 1]), 2, k=2, reach=0.1)
    assert voter.counts(_line(50)).tolist() == [[1, 1]]


def test_images_go_through_the_named_features() -> None:
    images = np.random.default_rng(0).random((20, 28, 28), dtype=np.float32)
    voter = KnnVoter(images, np.arange(20) % 10, 10, k=1, features="strokes")
    assert voter.counts(images).argmax(axis=1).tolist() == [row % 10 for row in range(20)]


@settings(max_examples=60)
@given(
    seed=st.integers(0, 2**32 - 1),
    count=st.integers(2, 200),
    k=st.integers(1, 150),
    coarse=st.booleans(),
    reach=st.sampled_from([None, 0.1, 0.5]),
)
def test_one_point_more_or_less_moves_one_vote_per_query(
    seed: int, count: int, k: int, coarse: bool, reach: float | None
) -> None:
    """D2^2 <= 2 votes per query, also among duplicates and near ties."""
    rng = np.random.default_rng(seed)
    points = rng.normal(size=(count, 37)).astype(np.float32)
    if coarse:
        points = points[rng.integers(0, min(3, count), count)]
    labels = rng.integers(0, 4, count)
    queries = rng.normal(size=(30, 37)).astype(np.float32)
    queries[:5] = points[rng.integers(0, count, 5)]
    whole = KnnVoter(points, labels, 4, k, reach=reach).counts(queries)
    gone = int(rng.integers(count))
    rest = np.delete(np.arange(count), gone)
    without = KnnVoter(points[rest], labels[rest], 4, k, reach=reach).counts(queries)
    points[gone], labels[gone] = rng.normal(size=37), rng.integers(4)
    replaced = KnnVoter(points, labels, 4, k, reach=reach).counts(queries)
    for other in (without, replaced):
        assert (np.abs(whole - other).sum(axis=1) <= 2).all()
        assert (np.square(whole - other).sum(axis=1) <= 2).all()
    assert (whole.sum(axis=1) <= k).all()


def test_points_at_like_distances_do_not_trade_places() -> None:
    """Rounding that depends on a point's place (as in BLAS) would move many votes at once."""
    for seed in range(60):
        rng = np.random.default_rng(seed)
        centre = rng.normal(size=37)
        sphere = (centre + rng.choice([-0.5, 0.5], size=(150, 37))).astype(np.float32)
        queries = np.repeat(centre[None], 30, axis=0).astype(np.float32)
        labels = rng.integers(0, 4, 150)
        whole = KnnVoter(sphere, labels, 4, k=60).counts(queries)
        rest = np.delete(np.arange(150), rng.integers(150))
        without = KnnVoter(sphere[rest], labels[rest], 4, k=60).counts(queries)
        assert (np.abs(whole - without).sum(axis=1) <= 2).all()


HUGE = [1e19, 3e20, 1e30, 3.4028235e38]


@pytest.mark.parametrize("size", HUGE)
@pytest.mark.parametrize("reach", [None, 0.3])
def test_a_query_beyond_all_distances_gets_no_vote(size: float, reach: float | None) -> None:
    """Its distances overflow, and faiss finds nothing: that must not be the last record's vote."""
    rng = np.random.default_rng(4)
    points, labels = rng.normal(size=(60, 5)).astype(np.float32), rng.integers(0, 3, 60)
    queries = np.concatenate([np.full((20, 5), size), np.full((20, 5), -size)]).astype(np.float32)
    for last in range(3):
        labels[-1] = last
        counts = KnnVoter(points, labels, 3, k=50, reach=reach).counts(queries)
        assert not counts.any()


def test_a_record_beyond_all_distances_never_votes_and_takes_no_place() -> None:
    points, labels = _line(0, 1, 2, 3e38, -1e25), np.array([0, 0, 1, 2, 2])
    voter = KnnVoter(points, labels, 3, k=4)
    assert voter.counts(_line(0.4, 3e38)).tolist() == [[2, 1, 0], [0, 0, 1]]


def test_distances_that_vanish_are_ties_by_place() -> None:
    """Squares of denormals are zero: the first k records are the nearest, whatever the others."""
    points = _line(*(1e-40 * place for place in range(9)))
    voter = KnnVoter(points, np.array([0, 1] + [2] * 7), 3, k=2)
    assert voter.counts(_line(5e-40, -1e-45)).tolist() == [[1, 1, 0]] * 2


@pytest.mark.parametrize("width", [1, 3, 7, 8, 16, 37, 64, 784])
def test_a_distance_depends_on_its_two_points_alone(width: int) -> None:
    """Bit for bit: at any place, among any others, for any k."""
    rng = np.random.default_rng(width)
    points = rng.normal(size=(33, width)).astype(np.float32)
    queries = rng.normal(size=(17, width)).astype(np.float32)
    alone = np.stack([_nearest(_index(points[[at]]), queries, 1)[0][:, 0] for at in range(33)])
    order = rng.permutation(33)
    for k in (1, 2, 20, 33):
        distances, places = _nearest(_index(points[order]), queries, k)
        for row in range(17):
            assert np.array_equal(distances[row], alone[order[places[row]], row])
            assert np.array_equal(
                _nearest(_index(points[order]), queries[[row]], k)[0][0], distances[row]
            )


def _many(kind: str, rng: np.random.Generator) -> Callable[[np.ndarray], np.ndarray]:
    """A voter that holds a lot about each query."""
    x = rng.normal(size=(400, 2)).astype(np.float32)
    if kind == "attributes":
        return AttributeVoter(x, rng.integers(2, size=(400, 100)), 100, k=50).scores
    reach = 0.9 if kind == "reach" else None
    return KnnVoter(x, rng.integers(3, size=400), 3, k=300, reach=reach).counts


@pytest.mark.parametrize("kind", ["count", "reach", "attributes"])
def test_memory_does_not_grow_with_queries_times_neighbours(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client chooses how many queries there are: an agent must not die of it."""
    monkeypatch.setattr(knn, "_HELD", 1 << 14)
    rng = np.random.default_rng(0)
    vote, queries = _many(kind, rng), rng.normal(size=(3_000, 2)).astype(np.float32)
    tracemalloc.start()
    answer = vote(queries)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2 * answer.nbytes + (2 << 20)


@pytest.mark.parametrize("kind", ["count", "reach", "attributes"])
def test_no_answer_depends_on_how_queries_are_cut_into_blocks(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(1)
    vote, queries = _many(kind, rng), rng.normal(size=(100, 2)).astype(np.float32)
    whole = vote(queries)
    for held in (1, 700, 20_000):
        monkeypatch.setattr(knn, "_HELD", held)
        assert (vote(queries) == whole).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"k": 0}, "k must be"),
        ({"reach": 0.0}, "reach"),
        ({"reach": 1.0}, "reach"),
        ({"features": "none"}, "unknown"),
        ({"y": np.array([0, 5])}, "label 5"),
        ({"y": np.array([0])}, "2 points but 1 labels"),
        ({"x": _line(0, np.nan)}, "NaN"),
        ({"x": np.zeros((0, 1), np.float32), "y": np.zeros(0, np.int64)}, "without points"),
    ],
)
def test_bad_arguments_are_refused(change: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {"x": _line(0, 1), "y": np.array([0, 1]), "classes": 2, "k": 1}
    with pytest.raises(ValueError, match=message):
        KnnVoter(**(arguments | change))


@pytest.mark.parametrize(
    ("queries", "message"),
    [
        (np.zeros((2, 3), np.float32), "a query has shape"),
        (_line(np.inf), "infinity"),
        (np.zeros((2, 1)), "float32"),
    ],
)
def test_bad_queries_are_refused(queries: np.ndarray, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        KnnVoter(_line(0, 1), np.array([0, 1]), 2, k=1).counts(queries)


def test_neighbours_need_no_torch() -> None:
    """An agent that votes by neighbours must stay small."""
    script = (
        "import sys, mpc_vote.data, mpc_vote.learning.voters.knn; print('torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "False"
