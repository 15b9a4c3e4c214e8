"""`mpc-vote chaos`: faults at every step of a round, on real processes, and what must hold then."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any, ClassVar

from pydantic import Field
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from mpc_vote.app import process
from mpc_vote.app.config import LogLevel, Settings
from mpc_vote.app.process import CommandError
from mpc_vote.cli.common import check_writable, console, counted, write_json
from mpc_vote.testbed.chaos.federation import Federation
from mpc_vote.testbed.chaos.run import ScheduleReport, Simulation, outcomes_by_kind, tails
from mpc_vote.testbed.chaos.schedules import Schedule, in_turn

_TELL_EVERY = 25


class ChaosSettings(Settings):
    """Kills, pauses, restarts, partitions, delays, repeats and reorders at every step of a round.

    A round without faults gives the steps: the messages between any two roles. Each schedule is one
    fault at one step; after it the invariants are checked from what is on disk, and a round without
    faults must complete. What fails is named, and runs again with --schedule.
    """

    command: ClassVar[str] = "chaos"

    schedules: int = Field(500, ge=1, description="schedules to run; those whose step came count")
    seed: int = Field(1, ge=0, description="seed of their order and of how long faults last")
    schedule: str | None = Field(None, description="run this one only, by its name")
    json_path: str | None = Field(
        None, alias="json", description="also write the figures as JSON to this file, - for stdout"
    )
    log_level: LogLevel = Field("error", description="debug, info, warning or error")


def command(arguments: Sequence[str]) -> int:
    """`mpc-vote chaos`."""
    return process.run(ChaosSettings, arguments, run_chaos)


async def run_chaos(settings: ChaosSettings) -> None:
    """All schedules that were asked for."""
    check_writable(settings.json_path)
    out = console(settings.json_path)
    run = _Progress(settings, out)
    while not run.done:
        # A service that did not recover is no ground for the next schedule.
        with tempfile.TemporaryDirectory(prefix="mpc-vote-chaos-") as folder:
            await run.go_on(Path(folder))
    out.print(run.table())
    out.print(f"{run.summary()}; {run.recovery()}")
    write_json(settings.json_path, run.figures())
    if run.violated:
        raise CommandError(f"{counted(len(run.violated), 'schedule')} violated an invariant")


class _Progress:
    """What has been run, and what is left."""

    def __init__(self, settings: ChaosSettings, out: Console) -> None:
        self._settings = settings
        self._out = out
        self._left: list[Schedule] | None = None
        self._total = 0
        self._sizes: list[dict[str, dict[str, float]]] = []
        self.reports: list[ScheduleReport] = []

    @property
    def reached(self) -> list[ScheduleReport]:
        return [report for report in self.reports if report.reached]

    @property
    def violated(self) -> list[ScheduleReport]:
        return [report for report in self.reports if report.violations]

    @property
    def done(self) -> bool:
        enough = len(self.reached) >= self._settings.schedules
        return enough or (self._left is not None and not self._left)

    async def go_on(self, folder: Path) -> None:
        """Runs what is left on a new federation, while that recovers."""
        federation = Federation.create(folder)
        async with federation.running():
            simulation = Simulation(federation)
            everything = await simulation.schedules(self._settings.seed)
            if self._left is None:
                self._total = len(everything)
                self._left = in_turn(everything, self._settings.seed)[::-1]
                if self._settings.schedule is not None:
                    self._left = [Schedule.parse(self._settings.schedule)]
                self._out.print(f"{self._total} schedules: every fault at every step of a round")
            recovered = True
            while recovered and not self.done:
                report = await simulation.run(self._left.pop())
                self.reports.append(report)
                recovered = report.recovered
                self._tell(report, federation)
            self._sizes.append(simulation.sizes())

    def _tell(self, report: ScheduleReport, federation: Federation) -> None:
        if report.violations:
            self._out.print(f"[bold red]violated[/bold red] by {escape(str(report.schedule))}")
            for violation in report.violations:
                self._out.print(f"  {escape(violation)}")
            self._out.print(escape("\n".join(report.log)))
            for name, tail in tails(federation):
                self._out.print(f"[bold]end of the log of {name}[/bold]\n{escape(tail)}")
        if len(self.reports) % _TELL_EVERY == 0 or self._settings.schedule is not None:
            self._out.print(self.summary())

    def summary(self) -> str:
        """How far it is, in a line."""
        missed = len(self.reports) - len(self.reached)
        return (
            f"{len(self.reached)} schedules reached their step, {missed} did not; "
            f"{len(self.violated)} violated an invariant"
        )

    def recovery(self) -> str:
        """How soon the service labelled again."""
        seconds = [report.recovery_seconds for report in self.reached] or [0.0]
        return f"labels again after {median(seconds):.1f} s, at most {max(seconds):.1f} s"

    def table(self) -> Table:
        """By fault and role: schedules, violations, how requests ended."""
        table = Table("fault", "process", "schedules", "violations", "how the request ended")
        violated = Counter(_kind(report) for report in self.violated if report.reached)
        for kind, outcomes in sorted(outcomes_by_kind(self.reports).items()):
            ended = ", ".join(f"{name} {count}" for name, count in outcomes.most_common())
            table.add_row(*kind, str(outcomes.total()), str(violated[kind]), ended)
        return table

    def figures(self) -> dict[str, Any]:
        """Everything as JSON."""
        return {
            "seed": self._settings.seed,
            "schedules": self._total,
            "reached": len(self.reached),
            "not_reached": len(self.reports) - len(self.reached),
            "violated": len(self.violated),
            "memory_mib": self._sizes,
            "outcomes": [
                {"fault": fault, "role": role, "outcomes": dict(outcomes)}
                for (fault, role), outcomes in sorted(outcomes_by_kind(self.reports).items())
            ],
            "reports": [report.figures() for report in self.reports],
        }


def _kind(report: ScheduleReport) -> tuple[str, str]:
    return report.schedule.kind, report.schedule.role
