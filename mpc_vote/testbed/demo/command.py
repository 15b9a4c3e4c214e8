"""`mpc-vote demo`: the whole service on this machine, from private data to a trained global model.

Everything is real: separate processes, mutual TLS, secret shares, the secure argmax, noise from the
operating system's randomness. Only the data is split here, where in life it was never together.
With `--service` the processes are somebody else's, such as containers; then agents hold the parts
of `mpc_vote.data.demo`.
"""

from __future__ import annotations

import signal
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from pydantic import Field
from rich.console import Console

from mpc_vote.app import process
from mpc_vote.app.config import Address, LogLevel, Method, Settings
from mpc_vote.app.process import CommandError
from mpc_vote.cli.common import check_writable, console, progress, write_json
from mpc_vote.client import AsyncLabelClient, LabelResult
from mpc_vote.data.demo import demo_partition, part_number
from mpc_vote.data.embedded import load_embedded
from mpc_vote.data.partition import Partition, save_part, split_skewed
from mpc_vote.testbed.cluster import Cluster
from mpc_vote.testbed.demo.trial import COLLUSION, RECIPES, Trial, show

_TEST_POINTS = 500
_READY_SECONDS = 120.0
# Each class is held by this part of the agents: none knows all classes, as in life.
_HELD = 0.75


class DemoSettings(Settings):
    """Runs dealer, parties, coordinator and agents on loopback, labels a batch, trains a model."""

    command: ClassVar[str] = "demo"

    method: Method = Field(Method.KNN, description="knn: nearest neighbours; ae: local models")
    agents: int = Field(8, ge=2, le=64, description="organisations with private data")
    parties: int = Field(3, ge=2, le=8, description="compute parties")
    queries: int = Field(500, ge=1, le=3_000, description="public points to label")
    sigma: float | None = Field(None, gt=0, description="noise in votes; default: the method's")
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
    write_json(settings.json_path, figures)


async def _run_here(
    settings: DemoSettings, out: Console
) -> tuple[Trial, dict[str, Any], LabelResult, int | None]:
    """With processes of our own."""
    out.print(
        f"[bold]mpc-vote demo[/bold]: {settings.agents} agents ({settings.method.value}), "
        f"{settings.parties} parties, a dealer and a coordinator on this machine"
    )
    trial = _trial(settings, _split(settings), settings.agents, settings.parties)
    data = trial.data
    out.print(
        f"data: {data.test.name.split('/')[0]}, split into {settings.agents} private parts of at "
        f"least {min(map(len, data.private))} points, {len(data.public)} public queries, "
        f"{len(data.test)} test points"
    )
    known = sorted(len(np.unique(part.y)) for part in data.private)
    out.print(f"an agent knows {known[0]} to {known[-1]} of the {data.public.classes} classes")
    with tempfile.TemporaryDirectory(prefix="mpc-vote-demo-") as folder:
        cluster = _cluster(trial, Path(folder))
        cluster.issue()
        out.print(f"certificates: issued for {settings.parties + settings.agents + 3} identities")
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
    return trial, figures, result, cluster.peak_memory_bytes


async def _run_there(
    settings: DemoSettings, out: Console
) -> tuple[Trial, dict[str, Any], LabelResult, int | None]:
    """With a service that runs already; how much memory it takes is not ours to see."""
    if settings.service is None or settings.certs is None:
        raise CommandError("--service needs the client's --certs")
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
        trial = _trial(settings, data, len(agents), len(service.parties))
        figures, result = await trial.run(client, trial.start_comparing(), out)
    return trial, figures, result, None


def _trial(settings: DemoSettings, data: Partition, agents: int, parties: int) -> Trial:
    recipe = RECIPES[settings.method]
    sigma = settings.sigma or recipe.sigma
    return Trial(recipe, data, sigma, settings.seed, agents, parties)


def _split(settings: DemoSettings) -> Partition:
    try:
        holders = max(1, round(_HELD * settings.agents))
        return split_skewed(
            load_embedded(), settings.agents, settings.queries, _TEST_POINTS, settings.seed, holders
        )
    except ValueError as error:
        raise CommandError(f"the data can't be split like that: {error}") from error


def _cluster(trial: Trial, folder: Path) -> Cluster:
    agents = {}
    for number, part in enumerate(trial.data.private):
        path = folder / f"private-{number}.npz"
        save_part(path, part)
        agents[f"agent-{number}"] = {
            "data": str(path),
            "seed": str(trial.seed + number),
            "min-collusion": str(COLLUSION),
            **trial.recipe.agent,
        }
    return Cluster(folder, trial.parties, agents)


async def _start(cluster: Cluster, out: Console) -> None:
    total = len(cluster.agents)
    with progress(out) as bars:
        task = bars.add_task("processes start", total=total, detail="")

        def attend(agents: int) -> None:
            bars.update(task, completed=agents, detail=f"{agents} of {total} agents attend")

        await cluster.ready(_READY_SECONDS, attend)
