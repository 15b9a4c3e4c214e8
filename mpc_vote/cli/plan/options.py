"""The options of `mpc-vote plan`, and the federation that they describe."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import Field

from mpc_vote.app.config import (
    Address,
    Ballot,
    ConfigError,
    Delta,
    LogLevel,
    Name,
    Positive,
    Settings,
)
from mpc_vote.cli.account.plot import FORMATS
from mpc_vote.cli.common import load_task
from mpc_vote.cli.plan.grid import Federation
from mpc_vote.client import Plan
from mpc_vote.privacy.charging import Against
from mpc_vote.privacy.mechanisms import Level
from mpc_vote.tasks import Task
from mpc_vote.voting.ballots import BallotKind
from mpc_vote.voting.limits import MAX_AGENTS, MAX_CLASSES, MAX_K, MAX_QUERIES
from mpc_vote.voting.planning import COLLUSION, DELTA, QUORUM_FRACTION
from mpc_vote.voting.round_plan import RoundPlan

MAX_AGREEMENTS = 4

Part = Annotated[float, Field(gt=0, le=1)]


class PlanSettings(Settings):
    """Says how good labels will be and what they will cost, before anybody is asked: the expected
    share of right labels and epsilon at both levels, for a range of noise and of queries.

    Nothing is asked of any service, and nothing is spent. With --certs the agents that attend the
    coordinator now are planned with, in a dry run.

    An agreement is the share of the votes on a query that name its right class. Labels are given
    as a range: from all other votes on one rival to other votes spread evenly.
    """

    command: ClassVar[str] = "plan"

    task: Path | None = Field(None, description="task.toml: has classes, ballot, k and tau")
    classes: int | None = Field(
        None, ge=1, le=MAX_CLASSES, description="number of classes (multi_label: of attributes)"
    )
    ballot: Ballot | None = Field(None, description="kind of ballots")
    k: int | None = Field(None, ge=1, le=MAX_K, description="neighbours that vote at each agent")
    tau: int | None = Field(None, ge=1, description="most attributes an agent says yes to")
    agents: int | None = Field(
        None, ge=1, le=MAX_AGENTS, description="agents on the roster; not with --certs"
    )
    quorum: int | None = Field(
        None,
        ge=1,
        description=f"least number of agents ({QUORUM_FRACTION:.0%} of them if left out)",
    )
    collusion: int | None = Field(
        None,
        ge=0,
        description="agents assumed to pool their noise in rounds that are not verified "
        f"({COLLUSION} if left out)",
    )
    verified: bool | None = Field(
        None,
        description="the committee draws the noise, and ballots are verified; by default where the "
        "kind of ballot can be",
    )
    participation: Part = Field(
        1.0, description="part of the agents that answer; the quorum always does"
    )
    turnout: Part = Field(
        1.0,
        description="part of the votes that are cast: neighbours within reach, agents that don't "
        "abstain",
    )
    agreement: list[Part] = Field(
        [0.5, 0.7, 0.9], min_length=1, max_length=MAX_AGREEMENTS, description="expected agreements"
    )
    sigma: list[Positive] = Field(
        [], description="noise in votes; by the number of votes if left out"
    )
    queries: list[Annotated[int, Field(ge=1, le=MAX_QUERIES)]] = Field(
        [100, 500, 1000], min_length=1, description="numbers of labels to release"
    )
    epsilon: Positive | None = Field(
        None, le=1000, description="finds sigma for this epsilon, for each number of queries"
    )
    level: Level | None = Field(
        None,
        description="what --epsilon, advice and plot go by: instance (default with neighbours) or "
        "agent (default otherwise)",
    )
    delta: Delta = Field(DELTA, description="delta at which epsilon is given")
    against: Against = Field(
        Against.TOTALS,
        description="whom epsilon holds against: totals (malicious parties may see noisy totals) "
        "or labels (clients, the server, semi-honest parties)",
    )
    plot: Path | None = Field(
        None, description=f"draw right labels against epsilon: {', '.join(FORMATS)}"
    )
    coordinator: Address = Field("127.0.0.1:7000", description="host:port of the coordinator")
    coordinator_name: Name = Field(
        "coordinator", description="name in the coordinator's certificate"
    )
    certs: Path | None = Field(
        None, description="folder with a client's certificate: plan with the agents that attend"
    )
    json_path: str | None = Field(
        None, alias="json", description="also write the figures as JSON to this file, - for stdout"
    )
    log_level: LogLevel = Field("warning", description="debug, info, warning or error")


def task_of(settings: PlanSettings) -> Task | None:
    """The task, which then says what else is left out."""
    if settings.certs is not None:
        for name in ("agents", "k"):
            if getattr(settings, name) is not None:
                raise ConfigError(f"--{name}: the agents that attend say it: leave it out")
    if settings.task is None:
        return None
    for name in ("classes", "ballot", "k", "tau"):
        if getattr(settings, name) is not None:
            raise ConfigError(f"--{name}: the task says it: leave it out, or leave out --task")
    return load_task(settings.task)


def federation_of(settings: PlanSettings, task: Task | None) -> Federation:
    """Whom a plan without a service is made for: agents that are all alike."""
    if settings.agents is None:
        raise ConfigError(
            "--agents: is missing: say how many there will be, or with --certs ask a coordinator"
        )
    kind, classes, k, tau = _votes(settings, task)
    verified = kind.can_be_verified if settings.verified is None else settings.verified
    if verified and settings.collusion:
        raise ConfigError(
            "--collusion: agents know none of a verified round's noise: leave it out, or pass "
            "--no-verified"
        )
    quorum = settings.quorum or math.ceil(QUORUM_FRACTION * settings.agents)
    assumed = min(COLLUSION, quorum - 1) if settings.collusion is None else settings.collusion
    collusion = 0 if verified else assumed
    if not collusion < quorum <= settings.agents:
        raise ConfigError(
            f"--quorum: must be above the collusion bound, {collusion}, and at most the number of "
            f"agents, {settings.agents}, not {quorum}"
        )
    return Federation(
        kind,
        classes,
        (k,) * settings.agents,
        tau,
        quorum,
        collusion,
        settings.participation,
        settings.turnout,
        settings.delta,
        verified,
        settings.against,
    )


def request_of(settings: PlanSettings, task: Task | None, sigma: float | None) -> Plan:
    """What a coordinator is asked about such a plan."""
    if task is None and settings.classes is None:
        raise ConfigError("--task: is missing: name a task, or pass --classes")
    return Plan(
        classes=settings.classes,
        ballot=settings.ballot,
        tau=settings.tau,
        sigma=sigma,
        quorum=settings.quorum,
        collusion=settings.collusion,
        delta=settings.delta,
        verified=settings.verified,
        task=task,
    )


def federation_at(settings: PlanSettings, planned: RoundPlan) -> Federation:
    """Whom a coordinator would ask now."""
    return Federation(
        planned.ballot,
        planned.classes,
        tuple(planned.agents.values()),
        planned.tau or None,
        planned.quorum,
        planned.collusion,
        settings.participation,
        settings.turnout,
        settings.delta,
        planned.verified,
        settings.against,
    )


def _votes(settings: PlanSettings, task: Task | None) -> tuple[BallotKind, int, int, int | None]:
    """Kind of ballots, classes, k (0 without neighbours) and tau."""
    if task is not None:
        vote = task.vote
        k = vote.k if vote.ballot.needs_k else 0
        return vote.ballot, len(task.classes), k, vote.tau or None
    if settings.ballot is None or settings.classes is None:
        raise ConfigError("--task: is missing: name a task, or pass --classes and --ballot")
    kind, classes = settings.ballot, settings.classes
    if classes < kind.min_classes:
        raise ConfigError(
            f"--classes: {kind.name} ballots take {kind.min_classes} at least, not {classes}"
        )
    for name, needed in (("k", kind.needs_k), ("tau", kind.needs_tau)):
        if needed and getattr(settings, name) is None:
            raise ConfigError(f"--{name}: is missing: {kind.name} ballots need it")
        if not needed and getattr(settings, name) is not None:
            raise ConfigError(f"--{name}: {kind.name} ballots have none: leave it out")
    if settings.tau is not None and settings.tau > classes:
        raise ConfigError(f"--tau: must be at most the number of attributes, {classes}")
    return kind, classes, settings.k or 0, settings.tau
