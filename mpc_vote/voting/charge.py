"""What queries are charged: the one rule that ledgers, plans and budgets use."""

from __future__ import annotations

from collections.abc import Sequence

from mpc_vote.privacy.mechanisms import SkellamVote
from mpc_vote.voting.ballots import BallotKind


def charge(
    kind: BallotKind,
    *,
    queries: int,
    variance: float,
    fraction_bits: int,
    ks: Sequence[int] = (),
    tau: int | None = None,
) -> SkellamVote:
    """The cost to agents with these k of queries under integer noise.

    `variance` is in units^2, and only of noise that no coalition of the assumed size knows.
    """
    return SkellamVote(
        queries=queries,
        variance=variance,
        agent=kind.agent_sensitivity(fraction_bits=fraction_bits, ks=ks, tau=tau),
        instance=kind.instance_sensitivity(fraction_bits=fraction_bits, ks=ks, tau=tau),
    )
