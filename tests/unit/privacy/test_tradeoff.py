"""Trade-off curves: the mu of Skellam noise covers every test, and hardly more than is needed."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats
from scipy.special import ive

from mpc_vote.privacy.accountant import gaussian_exact_epsilon
from mpc_vote.privacy.gdp import unit_mu
from mpc_vote.privacy.mechanisms import Level, SkellamVote
from mpc_vote.privacy.pld import pld_epsilon
from mpc_vote.privacy.sensitivity import Sensitivity
from mpc_vote.privacy.tradeoff import mu_of, vote_mu

VARIANCES = [2.0**-10, 0.25, 1.0, 7.5, 100.0, 6400.0, 409_600.0]


@pytest.mark.parametrize("variance", VARIANCES)
def test_the_mu_of_one_unit_is_the_spacing_at_the_middle(variance: float) -> None:
    middle = 2 * stats.norm.isf((1 - ive(0, variance)) / 2)
    assert middle <= unit_mu(variance) <= middle * (1 + 2e-6)


@pytest.mark.parametrize("variance", [100.0, 6400.0, 409_600.0])
def test_much_noise_is_as_good_as_gaussian(variance: float) -> None:
    gaussian = 1 / math.sqrt(variance)
    assert unit_mu(variance) == pytest.approx(gaussian, rel=0.2 / variance + 2e-6)


@pytest.mark.parametrize("variance", [0.5, 3.0, 20.0])
@pytest.mark.parametrize("move", [(1, 0), (1, 1), (2, 1), (3, -2)])
def test_no_test_of_two_cells_does_better(variance: float, move: tuple[int, int]) -> None:
    """The best tests are those of the likelihood ratio: all of them, by every outcome."""
    reach = 40 + int(12 * math.sqrt(variance))
    places = np.arange(-reach, reach + 1)

    def mass(step: int) -> np.ndarray:
        return np.asarray(ive(np.abs(places - step), variance))

    one = np.outer(mass(0), mass(0)).reshape(-1)
    other = np.outer(mass(move[0]), mass(move[1])).reshape(-1)
    kept = (one > 1e-25) & (other > 1e-25)
    one, other = one[kept], other[kept]
    order = np.argsort(one / other)
    wrong, right = np.cumsum(one[order]), np.cumsum(other[order])
    mu = math.hypot(*move) * unit_mu(variance)
    inside = (wrong > 1e-12) & (wrong < 1 - 1e-12)
    allowed = stats.norm.cdf(stats.norm.ppf(wrong[inside]) + mu)
    assert (right[inside] <= allowed + 1e-12).all()


@pytest.mark.parametrize("level", list(Level))
def test_what_a_vote_loses_by_its_mu_is_what_it_loses_by_its_distribution(level: Level) -> None:
    moves = Sensitivity.of_cells(1, 16), Sensitivity.of_cells(2, 16)
    vote = SkellamVote(20, 6400.0, *moves)
    mu = vote_mu(vote, level)
    moved = vote.sensitivity(level).l2_squared
    assert mu == pytest.approx(math.sqrt(20 * moved / 6400), rel=1e-4)
    assert gaussian_exact_epsilon(mu, 1e-3) == pytest.approx(
        pld_epsilon([vote], level, 1e-3), rel=2e-3
    )


def test_a_test_has_the_mu_of_its_rates() -> None:
    assert mu_of(stats.norm.cdf(1.5), 0.5) == pytest.approx(1.5)
    assert mu_of(0.3, 0.3) == 0
    assert mu_of(0.2, 0.3) < 0
    assert mu_of(0.0, 0.1) == mu_of(0.5, 1.0) == -math.inf
    assert mu_of(1.0, 0.1) == mu_of(0.5, 0.0) == math.inf
