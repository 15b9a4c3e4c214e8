"""Privacy loss distributions: never below the truth, and hardly above it."""

from __future__ import annotations

import decimal
import itertools
import math
from collections.abc import Callable
from functools import partial

import numpy as np
import numpy.typing as npt
import pytest
from dp_accounting.pld import privacy_loss_distribution as reference
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ive

from mpc_vote.privacy import (
    Clipped,
    CoinVote,
    GaussianVote,
    Level,
    Mechanism,
    PoissonGaussian,
    SkellamScreen,
    SkellamVote,
    Unsupported,
    epsilon,
    exact_epsilon,
    gaussian_exact_epsilon,
    simple_epsilon,
)
from mpc_vote.privacy.coins import CoinLaw, law_for
from mpc_vote.privacy.pld import _log_skellam, pld_epsilon
from mpc_vote.privacy.sensitivity import Sensitivity
from mpc_vote.voting.ballots import ONE_HOT

Law = npt.NDArray[np.float64]

small_variances = st.floats(0.3, 8.0)
small_deltas = st.sampled_from([1e-1, 1e-2, 1e-4, 1e-7])


def skellam(variance: float) -> Law:
    """P(X = k) for k = -reach..reach: all but 1e-18."""
    reach = int(10 * math.sqrt(variance) + 25)
    return np.asarray(ive(np.abs(np.arange(-reach, reach + 1)), variance), dtype=np.float64)


def hockey_stick(first: Law, second: Law, eps: float) -> float:
    return float(np.maximum(first - math.exp(eps) * second, 0.0).sum())


def least_true_epsilon(first: Law, second: Law, delta: float) -> float:
    """The least epsilon that covers both directions."""

    def covered(eps: float) -> bool:
        return max(hockey_stick(first, second, eps), hockey_stick(second, first, eps)) <= delta

    low, high = 0.0, 1.0
    if covered(low):
        return 0.0
    while not covered(high):
        low, high = high, 2 * high
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if covered(middle) else (middle, high)
    return high


def moved_totals(law: Law, moves: tuple[int, ...]) -> tuple[Law, Law]:
    """The noisy totals of some cells, before and after the moves."""
    most = max(map(abs, moves))
    still, after = np.ones(1), np.ones(1)
    for move in moves:
        before = np.pad(law, most)
        still = np.multiply.outer(still, before).ravel()
        after = np.multiply.outer(after, np.roll(before, move)).ravel()
    return still, after


def argmax_law(totals: npt.NDArray[np.int64], noise: Law) -> Law:
    """Which class wins, ties to the lower one."""
    reach = len(noise) // 2
    low, high = int(totals.min()) - reach, int(totals.max()) + reach
    masses = np.zeros((len(totals), high - low + 1))
    for cell, total in enumerate(totals):
        start = int(total) - reach - low
        masses[cell, start : start + len(noise)] = noise
    below = np.cumsum(np.pad(masses, ((0, 0), (1, 0)))[:, :-1], axis=1)
    wins = []
    for cell in range(len(totals)):
        others = [
            below[other] + (masses[other] if other > cell else 0)
            for other in range(len(totals))
            if other != cell
        ]
        wins.append(float((masses[cell] * np.prod(others, axis=0)).sum()))
    return np.array(wins)


def times(law: Law, queries: int) -> Law:
    """The law of so many independent outcomes."""
    return np.asarray([math.prod(some) for some in itertools.product(law.tolist(), repeat=queries)])


def assert_covered(
    mechanisms: list[Mechanism], level: Level, delta: float, first: Law, second: Law
) -> None:
    for account in (pld_epsilon, epsilon, simple_epsilon):
        eps = account(mechanisms, level, delta)
        for one, other in ((first, second), (second, first)):
            assert hockey_stick(one, other, eps) <= delta * (1 + 1e-9)


class TestNeverBelowTheTruth:
    @settings(max_examples=25)
    @given(small_variances, st.integers(1, 3), st.integers(1, 2), st.data())
    def test_noisy_totals(
        self, variance: float, step: int, cells: int, data: st.DataObject
    ) -> None:
        delta = data.draw(small_deltas)
        moves = tuple(data.draw(st.integers(-step, step)) for _ in range(cells))
        moved = Sensitivity.of_cells(cells, step)
        first, second = moved_totals(skellam(variance), moves)
        vote = SkellamVote(1, variance, moved, moved)
        assert_covered([vote], Level.AGENT, delta, first, second)

    @settings(max_examples=25)
    @given(
        st.floats(20.0, 400.0),
        st.lists(st.integers(0, 2), min_size=1, max_size=6),
        st.integers(0, 2),
        st.integers(0, 2),
        st.integers(1, 3),
        st.data(),
    )
    def test_released_labels(
        self,
        variance: float,
        labels: list[int],
        own: int,
        new: int,
        queries: int,
        data: st.DataObject,
    ) -> None:
        classes, bits = data.draw(st.integers(max(2, *labels, own, new) + 1, 4)), 2
        delta, noise = data.draw(small_deltas), skellam(variance)
        vote = SkellamVote(
            queries,
            variance,
            ONE_HOT.agent_sensitivity(fraction_bits=bits),
            ONE_HOT.instance_sensitivity(fraction_bits=bits),
        )
        cast = partial(ONE_HOT.encode, classes=classes, fraction_bits=bits)
        others = cast(labels).sum(axis=0)
        with_own, with_new = (others + cast([label])[0] for label in (own, new))
        first = times(argmax_law(with_own, noise), queries)
        for level, neighbour in ((Level.AGENT, others), (Level.INSTANCE, with_new)):
            second = times(argmax_law(neighbour, noise), queries)
            assert_covered([vote], level, delta, first, second)

    @settings(max_examples=25)
    @given(
        small_variances,
        st.lists(st.integers(0, 30), min_size=2, max_size=3),
        st.integers(0, 30),
        st.integers(1, 4),
        st.data(),
    )
    def test_screens(
        self, variance: float, totals: list[int], threshold: int, queries: int, data: st.DataObject
    ) -> None:
        delta, noise = data.draw(small_deltas), skellam(variance)
        moves = [data.draw(st.integers(-2, 2)) for _ in totals]
        moved = Sensitivity.of_cells(len(totals), 2).of_maximum()
        after = [total + move for total, move in zip(totals, moves, strict=True)]

        def law(largest: int) -> Law:
            needed = max(threshold - largest + len(noise) // 2, 0)
            outcomes = [noise[needed:].sum(), noise[:needed].sum()]
            return times(np.array(outcomes), queries)

        screen = SkellamScreen(queries, variance, moved, moved)
        assert_covered([screen], Level.AGENT, delta, law(max(totals)), law(max(after)))

    @settings(max_examples=10)
    @given(small_variances, small_variances, st.integers(1, 2), small_deltas)
    def test_a_screen_and_a_vote(
        self, variance: float, other: float, step: int, delta: float
    ) -> None:
        moved = Sensitivity.of_cells(1, step)
        pairs = [moved_totals(skellam(v), (step,)) for v in (variance, other)]
        first, second = (np.multiply.outer(*laws).ravel() for laws in zip(*pairs, strict=True))
        both: list[Mechanism] = [
            SkellamVote(1, variance, moved, moved),
            SkellamScreen(1, other, moved, moved),
        ]
        assert_covered(both, Level.AGENT, delta, first, second)
        found = pld_epsilon(both, Level.AGENT, delta)
        assert found <= least_true_epsilon(first, second, delta) * 1.001 + 1e-3

    @settings(max_examples=15)
    @given(
        st.floats(0.02, 1.0),
        st.floats(0.4, 4.0),
        st.booleans(),
        st.floats(-1.0, 1.0),
        st.floats(-1.0, 1.0),
        small_deltas,
    )
    def test_sampled_contributions(
        self, q: float, z: float, replaced: bool, one: float, other: float, delta: float
    ) -> None:
        other = other if replaced else 0.0
        x = np.linspace(-12 * z - 1, 12 * z + 1, 200_001)

        def law(mean: float) -> Law:
            density = q * np.exp(-(((x - mean) / z) ** 2) / 2)
            density += (1 - q) * np.exp(-((x / z) ** 2) / 2)
            return np.asarray(density / density.sum())

        eps = pld_epsilon(
            [PoissonGaussian(1, q, z, Clipped(1.0, replaced), None)], Level.AGENT, delta
        )
        for first, second in ((law(one), law(other)), (law(other), law(one))):
            assert hockey_stick(first, second, eps) <= delta * (1 + 1e-5)


class TestHardlyAboveIt:
    @pytest.mark.parametrize("variance", [0.3, 1.7, 8.0])
    @pytest.mark.parametrize(("cells", "step"), [(1, 1), (1, 3), (2, 1), (2, 2)])
    @pytest.mark.parametrize("delta", [1e-2, 1e-6])
    def test_noisy_totals(self, variance: float, cells: int, step: int, delta: float) -> None:
        moved = Sensitivity.of_cells(cells, step)
        true = least_true_epsilon(*moved_totals(skellam(variance), (step,) * cells), delta)
        found = pld_epsilon([SkellamVote(1, variance, moved, moved)], Level.AGENT, delta)
        assert true <= found <= true + 1e-3

    @settings(max_examples=15)
    @given(st.integers(1, 2000), st.floats(3.0, 300.0), st.floats(1e-7, 0.1))
    def test_gaussian_votes(self, queries: int, deviation: float, delta: float) -> None:
        one = Sensitivity(1, 1)
        votes: list[Mechanism] = [GaussianVote(queries, deviation**2, one, one)]
        exact = exact_epsilon(votes, Level.AGENT, delta)
        found = pld_epsilon(votes, Level.AGENT, delta)
        assert exact <= found <= exact * 1.0001 + 1e-5

    @settings(max_examples=15)
    @given(st.integers(1, 400), st.floats(4e4, 4e6), st.integers(1, 2), st.floats(1e-7, 0.1))
    def test_skellam_with_much_variance_is_gaussian(
        self, queries: int, variance: float, cells: int, delta: float
    ) -> None:
        moved = Sensitivity.of_cells(cells, 16)
        exact = gaussian_exact_epsilon(math.sqrt(queries * 256 * cells / variance), delta)
        found = pld_epsilon([SkellamVote(queries, variance, moved, moved)], Level.AGENT, delta)
        assert found == pytest.approx(exact, rel=3e-3, abs=1e-4)

    @settings(max_examples=15)
    @given(
        st.integers(1, 400),
        st.floats(50.0, 1e6),
        st.integers(1, 4),
        st.integers(1, 16),
        st.floats(1e-9, 0.1),
    )
    def test_skellam_is_at_most_its_renyi_bound(
        self, queries: int, variance: float, cells: int, step: int, delta: float
    ) -> None:
        moved = Sensitivity.of_cells(cells, step)
        votes: list[Mechanism] = [SkellamVote(queries, variance, moved, moved)]
        assert pld_epsilon(votes, Level.AGENT, delta) <= epsilon(votes, Level.AGENT, delta) + 1e-9

    @pytest.mark.parametrize(("steps", "q", "z"), [(100, 0.05, 1.0), (1, 0.3, 0.5), (30, 0.9, 6.0)])
    @pytest.mark.parametrize("replaced", [False, True])
    def test_sampled_contributions(self, steps: int, q: float, z: float, replaced: bool) -> None:
        relation = reference.NeighborRel
        theirs = reference.from_gaussian_mechanism(
            z,
            sampling_prob=q,
            value_discretization_interval=1e-3,
            neighboring_relation=relation.REPLACE_ONE if replaced else relation.ADD_OR_REMOVE_ONE,
        ).self_compose(steps)
        ours = pld_epsilon(
            [PoissonGaussian(steps, q, z, Clipped(1.0, replaced), None)], Level.AGENT, 1e-4
        )
        assert ours == pytest.approx(theirs.get_epsilon_for_delta(1e-4), rel=3e-4)


@pytest.mark.parametrize(("variance", "step"), [(0.5, 1), (30.0, 2), (1e4, 16)])
def test_many_queries_lie_between_both_roundings_of_dp_accounting(
    variance: float, step: int
) -> None:
    """Their grid rounds every loss up, or every loss down: an account of its own."""
    law = skellam(variance)
    before = {k: math.log(mass) for k, mass in enumerate(law) if mass > 0}
    after = {k + step: log_mass for k, log_mass in before.items()}

    def theirs(pessimistic: bool) -> float:
        pair = reference.from_two_probability_mass_functions(before, after, pessimistic, 1e-4)
        return float(pair.self_compose(60).get_epsilon_for_delta(1e-5))

    moved = Sensitivity.of_cells(2, step)
    found = pld_epsilon([SkellamVote(30, variance, moved, moved)], Level.AGENT, 1e-5)
    assert theirs(False) <= found <= theirs(True)


@pytest.mark.parametrize("variance", [0.3, 50.0, 2000.0, 8191.0, 8192.0, 1e5])
def test_the_law_of_skellam_is_right_to_half_of_what_is_allowed_for(variance: float) -> None:
    """Against 50 digits, by the recurrence p_{k-1} = p_{k+1} + (2k / mu) p_k from far out."""
    furthest = int(33 * math.sqrt(variance) + 40)
    with decimal.localcontext(
        decimal.Context(prec=50, Emin=decimal.MIN_EMIN, Emax=decimal.MAX_EMAX)
    ):
        step = 2 / decimal.Decimal(variance)
        above, here = decimal.Decimal(0), decimal.Decimal(1)
        mass = [here]
        for k in range(furthest + 400, 0, -1):
            above, here = here, above + k * step * here
            mass.append(here)
        mass.reverse()
        total = mass[0] + 2 * sum(mass[1:])
        chosen = sorted({furthest * part // 60 for part in range(61)})
        exact = [(mass[k] / total).ln() for k in chosen]
        found = _log_skellam(np.array(chosen, dtype=np.float64), variance)
        errors = [abs(decimal.Decimal(float(f)) - e) for f, e in zip(found, exact, strict=True)]
    assert max(errors) < 2.0**-40


@pytest.mark.parametrize("variance", [0.3, 300.0, 1e5])
def test_a_longer_move_of_a_cell_loses_more(variance: float) -> None:
    def cost(step: int) -> float:
        moved = Sensitivity.of_cells(1, step)
        return pld_epsilon([SkellamVote(1, variance, moved, moved)], Level.AGENT, 1e-5)

    costs = [cost(step) for step in range(1, int(4 * math.sqrt(variance)) + 2)[:12]]
    assert costs == sorted(costs)


def test_much_noise_in_fine_units() -> None:
    moved = Sensitivity.of_cells(2, 32)
    vote = SkellamVote(657, (35 * 2.0**11) ** 2, moved, moved)
    exact = gaussian_exact_epsilon(math.sqrt(657 * 2) * 32 / (35 * 2.0**11), 1e-4)
    assert pld_epsilon([vote], Level.AGENT, 1e-4) == pytest.approx(exact, rel=1e-4)


REFUSED: list[tuple[Callable[[], Mechanism], float, str]] = [
    (lambda: SkellamVote(1, 1e4, Sensitivity(16, 256), Sensitivity(16, 256)), 1e-5, "shape"),
    (
        lambda: SkellamVote(1, 1.0, Sensitivity.of_cells(1, 30), Sensitivity.of_cells(1, 1)),
        1e-5,
        "drowns",
    ),
    (lambda: PoissonGaussian(1, 0.1, 1e-9, Clipped(1.0), None), 1e-5, "drowns"),
    (
        lambda: SkellamVote(10**6, 1e9, Sensitivity.of_cells(1, 16), Sensitivity.of_cells(1, 16)),
        1e-9,
        "too small",
    ),
]


@pytest.mark.parametrize(("make", "delta", "why"), REFUSED)
def test_what_is_not_proved_is_refused(
    make: Callable[[], Mechanism], delta: float, why: str
) -> None:
    with pytest.raises(Unsupported, match=why):
        pld_epsilon([make()], Level.AGENT, delta)


@pytest.mark.parametrize(
    ("levels", "level", "delta", "most", "gaussian"),
    [
        (((1, 64), (4, 152)), Level.AGENT, 1e-3, 2.7408, 2.7381),
        (((1, 64), (4, 152)), Level.AGENT, 1e-6, 4.3127, 4.3097),
        (((1, 256), (8, 96)), Level.INSTANCE, 1e-3, 2.3570, 2.3518),
        (((1, 256), (8, 96)), Level.INSTANCE, 1e-6, 3.7526, 3.7472),
    ],
)
def test_weighted_coins_cost_hardly_more_than_gaussian_noise(
    levels: tuple[tuple[int, int], ...], level: Level, delta: float, most: float, gaussian: float
) -> None:
    """500 queries; a coarser grid gave the larger figures."""
    one, two = (Sensitivity.of_cells(cells, 1) for cells in (1, 2))
    found = pld_epsilon([CoinVote(500, levels, 1, one, two)], level, delta)
    assert gaussian - 1e-4 < found < most


def test_coins_are_accounted_for_by_all_outcomes_of_a_query() -> None:
    """Against the sum over outcomes, for a law that is not log-concave."""
    levels = ((1, 4), (4, 20))
    masses = CoinLaw(levels).probabilities()
    one = Sensitivity.of_cells(1, 1)
    for delta in (1e-2, 1e-4):
        found = pld_epsilon([CoinVote(1, levels, 1, one, one)], Level.AGENT, delta)
        here, there = np.append(masses, 0.0), np.append(0.0, masses)
        lost = np.maximum(here - math.exp(found) * there, 0).sum()
        assert delta * 0.98 < lost <= delta


def test_coins_moved_in_an_unknown_shape_have_no_dominating_pair() -> None:
    counted = CoinVote(1, law_for(25.0).levels, 1, Sensitivity(5, 25), Sensitivity.of_cells(2, 1))
    with pytest.raises(Unsupported, match="coins"):
        pld_epsilon([counted], Level.AGENT, 1e-3)
