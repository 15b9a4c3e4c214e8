"""From what a client asks to a round's spec: everything that can be refused is refused here,
unspent."""

from __future__ import annotations

import asyncio
import contextlib
import math
import secrets
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median_low
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from mpc_vote import noise, wire
from mpc_vote.argmax.engines import EngineName, ring_bits
from mpc_vote.argmax.planner import choose_groups
from mpc_vote.ballots import BallotKind
from mpc_vote.errors import ErrorKind, VoteError
from mpc_vote.privacy.accountant import LEAST_DELTA
from mpc_vote.proto.mpcvote.v1 import agent_pb2, common_pb2, label_pb2
from mpc_vote.spec import (
    BALLOTS,
    ENGINE_CODES,
    ENGINES,
    KNN_BALLOTS,
    MAX_CLASSES,
    MAX_QUERIES,
    MAX_QUERY_BYTES,
    Spec,
    default_fraction_bits,
)

LEAST_ANSWER_SECONDS = 1
MOST_ANSWER_SECONDS = 3_000
_MAX_REQUEST_ID = 128
_MAX_PLAN_BYTES = 4_096
_UPLOAD_SECONDS = 300.0
_HANG_UP_SECONDS = 0.1

Queries = npt.NDArray[Any]
BallotCode: TypeAlias = common_pb2.BallotKind.ValueType
Present = Mapping[str, agent_pb2.Capabilities]


@dataclass(frozen=True)
class Defaults:
    """What applies where a plan is silent, and what no plan may go below."""

    parties: tuple[str, ...]
    dealer: str
    engine: EngineName
    sigma: float
    least_sigma: float
    delta: float
    quorum_fraction: float
    collusion: int
    answer_seconds: int
    least_neighbours: int
    most_neighbours: int


@contextlib.asynccontextmanager
async def in_time() -> AsyncIterator[None]:
    """Ends an upload that takes too long."""
    try:
        async with asyncio.timeout(_UPLOAD_SECONDS):
            yield
    except TimeoutError as error:
        what = "The upload"
        raise VoteError(ErrorKind.DEADLINE, what=what, seconds=_UPLOAD_SECONDS) from error


def check_rows(rows: Queries, dtype: np.dtype[Any], shape: Sequence[int], field: str) -> None:
    """Refuses rows of another dtype or shape."""
    if rows.shape[1:] != tuple(shape):
        raise VoteError(ErrorKind.QUERIES_SHAPE, field=field, got=rows.shape[1:], want=tuple(shape))
    if rows.dtype != dtype:
        raise VoteError(ErrorKind.QUERIES_DTYPE, field=field, got=rows.dtype, want=dtype)


async def hung_up() -> None:
    """At the end of an upload: a caller that hangs up looks like one that has finished, until its
    cancellation is here too and ends this."""
    await asyncio.sleep(_HANG_UP_SECONDS)


class Intake:
    """The rows of one batch, alike and with sizes bounded as they arrive; kept, or only counted."""

    def __init__(self, field: str, *, keep: bool = True) -> None:
        self.rows = 0
        self._field = field
        self._keep = keep
        self._size = 0
        self._first: Queries | None = None
        self._parts: list[Queries] = []

    def add(self, tensor: common_pb2.Tensor) -> Queries:
        """Takes in the next rows, and gives them back."""
        part = wire.from_tensor(tensor, self._field)
        if self._first is not None:
            check_rows(part, self._first.dtype, self._first.shape[1:], self._field)
        self.rows += len(part)
        self._size += part.nbytes
        if self.rows > MAX_QUERIES:
            raise VoteError(
                ErrorKind.QUERIES_TOO_MANY, field=self._field, got=self.rows, limit=MAX_QUERIES
            )
        if self._size > MAX_QUERY_BYTES:
            raise VoteError(ErrorKind.QUERIES_TOO_LARGE, field=self._field, limit=MAX_QUERY_BYTES)
        if len(part):
            self._first = part[:1].copy() if self._first is None else self._first
            if self._keep:
                self._parts.append(part)
        return part

    def check(self) -> None:
        """Refuses a batch without anything in it."""
        if self._size == 0:
            raise VoteError(ErrorKind.QUERIES_EMPTY, field=self._field)

    def batch(self) -> Queries:
        """All rows."""
        self.check()
        return np.concatenate(self._parts)


async def read_plan(
    messages: AsyncIterator[label_pb2.RequestLabelsRequest],
) -> label_pb2.RequestLabelsRequest:
    """The first message, which has the plan and may have the first queries."""
    first = await anext(messages, label_pb2.RequestLabelsRequest())
    if not first.HasField("plan"):
        raise VoteError(ErrorKind.PLAN_MISSING, field="plan")
    return first


async def read_queries(
    first: label_pb2.RequestLabelsRequest,
    messages: AsyncIterator[label_pb2.RequestLabelsRequest],
) -> Queries:
    """The whole batch."""
    queries = Intake("queries")
    async for _ in _parts(first, messages, queries):
        pass
    return queries.batch()


async def read_digest(
    first: label_pb2.RequestLabelsRequest,
    messages: AsyncIterator[label_pb2.RequestLabelsRequest],
) -> bytes:
    """The digest of a batch that nobody needs: no more of it than a message is in memory."""
    queries = Intake("queries", keep=False)
    digest: wire.QueryDigest | None = None
    async for part in _parts(first, messages, queries):
        if len(part):
            digest = digest or wire.QueryDigest(part.dtype, part.shape[1:])
            digest.update(part)
    queries.check()
    assert digest is not None
    return digest.digest()


async def _parts(
    first: label_pb2.RequestLabelsRequest,
    messages: AsyncIterator[label_pb2.RequestLabelsRequest],
    queries: Intake,
) -> AsyncIterator[Queries]:
    """A batch's rows as they arrive, until all have."""
    message: label_pb2.RequestLabelsRequest | None = first
    while message is not None:
        if message.HasField("queries"):
            yield queries.add(message.queries)
        message = await anext(messages, None)
    announced = first.plan.queries
    if announced and queries.rows != announced:
        raise VoteError(
            ErrorKind.QUERIES_INCOMPLETE, field="queries", got=queries.rows, want=announced
        )
    if not announced:
        await hung_up()


def make_spec(
    plan: label_pb2.LabelPlan,
    queries: Queries,
    present: Present,
    defaults: Defaults,
    round_trip: float,
) -> Spec:
    """The spec of a round that these agents can answer as asked.

    `round_trip` is the distance between parties in seconds. Ballots are verified where the plan is
    silent and they can be.
    """
    _check_plan(plan)
    wire.check_finite(queries, "queries")
    asked = plan.verified if plan.HasField("verified") else None
    engine = ENGINES[plan.engine] if plan.engine else defaults.engine
    try:
        message = _draft(plan, queries, present, defaults, asked)
        if asked is None:
            # Agents that insist on the other kind of round are left out of this one.
            verified = Spec(b"", message).can_be_verified
            message = _draft(plan, queries, present, defaults, verified)
        draft = Spec(b"", message)
        message.queries_digest = wire.digest_of(queries)
        message.engine = ENGINE_CODES[engine]
        message.ring_bits = ring_bits(engine, draft.total_bound)
    except ValueError as error:
        raise VoteError(ErrorKind.SPEC_INVALID, why=str(error)) from error
    if engine is EngineName.TABLE:
        message.groups.extend(
            choose_groups(draft.rows, draft.row_classes, len(defaults.parties), round_trip)
        )
    return Spec.seal(message)


def _draft(
    plan: label_pb2.LabelPlan,
    queries: Queries,
    present: Present,
    defaults: Defaults,
    verified: bool | None,
) -> common_pb2.RoundSpec:
    """A spec without digest and engine, for the agents that accept such a round."""
    ballot, agents = _choose_agents(plan, queries, present, defaults)
    sigma = _sigma(plan, agents, present, defaults)
    agents, quorum, collusion = _quorum(plan, agents, present, defaults, verified)
    ks = [present[agent].k for agent in agents]
    kind = BALLOTS[ballot]
    return common_pb2.RoundSpec(
        round_id=secrets.token_hex(16),
        queries=len(queries),
        query_dtype=wire.dtype_code(queries.dtype),
        query_shape=queries.shape[1:],
        classes=plan.classes,
        ballot=ballot,
        tau=plan.tau,
        fraction_bits=_fraction_bits(kind, ks, sigma, quorum, collusion),
        sigma=sigma,
        roster=[
            common_pb2.RosterEntry(agent=agent, k=k if kind in KNN_BALLOTS else 0)
            for agent, k in zip(agents, ks, strict=True)
        ],
        quorum=quorum,
        collusion=collusion,
        parties=defaults.parties,
        dealer=defaults.dealer,
        deadline_unix_ms=int(
            1000 * (time.time() + (plan.answer_seconds or defaults.answer_seconds))
        ),
        verified=bool(verified),
    )


def _fraction_bits(
    kind: BallotKind, ks: Sequence[int], sigma: float, quorum: int, collusion: int
) -> int:
    """What the largest k needs, or as much of it as the noise has room for, but no less than most
    agents need: one that announces a large k must not stop everybody's round."""
    needed = default_fraction_bits(kind, list(ks))
    least = default_fraction_bits(kind, [median_low(ks)])
    fitting = (
        bits
        for bits in range(needed, least, -1)
        if noise.per_agent_variance(sigma, bits, quorum, collusion) <= noise.MAX_STD**2
    )
    return next(fitting, least)


def _check_plan(plan: label_pb2.LabelPlan) -> None:
    # It is written down with the round, fields of a later version included.
    if plan.ByteSize() > _MAX_PLAN_BYTES:
        why = f"the plan takes over {_MAX_PLAN_BYTES} bytes"
        raise VoteError(ErrorKind.SPEC_INVALID, field="plan", why=why)
    if plan.ballot and plan.ballot not in BALLOTS:
        _unknown("ballot", plan.ballot, [kind.value for kind in BallotKind])
    if plan.engine and plan.engine not in ENGINES:
        _unknown("engine", plan.engine, [name.value for name in EngineName])
    multi_label = plan.ballot == common_pb2.BALLOT_KIND_MULTI_LABEL
    low = 1 if multi_label else 2
    if not low <= plan.classes <= MAX_CLASSES:
        raise VoteError(
            ErrorKind.CLASSES_RANGE,
            field="plan.classes",
            got=plan.classes,
            low=low,
            high=MAX_CLASSES,
        )
    if not (math.isfinite(plan.sigma) and plan.sigma >= 0):
        raise VoteError(ErrorKind.SIGMA_RANGE, field="plan.sigma", got=plan.sigma)
    if plan.delta and not LEAST_DELTA <= plan.delta < 1:
        raise VoteError(ErrorKind.DELTA_RANGE, field="plan.delta", got=plan.delta, low=LEAST_DELTA)
    if multi_label and not 1 <= plan.tau <= plan.classes:
        raise VoteError(ErrorKind.TAU_RANGE, field="plan.tau", got=plan.tau, high=plan.classes)
    seconds = plan.answer_seconds
    if seconds and not LEAST_ANSWER_SECONDS <= seconds <= MOST_ANSWER_SECONDS:
        raise VoteError(
            ErrorKind.TIMEOUT_RANGE,
            field="plan.answer_seconds",
            got=seconds,
            low=LEAST_ANSWER_SECONDS,
            high=MOST_ANSWER_SECONDS,
        )
    if len(plan.request_id) > _MAX_REQUEST_ID:
        raise VoteError(
            ErrorKind.NAME_INVALID, field="plan.request_id", got=plan.request_id[:20] + "..."
        )


def _choose_agents(
    plan: label_pb2.LabelPlan, queries: Queries, present: Present, defaults: Defaults
) -> tuple[BallotCode, list[str]]:
    """Agents that can answer; if none can, the error names the first thing that doesn't fit."""
    if not present:
        raise VoteError(ErrorKind.AGENTS_ABSENT, retry_after=5.0)
    offered = _ballots(present.values())
    # Agents of another kind may attend too: the default is what those that fit can cast.
    dtype, shape = wire.dtype_code(queries.dtype), queries.shape[1:]
    fitting = [
        can
        for can in present.values()
        if (can.classes, can.query_dtype, tuple(can.query_shape)) == (plan.classes, dtype, shape)
    ]
    ballot = plan.ballot or _preferred(fitting or list(present.values()))

    def keep(
        agents: Sequence[str], test: Callable[[agent_pb2.Capabilities], bool], error: VoteError
    ) -> list[str]:
        kept = [agent for agent in agents if test(present[agent])]
        if not kept:
            raise error
        return kept

    names = ", ".join(BALLOTS[b].value for b in offered if b in BALLOTS)
    got = BALLOTS[ballot].value if ballot in BALLOTS else "any"
    agents = keep(
        list(present),
        lambda can: ballot in can.ballots,
        VoteError(ErrorKind.BALLOT_UNSUPPORTED, field="plan.ballot", got=got, want=names),
    )
    agents = keep(
        agents,
        lambda can: can.classes == plan.classes,
        VoteError(
            ErrorKind.CLASSES_MISMATCH,
            field="plan.classes",
            got=plan.classes,
            want=_offers(present, agents, lambda can: can.classes),
        ),
    )
    agents = keep(
        agents,
        lambda can: can.query_dtype == wire.dtype_code(queries.dtype),
        VoteError(
            ErrorKind.QUERIES_DTYPE,
            field="queries",
            got=str(queries.dtype),
            want=_offers(present, agents, lambda can: wire.dtype_of(can.query_dtype)),
        ),
    )
    agents = keep(
        agents,
        lambda can: tuple(can.query_shape) == queries.shape[1:],
        VoteError(
            ErrorKind.QUERIES_SHAPE,
            field="queries",
            got=queries.shape[1:],
            want=_offers(present, agents, lambda can: tuple(can.query_shape)),
        ),
    )
    if BALLOTS.get(ballot) not in KNN_BALLOTS:
        return ballot, agents
    # One agent's k bends everybody's round: its ring and material, its cost, and whether it can be
    # verified.
    low, high = defaults.least_neighbours, defaults.most_neighbours
    got = _offers(present, agents, lambda can: can.k)
    wrong = VoteError(ErrorKind.NEIGHBOURS_RANGE, got=got, low=low, high=high)
    return ballot, keep(agents, lambda can: low <= can.k <= high, wrong)


def _ballots(capabilities: Iterable[agent_pb2.Capabilities]) -> list[BallotCode]:
    return sorted({ballot for can in capabilities for ballot in can.ballots if ballot in BALLOTS})


def _preferred(agents: Sequence[agent_pb2.Capabilities]) -> BallotCode:
    """Counts of neighbours, else whatever comes first, if most agents can cast it; else what the
    most can. So no single agent chooses the kind, and with it who else is on the roster."""
    offers = Counter(ballot for can in agents for ballot in _ballots([can]))
    count = common_pb2.BALLOT_KIND_KNN_COUNT
    kinds = sorted(offers, key=lambda ballot: (ballot != count, ballot))
    return max(kinds, key=lambda ballot: min(offers[ballot], len(agents) // 2 + 1), default=count)


def _offers(
    present: Present, agents: Sequence[str], what: Callable[[agent_pb2.Capabilities], object]
) -> str:
    return " or ".join(sorted({str(what(present[agent])) for agent in agents}))


def _sigma(
    plan: label_pb2.LabelPlan, agents: Sequence[str], present: Present, defaults: Defaults
) -> float:
    sigma = plan.sigma or defaults.sigma
    if sigma < defaults.least_sigma:
        raise VoteError(
            ErrorKind.SIGMA_BELOW_POLICY,
            field="plan.sigma",
            got=sigma,
            who="this service",
            want=defaults.least_sigma,
        )
    least = sorted(present[agent].min_sigma for agent in agents)
    if sigma < least[0]:
        raise VoteError(
            ErrorKind.SIGMA_BELOW_POLICY,
            field="plan.sigma",
            got=sigma,
            who="any agent",
            want=least[0],
        )
    return sigma


def _quorum(
    plan: label_pb2.LabelPlan,
    agents: Sequence[str],
    present: Present,
    defaults: Defaults,
    verified: bool | None,
) -> tuple[list[str], int, int]:
    """Roster, quorum and collusion bound, leaving out agents whose policy would refuse them.

    Where the plan is silent, the quorum is the largest that is no more than its part of the agents
    who accept it, and these are most of all. Each is asked about each quorum anew: an agent that
    would refuse every round must not make the quorum one that others refuse, and one that refuses
    nothing must not be left alone with the labels.
    """
    sigma = plan.sigma or defaults.sigma
    part = 1.0 if plan.quorum else defaults.quorum_fraction
    wanted = plan.quorum or math.ceil(part * len(agents))
    least = plan.quorum or len(agents) // 2 + 1
    # Most agents have one policy: each is asked once for all that have it.
    policies = Counter(_policy(present[agent]) for agent in agents)
    unwilling: dict[str, str] = {}
    left = len(agents)
    for quorum in [wanted] if plan.quorum else range(wanted, 0, -1):
        fitting = max(0, min(defaults.collusion, quorum - 1))
        collusion = plan.collusion if plan.HasField("collusion") else fitting
        if not collusion < quorum <= len(agents):
            break
        whys = {one: _objection(one, sigma, quorum, collusion, verified) for one in policies}
        accept = sum(policies[one] for one, why in whys.items() if not why)
        if accept >= least and quorum <= math.ceil(part * accept):
            roster = [agent for agent in agents if not whys[_policy(present[agent])]]
            return roster, quorum, collusion
        if not unwilling:
            reasons = ((agent, whys[_policy(present[agent])]) for agent in agents)
            left, unwilling = accept, {agent: why for agent, why in reasons if why}
    if unwilling:
        why = "; ".join(f"{agent} {reason}" for agent, reason in unwilling.items())
        raise VoteError(ErrorKind.AGENTS_UNWILLING, got=left, want=max(wanted, least), why=why)
    raise VoteError(
        ErrorKind.QUORUM_RANGE,
        field="plan.quorum",
        got=wanted,
        roster=len(agents),
        collusion=collusion,
    )


class _Policy(NamedTuple):
    """What an agent announces that it refuses."""

    min_sigma: float
    min_quorum: int
    min_collusion: int
    max_honest: int
    rounds: common_pb2.Rounds.ValueType


def _policy(can: agent_pb2.Capabilities) -> _Policy:
    return _Policy(can.min_sigma, can.min_quorum, can.min_collusion, can.max_honest, can.rounds)


def _objection(
    policy: _Policy, sigma: float, quorum: int, collusion: int, verified: bool | None
) -> str:
    """Why an agent of this policy would refuse the round, or nothing."""
    if sigma < policy.min_sigma:
        return f"wants sigma of at least {policy.min_sigma:g} (its --min-sigma)"
    if quorum < policy.min_quorum:
        return f"wants a quorum of at least {policy.min_quorum} (its --min-quorum)"
    if collusion < policy.min_collusion:
        return f"wants a collusion bound of at least {policy.min_collusion} (its --min-collusion)"
    if policy.max_honest and quorum - collusion > policy.max_honest:
        return (
            f"wants noise that counts on {policy.max_honest} honest agents at most (--max-honest)"
        )
    if verified is False and policy.rounds == common_pb2.ROUNDS_VERIFIED:
        return "answers verified rounds only"
    if verified is True and policy.rounds == common_pb2.ROUNDS_UNVERIFIED:
        return "answers unverified rounds only"
    return ""


def warnings(spec: Spec) -> list[str]:
    """What a client should know before it trusts the labels."""
    message = spec.message
    votes = sum(spec.roster.values()) if spec.ballot is BallotKind.KNN_COUNT else len(spec.roster)
    if message.sigma < votes / 2:
        return []
    return [
        f"sigma {message.sigma:g} is large for at most {votes} votes on a query: "
        "labels will be close to random. Lower sigma, or have more agents or neighbours vote."
    ]


def _unknown(field: str, got: object, known: Sequence[str]) -> None:
    raise VoteError(ErrorKind.METHOD_UNKNOWN, field=field, got=got, want=", ".join(known))
