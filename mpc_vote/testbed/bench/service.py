"""`mpc-vote bench service`: whole label requests, from a client's queries to its labels.

Everything is real: a coordinator, a dealer and parties as processes, mutual TLS, agents that each
have a certificate, a ledger and connections of their own, noise, secret shares. Only the agents'
votes are made up, and many agents live in one process, so what they would do at the same time on
machines of their own they do here one after the other.

Seconds are the client's, from the call to the last label. The parts are those of the request with
the median time, and add up to it:

- transfer: queries to the coordinator and labels to the client, with its records of both;
- opening: the parties open the round;
- preparing: agents check the round and their budgets, and fetch the queries;
- preprocessing: agents are prepared, and wait until the parties have theirs, dealt and checked for
  the round or taken from their stocks; then the coordinator's ledger is charged, which takes
  milliseconds;
- intake: agents charge their ledgers, vote, draw noise, and send shares to every party;
- expanding: the party that takes longest waits for shares of preprocessing that are not expanded or
  collected yet;
- summing: it adds up all agents' shares;
- argmax: the rest of its work, from its session's start to its last label share;
- reveal: the parties' marks on disk, label shares on their way, what the round cost.

A first request is not counted: agents connect to the parties in it. Processor seconds are of all
processes of a kind together, per request.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import math
import os
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
import numpy.typing as npt
from pydantic import Field
from rich.console import Console
from rich.progress import Progress, TaskID
from rich.table import Table

from mpc_vote.app import process
from mpc_vote.app.config import Ballot, LogLevel, Settings
from mpc_vote.app.process import CommandError
from mpc_vote.cli.common import check_writable, console, counted, progress, write_json
from mpc_vote.client import AsyncLabelClient, LabelResult, Plan
from mpc_vote.testbed.bench.cluster import BenchCluster, EmulatedNetwork
from mpc_vote.voting.ballots import ONE_HOT
from mpc_vote.voting.limits import MAX_CLASSES, MAX_PARTIES, MAX_QUERIES

_START_SECONDS = 120.0
_START_SECONDS_PER_AGENT = 1.0
_ANSWER_SECONDS = 600
_REQUEST_SECONDS = 900.0
_TEXT_WIDTH = 120

Agents = Annotated[int, Field(ge=2, le=1_000)]
Queries = npt.NDArray[np.float32]
Report = dict[str, Any]


class ServiceBenchSettings(Settings):
    """Measures whole label requests on a cluster of real processes on this machine."""

    command: ClassVar[str] = "bench service"

    agents: list[Agents] = Field([8, 50, 200], min_length=1, description="numbers of agents to try")
    queries: int = Field(500, ge=1, le=MAX_QUERIES, description="queries in a request")
    classes: int = Field(10, ge=2, le=MAX_CLASSES, description="number of classes")
    features: int = Field(784, ge=1, le=100_000, description="numbers in a query, of 4 bytes each")
    parties: int = Field(3, ge=2, le=MAX_PARTIES, description="compute parties")
    ballot: Ballot = Field(ONE_HOT, description="kind of ballots: one_hot or knn_count")
    k: int = Field(50, ge=1, le=100_000, description="votes of an agent on a query, in knn_count")
    sigma: float = Field(25.0, gt=0, description="noise in votes")
    verified: bool = Field(True, description="whether ballots are shared so that none is stuffed")
    repeat: int = Field(3, ge=1, le=1_000, description="requests to take the median of")
    rtt: float = Field(0.0, ge=0, le=10_000, description="round trip to every server, in ms")
    rate: float | None = Field(None, gt=0, description="rate of every server's link, in Mbit/s")
    json_path: str | None = Field(
        None, alias="json", description="also write the figures as JSON to this file, - for stdout"
    )
    out: Path | None = Field(None, description="also write the table as text to this file")
    log_level: LogLevel = Field("warning", description="debug, info, warning or error")


@dataclass(frozen=True)
class RequestPhases:
    """Where the seconds of a request go; see the module."""

    transfer: float
    opening: float
    preparing: float
    preprocessing: float
    intake: float
    expanding: float
    summing: float
    argmax: float
    reveal: float

    @property
    def total(self) -> float:
        """The whole request."""
        return math.fsum(vars(self).values())


@dataclass(frozen=True)
class RequestSample:
    """One request."""

    parts: RequestPhases
    result: LabelResult


def command(arguments: Sequence[str]) -> int:
    """`mpc-vote bench service`."""
    return process.run(ServiceBenchSettings, arguments, run_bench)


async def run_bench(settings: ServiceBenchSettings) -> None:
    """Measures every number of agents in turn, each with processes of its own."""
    check_writable(settings.json_path)
    check_writable(settings.out)
    out = console(settings.json_path)
    load = os.getloadavg()[0]
    runs = []
    with progress(out) as bars:
        for agents in settings.agents:
            task = bars.add_task(f"{agents} agents", total=settings.repeat + 2, detail="")
            runs.append(await _measure(settings, agents, partial(_step, bars, task)))
    title, table = _title(settings), _table(runs)
    out.print(title, table, sep="\n")
    if settings.out is not None:
        with settings.out.open("w") as file:
            Console(file=file, width=_TEXT_WIDTH).print(title, table, sep="\n")
    asked = settings.model_dump(mode="json", exclude={"config", "log_level", "json_path", "out"})
    machine = {"processors": os.cpu_count(), "load_before": load}
    write_json(settings.json_path, {"settings": asked, "machine": machine, "runs": runs})


async def _measure(
    settings: ServiceBenchSettings, agents: int, tell: Callable[[int, str], None]
) -> Report:
    """All requests with one number of agents."""
    labels = np.arange(settings.queries) % settings.classes
    queries = np.zeros((settings.queries, settings.features), dtype=np.float32)
    # What the agents vote for; see `mpc-vote bench-agents`.
    queries[:, 0] = labels
    plan = Plan(
        classes=settings.classes,
        ballot=settings.ballot,
        sigma=settings.sigma,
        quorum=agents,
        collusion=1,
        answer_seconds=_ANSWER_SECONDS,
        verified=settings.verified,
        agreement=None,
    )
    with tempfile.TemporaryDirectory(prefix="mpc-vote-bench-") as folder:
        cluster = BenchCluster(
            Path(folder),
            settings.parties,
            agents,
            {
                "classes": str(settings.classes),
                "query-features": str(settings.features),
                "k": str(settings.k),
                "log-level": "warning",
            },
            EmulatedNetwork(settings.rtt, settings.rate),
        )
        tell(0, "processes start")
        async with running(cluster) as client:
            tell(1, "first request")
            first = await _request(client, queries, plan)
            used = cluster.processor_seconds()
            samples = []
            for number in range(settings.repeat):
                tell(2 + number, f"request {number + 1} of {settings.repeat}")
                samples.append(await _request(client, queries, plan))
            used = {k: v - used[k] for k, v in cluster.processor_seconds().items()}
        tell(2 + settings.repeat, "done")
    middle = sorted(samples, key=lambda sample: sample.parts.total)[(len(samples) - 1) // 2]
    cost, spec = middle.result.cost, middle.result.spec
    return {
        "agents": agents,
        "labels_per_second": settings.queries / middle.parts.total,
        "seconds": middle.parts.total,
        "parts": dataclasses.asdict(middle.parts),
        "all_seconds": [sample.parts.total for sample in samples],
        "first_seconds": first.parts.total,
        "right": float(np.mean([sample.result.labels == labels for sample in samples])),
        "processor_seconds": {kind: total / settings.repeat for kind, total in used.items()},
        "ring_bits": spec.ring_bits if spec is not None else None,
        "upload_bytes_per_agent": cost.upload_bytes_per_agent,
        "mpc_rounds": cost.mpc_rounds,
        "mpc_bytes_per_party": cost.mpc_bytes_per_party,
        "mpc_round_trip_seconds": cost.mpc_round_trip_seconds,
        "dealer_bytes": cost.dealer_bytes,
        "peak_memory_bytes": cluster.peak_memory_bytes,
    }


@contextlib.asynccontextmanager
async def running(cluster: BenchCluster) -> AsyncIterator[AsyncLabelClient]:
    """A client of the cluster, whose processes run while the context lasts."""
    await asyncio.to_thread(cluster.issue)
    try:
        cluster.start()
        async with cluster.watched():
            await cluster.ready(_START_SECONDS + len(cluster.agents) * _START_SECONDS_PER_AGENT)
            async with cluster.client() as client:
                yield client
    finally:
        with _uninterrupted():
            cluster.stop()


async def _request(client: AsyncLabelClient, queries: Queries, plan: Plan) -> RequestSample:
    """One request, timed here and by what the coordinator says of its progress."""
    started = time.monotonic()
    times: dict[str, list[float]] = {}
    result: LabelResult | None = None
    try:
        async with asyncio.timeout(_REQUEST_SECONDS):
            async for event in client.stream(queries, plan):
                if isinstance(event, LabelResult):
                    result = event
                else:
                    times.setdefault(event.stage, []).append(event.seconds)
    except TimeoutError as error:
        raise CommandError(f"a request took more than {_REQUEST_SECONDS:g} s") from error
    if result is None:
        raise CommandError("a request ended without labels")
    cost, preparing = result.cost, times["preparing"]
    voting, counting = times["voting"][0], times["counting"][0]
    parts = RequestPhases(
        transfer=time.monotonic() - started - cost.seconds,
        opening=preparing[0],
        preparing=preparing[-1] - preparing[0],
        preprocessing=voting - preparing[-1],
        intake=counting - voting,
        expanding=cost.mpc_preprocessing_seconds,
        summing=cost.mpc_sum_seconds,
        argmax=cost.mpc_seconds - cost.mpc_preprocessing_seconds - cost.mpc_sum_seconds,
        reveal=cost.seconds - counting - cost.mpc_seconds,
    )
    return RequestSample(parts, result)


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """A second interrupt must not leave processes or keys behind."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _step(bars: Progress, task: TaskID, done: int, what: str) -> None:
    bars.update(task, completed=done, detail=what)


def _table(runs: Sequence[Report]) -> Table:
    """The figures for people, a column for each number of agents."""
    table = Table()
    table.add_column("agents")
    for run in runs:
        table.add_column(str(run["agents"]), justify="right")

    def row(name: str, values: Iterable[str]) -> None:
        table.add_row(name, *values)

    row("labels per second", (f"{run['labels_per_second']:,.0f}" for run in runs))
    row("seconds per request", (f"{run['seconds']:.3f}" for run in runs))
    for part in runs[0]["parts"]:
        row(f"  {part}", (f"{run['parts'][part]:.3f}" for run in runs))
    table.add_section()
    row("processor seconds", (f"{sum(run['processor_seconds'].values()):.2f}" for run in runs))
    for kind in runs[0]["processor_seconds"]:
        row(f"  {kind}", (f"{run['processor_seconds'][kind]:.2f}" for run in runs))
    table.add_section()
    row("upload per agent", (f"{run['upload_bytes_per_agent']:,} bytes" for run in runs))
    row("peak memory", (f"{run['peak_memory_bytes'] / 2**20:,.0f} MiB" for run in runs))
    row("labels as voted for", (f"{100 * run['right']:.1f} %" for run in runs))
    return table


def _title(settings: ServiceBenchSettings) -> str:
    network = f"{settings.rtt:g} ms round trips" if settings.rtt else "loopback"
    if settings.rate is not None:
        network += f" of {settings.rate:g} Mbit/s"
    ballots = f"{settings.ballot.name} ballots, {'' if settings.verified else 'not '}verified"
    return (
        f"{counted(settings.queries, 'query', 'queries')}, {settings.classes} classes, "
        f"{settings.parties} parties, {network}, {ballots}"
    )
