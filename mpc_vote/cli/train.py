"""`mpc-vote train`: has the server train the global model on released labels."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy.typing as npt
from pydantic import Field
from rich.console import Console

from mpc_vote.app import process
from mpc_vote.app.config import ConfigError
from mpc_vote.app.process import CommandError, Interrupted
from mpc_vote.cli.common import (
    ClientSettings,
    check_writable,
    connect,
    console,
    load_task,
    progress,
    read_rows,
    write_json,
)
from mpc_vote.cli.model import describe, figures
from mpc_vote.client import AsyncLabelClient
from mpc_vote.proto.mpcvote.v1 import model_pb2
from mpc_vote.results import Model
from mpc_vote.tasks import Task


class TrainSettings(ClientSettings):
    """Trains a new version of the global model on the labels of complete rounds."""

    command: ClassVar[str] = "train"

    task: Path | None = Field(
        None, description="the file of the task whose rounds to learn from, in its feature map"
    )
    rounds: list[str] = Field(
        [], description="rounds to learn from; all of the task, or all alike ones, if none is named"
    )
    seed: int = Field(0, ge=0, description="seed of the training")
    unlabelled: Path | None = Field(
        None,
        description="further public points to learn from, one per row: what the task's readers "
        "read; without a task an .npy file",
    )
    features: str = Field(
        "",
        description="without a task, the feature map in which their neighbours are sought: raw, "
        "strokes or unit; the points themselves if left out",
    )


def command(arguments: Sequence[str]) -> int:
    """`mpc-vote train`."""
    return process.run(TrainSettings, arguments, _main)


async def _main(settings: TrainSettings) -> None:
    if settings.features and settings.unlabelled is None:
        raise CommandError("--features is for the points of --unlabelled, which is not given")
    task = load_task(settings.task)
    if settings.features and task is not None:
        raise ConfigError(f"--features: task {task.name} has its own: leave it out")
    unlabelled = read_rows(settings.unlabelled, task).rows if settings.unlabelled else None
    check_writable(settings.json_path, settings.unlabelled, settings.task)
    out = console(settings.json_path, markup=False)
    async with connect(settings) as client:
        model = await _train(client, settings, out, unlabelled, task)
    describe(out, [model])
    write_json(settings.json_path, figures(model))


async def _train(
    client: AsyncLabelClient,
    settings: TrainSettings,
    out: Console,
    unlabelled: npt.NDArray[Any] | None,
    task: Task | None,
) -> Model:
    """The model; whoever interrupts its training hears what becomes of it."""
    steps: list[int] = []
    asked = (client, settings.rounds, settings.seed, out, unlabelled, settings.features, task)
    try:
        return await follow(*asked, on_step=steps.append)
    except asyncio.CancelledError:
        raise Interrupted(_interrupted(bool(steps))) from None


def _interrupted(began: bool) -> str:
    """Nothing ends a training at the coordinator, and only its steps tell that it has begun."""
    list_ = "`mpc-vote model` lists the new version when it is done"
    if began:
        return f"interrupted: nothing was spent; the coordinator trains on, and {list_}"
    return (
        "interrupted: nothing was spent; if the coordinator has begun, it trains on, and "
        f"{list_}; else run the same command again"
    )


async def follow(
    client: AsyncLabelClient,
    rounds: Sequence[str],
    seed: int,
    out: Console,
    unlabelled: npt.NDArray[Any] | None = None,
    features: str = "",
    task: Task | None = None,
    on_step: Callable[[int], None] = lambda _: None,
) -> Model:
    """Trains and shows how far it is; `on_step` takes the steps that are done."""
    with progress(out) as bars:
        bar = bars.add_task("server trains", total=None, detail="")

        def show(event: model_pb2.TrainProgress) -> None:
            detail = f"step {event.step} of {event.steps}, loss {event.loss:.3f}"
            bars.update(bar, completed=event.step, total=event.steps, detail=detail)
            on_step(event.step)

        return await client.train(rounds, seed, unlabelled, features, task=task, on_progress=show)
