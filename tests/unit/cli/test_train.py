"""What `mpc-vote train` says when it is interrupted."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from mpc_vote.app import config
from mpc_vote.app.process import Interrupted
from mpc_vote.cli import train
from mpc_vote.cli.common import console
from mpc_vote.proto.mpcvote.v1 import model_pb2


class Trainer:
    """A client whose training never ends."""

    def __init__(self, steps: int) -> None:
        self.asked = asyncio.Event()
        self._steps = steps

    async def train(self, *_: object, on_progress: Any, **__: object) -> None:
        for step in range(self._steps):
            on_progress(model_pb2.TrainProgress(step=step, steps=10))
        self.asked.set()
        await asyncio.Event().wait()


@pytest.mark.parametrize(
    ("steps", "told"),
    [(2, "the coordinator trains on"), (0, "if the coordinator has begun, it trains on")],
)
async def test_who_interrupts_a_training_hears_what_becomes_of_it(steps: int, told: str) -> None:
    client: Any = Trainer(steps)
    settings = config.load(train.TrainSettings, ["--certs=me"])
    work = asyncio.create_task(train._train(client, settings, console(None), None, None))
    await client.asked.wait()
    work.cancel()
    with pytest.raises(Interrupted) as caught:
        await work
    said = str(caught.value)
    assert told in said and "nothing was spent" in said and "`mpc-vote model` lists" in said
