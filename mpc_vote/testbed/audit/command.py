"""`mpc-vote audit`: attacks what the service releases, and compares its claims with what is found.

First every way in which an agent may vote is attacked for its sensitivity, by hostile queries: see
`mpc_vote.testbed.audit.sensitivity`. Then labels are attacked for what they tell: see
`mpc_vote.testbed.audit.labels`. By default their votes are cast in this process, by the service's
own code but for its network. With `--live` they are label requests to a coordinator, a dealer,
parties and agents that run as processes on this machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import signal
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from pydantic import Field
from rich.console import Console
from rich.table import Table

from mpc_vote.app import process
from mpc_vote.app.config import Delta, LogLevel, Method, Positive, Settings
from mpc_vote.app.process import CommandError
from mpc_vote.cli.common import check_writable, console, progress, write_json
from mpc_vote.client import AsyncLabelClient, Plan
from mpc_vote.pki.identity import Role
from mpc_vote.privacy.mechanisms import Level
from mpc_vote.privacy.rounding import round_up
from mpc_vote.testbed.audit import voters
from mpc_vote.testbed.audit.labels import (
    WITH,
    WITHOUT,
    AttackScenario,
    AuditedRounds,
    Finding,
    LabelSource,
    LocalVotes,
    Statistic,
    audit,
    check,
)
from mpc_vote.testbed.audit.sensitivity import SensitivityFinding, VoterSetup, measure
from mpc_vote.testbed.cluster import Cluster
from mpc_vote.voting.ballots import IntArray
from mpc_vote.voting.limits import MAX_CLASSES, MAX_PARTIES, MAX_QUERIES
from mpc_vote.voting.spec import Spec

_READY_SECONDS = 120.0
_LOCAL_VOTES = 400_000
_LIVE_VOTES = 100_000
_MEANING = (
    "With confidence {confidence:.8g} % no lower bound is too high: where one is above its claim, "
    "the claim is wrong. Where it is below, nothing is proved: another attack, or more votes, may "
    "find more. By (epsilon, delta) the claim is the epsilon that is charged, at delta {delta:g}. "
    "By f-DP it is the noise itself, as mu; the epsilons of that column are those of Gaussian "
    "noise with such a mu, so the lower one rests on the true noise being Gaussian-like."
)
_MOVES = (
    "The furthest that one agent, and one record, moved a ballot, over {queries:,} hostile queries "
    "about neighbouring data, in unverified rounds and in verified ones where there are such: "
    "squared length / claim, in votes."
)


class AuditSettings(Settings):
    """Attacks voters and released labels, and shows what is found beside what is claimed.

    The command ends with code 1 if a ballot moves further, or more is lost, than claimed.
    """

    command: ClassVar[str] = "audit"

    level: Level = Field(
        Level.INSTANCE, description="whose privacy is attacked: an agent's, or a record's"
    )
    method: Method = Field(Method.AE, description="ae: one vote per agent; knn: one per neighbour")
    k: int = Field(50, ge=1, le=100_000, description="votes of an agent, for knn")
    sigma: Positive = Field(5.0, description="noise of the votes, in votes")
    claimed_sigma: Positive | None = Field(
        None, description="noise that the claim is made for; default: sigma"
    )
    queries: int = Field(20, ge=1, le=MAX_QUERIES, description="queries of a round")
    agents: int = Field(8, ge=1, le=1_000, description="agents on the roster")
    quorum: int | None = Field(None, ge=1, description="agents that are counted; default: all")
    collusion: int = Field(1, ge=0, description="agents of the quorum whose noise is known")
    parties: int = Field(3, ge=2, le=MAX_PARTIES, description="compute parties")
    classes: int = Field(
        2, ge=2, le=MAX_CLASSES, description="classes; a few more sharpen the attack on an agent"
    )
    votes: int | None = Field(
        None,
        ge=1,
        description=f"votes in each world for each attack; {_LOCAL_VOTES}, if live {_LIVE_VOTES}",
    )
    delta: Delta = Field(1e-3, description="delta of the claim")
    confidence: float = Field(
        0.999, ge=0.5, lt=1, description="probability that all lower bounds are right"
    )
    live: bool = Field(False, description="attack a cluster of processes on this machine")
    json_path: str | None = Field(
        None, alias="json", description="also write the figures as JSON to this file, - for stdout"
    )
    log_level: LogLevel = Field("warning", description="debug, info, warning or error")

    def case(self) -> AuditedRounds:
        """What is audited."""
        voters = self.agents if self.quorum is None else self.quorum
        if not self.collusion < voters <= self.agents:
            raise CommandError(
                f"the quorum ({voters}) must lie above the collusion bound ({self.collusion}) and "
                f"within the roster ({self.agents} agents)"
            )
        return AuditedRounds(
            scenario=AttackScenario.of(
                self.level, self.method, self.k, self.classes, voters, self.collusion
            ),
            agents=self.agents,
            parties=self.parties,
            queries=self.queries,
            sigma=self.sigma,
            claimed_sigma=self.sigma if self.claimed_sigma is None else self.claimed_sigma,
            delta=self.delta,
        )


def command(arguments: Sequence[str]) -> int:
    """`mpc-vote audit`."""
    return process.run(AuditSettings, arguments, run_audit)


async def run_audit(settings: AuditSettings) -> None:
    """The audit from beginning to end."""
    check_writable(settings.json_path)
    case = settings.case()
    votes = settings.votes or (_LIVE_VOTES if settings.live else _LOCAL_VOTES)
    try:
        check(case, votes)
    except ValueError as error:
        raise CommandError(str(error)) from error
    out = console(settings.json_path)
    moves = await _sensitivities(out)
    _show_moves(out, moves)
    out.print(_title(settings, case))
    with progress(out) as bars:
        task = bars.add_task(
            "attack", total=None, detail="processes start" if settings.live else ""
        )

        def tell(cast: int, what: str) -> None:
            bars.update(task, advance=cast, detail=what)

        async with contextlib.AsyncExitStack() as stack:
            source: LabelSource = LocalVotes(case)
            if settings.live:
                source = await stack.enter_async_context(_cluster(settings, case))
            sizes = {1, case.queries}
            bars.update(task, total=sum(2 * (votes // size * size) for size in sizes), detail="")
            findings = await audit(case, source, votes, settings.confidence, tell)
    _show(out, settings, case, findings)
    write_json(settings.json_path, _figures(settings, moves, findings))
    if wrong := [*_wrong_moves(moves), *_wrong_labels(findings)]:
        raise CommandError(f"the claim is violated: {wrong[0]}")


async def _sensitivities(out: Console) -> list[SensitivityFinding]:
    """What hostile queries find about every way in which an agent may vote."""
    styles = voters.styles()
    measured: list[SensitivityFinding] = []
    with progress(out) as bars:
        task = bars.add_task("hostile queries", total=len(styles), detail="")
        for style in styles:
            measured.extend(await asyncio.to_thread(measure, style))
            bars.update(task, advance=1, detail=f"{style.voter} {style.features}")
    return measured


def _wrong_moves(moves: Sequence[SensitivityFinding]) -> list[str]:
    return [
        f"at {each.level.value} level {each.style.voter} {each.style.features} moved a "
        f"{each.style.kind.name} ballot by {_squared(each, each.move.l2_squared)}, "
        f"{_squared(each, each.claimed.l2_squared)} was claimed (squared length in votes)"
        for each in moves
        if each.exceeded
    ]


def _wrong_labels(findings: Sequence[Finding]) -> list[str]:
    violated = [finding for finding in findings if finding.violated]
    violated.sort(key=lambda finding: finding.upper - finding.lower)
    return [
        f"{_size(finding)} lost epsilon {finding.lower:.4g} at least, {round_up(finding.upper)} at "
        f"most was claimed (by {finding.statistic.value})"
        for finding in violated
    ]


class AuditCluster(Cluster):
    """Real roles, and all agents with prescribed ballots in one process."""

    def __init__(self, directory: Path, settings: AuditSettings, case: AuditedRounds) -> None:
        super().__init__(directory, case.parties, {name: {} for name in case.names()})
        self.world = directory / "world"
        self._agent_settings = {
            "level": settings.level.value,
            "method": settings.method.value,
            "k": str(settings.k),
            "voters": str(case.scenario.voters),
            "collusion": str(case.scenario.collusion),
            "classes": str(case.scenario.classes),
            "world": str(self.world),
            "budget-instance": "inf",
            "min-quorum": "1",
            "min-collusion": "0",
            "log-level": "error",
        }

    def start_agents(self) -> None:
        """Starts all agents in one process."""
        settings = {
            "agents": ",".join(self.agents),
            "certs": str(self.certs(Role.AGENT, "")),
            "data-dir": str(self.directory / "data" / "agents"),
            "coordinator": self.coordinator_address,
            "parties": self._parties("agents"),
            **self._agent_settings,
        }
        self.start_command("agents", "audit-agents", settings)


class LiveVotes:
    """Votes by label requests to a running service."""

    def __init__(self, case: AuditedRounds, client: AsyncLabelClient, world: Path) -> None:
        self._case = case
        self._client = client
        self._world = world
        self._plan = Plan(
            classes=case.scenario.classes,
            ballot=case.scenario.kind,
            sigma=case.sigma,
            quorum=case.scenario.voters,
            collusion=case.scenario.collusion,
            delta=case.delta,
            agreement=None,
            verified=False,
        )

    def room(self, queries: int) -> int:
        return MAX_QUERIES // queries

    async def labels(self, world: int, placement: int, targets: IntArray) -> IntArray:
        self._world.write_text(str(world))
        queries = np.stack([np.full(targets.size, placement), targets.reshape(-1)], axis=1)
        result = await self._client.label(queries, self._plan)
        case, voters = self._case, self._case.scenario.voters
        if result.contributors != voters:
            why = f"{result.contributors} agents were counted, not {voters}: {result.absences}"
            raise CommandError(why)
        audited = case.spec(targets.size, case.sigma).mechanism
        if result.spec is None or Spec(b"", result.spec).mechanism != audited:
            raise CommandError("the service ran another plan than the one that is audited")
        return result.labels.reshape(targets.shape)


@contextlib.asynccontextmanager
async def _cluster(settings: AuditSettings, case: AuditedRounds) -> AsyncIterator[LiveVotes]:
    """Votes of a cluster that runs while the context lasts."""
    with tempfile.TemporaryDirectory(prefix="mpc-vote-audit-") as folder:
        cluster = AuditCluster(Path(folder), settings, case)
        await asyncio.to_thread(cluster.issue)
        try:
            cluster.start()
            async with cluster.watched():
                await cluster.ready(_READY_SECONDS)
                async with cluster.client() as client:
                    yield LiveVotes(case, client, cluster.world)
        finally:
            # A second interrupt would leave processes and keys behind.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            cluster.stop()


def _title(settings: AuditSettings, case: AuditedRounds) -> str:
    where = "a cluster of processes" if settings.live else "votes in this process"
    absent = f", {case.agents - case.scenario.voters} stay away" if _is_partial(case) else ""
    return (
        f"[bold]mpc-vote audit[/bold]: {settings.level.value} level, {settings.method.value}, "
        f"{case.scenario.voters} agents of whom {case.scenario.collusion} collude{absent}; "
        f"{where}, "
        f"sigma {case.sigma:g}, claimed for sigma {case.claimed_sigma:g}"
    )


def _is_partial(case: AuditedRounds) -> bool:
    return case.agents > case.scenario.voters


def _verdict(finding: Finding) -> str:
    if finding.violated:
        return "VIOLATED"
    return "not refuted" if finding.claimed < finding.most else "beyond so many rounds"


def _show_moves(out: Console, moves: Sequence[SensitivityFinding]) -> None:
    """A line for each way to vote, with the worst of its rounds at both levels."""
    table = Table("voter", "features", "reach", "ballot", *(level.value for level in Level))
    lines: dict[VoterSetup, dict[Level, SensitivityFinding]] = {}
    for each in sorted(moves, key=_share):
        lines.setdefault(each.style, {})[each.level] = each
    for style in dict.fromkeys(each.style for each in moves):
        table.add_row(
            style.voter,
            style.features or "-",
            "-" if style.reach is None else f"{style.reach:g}",
            style.kind.name,
            *(_moved(lines[style][level]) for level in Level),
        )
    out.print("[bold]mpc-vote audit[/bold]: sensitivity of every way to vote")
    out.print(table)
    asked = {each.style: each.queries for each in moves}
    out.print(_MOVES.format(queries=sum(asked.values())))


def _share(each: SensitivityFinding) -> tuple[bool, float]:
    """How much of the claim was used up."""
    return each.exceeded, each.move.l2_squared / each.claimed.l2_squared


def _moved(each: SensitivityFinding) -> str:
    mark = " EXCEEDED" if each.exceeded else ""
    claimed = _squared(each, each.claimed.l2_squared)
    return f"{_squared(each, each.move.l2_squared)} / {claimed}{mark}"


def _squared(each: SensitivityFinding, units: int) -> str:
    """Squared units, as squared votes."""
    return f"{units / 4**each.fraction_bits:.3g}"


def _show(
    out: Console, settings: AuditSettings, case: AuditedRounds, findings: Sequence[Finding]
) -> None:
    table = Table("attack on", *map(_size, findings))
    rows: list[tuple[str, Callable[[Finding], str]]] = [
        ("test", lambda finding: finding.statistic.value),
        ("judging rounds per world", lambda finding: f"{finding.runs:,}"),
        ("other votes for the target", lambda finding: _placement(case, finding)),
        ("the most telling event", _event),
        ("  its rate with the vote", lambda finding: _rate(finding, WITH)),
        ("  its rate without", lambda finding: _rate(finding, WITHOUT)),
        ("mu, lower bound / claimed", _mu),
        ("epsilon, lower bound", lambda finding: f"{finding.lower:.4g}"),
        ("epsilon, claimed", lambda finding: round_up(finding.upper)),
        ("most that so many rounds show", lambda finding: f"{finding.ceiling:.4g}"),
        ("the claim is", _verdict),
    ]
    for name, value in rows:
        table.add_row(name, *map(value, findings))
    out.print(table)
    out.print(_MEANING.format(delta=settings.delta, confidence=100 * settings.confidence))


def _size(finding: Finding) -> str:
    return "one query" if finding.queries == 1 else f"a round of {finding.queries} queries"


def _placement(case: AuditedRounds, finding: Finding) -> str:
    return f"{finding.event.placement} of {case.scenario.pool}"


def _event(finding: Finding) -> str:
    event = finding.event
    if finding.queries == 1:
        return f"the target {'wins' if event.above else 'loses'}"
    return f"it wins {'at least' if event.above else 'under'} {event.threshold} times"


def _rate(finding: Finding, world: int) -> str:
    return f"{finding.hits[world] / finding.runs:.5f}"


def _mu(finding: Finding) -> str:
    if finding.statistic is not Statistic.TRADE_OFF:
        return "-"
    return f"{finding.found:.4g} / {finding.claimed:.4g}"


def _figures(
    settings: AuditSettings, moves: Sequence[SensitivityFinding], findings: Sequence[Finding]
) -> dict[str, Any]:
    asked = settings.model_dump(mode="json", exclude={"config", "log_level", "json_path"})
    return {
        "settings": asked,
        "violated": any(finding.violated for finding in findings)
        or any(each.exceeded for each in moves),
        "sensitivities": [
            {
                "voter": each.style.voter,
                "features": each.style.features,
                "reach": each.style.reach,
                "ballot": each.style.kind.name,
                "verified": each.verified,
                "level": each.level.value,
                "queries": each.queries,
                "fraction_bits": each.fraction_bits,
                "move": dataclasses.asdict(each.move),
                "claimed": dataclasses.asdict(each.claimed),
                "exceeded": each.exceeded,
            }
            for each in moves
        ],
        "attacks": [
            {
                **dataclasses.asdict(finding),
                "statistic": finding.statistic.value,
                "lower": finding.lower,
                "upper": finding.upper,
                "violated": finding.violated,
            }
            for finding in findings
        ],
    }
