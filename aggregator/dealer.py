"""The dealer: makes correlated randomness for the parties, and sees nothing but sizes.

Trust: the dealer must not collude with a party, for it knows every mask. Material is bound to a
session and its plan, and dealt to each of its parties once; a party can only ask in its own name. A
dealer that restarts forgets its sessions: parties then hold grants with different deal ids, notice
it before they compute, and abort.
"""

from __future__ import annotations

import asyncio
import os
from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from aggregator import plans
from mpc_vote import rpc, wire
from mpc_vote.argmax.material import Item, Plan
from mpc_vote.csprng import new_seed
from mpc_vote.errors import ErrorKind, VoteError
from mpc_vote.identity import NAME_PATTERN, Role
from mpc_vote.proto.mpcvote.v1 import dealer_pb2, dealer_pb2_grpc
from mpc_vote.spec import MAX_PARTIES

MAX_SESSIONS = 4_096


@dataclass
class _Session:
    parties: tuple[str, ...]
    plan: Plan
    seeds: list[bytes] = field(repr=False)
    deal_id: bytes
    served: set[str] = field(default_factory=set)


class DealerServicer(dealer_pb2_grpc.DealerServiceServicer):
    """Deals to parties."""

    def __init__(self) -> None:
        # The oldest session is forgotten when the table is full; a party that comes late to it
        # starts another deal, which its peers notice.
        self._sessions: OrderedDict[str, _Session] = OrderedDict()

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
        grant = dealer_pb2.DealGrant(deal_id=session.deal_id, seed=session.seeds[rank])
        yield dealer_pb2.DealResponse(grant=grant)
        if rank != len(session.parties) - 1:
            return
        async for data in _corrections(session):
            for piece in wire.split_bytes(data):
                yield dealer_pb2.DealResponse(correction=dealer_pb2.DealCorrection(data=piece))

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
        plan = plans.from_wire(request.plan)
        session = self._sessions.get(request.session_id)
        if session is None:
            seeds = [new_seed() for _ in parties]
            session = _Session(parties, plan, seeds, deal_id=os.urandom(16))
            self._sessions[request.session_id] = session
            if len(self._sessions) > MAX_SESSIONS:
                self._sessions.popitem(last=False)
        if session.parties != parties:
            raise VoteError(ErrorKind.DEAL_INVALID, why="the session has other parties")
        if session.plan != plan:
            raise VoteError(ErrorKind.DEAL_INVALID, why="the session has another plan")
        if party in session.served:
            raise VoteError(ErrorKind.DEAL_SPENT, session=request.session_id, who=party)
        session.served.add(party)
        return session


async def _corrections(session: _Session) -> AsyncIterator[bytes]:
    """One correction per item; the next is made while this one is on its way."""

    def start(index: int, item: Item[Any]) -> asyncio.Task[bytes]:
        return asyncio.create_task(asyncio.to_thread(item.correct, session.seeds, index))

    ahead: asyncio.Task[bytes] | None = None
    try:
        for index, item in enumerate(session.plan):
            ready, ahead = ahead, start(index, item)
            if ready is not None:
                yield await ready
        if ahead is not None:
            yield await ahead
    finally:
        if ahead is not None:
            ahead.cancel()
