"""The dealer: makes correlated randomness for the parties, and sees nothing but sizes.

Trust: the dealer must not collude with a party, for it knows every mask. Whether it deals what it
should, the parties check: see `mpc_vote.argmax.checking`. Material is bound to a session and its
plan, and dealt to each of its parties once; a party can only ask in its own name. A dealer that
restarts forgets its sessions: parties then hold grants with different deal ids, notice it before
they compute, and abort.
"""

from __future__ import annotations

import asyncio
import os
from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from aggregator import plans
from aggregator.plans import MAX_DEALT
from mpc_vote import rpc, wire
from mpc_vote.argmax.checking import MAX_COPIES, commit
from mpc_vote.argmax.material import Item, Plan
from mpc_vote.csprng import new_seed
from mpc_vote.errors import ErrorKind, VoteError
from mpc_vote.identity import NAME_PATTERN, Role
from mpc_vote.proto.mpcvote.v1 import dealer_pb2, dealer_pb2_grpc
from mpc_vote.spec import MAX_PARTIES

MAX_SESSIONS = 4_096
# The largest take over a gigabyte each while they are made.
_ITEMS_AT_ONCE = 2
# For the items of all sessions, in all copies: what waits in memory until all have read it.
MAX_COMMITMENTS = MAX_DEALT * MAX_COPIES


class _Commitments:
    """To each item in turn, made once for all parties that ask; kept until all have read them."""

    def __init__(
        self,
        plan: Plan,
        copies: Sequence[Sequence[bytes]],
        readers: int,
        gate: asyncio.Semaphore,
    ) -> None:
        self._gate = gate
        self._copies = copies
        self._left = enumerate(plan)
        self._next = next(self._left, None)
        self._made: list[bytes] = []
        self._readers = readers
        self._making = asyncio.Lock()

    async def read(self) -> AsyncIterator[bytes]:
        """All of them, for one party."""
        made, place = self._made, 0
        while True:
            async with self._making:
                if place == len(made) and self._next is not None:
                    index, item = self._next
                    async with self._gate:
                        made.append(await asyncio.to_thread(commit, item, self._copies, index))
                    self._next = next(self._left, None)
            if place == len(made):
                break
            yield made[place]
            place += 1
        self._readers -= 1
        if not self._readers:
            self._made = []


@dataclass
class _Session:
    parties: tuple[str, ...]
    plan: Plan
    # By copy and rank.
    seeds: list[list[bytes]] = field(repr=False)
    commitments: _Commitments = field(repr=False)
    deal_id: bytes
    served: set[str] = field(default_factory=set)
    collected: bool = False

    @property
    def weight(self) -> int:
        """How many commitments it may have to keep."""
        return self.plan.items * len(self.seeds)


class DealerServicer(dealer_pb2_grpc.DealerServiceServicer):
    """Deals to parties."""

    def __init__(self) -> None:
        # The oldest sessions are forgotten when there are too many; a party that comes late to one
        # starts another deal, which its peers notice.
        self._sessions: OrderedDict[str, _Session] = OrderedDict()
        self._weight = 0
        self._gate = asyncio.Semaphore(_ITEMS_AT_ONCE)

    async def health(self) -> Mapping[str, bool]:
        """The dealer depends on nobody."""
        return {dealer_pb2.DESCRIPTOR.services_by_name["DealerService"].full_name: True}

    @rpc.allowed(Role.PARTY)
    async def Deal(
        self, request: dealer_pb2.DealRequest, context: Any
    ) -> AsyncIterator[dealer_pb2.DealResponse]:
        party = rpc.caller().name
        session = self._admit(request, party)
        rank = session.parties.index(party)
        seeds, commitments = [copy[rank] for copy in session.seeds], session.commitments
        self._forget_if_done(session)
        yield dealer_pb2.DealResponse(
            grant=dealer_pb2.DealGrant(deal_id=session.deal_id, seeds=seeds)
        )
        item = 0
        async for digests in commitments.read():
            said = dealer_pb2.DealCommitments(digests=digests, item=item)
            yield dealer_pb2.DealResponse(commitments=said)
            item += 1

    @rpc.allowed(Role.PARTY)
    async def Collect(
        self, request: dealer_pb2.CollectRequest, context: Any
    ) -> AsyncIterator[dealer_pb2.CollectResponse]:
        party = rpc.caller().name
        session = self._sessions.get(request.session_id)
        if session is None or session.deal_id != request.deal_id:
            raise VoteError(ErrorKind.DEAL_INVALID, why="there is no such deal")
        if party != session.parties[-1]:
            what = f"the corrections of session {request.session_id}"
            raise VoteError(ErrorKind.NAME_REFUSED, who=party, what=what)
        if session.collected:
            raise VoteError(ErrorKind.DEAL_SPENT, session=request.session_id, who=party)
        if not request.copy < len(session.seeds):
            raise VoteError(ErrorKind.DEAL_INVALID, why="there is no such copy")
        plan, seeds, offset = session.plan, session.seeds[request.copy], 0
        session.collected = True
        self._forget_if_done(session)
        async for data in _corrections(plan, seeds, self._gate):
            for piece in wire.split_bytes(data):
                yield dealer_pb2.CollectResponse(data=piece, offset=offset)
                offset += len(piece)

    def _forget_if_done(self, session: _Session) -> None:
        """Once all parties have what they need: whoever breaks in later finds no seed of theirs."""
        if session.collected and len(session.served) == len(session.parties):
            self._weight -= session.weight
            session.plan, session.seeds = Plan(()), []

    def _admit(self, request: dealer_pb2.DealRequest, party: str) -> _Session:
        parties = tuple(request.parties)
        if not NAME_PATTERN.fullmatch(request.session_id):
            raise VoteError(ErrorKind.DEAL_INVALID, why="the session id is malformed")
        if not 2 <= len(parties) <= MAX_PARTIES or len(set(parties)) != len(parties):
            raise VoteError(ErrorKind.DEAL_INVALID, why="the parties are not 2 or more, once each")
        if not all(NAME_PATTERN.fullmatch(name) for name in parties):
            raise VoteError(ErrorKind.DEAL_INVALID, why="a party's name is malformed")
        if party not in parties:
            what = f"session {request.session_id}"
            raise VoteError(ErrorKind.NAME_REFUSED, who=party, what=what)
        if not 1 <= request.copies <= MAX_COPIES:
            raise VoteError(ErrorKind.DEAL_INVALID, why=f"copies must be 1 to {MAX_COPIES}")
        plan = plans.from_wire(request.plan)
        session = self._sessions.get(request.session_id)
        if session is None:
            seeds = [[new_seed() for _ in parties] for _ in range(request.copies)]
            commitments = _Commitments(plan, seeds, len(parties), self._gate)
            session = _Session(parties, plan, seeds, commitments, deal_id=os.urandom(16))
            self._sessions[request.session_id] = session
            self._weight += session.weight
            while len(self._sessions) > MAX_SESSIONS or self._weight > MAX_COMMITMENTS:
                _, oldest = self._sessions.popitem(last=False)
                self._weight -= oldest.weight
        if session.parties != parties:
            raise VoteError(ErrorKind.DEAL_INVALID, why="the session has other parties")
        if party in session.served:
            raise VoteError(ErrorKind.DEAL_SPENT, session=request.session_id, who=party)
        if session.plan != plan:
            raise VoteError(ErrorKind.DEAL_INVALID, why="the session has another plan")
        if len(session.seeds) != request.copies:
            why = (
                f"party {party} asks for {request.copies} copies, another one for "
                f"{len(session.seeds)}: start all parties with the same --deal-copies"
            )
            raise VoteError(ErrorKind.DEAL_INVALID, why=why)
        session.served.add(party)
        return session


async def _corrections(
    plan: Plan, seeds: Sequence[bytes], gate: asyncio.Semaphore
) -> AsyncIterator[bytes]:
    """One correction per item; the next is made while this one is on its way."""

    async def make(index: int, item: Item[Any]) -> bytes:
        async with gate:
            return await asyncio.to_thread(item.correct, seeds, index)

    def start(index: int, item: Item[Any]) -> asyncio.Task[bytes]:
        return asyncio.create_task(make(index, item))

    ahead: asyncio.Task[bytes] | None = None
    try:
        for index, item in enumerate(plan):
            ready, ahead = ahead, start(index, item)
            if ready is not None:
                yield await ready
        if ahead is not None:
            yield await ahead
    finally:
        if ahead is not None:
            ahead.cancel()
