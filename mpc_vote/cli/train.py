"""`mpc-vote train`: has the server train the global model on released labels."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy.typing as npt
from pydantic import Field
from rich.console import Console

from mpc_vote import process
from mpc_vote.cli.common import (
    ClientSettings,
    check_writable,
    connect,
    console,
    progress,
    read_array,
    write_json,
)
from mpc_vote.cli.model import describe, figures
from mpc_vote.client import AsyncLabelClient
from mpc_vote.process import CommandError
from mpc_vote.proto.mpcvote.v1 import model_pb2


class TrainSettings(ClientSettings):
    """Trains a new version of the global model on the labels of complete rounds."""

    command: ClassVar[str] = "train"

    rounds: list[str] = Field(
        [], description="rounds to learn from; all alike ones if none is named"
    )
    seed: int = Field(0, ge=0, description="seed of the training")
    unlabelled: Path | None = Field(
        None, description=".npy file of further public points to learn from, one per row"
    )
    features: str = Field(
        "",
        description="feature map in which their neighbours are sought: raw, strokes or unit; "
        "the points themselves if left out",
    )


def command(arguments: Sequence[str]) -> int:
    """`mpc-vote train`."""
    return process.run(TrainSettings, arguments, _main)


async def _main(settings: TrainSettings) -> None:
    if settings.features and settings.unlabelled is None:
        raise CommandError("--features is for the points of --unlabelled, which is not given")
    unlabelled = read_array(settings.unlabelled) if settings.unlabelled else None
    check_writable(settings.json_path)
    out = console(settings.json_path, markup=False)
    async with connect(settings) as client:
        model = await follow(
            client, settings.rounds, settings.seed, out, unlabelled, settings.features
        )
    out.print(describe([model]))
    write_json(settings.json_path, figures(model))


async def follow(
    client: AsyncLabelClient,
    rounds: Sequence[str],
    seed: int,
    out: Console,
    unlabelled: npt.NDArray[Any] | None = None,
    features: str = "",
) -> model_pb2.Model:
    """Trains and shows how far it is."""
    with progress(out) as bars:
        task: Any = bars.add_task("server trains", total=None, detail="")
        async for event in client.train(rounds, seed, unlabelled, features):
            if isinstance(event, model_pb2.Model):
                return event
            detail = f"step {event.step} of {event.steps}, loss {event.loss:.3f}"
            bars.update(task, completed=event.step, total=event.steps, detail=detail)
    raise AssertionError("the stream ended without a model or an error")
