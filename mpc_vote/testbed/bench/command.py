"""`mpc-vote bench`: measures the secure argmax, and writes the result.

The engines run in real processes over mutual TLS, with the real dealer, near and far; every label
is checked. `mpc-vote bench groups` checks the planner's choices, `mpc-vote bench service` measures
the whole service, `mpc-vote bench load` holds it under more requests than it can take, `mpc-vote
bench crypten` runs CrypTen programs with each way to find a maximum.
"""

from __future__ import annotations

import contextlib
import json
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, BeforeValidator, Field
from rich.console import Console

from mpc_vote.app import process
from mpc_vote.app.config import LogLevel, Settings
from mpc_vote.app.process import CommandError
from mpc_vote.argmax.registry import ENGINES, TABLE
from mpc_vote.argmax.table.level import MAX_BITS, MIN_BITS
from mpc_vote.cli.common import (
    check_writable,
    console,
    counted,
    dispatch,
    progress,
    write_json,
)
from mpc_vote.testbed.bench import cases, groups, plots, report
from mpc_vote.testbed.bench.committee import BenchCommittee
from mpc_vote.testbed.bench.measure import BenchResults, MeasurementStep, Tell, measure
from mpc_vote.voting.limits import MAX_CLASSES, MAX_PARTIES

_REPEATS = 7
_QUICK_REPEATS = 2
_MISTAKES_SHOWN = 10
_RESULTS = "results.json"
_PAGE = "results.md"
_GROUPS = "groups.json"


def _engine(value: str) -> str:
    if value not in ENGINES.names():
        raise ValueError(f"{value!r} is no engine; choose among {', '.join(ENGINES.names())}")
    return value


def _listed(numbers: Iterable[float]) -> str:
    return ",".join(f"{number:g}" for number in numbers)


def _rate(value: object) -> object:
    return 0 if value == "none" else value


Engine = Annotated[str, AfterValidator(_engine)]
Parties = Annotated[int, Field(ge=2, le=MAX_PARTIES)]
Queries = Annotated[int, Field(ge=1, le=cases.MAX_ROWS)]
Classes = Annotated[int, Field(ge=2, le=MAX_CLASSES)]
Milliseconds = Annotated[float, Field(ge=0, le=2_000)]
Megabits = Annotated[float, Field(ge=0, allow_inf_nan=False), BeforeValidator(_rate)]


class _MeasureSettings(Settings):
    """What measurements share."""

    rate: list[Megabits] = Field(
        [100.0], min_length=1, description="Mbit/s of each link where rtt > 0; 0 or none: unlimited"
    )
    bits: int = Field(
        cases.BITS,
        ge=MIN_BITS,
        le=MAX_BITS,
        description="ring of the table engine's totals (default: that of a verified round of 200 "
        "agents with sigma 100)",
    )
    out: Path = Field(Path("bench-results"), description="folder for the results")
    json_path: str | None = Field(
        None, alias="json", description="also write the figures as JSON to this file, - for stdout"
    )
    log_level: LogLevel = Field("warning", description="debug, info, warning or error")


class BenchSettings(_MeasureSettings):
    """Measures the secure argmax of a committee on this machine, near and far, engine by engine.

    Lists make a grid. Without parties, queries, classes, rtt and quick: the full suite of sweeps,
    which takes a quarter of an hour or more. See also the --help of mpc-vote bench groups, mpc-vote
    bench service, mpc-vote bench load and mpc-vote bench crypten.
    """

    command: ClassVar[str] = "bench"

    engine: list[Engine] = Field(
        ENGINES.names(),
        min_length=1,
        description="table, and CrypTen's own methods",
    )
    parties: list[Parties] | None = Field(
        None, min_length=1, description=f"compute parties (default: {cases.PARTIES})"
    )
    queries: list[Queries] | None = Field(
        None, min_length=1, description=f"rows to label (default: {cases.QUERIES})"
    )
    classes: list[Classes] | None = Field(
        None, min_length=1, description=f"classes (default: {cases.CLASSES})"
    )
    rtt: list[Milliseconds] | None = Field(
        None,
        min_length=1,
        description=f"round trips between parties in ms (default: {_listed(cases.NEAR_AND_FAR)}; "
        f"if quick {_listed(cases.QUICK_NEAR_AND_FAR)})",
    )
    repeat: int | None = Field(
        None,
        ge=1,
        description=f"repeats that count (default: {_REPEATS}; if quick {_QUICK_REPEATS})",
    )
    quick: bool = Field(False, description="a small grid with few repeats: about a minute")

    @property
    def repeats(self) -> int:
        """Repeats that count."""
        return self.repeat or (_QUICK_REPEATS if self.quick else _REPEATS)

    @property
    def full(self) -> bool:
        """Whether the suite is wanted."""
        return not (self.quick or self.parties or self.queries or self.classes or self.rtt)

    def cases(self) -> list[cases.BenchCase]:
        """What is measured."""
        engines = [ENGINES.by_name(name) for name in dict.fromkeys(self.engine)]
        if self.full:
            return cases.suite(engines, self.rate, self.bits)
        near_and_far = cases.QUICK_NEAR_AND_FAR if self.quick else cases.NEAR_AND_FAR
        return cases.grid(
            engines,
            dict.fromkeys(self.parties or [cases.PARTIES]),
            dict.fromkeys(self.queries or [cases.QUERIES]),
            dict.fromkeys(self.classes or [cases.CLASSES]),
            cases.conditions(self.rtt or near_and_far, self.rate),
            self.bits,
        )


class GroupsSettings(_MeasureSettings):
    """Measures the planner's choice of groups against others, for every shape of the grid."""

    command: ClassVar[str] = "bench groups"

    parties: list[Parties] = Field([3], min_length=1, description="compute parties")
    queries: list[Queries] = Field([100, 1_000], min_length=1, description="rows to label")
    classes: list[Classes] = Field([10, 30, 100], min_length=1, description="classes")
    rtt: list[Milliseconds] = Field(
        [0.0, 10.0, 40.0], min_length=1, description="round trips between parties in ms"
    )
    repeat: int = Field(5, ge=1, description="repeats that count")

    def cases(self) -> list[cases.BenchCase]:
        """The shapes."""
        return cases.grid(
            [TABLE],
            dict.fromkeys(self.parties),
            dict.fromkeys(self.queries),
            dict.fromkeys(self.classes),
            cases.conditions(self.rtt, self.rate),
            self.bits,
        )


def command(arguments: Sequence[str]) -> int:
    """`mpc-vote bench`."""
    given = "mpc-vote bench " + shlex.join(arguments)

    def alone(rest: Sequence[str]) -> int:
        return process.run(BenchSettings, rest, lambda settings: run_bench(settings, given))

    def choices(rest: Sequence[str]) -> int:
        return process.run(GroupsSettings, rest, lambda settings: run_groups(settings, given))

    others = {"groups": choices, "service": _service, "load": _load, "crypten": _crypten}
    return dispatch("bench", arguments, alone, others)


def _service(arguments: Sequence[str]) -> int:
    from mpc_vote.testbed.bench import service

    return service.command(arguments)


def _load(arguments: Sequence[str]) -> int:
    from mpc_vote.testbed.bench import load

    return load.command(arguments)


def _crypten(arguments: Sequence[str]) -> int:
    from mpc_vote.testbed.bench import crypten

    return crypten.command(arguments)


async def run_bench(settings: BenchSettings, given: str) -> None:
    """Measures, shows, writes."""
    out = console(settings.json_path)
    check_writable(settings.json_path)
    _check_folder(settings.out, _RESULTS)
    wanted = settings.cases()
    if not plots.available():
        out.print(plots.MISSING)
    out.print(
        f"[bold]mpc-vote bench[/bold]: {counted(len(wanted), 'case')}, "
        f"{counted(settings.repeats, 'repeat')} after a first turn; all processes start"
    )
    async with BenchCommittee.running(max(case.parties for case in wanted)) as committee:
        with _progress(out, len(wanted), settings.repeats) as tell:
            results = await measure(committee, wanted, settings.repeats, tell)
    if not results.rows:
        raise CommandError("nothing was measured: " + "; ".join(results.notes))
    if settings.full:
        results.notes.append(cases.SUITE_NOTE)
    figures = _show(results, given.strip(), settings.out, out)
    write_json(settings.json_path, figures)
    _refuse(results.mistakes)


async def run_groups(settings: GroupsSettings, given: str) -> None:
    """Measures the planner's choices, shows, writes."""
    out = console(settings.json_path)
    check_writable(settings.json_path)
    _check_folder(settings.out, _GROUPS)
    wanted = settings.cases()
    total = sum(len(groups.alternatives(case.classes)) for case in wanted)
    out.print(
        f"[bold]mpc-vote bench groups[/bold]: {counted(len(wanted), 'choice')} of the planner; all "
        "processes start"
    )
    async with BenchCommittee.running(max(case.parties for case in wanted)) as committee:
        with _progress(out, total, settings.repeat) as tell:
            checked = await groups.check(committee, wanted, settings.repeat, tell)
    out.print(groups.table(checked.choices))
    for note in checked.notes:
        out.print(note)
    rows = [row for choice in checked.choices for row in choice.rows]
    figures = report.document(rows, checked.notes, given)
    figures["choices"] = [choice.summary() for choice in checked.choices]
    _write_json(settings.out / _GROUPS, figures)
    out.print(f"written to {settings.out}: {_GROUPS}", soft_wrap=True)
    write_json(settings.json_path, figures)
    _refuse(checked.mistakes)


def _check_folder(folder: Path, file: str) -> None:
    """Refuses a folder that can't be written to, before anything is measured for it."""
    folder.mkdir(parents=True, exist_ok=True)
    check_writable(folder / file)


@contextlib.contextmanager
def _progress(out: Console, cases_: int, repeats: int) -> Iterator[Tell]:
    """Shows each step: a live bar in a terminal, else a line for each turn."""
    total = cases_ * (repeats + 1)
    if not out.is_terminal:
        yield _lines(out, total, repeats)
        return
    with progress(out) as bars:
        task = bars.add_task("", total=total, detail="")

        def tell(step: MeasurementStep) -> None:
            case = step.case
            shape = f"{case.parties} parties, {case.queries} x {case.classes}"
            bars.update(
                task,
                advance=1,
                description=str(case.condition),
                detail=f"{_turn(step, repeats)}: {case.method}, {shape}",
            )

        yield tell
        bars.update(task, completed=total, description="measured", detail="")


def _lines(out: Console, total: int, repeats: int) -> Tell:
    done = 0
    last: tuple[cases.NetworkCondition, int] | None = None

    def tell(step: MeasurementStep) -> None:
        nonlocal done, last
        turn = (step.case.condition, step.repeat)
        if turn != last:
            line = f"{step.case.condition}: {_turn(step, repeats)}, {done} of {total} runs done"
            out.print(line, soft_wrap=True)
        done += 1
        last = turn

    return tell


def _turn(step: MeasurementStep, repeats: int) -> str:
    return f"repeat {step.repeat} of {repeats}" if step.repeat else "warming up"


def _show(results: BenchResults, given: str, folder: Path, out: Console) -> dict[str, Any]:
    """Shows and writes all figures, and returns them."""
    for table in report.tables(results.rows):
        out.print(table)
    if not results.mistakes:
        out.print("every label of every repeat is right")
    for note in results.notes:
        out.print(note)
    figures = report.document(results.rows, results.notes, given)
    _write_json(folder / _RESULTS, figures)
    (folder / _PAGE).write_text(report.markdown(figures, results.rows))
    written = f"{_RESULTS}, {_PAGE}"
    if plots.available():
        written += f" and {len(plots.draw(results.rows, folder / 'plots'))} plots"
    out.print(f"written to {folder}: {written}", soft_wrap=True)
    return figures


def _write_json(path: Path, figures: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(figures, indent=2) + "\n")


def _refuse(mistakes: Sequence[str]) -> None:
    if mistakes:
        raise CommandError("; ".join(mistakes[:_MISTAKES_SHOWN]))
