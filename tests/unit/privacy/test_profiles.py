"""Profiles: bounds of a step lie above the step itself, whatever its versions are."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from mpc_vote.privacy.profiles import (
    Cover,
    FloatArray,
    Grid,
    cover_pairs,
    cover_versions,
    gaussian_profile,
    gaussian_slope,
)
from tests.unit.privacy.exact import before

GRID = Grid(0.1, 2, 40)
PLACES = 60


def exact_step(p: FloatArray, q: FloatArray, square: float) -> FloatArray:
    g = np.exp(GRID.places(PLACES))

    def rest(at: FloatArray) -> FloatArray:
        with np.errstate(divide="ignore"):
            return gaussian_profile(square, np.maximum(np.log(at), -700.0))

    return before(p, q, rest)(g)


def versions(seed: int, number: int, outcomes: int, spread: float) -> tuple[FloatArray, FloatArray]:
    random = np.random.default_rng(seed)
    p = random.dirichlet(np.full(outcomes, 0.7), number)
    q = p * np.exp(random.normal(0, spread, p.shape))
    return p, q / q.sum(axis=1, keepdims=True)


def test_the_gaussian_profile_is_that_of_the_formula() -> None:
    x = np.linspace(-5, 9, 141)
    for square in (1e-4, 0.3, 2.0, 9.0):
        mu = math.sqrt(square)
        expected = norm.sf(x / mu - mu / 2) - np.exp(x) * norm.sf(x / mu + mu / 2)
        np.testing.assert_allclose(gaussian_profile(square, x), expected, rtol=1e-9, atol=1e-15)
    np.testing.assert_array_equal(gaussian_profile(0.0, x), np.maximum(0.0, -np.expm1(x)))


def test_the_slope_is_the_derivative_of_the_profile() -> None:
    x, step = np.linspace(-1, 3, 41), 1e-5
    rise = gaussian_profile(0.5, np.log(np.exp(x) + step)) - gaussian_profile(0.5, x)
    np.testing.assert_allclose(gaussian_slope(0.5, x), rise / step, atol=1e-4)


def test_the_gaussian_profile_is_its_own_swap() -> None:
    x = np.linspace(0, 6, 61)
    swapped = 1 - np.exp(x) + np.exp(x) * gaussian_profile(0.8, -x)
    np.testing.assert_allclose(gaussian_profile(0.8, x), swapped, atol=1e-12)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 2**32),
    st.sampled_from([1, 30, 200]),
    st.sampled_from([2, 3]),
    st.sampled_from([0.01, 0.2, 3.0]),
    st.sampled_from([0.0, 0.01, 0.3, 4.0]),
)
def test_a_cover_is_never_below_any_version(
    seed: int, number: int, outcomes: int, spread: float, square: float
) -> None:
    p, q = versions(seed, number, outcomes, spread)
    exact = exact_step(p, q, square)
    assert (cover_versions(GRID, p, q).step(square, PLACES) >= exact - 1e-13).all()
    assert (cover_pairs(GRID, p, q).step(square, PLACES) >= exact - 1e-13).all()


def test_a_cover_is_hardly_above_a_smooth_family() -> None:
    t = norm.sf(np.linspace(-3, 3, 601)), norm.sf(np.linspace(-3, 3, 601) + 0.1)
    p, q = (np.stack([one, 1 - one], axis=1) for one in t)
    exact, bound = exact_step(p, q, 0.3), cover_versions(GRID, p, q).step(0.3, PLACES)
    assert (bound - exact).max() < 2e-3
    assert len(cover_versions(GRID, p, q).rows) < 60


def test_outcomes_of_one_world_only_are_covered() -> None:
    p, q = np.array([[0.25, 0.75, 0.0]]), np.array([[0.0, 0.75, 0.25]])
    for cover in (cover_versions(GRID, p, q), cover_pairs(GRID, p, q)):
        bound = cover.step(0.3, PLACES)
        assert (bound >= exact_step(p, q, 0.3) - 1e-13).all()
        assert bound[-1] >= 0.25


def without_widths(cover: Cover) -> Cover:
    return Cover(cover.grid, cover.rows, cover.middle, cover.axes * 0)


def rows_moved(cover: Cover) -> Cover:
    return Cover(cover.grid, np.minimum(cover.rows + 1, GRID.rows - 1), cover.middle, cover.axes)


@pytest.mark.parametrize("plant", [without_widths, rows_moved])
def test_a_planted_error_in_a_cover_is_seen(plant: object) -> None:
    """The comparison above is one that fails: with boxes that are too small, or ratios too high."""
    assert callable(plant)
    found = 0
    for seed in range(5):
        p, q = versions(seed, 400, 2, 0.05)
        planted = plant(cover_versions(GRID, p, q)).step(0.3, PLACES)
        found += bool((planted < exact_step(p, q, 0.3) - 1e-13).any())
    assert found
