"""A client and its commands, and a coordinator that answers what it likes.

Invariants: what it says is shown as text on its line, it steers no terminal; an answer that makes
no sense is refused as such, by name and without a traceback; and no answer takes more memory than
what was asked for can.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Iterable
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from google.protobuf.message import Message

from mpc_vote.cli import label, model, rounds, status, train
from mpc_vote.client import AsyncLabelClient, Plan, asynchronous
from mpc_vote.errors import ErrorKind
from mpc_vote.proto.mpcvote.v1 import (
    common_pb2,
    label_pb2,
    label_pb2_grpc,
    model_pb2,
    model_pb2_grpc,
)
from mpc_vote.results import COMMONEST
from tests.security.fuzz.fakes import Channel
from tests.system.service.support import refused

EVIL = "\x1b]0;title\x07[red]evil[/red]\u202e\nanother line"
SHOWN = r"\x1b]0;title\x07[red]evil[/red]\u202e\nanother line"
ROWS = 4
Response = label_pb2.RequestLabelsResponse


class Told:
    """A call that is answered so."""

    def __init__(self, answers: Iterable[Message]) -> None:
        self._answers = answers
        self.read = 0

    async def __aiter__(self) -> AsyncIterator[Message]:
        for answer in self._answers:
            self.read += 1
            yield answer

    def __await__(self) -> Any:
        return asyncio.sleep(0, next(iter(self._answers))).__await__()

    def cancel(self) -> None:
        pass


class Client(AsyncLabelClient):
    """A client whose calls are answered so, by the names of their methods."""

    def __init__(self, **answers: Iterable[Message]) -> None:
        self.calls = {name: Told(given) for name, given in answers.items()}
        channel: Any = Channel({name: lambda *_, c=c, **__: c for name, c in self.calls.items()})
        self._labels = label_pb2_grpc.LabelServiceStub(channel)
        self._who = "The coordinator"
        self._models = model_pb2_grpc.ModelServiceStub(channel)

    async def close(self) -> None:
        pass


def run(
    monkeypatch: pytest.MonkeyPatch, command: ModuleType, *flags: str, **answers: Iterable[Message]
) -> int:
    """The exit code of a command that is answered so."""
    monkeypatch.setattr(command, "connect", lambda _: Client(**answers))
    monkeypatch.setenv("COLUMNS", "300")
    code: int = command.command(["--certs=certs", *flags])
    return code


def labelled(*labels: label_pb2.Labels) -> list[Message]:
    parts = [Response(labels=one) for one in labels]
    return [*parts, Response(completed=label_pb2.RoundCompleted(round_id="round"))]


DESCRIBED = model_pb2.Model(version=1, metrics={EVIL: 1.0})


@pytest.mark.parametrize(
    ("command", "answers"),
    [
        (
            status,
            {
                "GetService": label_pb2.GetServiceResponse(
                    agents=[
                        label_pb2.AgentPresence(
                            agent=EVIL,
                            offer=common_pb2.Offer(query_dtype=common_pb2.DTYPE_FLOAT32),
                        )
                    ],
                    parties=[EVIL],
                )
            },
        ),
        (
            rounds,
            {
                "ListRounds": label_pb2.ListRoundsResponse(
                    rounds=[label_pb2.RoundSummary(round_id=EVIL, reason=EVIL)]
                )
            },
        ),
        (model, {"ListModels": model_pb2.ListModelsResponse(models=[DESCRIBED])}),
        (train, {"Train": model_pb2.TrainResponse(model=DESCRIBED)}),
    ],
)
def test_what_a_service_says_is_shown_as_text(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: ModuleType,
    answers: dict[str, Message],
) -> None:
    assert run(monkeypatch, command, **{name: [one] for name, one in answers.items()}) == 0
    told = capsys.readouterr().out
    assert SHOWN in told and EVIL[0] not in told


def test_so_are_its_warnings_progress_and_reasons(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Any
) -> None:
    queries = tmp_path / "queries.npy"
    np.save(queries, np.zeros((ROWS, 2), np.float32))
    absence = label_pb2.Absence(agent=EVIL, reason=EVIL)
    answers = [
        Response(opened=label_pb2.RoundOpened(warnings=[EVIL])),
        Response(progress=label_pb2.Progress(stage=label_pb2.STAGE_VOTING, detail=EVIL)),
        Response(labels=label_pb2.Labels(width=1, values=[0] * ROWS)),
        Response(completed=label_pb2.RoundCompleted(round_id=EVIL, absences=[absence])),
    ]
    flags = [f"--queries={queries}", f"--out={tmp_path / 'labels.npy'}", "--classes=3"]
    before = [label_pb2.ListRoundsResponse()]
    assert run(monkeypatch, label, *flags, RequestLabels=answers, ListRounds=before) == 0
    told = capsys.readouterr().out
    assert told.count(SHOWN) >= 4 and EVIL[0] not in told


def test_a_round_that_this_version_can_not_read_is_listed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    state: Any = 77
    ballot: Any = 78
    cost = common_pb2.Cost(epsilon_agent=math.nan, delta=math.inf)
    odd = label_pb2.RoundSummary(
        round_id="odd", state=state, ballot=ballot, opened_unix_ms=2**62, cost=cost
    )
    answer = label_pb2.ListRoundsResponse(rounds=[odd])
    assert run(monkeypatch, rounds, ListRounds=[answer]) == 0
    assert "odd" in capsys.readouterr().out


async def test_training_that_ends_without_a_model_is_no_answer() -> None:
    client = Client(Train=[model_pb2.TrainResponse(progress=model_pb2.TrainProgress(step=1))])
    with refused(ErrorKind.ANSWER_MALFORMED, "without a model"):
        await client.train()


@pytest.mark.parametrize(
    "labels",
    [
        label_pb2.Labels(width=0, values=[1] * ROWS),
        label_pb2.Labels(width=1, values=[1]),
        label_pb2.Labels(width=3, values=[1] * ROWS),
    ],
)
async def test_labels_of_a_round_are_as_many_as_its_queries(labels: label_pb2.Labels) -> None:
    summary = label_pb2.RoundSummary(round_id="round", queries=ROWS)
    client = Client(GetRound=[label_pb2.GetRoundResponse(round=summary, labels=labels)])
    with refused(ErrorKind.ANSWER_MALFORMED, "labels for 4 queries"):
        await client.round("round")


async def test_a_label_is_one_of_the_classes() -> None:
    client = Client(RequestLabels=labelled(label_pb2.Labels(width=1, values=[0, 1, 2, 3])))
    with refused(ErrorKind.ANSWER_MALFORMED, "label 3 of 3 classes"):
        await client.label(np.zeros((ROWS, 2), np.float32), Plan(classes=3))


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ([1] * 18 + [0, 2], ["18 of 20 labels are class 1"]),
        ([1] * 17 + [0, 2, 2], []),
        ([1] * 19, []),
    ],
)
async def test_labels_that_are_nearly_all_alike_are_warned_of(
    values: list[int], told: list[str]
) -> None:
    client = Client(RequestLabels=labelled(label_pb2.Labels(width=1, values=values)))
    result = await client.label(np.zeros((len(values), 2), np.float32), Plan(classes=3))
    assert [warning.partition(":")[0] for warning in result.warnings] == told


@pytest.mark.parametrize("command", [train, model])
def test_a_model_that_may_say_one_class_alone_is_warned_of(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: ModuleType
) -> None:
    alike = model_pb2.Model(version=1, metrics={"agreement": 0.94, COMMONEST: 0.94})
    answers: dict[str, list[Message]] = {
        "Train": [model_pb2.TrainResponse(model=alike)],
        "ListModels": [model_pb2.ListModelsResponse(models=[alike])],
    }
    assert run(monkeypatch, command, **answers) == 0
    told = capsys.readouterr().out
    assert "agreement 0.94, agreement_commonest 0.94" in told
    assert "always saying the commonest of them would (0.94)" in told


@pytest.mark.parametrize("values", [[], [0] * ROWS])
async def test_labels_without_end_are_not_kept(values: list[int]) -> None:
    endless = (
        Response(labels=label_pb2.Labels(offset=n, width=1, values=values)) for n in range(1_000)
    )
    client = Client(RequestLabels=endless)
    with refused(ErrorKind.ANSWER_MALFORMED, "more labels than 4 queries take"):
        await client.label(np.zeros((ROWS, 2), np.float32), Plan(classes=3))
    assert client.calls["RequestLabels"].read <= ROWS + 1


async def test_a_model_is_the_one_that_is_described_and_has_an_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chunk = model_pb2.GetModelResponse(chunk=b"abc")
    described = model_pb2.GetModelResponse(model=model_pb2.Model(version=1, sha256=bytes(32)))
    with refused(ErrorKind.ANSWER_MALFORMED, "not the one"):
        await Client(GetModel=[described, chunk]).model()
    monkeypatch.setattr(asynchronous, "_MAX_MODEL_BYTES", 10)
    client = Client(GetModel=[chunk] * 1_000)
    with refused(ErrorKind.ANSWER_MALFORMED, "over 10 bytes"):
        await client.model()
    assert client.calls["GetModel"].read == 4
