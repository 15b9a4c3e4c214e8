"""Who is asked: the agents that attend, less those that can't answer or would refuse, each with a
reason."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from mpc_vote.argmax.registry import EngineKind
from mpc_vote.errors import ErrorKind, VoteError
from mpc_vote.proto.mpcvote.v1 import agent_pb2, common_pb2, label_pb2
from mpc_vote.tasks import Task
from mpc_vote.transport import tensors
from mpc_vote.voting.ballots import BALLOTS, BallotKind
from mpc_vote.voting.ballots.kind import BallotCode

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


@dataclass(frozen=True)
class Form:
    """What a batch is without its content."""

    queries: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Seats:
    """Who is asked, with each one's k, and for what: and who attends and is not, and why."""

    kind: BallotKind
    roster: Mapping[str, int]
    quorum: int
    collusion: int
    sigma: float
    left_out: Mapping[str, str]


def seats(
    plan: label_pb2.LabelPlan,
    form: Form,
    present: Present,
    defaults: Defaults,
    verified: bool | None,
) -> Seats:
    """The agents that accept such a round; an error says why there are none or too few."""
    offers = offers_of(plan, present)
    choice = _Choice(offers)
    for agent in present.keys() - offers.keys():
        answers = f"answers no rounds of task {plan.task}" if plan.task else "answers tasks only"
        choice.left_out[agent] = answers
    kind = _fitting(plan, form, choice, defaults)
    sigma = _sigma(plan, choice.agents, present, defaults)
    quorum, collusion = _quorum(plan, choice, present, defaults, verified)
    roster = {agent: offers[agent].k for agent in choice.agents}
    left_out = {agent: choice.left_out[agent] for agent in present if agent in choice.left_out}
    return Seats(kind, roster, quorum, collusion, sigma, left_out)


def offers_of(plan: label_pb2.LabelPlan, present: Present) -> Offers:
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


class _Choice:
    """The agents that are left, and why others are not."""

    def __init__(self, offers: Offers) -> None:
        self.offers = offers
        self.agents = list(offers)
        self.left_out: dict[str, str] = {}

    def keep(
        self,
        test: Callable[[common_pb2.Offer], bool],
        why: Callable[[common_pb2.Offer], str],
        error: VoteError,
    ) -> None:
        """Leaves out agents whose offer does not pass; an error if none does."""
        kept = [agent for agent in self.agents if test(self.offers[agent])]
        if not kept:
            raise error
        for agent in self.agents:
            if agent not in kept:
                self.left_out[agent] = why(self.offers[agent])
        self.agents = kept

    def offered(self, what: Callable[[common_pb2.Offer], object]) -> str:
        """What those who are left offer, in words."""
        return " or ".join(sorted({str(what(self.offers[agent])) for agent in self.agents}))


def _fitting(
    plan: label_pb2.LabelPlan, form: Form, choice: _Choice, defaults: Defaults
) -> BallotKind:
    """Leaves agents that can answer; if none can, the error names the first thing that doesn't fit.

    Agents of another kind may attend too: the default is what those that fit can cast.
    """
    dtype = tensors.dtype_code(form.dtype)
    fitting = [
        can
        for can in choice.offers.values()
        if (can.classes, can.query_dtype, tuple(can.query_shape))
        == (plan.classes, dtype, form.shape)
    ]
    ballot = plan.ballot or _preferred(fitting or list(choice.offers.values()))
    kind = BALLOTS.by_code(ballot)
    name = "any" if kind is None else kind.name
    known = map(BALLOTS.by_code, _ballots(choice.offers.values()))
    names = ", ".join(one.name for one in known if one is not None)
    choice.keep(
        lambda can: ballot in can.ballots,
        lambda can: f"casts no {name} ballots",
        VoteError(ErrorKind.BALLOT_UNSUPPORTED, field="plan.ballot", got=name, want=names),
    )
    choice.keep(
        lambda can: can.classes == plan.classes,
        lambda can: f"answers for {can.classes} classes",
        VoteError(
            ErrorKind.CLASSES_MISMATCH,
            field="plan.classes",
            got=plan.classes,
            want=choice.offered(lambda can: can.classes),
        ),
    )
    choice.keep(
        lambda can: can.query_dtype == dtype,
        lambda can: f"takes queries of dtype {tensors.dtype_of(can.query_dtype)}",
        VoteError(
            ErrorKind.QUERIES_DTYPE,
            field="queries",
            got=str(form.dtype),
            want=choice.offered(lambda can: tensors.dtype_of(can.query_dtype)),
        ),
    )
    choice.keep(
        lambda can: tuple(can.query_shape) == form.shape,
        lambda can: f"takes queries of shape {tuple(can.query_shape)}",
        VoteError(
            ErrorKind.QUERIES_SHAPE,
            field="queries",
            got=form.shape,
            want=choice.offered(lambda can: tuple(can.query_shape)),
        ),
    )
    assert kind is not None, "agents that can't cast it were left out"
    if kind.needs_k and not plan.task:
        # One agent's k bends everybody's round: its ring and preprocessing, its cost, and whether
        # it can be verified.
        low, high = defaults.min_k, defaults.max_k
        choice.keep(
            lambda can: low <= can.k <= high,
            lambda can: f"counts {can.k} neighbours, and this service takes {low} to {high}",
            VoteError(ErrorKind.K_RANGE, got=choice.offered(lambda can: can.k), low=low, high=high),
        )
    return kind


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
    choice: _Choice,
    present: Present,
    defaults: Defaults,
    verified: bool | None,
) -> tuple[int, int]:
    """Quorum and collusion bound, leaving out agents whose policy would refuse them.

    Agents know none of a verified round's noise, so it has no collusion bound, and no agent is
    asked about one.

    Where the plan is silent, the quorum is the largest that is no more than its part of the agents
    who accept it, and these are most of all. Each is asked about each quorum anew: an agent that
    would refuse every round must not make the quorum one that others refuse, and one that refuses
    nothing must not be the only one that is asked.
    """
    agents = choice.agents
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
        if verified is not False:
            collusion = 0
        if not collusion < quorum <= len(agents):
            break
        whys = {one: _objection(one, sigma, quorum, collusion, verified) for one in policies}
        accept = sum(policies[one] for one, why in whys.items() if not why)
        if accept >= least and quorum <= math.ceil(part * accept):
            objections = {agent: whys[_policy(present[agent])] for agent in agents}
            choice.agents = [agent for agent in agents if not objections[agent]]
            choice.left_out |= {agent: why for agent, why in objections.items() if why}
            return quorum, collusion
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
    if verified is False and collusion < policy.min_collusion:
        return f"wants a collusion bound of at least {policy.min_collusion} (its --min-collusion)"
    if verified is False and policy.max_honest and quorum - collusion > policy.max_honest:
        return (
            f"wants noise that counts on {policy.max_honest} honest agents at most (--max-honest)"
        )
    if verified is False and policy.rounds == common_pb2.ROUNDS_VERIFIED:
        return "answers verified rounds only"
    if verified is True and policy.rounds == common_pb2.ROUNDS_UNVERIFIED:
        return "answers unverified rounds only"
    return ""
