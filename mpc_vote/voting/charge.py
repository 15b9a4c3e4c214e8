"""What queries are charged: the one rule that ledgers, plans and budgets use."""

from __future__ import annotations

from collections.abc import Sequence

from mpc_vote.privacy import noise
from mpc_vote.privacy.coins import fraction_bits_for, law_for
from mpc_vote.privacy.mechanisms import CoinVote, SkellamVote
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
    """The cost to agents with these k of queries under noise that agents draw.

    `variance` is in units^2, and only of noise that no coalition of the assumed size knows.
    """
    return SkellamVote(
        queries=queries,
        variance=variance,
        agent=kind.agent_sensitivity(fraction_bits=fraction_bits, ks=ks, tau=tau),
        instance=kind.instance_sensitivity(fraction_bits=fraction_bits, ks=ks, tau=tau),
        decided=kind.decided,
    )


def committee_charge(
    kind: BallotKind,
    *,
    queries: int,
    sigma: float,
    ks: Sequence[int] = (),
    tau: int | None = None,
) -> CoinVote:
    """The cost to agents with these k of queries under the committee's coins, in verified rounds:
    all noise counts, whoever drops out or colludes."""
    bits = fraction_bits_for(sigma)
    return CoinVote(
        queries=queries,
        levels=law_for(sigma).levels,
        unit=1 << bits,
        agent=kind.agent_sensitivity(fraction_bits=bits, ks=ks, tau=tau),
        instance=kind.instance_sensitivity(fraction_bits=bits, ks=ks, tau=tau),
        decided=kind.decided,
    )


def usual_charge(
    kind: BallotKind, *, queries: int, sigma: float, ks: Sequence[int] = (), tau: int | None = None
) -> CoinVote | SkellamVote:
    """What a service charges where a request does not say whether its round is verified."""
    if kind.can_be_verified:
        return committee_charge(kind, queries=queries, sigma=sigma, ks=ks, tau=tau)
    bits = kind.default_fraction_bits(ks)
    variance = noise.per_agent_variance(sigma, bits, quorum=1, collusion=0)
    return charge(kind, queries=queries, variance=variance, fraction_bits=bits, ks=ks, tau=tau)
