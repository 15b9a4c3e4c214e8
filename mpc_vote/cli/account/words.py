"""How `mpc-vote account` names what the library names in its own way."""

from __future__ import annotations

from mpc_vote.voting.costing import CostPlan


def votes(plan: CostPlan) -> str:
    """What is voted with, and its public numbers."""
    if plan.ks:
        return f"{plan.ballot.about}, k {', '.join(str(k) for k in plan.ks)}"
    return plan.ballot.about if plan.tau is None else f"{plan.ballot.about}, tau {plan.tau}"
