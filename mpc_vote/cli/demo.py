"""`mpc-vote demo`: the whole service on this machine, from private data to a trained global model.

Everything is real: separate processes, mutual TLS, secret shares, the secure argmax, noise from the
operating system's randomness. Only the data is split here, where in life it was never together.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from pydantic import Field
from rich.console import Console
from rich.table import Table

from mpc_vote import process
from mpc_vote.ballots import BallotKind
from mpc_vote.cli import label, train
from mpc_vote.cli.common import check_writable, console, progress, write_json
from mpc_vote.client import LabelResult, Plan
from mpc_vote.cluster import Cluster
from mpc_vote.config import LogLevel, Method, Settings
from mpc_vote.data.dataset import Dataset
from mpc_vote.data.embedded import load_embedded
from mpc_vote.data.partition import Partition, save_part, split_skewed
from mpc_vote.process import CommandError

_TEST_POINTS = 500
_READY_SECONDS = 120.0
_DELTA = 1e-3
# Each class is held by this part of the agents: none knows all classes, as in life.
_HELD = 0.75
_COLLUSION = 1


Predict = Callable[[npt.NDArray[np.float32]], npt.NDArray[np.int64]]


@dataclass(frozen=True)
class Recipe:
    """Parameters of a method, chosen by measuring."""

    ballot: BallotKind
    sigma: float
    agent: dict[str, str]


RECIPES = {
    Method.KNN: Recipe(
        BallotKind.KNN_COUNT,
        40.0,
        {"method": "knn", "neighbours": "50", "features": "strokes", "reach": "0.07"},
    ),
    Method.AE: Recipe(BallotKind.ONE_HOT, 1.5, {"method": "ae"}),
}


class DemoSettings(Settings):
    """Runs dealer, parties, coordinator and agents on loopback, labels a batch, trains a model."""

    command: ClassVar[str] = "demo"

    method: Method = Field(Method.KNN, description="knn: nearest neighbours; ae: local models")
    agents: int = Field(8, ge=2, le=64, description="organisations with private data")
    parties: int = Field(3, ge=2, le=8, description="compute parties")
    queries: int = Field(500, ge=1, le=3_000, description="public points to label")
    sigma: float | None = Field(None, gt=0, description="noise in votes; default: the method's")
    seed: int = Field(0, ge=0, description="seed of split and training, not of the noise")
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
    recipe = RECIPES[settings.method]
    out.print(
        f"[bold]mpc-vote demo[/bold]: {settings.agents} agents ({settings.method.value}), "
        f"{settings.parties} parties, a dealer and a coordinator on this machine"
    )
    data = _split(settings)
    out.print(
        f"data: {data.test.name.split('/')[0]}, split into {settings.agents} private parts of at "
        f"least {min(map(len, data.private))} points, {len(data.public)} public queries, "
        f"{len(data.test)} test points"
    )
    out.print(
        f"no agent knows all classes: each class is held by {round(100 * _HELD)} % of the agents"
    )
    with tempfile.TemporaryDirectory(prefix="mpc-vote-demo-") as folder:
        cluster = _cluster(settings, recipe, data, Path(folder))
        cluster.issue()
        out.print(f"certificates: issued for {settings.parties + settings.agents + 3} identities")
        try:
            cluster.start()
            # What the global model is compared with is made here, beside the service's own work.
            others = asyncio.create_task(asyncio.to_thread(_compare, settings, recipe, data))
            async with cluster.watched():
                await _start(cluster, out)
                figures, result = await _work(settings, recipe, cluster, data, others, out)
        finally:
            await asyncio.to_thread(cluster.stop)
    figures["seconds"] = time.monotonic() - started
    figures["peak_memory_bytes"] = cluster.peak_memory_bytes
    out.print(_table(settings, recipe, figures, result))
    write_json(settings.json_path, figures)


def _split(settings: DemoSettings) -> Partition:
    try:
        holders = max(1, round(_HELD * settings.agents))
        return split_skewed(
            load_embedded(), settings.agents, settings.queries, _TEST_POINTS, settings.seed, holders
        )
    except ValueError as error:
        raise CommandError(f"the data can't be split like that: {error}") from error


def _cluster(settings: DemoSettings, recipe: Recipe, data: Partition, folder: Path) -> Cluster:
    agents = {}
    for number, part in enumerate(data.private):
        path = folder / f"private-{number}.npz"
        save_part(path, part)
        agents[f"agent-{number}"] = {
            "data": str(path),
            "seed": str(settings.seed + number),
            "min-collusion": str(_COLLUSION),
            **recipe.agent,
        }
    return Cluster(folder, settings.parties, agents)


async def _start(cluster: Cluster, out: Console) -> None:
    total = len(cluster.agents)
    with progress(out) as bars:
        task = bars.add_task("processes start", total=total, detail="")

        def attend(agents: int) -> None:
            bars.update(task, completed=agents, detail=f"{agents} of {total} agents attend")

        await cluster.ready(_READY_SECONDS, attend)


async def _work(
    settings: DemoSettings,
    recipe: Recipe,
    cluster: Cluster,
    data: Partition,
    others: Awaitable[tuple[float, float]],
    out: Console,
) -> tuple[dict[str, Any], LabelResult]:
    plan = Plan(
        classes=data.public.classes,
        ballot=recipe.ballot,
        sigma=settings.sigma or recipe.sigma,
        quorum=settings.agents,
        collusion=_COLLUSION,
        delta=_DELTA,
    )
    async with cluster.client() as client:
        result = await label.follow(client, data.public.x, plan, out)
        await train.follow(client, [result.round_id], settings.seed, out)
        predicted = await client.predict(data.test.x)
        with progress(out) as bars:
            bars.add_task("comparisons", total=None, detail="single agents, and true labels")
            oracle, best_agent = await others
    cost = result.cost
    return {
        "label_accuracy": float(np.mean(result.labels == data.public.y)),
        "student_accuracy": float(np.mean(predicted == data.test.y)),
        "oracle_accuracy": oracle,
        "best_agent_accuracy": best_agent,
        "epsilon_agent": cost.epsilon_agent,
        "epsilon_instance": cost.epsilon_instance,
        "delta": cost.delta,
        "sigma": plan.sigma,
        "queries": settings.queries,
        "agents": settings.agents,
        "parties": settings.parties,
        "mpc_rounds": cost.mpc_rounds,
        "mpc_bytes_per_party": cost.mpc_bytes_per_party,
        "mpc_seconds": cost.mpc_seconds,
        "upload_bytes_per_agent": cost.upload_bytes_per_agent,
    }, result


def _compare(settings: DemoSettings, recipe: Recipe, data: Partition) -> tuple[float, float]:
    """Test accuracy of the same model on true labels, and of the best agent on its own."""
    from mpc_vote.learning.student import train_student

    oracle = train_student(data.public.x, data.public.y, data.public.classes, settings.seed)
    alone = [
        float(np.mean(_alone(settings, recipe, part, number)(data.test.x) == data.test.y))
        for number, part in enumerate(data.private)
    ]
    return oracle.agreement(data.test.x, data.test.y), max(alone)


def _alone(settings: DemoSettings, recipe: Recipe, part: Dataset, number: int) -> Predict:
    """How an agent would label without the others: its own model, or its five nearest points."""
    if settings.method is Method.AE:
        from mpc_vote.learning.local_model import ModelVoter

        return ModelVoter.train(part.x, part.y, part.classes, settings.seed + number).predict
    from mpc_vote.learning.knn import KnnVoter

    neighbours = KnnVoter(part.x, part.y, part.classes, 5, features=recipe.agent["features"])
    return lambda queries: neighbours.counts(queries).argmax(axis=1)


def _table(
    settings: DemoSettings, recipe: Recipe, figures: dict[str, Any], result: LabelResult
) -> Table:
    table = Table(title="What came of it", show_header=False, title_justify="left")
    percent: Callable[[str], str] = lambda key: f"{100 * figures[key]:.1f} %"  # noqa: E731
    details = ", ".join(f"{key} {value}" for key, value in recipe.agent.items() if key != "method")
    spec = result.spec
    rows = [
        (
            "method",
            ", ".join(
                filter(None, (settings.method.value, f"{recipe.ballot.value} ballots", details))
            ),
        ),
        (
            "noise",
            f"Skellam, sigma {figures['sigma']:g} votes, {result.contributors} agents counted"
            + (f", quorum {spec.quorum}, {spec.collusion} may collude" if spec else ""),
        ),
        ("label accuracy", f"{percent('label_accuracy')} of {figures['queries']} queries"),
        ("global model, test", percent("student_accuracy")),
        ("  trained on true labels", percent("oracle_accuracy")),
        ("  best agent alone", percent("best_agent_accuracy")),
        (
            "epsilon, instance level",
            f"{figures['epsilon_instance']:.3g} at delta {figures['delta']:g}",
        ),
        (
            "epsilon, agent level",
            f"{figures['epsilon_agent']:.4g} at delta {figures['delta']:g}",
        ),
        (
            "secure argmax",
            f"{figures['mpc_rounds']} rounds, {figures['mpc_bytes_per_party']:,} bytes sent per "
            f"party, {figures['mpc_seconds']:.2f} s",
        ),
        ("upload per agent", f"{figures['upload_bytes_per_agent']:,} bytes"),
        (
            "all in all",
            f"{figures['seconds']:.0f} s, {figures['peak_memory_bytes'] / 2**20:,.0f} MiB at most",
        ),
    ]
    for name, value in rows:
        table.add_row(name, value)
    return table
