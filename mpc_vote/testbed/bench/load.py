"""`mpc-vote bench load`: more requests than the service can take, for minutes, and what fails.

Everything is real, as in `mpc-vote bench service`: a coordinator, a dealer and parties as
processes, agents with certificates, ledgers and connections of their own, many to a process. Each
client has a certificate of its own too, asks again as soon as it has its labels, and waits as long
as a busy service tells it to. They are connected, and all ask at once, after a first request that
is not counted.

What must hold, or the command fails: every request ends with labels or with a refusal that says
when to retry; no more rounds are open than the service allows; no client goes without labels while
others are served; no process takes more memory in the last quarter than in the first, but for a
share.

Seconds are the clients'. Memory is what a process shares with no other (USS), so that it depends on
nobody else. How many rounds were open is read from the coordinator's own record of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import psutil
from pydantic import Field
from rich.console import Console
from rich.table import Table

from mpc_vote import database
from mpc_vote.app import process
from mpc_vote.app.config import LogLevel, Settings
from mpc_vote.app.process import CommandError
from mpc_vote.cli.common import check_writable, console, write_json
from mpc_vote.client import AsyncLabelClient, LabelResult, Plan, pause
from mpc_vote.errors import ErrorKind, VoteError
from mpc_vote.pki.identity import Identity, Role
from mpc_vote.proto.mpcvote.v1 import label_pb2
from mpc_vote.testbed.bench.cluster import BenchCluster, EmulatedNetwork
from mpc_vote.testbed.bench.service import Agents, Queries, Report, running
from mpc_vote.voting.ballots import KNN_COUNT
from mpc_vote.voting.limits import MAX_CLASSES, MAX_PARTIES, MAX_QUERIES, MAX_ROUNDS_AT_ONCE

_ANSWER_SECONDS = 300
_TELL_SECONDS = 10.0
_SAMPLES = 200
_SAMPLE_SECONDS = (0.1, 2.0)
_AFTER_FAILURE_SECONDS = 1.0
_TEXT_WIDTH = 120
_PERCENTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}
_CLIENTS = "clients"


class LoadSettings(Settings):
    """Overloads the service; fails if the overload does more than have requests refused.

    Refusals that say when to retry are expected; see the report for the rest.
    """

    command: ClassVar[str] = "bench load"

    clients: int = Field(50, ge=1, le=1_000, description="clients that ask without end")
    agents: Agents = Field(200, description="agents that answer")
    minutes: float = Field(10.0, gt=0, le=24 * 60, description="how long they ask")
    queries: int = Field(100, ge=1, le=MAX_QUERIES, description="queries in a request")
    classes: int = Field(10, ge=2, le=MAX_CLASSES, description="number of classes")
    features: int = Field(784, ge=1, le=100_000, description="numbers in a query, of 4 bytes each")
    parties: int = Field(3, ge=2, le=MAX_PARTIES, description="compute parties")
    k: int = Field(50, ge=1, le=100_000, description="votes that an agent has on a query")
    sigma: float = Field(25.0, gt=0, description="noise in votes")
    places: int = Field(
        4, ge=1, le=MAX_ROUNDS_AT_ONCE, description="rounds that the service has open at a time"
    )
    growth: float = Field(
        0.2, ge=0, description="share by which a process may grow from first to last quarter"
    )
    json_path: str | None = Field(
        None, alias="json", description="also write the figures as JSON to this file, - for stdout"
    )
    out: Path | None = Field(None, description="also write the tables as text to this file")
    log_level: LogLevel = Field("warning", description="debug, info, warning or error")


@dataclass(frozen=True)
class LabelledRequest:
    """A request that ended with labels."""

    client: str
    # Since the start.
    at: float
    # Of the request that was taken, and of all of them from the first.
    seconds: float
    whole: float
    refusals: int
    right: float
    absent: int


@dataclass
class LoadRecord:
    """All that happens."""

    done: list[LabelledRequest] = field(default_factory=list)
    refusal_seconds: list[float] = field(default_factory=list)
    refusals: Counter[str] = field(default_factory=Counter)
    hints: list[float] = field(default_factory=list)
    failures: Counter[str] = field(default_factory=Counter)
    # What the first failure of each kind said.
    said: dict[str, str] = field(default_factory=dict)
    unhinted: int = 0
    longest_line: int = 0
    # By process, at the times of the samples.
    times: list[float] = field(default_factory=list)
    memory: dict[str, list[int]] = field(default_factory=dict)
    open_rounds: list[int] = field(default_factory=list)


def command(arguments: Sequence[str]) -> int:
    """`mpc-vote bench load`."""
    return process.run(LoadSettings, arguments, run_load)


async def run_load(settings: LoadSettings) -> None:
    """Runs the load, shows and writes the result, and judges."""
    check_writable(settings.json_path)
    check_writable(settings.out)
    out = console(settings.json_path)
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="mpc-vote-load-") as folder:
        cluster = BenchCluster(
            Path(folder),
            settings.parties,
            settings.agents,
            {
                "classes": str(settings.classes),
                "query-features": str(settings.features),
                "k": str(settings.k),
                "log-level": "warning",
            },
            EmulatedNetwork(),
        )
        cluster.coordinator_settings = {
            **cluster.coordinator_settings,
            "max-open-rounds": str(settings.places),
            "log-level": "warning",
        }
        out.print(f"{settings.clients} clients, {settings.agents} agents: all processes start")
        async with running(cluster) as client:
            report = await _LoadRun(settings, cluster, out).run(client)
    tables = _tables(report)
    out.print(_title(settings), *tables, sep="\n")
    if settings.out is not None:
        with settings.out.open("w") as file:
            Console(file=file, width=_TEXT_WIDTH).print(_title(settings), *tables, sep="\n")
    asked = settings.model_dump(mode="json", exclude={"config", "log_level", "json_path", "out"})
    machine = {"processors": os.cpu_count(), "load_before": load}
    write_json(settings.json_path, {"settings": asked, "machine": machine, **report})
    if report["faults"]:
        raise CommandError("; ".join(report["faults"]))
    out.print("passed: nothing failed but requests that were told when to retry")


class _LoadRun:
    """One run."""

    def __init__(self, settings: LoadSettings, cluster: BenchCluster, out: Console) -> None:
        self._settings = settings
        self._cluster = cluster
        self._out = out
        self._tape = LoadRecord()
        self._seconds = 60 * settings.minutes
        self._labels = np.arange(settings.queries) % settings.classes
        self._queries: Queries = np.zeros((settings.queries, settings.features), dtype=np.float32)
        # What the agents vote for; see `mpc-vote bench-agents`.
        self._queries[:, 0] = self._labels
        self._plan = Plan(
            classes=settings.classes,
            ballot=KNN_COUNT,
            sigma=settings.sigma,
            answer_seconds=_ANSWER_SECONDS,
            agreement=None,
        )
        self._data = cluster.directory / "data"
        self._started = 0.0

    async def run(self, first: AsyncLabelClient) -> Report:
        """The load, from the first request to the report."""
        names = [f"client-{number}" for number in range(self._settings.clients)]
        await asyncio.to_thread(self._issue, names)
        await first.label(self._queries, self._plan)
        disk, used = _sizes(self._data), self._processor_seconds()
        async with contextlib.AsyncExitStack() as stack:
            clients = [
                await stack.enter_async_context(
                    AsyncLabelClient(
                        self._cluster.coordinator_address, self._cluster.certs(Role.CLIENT, name)
                    )
                )
                for name in names
            ]
            await asyncio.gather(*(client.is_ready() for client in clients))
            self._started = time.monotonic()
            watching = [asyncio.create_task(work()) for work in (self._sample, self._tell)]
            try:
                await asyncio.gather(*map(self._ask_on, names, clients))
            finally:
                for watch in watching:
                    watch.cancel()
                ended = await asyncio.gather(*watching, return_exceptions=True)
        for error in ended:
            if not isinstance(error, asyncio.CancelledError | None):
                raise error
        used = {kind: total - used[kind] for kind, total in self._processor_seconds().items()}
        grown = {kind: size - disk.get(kind, 0) for kind, size in _sizes(self._data).items()}
        return self._report(names, used, grown)

    def _issue(self, names: Iterable[str]) -> None:
        authority = self._cluster.authority
        for name in names:
            authority.issue(Identity(Role.CLIENT, name), self._cluster.certs(Role.CLIENT, name))

    def _now(self) -> float:
        return time.monotonic() - self._started

    async def _ask_on(self, name: str, client: AsyncLabelClient) -> None:
        """One client's life: the next request when it has its labels, until the time is over."""
        tape, asked, refusals = self._tape, 0.0, 0
        while (begun := self._now()) < self._seconds:
            wait: float | None = 0.0
            try:
                result = await client.label(self._queries, self._plan)
            except VoteError as error:
                wait = pause(error)
                if error.kind is not ErrorKind.SERVICE_BUSY:
                    tape.failures[error.name] += 1
                    tape.said.setdefault(error.name, error.message)
                    wait = _AFTER_FAILURE_SECONDS
                elif wait is None:
                    tape.unhinted += 1
                    wait = _AFTER_FAILURE_SECONDS
                else:
                    refusals += 1
                    tape.refusals[error.name] += 1
                    tape.refusal_seconds.append(self._now() - begun)
                    tape.hints.append(error.retry_after or 0.0)
                    before = int(error.values.get("waiting_before", 0))
                    tape.longest_line = max(tape.longest_line, before + 1)
                await asyncio.sleep(min(wait, max(0.0, self._seconds - self._now())))
                continue
            tape.done.append(self._done(name, begun, asked, refusals, result))
            asked, refusals = self._now(), 0

    def _done(
        self, name: str, begun: float, asked: float, refusals: int, result: LabelResult
    ) -> LabelledRequest:
        now = self._now()
        right = float((result.labels == self._labels).mean())
        return LabelledRequest(
            name, now, now - begun, now - asked, refusals, right, len(result.absences)
        )

    async def _sample(self) -> None:
        """Memory of every process, and how many rounds are open."""
        tape = self._tape
        low, high = _SAMPLE_SECONDS
        step = min(high, max(low, self._seconds / _SAMPLES))
        while True:
            sizes, count = await asyncio.to_thread(lambda: (self._memory(), self._open_rounds()))
            tape.times.append(self._now())
            tape.open_rounds.append(count)
            for label, size in sizes.items():
                tape.memory.setdefault(label, []).append(size)
            await asyncio.sleep(step)

    def _memory(self) -> dict[str, int]:
        pids = {label: child.process.pid for label, child in self._cluster.children.items()}
        pids[_CLIENTS] = os.getpid()
        return {label: psutil.Process(pid).memory_full_info().uss for label, pid in pids.items()}

    def _open_rounds(self) -> int:
        (count,) = self._rows("SELECT count(*) FROM rounds WHERE state = ?", _OPEN)[0]
        return int(count)

    def _rows(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        path = self._data / "coordinator" / "coordinator.db"
        with contextlib.closing(database.read_only(path)) as opened:
            return opened.execute(query, values).fetchall()

    def _processor_seconds(self) -> dict[str, float]:
        own = psutil.Process().cpu_times()
        return {**self._cluster.processor_seconds(), _CLIENTS: own.user + own.system}

    async def _tell(self) -> None:
        while True:
            await asyncio.sleep(_TELL_SECONDS)
            tape = self._tape
            seconds = [one.seconds for one in tape.done]
            kinds = Counter[str]()
            for label, sizes in tape.memory.items():
                kinds[label.partition("-")[0]] += sizes[-1] >> 20
            self._out.print(
                f"{self._now():5.0f} s: {len(tape.done)} labelled in {_shown(seconds)} (median), "
                f"{tape.refusals.total()} told to wait, {tape.failures.total()} failed, "
                f"{(tape.open_rounds or [0])[-1]} rounds open; MiB: "
                + ", ".join(f"{kind} {size}" for kind, size in kinds.items()),
                soft_wrap=True,
            )

    def _report(
        self, names: Sequence[str], used: Mapping[str, float], grown: Mapping[str, int]
    ) -> Report:
        tape, seconds, settings = self._tape, self._seconds, self._settings
        if not tape.done:
            raise CommandError("no request ended with labels: " + "; ".join(tape.said.values()))
        quarters = [[d for d in tape.done if d.at <= seconds / 4]]
        quarters.append([d for d in tape.done if 3 * seconds / 4 < d.at <= seconds])
        each = Counter(one.client for one in tape.done)
        report: Report = {
            "completed": len(tape.done),
            "labels_per_second": settings.queries
            * sum(d.at <= seconds for d in tape.done)
            / seconds,
            "refused": dict(tape.refusals),
            "refused_without_hint": tape.unhinted,
            "failed": dict(tape.failures),
            "failed_saying": tape.said,
            "right": float(np.mean([one.right for one in tape.done])),
            "absences": sum(one.absent for one in tape.done),
            "seconds": {
                "accepted request": _percentiles([one.seconds for one in tape.done]),
                "refusal": _percentiles(tape.refusal_seconds),
                "first request to labels": _percentiles([one.whole for one in tape.done]),
                "hint": _percentiles(tape.hints),
            },
            "refusals_per_request": _percentiles([one.refusals for one in tape.done]),
            "quarters": {
                name: {"completed": len(d), "seconds": _percentiles([one.seconds for one in d])}
                for name, d in zip(("first", "last"), quarters, strict=True)
            },
            "completed_per_client": {
                "least": min(each[name] for name in names),
                "most": max(each.values()),
            },
            "open_rounds": {
                "allowed": settings.places,
                "most": self._most_open(),
                "mean": float(np.mean(tape.open_rounds)),
            },
            "longest_line": tape.longest_line,
            "memory": {label: self._growth(sizes) for label, sizes in tape.memory.items()},
            "processor_seconds": dict(used),
            "disk_bytes_per_request": {k: size / len(tape.done) for k, size in grown.items()},
            "peak_memory_bytes": self._cluster.peak_memory_bytes,
        }
        return {**report, "faults": faults(report, settings)}

    def _most_open(self) -> int:
        """The most rounds that were ever open together, by when each began and how long it took."""
        changes: list[tuple[float, int]] = []
        for opened_ms, completed in self._rows(
            "SELECT opened_ms, completed FROM rounds WHERE completed IS NOT NULL"
        ):
            taken = label_pb2.RoundCompleted.FromString(completed).cost.seconds
            changes += [(opened_ms / 1000, 1), (opened_ms / 1000 + taken, -1)]
        most = int(np.cumsum([change for _, change in sorted(changes)]).max(initial=0))
        return max(most, *self._tape.open_rounds)

    def _growth(self, sizes: Sequence[int]) -> Report:
        times, used = np.array(self._tape.times), np.array(sizes[: len(self._tape.times)])
        early, late = used[times <= self._seconds / 4], used[times > 3 * self._seconds / 4]
        # On a machine that is too busy to measure then, what is nearest.
        first = float(np.median(early if early.size else used[:1]))
        last = float(np.median(late if late.size else used[-1:]))
        slope = float(np.polyfit(times / 60, used, 1)[0]) if len(times) > 1 else 0.0
        return {"first": first, "last": last, "most": int(used.max()), "slope_per_minute": slope}


_OPEN = label_pb2.ROUND_STATE_OPEN


def faults(report: Report, settings: LoadSettings) -> list[str]:
    """What should not have happened."""
    faults = [
        f"{count} requests failed with {kind}, the first saying: {report['failed_saying'][kind]}"
        for kind, count in report["failed"].items()
    ]
    if report["refused_without_hint"]:
        faults.append(f"{report['refused_without_hint']} refusals did not say when to retry")
    if report["open_rounds"]["most"] > settings.places:
        faults.append(f"{report['open_rounds']['most']} rounds were open, {settings.places} may be")
    served = report["completed_per_client"]
    if served["least"] == 0 and report["completed"] >= 2 * settings.clients:
        faults.append(f"a client got no labels while another got them {served['most']} times")
    for label, memory in report["memory"].items():
        # The clients' own grows with what is written down here.
        if label != _CLIENTS and memory["last"] > (1 + settings.growth) * memory["first"]:
            faults.append(
                f"{label} took {memory['first'] / 2**20:.0f} MiB in the first quarter and "
                f"{memory['last'] / 2**20:.0f} in the last"
            )
    return faults


def _sizes(folder: Path) -> dict[str, int]:
    """Bytes on disk by kind of role."""
    sizes = Counter[str]()
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            if path.is_file():
                sizes[path.relative_to(folder).parts[0].partition("-")[0]] += path.stat().st_size
    return sizes


def _percentiles(values: Sequence[float]) -> Report:
    given: npt.NDArray[np.float64] = np.array(values, dtype=np.float64)
    return {
        name: float(np.quantile(given, part)) if given.size else None
        for name, part in _PERCENTILES.items()
    }


def _shown(seconds: Sequence[float]) -> str:
    return f"{np.median(seconds):.1f} s" if seconds else "-"


def _tables(report: Report) -> list[Table]:
    """The figures for people."""
    return [_requests_table(report), _seconds_table(report), _memory_table(report)]


def _requests_table(report: Report) -> Table:
    table = Table(show_header=False)
    rounds, served = report["open_rounds"], report["completed_per_client"]
    first, last = report["quarters"].values()
    rows = {
        "requests labelled": f"{report['completed']}, {report['labels_per_second']:.0f} labels/s",
        "  first and last quarter": f"{first['completed']} and {last['completed']}",
        "  each client, least and most": f"{served['least']} and {served['most']}",
        "  labels as voted for": f"{100 * report['right']:.1f} %",
        "  agents absent": f"{report['absences']} times",
        "told to wait": _counts(report["refused"]),
        "  without a time to retry after": str(report["refused_without_hint"]),
        "failed otherwise": _counts(report["failed"]),
        "rounds open": f"{rounds['mean']:.1f} on average, {rounds['most']} at most, "
        f"{rounds['allowed']} allowed",
        "clients in line": f"{report['longest_line']} at most",
        "processor seconds": ", ".join(
            f"{kind} {seconds:.0f}" for kind, seconds in report["processor_seconds"].items()
        ),
        "disk per request": ", ".join(
            f"{kind} {size / 1024:.1f} KiB"
            for kind, size in report["disk_bytes_per_request"].items()
        ),
    }
    for name, value in rows.items():
        table.add_row(name, value)
    return table


def _seconds_table(report: Report) -> Table:
    table = Table("seconds")
    for name in _PERCENTILES:
        table.add_column(name, justify="right")
    quarters = {
        f"  of these, {name} quarter": quarter["seconds"]
        for name, quarter in report["quarters"].items()
    }
    taken, *others = report["seconds"].items()
    for name, values in [taken, *quarters.items(), *others]:
        table.add_row(name, *(_number(value, ".2f") for value in values.values()))
    table.add_section()
    again = report["refusals_per_request"].values()
    table.add_row("refusals before labels", *(_number(value, ".0f") for value in again))
    return table


def _memory_table(report: Report) -> Table:
    table = Table("memory in MiB")
    for name in ("first quarter", "last quarter", "most", "per minute"):
        table.add_column(name, justify="right")
    for label, memory in report["memory"].items():
        *sizes, slope = (value / 2**20 for value in memory.values())
        table.add_row(label, *(f"{size:,.0f}" for size in sizes), f"{slope:+.2f}")
    return table


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in counts.items()) or "0"


def _number(value: float | None, style: str) -> str:
    return "-" if value is None else format(value, style)


def _title(settings: LoadSettings) -> str:
    return (
        f"{settings.clients} clients, {settings.agents} agents, {settings.minutes:g} min, "
        f"{settings.queries} queries of {settings.classes} classes, {settings.parties} parties"
    )
