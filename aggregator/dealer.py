"""The dealer: makes correlated randomness for the parties, and sees nothing but sizes.

Trust: the dealer must not collude with a party, for it knows every mask. Material is bound to a
session and dealt to each of its parties once; a party can only ask in its own name. A dealer that
restarts forgets its sessions: parties then hold grants with different deal ids, notice it before
they compute, and abort.
"""

from __future__ import annotations

import asyncio
import os
from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from mpc_vote import rpc, wire
from mpc_vote.argmax.material import Item, ItemKind, correct
from mpc_vote.csprng import new_seed
from mpc_vote.errors import ErrorKind, VoteError
from mpc_vote.identity import NAME_PATTERN, Role
from mpc_vote.proto.mpcvote.v1 import dealer_pb2, dealer_pb2_grpc
from mpc_vote.spec import MAX_PARTIES

MAX_ITEM_COUNT = 1 << 24
MAX_ITEMS = 4_096
MAX_SESSIONS = 4_096


@dataclass
class _Session:
    parties: tuple[str, ...]
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
        self, request_iterator: Any, context: Any
    ) -> AsyncIterator[dealer_pb2.DealResponse]:
        session: _Session | None = None
        index = 0
        async for request in request_iterator:
            if session is None:
                session = self._admit(request.opening, rpc.caller().name)
                rank = session.parties.index(rpc.caller().name)
                grant = dealer_pb2.DealGrant(deal_id=session.deal_id, seed=session.seeds[rank])
                yield dealer_pb2.DealResponse(grant=grant)
            for item in self._items(request, session):
                words = await asyncio.to_thread(correct, session.seeds, index, item)
                index += 1
                for piece in wire.split_bytes(words.tobytes()):
                    correction = dealer_pb2.DealCorrection(words=piece)
                    yield dealer_pb2.DealResponse(correction=correction)

    def _admit(self, opening: dealer_pb2.DealOpening, party: str) -> _Session:
        parties = tuple(opening.parties)
        if not NAME_PATTERN.fullmatch(opening.session_id):
            raise VoteError(ErrorKind.DEAL_INVALID, why="the session id is malformed")
        if not 2 <= len(parties) <= MAX_PARTIES or len(set(parties)) != len(parties):
            raise VoteError(ErrorKind.DEAL_INVALID, why="the parties are not 2 or more, once each")
        if party not in parties:
            what = f"session {opening.session_id}"
            raise VoteError(ErrorKind.NAME_REFUSED, who=party, what=what)
        session = self._sessions.get(opening.session_id)
        if session is None:
            seeds = [new_seed() for _ in parties]
            session = _Session(parties, seeds, deal_id=os.urandom(16))
            self._sessions[opening.session_id] = session
            if len(self._sessions) > MAX_SESSIONS:
                self._sessions.popitem(last=False)
        if session.parties != parties:
            raise VoteError(ErrorKind.DEAL_INVALID, why="the session has other parties")
        if party in session.served:
            raise VoteError(ErrorKind.DEAL_SPENT, session=opening.session_id, who=party)
        session.served.add(party)
        return session

    def _items(self, request: dealer_pb2.DealRequest, session: _Session) -> list[Item]:
        if not request.items:
            return []
        if rpc.caller().name != session.parties[-1]:
            raise VoteError(ErrorKind.DEAL_INVALID, why="only the last party gets corrections")
        known = {kind.value for kind in ItemKind}
        for item in request.items:
            if item.kind not in known or not 0 < item.count <= MAX_ITEM_COUNT:
                raise VoteError(ErrorKind.DEAL_INVALID, why="an item's kind or size")
        if len(request.items) > MAX_ITEMS:
            raise VoteError(ErrorKind.DEAL_INVALID, why=f"over {MAX_ITEMS} items at once")
        return [Item(ItemKind(item.kind), item.count) for item in request.items]
