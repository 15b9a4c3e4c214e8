"""The mu of a law: covers every test, hardly more than is needed, and only where it means that."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import ive
from scipy.stats import norm

from mpc_vote.privacy.accountant import gaussian_exact_epsilon
from mpc_vote.privacy.gdp import (
    law_mu,
    skellam_law,
    skellam_slack,
    spread_mu,
    square_for,
    unit_mu,
)
from mpc_vote.privacy.profiles import gaussian_profile
from tests.unit.privacy.exact import FloatArray, before, coins, nothing

G = np.exp(np.linspace(-8, 8, 321))


def moved_profile(law: FloatArray, move: int) -> FloatArray:
    still, moved = (np.zeros((1, len(law) + move)) for _ in range(2))
    still[0, : len(law)], moved[0, move:] = law, law
    both = np.concatenate([still, moved]), np.concatenate([moved, still])
    return before(*both, nothing)(G)


@pytest.mark.parametrize("variance", [0.3, 4.0, 100.0])
@pytest.mark.parametrize("move", [1, 2, 5])
def test_no_test_of_skellam_noise_does_better_than_its_mu(variance: float, move: int) -> None:
    claimed = gaussian_profile((move * unit_mu(variance)) ** 2, np.log(G))
    slack = skellam_slack(variance, move)
    assert slack < 1e-25
    assert (moved_profile(skellam_law(variance), move) <= claimed + slack + 1e-12).all()


def test_a_move_beyond_what_was_looked_at_is_not_covered() -> None:
    assert skellam_slack(100.0, 100) < 1e-6
    assert skellam_slack(100.0, 10_000) == 1.0
    assert skellam_slack(100.0, 50) < skellam_slack(100.0, 60)


def test_the_law_of_skellam_noise_is_that_of_the_formula() -> None:
    law = skellam_law(7.5)
    places = np.arange(len(law)) - len(law) // 2
    expected = ive(np.abs(places), 7.5)
    large = expected > 1e-60
    np.testing.assert_allclose(law[large], expected[large], rtol=1e-11)


@pytest.mark.parametrize("law", [coins((1, 64)), coins((1, 16), (2, 30)), skellam_law(9.0)])
@pytest.mark.parametrize("move", [1, 3])
@pytest.mark.parametrize("tail", [1e-3, 1e-7])
def test_no_test_of_a_finite_law_does_better_than_its_mu(
    law: FloatArray, move: int, tail: float
) -> None:
    mu, shown = law_mu(law, move, tail), moved_profile(law, move)
    assert (shown <= gaussian_profile(mu * mu, np.log(G)) + tail + 1e-12).all()
    less = 0.97 * mu
    assert (shown > gaussian_profile(less * less, np.log(G))).any()


def test_the_mu_of_skellam_noise_is_the_same_by_its_law() -> None:
    assert law_mu(skellam_law(50.0), 1, 1e-12) == pytest.approx(unit_mu(50.0), rel=1e-5)


def test_a_spread_over_cells_costs_no_more_than_its_length() -> None:
    law, tail = coins((1, 100)), 1e-6
    one = spread_mu(law, 4, tail)
    for move in (1, 2, 3, 4):
        assert law_mu(law, move, tail) <= move * one
    assert one < 1.2 * law_mu(law, 1, tail)


def test_a_law_that_is_not_log_concave_is_refused() -> None:
    """Heavy coins without light ones: at every fourth place noise shows where it came from, while
    the spacing of its distribution function is that of smooth noise."""
    with pytest.raises(ValueError, match="not log-concave"):
        law_mu(coins((4, 152)), 1, 1e-6)
    with pytest.raises(ValueError, match="not log-concave"):
        law_mu(np.array([0.25, 0.3, 0.1, 0.25, 0.1]), 1, 1e-6)


def test_the_edge_of_a_law_is_paid_for_or_refused() -> None:
    law = coins((1, 16))
    assert law_mu(law, 1, 2.0**-15) < math.inf
    with pytest.raises(ValueError, match="larger tail, or more noise"):
        law_mu(law, 1, 2.0**-17)
    with pytest.raises(ValueError, match="tail between"):
        law_mu(law, 1, 0.0)


@pytest.mark.parametrize("delta", [1e-3, 1e-5, 1e-9])
@pytest.mark.parametrize("epsilon", [0.01, 0.5, 2.0, 8.0])
def test_the_square_of_a_limit_is_the_largest_within_it(epsilon: float, delta: float) -> None:
    square = square_for(epsilon, delta)
    assert gaussian_exact_epsilon(math.sqrt(square), delta) <= epsilon
    assert gaussian_exact_epsilon(math.sqrt(square) * (1 + 1e-6), delta) > epsilon
    with pytest.raises(ValueError, match="finite"):
        square_for(math.inf, delta)


@pytest.mark.parametrize(
    ("variance", "squared_length", "expected"),
    [(625, 1, 2.74), (900, 1, 2.19), (625, 2, 4.21), (1600, 2, 2.36), (1600, 50**2, 476.2)],
)
def test_five_hundred_queries_cost_what_the_docs_say(
    variance: float, squared_length: int, expected: float
) -> None:
    mu = math.sqrt(500 * squared_length) * unit_mu(variance)
    found = gaussian_exact_epsilon(mu, 1e-3)
    assert 0.996 * expected < found <= expected


def test_a_larger_spacing_anywhere_is_seen() -> None:
    """Planted: a law whose tail is lighter than its middle says."""
    law = coins((1, 64))
    middle = float(2 * norm.ppf(0.5 + law[32] / 2))
    assert law_mu(law, 1, 1e-6) > 1.05 * middle
    shown = moved_profile(law, 1)
    assert (shown > gaussian_profile(middle**2, np.log(G)) + 1e-6).any()
