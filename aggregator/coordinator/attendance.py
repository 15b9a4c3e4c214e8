"""Which agents are here: the streams they hold open, what they can answer, what they said of a
round.

An agent is known by the ledger that it first announced, and attends by one process at a time. This
finds mistakes, and a stolen certificate that is used beside its owner; an agent's privacy does not
rest on it, since it would have to trust the coordinator.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections import Counter
from collections.abc import AsyncIterator, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from aggregator.coordinator.archive import Archive
from aggregator.coordinator.turns import Turns
from mpc_vote.errors import ErrorKind, VoteError, printable
from mpc_vote.pki.identity import Role
from mpc_vote.privacy.ledger import LEDGER_ID
from mpc_vote.proto.mpcvote.v1 import agent_pb2, agent_pb2_grpc, common_pb2
from mpc_vote.tasks import Task, agreement
from mpc_vote.transport import rpc, tensors
from mpc_vote.voting.ballots import BALLOTS
from mpc_vote.voting.limits import MAX_AGENTS, MAX_CLASSES, MAX_K, MAX_ROUNDS_AT_ONCE, MAX_TASKS
from mpc_vote.voting.spec import Spec

log = logging.getLogger(__name__)

_OUTBOX = 64
_HELLO_SECONDS = 30.0
# Of about a megabyte each.
_CHUNKS_KEPT = 8
# An agent reads the queries of each round once; a retry may overlap.
_FETCHES_PER_AGENT = 2 * MAX_ROUNDS_AT_ONCE
# A request is kept until all is read, fields of a later version included.
_MAX_FETCH_BYTES = 1_024
# The one that counts, and older ones that are dead or about to end.
_STREAMS_PER_AGENT = 8
_MAX_REASON = 500
# They are kept while the agent attends, fields of a later version included.
_MAX_CAPABILITIES_BYTES = 1_024 + MAX_TASKS * 256
# And so is what it said last, whole. The longest is why it declines.
_MAX_MESSAGE_BYTES = 64 << 10


class _Queries:
    """A round's queries as messages. Agents read at about the same time: each is made once for
    all that do, and what they have read is dropped."""

    def __init__(self, path: Path) -> None:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
        step = tensors.rows_per_chunk(array.nbytes // len(array))

        # No method: a cache of one would hold this object, and both would wait for the collector.
        @lru_cache(_CHUNKS_KEPT)
        def chunk(start: int) -> agent_pb2.FetchQueriesResponse:
            tensor = tensors.to_tensor(array[start : start + step])
            return agent_pb2.FetchQueriesResponse(queries=tensor)

        self._chunk = chunk
        self._starts = range(0, len(array), step)

    def __iter__(self) -> Iterator[agent_pb2.FetchQueriesResponse]:
        return map(self._chunk, self._starts)


@dataclass
class Responses:
    """What the agents of one open round have said so far."""

    spec: Spec
    queries: _Queries
    prepared: set[str] = field(default_factory=set)
    submitted: dict[str, int] = field(default_factory=dict)
    declined: dict[str, str] = field(default_factory=dict)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    started: bool = False

    def done(self) -> int:
        """Agents that have done what this phase asks: be prepared, then submit."""
        return len(self.submitted if self.started else self.prepared)

    def silent(self) -> Iterator[str]:
        """Agents of the roster that are still expected to answer in this phase."""
        awaited = self.prepared if self.started else self.spec.roster
        answered = self.submitted if self.started else self.prepared
        return (a for a in awaited if a not in answered and a not in self.declined)


@dataclass(eq=False)
class _Seat:
    capabilities: agent_pb2.Capabilities
    # None ends the stream.
    outbox: asyncio.Queue[agent_pb2.AttendResponse | None] = field(default_factory=asyncio.Queue)


class Attendance(agent_pb2_grpc.AgentServiceServicer):
    """The agents' service, and the coordinator's view of who is present."""

    def __init__(
        self,
        archive: Archive,
        revoked: Collection[str] = (),
        tasks: Mapping[str, Task] | None = None,
    ) -> None:
        self._archive = archive
        self._revoked = frozenset(revoked)
        self._tasks = tasks or {}
        self._turns = Turns()
        # Of each agent that is here the streams it holds open: the newest is the one that counts.
        self._seats: dict[str, list[_Seat]] = {}
        self._rounds: dict[str, Responses] = {}
        # Messages that a reader leaves lying take memory here.
        self._fetches: Counter[str] = Counter()

    def present(self) -> dict[str, agent_pb2.Capabilities]:
        """Agents that attend, in the order of their names."""
        return {name: self._seats[name][-1].capabilities for name in sorted(self._seats)}

    def attends(self, agent: str) -> bool:
        """Whether an agent is here now."""
        return agent in self._seats

    def stop(self) -> None:
        """Ends all streams; agents come back when there is somebody to come back to."""
        for seat in chain.from_iterable(self._seats.values()):
            seat.outbox.put_nowait(None)

    @contextlib.contextmanager
    def announce(self, spec: Spec, queries: Path) -> Iterator[Responses]:
        """Tells the roster about a round and takes its answers while the context lasts."""
        responses = Responses(spec, _Queries(queries))
        self._rounds[spec.round_id] = responses
        try:
            for agent in spec.roster:
                self._tell(agent, responses)
            yield responses
        finally:
            del self._rounds[spec.round_id]
            self._close(responses)

    def start(self, responses: Responses) -> None:
        """Tells the agents that are prepared, and those that will be, to charge, vote and send."""
        responses.started = True
        for agent in responses.prepared:
            self._tell(agent, responses)

    def _close(self, responses: Responses) -> None:
        """Tells whoever may still hold a part of its budget for the round to let go of it."""
        closed = agent_pb2.Closed(round_id=responses.spec.round_id)
        for agent in responses.spec.roster:
            if agent not in responses.submitted and agent not in responses.declined:
                # One that does not read lets go at the round's deadline.
                self._send(agent, agent_pb2.AttendResponse(closed=closed))

    def _tell(self, agent: str, responses: Responses) -> None:
        """An agent that is not prepared hears of the round, one that is hears of its start."""
        if agent in responses.prepared:
            go = agent_pb2.Go(round_id=responses.spec.round_id)
            response = agent_pb2.AttendResponse(go=go)
        else:
            announcement = agent_pb2.RoundAnnouncement(spec=responses.spec.wire)
            response = agent_pb2.AttendResponse(announcement=announcement)
        if not self._send(agent, response):
            responses.declined[agent] = "it does not read its announcements"
            responses.changed.set()

    def _send(self, agent: str, response: agent_pb2.AttendResponse) -> bool:
        """False if the agent is here but does not read."""
        seats = self._seats.get(agent)
        if not seats:
            return True
        outbox = seats[-1].outbox
        if outbox.qsize() >= _OUTBOX:
            return False
        outbox.put_nowait(response)
        return True

    @rpc.allowed(Role.AGENT)
    async def Attend(
        self, request_iterator: Any, context: Any
    ) -> AsyncIterator[agent_pb2.AttendResponse]:
        name = rpc.caller().name
        if name in self._revoked:
            raise VoteError(ErrorKind.AGENT_REVOKED, agent=name)
        requests = _short(request_iterator)
        first = await _first(requests)
        _check_capabilities(first.capabilities)
        for offer in first.capabilities.offers:
            self._check_task(name, offer)
        await self._check_ledger(name, first.capabilities.ledger_id)
        self._check_seat(name, first.capabilities.process_id)
        if name not in self._seats and len(self._seats) >= MAX_AGENTS:
            raise VoteError(ErrorKind.SERVICE_BUSY, got=MAX_AGENTS, retry_after=60.0)
        # An agent that comes back is heard on its new stream: the older one is dead or will be. If
        # it is the new one that ends first, the older one is heard again.
        seat = _Seat(first.capabilities)
        seats = self._seats.setdefault(name, [])
        seats.append(seat)
        self._wake(name)
        log.info("agent %s attends", name)
        reader = asyncio.create_task(self._listen(name, requests))
        reader.add_done_callback(lambda _: seat.outbox.put_nowait(None))
        try:
            yield agent_pb2.AttendResponse(welcome=agent_pb2.Welcome())
            for responses in list(self._rounds.values()):
                answered = responses.submitted.keys() | responses.declined.keys()
                if name in responses.spec.roster and name not in answered:
                    # It prepares anew: what it had prepared is gone with its stream.
                    responses.prepared.discard(name)
                    self._tell(name, responses)
            while (response := await seat.outbox.get()) is not None and not reader.done():
                yield response
            if reader.done():
                await reader
        finally:
            reader.cancel()
            seats.remove(seat)
            if not seats:
                del self._seats[name]
                log.info("agent %s left", name)
            self._wake(name)

    def _check_task(self, name: str, offer: common_pb2.Offer) -> None:
        """Refuses an agent whose task differs from the one that is served."""
        if not offer.task:
            return
        task = self._tasks.get(offer.task)
        if task is None:
            raise agreement.unknown("The coordinator", offer.task, self._tasks)
        if offer.task_digest != task.digest:
            log.warning("agent %s has another task %s: refused", name, task.name)
            raise agreement.digests_differ(
                task.name, f"agent {name}", offer.task_digest, "the coordinator", task.digest
            )
        # Fields of a later version say nothing here.
        offer.DiscardUnknownFields()
        if offer != agreement.offer_of(task):
            why = f"the agent's offer is not what task {task.name} says"
            raise VoteError(ErrorKind.SPEC_INVALID, why=why)

    async def _check_ledger(self, name: str, ledger_id: str) -> None:
        """Refuses an agent with another ledger, which may lack what the agent of this name has
        spent."""
        known = await asyncio.to_thread(self._archive.known_ledger, name, ledger_id)
        if known != ledger_id:
            log.warning(
                "agent %s announced ledger %s, but is known by %s: refused",
                name,
                ledger_id,
                known,
            )
            raise VoteError(ErrorKind.LEDGER_CHANGED, agent=name, ledger=ledger_id)

    def _check_seat(self, name: str, process_id: str) -> None:
        """A process may take over its own seat, and nobody else's."""
        if any(seat.capabilities.process_id != process_id for seat in self._seats.get(name, [])):
            log.warning("agent %s attends already, from another process: refused", name)
            raise VoteError(ErrorKind.SEAT_TAKEN, agent=name)
        if len(self._seats.get(name, [])) >= _STREAMS_PER_AGENT:
            raise VoteError(ErrorKind.SERVICE_BUSY, got=_STREAMS_PER_AGENT, retry_after=5.0)

    async def _listen(self, name: str, requests: AsyncIterator[agent_pb2.AttendRequest]) -> None:
        async for request in requests:
            kind = request.WhichOneof("message")
            rounds = {
                "prepared": request.prepared.round_id,
                "submitted": request.submitted.round_id,
                "declined": request.declined.round_id,
            }
            responses = self._rounds.get(rounds.get(kind or "", ""))
            if responses is None or name not in responses.spec.roster:
                continue
            if kind == "prepared":
                # Who has declined is not counted on, and nobody is charged for its promise.
                if name not in responses.declined:
                    responses.prepared.add(name)
                    if responses.started:
                        self._tell(name, responses)
            elif kind == "submitted" and responses.started:
                responses.submitted[name] = request.submitted.upload_bytes
                responses.declined.pop(name, None)
            elif kind == "declined":
                said = f"{request.declined.error[:100]}: {request.declined.reason[:_MAX_REASON]}"
                responses.declined[name] = printable(said)[:_MAX_REASON]
                responses.prepared.discard(name)
            responses.changed.set()

    def _wake(self, name: str) -> None:
        for responses in self._rounds.values():
            if name in responses.spec.roster:
                responses.changed.set()

    @rpc.allowed(Role.AGENT)
    async def FetchQueries(
        self, request: agent_pb2.FetchQueriesRequest, context: Any
    ) -> AsyncIterator[agent_pb2.FetchQueriesResponse]:
        responses, agent = self._rounds.get(request.round_id), rpc.caller().name
        if responses is None:
            raise VoteError(ErrorKind.ROUND_UNKNOWN, round=request.round_id)
        if agent not in responses.spec.roster:
            what = f"the roster of round {request.round_id}"
            raise VoteError(ErrorKind.NAME_REFUSED, who=rpc.caller(), what=what)
        if request.ByteSize() > _MAX_FETCH_BYTES:
            raise VoteError(ErrorKind.SPEC_INVALID, why="the agent's message is too long")
        if self._fetches[agent] >= _FETCHES_PER_AGENT:
            raise VoteError(ErrorKind.SERVICE_BUSY, got=_FETCHES_PER_AGENT, retry_after=1.0)
        self._fetches[agent] += 1
        try:
            for response in responses.queries:
                yield response
        finally:
            self._fetches[agent] -= 1

    @rpc.allowed(Role.AGENT)
    async def GetTask(
        self, request: common_pb2.GetTaskRequest, context: Any
    ) -> common_pb2.GetTaskResponse:
        agent = rpc.caller().name
        if agent in self._revoked:
            raise VoteError(ErrorKind.AGENT_REVOKED, agent=agent)
        return await self._turns.do(agent, find_task, request, self._tasks, self._archive)


def find_task(
    request: common_pb2.GetTaskRequest, tasks: Mapping[str, Task], archive: Archive
) -> common_pb2.GetTaskResponse:
    """The task that is asked for."""
    if request.ByteSize() > _MAX_FETCH_BYTES:
        raise VoteError(ErrorKind.SPEC_INVALID, why="the request for a task is too long")
    task = archive.task(request.digest) if request.digest else tasks.get(request.name)
    if task is None or request.name not in ("", task.name):
        raise agreement.unknown("The coordinator", request.name or request.digest.hex(), tasks)
    return common_pb2.GetTaskResponse(task=agreement.to_wire(task))


async def _short(
    requests: AsyncIterator[agent_pb2.AttendRequest],
) -> AsyncIterator[agent_pb2.AttendRequest]:
    """An agent's messages, until one is too long."""
    async for request in requests:
        if request.ByteSize() > _MAX_MESSAGE_BYTES:
            raise VoteError(ErrorKind.SPEC_INVALID, why="the agent's message is too long")
        yield request


async def _first(requests: AsyncIterator[agent_pb2.AttendRequest]) -> agent_pb2.AttendRequest:
    """An agent's first message, which says what it can answer."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_HELLO_SECONDS):
            async for request in requests:
                return request
    raise VoteError(ErrorKind.SPEC_INVALID, why="the agent did not say what it can answer")


def _check_capabilities(capabilities: agent_pb2.Capabilities) -> None:
    """Refuses an agent whose announcement can't be used."""
    if capabilities.ByteSize() > _MAX_CAPABILITIES_BYTES:
        raise VoteError(ErrorKind.SPEC_INVALID, why="the agent's first message is too long")
    tasks = [offer.task for offer in capabilities.offers]
    if not 1 <= len(tasks) <= MAX_TASKS or len(set(tasks)) < len(tasks):
        why = f"the agent must make 1 to {MAX_TASKS} offers, each of another task"
        raise VoteError(ErrorKind.SPEC_INVALID, why=why)
    for offer in capabilities.offers:
        _check_offer(offer)
    for name in ("ledger_id", "process_id"):
        if not LEDGER_ID.fullmatch(getattr(capabilities, name)):
            why = f"the agent's {name} is not 32 hexadecimal digits; run this version of the agent"
            raise VoteError(ErrorKind.SPEC_INVALID, why=why)
    if not 0 <= capabilities.min_sigma < math.inf:
        raise VoteError(ErrorKind.SPEC_INVALID, why="the agent's least sigma is out of range")
    if capabilities.rounds not in common_pb2.Rounds.values():
        why = "the agent insists on a kind of round that is not known here"
        raise VoteError(ErrorKind.SPEC_INVALID, why=why)


def _check_offer(offer: common_pb2.Offer) -> None:
    """Refuses an offer that can't be used."""
    shape = tuple(offer.query_shape)
    tensors.dtype_of(offer.query_dtype)
    if not 1 <= offer.classes <= MAX_CLASSES:
        raise VoteError(
            ErrorKind.CLASSES_RANGE, field="classes", got=offer.classes, low=1, high=MAX_CLASSES
        )
    known = [BALLOTS.by_code(code) for code in offer.ballots]
    neighbours = any(kind is not None and kind.needs_k for kind in known)
    if neighbours and offer.k == 0:
        raise VoteError(ErrorKind.SPEC_INVALID, why="an agent that counts neighbours has no k")
    if not shape or len(shape) >= tensors.MAX_DIMENSIONS or 0 in shape or offer.k > MAX_K:
        raise VoteError(ErrorKind.SPEC_INVALID, why="the agent's query shape or k is out of range")
    if bool(offer.task) != bool(offer.task_digest):
        why = "an offer has both the name and the digest of a task, or neither"
        raise VoteError(ErrorKind.SPEC_INVALID, why=why)
