"""What the service learns from, chosen before anything is read into memory."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from aggregator.coordinator import model_service
from aggregator.coordinator.archive import Archive
from aggregator.coordinator.model_service import ModelServicer
from mpc_vote.errors import ErrorKind
from mpc_vote.learning.students import StudentOptions
from mpc_vote.learning.students.classifier import GlobalModel
from mpc_vote.pki.identity import Identity, Role
from mpc_vote.proto.mpcvote.v1 import label_pb2, model_pb2
from mpc_vote.transport import rpc, tensors
from mpc_vote.voting.spec import Spec
from tests.security.fuzz.decoders import spec_message
from tests.system.service.support import SECONDS, refused

ROWS, WIDTH = 5, 2


@pytest.fixture
def archive(tmp_path: Path) -> Archive:
    """Three complete rounds of one client, and one of another."""
    made = Archive(tmp_path)
    for number, client in enumerate(["client"] * 3 + ["other"]):
        spec = Spec.seal(spec_message(round_id=f"round-{number}"))
        made.open_round(client, "", b"", spec, np.zeros((ROWS, WIDTH), np.float32))
        labels = np.full(ROWS, number, np.uint32)
        made.complete_round(label_pb2.RoundCompleted(round_id=spec.round_id), labels)
    return made


def asked(*rounds: str) -> model_pb2.TrainRequest:
    return model_pb2.TrainRequest(round_ids=rounds)


def test_no_more_is_learnt_from_than_fits(
    archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client may have any number of rounds, and leave it to the service which to take."""
    service = ModelServicer(archive, 1e-3)
    monkeypatch.setattr(model_service, "_MAX_BYTES", 2 * ROWS * WIDTH * 4)
    for wanted in ([], ["round-0", "round-1", "round-2"]):
        with refused(ErrorKind.ROUNDS_TOO_LARGE, "120 bytes as float32"):
            service._rounds("client", asked(*wanted))
    assert len(service._rounds("client", asked("round-2", "round-0"))) == 2


async def _train(
    service: ModelServicer, client: str, messages: AsyncIterator[model_pb2.TrainRequest]
) -> None:
    """Asks for a model in a client's name."""
    rpc._caller.set(Identity(Role.CLIENT, client))
    unguarded: Any = ModelServicer.Train
    async for _ in unguarded.__wrapped__(service, messages, None):
        pass


async def _misfits() -> AsyncIterator[model_pb2.TrainRequest]:
    rows = tensors.to_tensor(np.zeros((1, WIDTH + 1), np.float32))
    yield model_pb2.TrainRequest(unlabelled=rows)


async def test_who_uploads_without_end_does_not_pass_those_that_wait(archive: Archive) -> None:
    service, begun = ModelServicer(archive, 1e-3), asyncio.Event()

    async def endless() -> AsyncIterator[model_pb2.TrainRequest]:
        yield model_pb2.TrainRequest()
        begun.set()
        await asyncio.Event().wait()

    upload = asyncio.create_task(_train(service, "client", endless()))
    await asyncio.wait_for(begun.wait(), SECONDS)
    with refused(ErrorKind.TRAINING_BUSY):
        await _train(service, "other", _misfits())
    upload.cancel()
    await asyncio.wait([upload])
    with refused(ErrorKind.TRAINING_BUSY):
        await _train(service, "client", endless())
    with refused(ErrorKind.QUERIES_SHAPE):
        await _train(service, "other", _misfits())


async def test_a_coordinator_without_learning_says_so(
    archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_service, "_PACKAGES", ("json", "no_such_package"))
    with refused(ErrorKind.LEARNING_MISSING, "no_such_package", "mpc-vote[learning]"):
        await _train(ModelServicer(archive, 1e-3), "client", _misfits())


def test_rounds_are_listed_without_their_labels(archive: Archive) -> None:
    rounds = archive.rounds("client", 10)
    assert [record.labels for record in rounds] == [None] * 3
    assert archive.labels([rounds[2], rounds[0]]).tolist() == [2] * ROWS + [0] * ROWS


async def test_of_a_model_that_nobody_reads_a_piece_is_in_memory(
    archive: Archive, tmp_path: Path
) -> None:
    scratch = tmp_path / "scratch"
    scratch.write_bytes(bytes(3 * tensors.CHUNK_BYTES))
    archive.add_model("client", model_pb2.Model(), scratch)
    rpc._caller.set(Identity(Role.CLIENT, "client"))
    unguarded: Any = ModelServicer.GetModel
    answers = unguarded.__wrapped__(ModelServicer(archive, 1e-3), model_pb2.GetModelRequest(), None)
    assert (await anext(answers)).model.version == 1
    assert len((await anext(answers)).chunk) == tensors.CHUNK_BYTES
    archive.model_path("client", 1).write_bytes(b"")
    assert [answer async for answer in answers] == []


def test_rounds_are_learnt_from_by_name_or_from_the_newest(
    archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = ModelServicer(archive, 1e-3)
    monkeypatch.setattr(model_service, "_MAX_ROUNDS", 2)
    assert [r.round_id for r in service._rounds("client", asked())] == ["round-1", "round-2"]
    assert [r.round_id for r in service._rounds("client", asked("round-0"))] == ["round-0"]
    for unknown in ("round-3", "round-9"):
        with refused(ErrorKind.ROUND_UNKNOWN):
            service._rounds("client", asked(unknown))


# Students of others


class _Means(GlobalModel):
    """A student that can be told to go wrong."""

    metrics = MappingProxyType({"seen": 1.0})

    def __init__(self, wrong: str = "") -> None:
        self.wrong = wrong

    @property
    def classes(self) -> int:
        return 4 if self.wrong == "classes" else 3

    def scores(self, x: Any) -> Any:
        _go_wrong(self.wrong, "scores")
        shape = (len(x), 2 if self.wrong == "shape" else 3)
        return np.full(shape, np.nan if self.wrong == "nan" else 1.0)

    def save(self, path: Path, metadata: Mapping[str, str]) -> None:
        _go_wrong(self.wrong, "save")
        if self.wrong == "beside":
            np.save(path, np.zeros(3))
        elif self.wrong == "folder":
            path.mkdir()
            (path / "weights").touch()
        elif self.wrong != "no file":
            path.write_text(self.wrong)


class _Factory:
    """Goes wrong as the client's seed says."""

    wrong = ""

    def train(self, x: Any, y: Any, unlabelled: Any, options: StudentOptions) -> Any:
        assert x.dtype == np.float32 and y.dtype == np.int64 and unlabelled is None
        assert options.on_progress is not None
        options.on_progress(1, 2, 0.5)
        _go_wrong(self.wrong, "train")
        if self.wrong == "progress":
            cast(Any, options).on_progress("first", 2, None)
        return None if self.wrong == "none" else _Means(self.wrong)

    def load(self, path: Path) -> _Means:
        _go_wrong(self.wrong, "load")
        return _Means(path.read_text())


def _go_wrong(wrong: str, where: str) -> None:
    kind, _, place = wrong.partition(" in ")
    if place == where:
        raise {"exit": SystemExit, "odd": KeyError, "why": ValueError}[kind]("in our own words")


@pytest.fixture
def factory(monkeypatch: pytest.MonkeyPatch) -> _Factory:
    made = _Factory()
    monkeypatch.setitem(sys.modules, "my_students", SimpleNamespace(means=made))
    return made


async def _once() -> AsyncIterator[model_pb2.TrainRequest]:
    yield model_pb2.TrainRequest()


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        *((f"why in {where}", "in our own words") for where in ("train", "save", "load", "scores")),
        *((f"odd in {where}", "KeyError") for where in ("train", "save", "load", "scores")),
        *((f"exit in {where}", "SystemExit") for where in ("train", "save", "load", "scores")),
        ("progress", "TypeError"),
        ("none", "no GlobalModel but NoneType"),
        ("classes", "4 classes instead of 3"),
        ("shape", "(5, 2) instead of (5, 3)"),
        ("nan", "NaN"),
        ("no file", "wrote no file"),
        ("beside", "wrote no file"),
        ("folder", "wrote no file"),
    ],
)
async def test_a_student_that_fails_is_told_to_the_client_and_the_service_goes_on(
    wrong: str, words: str, archive: Archive, factory: _Factory, tmp_path: Path
) -> None:
    service = ModelServicer(archive, 1e-3, "my_students:means")
    factory.wrong = wrong
    with refused(ErrorKind.STUDENT_FAILED, "my_students:means", words):
        await asyncio.wait_for(_train(service, "other", _once()), SECONDS)
    assert archive.models("other") == [] and list((tmp_path / "models").iterdir()) == []
    factory.wrong = ""
    await asyncio.wait_for(_train(service, "other", _once()), SECONDS)
    (model,) = archive.models("other")
    metrics = {"seen": 1.0, "agreement_commonest": 1.0}
    assert (model.student, dict(model.metrics)) == ("my_students:means", metrics)


@pytest.mark.parametrize(
    ("wrong", "words"), [("exit in scores", "SystemExit"), ("nan", "NaN"), ("shape", "shape")]
)
async def test_a_model_that_fails_later_is_told_to_the_client_too(
    wrong: str, words: str, archive: Archive, factory: _Factory
) -> None:
    await _train(ModelServicer(archive, 1e-3, "my_students:means"), "other", _once())
    inputs = tensors.to_tensor(np.zeros((2, WIDTH), np.float32))
    unguarded: Any = ModelServicer.Predict
    archive.model_path("other", 1).write_text(wrong)
    for request in (model_pb2.PredictRequest(inputs=inputs, version=v) for v in (0, 1)):
        with refused(ErrorKind.STUDENT_FAILED, "my_students:means", words):
            await unguarded.__wrapped__(ModelServicer(archive, 1e-3), request, None)


async def test_a_model_whose_student_is_gone_says_which(
    archive: Archive, factory: _Factory, monkeypatch: pytest.MonkeyPatch
) -> None:
    await _train(ModelServicer(archive, 1e-3, "my_students:means"), "other", _once())
    monkeypatch.delitem(sys.modules, "my_students")
    request = model_pb2.PredictRequest(inputs=tensors.to_tensor(np.zeros((2, WIDTH), np.float32)))
    unguarded: Any = ModelServicer.Predict
    with refused(ErrorKind.STUDENT_FAILED, "my_students:means", "can't be loaded"):
        await unguarded.__wrapped__(ModelServicer(archive, 1e-3), request, None)


async def test_a_student_of_others_takes_what_it_takes(
    archive: Archive, factory: _Factory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not what ours take."""
    monkeypatch.setattr(model_service, "_PACKAGES", ("no_such_package",))
    await _train(ModelServicer(archive, 1e-3, "my_students:means"), "other", _once())
    assert len(archive.models("other")) == 1


async def test_between_the_parts_of_a_long_prediction_others_have_their_turn(
    archive: Archive, factory: _Factory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A feature map may take seconds for some rows, and it is made once."""
    service = ModelServicer(archive, 1e-3, "my_students:means")
    await _train(service, "other", _once())
    monkeypatch.setattr(model_service, "_FIRST_STEP", 2)
    monkeypatch.setattr(model_service, "_STEP_SECONDS", 0.0)
    maps, seen, first = 0, list[int](), threading.Event()

    def made(task: object) -> Any:
        nonlocal maps
        maps += 1
        return slow

    def slow(rows: tensors.Array) -> tensors.Array:
        seen.append(len(rows))
        first.set()
        return rows.astype(np.float32)

    monkeypatch.setattr(service, "_features", made)
    rows = np.zeros((50, WIDTH), np.float32)
    unguarded: Any = ModelServicer.Predict
    rpc._caller.set(Identity(Role.CLIENT, "other"))
    long = asyncio.create_task(
        unguarded.__wrapped__(
            service, model_pb2.PredictRequest(inputs=tensors.to_tensor(rows)), None
        )
    )
    await asyncio.wait_for(asyncio.to_thread(first.wait, SECONDS), SECONDS)
    rpc._caller.set(Identity(Role.CLIENT, "client"))
    listing: Any = ModelServicer.ListModels
    await asyncio.wait_for(
        listing.__wrapped__(service, model_pb2.ListModelsRequest(), None), SECONDS
    )
    assert not long.done() and sum(seen) < len(rows)
    assert len((await asyncio.wait_for(long, SECONDS)).labels) == len(rows)
    assert maps == 1 and max(seen) == 2
