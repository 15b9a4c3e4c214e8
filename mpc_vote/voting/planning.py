"""How a spec is made: by the coordinator for its rounds, and by simulations for theirs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median_low

from mpc_vote.argmax.registry import EngineKind
from mpc_vote.privacy import coins, noise
from mpc_vote.proto.mpcvote.v1 import common_pb2
from mpc_vote.voting.ballots import BallotKind
from mpc_vote.voting.spec import Spec

# What a service does where nobody says otherwise, and plans without a service assume.
DELTA = 1e-5
QUORUM_FRACTION = 0.8
COLLUSION = 1


def draft(
    kind: BallotKind,
    *,
    round_id: str,
    queries: int,
    query_dtype: common_pb2.DType.ValueType,
    query_shape: Sequence[int],
    classes: int,
    sigma: float,
    roster: Mapping[str, int],
    quorum: int,
    collusion: int,
    parties: Sequence[str],
    dealer: str,
    tau: int = 0,
    deadline_unix_ms: int = 0,
    verified: bool = False,
    task: str = "",
    task_digest: bytes = b"",
) -> common_pb2.RoundSpec:
    """A spec without its engine and the digest of its queries; the roster has each agent's k."""
    return common_pb2.RoundSpec(
        round_id=round_id,
        queries=queries,
        query_dtype=query_dtype,
        query_shape=query_shape,
        classes=classes,
        ballot=kind.code,
        tau=tau,
        fraction_bits=(
            coins.fraction_bits_for(sigma)
            if verified
            else _fraction_bits(kind, list(roster.values()), sigma, quorum, collusion)
        ),
        sigma=sigma,
        roster=[
            common_pb2.RosterEntry(agent=agent, k=k if kind.needs_k else 0)
            for agent, k in roster.items()
        ],
        quorum=quorum,
        # The committee's noise is known to no agents, however many collude.
        collusion=0 if verified else collusion,
        parties=parties,
        dealer=dealer,
        deadline_unix_ms=deadline_unix_ms,
        verified=verified,
        task=task,
        task_digest=task_digest,
    )


def _fraction_bits(
    kind: BallotKind, ks: Sequence[int], sigma: float, quorum: int, collusion: int
) -> int:
    """What the largest k needs, or as much of it as the noise has room for, but no less than most
    agents need: one that announces a large k must not stop everybody's round."""
    needed = kind.default_fraction_bits(ks)
    least = kind.default_fraction_bits([median_low(ks)])
    fitting = (
        bits
        for bits in range(needed, least, -1)
        if noise.per_agent_variance(sigma, bits, quorum, collusion) <= noise.MAX_STD**2
    )
    return next(fitting, least)


def complete(
    message: common_pb2.RoundSpec, queries_digest: bytes, engine: EngineKind, round_trip: float
) -> Spec:
    """A draft with the ring and the schedule that suit the engine, and so a spec.

    `round_trip` is the distance between parties in seconds.
    """
    drafted = Spec(b"", message)
    message.queries_digest = queries_digest
    message.engine = engine.code
    message.ring_bits = engine.ring_bits(drafted.total_bound)
    schedule = engine.schedule(
        message.ring_bits, drafted.rows, drafted.row_classes, len(message.parties), round_trip
    )
    message.groups.extend(schedule.groups)
    message.two_rounds = schedule.two_rounds
    return Spec.seal(message)
