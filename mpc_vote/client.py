"""The client: a batch of public queries in, labels and their cost out.

    from mpc_vote import LabelClient, Plan

    with LabelClient("localhost:7000", "certs/client/me") as client:
        result = client.label(queries, Plan(classes=10))
        print(result.labels, result.cost.epsilon_agent)

With a task, `Plan(task=Task.load(path))` or `Plan(task=client.task("rhc"))`, all that it says need
not be said again, and `result.names` has the labels by name.

`AsyncLabelClient` does the same on asyncio. Both raise `VoteError`, which says what to do. With
`patience`, in seconds, a service that is busy is asked again when it says so, until then.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import random
import threading
import time
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Coroutine,
    Generator,
    Iterator,
    MutableMapping,
    Sequence,
)
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeAlias, TypeVar

import grpc
import numpy as np
import numpy.typing as npt
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from mpc_vote.argmax.registry import ENGINES, EngineKind
from mpc_vote.errors import ErrorKind, VoteError, printable
from mpc_vote.pki.identity import Credentials, Identity, Role
from mpc_vote.privacy.accountant import MIN_DELTA
from mpc_vote.proto.mpcvote.v1 import (
    common_pb2,
    label_pb2,
    label_pb2_grpc,
    model_pb2,
    model_pb2_grpc,
)
from mpc_vote.results import Cost, Model
from mpc_vote.tasks import Task, agreement
from mpc_vote.transport import rpc, tensors
from mpc_vote.voting.ballots import BALLOTS, BallotKind
from mpc_vote.voting.limits import MAX_CLASSES
from mpc_vote.voting.round_plan import RoundPlan

_CALL_SECONDS = 30.0
_LABEL_SECONDS = 3_600.0
_WHO = "The coordinator"
# Clients that were told the same come back one after the other, none before its time.
_JITTER = (1.0, 1.25)
# Of the largest model that a service trains, on rows of wire.MAX_ROW_BYTES.
_MAX_MODEL_BYTES = (1 << 30) + (1 << 24)

T = TypeVar("T")
Answer = TypeVar("Answer", bound=Message)


@dataclass(frozen=True)
class Progress:
    """How far a round is; seconds since its start, by the coordinator's clock.

    In the stage `waiting`, there is none yet: seconds since the first request, by the client's. The
    stage `opened` is the first that knows the round's id.
    """

    stage: str
    done: int
    total: int
    detail: str
    seconds: float
    round_id: str = ""


@dataclass(frozen=True)
class LabelResult:
    """Released labels: (rows,), or (rows, attributes) of 0 and 1 for multi-label ballots."""

    round_id: str
    labels: npt.NDArray[np.int64]
    cost: Cost
    contributors: int
    absences: dict[str, str]
    warnings: tuple[str, ...]
    spec: common_pb2.RoundSpec | None
    task: Task | None = None

    @property
    def names(self) -> list[str] | list[list[str]] | None:
        """The labels by name, for attributes a list of those that a row has; None without a
        task."""
        return None if self.task is None else self.task.names(self.labels)


@dataclass(frozen=True)
class Plan:
    """What is asked for; None means the service's default.

    Either `task` or `classes` is given: classes, ballot and tau follow from a task. Ballots and
    engines can be given by name, as in `Plan(classes=10, ballot="knn_count")`. `agreement` is the
    part of the votes on a query that is expected to name its right class: where noise would drown
    even their lead the request is refused, unspent. None: labels are asked for all the same.
    """

    classes: int | None = None
    ballot: BallotKind | str | None = None
    sigma: float | None = None
    quorum: int | None = None
    collusion: int | None = None
    tau: int | None = None
    engine: EngineKind | str | None = None
    delta: float | None = None
    answer_seconds: int | None = None
    request_id: str | None = None
    verified: bool | None = None
    task: Task | None = None
    agreement: float | None = 1.0

    def __post_init__(self) -> None:
        for name, registry in (("ballot", BALLOTS), ("engine", ENGINES)):
            given = getattr(self, name)
            if given is not None:
                object.__setattr__(self, name, registry.chosen(given))

    def message(self) -> label_pb2.LabelPlan:
        """The plan on the wire, where zero means the default: a zero that is meant is refused."""
        if self.sigma is not None and not self.sigma > 0:
            raise VoteError(ErrorKind.SIGMA_RANGE, field="plan.sigma", got=self.sigma)
        if self.delta is not None and not MIN_DELTA <= self.delta < 1:
            raise VoteError(
                ErrorKind.DELTA_RANGE, field="plan.delta", got=self.delta, low=MIN_DELTA
            )
        if self.agreement is not None and not 0 <= self.agreement <= 1:
            raise VoteError(ErrorKind.AGREEMENT_RANGE, field="plan.agreement", got=self.agreement)
        given = {name: value for name, value in vars(self).items() if value is not None}
        if self.task is not None:
            given |= self._of_task(self.task)
        classes = given.get("classes", 0)
        if not 1 <= classes <= MAX_CLASSES:
            raise VoteError(
                ErrorKind.CLASSES_RANGE,
                field="plan.classes",
                got=classes,
                low=1,
                high=MAX_CLASSES,
            )
        for name in ("ballot", "engine"):
            if name in given:
                given[name] = given[name].code
        return label_pb2.LabelPlan(**given)

    def _of_task(self, task: Task) -> dict[str, Any]:
        """What follows from a task; what the plan says otherwise is refused."""
        follows = {"classes": len(task.classes), "ballot": task.vote.ballot, "tau": task.vote.tau}
        for name, want in follows.items():
            got = getattr(self, name)
            if got is not None and got != want:
                raise VoteError(
                    ErrorKind.TASK_CONTRADICTED,
                    field=f"plan.{name}",
                    got=getattr(got, "name", got),
                    task=task.name,
                    want=getattr(want, "name", want),
                )
        return {**follows, "task": task.name, "task_digest": task.digest}


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
        self._who = f"{_WHO} at {address}"
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
        raise _nonsense("it ended without a result")

    async def stream(
        self, queries: npt.ArrayLike, plan: Plan, patience: float = 0.0
    ) -> AsyncGenerator[Progress | LabelResult, None]:
        """Labels a batch: progress as it happens, then the result."""
        array, message = _rows(queries), plan.message()
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
        call = self._labels.RequestLabels(_requests(queries, plan), timeout=_LABEL_SECONDS)
        try:
            async for response in call:
                _plain(response)
                if response.HasField("opened"):
                    opened = response.opened
                    yield Progress("opened", 1, 1, "", 0.0, opened.spec.round_id)
                elif response.HasField("progress"):
                    yield _progress(response.progress, opened.spec.round_id)
                elif response.HasField("labels"):
                    parts.append(response.labels)
                    room -= len(response.labels.values)
                    if room < 0 or len(parts) > len(queries):
                        raise _nonsense(f"it has more labels than {len(queries)} queries take")
                else:
                    yield _result(response.completed, parts, opened, queries, plan, task)
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
            array = _rows(queries)
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
            raise _nonsense(error.message) from error

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
        task = agreement.from_wire(found.task, _WHO)
        if task.name != name:
            raise _nonsense("it is another task than the one asked for")
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
            raise _nonsense(f"{len(labels.values)} labels for {rows} queries")
        return found

    @staticmethod
    def task_of(found: label_pb2.GetRoundResponse) -> Task | None:
        """The task of a round as it was then, if it has one."""
        return agreement.from_wire(found.task, _WHO) if found.HasField("task") else None

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
            round_ids=round_ids, seed=seed, features=features, task_digest=_digest(task)
        )
        points = None if unlabelled is None else _rows(unlabelled, "unlabelled")
        if task is not None and points is not None:
            agreement.check_rows(task, points, "unlabelled")
        call = self._models.Train(_train_requests(first, points), timeout=_LABEL_SECONDS)
        try:
            async for response in call:
                _plain(response)
                if not response.HasField("progress"):
                    return Model.from_message(response.model)
                on_progress(response.progress)
        except grpc.RpcError as error:
            raise self._failed(error) from error
        finally:
            call.cancel()
        raise _nonsense("it ended without a model")

    async def models(self) -> Sequence[Model]:
        """All versions, oldest first."""
        request = model_pb2.ListModelsRequest()
        response = await self._call(self._models.ListModels(request, timeout=_CALL_SECONDS))
        return [Model.from_message(one) for one in response.models]

    async def model(self, version: int = 0, *, task: Task | None = None) -> tuple[Model, bytes]:
        """A version's description and its file; 0 is the newest, with a task of its models."""
        description, content = model_pb2.Model(), bytearray()
        request = model_pb2.GetModelRequest(version=version, task_digest=_digest(task))
        try:
            async for response in self._models.GetModel(request, timeout=_CALL_SECONDS):
                _plain(response)
                if response.HasField("model"):
                    description = response.model
                else:
                    content += response.chunk
                if len(content) > _MAX_MODEL_BYTES:
                    raise _nonsense(f"the model takes over {_MAX_MODEL_BYTES} bytes")
        except grpc.RpcError as error:
            raise self._failed(error) from error
        if hashlib.sha256(content).digest() != description.sha256:
            raise _nonsense("the model is not the one that it describes")
        return Model.from_message(description), bytes(content)

    async def predict(
        self, inputs: npt.ArrayLike, version: int = 0, *, task: Task | None = None
    ) -> npt.NDArray[np.int64]:
        """What the global model says of these inputs; with a task, one of the task's models."""
        labels: list[int] = []
        rows = _rows(inputs, "inputs")
        if task is not None:
            agreement.check_rows(task, rows, "inputs")
        for tensor in tensors.chunks(rows):
            request = model_pb2.PredictRequest(
                version=version, inputs=tensor, task_digest=_digest(task)
            )
            response = await self._call(self._models.Predict(request, timeout=_CALL_SECONDS))
            if len(response.labels) != tensor.shape[0]:
                raise _nonsense(f"{len(response.labels)} labels for {tensor.shape[0]} inputs")
            labels.extend(response.labels)
        return np.array(labels, dtype=np.int64)

    async def _call(self, call: Awaitable[Answer]) -> Answer:
        try:
            answer = await call
        except grpc.RpcError as error:
            raise self._failed(error) from error
        if answer is None:
            # What gRPC gives where a call ends well without an answer.
            raise _nonsense("it is empty")
        _plain(answer)
        return answer

    def _failed(self, error: grpc.RpcError) -> VoteError:
        """What the coordinator said, or that it says nothing at the address that was tried."""
        return VoteError.from_rpc(error, self._who, ErrorKind.COORDINATOR_UNREACHABLE)


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
        """Ends the loop once nothing is left that would want to run on it."""
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


def _rows(given: npt.ArrayLike, field: str = "queries") -> npt.NDArray[Any]:
    """Rows that the wire can carry; refused here, since inside a stream gRPC hides the reason."""
    array = np.asarray(given)
    if array.size == 0:
        raise VoteError(ErrorKind.QUERIES_EMPTY, field=field)
    tensors.dtype_code(array.dtype)
    if array.ndim < 2:
        raise VoteError(
            ErrorKind.QUERIES_SHAPE, field=field, got=array.shape[1:], want="(features, ...)"
        )
    tensors.rows_per_chunk(array[:1].nbytes, field)
    tensors.check_finite(array, field)
    return array


def _digest(task: Task | None) -> bytes:
    return b"" if task is None else task.digest


def _requests(
    queries: npt.NDArray[Any], plan: label_pb2.LabelPlan
) -> Iterator[label_pb2.RequestLabelsRequest]:
    plan.queries = len(queries)
    yield label_pb2.RequestLabelsRequest(plan=plan)
    for tensor in tensors.chunks(queries):
        yield label_pb2.RequestLabelsRequest(queries=tensor)


def _train_requests(
    first: model_pb2.TrainRequest, unlabelled: npt.NDArray[Any] | None
) -> Iterator[model_pb2.TrainRequest]:
    yield first
    if unlabelled is not None:
        for tensor in tensors.chunks(unlabelled):
            yield model_pb2.TrainRequest(unlabelled=tensor)


def _progress(message: label_pb2.Progress, round_id: str) -> Progress:
    known = message.stage in label_pb2.Stage.values()
    stage = label_pb2.Stage.Name(message.stage).removeprefix("STAGE_").lower() if known else "?"
    return Progress(stage, message.done, message.total, message.detail, message.seconds, round_id)


def _result(
    completed: label_pb2.RoundCompleted,
    parts: Sequence[label_pb2.Labels],
    opened: label_pb2.RoundOpened,
    queries: npt.NDArray[Any],
    plan: label_pb2.LabelPlan,
    task: Task | None,
) -> LabelResult:
    """All labels in their places, once there is one for each query."""
    rows, classes = len(queries), plan.classes
    width = parts[0].width if parts else 1
    values = {part.offset: part.values for part in parts}
    flat = np.array([value for o in sorted(values) for value in values[o]], dtype=np.int64)
    if width == 0 or flat.size != rows * width:
        raise _nonsense(f"{flat.size} labels for {rows} queries")
    if task is not None and width != task.vote.ballot.width(classes):
        raise _nonsense(f"{width} labels for a query of task {task.name}")
    if flat.max() >= max(2, classes):
        raise _nonsense(f"label {flat.max()} of {classes} classes")
    return LabelResult(
        round_id=completed.round_id,
        labels=flat if width == 1 else flat.reshape(-1, width),
        cost=Cost.from_message(completed.cost),
        contributors=completed.contributors,
        absences={one.agent: one.reason for one in completed.absences},
        warnings=tuple(opened.warnings),
        spec=opened.spec if opened.HasField("spec") else None,
        task=task,
    )


def _nonsense(why: str) -> VoteError:
    return VoteError(ErrorKind.ANSWER_MALFORMED, who=_WHO, why=why)


def _plain(answer: Message) -> None:
    """Has all texts of an answer fit for a line of a terminal, whoever wrote them."""
    for field, value in answer.ListFields():
        if field.type == FieldDescriptor.TYPE_STRING:
            if isinstance(value, str):
                setattr(answer, field.name, printable(value))
            else:
                value[:] = [printable(text) for text in value]
        elif field.type == FieldDescriptor.TYPE_MESSAGE:
            if isinstance(value, MutableMapping):
                # The only maps are of numbers, by name.
                told = {printable(name): number for name, number in value.items()}
                value.clear()
                value.update(told)
            else:
                for part in [value] if isinstance(value, Message) else value:
                    _plain(part)
