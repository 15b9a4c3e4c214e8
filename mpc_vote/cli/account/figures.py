"""What `mpc-vote account` writes as JSON, under stable keys."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from mpc_vote.privacy.mechanisms import Level
from mpc_vote.voting.costing import Accountant, Coalition, CostPlan, Losses, Solved

_NOTHING = {
    "simple": None,
    "tight": None,
    "totals": None,
    "labels": None,
    "exact": None,
    "how": "all noise that the quorum guarantees is known: nothing is hidden",
}


def document(
    plan: CostPlan,
    found: Mapping[Level, Losses],
    coalitions: Sequence[Coalition],
    solved: Solved | None,
) -> dict[str, Any]:
    """All of a plan."""
    return {
        "plan": {
            "ballot": plan.ballot.name,
            "noise": plan.noise.value,
            "sigma": plan.sigma,
            "queries": plan.queries,
            "delta": plan.delta,
            "k": list(plan.ks),
            "tau": plan.tau,
            "agents": plan.roster.agents if plan.roster else None,
            "quorum": plan.roster.quorum if plan.roster else None,
            "collusion": plan.roster.collusion if plan.roster else None,
            "units_per_vote": plan.unit,
            "l2_squared_votes": {level.value: float(plan.moved(level)) for level in Level},
            "objections": plan.objections,
        },
        **_by_level(found),
        "coalitions": [_coalition(row) for row in coalitions],
        "solved": None if solved is None else _solved(solved),
    }


def accounts(found: Losses) -> dict[str, Any]:
    """Epsilon by every account."""
    return {
        **{accountant.value: _finite(getattr(found, accountant)) for accountant in Accountant},
        "how": found.how,
    }


def _by_level(found: Mapping[Level, Losses]) -> dict[str, Any]:
    return {level.value: accounts(epsilons) for level, epsilons in found.items()}


def _coalition(row: Coalition) -> dict[str, Any]:
    left = (
        {level.value: _NOTHING for level in Level} if row.losses is None else _by_level(row.losses)
    )
    return {"percent": row.percent, "agents": row.agents, "sigma": row.sigma, **left}


def _solved(solved: Solved) -> dict[str, Any]:
    return {
        "epsilon": solved.epsilon,
        "sigma": solved.plan.sigma,
        "queries": solved.plan.queries,
        "beyond": {
            "epsilon": solved.epsilon_beyond,
            "sigma": solved.beyond.sigma,
            "queries": solved.beyond.queries,
        },
    }


def _finite(value: float | None) -> float | None:
    """JSON has no infinity."""
    return value if value is not None and math.isfinite(value) else None
