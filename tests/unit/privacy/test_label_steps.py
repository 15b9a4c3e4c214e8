"""Steps: their versions contain all that the argmax of any totals shows."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest

from mpc_vote.privacy import label_steps
from mpc_vote.privacy.gdp import skellam_law
from mpc_vote.privacy.label_steps import (
    MOST_PLACES,
    Seen,
    cover_step,
    cut_law,
    flips,
)
from mpc_vote.privacy.label_steps import thresholds as threshold_versions
from tests.unit.privacy.exact import FloatArray, Profile, before, coins, label_law

LAW = coins((1, 4))
STILL = np.ones(1)
G = np.exp(np.linspace(-3, 3, 61))


def both_ways(p: FloatArray, q: FloatArray) -> tuple[FloatArray, FloatArray]:
    return np.concatenate([p, q]), np.concatenate([q, p])


@pytest.mark.parametrize("move", [1, 2])
def test_thresholds_are_all_that_one_cell_can_show(move: int) -> None:
    p, q = threshold_versions(LAW, move)
    known = np.concatenate([p, q], axis=1)
    np.testing.assert_allclose(known.sum(axis=1), 2)
    for lead in range(-8, 9):
        worlds = [np.zeros(2), np.zeros(2)]
        for noise, mass in enumerate(LAW):
            for world, lost in zip(worlds, (0, move), strict=True):
                world += mass * label_law((lead - lost + noise, 0), STILL, (0, 1))
        assert np.abs(known - np.concatenate(worlds)).max(axis=1).min() < 1e-14


@pytest.mark.parametrize("move", [1, 2])
def test_flips_are_all_that_two_cells_and_a_known_third_can_show(move: int) -> None:
    """Whatever the leads, and whichever order ties go to."""
    p, q = flips(LAW, move)
    known = np.concatenate([p, q], axis=1)
    np.testing.assert_allclose(known.sum(axis=1), 2)
    pairs = [(one, two, LAW[one] * LAW[two]) for one in range(5) for two in range(5)]
    for order in permutations(range(3)):
        for first in range(-7, 6, 2):
            for second in range(-6, 6, 2):
                worlds = [np.zeros(3), np.zeros(3)]
                for one, two, mass in pairs:
                    for world, lost in zip(worlds, (0, move), strict=True):
                        noisy = (first - lost + one, second + lost + two, 0)
                        world += mass * label_law(noisy, STILL, order)
                assert np.abs(known - np.concatenate(worlds)).max(axis=1).min() < 1e-14


def random_rest(seed: int) -> Profile:
    """A convex profile: a mixture of (1 - g / s)+."""
    random = np.random.default_rng(seed)
    turns, shares = np.exp(random.normal(0, 0.7, 4)), random.dirichlet(np.ones(4))
    return lambda g: np.maximum(0.0, 1 - g[:, None] / turns) @ shares


def shown_by_three(moves: list[tuple[int, int, int]]) -> tuple[FloatArray, FloatArray]:
    """What labels of three classes show, all with noise of their own, before and after moves."""
    ps, qs = [], []
    for order in permutations(range(3)):
        for first in range(-4, 5, 2):
            for second in range(-4, 5, 2):
                for move in moves:
                    moved = (first + move[0], second + move[1], move[2])
                    ps.append(label_law((first, second, 0), LAW, order))
                    qs.append(label_law(moved, LAW, order))
    return both_ways(np.array(ps), np.array(qs))


@pytest.mark.parametrize(
    ("versions", "moves"),
    [
        (threshold_versions, [(1, 0, 0), (0, 0, 1)]),
        (flips, [(1, -1, 0), (-1, 0, 1), (1, 0, 0), (0, 0, -1)]),
    ],
)
def test_labels_of_three_noisy_classes_show_no_more_whatever_follows(
    versions: object, moves: list[tuple[int, int, int]]
) -> None:
    assert callable(versions)
    claimed, shown = both_ways(*versions(LAW, 1)), shown_by_three(moves)
    for seed in range(8):
        rest = random_rest(seed)
        assert (before(*shown, rest)(G) <= before(*claimed, rest)(G) + 1e-12).all()


def test_a_flip_shows_more_than_thresholds_cover() -> None:
    """The comparison above is one that fails."""
    claimed, shown = both_ways(*threshold_versions(LAW, 1)), shown_by_three([(1, -1, 0)])
    rests = map(random_rest, range(8))
    assert any((before(*shown, rest)(G) > before(*claimed, rest)(G) + 1e-3).any() for rest in rests)


def test_flips_are_the_same_with_worlds_swapped() -> None:
    p, q = flips(LAW, 1)
    swapped = np.concatenate([q[:, [1, 0, 2]], p[:, [1, 0, 2]]], axis=1)
    known = np.concatenate([p, q], axis=1)
    for one in swapped:
        assert np.abs(known - one).max(axis=1).min() < 1e-14


def test_one_order_of_ties_would_not_be_enough() -> None:
    p, q = (one[: len(one) // 2] for one in flips(LAW, 1))
    swapped = np.concatenate([q[:, [1, 0, 2]], p[:, [1, 0, 2]]], axis=1)
    known = np.concatenate([p, q], axis=1)
    assert max(np.abs(known - one).max(axis=1).min() for one in swapped) > 1e-3


def test_a_law_is_cut_by_next_to_nothing() -> None:
    law = skellam_law(30.0)
    tail = 2.0**-60
    kept = cut_law(law, tail)
    assert len(kept) < len(law)
    assert kept.sum() == pytest.approx(1, abs=1e-15)
    middle = len(kept) // 2
    assert kept[middle] == law[len(law) // 2]
    assert 2 * law[: (len(law) - len(kept)) // 2 + 1].sum() >= 2 * tail
    assert 2 * law[: (len(law) - len(kept)) // 2].sum() <= 2 * tail
    np.testing.assert_array_equal(cut_law(LAW, tail), LAW)
    np.testing.assert_array_equal(cut_law(law, 0.0), law)


@pytest.mark.parametrize(
    "law", [np.array([0.5, 0.4]), np.array([1.2, -0.2]), np.array([1.0]), np.ones((2, 2)) / 4]
)
def test_what_is_no_law_is_refused(law: FloatArray) -> None:
    with pytest.raises(ValueError, match="add up to 1"):
        cover_step(Seen.THRESHOLD, law, 1)


@pytest.mark.parametrize("move", [0, -1, 1.0, True])
def test_what_is_no_move_is_refused(move: int) -> None:
    with pytest.raises(ValueError, match="positive number of units"):
        cover_step(Seen.THRESHOLD, LAW, move)


@pytest.mark.parametrize(
    ("seen", "most"), [(seen, MOST_PLACES[seen]) for seen in (Seen.THRESHOLD, Seen.FLIP)]
)
def test_a_law_that_is_too_fine_is_refused_before_memory_is_taken(
    seen: Seen, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(label_steps, "flips", None)
    monkeypatch.setattr(label_steps, "thresholds", None)
    law = np.full(most + 1, 1 / (most + 1))
    with pytest.raises(ValueError, match="fewer units"):
        cover_step(seen, law, 1)
