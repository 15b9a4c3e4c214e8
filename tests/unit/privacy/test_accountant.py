"""The accounts: what each must keep to, and how they stand to each other."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest
from dp_accounting.rdp import rdp_privacy_accountant
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import log_ndtr

from mpc_vote.privacy import (
    Clipped,
    GaussianScreen,
    GaussianVote,
    Level,
    Mechanism,
    PoissonGaussian,
    SkellamScreen,
    SkellamVote,
    Unsupported,
    epsilon,
    epsilons,
    exact_epsilon,
    gaussian_exact_epsilon,
    simple_epsilon,
)
from mpc_vote.privacy.accountant import ORDERS
from mpc_vote.privacy.mechanisms import SkellamRuns
from mpc_vote.privacy.pld import pld_epsilon
from mpc_vote.privacy.sensitivity import Sensitivity
from mpc_vote.voting.ballots import (
    KNN_COUNT,
    KNN_FREQUENCY,
    ONE_HOT,
    BallotKind,
)

Account = Callable[[Sequence[Mechanism], Level, float], float]

ONE, TWO = Sensitivity.of_cells(1, 16), Sensitivity.of_cells(2, 16)


def sigma(votes: float) -> float:
    """A standard deviation in votes as a variance in units^2."""
    return (16 * votes) ** 2


def ideal(number: int, votes: float) -> Mechanism:
    return GaussianVote(number, sigma(votes), ONE, TWO)


def served(number: int, votes: float) -> SkellamVote:
    return SkellamVote(number, sigma(votes), ONE, TWO)


def screened(number: int, votes: float) -> Mechanism:
    return SkellamScreen(number, sigma(votes), ONE, ONE)


def baseline(number: int, votes: float) -> Mechanism:
    return PoissonGaussian(number, 0.1, votes / 20, Clipped(1.0), Clipped(1.0, True))


CASES = [
    (simple_epsilon, ideal),
    (simple_epsilon, served),
    (simple_epsilon, baseline),
    (epsilon, ideal),
    (epsilon, served),
    (epsilon, baseline),
    (exact_epsilon, ideal),
    (pld_epsilon, ideal),
    (pld_epsilon, served),
    (pld_epsilon, screened),
    (pld_epsilon, baseline),
]
everywhere = pytest.mark.parametrize(
    ("account", "make"), CASES, ids=[f"{a.__name__}-{m.__name__}" for a, m in CASES]
)
Make = Callable[[int, float], Mechanism]
deltas = st.floats(1e-9, 0.1)


class TestConformance:
    """What every account must keep to, on every mechanism that it covers."""

    @everywhere
    def test_nothing_released_costs_nothing(self, account: Account, make: Make) -> None:
        assert account([], Level.AGENT, 1e-5) == 0.0

    @everywhere
    @settings(max_examples=4)
    @given(
        queries=st.integers(1, 300),
        votes=st.floats(10.0, 200.0),
        level=st.sampled_from(Level),
        delta=deltas,
    )
    def test_more_of_anything_but_noise_and_delta_costs_more(
        self,
        account: Account,
        make: Make,
        queries: int,
        votes: float,
        level: Level,
        delta: float,
    ) -> None:
        cost = account([make(queries, votes)], level, delta)
        assert cost >= 0
        loose = cost * (1 + 1e-4) + 1e-9  # an account's own imprecision
        assert account([make(2 * queries, votes)], level, delta) * (1 + 1e-4) + 1e-9 >= cost
        assert account([make(queries, 1.5 * votes)], level, delta) <= loose
        assert account([make(queries, votes)], level, 2 * delta) <= loose
        assert account([make(queries, votes), make(3, 50.0)], level, delta) * (1 + 1e-4) >= cost

    @everywhere
    @settings(max_examples=2)
    @given(
        queries=st.lists(st.integers(1, 200), min_size=2, max_size=3),
        level=st.sampled_from(Level),
        delta=deltas,
    )
    def test_composition(
        self, account: Account, make: Make, queries: list[int], level: Level, delta: float
    ) -> None:
        parts = [make(number, 20.0 + number) for number in queries]
        whole = account(parts, level, delta)
        assert account(parts[::-1], level, delta) == pytest.approx(whole, rel=1e-12)
        together = account(parts, level, min(0.9, delta * len(parts)))
        assert together <= sum(account([part], level, delta) for part in parts) * (1 + 1e-9)
        split = [make(1, 25.0)] * queries[0]
        at_once = account([make(queries[0], 25.0)], level, delta)
        assert account(split, level, delta) == at_once

    @everywhere
    def test_an_unknown_mechanism_is_an_error(self, account: Account, make: Make) -> None:
        unknown: Any = object()
        with pytest.raises(TypeError, match="no privacy bound"):
            account([unknown], Level.AGENT, 1e-5)

    @everywhere
    @pytest.mark.parametrize("delta", [0.0, 1.0, -1e-3, math.nan])
    def test_delta_must_be_a_probability(self, account: Account, make: Make, delta: float) -> None:
        with pytest.raises(ValueError):
            account([make(1, 10.0)], Level.AGENT, delta)

    @everywhere
    def test_noise_that_is_drowned_protects_nobody(self, account: Account, make: Make) -> None:
        try:
            cost = account([make(1, 1e-120)], Level.AGENT, 1e-5)
        except Unsupported as reason:
            assert "drowns" in str(reason)
        else:
            assert cost > 1e200


small_votes = st.builds(
    lambda kind, queries, variance, l1: kind(
        queries, variance, Sensitivity(l1, l1), Sensitivity(2 * l1, 2 * l1)
    ),
    st.sampled_from([SkellamVote, GaussianVote]),
    st.integers(1, 1000),
    st.floats(1.0, 1e6),
    st.integers(1, 30),
)


@settings(max_examples=40)
@given(st.lists(small_votes, min_size=1, max_size=4), st.sampled_from(Level), deltas)
def test_the_tight_conversion_is_that_of_dp_accounting(
    votes: list[Mechanism], level: Level, delta: float
) -> None:
    orders = np.unique(np.concatenate([ORDERS, 1 + np.geomspace(0.01, 2.0**20, 2000)]))
    rdp = sum(vote.curve(orders, level) for vote in votes)
    theirs, _ = rdp_privacy_accountant.compute_epsilon(orders, rdp, delta)
    ours = epsilon(votes, level, delta)
    assert ours == pytest.approx(theirs, rel=1e-4, abs=1e-9)
    assert ours <= theirs * (1 + 1e-6) + 1e-12


def one_by_one(moved: Sensitivity, variance: float, order: int) -> float:
    """The published bound of one query at an integer order, in its own words."""
    d1, d2, mu = moved.l1, moved.l2_squared, 2 * variance
    return order * d2 / mu + min(((2 * order - 1) * d2 + 6 * d1) / mu / mu, 3 * d1 / mu)


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(
            st.builds(Sensitivity.of_cells, st.integers(1, 9), st.integers(1, 1 << 24)),
            st.floats(1e-3, 1e14),
            st.integers(1, 10**6),
        ),
        min_size=1,
        max_size=8,
    ),
    st.randoms(),
)
def test_noises_and_moves_are_added_up_as_if_one_by_one(
    runs: list[tuple[Sensitivity, float, int]], random: Random
) -> None:
    orders = np.array([2.0, 3.0, 17.0, 300.0, 2.0**20])
    found = SkellamRuns(runs).curve(orders)
    wanted = [sum(q * one_by_one(m, v, int(order)) for m, v, q in runs) for order in orders]
    assert found == pytest.approx(wanted, rel=1e-13)
    assert (SkellamRuns(random.sample(runs, len(runs))).curve(orders) == found).all()


@pytest.mark.parametrize(
    "votes",
    [
        [SkellamVote(1, sigma(25 + i), ONE, TWO) for i in range(200)],
        [SkellamVote(1, sigma(25), Sensitivity.of_cells(i + 1, 1), TWO) for i in range(200)],
    ],
    ids=["noise", "ballots"],
)
def test_a_client_that_never_asks_for_the_same_twice_makes_no_account_slow(
    monkeypatch: pytest.MonkeyPatch, votes: list[SkellamVote]
) -> None:
    """Ledgers are for ever: what grows with every round would stop the service in the end."""
    calls: list[int] = []
    curve = SkellamRuns.curve

    def counted(runs: SkellamRuns, orders: np.ndarray) -> np.ndarray:
        calls.append(len(orders))
        return curve(runs, orders)

    monkeypatch.setattr(SkellamRuns, "curve", counted)
    epsilon([SkellamVote(1, sigma(25), ONE, TWO)], Level.AGENT, 1e-3)
    alone, calls = calls, []
    epsilon(votes, Level.AGENT, 1e-3)
    assert calls == alone


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


def test_gaussian_votes_and_screens_compose_exactly() -> None:
    votes = GaussianVote(30, 400.0, Sensitivity(7, 9), ONE)
    screens = GaussianScreen(50, 900.0, Sensitivity.of_cells(1, 4), ONE)
    mu = math.sqrt(30 * 9 / 400 + 50 * 16 / 900)
    found = exact_epsilon([votes, screens], Level.AGENT, 1e-5)
    assert found == pytest.approx(gaussian_exact_epsilon(mu, 1e-5), rel=1e-12)


class TestEpsilons:
    @settings(max_examples=12)
    @given(
        st.lists(st.sampled_from([ideal, served, screened, baseline]), min_size=1, max_size=3),
        st.integers(1, 500),
        st.floats(10.0, 100.0),
        st.sampled_from(Level),
        deltas,
    )
    def test_every_account_is_at_most_the_one_before(
        self, makes: list[Make], queries: int, votes: float, level: Level, delta: float
    ) -> None:
        found = epsilons([make(queries, votes) for make in makes], level, delta)
        assert found.exact is not None
        assert found.exact <= found.tight * (1 + 1e-9) + 1e-9
        assert found.tight <= found.simple
        assert found.how == ("exact" if set(makes) == {ideal} else "PLD")

    def test_of_nothing(self) -> None:
        found = epsilons(iter(()), Level.AGENT, 1e-5)
        assert (found.simple, found.tight, found.exact, found.how) == (0.0, 0.0, 0.0, "exact")

    def test_a_spread_that_nobody_knows_has_no_exact_epsilon_but_under_gaussian_noise(self) -> None:
        moved = KNN_FREQUENCY.agent_sensitivity(fraction_bits=4)
        found = epsilons([SkellamVote(10, 1e6, moved, moved)], Level.AGENT, 1e-5)
        assert found.exact is None
        assert "shape" in found.how
        assert 0 < found.tight < math.inf
        mixed: list[Mechanism] = [GaussianVote(10, 1e6, moved, moved), served(10, 50.0)]
        assert epsilons(mixed, Level.AGENT, 1e-5).how == "PLD"

    def test_a_level_without_a_bound_is_infinite_in_all_accounts(self) -> None:
        steps = PoissonGaussian(1, 0.1, 1.0, None, Clipped(1.0))
        alone: list[Mechanism] = [steps]
        for mixed in (alone, [served(1, 10.0), *alone]):
            found = epsilons(mixed, Level.AGENT, 1e-5)
            assert found.simple == found.tight == found.exact == math.inf
        assert epsilons([steps], Level.INSTANCE, 1e-5).simple < math.inf

    def test_says_what_is_missing_without_dp_accounting(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in [*sys.modules]:
            if name == "mpc_vote.privacy.pld" or name.startswith("dp_accounting."):
                monkeypatch.delitem(sys.modules, name)
        monkeypatch.setitem(sys.modules, "dp_accounting", None)
        found = epsilons([served(10, 10.0)], Level.AGENT, 1e-5)
        assert found.exact is None
        assert found.how == "PLD needs the package dp_accounting"
        assert epsilons([ideal(10, 10.0)], Level.AGENT, 1e-5).how == "exact"


@given(st.integers(1, 60), st.integers(1, 60), st.integers(1, 500), deltas)
def test_the_number_of_neighbours(k: int, more: int, queries: int, delta: float) -> None:
    def cost(kind: BallotKind, level: Level, ks: list[int]) -> float:
        agent = kind.agent_sensitivity(fraction_bits=8, ks=ks)
        instance = kind.instance_sensitivity(fraction_bits=8, ks=ks)
        vote = SkellamVote(queries, (256.0 * 200) ** 2, agent, instance)
        return epsilon([vote], level, delta)

    frequency, count = KNN_FREQUENCY, KNN_COUNT
    few, many = [k, k + more], [k + more]
    assert cost(frequency, Level.INSTANCE, many) <= cost(frequency, Level.INSTANCE, few)
    assert cost(frequency, Level.AGENT, many) == cost(frequency, Level.AGENT, few)
    assert cost(count, Level.INSTANCE, many) == cost(count, Level.INSTANCE, few)
    assert cost(count, Level.AGENT, [k]) <= cost(count, Level.AGENT, few)


def test_count_ballots_trade_the_agent_level_for_the_instance_level() -> None:
    def cost(kind: BallotKind, level: Level, sigma: float) -> float:
        agent = kind.agent_sensitivity(fraction_bits=4, ks=[50])
        instance = kind.instance_sensitivity(fraction_bits=4, ks=[50])
        return epsilon([SkellamVote(500, 256 * sigma**2, agent, instance)], level, 1e-5)

    relative = {kind: 25.0 for kind in (KNN_FREQUENCY, ONE_HOT)}
    relative[KNN_COUNT] = 25.0 * 50
    at_instance = {kind: cost(kind, Level.INSTANCE, s) for kind, s in relative.items()}
    assert at_instance[KNN_COUNT] < at_instance[KNN_FREQUENCY]
    assert at_instance[KNN_FREQUENCY] < at_instance[ONE_HOT]


def test_splitting_a_round_changes_nothing() -> None:
    round_, single = served(500, 25.0), served(1, 25.0)
    assert replace(single, queries=500) == round_
    assert epsilon([single] * 500, Level.AGENT, 1e-5) == epsilon([round_], Level.AGENT, 1e-5)


@pytest.mark.parametrize("mu", [-1.0, math.inf, math.nan])
def test_mu_must_be_a_size(mu: float) -> None:
    with pytest.raises(ValueError):
        gaussian_exact_epsilon(mu, 1e-3)


def test_the_exact_account_is_for_gaussian_noise() -> None:
    with pytest.raises(Unsupported, match="Gaussian noise only"):
        exact_epsilon([ideal(1, 1.0), served(1, 1.0)], Level.AGENT, 1e-5)


def test_importing_the_accountant_loads_no_heavy_package() -> None:
    code = (
        "import sys, mpc_vote.privacy; "
        "sys.exit(any(name in sys.modules for name in ('scipy', 'dp_accounting', 'torch')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
