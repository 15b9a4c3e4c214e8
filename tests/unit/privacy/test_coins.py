"""The law of weighted coins, the rule that chooses it, and what it costs.

`coins.json` is the certificate of the rule: laws for common sigmas, each with its epsilon for 500
queries beside that of Gaussian noise of the same sigma. It is computed anew here.
"""

from __future__ import annotations

import itertools
import json
import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpc_vote.privacy.accountant import epsilon, simple_epsilon
from mpc_vote.privacy.charging import charged_epsilon
from mpc_vote.privacy.coins import (
    MAX_COINS,
    MAX_SIGMA,
    MIN_SIGMA,
    RELATIVE_ERROR,
    CoinLaw,
    fraction_bits_for,
    law_for,
)
from mpc_vote.privacy.ledger import Budget, BudgetExhausted, Ledger
from mpc_vote.privacy.mechanisms import (
    CoinVote,
    GaussianVote,
    Level,
    Mechanism,
    SkellamVote,
    mechanism_from_json,
)
from mpc_vote.privacy.mechanisms import coins as account
from mpc_vote.privacy.sensitivity import Sensitivity

CERTIFICATE = Path(__file__).with_name("coins.json")
QUERIES, DELTAS = 500, (1e-3, 1e-6)
ONE, TWO = Sensitivity.of_cells(1, 1), Sensitivity.of_cells(2, 1)


def exact(law: CoinLaw) -> list[Fraction]:
    """The law by polynomials with integer coefficients: (1 + x^w)^n, level by level."""
    terms = [1]
    for weight, number in law.levels:
        for _ in range(number):
            longer = [*terms, *[0] * weight]
            for place, term in enumerate(terms):
                longer[place + weight] += term
            terms = longer
    return [Fraction(term, 1 << law.coins) for term in terms]


def vote(sigma: float, queries: int = QUERIES) -> CoinVote:
    unit = 1 << fraction_bits_for(sigma)
    one, two = (Sensitivity.of_cells(cells, unit) for cells in (1, 2))
    return CoinVote(queries, law_for(sigma).levels, unit, one, two)


def gaussian(sigma: float) -> GaussianVote:
    return GaussianVote(QUERIES, float(sigma**2), ONE, TWO)


# The law


@pytest.mark.parametrize(
    "levels",
    [((1, 2),), ((1, 5), (3, 1)), ((2, 3), (5, 2)), ((1, 4), (2, 3), (7, 2))],
)
def test_probabilities_are_those_of_all_outcomes(levels: tuple[tuple[int, int], ...]) -> None:
    law = CoinLaw(levels)
    found = np.zeros(2 * law.reach + 1)
    for coins in itertools.product((0, 1), repeat=law.coins):
        found[int(np.dot(coins, law.weights))] += 2.0**-law.coins
    assert np.array_equal(law.probabilities(), found)
    places = np.arange(-law.reach, law.reach + 1)
    assert float(law.variance) == pytest.approx(float(found @ places**2))
    assert found @ places == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("sigma", [0.5, 4.0, 25.0, 100.0])
def test_probabilities_are_right_to_the_stated_error(sigma: float) -> None:
    law = law_for(sigma)
    for found, true in zip(law.probabilities(), exact(law), strict=True):
        assert abs(Fraction(float(found)) - true) <= Fraction(RELATIVE_ERROR) / 8 * true


@settings(max_examples=200, deadline=None)
@given(st.floats(MIN_SIGMA, MAX_SIGMA))
def test_the_chosen_variance_is_never_below_sigma_and_hardly_above(sigma: float) -> None:
    law, unit = law_for(sigma), 1 << fraction_bits_for(sigma)
    wanted = (Fraction(sigma) * unit) ** 2
    assert wanted <= law.variance < wanted + Fraction(1, 2)
    assert 60 <= law.coins <= MAX_COINS
    assert unit == 1 or sigma < 4
    assert law == law_for(sigma)


@pytest.mark.parametrize("sigma", [4, 25, 40, 50, 1000])
def test_the_variance_of_a_whole_sigma_is_its_square(sigma: int) -> None:
    assert law_for(float(sigma)).variance == sigma**2


def test_sigma_25_takes_91_coins() -> None:
    assert law_for(25.0).levels == ((1, 11), (2, 8), (3, 5), (6, 67))


@pytest.mark.parametrize("sigma", [0.0, -1.0, 0.049, 20_001.0, math.inf, math.nan])
def test_noise_that_cannot_be_drawn_is_refused_and_the_way_out_is_told(sigma: float) -> None:
    with pytest.raises(ValueError, match=r"0\.05 to 20000 votes.*verified=False"):
        law_for(sigma)


@pytest.mark.parametrize(
    "levels", [(), ((1, 3),), ((2, 1), (1, 2)), ((1, 2), (1, 2)), ((0, 2),), ((1, 2.0),), ((1,),)]
)
def test_what_is_no_law_is_refused(levels: Any) -> None:
    with pytest.raises(ValueError, match=r"coins|weight|even"):
        CoinLaw(levels)


# What it costs


def certified(sigma: float) -> dict[str, Any]:
    counted, ideal = vote(sigma), gaussian(sigma)
    return {
        "fraction_bits": fraction_bits_for(sigma),
        "levels": [list(level) for level in counted.levels],
        "coins": counted.law.coins,
        "epsilon": {
            f"{level.value}, delta {delta:g}": [
                round(epsilon([mechanism], level, delta), 6) for mechanism in (counted, ideal)
            ]
            for level in Level
            for delta in DELTAS
        },
    }


STORED = json.loads(CERTIFICATE.read_text())


@pytest.mark.parametrize("sigma", STORED)
def test_the_certificate_is_what_the_rule_and_the_accountant_give(sigma: str) -> None:
    found = certified(float(sigma))
    stored = STORED[sigma]
    assert {**found, "epsilon": None} == {**stored, "epsilon": None}
    for what, (own, ideal) in found["epsilon"].items():
        assert [own, ideal] == pytest.approx(stored["epsilon"][what], rel=1e-5), what


@pytest.mark.parametrize("sigma", [one for one in STORED if float(one) >= 3])
def test_coins_cost_a_tenth_of_a_percent_more_than_gaussian_noise_at_most(sigma: str) -> None:
    """500 queries; below a sigma of 3 a vote is no small part of it, and it is up to 1 % more."""
    for own, ideal in STORED[sigma]["epsilon"].values():
        assert ideal * (1 - 1e-3) < own < ideal * (1 + 1e-3)


def exact_moment(law: CoinLaw, step: int, order: int) -> tuple[Fraction, Fraction]:
    """The sum of P_R^a Q^(1-a), P_R being conditional, and the mass outside of R."""
    masses = exact(law)
    places = np.flatnonzero(account.inside(law.probabilities(), step))
    inside = [masses[place] for place in places]
    others = [masses[place + step] for place in places]
    terms = (p**order / q ** (order - 1) for p, q in zip(inside, others, strict=True))
    mass = sum(inside, Fraction())
    return sum(terms, Fraction()) / mass**order, 1 - mass


@pytest.mark.parametrize("levels", [((1, 64),), ((1, 11), (2, 8), (3, 5), (6, 67)), ((1, 16),)])
@pytest.mark.parametrize("step", [1, 2, 5])
def test_the_curve_is_not_below_the_exact_divergence_and_hardly_above(
    levels: tuple[tuple[int, int], ...], step: int
) -> None:
    mechanism = CoinVote(1, levels, step, Sensitivity.of_cells(1, step), TWO.of_cells(2, step))
    for order in (2, 3, 9, 33):
        moment, outside = exact_moment(mechanism.law, step, order)
        true = (math.log(moment.numerator) - math.log(moment.denominator)) / (order - 1)
        found = mechanism.rdp(float(order), Level.AGENT)
        assert true <= found <= true * 1.002 + 1e-9
        assert mechanism.rdp(float(order), Level.INSTANCE) == pytest.approx(2 * found)
        assert outside <= mechanism.escaped(Level.AGENT) <= outside * Fraction(1001, 1000)


def hockey_stick(law: CoinLaw, step: int, cells: int, eps: float) -> float:
    """The least delta of totals of so many cells that move, at an epsilon: by all losses."""
    masses = law.probabilities()
    pairs = np.array([[1.0, 1.0]])
    shifted = np.concatenate([np.zeros(step), masses]), np.concatenate([masses, np.zeros(step)])
    for _ in range(cells):
        pairs = (pairs[:, None, :] * np.stack(shifted, axis=1)[None]).reshape(-1, 2)
    return float(np.maximum(pairs[:, 0] - math.exp(eps) * pairs[:, 1], 0).sum())


@pytest.mark.parametrize("levels", [((1, 64),), ((1, 8),), ((1, 2), (4, 12)), ((3, 20),)])
@pytest.mark.parametrize("delta", [1e-1, 1e-2, 1e-3, 1e-6])
def test_no_epsilon_is_below_what_is_lost(
    levels: tuple[tuple[int, int], ...], delta: float
) -> None:
    """One cell and three, against the sum over all outcomes; with coins of weight 3 alone a move
    by one shows at once."""
    for cells in (1, 2, 3):
        moved = Sensitivity.of_cells(cells, 1)
        counted = [CoinVote(1, levels, 1, moved, moved)]
        for account_by in (epsilon, simple_epsilon):
            found = account_by(counted, Level.AGENT, delta)
            if math.isfinite(found):
                assert hockey_stick(CoinLaw(levels), 1, cells, found) <= delta
    if levels == ((3, 20),):
        assert math.isinf(found)


# Votes that are spread over cells


def compositions(votes: int) -> list[tuple[int, ...]]:
    if votes == 0:
        return [()]
    return [(part, *rest) for part in range(1, votes + 1) for rest in compositions(votes - part)]


@pytest.mark.parametrize("levels", [((1, 64),), ((1, 4), (4, 60)), ((1, 2), (4, 60))])
@pytest.mark.parametrize("votes", [1, 2, 4, 7])
@pytest.mark.parametrize("unit", [1, 2])
def test_a_spread_of_votes_costs_as_much_as_the_worst_composition(
    levels: tuple[tuple[int, int], ...], votes: int, unit: int
) -> None:
    law, grid = CoinLaw(levels), account._COARSE
    cells = {part: account._moved(law, part * unit, grid) for part in range(1, votes + 1)}
    sums = [
        np.sum([cells[part].moments for part in parts], axis=0) for parts in compositions(votes)
    ]
    worst = np.max(sums, axis=0)
    escaped = max(sum(cells[part].escaped for part in parts) for parts in compositions(votes))
    most = votes * unit
    spread = CoinVote(1, levels, unit, Sensitivity(most, most**2), Sensitivity.of_cells(2, unit))
    assert spread.curve(grid, Level.AGENT) * (grid - 1) == pytest.approx(worst, rel=1e-9)
    assert spread.escaped(Level.AGENT) == pytest.approx(escaped)


def test_the_worst_spread_need_not_be_one_cell() -> None:
    """Where a lattice of 4 is hardly smoothed, four moves by one show more than one by four: what
    depends on the squared length alone would not be a bound."""
    law = CoinLaw(((1, 4), (4, 60)))
    by_one, by_four = (account._moved(law, step, account._COARSE) for step in (1, 4))
    assert (4 * by_one.moments > by_four.moments).all()


def test_votes_beyond_the_reach_of_the_coins_are_not_protected() -> None:
    for votes in (500, 1 << 20):
        moved = Sensitivity(votes, votes**2)
        assert epsilon([CoinVote(1, law_for(25.0).levels, 1, moved, TWO)], Level.AGENT, 0.1) == (
            math.inf
        )


# Records and ledgers


def test_a_record_is_read_back_and_what_is_none_is_refused() -> None:
    counted = vote(25.0)
    assert mechanism_from_json(counted.to_json()) == counted
    record = json.loads(counted.to_json())
    for wrong in (
        {"levels": [[1, 3]]},
        {"levels": [[1]]},
        {"levels": "coins"},
        {"levels": [[1, MAX_COINS + 2]]},
        {"unit": 0},
        {"unit": 2},
        {"queries": 0},
        {"agent": None},
    ):
        with pytest.raises(ValueError, match=r"\w"):
            mechanism_from_json(json.dumps(record | wrong))


def test_coins_and_skellam_noise_compose_in_one_ledger(tmp_path: Path) -> None:
    """What is spent is more than either, less than their sum, and the same after a restart."""
    agent, instance = _units(16)
    skellam = SkellamVote(100, 160_000.0, agent, instance)
    spends: list[Mechanism] = [vote(25.0, 100), skellam]
    path = tmp_path / "ledger.db"
    with Ledger(path, None) as ledger:
        for number, one in enumerate(spends):
            ledger.charge(f"round-{number}", one)
        spent = ledger.spent(Level.AGENT, 1e-3)
    single = [charged_epsilon([one], Level.AGENT, 1e-3) for one in spends]
    assert max(single) < spent < sum(single)
    assert spent == charged_epsilon(spends, Level.AGENT, 1e-3) < epsilon(spends, Level.AGENT, 1e-3)
    assert spent == pytest.approx(charged_epsilon(spends[::-1], Level.AGENT, 1e-3), rel=1e-2)
    with Ledger(path, Budget(None, None, 1e-3)) as ledger:
        assert ledger.spent(Level.AGENT, 1e-3) == spent
        assert [spend.mechanism for spend in ledger.spends()] == spends


def _units(unit: int) -> list[Sensitivity]:
    return [Sensitivity.of_cells(cells, unit) for cells in (1, 2)]


def test_what_escapes_every_divergence_is_taken_off_delta(tmp_path: Path) -> None:
    """Queries after which delta is used up cost infinitely much, however little each loses."""
    one = CoinVote(1, ((1, 16),), 1, ONE, TWO)
    escaped = one.escaped(Level.AGENT)
    assert escaped == pytest.approx(2.0**-16, rel=1e-6)
    some = math.floor(1e-3 / escaped)
    assert math.isfinite(epsilon([CoinVote(some, ((1, 16),), 1, ONE, TWO)], Level.AGENT, 1e-3))
    more = CoinVote(some + 1, ((1, 16),), 1, ONE, TWO)
    assert epsilon([more], Level.AGENT, 1e-3) == math.inf
    with (
        Ledger(tmp_path / "ledger.db", Budget(1e9, None, 1e-3)) as ledger,
        pytest.raises(BudgetExhausted),
    ):
        ledger.charge("too-many", more)


def test_a_law_is_gone_through_once_however_many_rounds_have_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So a ledger with thousands of rounds adds up rows of numbers."""
    account._bound.cache_clear()
    moved, gone = account._moved, list[int]()

    def counting(law: CoinLaw, step: int, orders: Any) -> Any:
        gone.append(step)
        return moved(law, step, orders)

    monkeypatch.setattr(account, "_moved", counting)
    rounds = [vote(sigma, queries) for sigma in (20.0, 21.0, 22.0) for queries in range(1, 400)]
    first = epsilon(rounds, Level.INSTANCE, 1e-3)
    assert epsilon(rounds, Level.INSTANCE, 1e-3) == first
    assert len(gone) == 3


@pytest.mark.parametrize(("sigma", "step"), [(1500.0, 1), (3000.0, 40), (5000.0, 3)])
def test_of_much_noise_few_outcomes_are_gone_through_and_none_of_the_loss_is_missed(
    sigma: float, step: int
) -> None:
    """Who asks for another sigma each time pays little, and every ledger goes through each."""
    masses = law_for(sigma).probabilities()
    places = np.flatnonzero(account.inside(masses, step))
    mine, others = masses[places], masses[places + step]
    loss = np.log(mine) - np.log(others)
    fewer, at = account._fewer(mine, loss)
    assert len(fewer) <= account._OUTCOMES < len(mine)
    assert math.isclose(fewer.sum(), mine.sum(), rel_tol=1e-9)
    assert math.isclose(fewer @ np.exp(-at), others.sum(), rel_tol=1e-9)
    for order in (2.0, 16.0, sigma, 8 * sigma):
        moment, bound = (
            float(np.log(mass @ np.exp((order - 1) * told)))
            for mass, told in ((mine, loss), (fewer, at))
        )
        assert moment <= bound <= moment * (1 + 1e-3) + 1e-10
