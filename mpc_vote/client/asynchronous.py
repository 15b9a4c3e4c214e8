"""The client on asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import random
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Self, TypeAlias, TypeVar

import grpc
import numpy as np
import numpy.typing as npt
from google.protobuf.message import Message

from mpc_vote.client.answers import (
    WHO,
    LabelResult,
    Progress,
    nonsense,
    plain,
    progress_of,
    result_of,
)
from mpc_vote.client.plan import Plan
from mpc_vote.client.requests import digest_of, label_requests, rows_of, train_requests
from mpc_vote.errors import ErrorKind, VoteError
from mpc_vote.pki.identity import Credentials, Identity, Role
from mpc_vote.proto.mpcvote.v1 import (
    common_pb2,
    label_pb2,
    label_pb2_grpc,
    model_pb2,
    model_pb2_grpc,
)
from mpc_vote.results import Model
from mpc_vote.tasks import Task, agreement
from mpc_vote.transport import rpc, tensors
from mpc_vote.voting.round_plan import RoundPlan

_CALL_SECONDS = 30.0
_LABEL_SECONDS = 3_600.0
# Clients that were told the same come back one after the other, none before its time.
_JITTER = (1.0, 1.25)
# Of the largest model that a service trains, on rows of wire.MAX_ROW_BYTES.
_MAX_MODEL_BYTES = (1 << 30) + (1 << 24)

Answer = TypeVar("Answer", bound=Message)

OnTraining: TypeAlias = Callable[[model_pb2.TrainProgress], None]


def pause(error: VoteError) -> float | None:
    """Seconds after which the request may be sent again; None if the service does not say so.

    It says so only where nothing was spent.
    """
    hint = error.retry_after
    return None if hint is None else hint * random.uniform(*_JITTER)


class AsyncLabelClient:
    """A client on asyncio."""

    def __init__(
        self, address: str, certs: str | Path, *, coordinator_name: str = "coordinator"
    ) -> None:
        credentials = Credentials.load(Path(certs), Role.CLIENT)
        server = Identity(Role.COORDINATOR, coordinator_name)
        self._who = f"{WHO} at {address}"
        self._channel = rpc.dial(credentials, address, server)
        self._labels = label_pb2_grpc.LabelServiceStub(self._channel)
        self._models = model_pb2_grpc.ModelServiceStub(self._channel)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the connection."""
        await self._channel.close()

    async def label(self, queries: npt.ArrayLike, plan: Plan, patience: float = 0.0) -> LabelResult:
        """Labels a batch."""
        async for event in self.stream(queries, plan, patience):
            if isinstance(event, LabelResult):
                return event
        raise nonsense("it ended without a result")

    async def stream(
        self, queries: npt.ArrayLike, plan: Plan, patience: float = 0.0
    ) -> AsyncGenerator[Progress | LabelResult, None]:
        """Labels a batch: progress as it happens, then the result."""
        array, message = rows_of(queries), plan.message()
        if plan.task is not None:
            agreement.check_rows(plan.task, array, "queries")
        started = time.monotonic()
        while True:
            try:
                async with contextlib.aclosing(self._ask(array, message, plan.task)) as events:
                    async for event in events:
                        yield event
                return
            except VoteError as error:
                if error.kind is ErrorKind.TASK_DIFFERS and plan.task is not None:
                    raise await self._difference(plan.task) from error
                wait, waited = pause(error), time.monotonic() - started
                if wait is None or waited + wait > patience:
                    raise
                detail = f"{error.message} It is asked again in {wait:.1f} s."
            yield Progress("waiting", 0, 1, detail, waited)
            await asyncio.sleep(wait)

    async def _difference(self, mine: Task) -> VoteError:
        """That the service's task of this name is another, and in what."""
        return agreement.differs("this client", mine, "the service", await self.task(mine.name))

    async def _ask(
        self, queries: npt.NDArray[Any], plan: label_pb2.LabelPlan, task: Task | None
    ) -> AsyncGenerator[Progress | LabelResult, None]:
        """One request."""
        parts: list[label_pb2.Labels] = []
        room = len(queries) * plan.classes
        opened = label_pb2.RoundOpened()
        call = self._labels.RequestLabels(label_requests(queries, plan), timeout=_LABEL_SECONDS)
        try:
            async for response in call:
                plain(response)
                if response.HasField("opened"):
                    opened = response.opened
                    yield Progress("opened", 1, 1, "", 0.0, opened.spec.round_id)
                elif response.HasField("progress"):
                    yield progress_of(response.progress, opened.spec.round_id)
                elif response.HasField("labels"):
                    parts.append(response.labels)
                    room -= len(response.labels.values)
                    if room < 0 or len(parts) > len(queries):
                        raise nonsense(f"it has more labels than {len(queries)} queries take")
                else:
                    yield result_of(response.completed, parts, opened, queries, plan, task)
                    return
        except grpc.RpcError as error:
            raise self._failed(error) from error
        finally:
            call.cancel()
        why = "it ended the stream"
        raise VoteError(ErrorKind.COORDINATOR_UNREACHABLE, who=self._who, why=why)

    async def plan(self, queries: npt.ArrayLike | int, plan: Plan) -> RoundPlan:
        """A dry run: who would be asked and what it would cost; nothing is spent or kept.

        A number of queries is enough; with an array, what agents take of it is checked too.
        """
        request = label_pb2.PlanRoundRequest(plan=plan.message())
        if isinstance(queries, int):
            request.plan.queries = queries
        else:
            array = rows_of(queries)
            if plan.task is not None:
                agreement.check_rows(plan.task, array, "queries")
            request.plan.queries = len(array)
            request.query_dtype = tensors.dtype_code(array.dtype)
            request.query_shape.extend(array.shape[1:])
        try:
            answer = await self._call(self._labels.PlanRound(request, timeout=_CALL_SECONDS))
        except VoteError as error:
            if error.kind is ErrorKind.TASK_DIFFERS and plan.task is not None:
                raise await self._difference(plan.task) from error
            raise
        try:
            return RoundPlan.from_message(answer)
        except VoteError as error:
            raise nonsense(error.message) from error

    async def is_ready(self) -> bool:
        """Whether the service can label: every party can work and an agent attends."""
        return await rpc.is_serving(self._channel, "mpcvote.v1.LabelService")

    async def service(self) -> label_pb2.GetServiceResponse:
        """Who attends, which tasks there are, and the defaults."""
        request = label_pb2.GetServiceRequest()
        return await self._call(self._labels.GetService(request, timeout=_CALL_SECONDS))

    async def task(self, name: str) -> Task:
        """A task that the service serves."""
        request = common_pb2.GetTaskRequest(name=name)
        found = await self._call(self._labels.GetTask(request, timeout=_CALL_SECONDS))
        task = agreement.from_wire(found.task, WHO)
        if task.name != name:
            raise nonsense("it is another task than the one asked for")
        return task

    async def rounds(self) -> Sequence[label_pb2.RoundSummary]:
        """This client's rounds, oldest first."""
        request = label_pb2.ListRoundsRequest()
        response = await self._call(self._labels.ListRounds(request, timeout=_CALL_SECONDS))
        return list(response.rounds)

    async def round(self, round_id: str) -> label_pb2.GetRoundResponse:
        """A round's state and, if it is complete, its labels."""
        request = label_pb2.GetRoundRequest(round_id=round_id)
        found = await self._call(self._labels.GetRound(request, timeout=_CALL_SECONDS))
        labels, rows = found.labels, found.round.queries
        if found.HasField("labels") and (
            labels.width == 0 or len(labels.values) != rows * labels.width
        ):
            raise nonsense(f"{len(labels.values)} labels for {rows} queries")
        return found

    @staticmethod
    def task_of(found: label_pb2.GetRoundResponse) -> Task | None:
        """The task of a round as it was then, if it has one."""
        return agreement.from_wire(found.task, WHO) if found.HasField("task") else None

    async def cancel(self, round_id: str) -> bool:
        """Ends a round of this client's; False if it is charged, and goes on, or has ended."""
        request = label_pb2.CancelRoundRequest(round_id=round_id)
        answer = await self._call(self._labels.CancelRound(request, timeout=_CALL_SECONDS))
        return answer.cancelled

    async def train(
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
        map of this name, or among the points themselves.
        """
        first = model_pb2.TrainRequest(
            round_ids=round_ids, seed=seed, features=features, task_digest=digest_of(task)
        )
        points = None if unlabelled is None else rows_of(unlabelled, "unlabelled")
        if task is not None and points is not None:
            agreement.check_rows(task, points, "unlabelled")
        call = self._models.Train(train_requests(first, points), timeout=_LABEL_SECONDS)
        try:
            async for response in call:
                plain(response)
                if not response.HasField("progress"):
                    return Model.from_message(response.model)
                on_progress(response.progress)
        except grpc.RpcError as error:
            raise self._failed(error) from error
        finally:
            call.cancel()
        raise nonsense("it ended without a model")

    async def models(self) -> Sequence[Model]:
        """All versions, oldest first."""
        request = model_pb2.ListModelsRequest()
        response = await self._call(self._models.ListModels(request, timeout=_CALL_SECONDS))
        return [Model.from_message(one) for one in response.models]

    async def model(self, version: int = 0, *, task: Task | None = None) -> tuple[Model, bytes]:
        """A version's description and its file; 0 is the newest, with a task of its models."""
        description, content = model_pb2.Model(), bytearray()
        request = model_pb2.GetModelRequest(version=version, task_digest=digest_of(task))
        try:
            async for response in self._models.GetModel(request, timeout=_CALL_SECONDS):
                plain(response)
                if response.HasField("model"):
                    description = response.model
                else:
                    content += response.chunk
                if len(content) > _MAX_MODEL_BYTES:
                    raise nonsense(f"the model takes over {_MAX_MODEL_BYTES} bytes")
        except grpc.RpcError as error:
            raise self._failed(error) from error
        if hashlib.sha256(content).digest() != description.sha256:
            raise nonsense("the model is not the one that it describes")
        return Model.from_message(description), bytes(content)

    async def predict(
        self, inputs: npt.ArrayLike, version: int = 0, *, task: Task | None = None
    ) -> npt.NDArray[np.int64]:
        """What the global model says of these inputs; with a task, one of the task's models."""
        labels: list[int] = []
        rows = rows_of(inputs, "inputs")
        if task is not None:
            agreement.check_rows(task, rows, "inputs")
        for tensor in tensors.chunks(rows):
            request = model_pb2.PredictRequest(
                version=version, inputs=tensor, task_digest=digest_of(task)
            )
            response = await self._call(self._models.Predict(request, timeout=_CALL_SECONDS))
            if len(response.labels) != tensor.shape[0]:
                raise nonsense(f"{len(response.labels)} labels for {tensor.shape[0]} inputs")
            labels.extend(response.labels)
        return np.array(labels, dtype=np.int64)

    async def _call(self, call: Awaitable[Answer]) -> Answer:
        try:
            answer = await call
        except grpc.RpcError as error:
            raise self._failed(error) from error
        if answer is None:
            # What gRPC gives where a call ends well without an answer.
            raise nonsense("it is empty")
        plain(answer)
        return answer

    def _failed(self, error: grpc.RpcError) -> VoteError:
        """What the coordinator said, or that it says nothing at the address that was tried."""
        return VoteError.from_rpc(error, self._who, ErrorKind.COORDINATOR_UNREACHABLE)
