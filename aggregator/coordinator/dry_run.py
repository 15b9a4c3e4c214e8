"""Dry runs: what a request would meet, from the functions that open rounds. Nothing is opened,
charged or kept."""

from __future__ import annotations

from collections import Counter

from aggregator.coordinator.planner import plan_round, settled
from aggregator.coordinator.roster import Defaults, Form, Present, offers_of
from aggregator.coordinator.spending import with_figures
from mpc_vote.errors import ErrorKind, VoteError
from mpc_vote.privacy import charging
from mpc_vote.privacy.ledger import BudgetExhausted, Ledger
from mpc_vote.proto.mpcvote.v1 import common_pb2, label_pb2
from mpc_vote.tasks import Task
from mpc_vote.transport import tensors
from mpc_vote.voting.limits import DIGEST_BYTES, MAX_QUERIES
from mpc_vote.voting.spec import Spec


def dry_run(
    request: label_pb2.PlanRoundRequest,
    present: Present,
    defaults: Defaults,
    round_trip: float,
    ledger: Ledger,
) -> label_pb2.PlanRoundResponse:
    """Who would be asked, who not and why, and what it would cost.

    What a request would be refused for is raised here too, but for noise that drowns the lead and
    for a budget that is too small: these are told.
    """
    if not request.HasField("plan"):
        raise VoteError(ErrorKind.PLAN_MISSING, field="plan")
    task, plan = settled(request.plan, defaults)
    form = _form(request, task, plan, present)
    planned = plan_round(plan, form, bytes(DIGEST_BYTES), present, defaults, round_trip)
    left_out = planned.left_out.items()
    return label_pb2.PlanRoundResponse(
        spec=planned.spec.message,
        left_out=[label_pb2.Absence(agent=agent, reason=why) for agent, why in left_out],
        cost=_cost(planned.spec, ledger, plan.delta or defaults.delta),
        over_budget=_over_budget(planned.spec, ledger),
        warnings=planned.warnings,
    )


def _form(
    request: label_pb2.PlanRoundRequest,
    task: Task | None,
    plan: label_pb2.LabelPlan,
    present: Present,
) -> Form:
    """The queries that are meant: as the request says, as the task says, or what most agents take
    of those that fit otherwise."""
    if plan.queries > MAX_QUERIES:
        raise VoteError(
            ErrorKind.QUERIES_TOO_MANY, field="plan.queries", got=plan.queries, limit=MAX_QUERIES
        )
    if not plan.queries:
        raise VoteError(ErrorKind.QUERIES_EMPTY, field="plan.queries")
    if request.query_dtype:
        dtype = tensors.dtype_of(request.query_dtype)
        if not 0 < len(request.query_shape) < tensors.MAX_DIMENSIONS:
            why = "a query has too many or no dimensions"
            raise VoteError(ErrorKind.SPEC_INVALID, why=why)
        return Form(plan.queries, dtype, tuple(request.query_shape))
    if task is not None:
        return Form(plan.queries, task.input.dtype, task.input.shape)
    offers = offers_of(plan, present).values()
    alike = [one for one in offers if one.classes == plan.classes] or list(offers)
    forms = Counter((one.query_dtype, tuple(one.query_shape)) for one in alike)
    (code, shape), _ = forms.most_common(1)[0]
    return Form(plan.queries, tensors.dtype_of(code), shape)


def _cost(spec: Spec, ledger: Ledger, delta: float) -> common_pb2.Cost:
    """What the round would cost, alone and after all before it."""
    mechanism = spec.mechanism
    return with_figures(
        common_pb2.Cost(delta=delta),
        charging.figures([mechanism], delta),
        ledger.figures(delta, mechanism),
    )


def _over_budget(spec: Spec, ledger: Ledger) -> str:
    """Why the service's own budget forbids the round, or nothing."""
    try:
        ledger.check(spec.round_id, spec.mechanism)
    except BudgetExhausted as error:
        return str(error)
    return ""
