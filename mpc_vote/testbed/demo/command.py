"""`mpc-vote demo`: the whole service on this machine, from private data to a trained global model.

Everything is real: separate processes, mutual TLS, secret shares, the secure argmax, noise from the
operating system's randomness. Only the data is split here, where in life it was never together.
It is about digits, or with `--task table` about a clinical table. With `--service` the processes
are somebody else's, such as containers; then agents hold the parts of `mpc_vote.data.demo`.
"""

from __future__ import annotations

import signal
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field
from rich.console import Console

from mpc_vote.app import process
from mpc_vote.app.config import Address, Engine, LogLevel, Method, Settings
from mpc_vote.app.process import CommandError
from mpc_vote.cli.common import check_writable, console, dispatch, progress, write_json
from mpc_vote.client import AsyncLabelClient, LabelResult
from mpc_vote.data.demo import demo_partition, part_number
from mpc_vote.data.partition import Partition
from mpc_vote.testbed.cluster import Cluster
from mpc_vote.testbed.demo import data_command, digits, table
from mpc_vote.testbed.demo.result import remarks, show
from mpc_vote.testbed.demo.subject import DemoMethod, Scale
from mpc_vote.testbed.demo.trial import COLLUSION, Trial

_READY_SECONDS = 120.0
_SUBJECTS = {"digits": digits, "table": table}
_USUAL = {"digits": Method.KNN, "table": table.MIXED}


class DemoSettings(Settings):
    """Runs dealer, parties, coordinator and agents on loopback, labels a batch, trains a model."""

    command: ClassVar[str] = "demo"

    task: Literal["digits", "table"] = Field(
        "digits", description="what is voted on: handwritten digits, or a clinical table"
    )
    method: Literal["knn", "ae", "mixed"] | None = Field(
        None,
        description="knn: nearest neighbours; ae: local models; mixed, the table's default: "
        "neighbours, networks and models of other tools in one round",
    )
    agents: int = Field(8, ge=2, le=64, description="organisations with private data")
    parties: int = Field(3, ge=2, le=8, description="compute parties")
    queries: int | None = Field(
        None, ge=1, le=3_000, description="public points to label; default: the task's"
    )
    sigma: float | None = Field(None, gt=0, description="noise in votes; default: the method's")
    bounded: bool = Field(
        False,
        description="bound how many queries a record of the digits contributes to, by a rule that "
        "looks at the public queries alone, and tell what a single record loses",
    )
    engine: Engine | None = Field(
        None,
        description="how the winner is found: table, or one of CrypTen's own methods; by default "
        "as the coordinator is set, here table",
    )
    seed: int = Field(0, ge=0, description="seed of split and training, not of the noise")
    service: Address | None = Field(
        None, description="host:port of a running coordinator, instead of processes of our own"
    )
    certs: Path | None = Field(None, description="the client's certificate for --service")
    json_path: str | None = Field(
        None, alias="json", description="also write the figures as JSON to this file, - for stdout"
    )
    log_level: LogLevel = Field("warning", description="debug, info, warning or error")


def command(arguments: Sequence[str]) -> int:
    """`mpc-vote demo`."""
    return dispatch("demo", arguments, _demo, {"data": data_command.command})


def _demo(arguments: Sequence[str]) -> int:
    return process.run(DemoSettings, arguments, run_demo)


async def run_demo(settings: DemoSettings) -> None:
    """The demo from beginning to end."""
    started = time.monotonic()
    check_writable(settings.json_path)
    out = console(settings.json_path)
    run = _run_here if settings.service is None else _run_there
    trial, figures, result, memory = await run(settings, out)
    figures["seconds"] = time.monotonic() - started
    figures["peak_memory_bytes"] = memory
    out.print(show(trial, figures, result))
    for sentence in remarks(trial, figures):
        out.print(sentence)
    write_json(settings.json_path, figures)


async def _run_here(
    settings: DemoSettings, out: Console
) -> tuple[Trial, dict[str, Any], LabelResult, int | None]:
    """With processes of our own."""
    method, scale = _method(settings), _scale(settings)
    out.print(
        f"[bold]mpc-vote demo[/bold]: {settings.agents} agents ({method.name}), "
        f"{settings.parties} parties, a dealer and a coordinator on this machine"
    )
    with tempfile.TemporaryDirectory(prefix="mpc-vote-demo-") as folder:
        subject = _SUBJECTS[settings.task].prepare(method, scale, Path(folder))
        trial = Trial(
            subject,
            method,
            scale,
            settings.sigma or method.sigma,
            settings.parties,
            settings.engine,
        )
        for sentence in subject.told:
            out.print(sentence)
        cluster = _cluster(trial, Path(folder))
        cluster.issue()
        out.print(f"certificates: issued for {settings.parties + settings.agents + 3} identities")
        others = None
        try:
            cluster.start()
            others = trial.start_comparing()
            async with cluster.watched():
                await _start(cluster, out)
                async with cluster.client() as client:
                    figures, result = await trial.run(client, others, out)
        finally:
            # A second interrupt would leave certificates and private parts behind.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            out.print("stopping all processes")
            cluster.stop()
            if others is not None:
                others.stop()
    return trial, figures, result, cluster.peak_memory_bytes


async def _run_there(
    settings: DemoSettings, out: Console
) -> tuple[Trial, dict[str, Any], LabelResult, int | None]:
    """With a service that runs already; how much memory it takes is not ours to see."""
    if settings.service is None or settings.certs is None:
        raise CommandError("--service needs the client's --certs")
    if settings.task != "digits":
        raise CommandError("a running service has the demo's digits: leave --task out")
    if settings.bounded:
        raise CommandError("a running service has the digits without a bound: leave --bounded out")
    async with AsyncLabelClient(settings.service, settings.certs) as client:
        service = await client.service()
        agents = [agent.agent for agent in service.agents]
        out.print(
            f"[bold]mpc-vote demo[/bold]: {len(agents)} agents, {len(service.parties)} parties at "
            f"{settings.service}"
        )
        everything = demo_partition()
        try:
            held = tuple(everything.private[part_number(agent)] for agent in agents)
        except ValueError as error:
            raise CommandError(str(error)) from error
        data = Partition(held, everything.public, everything.test)
        method, scale = _method(settings), replace(_scale(settings), agents=len(agents))
        subject = digits.subject(method, scale, data, {})
        sigma = settings.sigma or method.sigma
        trial = Trial(subject, method, scale, sigma, len(service.parties), settings.engine)
        figures, result = await trial.run(client, trial.start_comparing(), out)
    return trial, figures, result, None


def _method(settings: DemoSettings) -> DemoMethod:
    known: Mapping[str, DemoMethod] = _SUBJECTS[settings.task].METHODS
    name = settings.method or _USUAL[settings.task]
    if name not in known:
        raise CommandError(f"--method {name} is for --task table; {settings.task} have knn and ae")
    return known[name]


def _scale(settings: DemoSettings) -> Scale:
    if settings.bounded and settings.task != "digits":
        raise CommandError("--bounded is for the demo on digits: leave --task out")
    queries = settings.queries or _SUBJECTS[settings.task].QUERIES
    return Scale(settings.agents, queries, settings.seed, settings.bounded)


def _cluster(trial: Trial, folder: Path) -> Cluster:
    agents = {
        name: {
            "seed": str(trial.scale.seed + number),
            "min-collusion": str(COLLUSION),
            **settings,
        }
        for number, (name, settings) in enumerate(trial.subject.agents.items())
    }
    student = trial.subject.student
    return Cluster(
        folder,
        trial.parties,
        agents,
        coordinator_settings={} if student is None else {"student": student},
        tasks=trial.subject.tasks,
    )


async def _start(cluster: Cluster, out: Console) -> None:
    total = len(cluster.agents)
    with progress(out) as bars:
        task = bars.add_task("processes start", total=total, detail="")

        def attend(agents: int) -> None:
            bars.update(task, completed=agents, detail=f"{agents} of {total} agents attend")

        await cluster.ready(_READY_SECONDS, attend)
