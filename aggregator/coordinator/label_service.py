"""The clients' service: labels for a batch of public queries, with their cost."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Iterator, Mapping
from typing import Any

import grpc

from aggregator.coordinator.admission import AdmissionControl
from aggregator.coordinator.archive import COMPLETE, Archive, Labels, RoundRecord
from aggregator.coordinator.attendance import Attendance, find_task
from aggregator.coordinator.dry_run import dry_run
from aggregator.coordinator.planner import make_spec
from aggregator.coordinator.requests import Queries, in_time, read_digest, read_plan, read_queries
from aggregator.coordinator.roster import Defaults
from aggregator.coordinator.rounds import Round, RoundRunner
from aggregator.coordinator.spending import tell_free, with_figures
from aggregator.coordinator.turns import Turns
from mpc_vote.errors import ErrorKind, VoteError
from mpc_vote.pki.identity import Role
from mpc_vote.privacy.charging import Against
from mpc_vote.privacy.ledger import Ledger
from mpc_vote.privacy.mechanisms import Level
from mpc_vote.proto.mpcvote.v1 import agent_pb2, common_pb2, label_pb2, label_pb2_grpc
from mpc_vote.tasks import agreement
from mpc_vote.transport import rpc, tensors
from mpc_vote.voting.limits import MAX_QUERIES

_LABELS_PER_MESSAGE = 65_536
# The newest rounds, which with their reasons fit a message.
_MAX_LISTED = 1_000
# Batches that are read at the same time, and those of one client among them.
_MAX_READING = 8
_MAX_READING_EACH = 4
Response = label_pb2.RequestLabelsResponse


class LabelServicer(label_pb2_grpc.LabelServiceServicer):
    """Admits requests, runs them as rounds, and remembers them."""

    def __init__(
        self,
        archive: Archive,
        ledger: Ledger,
        attendance: Attendance,
        runner: RoundRunner,
        parties: Mapping[str, grpc.aio.Channel],
        defaults: Defaults,
        max_open_rounds: int,
    ) -> None:
        self._archive = archive
        self._ledger = ledger
        self._attendance = attendance
        self._runner = runner
        self._parties = parties
        self._defaults = defaults
        self._places = AdmissionControl(max_open_rounds)
        self._turns = Turns()
        self._open: dict[str, tuple[Round, asyncio.Task[None]]] = {}
        self._starting: set[asyncio.Task[Round]] = set()
        # Whose batches are being read.
        self._reading: list[str] = []
        # Two calls under one request id must not both find that there is no such round yet.
        self._named = asyncio.Lock()

    async def health(self) -> Mapping[str, bool]:
        """Labels can be had when every party can work and at least one agent attends."""
        parties = not await self._unready()
        labels = label_pb2.DESCRIPTOR.services_by_name["LabelService"].full_name
        agents = agent_pb2.DESCRIPTOR.services_by_name["AgentService"].full_name
        return {labels: parties and bool(self._attendance.present()), agents: parties}

    async def _unready(self) -> list[str]:
        """Parties that don't say they can work."""
        serving = await asyncio.gather(*(rpc.is_serving(c) for c in self._parties.values()))
        return [name for name, ready in zip(self._parties, serving, strict=True) if not ready]

    async def stop(self) -> None:
        """Fails the open rounds, and those that are being opened for clients which hung up."""
        await asyncio.gather(*self._starting, return_exceptions=True)
        tasks = [task for _, task in self._open.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @rpc.allowed(Role.CLIENT, upload=True)
    async def RequestLabels(
        self, request_iterator: Any, context: Any
    ) -> AsyncIterator[label_pb2.RequestLabelsResponse]:
        try:
            round_ = await self._find(rpc.caller().name, aiter(request_iterator))
        except VoteError as error:
            tell_free(error)
            raise
        if isinstance(round_, RoundRecord):
            async for response in _replay(round_):
                yield response
            return
        async with contextlib.aclosing(round_.follow()) as events:
            async for event in events:
                if event.HasField("completed") and round_.labels is not None:
                    for labels in _label_messages(round_.labels, round_.spec.width):
                        yield Response(labels=labels)
                yield event

    async def _find(
        self, client: str, messages: AsyncIterator[label_pb2.RequestLabelsRequest]
    ) -> Round | RoundRecord:
        """The round that a request opens or joins, or the finished one that it asks for again.

        A batch takes memory: it is read when there is a place for it, a few at a time, and is on
        disk, or gone, when this returns. Of one that is here already the digest is read alone.
        """
        async with in_time():
            first = await read_plan(messages)
        plan = first.plan
        if plan.request_id and self._archive.requested(client, plan.request_id) is not None:
            # It takes no place to upload to: whoever asks so can't keep others from one.
            with self._turns.call(client):
                async with in_time():
                    digest = await read_digest(first, messages)
            async with self._named:
                found = self._resumed(client, plan, digest)
            assert found is not None, "no round is ever forgotten"
            return found
        self._places.check(client)
        with self._place_to_read(client, self._places.before(client)):
            async with in_time():
                queries = await read_queries(first, messages)
            digest = tensors.digest_of(queries)
            async with contextlib.AsyncExitStack() as held:
                if plan.request_id:
                    await held.enter_async_context(self._named)
                    if (found := self._resumed(client, plan, digest)) is not None:
                        return found
                # A client that hangs up now must not leave a round that runs nowhere; nor may it
                # ask again under its request id before that is known.
                opening = self._start(client, plan, queries, _fingerprint(plan, digest))
                start = asyncio.create_task(_holding(held.pop_all(), opening))
                self._starting.add(start)
                start.add_done_callback(self._starting.discard)
                return await asyncio.shield(start)

    @contextlib.contextmanager
    def _place_to_read(self, client: str, waiting: int) -> Iterator[None]:
        """Holds a place to upload to, if there is one left by so many that wait before."""
        mine, free = self._reading.count(client), _MAX_READING - len(self._reading)
        # Clients that upload slowly, and again, must not pass those that wait to upload at all.
        if waiting >= free or mine >= _MAX_READING_EACH:
            raise self._places.busy(client)
        self._reading.append(client)
        try:
            yield
        finally:
            self._reading.remove(client)

    def _resumed(
        self, client: str, plan: label_pb2.LabelPlan, digest: bytes
    ) -> Round | RoundRecord | None:
        """The round that the client asked for under the plan's request id, if there is one."""
        record = self._archive.requested(client, plan.request_id)
        if record is None:
            return None
        if record.plan != _fingerprint(plan, digest):
            raise VoteError(
                ErrorKind.REQUEST_ID_REUSED, field="plan.request_id", got=plan.request_id
            )
        running = self._open.get(record.round_id)
        return record if running is None else running[0]

    async def _start(
        self, client: str, plan: label_pb2.LabelPlan, queries: Queries, fingerprint: bytes
    ) -> Round:
        """Opens a round in a place of its own, and runs it."""
        self._places.take(client)
        try:
            present = self._attendance.present()
            spec = await asyncio.to_thread(
                make_spec, plan, queries, present, self._defaults, await self._runner.round_trip()
            )
            await asyncio.to_thread(
                self._archive.open_round, client, plan.request_id, fingerprint, spec, queries
            )
        except BaseException:
            self._places.release()
            raise
        round_ = Round(spec, plan.delta or self._defaults.delta)
        task = asyncio.create_task(self._runner.run(round_))
        self._open[spec.round_id] = (round_, task)
        task.add_done_callback(lambda _: self._ended(round_))
        return round_

    def _ended(self, round_: Round) -> None:
        self._open.pop(round_.spec.round_id, None)
        self._places.release(time.monotonic() - round_.started)

    @rpc.allowed(Role.CLIENT)
    async def PlanRound(
        self, request: label_pb2.PlanRoundRequest, context: Any
    ) -> label_pb2.PlanRoundResponse:
        client = rpc.caller().name
        # Parties are asked in the client's turn: it can't have them asked without end.
        round_trip = await self._turns.ask(client, self._runner.round_trip)
        present = self._attendance.present()
        asked = (request, present, self._defaults, round_trip, self._ledger)
        response = await self._turns.do(client, dry_run, *asked)
        response.unready_parties.extend(await self._turns.ask(client, self._unready))
        return response

    @rpc.allowed(Role.CLIENT)
    async def GetRound(
        self, request: label_pb2.GetRoundRequest, context: Any
    ) -> label_pb2.GetRoundResponse:
        client = rpc.caller().name
        return await self._turns.do(client, self._round, client, request.round_id)

    def _round(self, client: str, round_id: str) -> label_pb2.GetRoundResponse:
        record = self._archive.round(round_id, client)
        if record is None:
            raise VoteError(ErrorKind.ROUND_UNKNOWN, field="round_id", round=round_id)
        response = label_pb2.GetRoundResponse(round=record.summary())
        if (task := self._archive.task(record.spec.task_digest)) is not None:
            response.task.CopyFrom(agreement.to_wire(task))
        if record.labels is not None:
            labels = label_pb2.Labels(width=record.width, values=record.labels)
            response.labels.CopyFrom(labels)
        return response

    @rpc.allowed(Role.CLIENT)
    async def CancelRound(
        self, request: label_pb2.CancelRoundRequest, context: Any
    ) -> label_pb2.CancelRoundResponse:
        client = rpc.caller().name
        await self._turns.do(client, self._round, client, request.round_id)
        running = self._open.get(request.round_id)
        again = running is not None and running[0].cancelled
        if running is None or not running[0].cancel():
            return label_pb2.CancelRoundResponse(cancelled=False)
        if not again:  # else it would be kept from telling the parties
            running[1].cancel()
        await asyncio.wait([running[1]])
        return label_pb2.CancelRoundResponse(cancelled=True)

    @rpc.allowed(Role.CLIENT)
    async def ListRounds(
        self, request: label_pb2.ListRoundsRequest, context: Any
    ) -> label_pb2.ListRoundsResponse:
        client = rpc.caller().name
        return await self._turns.do(client, self._list, client)

    def _list(self, client: str) -> label_pb2.ListRoundsResponse:
        records = self._archive.rounds(client, _MAX_LISTED)
        return label_pb2.ListRoundsResponse(rounds=[record.summary() for record in records])

    @rpc.allowed(Role.CLIENT)
    async def GetService(
        self, request: label_pb2.GetServiceRequest, context: Any
    ) -> label_pb2.GetServiceResponse:
        agents = [
            label_pb2.AgentPresence(
                agent=name,
                tasks=[offer.task for offer in can.offers if offer.task],
                offer=next((offer for offer in can.offers if not offer.task), None),
                min_sigma=can.min_sigma,
                min_quorum=can.min_quorum,
                min_collusion=can.min_collusion,
                rounds=can.rounds,
                max_honest=can.max_honest,
            )
            for name, can in self._attendance.present().items()
        ]
        delta, budget = self._defaults.delta, self._ledger.budget
        client = rpc.caller().name
        spent = await self._turns.do(client, self._ledger.figures, delta)
        limits = {} if budget is None else budget.limits()
        told = label_pb2.GetServiceResponse(
            agents=agents,
            parties=self._defaults.parties,
            engine=self._defaults.engine.code,
            delta=delta,
            max_queries=MAX_QUERIES,
            unready_parties=await self._turns.ask(client, self._unready),
            limit_epsilon_agent=limits.get(Level.AGENT),
            limit_epsilon_instance=limits.get(Level.INSTANCE),
            limits_against_labels=self._ledger.against is Against.LABELS,
            tasks=[
                agreement.to_wire(task, content=False) for task in self._defaults.tasks.values()
            ],
        )
        return with_figures(told, spent)

    @rpc.allowed(Role.CLIENT)
    async def GetTask(
        self, request: common_pb2.GetTaskRequest, context: Any
    ) -> common_pb2.GetTaskResponse:
        client = rpc.caller().name
        tasks = self._defaults.tasks
        return await self._turns.do(client, find_task, request, tasks, self._archive)


def _fingerprint(plan: label_pb2.LabelPlan, digest: bytes) -> bytes:
    """What must be the same where a request id is: plan and queries, whatever is expected of
    them."""
    same = label_pb2.LabelPlan()
    same.CopyFrom(plan)
    same.ClearField("agreement")
    return same.SerializeToString(deterministic=True) + digest


async def _holding(held: contextlib.AsyncExitStack, opening: Awaitable[Round]) -> Round:
    """A round that is opened; what is held is let go of afterwards."""
    async with held:
        return await opening


async def _replay(record: RoundRecord) -> AsyncIterator[Response]:
    """What a finished round said, for a client that asks again."""
    if record.state != COMPLETE or record.labels is None:
        raise VoteError(ErrorKind.ROUND_FAILED, round=record.round_id, why=record.reason)
    for labels in _label_messages(record.labels, record.width):
        yield Response(labels=labels)
    yield Response(completed=record.completed)


def _label_messages(labels: Labels, width: int) -> Iterator[label_pb2.Labels]:
    step = max(1, _LABELS_PER_MESSAGE // width) * width
    for start in range(0, labels.size, step):
        values = labels[start : start + step]
        yield label_pb2.Labels(offset=start // width, width=width, values=values)
