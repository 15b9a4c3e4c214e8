"""Ballots: encodings are exact, and no pair of neighbours moves one further than promised."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpc_vote.privacy.sensitivity import Sensitivity
from mpc_vote.voting.ballots import (
    ABSTAIN,
    KNN_COUNT,
    KNN_FREQUENCY,
    MULTI_LABEL,
    ONE_HOT,
    BallotKind,
)

bits = st.integers(0, 10)


def one_hot(labels: npt.ArrayLike, classes: int, f: int) -> np.ndarray:
    return ONE_HOT.encode(labels, classes=classes, fraction_bits=f)


def knn_frequency(counts: npt.ArrayLike, k: int, f: int) -> np.ndarray:
    return KNN_FREQUENCY.encode(counts, classes=np.shape(counts)[-1], fraction_bits=f, k=k)


def knn_count(counts: npt.ArrayLike, k: int, f: int) -> np.ndarray:
    return KNN_COUNT.encode(counts, classes=np.shape(counts)[-1], fraction_bits=f, k=k)


def multi_label(scores: npt.ArrayLike, tau: int, f: int) -> np.ndarray:
    return MULTI_LABEL.encode(scores, classes=np.shape(scores)[-1], fraction_bits=f, tau=tau)


def assert_within(difference: np.ndarray, bound: Sensitivity) -> None:
    assert np.abs(difference).sum() <= bound.l1
    assert (difference**2).sum() <= bound.l2_squared


@st.composite
def neighbour_counts(draw: st.DrawFn) -> tuple[int, np.ndarray]:
    """A row of label counts of at most k neighbours."""
    k = draw(st.integers(1, 70))
    labels = draw(st.lists(st.integers(0, 4), max_size=k))
    return k, np.bincount(labels, minlength=5).reshape(1, 5).astype(np.int64)


def test_who_abstains_casts_nothing() -> None:
    assert one_hot([2, ABSTAIN], 3, 4).tolist() == [[0, 0, 16], [0, 0, 0]]


def test_one_hot_puts_one_vote_on_the_label() -> None:
    ballots = one_hot([2, 0], 3, 4)
    assert ballots.dtype == np.int64
    assert ballots.tolist() == [[0, 0, 16], [16, 0, 0]]


def test_knn_frequency_divides_by_the_public_k() -> None:
    assert knn_frequency([[2, 1, 0]], 3, 4).tolist() == [[10, 5, 0]]
    assert knn_frequency([[2, 1, 0]], 6, 4).tolist() == [[5, 2, 0]]


def test_knn_count_gives_every_neighbour_a_vote() -> None:
    assert knn_count([[2, 1, 0]], 5, 4).tolist() == [[32, 16, 0]]


def test_multi_label_keeps_the_tau_highest_and_breaks_ties_low() -> None:
    scores = [[0.9, 0.2, 0.7, 0.7], [0.5, 0.51, 0.1, 0.0]]
    assert multi_label(scores, 2, 0).tolist() == [[1, 0, 1, 0], [0, 1, 0, 0]]
    assert multi_label(scores, 9, 1).tolist() == [[2, 0, 2, 2], [0, 2, 0, 0]]


def test_empty_batches_are_ballots_too() -> None:
    assert one_hot([], 3, 4).shape == (0, 3)
    assert knn_count(np.zeros((0, 3), dtype=np.int64), 5, 4).shape == (0, 3)
    assert multi_label(np.zeros((0, 3)), 1, 4).shape == (0, 3)


@given(neighbour_counts(), bits)
def test_knn_ballots_stay_within_the_agent_level_bounds(
    drawn: tuple[int, np.ndarray], f: int
) -> None:
    k, counts = drawn
    for kind, encode in (
        (KNN_FREQUENCY, knn_frequency),
        (KNN_COUNT, knn_count),
    ):
        ballot = encode(counts, k, f)
        assert_within(ballot, kind.agent_sensitivity(fraction_bits=f, ks=[k]))
        assert ballot.max() <= kind.max_entry(fraction_bits=f, ks=[k])


@given(neighbour_counts(), bits, st.integers(0, 4), st.integers(0, 4))
def test_swapping_one_neighbour_stays_within_the_instance_level_bounds(
    drawn: tuple[int, np.ndarray], f: int, lost: int, gained: int
) -> None:
    k, counts = drawn
    other = counts.copy()
    other[0, lost] -= min(1, other[0, lost])
    if other.sum() < k:
        other[0, gained] += 1
    for kind, encode in (
        (KNN_FREQUENCY, knn_frequency),
        (KNN_COUNT, knn_count),
    ):
        moved = encode(other, k, f) - encode(counts, k, f)
        assert_within(moved, kind.instance_sensitivity(fraction_bits=f, ks=[k, k + 3]))


@given(st.integers(ABSTAIN, 4), st.integers(ABSTAIN, 4), bits)
def test_one_hot_ballots_stay_within_their_bounds(old: int, new: int, f: int) -> None:
    first, second = one_hot([old], 5, f), one_hot([new], 5, f)
    assert_within(first, ONE_HOT.agent_sensitivity(fraction_bits=f))
    assert_within(first - second, ONE_HOT.instance_sensitivity(fraction_bits=f))
    assert first.max() == (0 if old == ABSTAIN else ONE_HOT.max_entry(fraction_bits=f))


scores = st.lists(st.floats(-2, 2), min_size=6, max_size=6)


@given(scores, scores, st.integers(1, 7), bits)
def test_multi_label_ballots_stay_within_their_bounds(
    old: list[float], new: list[float], tau: int, f: int
) -> None:
    first, second = multi_label([old], tau, f), multi_label([new], tau, f)
    kind = MULTI_LABEL
    assert_within(first, kind.agent_sensitivity(fraction_bits=f, tau=tau))
    assert_within(first - second, kind.instance_sensitivity(fraction_bits=f, tau=tau))
    assert first.max() <= kind.max_entry(fraction_bits=f, tau=tau)


@pytest.mark.parametrize(
    ("kind", "agent", "instance", "entry"),
    [
        (ONE_HOT, (16, 256), (32, 512), 16),
        (KNN_FREQUENCY, (16, 256), (12, 72), 16),
        (KNN_COUNT, (80, 6400), (32, 512), 80),
        (MULTI_LABEL, (32, 512), (64, 1024), 16),
    ],
)
def test_sensitivities_at_four_bits(
    kind: BallotKind, agent: tuple[int, int], instance: tuple[int, int], entry: int
) -> None:
    ks = (5, 3, 4)
    moved = kind.agent_sensitivity(fraction_bits=4, ks=ks, tau=2)
    assert (moved.l1, moved.l2_squared) == agent
    moved = kind.instance_sensitivity(fraction_bits=4, ks=ks, tau=2)
    assert (moved.l1, moved.l2_squared) == instance
    assert kind.max_entry(fraction_bits=4, ks=ks, tau=2) == entry


def test_the_promised_sensitivities_are_reached() -> None:
    moved = knn_frequency([[2, 1]], 3, 4) - knn_frequency([[3, 0]], 3, 4)
    bound = KNN_FREQUENCY.instance_sensitivity(fraction_bits=4, ks=[3])
    assert moved.tolist() == [[-6, 5]]
    assert np.abs(moved).max() * 2 == bound.l1


@pytest.mark.parametrize(
    "encode",
    [
        lambda: one_hot([3], 3, 4),
        lambda: one_hot([-2], 3, 4),
        lambda: one_hot([0.5], 3, 4),
        lambda: one_hot([[0]], 3, 4),
        lambda: one_hot([0], 0, 4),
        lambda: one_hot([0], 3, -1),
        lambda: one_hot([0], 3, 25),
        lambda: knn_frequency([[2, 2]], 3, 4),
        lambda: knn_count([[2, 2]], 3, 4),
        lambda: knn_count([[-1, 2]], 3, 4),
        lambda: knn_count([[2**62, 2**62]], 3, 4),
        lambda: knn_count([[True, False]], 3, 4),
        lambda: knn_count([[1, 1]], 0, 4),
        lambda: multi_label([[0.1, float("nan")]], 1, 4),
        lambda: multi_label([0.1], 1, 4),
        lambda: multi_label([[0.1]], 0, 4),
        lambda: KNN_COUNT.agent_sensitivity(fraction_bits=4),
        lambda: KNN_FREQUENCY.instance_sensitivity(fraction_bits=4, ks=[3, 0]),
        lambda: MULTI_LABEL.agent_sensitivity(fraction_bits=4),
        lambda: MULTI_LABEL.max_entry(fraction_bits=4, tau=0),
        lambda: Sensitivity(0, 1),
    ],
)
def test_what_would_break_a_bound_is_refused(encode: Callable[[], object]) -> None:
    with pytest.raises(ValueError):
        encode()
