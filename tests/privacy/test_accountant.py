"""The accountant: known values, agreement with dp_accounting, and never less than is lost."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest
from dp_accounting.rdp import rdp_privacy_accountant
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import log_ndtr

from mpc_vote.ballots import BallotKind, Sensitivity, agent_sensitivity, instance_sensitivity
from mpc_vote.privacy import (
    GaussianVote,
    Level,
    Mechanism,
    SkellamVote,
    epsilon,
    gaussian_exact_epsilon,
    simple_epsilon,
)
from mpc_vote.privacy.accountant import ORDERS

# queries, D2^2 in units^2, sigma in units, delta, then epsilon: simple, tight, exact
VECTORS = [
    (500, 1, 25.0, 1e-3, 3.72452, 3.08932, 2.73541),
    (500, 2, 25.0, 1e-3, 5.50158, 4.71796, 4.20775),
    (600, 4, 50.0, 1e-3, 4.12183, 3.44991, 3.06047),
    (657, 2, 35.0 * 65, 1e-4, 0.06851, 0.03972, 0.03373),
]

small_votes = st.builds(
    lambda kind, queries, variance, l1: kind(
        queries, variance, Sensitivity(l1, l1), Sensitivity(2 * l1, 2 * l1)
    ),
    st.sampled_from([SkellamVote, GaussianVote]),
    st.integers(1, 1000),
    st.floats(1.0, 1e6),
    st.integers(1, 30),
)
deltas = st.floats(1e-12, 0.1)


def gaussian(queries: int, l2_squared: int, sigma: float) -> GaussianVote:
    moved = Sensitivity(l2_squared, l2_squared)
    return GaussianVote(queries, sigma**2, moved, moved)


@pytest.mark.parametrize(("q", "d2", "sigma", "delta", "simple", "tight", "exact"), VECTORS)
def test_gaussian_vectors(
    q: int, d2: int, sigma: float, delta: float, simple: float, tight: float, exact: float
) -> None:
    vote = gaussian(q, d2, sigma)
    assert simple_epsilon([vote], Level.AGENT, delta) == pytest.approx(simple, abs=6e-6)
    assert epsilon([vote], Level.AGENT, delta) == pytest.approx(tight, abs=6e-6)
    found = gaussian_exact_epsilon(math.sqrt(q * d2) / sigma, delta)
    assert found == pytest.approx(exact, abs=6e-6)


def test_uncompensated_collusion_of_half_the_agents_doubles_the_loss() -> None:
    mu = math.sqrt(500) / (25 * math.sqrt(100 / 200))
    assert gaussian_exact_epsilon(mu, 1e-3) == pytest.approx(4.20775, abs=6e-6)


@pytest.mark.parametrize(("q", "d2", "sigma", "delta"), [v[:4] for v in VECTORS[:3]])
def test_skellam_costs_next_to_nothing_over_the_gaussian_at_the_same_orders(
    q: int, d2: int, sigma: float, delta: float
) -> None:
    moved = Sensitivity(16 * d2, 256 * d2)
    variance = 256 * sigma**2
    skellam = epsilon([SkellamVote(q, variance, moved, moved)], Level.AGENT, delta)
    rdp = [q * a * d2 / (2 * sigma**2) for a in ORDERS]
    continuous, _ = rdp_privacy_accountant.compute_epsilon(list(ORDERS), rdp, delta)
    assert 0 < skellam - continuous < 2e-4


@settings(max_examples=40)
@given(st.lists(small_votes, min_size=1, max_size=4), st.sampled_from(Level), deltas)
def test_tight_conversion_is_that_of_dp_accounting(
    votes: list[Mechanism], level: Level, delta: float
) -> None:
    rdp = [sum(vote.rdp(order, level) for vote in votes) for order in ORDERS]
    theirs, _ = rdp_privacy_accountant.compute_epsilon(list(ORDERS), rdp, delta)
    ours = epsilon(votes, level, delta)
    if any(isinstance(vote, SkellamVote) for vote in votes):
        assert ours == pytest.approx(theirs, rel=1e-9, abs=1e-12)
        assert ours >= theirs * (1 - 1e-14)
    else:
        assert ours <= theirs * (1 + 1e-9) + 1e-12


@settings(max_examples=60)
@given(st.floats(1e-4, 50.0), deltas)
def test_exact_epsilon_satisfies_its_equation_from_above(mu: float, delta: float) -> None:
    found = gaussian_exact_epsilon(mu, delta)

    def delta_at(eps: float) -> float:
        first, second = log_ndtr(mu / 2 - eps / mu), eps + log_ndtr(-mu / 2 - eps / mu)
        return float(math.exp(first) - math.exp(second))

    assert delta_at(found) <= delta * (1 + 1e-9) + 1e-15
    if found > 0:
        assert delta_at(found * 0.999) > delta


@settings(max_examples=40)
@given(st.integers(1, 2000), st.integers(1, 9), st.floats(2.0, 500.0), deltas)
def test_conversions_are_ordered(q: int, d2: int, sigma: float, delta: float) -> None:
    vote = gaussian(q, d2, sigma)
    exact = gaussian_exact_epsilon(math.sqrt(q * d2) / sigma, delta)
    tight = epsilon([vote], Level.AGENT, delta)
    simple = simple_epsilon([vote], Level.AGENT, delta)
    assert exact <= tight * (1 + 1e-9) + 1e-9
    assert tight <= simple


@settings(max_examples=40)
@given(st.lists(small_votes, max_size=4), small_votes, st.sampled_from(Level), deltas)
def test_more_mechanisms_or_less_delta_never_cost_less(
    votes: list[Mechanism], extra: Mechanism, level: Level, delta: float
) -> None:
    before = epsilon(votes, level, delta)
    assert epsilon([*votes, extra], level, delta) >= before
    assert epsilon(votes, level, delta / 2) >= before


@given(small_votes, st.sampled_from(Level))
def test_splitting_a_round_changes_nothing(vote: Mechanism, level: Level) -> None:
    single = type(vote)(1, vote.variance, vote.agent, vote.instance)
    split = epsilon([single] * vote.queries, level, 1e-5)
    assert split == epsilon([vote], level, 1e-5)


def test_nothing_released_costs_nothing() -> None:
    assert epsilon([], Level.AGENT, 1e-5) == 0.0
    assert simple_epsilon([], Level.AGENT, 1e-5) == 0.0
    assert gaussian_exact_epsilon(0.0, 1e-5) == 0.0


def test_count_ballots_trade_the_agent_level_for_the_instance_level() -> None:
    def cost(kind: BallotKind, level: Level, sigma: float) -> float:
        agent = agent_sensitivity(kind, fraction_bits=4, ks=[50])
        instance = instance_sensitivity(kind, fraction_bits=4, ks=[50])
        return epsilon([SkellamVote(500, 256 * sigma**2, agent, instance)], level, 1e-5)

    relative = {kind: 25.0 for kind in (BallotKind.KNN_FREQUENCY, BallotKind.ONE_HOT)}
    relative[BallotKind.KNN_COUNT] = 25.0 * 50
    at_instance = {kind: cost(kind, Level.INSTANCE, s) for kind, s in relative.items()}
    assert at_instance[BallotKind.KNN_COUNT] < at_instance[BallotKind.KNN_FREQUENCY]
    assert at_instance[BallotKind.KNN_FREQUENCY] < at_instance[BallotKind.ONE_HOT]


def test_an_overwhelmed_mechanism_has_no_finite_guarantee() -> None:
    moved = Sensitivity(10**9, 10**18)
    vote = SkellamVote(1, 1e-300, moved, moved)
    assert epsilon([vote], Level.AGENT, 1e-5) == math.inf


def test_an_unknown_mechanism_is_an_error() -> None:
    with pytest.raises(TypeError, match="no privacy bound"):
        epsilon([object()], Level.AGENT, 1e-5)  # type: ignore[list-item]


@pytest.mark.parametrize("delta", [0.0, 1.0, -1e-3, math.nan])
def test_delta_must_be_a_probability(delta: float) -> None:
    for call in (
        lambda: epsilon([], Level.AGENT, delta),
        lambda: simple_epsilon([], Level.AGENT, delta),
        lambda: gaussian_exact_epsilon(1.0, delta),
    ):
        with pytest.raises(ValueError):
            call()


@pytest.mark.parametrize("mu", [-1.0, math.inf, math.nan])
def test_mu_must_be_a_size(mu: float) -> None:
    with pytest.raises(ValueError):
        gaussian_exact_epsilon(mu, 1e-3)


def test_importing_the_accountant_loads_no_heavy_package() -> None:
    code = (
        "import sys, mpc_vote.privacy; "
        "sys.exit(any(name in sys.modules for name in ('scipy', 'dp_accounting', 'torch')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
