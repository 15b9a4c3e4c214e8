"""What a single record loses where a task bounds its contributions.

A record whose task states a bound T changes the answer to at most T queries between neighbours that
have it or don't, and to at most 2 T between neighbours that have one record or another in its place
(`docs/privacy.md`, contribution bounds, has the theorem). Counters span tasks: where bounds differ,
the largest holds for all bounded rounds together. A round without a bound counts with every query.

Which of the queries those are depends on the record, so the account takes the dearest. For steps
that cost a mu^2 that is the sum of the most expensive ones. Certificates cost less where more
follows, so there it is a recursion: `needed[c]` is what must be left of a mu^2 where c
contributions are left, and a query makes of it max(needed[c], needed[c - 1] + its cost there).
Whoever chooses the queries by earlier answers, the filter of `mpc_vote.privacy.loss_filter` holds
with needed[c] for the b that is left: a query that a record is not charged for changes neither
world, and leaves b as it is, which is no less than `needed` then.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum

import numpy as np

from mpc_vote.privacy.accountant import Unsupported, check_delta, gaussian_exact_epsilon
from mpc_vote.privacy.certificates import LEAST_SLACK, Certificate, certify
from mpc_vote.privacy.coins import CoinLaw
from mpc_vote.privacy.gdp import skellam_law, skellam_slack, unit_mu
from mpc_vote.privacy.label_steps import Seen
from mpc_vote.privacy.loss_filter import SLACK_SHARE
from mpc_vote.privacy.mechanisms import CoinVote, GaussianVote, Mechanism, SkellamVote, one_query
from mpc_vote.privacy.profiles import FloatArray

_ROUND_UP = 1 + 2.0**-40


class _Unhidden(Exception):
    """Noise that does not hide what a record moves."""


class Neighbours(Enum):
    """How two data sets differ in one record: how many bounds together are the queries that it
    changes."""

    ADD_REMOVE = 1
    REPLACE = 2


class Watched(StrEnum):
    """What the adversary sees of a query."""

    TOTALS = "totals"
    LABELS = "labels"


@dataclass(frozen=True)
class BoundedRound:
    """What a round released, and its task's bound on a record's contributions, if it has one."""

    mechanism: Mechanism
    bound: int | None = None
    flips: bool = False
    """Whether a record moves a vote from one class to another and nothing else, and labels are the
    argmax: one-hot and count ballots. Only then labels have a figure below that of the totals."""


@dataclass(frozen=True)
class _Cost:
    """Of a query that a record contributes to: so many steps of one certificate."""

    certificate: Certificate
    steps: int

    @property
    def slack(self) -> float:
        return self.steps * self.certificate.slack

    def before(self, rest: FloatArray) -> FloatArray:
        """What must be left before the query where `rest` must be left after it: a floor may be
        left instead, where that is cheaper."""
        floors, costs = np.array(self.certificate.floors), np.array(self.certificate.costs)
        for _ in range(self.steps):
            left = np.maximum(rest[:, None], floors)
            rest = (left + costs).min(axis=1) * _ROUND_UP
        return rest


def record_epsilon(
    rounds: Sequence[BoundedRound],
    delta: float,
    neighbours: Neighbours,
    watched: Watched = Watched.TOTALS,
) -> float:
    """What a record loses in these rounds, in this order, at most.

    `Unsupported` where a round has no figure of this kind. Labels take some seconds for each law of
    noise, once.
    """
    check_delta(delta)
    most = max((one.bound for one in rounds if one.bound is not None), default=0)
    queries = [_queries(one.mechanism) for one in rounds]
    bounded = sum(n for n, one in zip(queries, rounds, strict=True) if one.bound is not None)
    charged = min(bounded, neighbours.value * most)
    unbounded = sum(queries) - bounded
    if charged + unbounded == 0:
        return 0.0
    slack = delta * SLACK_SHARE / (charged + unbounded)
    try:
        costs = [_cost(one, watched, slack) for one in rounds]
    except _Unhidden:
        return math.inf
    needed = np.zeros(charged + 1)
    spent = charged * max(
        (cost.slack for cost, one in zip(costs, rounds, strict=True) if one.bound is not None),
        default=0.0,
    )
    for one, number, cost in reversed(list(zip(rounds, queries, costs, strict=True))):
        if one.bound is None:
            spent += number * cost.slack
            for _ in range(number):
                needed = cost.before(needed)
            continue
        # After as many queries as there are contributions left nothing changes any more.
        for _ in range(min(number, charged)):
            needed[1:] = np.maximum(needed[1:], cost.before(needed[:-1]))
    left = math.nextafter(delta - spent * _ROUND_UP, -math.inf)
    if left < delta / 2:
        return math.inf
    return gaussian_exact_epsilon(math.sqrt(float(needed[-1])), left)


def _queries(mechanism: Mechanism) -> int:
    if not isinstance(mechanism, SkellamVote | CoinVote | GaussianVote):
        raise Unsupported(f"no figure for a single record is known of a {mechanism.kind}")
    return mechanism.queries


def _cost(given: BoundedRound, watched: Watched, slack: float) -> _Cost:
    """Of one query; by the totals where labels have no figure of their own, as they show less."""
    one = one_query(given.mechanism)
    if watched is Watched.LABELS and given.flips and (cost := _label_cost(one, slack)) is not None:
        return cost
    match one:
        case GaussianVote():
            mu = math.sqrt(one.instance.l2_squared / one.variance)
            return _Cost(Certificate.of_mu(mu), 1)
        case SkellamVote():
            cells, step = _shape(one)
            mu = math.sqrt(one.instance.l2_squared) * unit_mu(one.variance)
            escaped = cells * skellam_slack(one.variance, step)
            if escaped >= 1:
                raise _Unhidden
            return _Cost(Certificate.of_mu(mu, escaped), 1)
        case CoinVote():
            cells, step = _shape(one)
            if step != one.unit:
                raise Unsupported("coins have a figure for a single record where it moves one vote")
            law = CoinLaw(one.levels).probabilities()
            try:
                certificate = certify(Seen.TOTALS, law, step, _power_of_two(slack / cells))
            except ValueError as error:
                raise _Unhidden from error
            return _Cost(certificate, cells)
    raise Unsupported(f"no figure for a single record is known of a {one.kind}")


def _label_cost(one: Mechanism, slack: float) -> _Cost | None:
    """Where noise is of one finite law, and not too fine."""
    if not isinstance(one, SkellamVote | CoinVote) or one.instance.cells != 2:
        return None
    law = (
        skellam_law(one.variance)
        if isinstance(one, SkellamVote)
        else CoinLaw(one.levels).probabilities()
    )
    _, step = _shape(one)
    try:
        return _Cost(certify(Seen.FLIP, law, step, _power_of_two(slack)), 1)
    except ValueError:
        return None


def _shape(one: SkellamVote | CoinVote) -> tuple[int, int]:
    """How many cells move, and by how much at most."""
    if one.instance.cells is None or one.instance.step is None:
        raise Unsupported("no figure for a single record is known where any cells may move")
    return one.instance.cells, one.instance.step


def _power_of_two(at_most: float) -> float:
    """So that few slacks, and few certificates, are in use."""
    return max(LEAST_SLACK, 2.0 ** math.floor(math.log2(at_most)))
