"""The clients' service alone: clients that hang up, and clients that upload slowly."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from aggregator.coordinator import label_service
from aggregator.coordinator.archive import Archive, RoundRecord
from aggregator.coordinator.label_service import LabelServicer
from aggregator.coordinator.rounds import Round
from aggregator.coordinator.turns import CALLS_EACH
from mpc_vote.argmax.registry import TABLE
from mpc_vote.errors import ErrorKind, VoteError
from mpc_vote.pki.identity import Identity, Role
from mpc_vote.privacy.charging import Against
from mpc_vote.proto.mpcvote.v1 import label_pb2
from mpc_vote.transport import rpc, tensors
from mpc_vote.voting.spec import Spec
from tests.security.fuzz.decoders import ROUND, spec_message
from tests.system.service.support import SECONDS, refused


async def _messages(request_id: str = "") -> AsyncIterator[label_pb2.RequestLabelsRequest]:
    rows = tensors.to_tensor(np.zeros((1, 2), np.float32))
    plan = label_pb2.LabelPlan(classes=3, request_id=request_id)
    yield label_pb2.RequestLabelsRequest(plan=plan, queries=rows)


async def test_a_round_that_is_being_opened_when_the_service_stops_is_ended_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its client has hung up meanwhile, so nobody else could end it."""
    nothing: Any = None
    service = LabelServicer(nothing, nothing, nothing, nothing, nothing, nothing, 4)
    opening, opened = asyncio.Event(), asyncio.Event()
    runs: list[asyncio.Task[Any]] = []

    async def start(*_: object) -> Any:
        opening.set()
        await opened.wait()
        runs.append(asyncio.create_task(asyncio.Event().wait()))
        service._open["round"] = (nothing, runs[0])

    monkeypatch.setattr(service, "_start", start)
    client = asyncio.create_task(service._find("client", _messages()))
    await asyncio.wait_for(opening.wait(), SECONDS)
    client.cancel()
    stopping = asyncio.create_task(service.stop())
    await asyncio.wait([client])
    assert client.cancelled() and not stopping.done()
    opened.set()
    await asyncio.wait_for(stopping, SECONDS)
    assert runs[0].cancelled()


async def test_a_client_that_hangs_up_and_asks_again_joins_the_round_that_is_being_opened(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Told that its request id is taken it would choose another, and be charged twice."""
    nothing: Any = None
    archive = Archive(tmp_path)
    service = LabelServicer(archive, nothing, nothing, nothing, nothing, nothing, 4)
    opening, opened = asyncio.Event(), asyncio.Event()

    async def start(client: str, plan: Any, queries: Any, fingerprint: bytes) -> Any:
        opening.set()
        await opened.wait()
        spec = Spec.seal(spec_message())
        archive.open_round(client, plan.request_id, fingerprint, spec, queries)

    monkeypatch.setattr(service, "_start", start)
    first = asyncio.create_task(service._find("client", _messages("mine")))
    await asyncio.wait_for(opening.wait(), SECONDS)
    first.cancel()
    await asyncio.wait([first])
    again = asyncio.create_task(service._find("client", _messages("mine")))
    await asyncio.sleep(0.05)
    opened.set()
    joined = await asyncio.wait_for(again, SECONDS)
    assert isinstance(joined, RoundRecord) and joined.round_id == ROUND
    archive.close()


async def test_half_of_a_batch_whose_client_hangs_up_is_not_taken_for_the_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where a plan announces no number, its end looks like that of an upload which was cut."""
    nothing: Any = None
    service = LabelServicer(nothing, nothing, nothing, nothing, nothing, nothing, 4)
    ended, started = asyncio.Event(), []

    async def start(*_: object) -> Any:
        started.append(True)

    async def cut() -> AsyncIterator[label_pb2.RequestLabelsRequest]:
        async for message in _messages():
            yield message
        ended.set()

    monkeypatch.setattr(service, "_start", start)
    client = asyncio.create_task(service._find("client", cut()))
    await asyncio.wait_for(ended.wait(), SECONDS)
    await asyncio.sleep(0.02)
    client.cancel()
    await asyncio.wait([client])
    assert not started


async def _upload(
    service: LabelServicer, client: str, plan: label_pb2.LabelPlan
) -> asyncio.Task[Any]:
    """An upload without end, or why there is none."""
    begun = asyncio.Event()

    async def endless() -> AsyncIterator[label_pb2.RequestLabelsRequest]:
        yield label_pb2.RequestLabelsRequest(plan=plan)
        begun.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(service._find(client, endless()))
    await asyncio.wait([task, asyncio.create_task(begun.wait())], return_when="FIRST_COMPLETED")
    if task.done():
        task.result()
    return task


async def test_who_uploads_again_does_not_pass_those_that_wait_to_upload() -> None:
    nothing: Any = None
    service = LabelServicer(nothing, nothing, nothing, nothing, nothing, nothing, 4)
    plan = label_pb2.LabelPlan(classes=3)
    uploads = [await _upload(service, client, plan) for client in ["slow"] * 4 + ["slower"] * 4]
    with refused(ErrorKind.SERVICE_BUSY):
        await _upload(service, "patient", plan)
    uploads[-1].cancel()
    await asyncio.wait([uploads.pop()])
    with refused(ErrorKind.SERVICE_BUSY):
        await _upload(service, "slower", plan)
    uploads.append(await _upload(service, "patient", plan))
    for task in uploads:
        task.cancel()
    await asyncio.wait(uploads)


async def test_who_asks_again_under_a_known_id_takes_no_place_to_upload_to(
    tmp_path: Path,
) -> None:
    """It needs no turn, so two such clients could keep all others from uploading for ever."""
    nothing: Any = None
    archive = Archive(tmp_path)
    service = LabelServicer(archive, nothing, nothing, nothing, nothing, nothing, 4)
    for number, client in enumerate(["slow", "slower"]):
        spec = Spec.seal(spec_message(round_id=f"round-{number}"))
        archive.open_round(client, "mine", b"", spec, np.zeros((1, 2), np.float32))
    known = label_pb2.LabelPlan(classes=3, request_id="mine")
    uploads = [await _upload(service, client, known) for client in ["slow", "slower"] * 6]
    uploads.append(await _upload(service, "patient", label_pb2.LabelPlan(classes=3)))
    # A message of each is in memory all the same, so there is an end to them.
    uploads += [await _upload(service, "slow", known) for _ in range(CALLS_EACH - 6)]
    with refused(ErrorKind.SERVICE_BUSY):
        await _upload(service, "slow", known)
    for task in uploads:
        task.cancel()
    await asyncio.wait(uploads)
    archive.close()


def test_the_newest_rounds_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client may have any number of them."""
    nothing: Any = None
    archive = Archive(tmp_path)
    service = LabelServicer(archive, nothing, nothing, nothing, nothing, nothing, 4)
    for number in range(3):
        spec = Spec.seal(spec_message(round_id=f"round-{number}"))
        archive.open_round("client", "", b"", spec, np.zeros((1, 2), np.float32))
    monkeypatch.setattr(label_service, "_MAX_LISTED", 2)
    assert [r.round_id for r in service._list("client").rounds] == ["round-1", "round-2"]
    archive.close()


async def test_what_the_service_has_spent_is_computed_beside_its_loop() -> None:
    nothing: Any = None
    threads = set()

    def figures(*_: object) -> dict[str, float]:
        threads.add(threading.current_thread())
        return {"total_epsilon_agent": 1.0, "total_labels_epsilon_instance": 0.5}

    ledger: Any = SimpleNamespace(budget=None, figures=figures, against=Against.LABELS)
    attendance: Any = SimpleNamespace(present=dict)
    defaults: Any = SimpleNamespace(delta=1e-3, parties=("one",), engine=TABLE, tasks={})
    service = LabelServicer(nothing, ledger, attendance, nothing, {}, defaults, 4)
    rpc._caller.set(Identity(Role.CLIENT, "client"))
    unguarded: Any = LabelServicer.GetService
    told = await unguarded.__wrapped__(service, label_pb2.GetServiceRequest(), None)
    assert (told.total_epsilon_agent, told.total_labels_epsilon_instance) == (1.0, 0.5)
    assert told.limits_against_labels
    assert threads and threading.current_thread() not in threads


async def test_who_cancels_a_round_twice_does_not_keep_the_parties_from_hearing_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nothing: Any = None
    service = LabelServicer(nothing, nothing, nothing, nothing, nothing, nothing, 4)
    ending, told = asyncio.Event(), asyncio.Event()
    round_ = Round(Spec.seal(spec_message()), 1e-3)

    async def run() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ending.set()
            await asyncio.sleep(0.05)
            told.set()

    service._open[ROUND] = (round_, asyncio.create_task(run()))
    monkeypatch.setattr(service, "_round", lambda client, round_id: None)
    rpc._caller.set(Identity(Role.CLIENT, "client"))
    cancel: Any = LabelServicer.CancelRound
    request = label_pb2.CancelRoundRequest(round_id=ROUND)
    await asyncio.sleep(0)
    first = asyncio.create_task(cancel.__wrapped__(service, request, None))
    await asyncio.wait_for(ending.wait(), SECONDS)
    again = await asyncio.wait_for(cancel.__wrapped__(service, request, None), SECONDS)
    assert told.is_set() and again.cancelled and (await first).cancelled


async def test_parties_are_not_asked_without_end_for_one_client(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Dry runs and looks at the service are free: one client could else have parties asked for as
    many at once as it likes."""
    asked, most, answered = 0, 0, asyncio.Event()

    async def ask(*_: object) -> float:
        nonlocal asked, most
        asked += 1
        most = max(most, asked)
        await answered.wait()
        asked -= 1
        return 0.0

    nothing: Any = None
    runner: Any = SimpleNamespace(round_trip=ask)
    attendance: Any = SimpleNamespace(present=dict)
    service = LabelServicer(nothing, nothing, attendance, runner, nothing, nothing, 4)
    monkeypatch.setattr(rpc, "caller", lambda: Identity(Role.CLIENT, "greedy"))
    request = label_pb2.PlanRoundRequest()
    plan: Any = LabelServicer.PlanRound.__wrapped__  # type: ignore[attr-defined]
    calls = [asyncio.create_task(plan(service, request, nothing)) for _ in range(50)]
    await asyncio.sleep(0.05)
    assert most == 1
    answered.set()
    ends = await asyncio.gather(*calls, return_exceptions=True)
    names = [end.name for end in ends if isinstance(end, VoteError)]
    assert names.count("SERVICE_BUSY") == 50 - CALLS_EACH
    assert names.count("PLAN_MISSING") == CALLS_EACH
