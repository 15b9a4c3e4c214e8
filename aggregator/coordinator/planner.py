"""From what a client asks to a round's spec: everything that can be refused is refused here,
unspent.

A dry run comes from the same functions, so that what it tells is what a request would meet.
"""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aggregator.coordinator.requests import Queries
from aggregator.coordinator.roster import Defaults, Form, Present, Seats, seats
from mpc_vote.argmax.registry import ENGINES
from mpc_vote.errors import ErrorKind, VoteError
from mpc_vote.privacy.accountant import MIN_DELTA
from mpc_vote.proto.mpcvote.v1 import common_pb2, label_pb2
from mpc_vote.tasks import Task, agreement
from mpc_vote.transport import tensors
from mpc_vote.voting import forecast, planning
from mpc_vote.voting.ballots import BALLOTS
from mpc_vote.voting.limits import MAX_CLASSES
from mpc_vote.voting.spec import Spec

MIN_ANSWER_SECONDS = 1
MAX_ANSWER_SECONDS = 3_000
_MAX_REQUEST_ID = 128
_MAX_PLAN_BYTES = 4_096


@dataclass(frozen=True)
class Planned:
    """A round as it would be opened; who attends and would not be asked, and why; what to know."""

    spec: Spec
    left_out: Mapping[str, str]
    warnings: Sequence[str]


def make_spec(
    plan: label_pb2.LabelPlan,
    queries: Queries,
    present: Present,
    defaults: Defaults,
    round_trip: float,
) -> Spec:
    """The spec of a round that these agents can answer as asked.

    `round_trip` is the distance between parties in seconds. Ballots are verified where the plan is
    silent and they can be. A plan that states an agreement is refused where noise would drown it.
    """
    task, plan = settled(plan, defaults)
    tensors.check_finite(queries, "queries")
    if task is not None:
        agreement.check_rows(task, queries, "queries")
    form = Form(len(queries), queries.dtype, queries.shape[1:])
    spec = plan_round(plan, form, tensors.digest_of(queries), present, defaults, round_trip).spec
    if plan.HasField("agreement") and (told := forecast.warnings(spec, plan.agreement)):
        raise VoteError(ErrorKind.LEAD_DROWNED, field="plan.sigma", why=" ".join(told))
    return spec


def settled(
    plan: label_pb2.LabelPlan, defaults: Defaults
) -> tuple[Task | None, label_pb2.LabelPlan]:
    """The plan's task, if it has one, and the plan with what follows from it, checked."""
    task = _task_of(plan, defaults)
    if task is not None:
        plan = _by_task(plan, task)
    _check_plan(plan)
    return task, plan


def plan_round(
    plan: label_pb2.LabelPlan,
    form: Form,
    digest: bytes,
    present: Present,
    defaults: Defaults,
    round_trip: float,
) -> Planned:
    """A round of such queries for the agents that accept it; the plan is `settled`."""
    asked = plan.verified if plan.HasField("verified") else None
    engine = ENGINES.by_code(plan.engine) or defaults.engine
    try:
        chosen = seats(plan, form, present, defaults, asked)
        message = _draft(plan, form, chosen, defaults, verified=bool(asked))
        if asked is None:
            # Agents that insist on the other kind of round are left out of this one.
            verified = Spec(b"", message).can_be_verified
            chosen = seats(plan, form, present, defaults, verified)
            message = _draft(plan, form, chosen, defaults, verified=verified)
        spec = planning.complete(message, digest, engine, round_trip)
    except ValueError as error:
        raise VoteError(ErrorKind.SPEC_INVALID, why=str(error)) from error
    agreed = plan.agreement if plan.HasField("agreement") else 1.0
    return Planned(spec, chosen.left_out, forecast.warnings(spec, agreed))


def _draft(
    plan: label_pb2.LabelPlan, form: Form, chosen: Seats, defaults: Defaults, *, verified: bool
) -> common_pb2.RoundSpec:
    """A spec without digest and engine."""
    seconds = plan.answer_seconds or defaults.answer_seconds
    return planning.draft(
        chosen.kind,
        round_id=secrets.token_hex(16),
        queries=form.queries,
        query_dtype=tensors.dtype_code(form.dtype),
        query_shape=form.shape,
        classes=plan.classes,
        tau=plan.tau,
        sigma=chosen.sigma,
        roster=chosen.roster,
        quorum=chosen.quorum,
        collusion=chosen.collusion,
        parties=defaults.parties,
        dealer=defaults.dealer,
        deadline_unix_ms=int(1000 * (time.time() + seconds)),
        verified=verified,
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
    given: dict[str, Any] = {
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
    if plan.HasField("agreement") and not 0 <= plan.agreement <= 1:
        raise VoteError(ErrorKind.AGREEMENT_RANGE, field="plan.agreement", got=plan.agreement)
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


def _unknown(field: str, got: object, known: Sequence[str]) -> None:
    raise VoteError(ErrorKind.METHOD_UNKNOWN, field=field, got=got, want=", ".join(known))
