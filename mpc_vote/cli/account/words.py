"""How `mpc-vote account` names what the library names in its own way."""

from __future__ import annotations

from mpc_vote.voting.ballots import BallotKind
from mpc_vote.voting.costing import Plan

_VOTES = {
    BallotKind.ONE_HOT: "AE-DPFL, a vote of each agent's model",
    BallotKind.MULTI_LABEL: "AE-DPFL, a yes of each agent's model for some attributes",
    BallotKind.KNN_FREQUENCY: "kNN-DPFL, a vote shared by each agent's neighbours",
    BallotKind.KNN_COUNT: "kNN-DPFL, a vote of each neighbour",
}


def votes(plan: Plan) -> str:
    """What is voted with, and its public numbers."""
    if plan.ks:
        return f"{_VOTES[plan.ballot]}, k {', '.join(str(k) for k in plan.ks)}"
    return _VOTES[plan.ballot] if plan.tau is None else f"{_VOTES[plan.ballot]}, tau {plan.tau}"
