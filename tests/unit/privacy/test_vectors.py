"""Known values, to the digits they are published with."""

from __future__ import annotations

import math
from typing import Any

import pytest
from dp_accounting import dp_event
from dp_accounting.rdp import rdp_privacy_accountant

from mpc_vote.privacy import (
    Clipped,
    GaussianVote,
    Level,
    PoissonGaussian,
    SkellamVote,
    epsilon,
    epsilons,
    gaussian_exact_epsilon,
)
from mpc_vote.privacy.pld import pld_epsilon
from mpc_vote.privacy.sensitivity import Sensitivity
from mpc_vote.voting.ballots import (
    KNN_FREQUENCY,
)

# queries, D2^2 in units^2, sigma in units, delta, then epsilon: simple, tight, exact
VECTORS = [
    (500, 1, 25.0, 1e-3, 3.72452, 3.08932, 2.73541),
    (500, 2, 25.0, 1e-3, 5.50158, 4.71796, 4.20775),
    (600, 4, 50.0, 1e-3, 4.12183, 3.44991, 3.06047),
    (657, 2, 35.0 * 65, 1e-4, 0.06851, 0.03972, 0.03373),
]


@pytest.mark.parametrize(("q", "d2", "sigma", "delta", "simple", "tight", "exact"), VECTORS)
def test_gaussian(
    q: int, d2: int, sigma: float, delta: float, simple: float, tight: float, exact: float
) -> None:
    moved = Sensitivity(d2, d2)
    found = epsilons([GaussianVote(q, sigma**2, moved, moved)], Level.AGENT, delta)
    assert found.simple == pytest.approx(simple, abs=6e-6)
    assert found.tight == pytest.approx(tight, abs=6e-6)
    assert found.exact == pytest.approx(exact, abs=6e-6)
    assert found.how == "exact"


@pytest.mark.parametrize(("q", "d2", "sigma", "delta", "exact"), [(*v[:4], v[6]) for v in VECTORS])
def test_skellam_at_four_fraction_bits_is_as_good(
    q: int, d2: int, sigma: float, delta: float, exact: float
) -> None:
    moved = Sensitivity.of_cells(d2, 16)
    found = epsilons([SkellamVote(q, (16 * sigma) ** 2, moved, moved)], Level.AGENT, delta)
    assert found.exact == pytest.approx(exact, abs=2e-5)
    assert found.how == "PLD"


def test_frequency_ballots_of_65_neighbours() -> None:
    given: dict[str, Any] = {"fraction_bits": 11, "ks": [65]}
    vote = SkellamVote(
        657,
        (35 * 2.0**11) ** 2,
        KNN_FREQUENCY.agent_sensitivity(**given),
        KNN_FREQUENCY.instance_sensitivity(**given),
    )
    rounding = math.ceil(2**11 / 65) / (2**11 / 65)
    found = epsilons([vote], Level.INSTANCE, 1e-4)
    exact = gaussian_exact_epsilon(math.sqrt(657 * 2) / 65 / 35 * rounding, 1e-4)
    assert found.exact == pytest.approx(exact, abs=2e-6)
    assert 0.03373 < exact < 0.03455


def test_collusion_of_half_of_200_agents_that_is_not_compensated_doubles_the_loss() -> None:
    one = Sensitivity(1, 1)
    found = epsilons([GaussianVote(500, 625.0 * 100 / 200, one, one)], Level.AGENT, 1e-3)
    assert found.exact == pytest.approx(4.20775, abs=6e-6)


def test_skellam_bound() -> None:
    one = Sensitivity(1, 1)
    assert SkellamVote(1, 625.0, one, one).rdp(5, Level.AGENT) == pytest.approx(
        0.0040096, rel=1e-12
    )


def test_poisson_subsampling() -> None:
    """dp_accounting says 2.688: its bound at fractional orders is above the true divergence."""
    steps = PoissonGaussian(100, 0.05, 1.0, Clipped(1.0), None)
    assert pld_epsilon([steps], Level.AGENT, 1e-3) == pytest.approx(2.1935, abs=5e-5)
    event = dp_event.PoissonSampledDpEvent(0.05, dp_event.GaussianDpEvent(1.0))
    theirs = rdp_privacy_accountant.RdpAccountant().compose(event, 100).get_epsilon(1e-3)
    assert theirs == pytest.approx(2.688, abs=5e-4)
    assert epsilon([steps], Level.AGENT, 1e-3) == pytest.approx(2.68711, abs=1e-5)


def test_the_papers_own_baseline_noise_protects_nobody() -> None:
    one_round = PoissonGaussian(1, 0.05, 0.06, Clipped(1.0), Clipped(1.0, replaced=True))
    for level in Level:
        found = epsilons([one_round], level, 1e-3)
        assert found.exact is not None
        assert 169 < found.exact < 179 < found.tight < 180 < found.simple < 183
