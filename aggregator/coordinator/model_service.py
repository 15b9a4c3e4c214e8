"""The global model: trained on released labels, versioned, stored with its provenance, served.

Post-processing: whatever is done with released labels costs no more privacy than the labels did.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import importlib.util
import logging
import math
import secrets
import shutil
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from aggregator.coordinator.admission import AdmissionControl
from aggregator.coordinator.archive import COMPLETE, Archive, RoundRecord
from aggregator.coordinator.requests import Intake, check_rows, hung_up, in_time
from aggregator.coordinator.spending import with_figures
from aggregator.coordinator.turns import Turns
from mpc_vote.app import threads
from mpc_vote.data.dataset import FloatArray
from mpc_vote.errors import ErrorKind, VoteError
from mpc_vote.learning import students
from mpc_vote.learning.features import for_task
from mpc_vote.learning.features.maps import FEATURE_MAPS, FeatureMap
from mpc_vote.learning.students.classifier import Classifier
from mpc_vote.pki.identity import Role
from mpc_vote.privacy import charging
from mpc_vote.proto.mpcvote.v1 import common_pb2, model_pb2, model_pb2_grpc
from mpc_vote.results import COMMONEST
from mpc_vote.tasks import Task, agreement
from mpc_vote.transport import rpc, tensors
from mpc_vote.voting.limits import MAX_QUERY_BYTES
from mpc_vote.voting.spec import Spec

log = logging.getLogger(__name__)

# What our own students take.
_PACKAGES = ("torch", "safetensors", "scipy")
# Points that a new model is tried on.
_TRIED = 100
# Labels times points: propagation holds such a matrix several times over, some 500 MiB in all.
_MAX_CELLS = 1 << 24
# Of the queries to learn from, as float32; a client may have rounds without end.
_MAX_BYTES = 4 * MAX_QUERY_BYTES
# Inputs of a prediction that are first mapped at a time, and how long that should take.
_FIRST_STEP, _STEP_SECONDS = 64, 0.25
# The newest, of which those that are alike are learnt from, where none is named.
_MAX_ROUNDS = 10_000


class _Question(NamedTuple):
    """A model, where it is, whose inputs it takes, and inputs."""

    model: model_pb2.Model
    path: Path
    task: Task | None
    inputs: tensors.Array


class _Loaded(NamedTuple):
    """The model that was asked last, with what makes points of its inputs."""

    path: Path
    model: Classifier
    features: FeatureMap


class ModelServicer(model_pb2_grpc.ModelServiceServicer):
    """Trains one model at a time; serves any version."""

    def __init__(
        self,
        archive: Archive,
        delta: float,
        student: str = students.DEFAULT,
        weights: Mapping[str, Path] | None = None,
    ) -> None:
        self._archive = archive
        # Of tasks' feature maps, by the tasks' names.
        self._weights = weights or {}
        self._delta = delta
        self._student = student
        # One client that uploads without end must not keep the others from training.
        self._places = AdmissionControl(1, refusal=ErrorKind.TRAINING_BUSY)
        self._turns = Turns()
        self._loaded: _Loaded | None = None

    async def health(self) -> Mapping[str, bool]:
        """Models depend on nobody."""
        return {model_pb2.DESCRIPTOR.services_by_name["ModelService"].full_name: True}

    @rpc.allowed(Role.CLIENT, upload=True)
    async def Train(
        self, request_iterator: Any, context: Any
    ) -> AsyncIterator[model_pb2.TrainResponse]:
        _check_installed(self._student)
        client = rpc.caller().name
        messages = aiter(request_iterator)
        async with in_time():
            first = await anext(messages, model_pb2.TrainRequest())
        rounds = await self._turns.do(client, self._rounds, client, first)
        task = self._archive.task(rounds[0].spec.task_digest)
        self._places.take(client)
        started = time.monotonic()
        try:
            await asyncio.to_thread(_check_features, first.features, rounds[0].spec, task)
            async with in_time():
                unlabelled = await _read_unlabelled(first, messages, rounds, task)
            further = 0 if unlabelled is None else len(unlabelled)
            if sum(record.spec.queries for record in rounds) + further < 2:
                raise VoteError(ErrorKind.TOO_FEW_POINTS)
        except BaseException:
            self._places.release()
            raise
        loop = asyncio.get_running_loop()
        steps: asyncio.Queue[model_pb2.TrainProgress] = asyncio.Queue()

        def on_progress(step: int, of: int, loss: float) -> None:
            progress = model_pb2.TrainProgress(step=step, steps=of, loss=loss)
            loop.call_soon_threadsafe(steps.put_nowait, progress)

        # A thread can't be cancelled: a client that hangs up leaves the training to its end.
        work = threads.start(self._train, client, rounds, task, first, unlabelled, on_progress)
        work.add_done_callback(lambda _: self._places.release(time.monotonic() - started))
        while not work.done():
            waiting = asyncio.create_task(steps.get())
            either: list[asyncio.Future[Any]] = [work, waiting]
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if waiting.done():
                yield model_pb2.TrainResponse(progress=waiting.result())
            else:
                waiting.cancel()
        yield model_pb2.TrainResponse(model=await work)

    @rpc.allowed(Role.CLIENT)
    async def ListModels(
        self, request: model_pb2.ListModelsRequest, context: Any
    ) -> model_pb2.ListModelsResponse:
        client = rpc.caller().name
        models = await self._turns.do(client, self._archive.models, client)
        return model_pb2.ListModelsResponse(models=models)

    @rpc.allowed(Role.CLIENT)
    async def GetModel(
        self, request: model_pb2.GetModelRequest, context: Any
    ) -> AsyncIterator[model_pb2.GetModelResponse]:
        client = rpc.caller().name
        model = await self._turns.do(client, self._model, client, request)
        # A client may ask and not read: no more than a piece of the file waits for it.
        with (
            self._turns.call(client),
            self._archive.model_path(client, model.version).open("rb") as file,
        ):
            yield model_pb2.GetModelResponse(model=model)
            while chunk := file.read(tensors.CHUNK_BYTES):
                yield model_pb2.GetModelResponse(chunk=chunk)

    @rpc.allowed(Role.CLIENT)
    async def Predict(
        self, request: model_pb2.PredictRequest, context: Any
    ) -> model_pb2.PredictResponse:
        client = rpc.caller().name
        asked = await self._turns.do(client, self._question, client, request)
        labels: list[int] = []
        step = _FIRST_STEP
        # Between two parts others have their turn: a feature map may take seconds for some rows.
        while len(labels) < len(asked.inputs):
            rows = asked.inputs[len(labels) : len(labels) + step]
            started = time.monotonic()
            labels += await self._turns.do(client, self._predict, asked, rows)
            step = 2 * step if time.monotonic() - started < _STEP_SECONDS else max(1, step // 2)
        return model_pb2.PredictResponse(version=asked.model.version, labels=labels)

    def _rounds(self, client: str, request: model_pb2.TrainRequest) -> list[RoundRecord]:
        """In a thread: the rounds to learn from, which must be alike."""
        digest = request.task_digest
        if request.round_ids:
            wanted = dict.fromkeys(request.round_ids)
            chosen = [self._complete(client, round_id) for round_id in wanted]
        else:
            newest = self._archive.rounds(client, _MAX_ROUNDS)
            complete = [r for r in newest if r.state == COMPLETE and _is_of(r, digest)]
            chosen = [r for r in complete if _kind(r) == _kind(complete[-1])]
        if not chosen:
            of = "of the task that you name " if digest else ""
            raise VoteError(ErrorKind.NOTHING_LABELLED, of=of)
        if not all(_is_of(record, digest) for record in chosen):
            why = "some are not of the task"
            raise VoteError(ErrorKind.ROUNDS_UNLIKE, field="round_ids", why=why)
        if len({_kind(record) for record in chosen}) > 1:
            why = "choose rounds of one kind"
            raise VoteError(ErrorKind.ROUNDS_UNLIKE, field="round_ids", why=why)
        if chosen[0].attributes:
            raise VoteError(ErrorKind.MULTI_LABEL_MODEL, field="round_ids")
        points = sum(record.spec.queries for record in chosen)
        size = points * math.prod(chosen[0].spec.query_shape) * np.dtype(np.float32).itemsize
        if size > _MAX_BYTES:
            raise VoteError(
                ErrorKind.ROUNDS_TOO_LARGE, field="round_ids", got=size, limit=_MAX_BYTES
            )
        return chosen

    def _complete(self, client: str, round_id: str) -> RoundRecord:
        record = self._archive.round(round_id, client)
        if record is None or record.state != COMPLETE:
            raise VoteError(ErrorKind.ROUND_UNKNOWN, field="round_ids", round=round_id)
        return replace(record, labels=None)

    def _train(
        self,
        client: str,
        rounds: Sequence[RoundRecord],
        task: Task | None,
        request: model_pb2.TrainRequest,
        unlabelled: tensors.Array | None,
        on_progress: Any,
    ) -> model_pb2.Model:
        """In a thread: a new version from the labels of these rounds, and points without."""
        parts = [self._archive.queries(r.round_id) for r in rounds]
        points = self._features(task)
        with _told_to_clients(self._student):
            if task is not None:
                further = 0 if unlabelled is None else len(unlabelled)
                _check_width(points(parts[0][:1]), sum(map(len, parts)) + further)
            x = np.concatenate([points(part) for part in parts])
            unlabelled = None if unlabelled is None else points(unlabelled)
        some = x[:_TRIED].copy()
        y = self._archive.labels(rounds).astype(np.int64)
        spec = rounds[-1].spec
        options = students.StudentOptions(spec.classes, request.seed, request.features, on_progress)
        with _told_to_clients(self._student):
            factory = students.find_student(self._student)
            trained = students.check_model(factory.train(x, y, unlabelled, options), spec.classes)
            metrics = {str(name): float(value) for name, value in trained.metrics.items()}
        # What a model that always says the commonest label would have, beside its `agreement`.
        metrics[COMMONEST] = float(np.bincount(y).max() / y.size)
        spent = [Spec.parse(r.spec.SerializeToString()).mechanism for r in rounds]
        scratch = self._archive.scratch_model_path(secrets.token_hex(8))
        model = model_pb2.Model(
            round_ids=[r.round_id for r in rounds],
            labels=y.size,
            unlabelled=0 if unlabelled is None else len(unlabelled),
            classes=spec.classes,
            query_dtype=spec.query_dtype,
            query_shape=spec.query_shape,
            delta=self._delta,
            metrics=metrics,
            trained_unix_ms=int(time.time() * 1000),
            student=self._student,
            task=spec.task,
            task_digest=spec.task_digest,
        )
        with_figures(model, charging.figures(spent, self._delta))
        try:
            with _told_to_clients(self._student):
                trained.save(scratch, _provenance(model))
                if not scratch.is_file():
                    raise ValueError("save() wrote no file at the path that it was given")
                # What is served is what was loaded: it has a version once it is known to work.
                students.predict(factory.load(scratch), some, spec.classes)
            model.sha256 = hashlib.sha256(scratch.read_bytes()).digest()
            return self._archive.add_model(client, model, scratch)
        finally:
            # Also what a student wrote beside it, as numpy does where a name has no ending.
            for left in scratch.parent.glob(f"{scratch.name}*"):
                if left.is_dir() and not left.is_symlink():
                    shutil.rmtree(left)
                else:
                    left.unlink()

    def _question(self, client: str, request: model_pb2.PredictRequest) -> _Question:
        """In a thread: the model that is asked, and sound inputs."""
        model = self._model(client, request)
        _check_installed(model.student or students.DEFAULT)
        inputs = tensors.from_tensor(request.inputs, "inputs")
        check_rows(inputs, tensors.dtype_of(model.query_dtype), model.query_shape, "inputs")
        if len(inputs) == 0:
            raise VoteError(ErrorKind.QUERIES_EMPTY, field="inputs")
        tensors.check_finite(inputs, "inputs")
        task = self._archive.task(model.task_digest)
        if task is not None:
            agreement.check_rows(task, inputs, "inputs")
        return _Question(model, self._archive.model_path(client, model.version), task, inputs)

    def _predict(self, asked: _Question, rows: tensors.Array) -> list[int]:
        """In a thread: what a model says of some inputs."""
        student = asked.model.student or students.DEFAULT
        loaded = self._loaded
        with _told_to_clients(student):
            if loaded is None or loaded.path != asked.path:
                model = students.find_student(student).load(asked.path)
                loaded = self._loaded = _Loaded(asked.path, model, self._features(asked.task))
            points = loaded.features(rows)
            labels = students.predict(loaded.model, points, asked.model.classes)
        return [int(label) for label in labels]

    def _features(self, task: Task | None) -> FeatureMap:
        """What makes points of rows: a student learns from them as they are, or in the task's
        feature map."""
        if task is None:
            return _as_they_are
        try:
            return for_task(task, self._weights.get(task.name))
        except (ValueError, OSError, ImportError) as error:
            log.exception("the features of task %s can't be made", task.name)
            why = type(error).__name__
            raise VoteError(ErrorKind.FEATURES_MISSING, task=task.name, why=why) from error

    def _model(
        self, client: str, request: model_pb2.GetModelRequest | model_pb2.PredictRequest
    ) -> model_pb2.Model:
        """The version that is asked for, among the task's if one is named."""
        version, digest = request.version, request.task_digest
        models = [m for m in self._archive.models(client) if digest in (b"", m.task_digest)]
        for model in models if version else models[-1:]:
            if version in (0, model.version):
                return model
        wanted = f"{version or 'yet'}{' of the task that you name' if digest else ''}"
        raise VoteError(ErrorKind.MODEL_UNKNOWN, field="version", version=wanted)


def _kind(record: RoundRecord) -> tuple[Any, ...]:
    spec = record.spec
    shape = tuple(spec.query_shape)
    return spec.task_digest, spec.classes, spec.query_dtype, shape, record.attributes


def _is_of(record: RoundRecord, task_digest: bytes) -> bool:
    return task_digest in (b"", record.spec.task_digest)


def _check_width(point: FloatArray, points: int) -> None:
    """Refuses more points than fit as the task's feature map makes them."""
    size = points * point.nbytes
    if size > _MAX_BYTES:
        raise VoteError(ErrorKind.ROUNDS_TOO_LARGE, field="round_ids", got=size, limit=_MAX_BYTES)


def _as_they_are(rows: tensors.Array) -> FloatArray:
    return rows.astype(np.float32, copy=False)


@contextlib.contextmanager
def _told_to_clients(student: str) -> Iterator[None]:
    """Whatever a student's code ends with, the client hears of it and the coordinator goes on."""
    try:
        yield
    except VoteError:
        raise
    except (Exception, SystemExit) as error:
        log.exception("student %s failed", student)
        why = str(error) if isinstance(error, ValueError) else type(error).__name__
        raise VoteError(ErrorKind.STUDENT_FAILED, student=student, why=why) from error


def _check_installed(student: str) -> None:
    """Refuses what takes learning, if this coordinator was installed without."""
    for package in _PACKAGES if student in students.OWN else ():
        if importlib.util.find_spec(package) is None:
            raise VoteError(ErrorKind.LEARNING_MISSING, package=package)


def _check_features(name: str, spec: common_pb2.RoundSpec, task: Task | None) -> None:
    """Refuses a feature map that doesn't exist, or not for points of this shape, or beside that of
    a task."""
    if not name:
        return
    if task is not None:
        raise VoteError(
            ErrorKind.TASK_CONTRADICTED,
            field="features",
            got=name,
            task=task.name,
            want=task.features.map,
        )
    if name not in FEATURE_MAPS:
        known = ", ".join(FEATURE_MAPS)
        raise VoteError(ErrorKind.METHOD_UNKNOWN, field="features", got=name, want=known)
    try:
        FEATURE_MAPS[name](np.zeros((1, *spec.query_shape), np.float32))
    except ValueError as error:
        raise VoteError(ErrorKind.FEATURES_UNFIT, field="features", why=error) from error


async def _read_unlabelled(
    first: model_pb2.TrainRequest,
    rest: AsyncIterator[model_pb2.TrainRequest],
    rounds: Sequence[RoundRecord],
    task: Task | None,
) -> tensors.Array | None:
    """The points without labels; None if no message has any."""
    spec = rounds[0].spec
    dtype, shape = tensors.dtype_of(spec.query_dtype), spec.query_shape
    labels = sum(record.spec.queries for record in rounds)
    limit = max(0, _MAX_CELLS // labels - labels)
    points: Intake | None = None
    message: model_pb2.TrainRequest | None = first
    while message is not None:
        if message.HasField("unlabelled"):
            points = points or Intake("unlabelled")
            check_rows(points.add(message.unlabelled), dtype, shape, "unlabelled")
            if points.rows > limit:
                raise VoteError(
                    ErrorKind.UNLABELLED_TOO_MANY,
                    field="unlabelled",
                    got=points.rows,
                    labels=labels,
                    limit=limit,
                )
        message = await anext(rest, None)
    await hung_up()
    return None if points is None else await asyncio.to_thread(_sound, points, task)


def _sound(points: Intake, task: Task | None) -> tensors.Array:
    """In a thread: rows that can be learnt from."""
    rows = points.batch()
    if task is not None:
        agreement.check_rows(task, rows, "unlabelled")
        return rows
    rows = rows.astype(np.float32, copy=False)
    tensors.check_finite(rows, "unlabelled")
    return rows


def _provenance(model: model_pb2.Model) -> dict[str, str]:
    """What the file itself says of where it came from."""
    return {
        "task": model.task,
        "task_digest": model.task_digest.hex(),
        "rounds": ",".join(model.round_ids),
        "labels": str(model.labels),
        "unlabelled": str(model.unlabelled),
        "epsilon_agent": repr(model.epsilon_agent),
        "epsilon_instance": repr(model.epsilon_instance),
        "labels_epsilon_agent": repr(model.labels_epsilon_agent),
        "labels_epsilon_instance": repr(model.labels_epsilon_instance),
        "delta": repr(model.delta),
        "metrics": ",".join(f"{k}={v:.6g}" for k, v in sorted(model.metrics.items())),
    }
