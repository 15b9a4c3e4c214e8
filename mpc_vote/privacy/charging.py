"""What queries are charged: every mechanism as certified steps of one filter.

Budgets are limits of `mpc_vote.privacy.loss_filter`. What a query costs depends on whom a budget
is held against. Whoever may see noisy totals, as parties that don't follow the protocol may, sees
every cell that moves: a step each. Whoever sees labels only sees a threshold or a flip
(`mpc_vote.privacy.label_steps`). The label tells no more than the totals, so where labels have no
certificate they are charged as totals.

- Gaussian and Skellam noise have a mu: a move of length D costs D^2 mu^2, in any spread over cells.
- Coins have certificates with floors, made in a tenth of a second and remembered. Their law is
  charged without the coins that it has beyond a grid of laws, which makes it hide no more: so few
  laws are ever certified, whatever sigmas are asked for.
- k votes of coins in any spread over cells cost the most that any composition of k does.
- Anything else has no certificate: its epsilon is infinite.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from enum import StrEnum
from functools import lru_cache
from typing import TypeAlias

import numpy as np

from mpc_vote.privacy.accountant import check_delta
from mpc_vote.privacy.certificates import Certificate, NotHidden, certify, floor_cost
from mpc_vote.privacy.coins import CoinLaw
from mpc_vote.privacy.gdp import skellam_slack, unit_mu
from mpc_vote.privacy.label_steps import Seen
from mpc_vote.privacy.label_table import label_certificate, usual_laws
from mpc_vote.privacy.loss_filter import Steps
from mpc_vote.privacy.mechanisms import (
    CoinVote,
    Decided,
    GaussianScreen,
    GaussianVote,
    Level,
    Mechanism,
    SkellamScreen,
    SkellamVote,
    check_mechanism,
)
from mpc_vote.privacy.sensitivity import Sensitivity

TOTALS_SLACKS = (2.0**-50, 2.0**-45, 2.0**-40)
"""Of certificates of coins' totals: the least that has one. The further a cell moves, the more of a
finite law's edge does not hide it."""

LEAST_LABEL_DELTA = 1e-6
"""With less the slack of labels' certificates would be used up before what it is for."""

_MOST_VOTES = 128
_SPREAD_FLOORS = (4.0, 40.0)
_COARSE_BITS = 7  # of the number of heaviest coins
_LIGHTER = 4
_LIGHTER_OF_THREES = 7


class Against(StrEnum):
    """Whom a figure holds against: whoever may see noisy totals, or labels only."""

    TOTALS = "totals"
    LABELS = "labels"


PREFIX = {Against.TOTALS: "", Against.LABELS: "labels_"}
"""Of the names of figures."""


class Charges:
    """All that was charged at one level, in order, and what it comes to."""

    def __init__(self, level: Level, against: Against) -> None:
        self.level = level
        self.against = against
        self._steps = Steps()
        self._unbounded = False
        self._added = 0

    def add_new(self, spent: Sequence[Mechanism]) -> None:
        """Those of a list that only grows which are not added yet."""
        for mechanism in spent[self._added :]:
            self.add(mechanism)

    def add(self, mechanism: Mechanism) -> None:
        """After all others."""
        self._added += 1
        found = steps(mechanism, self.level, self.against)
        if found is None:
            self._unbounded = True
        else:
            self._steps.add(*found)

    def epsilon(self, delta: float, later: Iterable[Mechanism] = ()) -> float:
        """Of all that was charged, and of what may follow in any order."""
        check_delta(delta)
        found = [steps(mechanism, self.level, self.against) for mechanism in later]
        bounded = [one for one in found if one is not None]
        if self._unbounded or len(bounded) < len(found):
            return math.inf
        return self._steps.epsilon(delta, bounded)


def charged_epsilon(
    mechanisms: Iterable[Mechanism],
    level: Level,
    delta: float,
    against: Against = Against.TOTALS,
) -> float:
    """The least limit at delta that allows all of them, in this order."""
    charges = Charges(level, account_against(against, delta))
    for mechanism in mechanisms:
        charges.add(mechanism)
    return charges.epsilon(delta)


def figures(mechanisms: Sequence[Mechanism], delta: float) -> dict[str, float]:
    """What all of them lose, in this order, at both levels: against whoever may see totals, and
    against those who see labels only."""
    return {
        f"{PREFIX[against]}epsilon_{level.value}": charged_epsilon(
            mechanisms, level, delta, against
        )
        for against in Against
        for level in Level
    }


def prepare(mechanisms: Iterable[Mechanism], level: Level) -> None:
    """Makes the certificates that charges take, so that these take no time."""
    for mechanism in mechanisms:
        for against in Against:
            steps(mechanism, level, against)


def account_against(against: Against, delta: float) -> Against:
    """Whom an account at this delta can be held against: totals, if it is too small for labels."""
    return against if delta >= LEAST_LABEL_DELTA else Against.TOTALS


Run: TypeAlias = tuple[Certificate, int]
"""Steps with one certificate."""


def steps(mechanism: Mechanism, level: Level, against: Against) -> Run | None:
    """A certificate, and how many steps all queries of a mechanism are; None without a bound."""
    check_mechanism(mechanism)
    totals = _total_steps(mechanism, level)
    if against is Against.TOTALS or not isinstance(mechanism, SkellamVote | CoinVote):
        return totals
    labels = _label_steps(mechanism, level)
    if labels is None or totals is None:
        return labels or totals
    # As one of many: a certificate for much less noise may be dearer than the totals.
    return min(labels, totals, key=lambda run: run[0].costs[-1] * run[1])


def _total_steps(mechanism: Mechanism, level: Level) -> Run | None:
    match mechanism:
        case GaussianVote() | GaussianScreen():
            squared = mechanism.sensitivity(level).l2_squared
            return _of_square(squared / mechanism.variance), mechanism.queries
        case SkellamVote() | SkellamScreen():
            certificate = _skellam(mechanism.variance, mechanism.sensitivity(level))
            return None if certificate is None else (certificate, mechanism.queries)
        case CoinVote():
            return _coin_steps(mechanism, level)
        case _:
            return None


def _label_steps(vote: SkellamVote | CoinVote, level: Level) -> Run | None:
    moved = vote.sensitivity(level)
    if moved.cells is None or moved.step is None:
        return None
    match vote.decided, moved.cells:
        case (Decided.EACH, cells):
            seen, number = Seen.THRESHOLD, cells
        case (Decided.ARGMAX, 1):
            seen, number = Seen.THRESHOLD, 1
        case (Decided.ARGMAX, 2):
            seen, number = Seen.FLIP, 1
        case _:
            return None
    noise = vote.law if isinstance(vote, CoinVote) else float(vote.variance)
    certificate = label_certificate(seen, noise, moved.step)
    return None if certificate is None else (certificate, number * vote.queries)


@lru_cache(maxsize=1 << 14)
def _skellam(variance: float, moved: Sensitivity) -> Certificate | None:
    """Of one query."""
    cells, step = (moved.cells, moved.step) if moved.cells and moved.step else (moved.l1, moved.l1)
    slack = cells * skellam_slack(variance, step)
    if not slack < 1:
        return None
    return _of_square(moved.l2_squared * unit_mu(variance) ** 2, slack)


def _of_square(square: float, slack: float = 0.0) -> Certificate:
    return Certificate.of_mu(math.sqrt(square), slack)


def _coin_steps(vote: CoinVote, level: Level) -> Run | None:
    moved, law = vote.sensitivity(level), included_law(vote.law)
    if moved.cells is not None and moved.step == vote.unit:
        certificate, number = _coins(law, vote.unit), moved.cells * vote.queries
    else:
        certificate, number = _spread(law, vote.unit, moved.l1 // vote.unit), vote.queries
    return None if certificate is None else (certificate, number)


@lru_cache(maxsize=1 << 12)
def _coins(law: CoinLaw, move: int) -> Certificate | None:
    for slack in TOTALS_SLACKS:
        try:
            return certify(Seen.TOTALS, law.probabilities(), move, slack)
        except NotHidden:
            continue
    return None


@lru_cache(maxsize=1 << 8)
def _spread(law: CoinLaw, unit: int, votes: int) -> Certificate | None:
    """Of up to so many votes in any spread over cells: the dearest composition at each floor."""
    if votes > _MOST_VOTES:
        return None
    found = (_spread_within(law, unit, votes, slack) for slack in TOTALS_SLACKS)
    return next((one for one in found if one is not None), None)


def _spread_within(law: CoinLaw, unit: int, votes: int, slack: float) -> Certificate | None:
    """With this slack for each cell that moves."""
    floors, costs = np.zeros(len(_SPREAD_FLOORS)), np.zeros((votes + 1, len(_SPREAD_FLOORS)))
    # From the furthest move, which is the one to fail.
    for number in range(votes, 0, -1):
        for at, multiple in enumerate(_SPREAD_FLOORS):
            found = floor_cost(Seen.TOTALS, law.probabilities(), number * unit, slack, multiple)
            if found is None:
                return None
            floors[at], costs[number, at] = max(floors[at], found[0]), found[1]
    most = np.zeros_like(costs)
    for number in range(1, votes + 1):
        # The last cell has 1, 2, ... of the votes, and the others what is left.
        most[number] = (costs[1 : number + 1] + most[:number][::-1]).max(axis=0)
    whole = most[votes] * (1 + votes * 2.0**-50)
    kept = len(whole) if whole[1] < whole[0] else 1
    return Certificate(tuple(floors[:kept].tolist()), tuple(whole[:kept].tolist()), votes * slack)


@lru_cache(maxsize=1 << 12)
def included_law(law: CoinLaw) -> CoinLaw:
    """A law that this one includes: without the coins that it has beyond a grid of laws.

    Those of usual sigmas are on the grid as they are.
    """
    if law in usual_laws():
        return law
    *lighter, (heaviest, number) = law.levels
    threes = _LIGHTER_OF_THREES + heaviest.bit_length() // 3
    levels = {
        weight: min(n, threes if heaviest % 3 == 0 and weight < 3 else _LIGHTER)
        for weight, n in lighter
    }
    spare = max(0, number.bit_length() - _COARSE_BITS)
    levels[heaviest] = number >> spare << spare
    if sum(weight * n for weight, n in levels.items()) % 2:
        odd = min(weight for weight in levels if weight % 2)
        levels[odd] -= 1
    return CoinLaw(tuple((weight, n) for weight, n in levels.items() if n))
