"""The dealer: makes correlated randomness for the parties, and sees nothing but sizes.

Trust: the dealer must not collude with a party, for it knows every mask: the parties send it their
seeds. Whether it deals what it should, they check (`mpc_vote.mpc.cut_and_choose`). A session lasts
from its first request until its corrections are collected, one of its parties hangs up, or nobody
comes for too long; then nothing of it is kept. A party can only ask in its own name. It asks once,
with seeds of its own: material of a session that is dealt anew has nothing in common with the old.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from mpc_vote.errors import ErrorKind, VoteError
from mpc_vote.mpc.cut_and_choose import MAX_COPIES, Session, commit, stream_keys
from mpc_vote.mpc.preprocessing import Item, Plan
from mpc_vote.mpc.prg import SEED_BYTES
from mpc_vote.pki.identity import NAME_PATTERN, Role
from mpc_vote.proto.mpcvote.v1 import dealer_pb2, dealer_pb2_grpc
from mpc_vote.transport import rpc, tensors
from mpc_vote.voting import codec
from mpc_vote.voting.codec import MAX_ITEMS, MAX_REPEATED_ITEMS
from mpc_vote.voting.limits import MAX_PARTIES

MAX_SESSIONS = 4_096
# What an item that a plan lists takes itself, in commitments of 32 bytes.
_LISTED = 8
# Of all sessions: a commitment to each item in each copy, which waits in memory until all have read
# it, and the plan.
MAX_COMMITMENTS = MAX_REPEATED_ITEMS * MAX_COPIES + _LISTED * MAX_ITEMS
# The largest take over a gigabyte each while they are made.
_ITEMS_AT_ONCE = 2
# How long seeds are kept for parties that have not asked yet, and then for those that check.
_GATHER_SECONDS = 60.0
_CHECK_SECONDS = 600.0


class _Deal:
    """One session: the seeds of its parties as they come, then commitments, then corrections."""

    def __init__(self, session: Session, gate: asyncio.Semaphore) -> None:
        self.session = session
        listed = sum(len(run.items) for run in session.plan.runs)
        self.weight = session.plan.items * session.copies + _LISTED * listed
        self.seed_hashes: list[bytes] = []
        self._gate = gate
        self._seeds: dict[int, tuple[bytes, ...]] = {}
        self._whole = asyncio.get_running_loop().create_future()
        # By copy and rank.
        self._keys: list[list[bytes]] = []
        self._uncommitted = enumerate(session.plan)
        self._digests: list[bytes] = []
        self._making = asyncio.Lock()
        self._readers = len(session.parties)
        self._ended = ""

    def take_seeds(self, rank: int, seeds: tuple[bytes, ...]) -> None:
        """A party's seeds; with the last of them the session is whole."""
        session = self.session
        if rank in self._seeds or self.seed_hashes:
            raise VoteError(ErrorKind.DEAL_SPENT, session=session.id, who=session.parties[rank])
        self._seeds[rank] = seeds
        if len(self._seeds) < len(session.parties):
            return
        by_rank = [self._seeds[rank] for rank in range(len(session.parties))]
        self.seed_hashes = [session.seed_hashes(rank, seeds) for rank, seeds in enumerate(by_rank)]
        transcript = session.transcript(self.seed_hashes)
        by_copy = enumerate(zip(*by_rank, strict=True))
        self._keys = [stream_keys(transcript, seeds, copy) for copy, seeds in by_copy]
        self._seeds = {}
        self._whole.set_result(None)

    async def whole(self) -> None:
        """Waits until all parties have sent their seeds."""
        done, _ = await asyncio.wait([self._whole], timeout=_GATHER_SECONDS)
        if not done:
            missing = [n for r, n in enumerate(self.session.parties) if r not in self._seeds]
            what = f"The request of {' and '.join(missing)} to the dealer"
            raise VoteError(ErrorKind.DEADLINE, what=what, seconds=_GATHER_SECONDS)
        self._check_open()

    async def commitments(self) -> AsyncIterator[bytes]:
        """To each item in turn, for one party; made once for all that ask."""
        for place in range(self.session.plan.items):
            async with self._making:
                self._check_open()
                if place == len(self._digests):
                    index, item = next(self._uncommitted)
                    async with self._gate:
                        made = await asyncio.to_thread(commit, item, self._keys, index)
                    self._check_open()
                    self._digests.append(made)
            yield self._digests[place]
        self._readers -= 1
        if not self._readers:
            self._digests = []

    def collect(self, copy: int) -> Sequence[bytes]:
        """The keys of a copy by rank; all others are forgotten."""
        if self._readers:
            raise VoteError(ErrorKind.DEAL_INVALID, why="not all parties have their commitments")
        if not copy < len(self._keys):
            raise VoteError(ErrorKind.DEAL_INVALID, why="there is no such copy")
        keys, self._keys = self._keys[copy], []
        return keys

    def end(self, why: str) -> None:
        """Forgets everything; whoever still waits is told why."""
        self._ended = why
        self._seeds, self._keys, self._digests = {}, [], []
        if not self._whole.done():
            self._whole.set_result(None)

    def _check_open(self) -> None:
        if self._ended:
            raise VoteError(ErrorKind.DEAL_ENDED, session=self.session.id, why=self._ended)


class DealerServicer(dealer_pb2_grpc.DealerServiceServicer):
    """Deals to parties."""

    def __init__(self) -> None:
        # The oldest sessions are ended when there are too many.
        self._deals: OrderedDict[str, _Deal] = OrderedDict()
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
        deal = self._admit(request, party)
        request.Clear()
        served = False
        try:
            await deal.whole()
            grant = dealer_pb2.DealGrant(seed_hashes=deal.seed_hashes)
            yield dealer_pb2.DealResponse(grant=grant)
            item = 0
            async for digests in deal.commitments():
                said = dealer_pb2.DealCommitments(digests=digests, item=item)
                yield dealer_pb2.DealResponse(commitments=said)
                item += 1
            served = True
        finally:
            if not served:
                self._end(deal, f"party {party} was not served")
        loop = asyncio.get_running_loop()
        loop.call_later(_CHECK_SECONDS, self._end, deal, "nobody came for its corrections")

    @rpc.allowed(Role.PARTY)
    async def Collect(
        self, request: dealer_pb2.CollectRequest, context: Any
    ) -> AsyncIterator[dealer_pb2.CollectResponse]:
        party = rpc.caller().name
        deal = self._deals.get(request.session_id)
        if deal is None:
            why = "it is not open"
            raise VoteError(ErrorKind.DEAL_ENDED, session=request.session_id, why=why)
        if party != deal.session.parties[-1]:
            what = f"the corrections of session {request.session_id}"
            raise VoteError(ErrorKind.NAME_REFUSED, who=party, what=what)
        keys = deal.collect(request.copy)
        self._end(deal, "its corrections were collected")
        offset = 0
        async for data in _corrections(deal.session.plan, keys, self._gate):
            for piece in tensors.split_bytes(data):
                yield dealer_pb2.CollectResponse(data=piece, offset=offset)
                offset += len(piece)

    def _end(self, deal: _Deal, why: str) -> None:
        """Whoever breaks in later finds nothing of it."""
        if self._deals.get(deal.session.id) is deal:
            del self._deals[deal.session.id]
            self._weight -= deal.weight
            deal.end(why)

    def _admit(self, request: dealer_pb2.DealRequest, party: str) -> _Deal:
        """Takes a party's seeds into a session that is as it says."""
        session = _session(request)
        if party not in session.parties:
            raise VoteError(ErrorKind.NAME_REFUSED, who=party, what=f"session {session.id}")
        seeds = tuple(request.seeds)
        if len(seeds) != session.copies or any(len(seed) != SEED_BYTES for seed in seeds):
            why = f"there must be a seed of {SEED_BYTES} bytes for each copy"
            raise VoteError(ErrorKind.DEAL_INVALID, why=why)
        deal = self._deals.get(session.id) or self._begin(session)
        _check_same(session, deal.session, party)
        deal.take_seeds(session.parties.index(party), seeds)
        return deal

    def _begin(self, session: Session) -> _Deal:
        deal = self._deals[session.id] = _Deal(session, self._gate)
        self._weight += deal.weight
        while len(self._deals) > MAX_SESSIONS or self._weight > MAX_COMMITMENTS:
            self._end(next(iter(self._deals.values())), "there were too many sessions after it")
        return deal


def _session(request: dealer_pb2.DealRequest) -> Session:
    """What a request asks for."""
    parties = tuple(request.parties)
    if not NAME_PATTERN.fullmatch(request.session_id):
        raise VoteError(ErrorKind.DEAL_INVALID, why="the session id is malformed")
    if not 2 <= len(parties) <= MAX_PARTIES or len(set(parties)) != len(parties):
        raise VoteError(ErrorKind.DEAL_INVALID, why="the parties are not 2 or more, once each")
    if not all(NAME_PATTERN.fullmatch(name) for name in parties):
        raise VoteError(ErrorKind.DEAL_INVALID, why="a party's name is malformed")
    if not 1 <= request.copies <= MAX_COPIES:
        raise VoteError(ErrorKind.DEAL_INVALID, why=f"copies must be 1 to {MAX_COPIES}")
    return Session(request.session_id, parties, codec.from_wire(request.plan), request.copies)


def _check_same(asked: Session, begun: Session, party: str) -> None:
    """All parties of a session must mean the same one."""
    if asked.parties != begun.parties:
        raise VoteError(ErrorKind.DEAL_INVALID, why="the session has other parties")
    if asked.plan != begun.plan:
        raise VoteError(ErrorKind.DEAL_INVALID, why="the session has another plan")
    if asked.copies != begun.copies:
        why = (
            f"party {party} asks for {asked.copies} copies, another one for {begun.copies}: "
            "start all parties with the same --deal-copies"
        )
        raise VoteError(ErrorKind.DEAL_INVALID, why=why)


async def _corrections(
    plan: Plan, keys: Sequence[bytes], gate: asyncio.Semaphore
) -> AsyncIterator[bytes]:
    """One correction per item; the next is made while this one is on its way."""

    async def make(index: int, item: Item[Any]) -> bytes:
        async with gate:
            return await asyncio.to_thread(item.correct, keys, index)

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
