"""A global model that also learns from public points without labels, on live processes.

Invariants: what can't be learnt from is refused by name before anything is trained; one upload or
training at a time is all that the coordinator holds.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open

from aggregator.coordinator import requests
from mpc_vote.client import LabelClient
from mpc_vote.errors import ErrorKind, VoteError
from mpc_vote.pki.identity import Identity, Role
from mpc_vote.proto.mpcvote.v1 import common_pb2, model_pb2, model_pb2_grpc
from mpc_vote.transport import tensors
from tests.system.service.support import (
    CLINICS,
    SECONDS,
    Group,
    Service,
    command,
    error_of,
    points,
    refused,
    until,
)

COORDINATOR = Identity(Role.COORDINATOR, "coordinator")
LEARNER = Identity(Role.CLIENT, "learner")
ROW = np.zeros((1, 6), np.float32)
FEW, MANY = 30, 3_000


@pytest.fixture(scope="module")
def rounds(service: Service) -> dict[int, str]:
    """Two labelled rounds of one client, by their size."""
    address = service.cluster.coordinator_address
    with LabelClient(address, service.certs(LEARNER.role, LEARNER.name)) as client:
        return {
            size: client.label(CLINICS.queries(size), CLINICS.plan()).round_id
            for size in (MANY, FEW)
        }


# What comes of the points


async def test_a_model_learns_from_points_without_labels_and_says_so(
    service: Service, labs: Group, tmp_path: Path
) -> None:
    more = labs.queries(3_000, seed=1)
    assert more.nbytes > 1 << 20, "they come in several messages"
    unseen = points(2, 200, labs.shape, labs.classes, labs.spread)
    async with service.client("semi") as client:
        round_id = (await client.label(labs.queries(20), labs.plan(sigma=0.5))).round_id
        steps: list[model_pb2.TrainProgress] = []
        model = await client.train([round_id], 5, more, on_progress=steps.append)
        assert (list(model.round_ids), model.labels, model.unlabelled) == ([round_id], 20, 3_000)
        told = [(e.step, e.steps) for e in steps]
        assert told == sorted(told) and told[-1][0] <= told[-1][1]
        assert "wrong_labels" in model.metrics
        assert np.mean(await client.predict(unseen.x) == unseen.y) > 0.95
        description, content = await client.model()
        assert description == model == (await client.models())[-1]
        path = tmp_path / "model.safetensors"
        path.write_bytes(content)
        with safe_open(path, "np") as file:
            assert (file.metadata()["labels"], file.metadata()["unlabelled"]) == ("20", "3000")
        without = await client.train([round_id])
        assert without.unlabelled == 0 and "wrong_labels" not in without.metrics


def test_the_plain_client_sends_points_too(service: Service, rounds: dict[int, str]) -> None:
    address = service.cluster.coordinator_address
    more = CLINICS.queries(50, seed=1)
    with LabelClient(address, service.certs(LEARNER.role, LEARNER.name)) as client:
        steps: list[model_pb2.TrainProgress] = []
        model = client.train([rounds[FEW]], 1, more, "unit", on_progress=steps.append)
        assert steps and steps[-1].steps
        assert (model.labels, model.unlabelled) == (FEW, 50)
        assert client.predict(more).shape == (50,)
        for bad, kind in (
            ([], ErrorKind.QUERIES_EMPTY),
            ([1.0, 2.0], ErrorKind.QUERIES_SHAPE),
            (more.astype(np.float16), ErrorKind.METHOD_UNKNOWN),
            (np.zeros((1, 3 << 20), np.float32), ErrorKind.ROW_TOO_LARGE),
        ):
            with refused(kind):
                client.train([rounds[FEW]], unlabelled=bad)


async def test_one_point_is_too_few(service: Service, labs: Group) -> None:
    async with service.client("lonely") as client:
        round_id = (await client.label(labs.queries(1), labs.plan(sigma=0.5))).round_id
        with refused(ErrorKind.TOO_FEW_POINTS, "single point"):
            await client.train([round_id])
        more = labs.queries(30, seed=1)
        assert (await client.train([round_id], unlabelled=more)).labels == 1


def test_the_command_sends_points(service: Service, labs: Group, tmp_path: Path) -> None:
    asked, more = tmp_path / "asked.npy", tmp_path / "more.npy"
    np.save(asked, labs.queries(12))
    np.save(more, labs.queries(25, seed=1))
    reach = [
        f"--coordinator={service.cluster.coordinator_address}",
        f"--certs={service.certs(Role.CLIENT, 'shell-semi')}",
    ]
    files = [f"--queries={asked}", f"--out={tmp_path / 'labels.npy'}"]
    done = command("label", *reach, *files, "--classes=4", "--sigma=0.5")
    assert done.returncode == 0, done.stderr
    done = command("train", *reach, f"--unlabelled={more}", "--features=strokes", "--json=-")
    assert done.returncode == 0, done.stderr
    model = json.loads(done.stdout)
    assert (model["labels"], model["unlabelled"]) == (12, 25)
    missing = tmp_path / "missing.npy"
    for flags, words in (
        ([f"--unlabelled={missing}"], f"can't read {missing}: No such file"),
        ([f"--unlabelled={more}", "--features=lines"], "Choose one of: raw, strokes, unit"),
        (["--features=strokes"], "for the points of --unlabelled, which is not given"),
    ):
        done = command("train", *reach, *flags)
        assert done.returncode != 0
        assert words in done.stderr.strip().splitlines()[-1]
        assert "Traceback" not in done.stderr


# Requests that can't be learnt from


def tensor(**changes: Any) -> common_pb2.Tensor:
    made = tensors.to_tensor(ROW)
    for name, value in changes.items():
        setattr(made, name, value)
    return made


def parts(*arrays: np.ndarray[Any, Any]) -> list[common_pb2.Tensor]:
    return [tensors.to_tensor(array) for array in arrays]


def with_nan(row: int) -> np.ndarray[Any, Any]:
    array = np.zeros((5, 6), np.float32)
    array[row, 3] = np.nan
    return array


BAD: dict[str, tuple[int, str, Sequence[common_pb2.Tensor], str, str, str]] = {
    "wrong shape": (
        FEW,
        "",
        parts(np.zeros((1, 7), np.float32)),
        "unlabelled",
        "QUERIES_SHAPE",
        "(7,)",
    ),
    "shapes that differ": (FEW, "", parts(ROW, ROW[:, :5]), "unlabelled", "QUERIES_SHAPE", "(5,)"),
    "wrong dtype": (
        FEW,
        "",
        parts(ROW.astype(np.float64)),
        "unlabelled",
        "QUERIES_DTYPE",
        "float64",
    ),
    "dtypes that differ": (
        FEW,
        "",
        parts(ROW, ROW.astype(np.uint8)),
        "unlabelled",
        "QUERIES_DTYPE",
        "uint8",
    ),
    "unknown dtype": (FEW, "", [tensor(dtype=77)], "dtype", "METHOD_UNKNOWN", "dtype 77"),
    "not a number": (
        FEW,
        "",
        parts(ROW, with_nan(3)),
        "unlabelled",
        "QUERIES_NOT_FINITE",
        "Query 4",
    ),
    "infinite": (FEW, "", parts(ROW + np.inf), "unlabelled", "QUERIES_NOT_FINITE", "Query 0"),
    "too few bytes": (
        FEW,
        "",
        [tensor(data=bytes(23))],
        "unlabelled",
        "TENSOR_MALFORMED",
        "got 23",
    ),
    "no rows": (FEW, "", parts(ROW[:0]), "unlabelled", "QUERIES_EMPTY", "at least one row"),
    "too many": (
        FEW,
        "",
        parts(*[np.zeros((2_001, 6), np.float32)] * 5),
        "unlabelled",
        "QUERIES_TOO_MANY",
        "10005 queries were sent, at most 10000",
    ),
    "too many beside so many labels": (
        MANY,
        "",
        parts(*[np.zeros((1_300, 6), np.float32)] * 2),
        "unlabelled",
        "UNLABELLED_TOO_MANY",
        "2600 unlabelled points were sent; with 3000 labels at most 2592 fit",
    ),
    "unknown features": (
        FEW,
        "lines",
        parts(ROW),
        "features",
        "METHOD_UNKNOWN",
        "features 'lines' is unknown. Choose one of: raw, strokes, unit.",
    ),
    "features of images": (
        FEW,
        "strokes",
        parts(ROW),
        "features",
        "FEATURES_UNFIT",
        "strokes needs images of at least 4x4 pixels, got points of shape (6,)",
    ),
}


@pytest.mark.parametrize("case", BAD)
async def test_bad_points_are_named_and_train_nothing(
    service: Service, rounds: dict[int, str], case: str
) -> None:
    size, features, tensors, field, name, words = BAD[case]
    first = model_pb2.TrainRequest(round_ids=[rounds[size]], features=features)
    messages = [first, *(model_pb2.TrainRequest(unlabelled=part) for part in tensors)]
    async with service.channel(LEARNER, COORDINATOR) as channel:
        stub = model_pb2_grpc.ModelServiceStub(channel)
        before = await stub.ListModels(model_pb2.ListModelsRequest(), timeout=SECONDS)
        error = await error_of(stub.Train(iter(messages), timeout=SECONDS))
        assert (error.name, error.field) == (name, field), error.message
        assert words in error.message
        after = await stub.ListModels(model_pb2.ListModelsRequest(), timeout=SECONDS)
    assert after == before


async def test_points_may_come_with_the_first_message(
    service: Service, rounds: dict[int, str]
) -> None:
    only = model_pb2.TrainRequest(round_ids=[rounds[FEW]], unlabelled=tensors.to_tensor(ROW))
    async with service.channel(LEARNER, COORDINATOR) as channel:
        call = model_pb2_grpc.ModelServiceStub(channel).Train(iter([only]), timeout=SECONDS)
        events = [event async for event in call]
    assert events[-1].model.unlabelled == 1


async def test_an_upload_keeps_others_out_until_it_hangs_up(
    service: Service, rounds: dict[int, str]
) -> None:
    async with service.channel(LEARNER, COORDINATOR) as channel:
        slow = model_pb2_grpc.ModelServiceStub(channel).Train(timeout=SECONDS)
        await slow.write(model_pb2.TrainRequest(unlabelled=tensors.to_tensor(ROW)))
        async with service.client(LEARNER.name) as client:
            known = len(await client.models())

            async def answered(kind: ErrorKind) -> bool:
                error = await error_of(client.train(unlabelled=ROW[:, :5]))
                assert error.kind in (ErrorKind.TRAINING_BUSY, ErrorKind.QUERIES_SHAPE)
                assert error.kind is ErrorKind.QUERIES_SHAPE or error.retry_after
                return error.kind is kind

            await until(lambda: answered(ErrorKind.TRAINING_BUSY), "the upload has its place")
            slow.cancel()
            await until(lambda: answered(ErrorKind.QUERIES_SHAPE), "the place is free again")
            assert len(await client.models()) == known, "half an upload trains nothing"


async def test_an_upload_has_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "_UPLOAD_SECONDS", 0.05)
    with pytest.raises(VoteError) as caught:
        async with requests.in_time():
            await asyncio.sleep(SECONDS)
    assert caught.value.kind is ErrorKind.DEADLINE
