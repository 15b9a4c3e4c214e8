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
from enum import Enum

import numpy as np

from mpc_vote.privacy.accountant import check_delta, gaussian_exact_epsilon
from mpc_vote.privacy.certificates import Certificate
from mpc_vote.privacy.charging import Against, account_against, steps
from mpc_vote.privacy.loss_filter import SLACK_SHARE
from mpc_vote.privacy.mechanisms import Level, Mechanism, one_query
from mpc_vote.privacy.profiles import FloatArray

_ROUND_UP = 1 + 2.0**-40


class Neighbours(Enum):
    """How two data sets differ in one record: how many bounds together are the queries that it
    changes."""

    ADD_REMOVE = 1
    REPLACE = 2


@dataclass(frozen=True)
class BoundedRound:
    """What a round released, and its task's bound on a record's contributions, if it has one."""

    mechanism: Mechanism
    bound: int | None = None


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
    against: Against = Against.TOTALS,
) -> float:
    """What a record loses in these rounds, in this order, at most; infinite if one of them has no
    bound on what it loses."""
    check_delta(delta)
    most = max((one.bound for one in rounds if one.bound is not None), default=0)
    queries = [one.mechanism.queries for one in rounds]
    bounded = sum(n for n, one in zip(queries, rounds, strict=True) if one.bound is not None)
    charged = min(bounded, neighbours.value * most)
    unbounded = sum(queries) - bounded
    if charged + unbounded == 0:
        return 0.0
    costs = []
    for one in rounds:
        cost = _cost(one.mechanism, account_against(against, delta))
        if cost is None:
            return math.inf
        costs.append(cost)
    needed = np.zeros(charged + 1)
    slack = charged * max(
        (cost.slack for cost, one in zip(costs, rounds, strict=True) if one.bound is not None),
        default=0.0,
    )
    for one, number, cost in reversed(list(zip(rounds, queries, costs, strict=True))):
        if one.bound is None:
            slack += number * cost.slack
            for _ in range(number):
                needed = cost.before(needed)
            continue
        # After as many queries as there are contributions left nothing changes any more.
        for _ in range(min(number, charged)):
            needed[1:] = np.maximum(needed[1:], cost.before(needed[:-1]))
    if slack * _ROUND_UP > delta * SLACK_SHARE:
        return math.inf
    return gaussian_exact_epsilon(math.sqrt(float(needed[-1])), delta * (1 - SLACK_SHARE))


def _cost(mechanism: Mechanism, against: Against) -> _Cost | None:
    """Of one query; None if it has no bound."""
    run = steps(one_query(mechanism), Level.INSTANCE, against)
    return None if run is None else _Cost(*run)
