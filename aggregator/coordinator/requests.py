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
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mpc_vote.argmax.registry import ENGINES, EngineKind
from mpc_vote.errors import ErrorKind, VoteError
from mpc_vote.privacy.accountant import MIN_DELTA
from mpc_vote.proto.mpcvote.v1 import agent_pb2, common_pb2, label_pb2
from mpc_vote.tasks import Task, agreement
from mpc_vote.transport import tensors
from mpc_vote.voting import planning
from mpc_vote.voting.ballots import BALLOTS, BallotCode
from mpc_vote.voting.limits import MAX_CLASSES, MAX_QUERIES, MAX_QUERY_BYTES
from mpc_vote.voting.spec import Spec

MIN_ANSWER_SECONDS = 1
MAX_ANSWER_SECONDS = 3_000
_MAX_REQUEST_ID = 128
_MAX_PLAN_BYTES = 4_096
_UPLOAD_SECONDS = 300.0
_HANG_UP_SECONDS = 0.1

Queries = npt.NDArray[Any]
Present = Mapping[str, agent_pb2.Capabilities]
Offers = Mapping[str, common_pb2.Offer]


@dataclass(frozen=True)
class Defaults:
    """What applies where a plan is silent, what no plan may go below, and the tasks that plans may
    name."""

    parties: tuple[str, ...]
    dealer: str
    engine: EngineKind
    sigma: float
    min_sigma: float
    delta: float
    quorum_fraction: float
    collusion: int
    answer_seconds: int
    min_k: int
    max_k: int
    tasks: Mapping[str, Task] = field(default_factory=dict)


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
        part = tensors.from_tensor(tensor, self._field)
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
    digest: tensors.QueryDigest | None = None
    async for part in _parts(first, messages, queries):
        if len(part):
            digest = digest or tensors.QueryDigest(part.dtype, part.shape[1:])
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
    task = _task_of(plan, defaults)
    if task is not None:
        plan = _by_task(plan, task)
    _check_plan(plan)
    tensors.check_finite(queries, "queries")
    if task is not None:
        agreement.check_rows(task, queries, "queries")
    asked = plan.verified if plan.HasField("verified") else None
    engine = ENGINES.by_code(plan.engine) or defaults.engine
    try:
        message = _draft(plan, queries, present, defaults, asked)
        if asked is None:
            # Agents that insist on the other kind of round are left out of this one.
            verified = Spec(b"", message).can_be_verified
            message = _draft(plan, queries, present, defaults, verified)
        return planning.complete(message, tensors.digest_of(queries), engine, round_trip)
    except ValueError as error:
        raise VoteError(ErrorKind.SPEC_INVALID, why=str(error)) from error


def _draft(
    plan: label_pb2.LabelPlan,
    queries: Queries,
    present: Present,
    defaults: Defaults,
    verified: bool | None,
) -> common_pb2.RoundSpec:
    """A spec without digest and engine, for the agents that accept such a round."""
    offers = _offers_of(plan, present)
    ballot, agents = _choose_agents(plan, queries, offers, defaults)
    kind = BALLOTS.by_code(ballot)
    assert kind is not None, "agents that can't cast it were left out"
    sigma = _sigma(plan, agents, present, defaults)
    agents, quorum, collusion = _quorum(plan, agents, present, defaults, verified)
    seconds = plan.answer_seconds or defaults.answer_seconds
    return planning.draft(
        kind,
        round_id=secrets.token_hex(16),
        queries=len(queries),
        query_dtype=tensors.dtype_code(queries.dtype),
        query_shape=queries.shape[1:],
        classes=plan.classes,
        tau=plan.tau,
        sigma=sigma,
        roster={agent: offers[agent].k for agent in agents},
        quorum=quorum,
        collusion=collusion,
        parties=defaults.parties,
        dealer=defaults.dealer,
        deadline_unix_ms=int(1000 * (time.time() + seconds)),
        verified=bool(verified),
        task=plan.task,
        task_digest=plan.task_digest,
    )


def _task_of(plan: label_pb2.LabelPlan, defaults: Defaults) -> Task | None:
    """The task that a plan names, which must be the one that is served."""
    if not plan.task and not plan.task_digest:
        return None
    task = defaults.tasks.get(plan.task)
    if task is None:
        raise agreement.unknown("The coordinator", plan.task, defaults.tasks)
    if plan.task_digest not in (b"", task.digest):
        raise agreement.digests_differ(
            task.name, "the client", plan.task_digest, "the coordinator", task.digest
        )
    return task


def _by_task(plan: label_pb2.LabelPlan, task: Task) -> label_pb2.LabelPlan:
    """A plan with all that follows from its task; what it says otherwise is refused."""
    given = {
        "task_digest": task.digest,
        "classes": len(task.classes),
        "ballot": task.vote.ballot.code,
        "tau": task.vote.tau,
    }
    for name, want in given.items():
        got = getattr(plan, name)
        if got and got != want:
            raise VoteError(
                ErrorKind.TASK_CONTRADICTED,
                field=f"plan.{name}",
                got=got,
                task=task.name,
                want=task.vote.ballot.name if name == "ballot" else want,
            )
    filled = label_pb2.LabelPlan()
    filled.CopyFrom(plan)
    filled.MergeFrom(label_pb2.LabelPlan(**given))
    return filled


def _offers_of(plan: label_pb2.LabelPlan, present: Present) -> Offers:
    """What agents offer for the plan's task, or without one for rounds that have none."""
    if not present:
        raise VoteError(ErrorKind.AGENTS_ABSENT, retry_after=5.0)
    offers = {
        agent: offer
        for agent, can in present.items()
        for offer in can.offers
        if (offer.task, offer.task_digest) == (plan.task, plan.task_digest)
    }
    if not offers and plan.task:
        raise VoteError(ErrorKind.TASK_UNATTENDED, task=plan.task, retry_after=5.0)
    if not offers:
        names = sorted({offer.task for can in present.values() for offer in can.offers})
        raise VoteError(ErrorKind.TASK_MISSING, field="plan.task", want=", ".join(names))
    return offers


def _check_plan(plan: label_pb2.LabelPlan) -> None:
    # It is written down with the round, fields of a later version included.
    if plan.ByteSize() > _MAX_PLAN_BYTES:
        why = f"the plan takes over {_MAX_PLAN_BYTES} bytes"
        raise VoteError(ErrorKind.SPEC_INVALID, field="plan", why=why)
    kind = BALLOTS.by_code(plan.ballot)
    if plan.ballot and kind is None:
        _unknown("ballot", plan.ballot, BALLOTS.names())
    if plan.engine and ENGINES.by_code(plan.engine) is None:
        _unknown("engine", plan.engine, ENGINES.names())
    low = 2 if kind is None else kind.min_classes
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
    if plan.delta and not MIN_DELTA <= plan.delta < 1:
        raise VoteError(ErrorKind.DELTA_RANGE, field="plan.delta", got=plan.delta, low=MIN_DELTA)
    if kind is not None and kind.needs_tau and not 1 <= plan.tau <= plan.classes:
        raise VoteError(ErrorKind.TAU_RANGE, field="plan.tau", got=plan.tau, high=plan.classes)
    seconds = plan.answer_seconds
    if seconds and not MIN_ANSWER_SECONDS <= seconds <= MAX_ANSWER_SECONDS:
        raise VoteError(
            ErrorKind.TIMEOUT_RANGE,
            field="plan.answer_seconds",
            got=seconds,
            low=MIN_ANSWER_SECONDS,
            high=MAX_ANSWER_SECONDS,
        )
    if len(plan.request_id) > _MAX_REQUEST_ID:
        raise VoteError(
            ErrorKind.NAME_INVALID, field="plan.request_id", got=plan.request_id[:20] + "..."
        )


def _choose_agents(
    plan: label_pb2.LabelPlan, queries: Queries, present: Offers, defaults: Defaults
) -> tuple[BallotCode, list[str]]:
    """Agents that can answer; if none can, the error names the first thing that doesn't fit."""
    offered = _ballots(present.values())
    # Agents of another kind may attend too: the default is what those that fit can cast.
    dtype, shape = tensors.dtype_code(queries.dtype), queries.shape[1:]
    fitting = [
        can
        for can in present.values()
        if (can.classes, can.query_dtype, tuple(can.query_shape)) == (plan.classes, dtype, shape)
    ]
    ballot = plan.ballot or _preferred(fitting or list(present.values()))

    def keep(
        agents: Sequence[str], test: Callable[[common_pb2.Offer], bool], error: VoteError
    ) -> list[str]:
        kept = [agent for agent in agents if test(present[agent])]
        if not kept:
            raise error
        return kept

    names = ", ".join(kind.name for kind in map(BALLOTS.by_code, offered) if kind is not None)
    kind = BALLOTS.by_code(ballot)
    got = "any" if kind is None else kind.name
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
        lambda can: can.query_dtype == tensors.dtype_code(queries.dtype),
        VoteError(
            ErrorKind.QUERIES_DTYPE,
            field="queries",
            got=str(queries.dtype),
            want=_offers(present, agents, lambda can: tensors.dtype_of(can.query_dtype)),
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
    if kind is None or not kind.needs_k or plan.task:
        return ballot, agents
    # One agent's k bends everybody's round: its ring and preprocessing, its cost, and whether it
    # can be verified.
    low, high = defaults.min_k, defaults.max_k
    got = _offers(present, agents, lambda can: can.k)
    wrong = VoteError(ErrorKind.K_RANGE, got=got, low=low, high=high)
    return ballot, keep(agents, lambda can: low <= can.k <= high, wrong)


def _ballots(offers: Iterable[common_pb2.Offer]) -> list[BallotCode]:
    known = {kind.code for kind in BALLOTS}
    return sorted({ballot for can in offers for ballot in can.ballots if ballot in known})


def _preferred(agents: Sequence[common_pb2.Offer]) -> BallotCode:
    """Counts of neighbours, else whatever comes first, if most agents can cast it; else what the
    most can. So no single agent chooses the kind, and with it who else is on the roster."""
    offers = Counter(ballot for can in agents for ballot in _ballots([can]))
    count = common_pb2.BALLOT_KIND_KNN_COUNT
    kinds = sorted(offers, key=lambda ballot: (ballot != count, ballot))
    return max(kinds, key=lambda ballot: min(offers[ballot], len(agents) // 2 + 1), default=count)


def _offers(
    present: Offers, agents: Sequence[str], what: Callable[[common_pb2.Offer], object]
) -> str:
    return " or ".join(sorted({str(what(present[agent])) for agent in agents}))


def _sigma(
    plan: label_pb2.LabelPlan, agents: Sequence[str], present: Present, defaults: Defaults
) -> float:
    sigma = plan.sigma or defaults.sigma
    if sigma < defaults.min_sigma:
        raise VoteError(
            ErrorKind.SIGMA_BELOW_POLICY,
            field="plan.sigma",
            got=sigma,
            who="this service",
            want=defaults.min_sigma,
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
    votes = spec.ballot.votes(list(spec.roster.values()))
    if message.sigma < votes / 2:
        return []
    return [
        f"sigma {message.sigma:g} is large for at most {votes} votes on a query: "
        "labels will be close to random. Lower sigma, or have more agents or neighbours vote."
    ]


def _unknown(field: str, got: object, known: Sequence[str]) -> None:
    raise VoteError(ErrorKind.METHOD_UNKNOWN, field=field, got=got, want=", ".join(known))
