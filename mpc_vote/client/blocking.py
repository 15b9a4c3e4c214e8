"""The client for programs without asyncio."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Coroutine, Generator, Sequence
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import numpy as np
import numpy.typing as npt

from mpc_vote.client.answers import LabelResult, Progress
from mpc_vote.client.asynchronous import AsyncLabelClient, OnTraining
from mpc_vote.client.plan import Plan
from mpc_vote.proto.mpcvote.v1 import label_pb2
from mpc_vote.results import Model
from mpc_vote.tasks import Task
from mpc_vote.voting.round_plan import RoundPlan

T = TypeVar("T")


class LabelClient:
    """A client for programs without asyncio; it runs a loop in a thread of its own."""

    def __init__(
        self, address: str, certs: str | Path, *, coordinator_name: str = "coordinator"
    ) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

        async def connect() -> AsyncLabelClient:
            return AsyncLabelClient(address, certs, coordinator_name=coordinator_name)

        try:
            self._client = self._wait(connect())
        except BaseException:
            self._stop()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connection and ends the thread."""
        if not self._loop.is_closed():
            self._wait(self._client.close())
            self._stop()

    def label(self, queries: npt.ArrayLike, plan: Plan, patience: float = 0.0) -> LabelResult:
        """Labels a batch."""
        return self._wait(self._client.label(queries, plan, patience))

    def stream(
        self, queries: npt.ArrayLike, plan: Plan, patience: float = 0.0
    ) -> Generator[Progress | LabelResult, None, None]:
        """Labels a batch: progress as it happens, then the result."""
        return self._iterate(self._client.stream(queries, plan, patience))

    def plan(self, queries: npt.ArrayLike | int, plan: Plan) -> RoundPlan:
        """A dry run: who would be asked and what it would cost; nothing is spent or kept.

        A number of queries is enough; with an array, what agents take of it is checked too.
        """
        return self._wait(self._client.plan(queries, plan))

    def service(self) -> label_pb2.GetServiceResponse:
        """Who attends, which tasks there are, and the defaults."""
        return self._wait(self._client.service())

    def task(self, name: str) -> Task:
        """A task that the service serves."""
        return self._wait(self._client.task(name))

    def rounds(self) -> Sequence[label_pb2.RoundSummary]:
        """This client's rounds, oldest first."""
        return self._wait(self._client.rounds())

    def round(self, round_id: str) -> label_pb2.GetRoundResponse:
        """A round's state and, if it is complete, its labels."""
        return self._wait(self._client.round(round_id))

    def cancel(self, round_id: str) -> bool:
        """Ends a round of this client's; False if it is charged, and goes on, or has ended."""
        return self._wait(self._client.cancel(round_id))

    def train(
        self,
        round_ids: Sequence[str] = (),
        seed: int = 0,
        unlabelled: npt.ArrayLike | None = None,
        features: str = "",
        *,
        task: Task | None = None,
        on_progress: OnTraining = lambda _: None,
    ) -> Model:
        """Trains a new version of the global model, and returns its description.

        It learns from all complete rounds of the task, or from those that are named; and also from
        `unlabelled` public points. Without a task, neighbours among these are sought in the feature
        map of this name, or among the points themselves. `on_progress` is called in the client's
        own thread.
        """
        return self._wait(
            self._client.train(
                round_ids, seed, unlabelled, features, task=task, on_progress=on_progress
            )
        )

    def models(self) -> Sequence[Model]:
        """All versions, oldest first."""
        return self._wait(self._client.models())

    def model(self, version: int = 0, *, task: Task | None = None) -> tuple[Model, bytes]:
        """A version's description and its file; 0 is the newest, with a task of its models."""
        return self._wait(self._client.model(version, task=task))

    def predict(
        self, inputs: npt.ArrayLike, version: int = 0, *, task: Task | None = None
    ) -> npt.NDArray[np.int64]:
        """What the global model says of these inputs; with a task, one of the task's models."""
        return self._wait(self._client.predict(inputs, version, task=task))

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        if self._loop.is_closed():
            work.close()
            raise RuntimeError("the client is closed: make a new one")
        future: Future[T] = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def _iterate(self, events: AsyncGenerator[T, None]) -> Generator[T, None, None]:
        async def step() -> T | None:
            return await anext(events, None)

        async def close() -> None:
            await events.aclose()

        try:
            while (event := self._wait(step())) is not None:
                yield event
        finally:
            # A client that was closed meanwhile has ended the call.
            if not self._loop.is_closed():
                self._wait(close())

    def _stop(self) -> None:
        """Ends the loop once nothing is left to run on it."""
        asyncio.run_coroutine_threadsafe(_end_tasks(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _end_tasks() -> None:
    """Cancels whatever else runs on this loop, and waits for it."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_asyncgens()
