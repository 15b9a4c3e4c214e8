"""The clients' service alone, as it stops."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest

from aggregator.labels import LabelServicer
from mpc_vote import wire
from mpc_vote.proto.mpcvote.v1 import label_pb2
from tests.service.support import SECONDS


async def _messages() -> AsyncIterator[label_pb2.RequestLabelsRequest]:
    rows = wire.to_tensor(np.zeros((1, 2), np.float32))
    yield label_pb2.RequestLabelsRequest(plan=label_pb2.LabelPlan(classes=3), queries=rows)


async def test_a_round_that_is_being_opened_when_the_service_stops_is_ended_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its client has hung up meanwhile, so nobody else could end it."""
    nothing: Any = None
    labels = LabelServicer(nothing, nothing, nothing, nothing, nothing, nothing, 4)
    opening, opened = asyncio.Event(), asyncio.Event()
    runs: list[asyncio.Task[Any]] = []

    async def start(*_: object) -> Any:
        opening.set()
        await opened.wait()
        runs.append(asyncio.create_task(asyncio.Event().wait()))
        labels._open["round"] = (nothing, runs[0])

    monkeypatch.setattr(labels, "_start", start)
    client = asyncio.create_task(labels._find("client", _messages()))
    await asyncio.wait_for(opening.wait(), SECONDS)
    client.cancel()
    stopping = asyncio.create_task(labels.stop())
    await asyncio.wait([client])
    assert client.cancelled() and not stopping.done()
    opened.set()
    await asyncio.wait_for(stopping, SECONDS)
    assert runs[0].cancelled()
