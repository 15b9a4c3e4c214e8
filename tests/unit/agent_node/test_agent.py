"""An agent alone, with a coordinator that the test plays."""

from __future__ import annotations

import asyncio
import contextlib
import re
import threading
import time
import tracemalloc
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import grpc.aio
import numpy as np
import numpy.typing as npt
import pytest

from agent_node import agent as agents
from agent_node.agent import Agent
from agent_node.contributions import AlreadyAnswered, CountingVoter
from agent_node.participation import Participant
from agent_node.policy import Policy
from agent_node.serving import Serving
from agent_node.settings import AgentSettings
from agent_node.voting import cast_ballot
from mpc_vote.app import config
from mpc_vote.errors import ErrorKind, VoteError
from mpc_vote.privacy.charging import charged_epsilon
from mpc_vote.privacy.ledger import Budget, Ledger, LedgerView
from mpc_vote.privacy.mechanisms import Level
from mpc_vote.proto.mpcvote.v1 import agent_pb2, common_pb2, party_pb2
from mpc_vote.simulation.vote import simulated_spec
from mpc_vote.tasks import Task, agreement
from mpc_vote.transport import health, tensors
from mpc_vote.voting.ballots import (
    ABSTAIN,
    KNN_COUNT,
    KNN_FREQUENCY,
    MULTI_LABEL,
    ONE_HOT,
    BallotKind,
    IntArray,
)
from mpc_vote.voting.limits import MAX_ROUNDS_AT_ONCE
from mpc_vote.voting.planning import DELTA
from tests.security.fuzz.fakes import Channel
from tests.system.service.committee import CLASSES, ROWS, Committee
from tests.system.service.support import SECONDS, cancelled, until

PARTIES = ("party-0", "party-1")
_TRUSTED = "--parties=party-0=h:1,party-1=h:1"
_NOBODY: Any = None
_COMMITTEE = Committee(dial=_NOBODY, stubs=dict.fromkeys(PARTIES, _NOBODY))


class _Call:
    """A stream on which the coordinator announces rounds, and listens only when the test says."""

    def __init__(self, announcements: list[bytes]) -> None:
        self._announcements = announcements
        self._messages = self._said()
        self.announced = 0
        self.listens = asyncio.Event()
        self.heard: list[agent_pb2.AttendRequest] = []

    async def write(self, message: agent_pb2.AttendRequest) -> None:
        if not message.HasField("capabilities"):
            await self.listens.wait()
        self.heard.append(message)

    async def read(self) -> Any:
        return await anext(self._messages, grpc.aio.EOF)

    async def _said(self) -> AsyncIterator[agent_pb2.AttendResponse]:
        yield agent_pb2.AttendResponse(welcome=agent_pb2.Welcome())
        for spec in self._announcements:
            self.announced += 1
            announcement = agent_pb2.RoundAnnouncement(spec=spec)
            yield agent_pb2.AttendResponse(announcement=announcement)
            await asyncio.sleep(0)

    def cancel(self) -> None:
        pass


async def test_announcements_without_end_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond its limit an agent reads one announcement at a time, and none that it can't answer."""
    most = MAX_ROUNDS_AT_ONCE
    specs = [_COMMITTEE.spec() for _ in range(most + 20)]
    call = _Call([spec.wire for spec in specs[: most + 10]] + [b"\xff"])
    call._announcements += [spec.wire for spec in specs[most + 10 :]]
    nobody: Any = None
    channel: Any = _Channel()
    agent = Agent("ann", nobody, [], agent_pb2.Capabilities(), channel, {}, Path())
    monkeypatch.setattr(agent, "_coordinator", _Stub(call))

    async def for_ever(*_: object) -> int:
        never: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        return await never

    monkeypatch.setattr(agent, "_take_part", for_ever)
    session = asyncio.create_task(agent._session())

    async def stuck() -> bool:
        return call.announced == most + 1

    await until(stuck, "the agent waits until it is heard")
    for _ in range(100):
        await asyncio.sleep(0)
    assert call.announced == most + 1
    call.listens.set()
    await asyncio.wait_for(session, SECONDS)
    declined = [message.declined for message in call.heard if message.HasField("declined")]
    (unreadable,) = (one for one in declined if not one.round_id)
    assert unreadable.error == "SPEC_INVALID"
    declined.remove(unreadable)
    assert [one.round_id for one in declined] == [spec.round_id for spec in specs[most:]]
    assert {one.error for one in declined} == {"POLICY_REFUSED"}


class _Stub:
    def __init__(self, call: _Call) -> None:
        self.Attend = lambda: call


class _Channel:
    """A channel that nobody calls on, with certificates that stay."""

    async def renewed(self) -> None:
        await asyncio.get_running_loop().create_future()

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: None


async def test_a_message_that_can_not_be_read_ends_the_session_and_not_the_agent() -> None:
    """Over gRPC itself, which goes on after such a message."""
    joined = 0

    async def garble(requests: Any, context: Any) -> None:
        nonlocal joined
        joined += 1
        await context.write(agent_pb2.AttendResponse(welcome=agent_pb2.Welcome()))
        await context.write(None)
        await asyncio.get_running_loop().create_future()

    def encoded(message: agent_pb2.AttendResponse | None) -> bytes:
        return b"\xff" if message is None else message.SerializeToString()

    server = grpc.aio.server()
    handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        "Attend": grpc.stream_stream_rpc_method_handler(garble, response_serializer=encoded)
    }
    service = grpc.method_handlers_generic_handler("mpcvote.v1.AgentService", handlers)
    server.add_generic_rpc_handlers((service,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    nobody: Any = None
    channel: Any = grpc.aio.insecure_channel(f"127.0.0.1:{port}")
    channel.renewed = asyncio.get_running_loop().create_future
    agent = Agent("ann", nobody, [], agent_pb2.Capabilities(), channel, {}, Path())

    async def came_back() -> bool:
        assert not attending.done()
        return joined == 2

    try:
        async with cancelled(agent.attend()) as attending:
            await until(came_back, "the agent attends again")
    finally:
        await channel.close()
        await server.stop(0)


async def test_an_agent_that_is_turned_away_again_and_again_logs_it_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    nobody: Any = None
    channel: Any = Channel({})
    agent = Agent("ann", nobody, [], agent_pb2.Capabilities(), channel, {}, Path())
    tries = 0

    async def session() -> None:
        nonlocal tries
        tries += 1
        task = "gone" if tries < 10 else "rhc"
        raise VoteError(ErrorKind.TASK_UNKNOWN, who="The coordinator", task=task, want="none")

    async def turned_away() -> bool:
        return tries >= 20

    monkeypatch.setattr(agent, "_session", session)
    monkeypatch.setattr(agents, "_BACKOFF_SECONDS", (0.0, 0.0))
    async with cancelled(agent.attend()):
        await until(turned_away, "it has tried often")
    told = [one.message for one in caplog.records if "not attending" in one.message]
    assert len(told) == 2, "what changes is told again"
    assert "gone" in told[0] and "rhc" in told[1]


# The order of a round: nothing that depends on private data before the spend is on disk


class _Spy:
    """A voter that notes what the ledger's file held whenever it was asked."""

    kinds = (ONE_HOT,)
    k = 0

    def __init__(self, ledger: Path) -> None:
        self._ledger = ledger
        self.asked: list[list[str]] = []

    def vote(self, queries: npt.NDArray[Any], kind: BallotKind) -> IntArray:
        with LedgerView(self._ledger) as ledger:
            self.asked.append([spend.round_id for spend in ledger.spends()])
        return queries[:, 0].astype(np.int64)


class _Table:
    """A real agent, ledger and policy; the test is the coordinator, and parties take anything."""

    def __init__(
        self,
        folder: Path,
        *flags: str,
        rows: np.ndarray[Any, Any] | None = None,
        task: Task | None = None,
    ) -> None:
        self.rows = np.ones((ROWS, 2), np.float32) if rows is None else rows
        self.said: asyncio.Queue[Any] = asyncio.Queue()
        self.heard: asyncio.Queue[agent_pb2.AttendRequest] = asyncio.Queue()
        self.fetched = 0
        self.arrive = asyncio.Event()
        self.arrive.set()
        self.uploads = 0
        self.path = folder / "ledger.db"
        self.voter = _Spy(self.path)
        required = ("--certs=x", "--data=x", "--data-dir=x", "--coordinator=h:1", _TRUSTED)
        lenient = ("--min-quorum=1", "--min-collusion=0", "--budget-instance=inf")
        settings = config.load(AgentSettings, [*required, *lenient, *flags])
        budget = Budget(None, settings.budget_instance, settings.delta)
        self.ledger = Ledger(self.path, budget)
        offer = common_pb2.Offer(
            classes=CLASSES,
            query_dtype=tensors.dtype_code(self.rows.dtype),
            query_shape=self.rows.shape[1:],
            ballots=[common_pb2.BALLOT_KIND_ONE_HOT],
        )
        self.theirs: Task | None = None
        coordinator: Any = Channel(
            {"Attend": lambda: self, "FetchQueries": self._fetch, "GetTask": self._get_task}
        )
        coordinator.renewed = asyncio.get_running_loop().create_future
        party: Any = Channel({"SubmitShares": self._submit, "Check": _serving})
        policy = Policy("ann", settings, self.ledger)
        parties = dict.fromkeys(PARTIES, party)
        servings = [Serving(offer, self.voter, settings.voter)]
        if task is not None:
            servings = [Serving(agreement.offer_of(task), self.voter, settings.voter, task)]
        told = agent_pb2.Capabilities(offers=[one.offer for one in servings])
        self.agent = Agent("ann", policy, servings, told, coordinator, parties, folder)

    def announce(self, **changes: Any) -> str:
        """Tells the agent of a round on the rows."""
        shape, digest = self.rows.shape[2:], tensors.digest_of(self.rows)
        spec = _COMMITTEE.spec(queries_digest=digest, query_shape=shape, **changes)
        announcement = agent_pb2.RoundAnnouncement(spec=spec.wire)
        self.said.put_nowait(agent_pb2.AttendResponse(announcement=announcement))
        return spec.round_id

    def go(self, round_id: str) -> None:
        self.said.put_nowait(agent_pb2.AttendResponse(go=agent_pb2.Go(round_id=round_id)))

    def close(self, round_id: str) -> None:
        closed = agent_pb2.Closed(round_id=round_id)
        self.said.put_nowait(agent_pb2.AttendResponse(closed=closed))

    async def answer(self) -> agent_pb2.AttendRequest:
        """What the agent says next."""
        return await asyncio.wait_for(self.heard.get(), SECONDS)

    def spent(self) -> list[str]:
        return [spend.round_id for spend in self.ledger.spends()]

    # The agent's stream, as gRPC has it.

    async def write(self, message: agent_pb2.AttendRequest) -> None:
        self.heard.put_nowait(message)

    async def read(self) -> Any:
        return await self.said.get()

    def cancel(self) -> None:
        pass

    async def _fetch(self, *_: Any, **__: Any) -> AsyncIterator[agent_pb2.FetchQueriesResponse]:
        self.fetched += 1
        await self.arrive.wait()
        for tensor in tensors.chunks(self.rows):
            yield agent_pb2.FetchQueriesResponse(queries=tensor)

    async def _get_task(self, *_: Any, **__: Any) -> common_pb2.GetTaskResponse:
        if self.theirs is None:
            return common_pb2.GetTaskResponse(task=common_pb2.Task(content=b"{}"))
        return common_pb2.GetTaskResponse(task=agreement.to_wire(self.theirs))

    async def _submit(self, requests: Any, **_: Any) -> party_pb2.SubmitSharesResponse:
        async for _ in requests:
            pass
        self.uploads += 1
        return party_pb2.SubmitSharesResponse()


async def _serving(*_: Any, **__: Any) -> Any:
    return SimpleNamespace(status=1)


@contextlib.asynccontextmanager
async def _seated(
    folder: Path,
    *flags: str,
    rows: np.ndarray[Any, Any] | None = None,
    task: Task | None = None,
) -> AsyncIterator[_Table]:
    """An agent that attends inside."""
    table = _Table(folder, *flags, rows=rows, task=task)
    table.said.put_nowait(agent_pb2.AttendResponse(welcome=agent_pb2.Welcome()))
    async with cancelled(table.agent._session()):
        assert (await table.answer()).HasField("capabilities")
        yield table
    table.ledger.close()


async def test_nobody_asks_the_voter_before_the_spend_is_on_disk(tmp_path: Path) -> None:
    async with _seated(tmp_path) as table:
        round_id = table.announce()
        assert (await table.answer()).prepared.round_id == round_id
        assert table.voter.asked == [] and table.spent() == []
        table.go(round_id)
        assert (await table.answer()).submitted.round_id == round_id
        assert table.voter.asked == [[round_id]]
        assert table.uploads == len(PARTIES)


async def test_a_round_whose_contributions_can_not_be_written_down_is_charged_and_not_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And one that is among them is refused before it costs anything, whatever the ledger says."""
    order: list[str] = []

    class Fails(CountingVoter):
        def answer(self, round_id: str, queries: npt.NDArray[Any]) -> IntArray:
            order.append("answered")
            raise OSError("no space left")

        def check_new(self, round_id: str) -> None:
            order.append("checked")
            if len(order) > 2:
                raise AlreadyAnswered(round_id)

    async with _seated(tmp_path) as table:
        sound = table.ledger.charge

        def charge(*given: Any) -> None:
            order.append("charged")
            sound(*given)

        monkeypatch.setattr(table.ledger, "charge", charge)
        spy = table.agent._servings.find(_COMMITTEE.spec())
        voter = Fails.__new__(Fails)
        monkeypatch.setattr(table.agent._servings, "find", lambda _: replace(spy, voter=voter))
        round_id = table.announce()
        assert (await table.answer()).prepared.round_id == round_id
        table.go(round_id)
        declined = (await table.answer()).declined
        assert declined.error == "VOTER_FAILED" and "space" not in declined.reason
        assert order == ["checked", "charged", "answered"] and table.uploads == 0
        again = table.announce()
        assert (await table.answer()).prepared.round_id == again
        table.go(again)
        declined = (await table.answer()).declined
        assert declined.error == "POLICY_REFUSED" and "answered before" in declined.reason
        assert table.spent() == [round_id] and table.uploads == 0


# Tasks

TASK = Task.parse(
    """
    format = 1
    name = "ages"
    classes = ["a", "b", "c"]
    [input]
    kind = "table"
    label = "group"
    [[input.columns]]
    name = "age"
    kind = "number"
    center = 1.0
    scale = 2.0
    [features]
    map = "standard"
    [vote]
    ballot = "one_hot"
    """
)


async def test_an_agent_answers_rounds_of_its_task_and_notes_it(tmp_path: Path) -> None:
    async with _seated(tmp_path, task=TASK) as table:
        round_id = table.announce(task=TASK.name, task_digest=TASK.digest)
        assert (await table.answer()).prepared.round_id == round_id
        table.go(round_id)
        assert (await table.answer()).submitted.round_id == round_id
        (spend,) = table.ledger.spends()
        assert spend.note.startswith("task ages, one_hot")


@pytest.mark.parametrize(
    ("task", "digest", "error", "why"),
    [
        ("ages", bytes(32), "TASK_DIFFERS", "vote.k is left out here, 9 there"),
        ("gone", TASK.digest, "TASK_UNKNOWN", "has no task gone, but ages"),
        ("", b"", "POLICY_REFUSED", "this agent answers ages only"),
    ],
)
async def test_a_round_of_another_task_is_declined_uncharged(
    task: str, digest: bytes, error: str, why: str, tmp_path: Path
) -> None:
    async with _seated(tmp_path, task=TASK) as table:
        table.theirs = replace(TASK, vote=replace(TASK.vote, k=9))
        table.announce(task=task, task_digest=digest)
        declined = (await table.answer()).declined
        assert declined.error == error and why in declined.reason
        assert table.fetched == 0 and table.voter.asked == [] and table.spent() == []


async def test_it_is_declined_as_well_where_the_coordinator_does_not_tell_its_task(
    tmp_path: Path,
) -> None:
    async with _seated(tmp_path, task=TASK) as table:
        table.announce(task="ages", task_digest=bytes(32))
        declined = (await table.answer()).declined
        assert declined.error == "TASK_DIFFERS" and "their digests begin with" in declined.reason
        assert table.spent() == []


async def test_a_coordinator_that_lets_other_inputs_pass_is_refused_uncharged(
    tmp_path: Path,
) -> None:
    rows = np.ones((ROWS, 2), np.float32)
    rows[1, 1] = 0.5
    async with _seated(tmp_path, task=TASK, rows=rows) as table:
        table.announce(task=TASK.name, task_digest=TASK.digest)
        declined = (await table.answer()).declined
        assert declined.error == "INPUT_UNFIT" and "row 1 is no table" in declined.reason
        assert table.voter.asked == [] and table.spent() == []


async def test_the_classes_of_a_round_are_the_tasks(tmp_path: Path) -> None:
    """A coordinator may name the task, and say something else beside."""
    async with _seated(tmp_path, task=TASK) as table:
        table.announce(task=TASK.name, task_digest=TASK.digest, classes=CLASSES + 1)
        assert (await table.answer()).declined.error == "POLICY_REFUSED"
        assert table.spent() == []


async def test_rounds_that_never_start_time_no_vote_and_cost_nothing(tmp_path: Path) -> None:
    async with _seated(tmp_path) as table:
        for _ in range(3):
            round_id = table.announce()
            assert (await table.answer()).prepared.round_id == round_id
            table.close(round_id)
            assert (await table.answer()).declined.error == "ROUND_CLOSED"
        assert table.voter.asked == [] and table.spent() == []


async def test_a_round_that_ends_while_its_queries_come_is_let_go_of(tmp_path: Path) -> None:
    """Else rounds that were opened only to fail would keep a slow line, and the agent, busy."""
    async with _seated(tmp_path) as table:
        table.arrive.clear()
        rounds = [table.announce() for _ in range(MAX_ROUNDS_AT_ONCE)]

        async def fetching() -> bool:
            return table.fetched == len(rounds)

        await until(fetching, "all are under way")
        for round_id in rounds:
            table.close(round_id)
            declined = (await table.answer()).declined
            assert (declined.round_id, declined.error) == (round_id, "ROUND_CLOSED")
        table.arrive.set()
        round_id = table.announce()
        assert (await table.answer()).prepared.round_id == round_id


async def test_a_round_over_the_budget_is_declined_before_its_queries_are_fetched(
    tmp_path: Path,
) -> None:
    async with _seated(tmp_path, "--budget-instance=1e-9") as table:
        table.announce()
        assert (await table.answer()).declined.error == "BUDGET_EXHAUSTED"
        assert table.fetched == 0
        assert table.voter.asked == [] and table.spent() == []


async def test_rounds_under_way_are_kept_apart_from_the_budget_before_they_are_fetched(
    tmp_path: Path,
) -> None:
    """Two rounds that fit one by one: the second is declined while the first may still start."""
    limit = 1.01 * charged_epsilon([_COMMITTEE.spec(sigma=1.0).mechanism], Level.INSTANCE, DELTA)
    async with _seated(tmp_path, f"--budget-instance={limit}") as table:
        first = table.announce(sigma=1.0)
        assert (await table.answer()).prepared.round_id == first
        table.announce(sigma=1.0)
        assert (await table.answer()).declined.error == "BUDGET_EXHAUSTED"
        assert table.fetched == 1


@pytest.mark.parametrize("bad", [np.nan, np.inf])
async def test_queries_that_can_not_be_voted_on_are_refused_uncharged(
    tmp_path: Path, bad: float
) -> None:
    rows = np.ones((ROWS, 2), np.float32)
    rows[-1, 1] = bad
    async with _seated(tmp_path, rows=rows) as table:
        table.announce()
        declined = (await table.answer()).declined
        assert declined.error == "QUERIES_NOT_FINITE" and f"Query {ROWS - 1} " in declined.reason
        assert table.voter.asked == [] and table.spent() == []


async def test_rounds_that_wait_for_their_start_hold_no_queries_in_memory(tmp_path: Path) -> None:
    rows = np.ones((ROWS, 2, 100_000), np.float32)
    async with _seated(tmp_path, rows=rows) as table:
        tracemalloc.start()
        try:
            for _ in range(3):
                round_id = table.announce()
                assert (await table.answer()).prepared.round_id == round_id
            held, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert table.fetched == 3
    assert held < rows.nbytes


async def test_a_coordinator_that_hangs_up_after_go_has_one_vote_at_a_time(tmp_path: Path) -> None:
    """A vote goes on in its thread: the next one, with its batch, waits until it has ended."""
    async with _seated(tmp_path) as table:
        voting, released = threading.Event(), threading.Event()
        vote, at_once = table.voter.vote, 0

        def slow(queries: npt.NDArray[Any], kind: BallotKind) -> IntArray:
            nonlocal at_once
            at_once += 1
            assert at_once == 1
            voting.set()
            assert released.wait(SECONDS)
            at_once -= 1
            return vote(queries, kind)

        cast(Any, table.voter).vote = slow
        first = table.announce()
        assert (await table.answer()).prepared.round_id == first
        table.go(first)
        await asyncio.to_thread(voting.wait, SECONDS)
        table.said.put_nowait(grpc.aio.EOF)

        async def hung_up() -> bool:
            return not (await table.agent.health())["mpcvote.v1.AgentService"]

        await until(hung_up, "the agent knows that nobody listens")
        table.said.put_nowait(agent_pb2.AttendResponse(welcome=agent_pb2.Welcome()))
        async with cancelled(table.agent._session()):
            assert (await table.answer()).HasField("capabilities")
            second = table.announce()
            assert (await table.answer()).prepared.round_id == second
            table.go(second)
            for _ in range(100):
                await asyncio.sleep(0.001)
            assert table.spent() == [first]
            released.set()
            assert (await table.answer()).submitted.round_id == second
        assert table.spent() == [first, second]


async def test_a_round_that_ends_before_its_vote_is_not_charged(tmp_path: Path) -> None:
    """It was started while another round's vote took its time, and failed meanwhile."""
    async with _seated(tmp_path) as table:
        voting, released = threading.Event(), threading.Event()
        vote = table.voter.vote

        def slow(queries: np.ndarray, kind: BallotKind) -> np.ndarray:
            voting.set()
            assert released.wait(SECONDS)
            return vote(queries, kind)

        cast(Any, table.voter).vote = slow
        rounds = []
        for _ in range(3):
            rounds.append(table.announce())
            assert (await table.answer()).prepared.round_id == rounds[-1]
        first, second, third = rounds
        table.go(first)
        await asyncio.to_thread(voting.wait, SECONDS)
        for round_id in (second, third):
            table.go(round_id)
        for round_id in (first, second):
            table.close(round_id)

        async def read() -> bool:
            return table.said.empty()

        await until(read, "the agent has heard all of it")
        released.set()
        answers = [await table.answer() for _ in rounds]
        declined = [one.declined.round_id for one in answers if one.HasField("declined")]
        assert declined == [second]
        assert table.spent() == [first, third]


# Voters that fail: plug-ins are not ours


async def test_an_agent_whose_voter_never_comes_back_makes_no_promises_and_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else others would pay for rounds that wait for it in vain, and nobody could stop it."""
    monkeypatch.setattr("agent_node.participation._LEAVE_SECONDS", 0.1)
    released = threading.Event()
    try:
        async with asyncio.timeout(SECONDS), _seated(tmp_path) as table:
            voting = threading.Event()

            def for_ever(queries: npt.NDArray[Any], kind: BallotKind) -> IntArray:
                voting.set()
                released.wait()
                return np.zeros(len(queries), np.int64)

            table.voter.vote = for_ever  # type: ignore[method-assign]
            soon = {"deadline_unix_ms": int(1000 * (time.time() + 1))}
            rounds = [table.announce(**soon) for _ in range(2)]
            assert [(await table.answer()).HasField("prepared") for _ in rounds] == [True, True]
            table.go(rounds[0])
            assert await asyncio.to_thread(voting.wait, SECONDS)
            table.go(rounds[1])
            # Neither is waited for any longer than it lasts.
            over = [(await table.answer()).declined for _ in rounds]
            assert {one.round_id for one in over} == set(rounds)
            assert {one.error for one in over} == {"ROUND_CLOSED"}
            later = table.announce()
            declined = (await table.answer()).declined
            assert (declined.round_id, declined.error) == (later, "VOTER_FAILED")
            assert not any(round_id in declined.reason for round_id in rounds), "it is another's"
            assert table.spent() == rounds[:1]
    finally:
        released.set()


async def test_a_voter_that_comes_back_late_is_asked_again(tmp_path: Path) -> None:
    async with _seated(tmp_path) as table:
        voting, released = threading.Event(), threading.Event()
        vote = table.voter.vote

        def late(queries: npt.NDArray[Any], kind: BallotKind) -> IntArray:
            voting.set()
            assert released.wait(SECONDS)
            return vote(queries, kind)

        table.voter.vote = late  # type: ignore[method-assign]
        first = table.announce(deadline_unix_ms=int(1000 * (time.time() + 1)))
        assert (await table.answer()).prepared.round_id == first
        table.go(first)
        assert await asyncio.to_thread(voting.wait, SECONDS)

        async def over() -> bool:
            return table.agent._voted_on is not None and table.agent._voted_on.seconds_left() <= 0

        await until(over, "the round is over")
        released.set()
        assert (await table.answer()).HasField("declined")
        second = table.announce()
        assert (await table.answer()).prepared.round_id == second
        table.go(second)
        assert (await table.answer()).submitted.round_id == second


_SECRET = "patient 4711"


def _raises(error: BaseException) -> Callable[[int], Any]:
    def vote(rows: int) -> Any:
        raise error

    return vote


@pytest.mark.parametrize(
    ("votes", "why"),
    [
        (_raises(KeyError(_SECRET)), "it ended with an error"),
        (_raises(ValueError(_SECRET)), "it ended with an error"),
        (_raises(VoteError(ErrorKind.POLICY_REFUSED, why=_SECRET)), "it ended with an error"),
        (_raises(SystemExit(4711)), "it ended with an error"),
        (lambda rows: [[4711], [4711, 4711]], "it ended with an error"),
        (lambda rows: np.zeros(4711, np.int64), f"not of {ROWS} queries"),
        (lambda rows: np.int64(4711), f"not of {ROWS} queries"),
        (lambda rows: np.zeros((1, CLASSES), np.int64), f"not of {ROWS} queries"),
        (lambda rows: np.zeros((rows, 4711), np.int64), "integers of shape (queries,)"),
        (lambda rows: np.full(rows, 4711), "integers of shape (queries,)"),
        (lambda rows: np.full(rows, 0.4711), "integers of shape (queries,)"),
        (lambda rows: np.full(rows, _SECRET), "integers of shape (queries,)"),
        (lambda rows: [None] * rows, "integers of shape (queries,)"),
        (lambda rows: np.full(rows, np.nan), "its votes hold NaN"),
    ],
)
async def test_a_voter_that_fails_is_named_and_nothing_that_it_said(
    votes: Callable[[int], Any], why: str, tmp_path: Path
) -> None:
    async with _seated(tmp_path, "--voter=my_package.rules:make") as table:
        cast(Any, table.voter).vote = lambda queries, kind: votes(len(queries))
        round_id = table.announce()
        assert (await table.answer()).prepared.round_id == round_id
        table.go(round_id)
        declined = (await table.answer()).declined
        assert (declined.round_id, declined.error) == (round_id, "VOTER_FAILED")
        assert "my_package.rules:make" in declined.reason and why in declined.reason
        assert "4711" not in declined.reason and "patient" not in declined.reason
        # Looked at is charged; and the agent is still there for the next round.
        assert table.spent() == [round_id] and table.uploads == 0
        del table.voter.vote
        again = table.announce()
        assert (await table.answer()).prepared.round_id == again
        table.go(again)
        assert (await table.answer()).submitted.round_id == again


@pytest.mark.parametrize(
    ("kind", "good"),
    [
        (ONE_HOT, np.array([0, ABSTAIN, 1])),
        (KNN_COUNT, np.array([[1, 0], [0, 0], [1, 1]])),
        (KNN_FREQUENCY, np.array([[1, 0], [0, 0], [1, 1]])),
        (MULTI_LABEL, np.array([[1.0, 0.2], [0.0, 0.0], [1.0, 0.7]])),
    ],
)
def test_what_a_kind_takes_is_said_when_it_gets_something_else(
    kind: BallotKind, good: npt.NDArray[Any]
) -> None:
    ks = {"ann": 2 if kind.needs_k else 0}
    spec = simulated_spec(kind, 3, 2, ks, 1.0, tau=1 if kind.needs_tau else 0)
    for votes in (good, good[..., None], np.full(good.shape, None)):
        voter: Any = SimpleNamespace(vote=lambda queries, kind, votes=votes: votes)
        if votes is good:
            assert cast_ballot(voter, "mine", "ann", spec, good).shape == (3, 2)
            continue
        with pytest.raises(VoteError, match=re.escape(f"{kind.name} ballots take {kind.wants}")):
            cast_ballot(voter, "mine", "ann", spec, good)


async def test_a_party_that_has_just_answered_is_asked_again_once_its_connection_breaks() -> None:
    """Whether it is there must be known before a round is charged; asking each time takes as many
    calls as sending shares."""
    asked: list[str] = []
    state = grpc.ChannelConnectivity.READY

    async def serving(service: str, **_: Any) -> int:
        asked.append(service)
        return health.SERVING

    class Line(Channel):
        def get_state(self) -> grpc.ChannelConnectivity:
            return state

    nobody: Any = Channel({})
    line: Any = Line({"Check": serving})
    participant = Participant("alice", cast(Any, None), [], nobody, {"party-0": line}, Path())
    for _ in range(3):
        await participant._check_reach()
    assert len(asked) == 1
    state = grpc.ChannelConnectivity.TRANSIENT_FAILURE
    await participant._check_reach()
    assert len(asked) == 2
