"""The dealer: makes correlated randomness for the parties, and sees nothing but sizes.

Trust: the dealer must not collude with a party, for it knows every mask: the parties send it their
seeds. The parties check whether it deals correctly (`mpc_vote.mpc.cut_and_choose`). A session lasts
from its first request until its corrections are collected, one of its parties hangs up, or nobody
collects them for too long; then nothing of it is kept. A party can only ask in its own name. It
asks once, with seeds of its own: preprocessing of a session that is dealt anew has nothing in
common with the old.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections import Counter, OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from mpc_vote.errors import ErrorKind, VoteError
from mpc_vote.mpc.cut_and_choose import (
    LARGE_AT_ONCE,
    LARGE_BYTES,
    MADE_AT_ONCE,
    MAX_COPIES,
    Session,
    commit,
    stream_keys,
)
from mpc_vote.mpc.preprocessing import Item, PreprocessingPlan
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
# Bytes that are made before it is looked whether anybody still wants them; but at least one item.
_AT_A_STRETCH = 1 << 26
# Of all sessions, what is made and not sent yet: at least two of the largest.
MAX_UNSENT_BYTES = 1 << 30
# How long seeds are kept for parties that have not asked yet, and then for those that check. The
# first is less than parties wait for an answer, so that they hear who is missing.
_GATHER_SECONDS = 25.0
_CHECK_SECONDS = 600.0

T = TypeVar("T")


class _Workshop:
    """Where items are made: on all processors, but few of the largest at a time."""

    def __init__(self) -> None:
        self._places = asyncio.Semaphore(MADE_AT_ONCE)
        self._large = asyncio.Semaphore(LARGE_AT_ONCE)
        self._threads = ThreadPoolExecutor(MADE_AT_ONCE, thread_name_prefix="deal")

    async def run(self, item: Item[Any], wanted: Callable[[], None], work: Callable[[], T]) -> T:
        """Does the work on an item in a thread, which keeps its place to the end, also where nobody
        waits for it any more: else parties that ask and hang up would have any number made at once.
        `wanted` raises where nobody waits when its turn comes."""
        places = [self._places]
        if item.correction_bytes > LARGE_BYTES:
            places.insert(0, self._large)
        taken: list[asyncio.Semaphore] = []
        try:
            for place in places:
                await place.acquire()
                taken.append(place)
            wanted()
            working = asyncio.get_running_loop().run_in_executor(self._threads, work)
        except BaseException:
            _release(taken)
            raise
        working.add_done_callback(lambda done: _done(done, taken))
        return await asyncio.shield(working)


def _release(places: Sequence[asyncio.Semaphore]) -> None:
    for place in places:
        place.release()


def _done(working: asyncio.Future[Any], places: Sequence[asyncio.Semaphore]) -> None:
    _release(places)
    # Who no longer waits for it does not want to know how it ended.
    _ = working.cancelled() or working.exception()


class _Unsent:
    """Corrections that are made and not sent yet, in bounded memory.

    Where they are too much, those that have not been read from for longest are dropped, and made
    again if their party goes on to read. A party may have good reasons not to read, as it waits for
    room, or bad ones.
    """

    def __init__(self) -> None:
        self._held: OrderedDict[object, bytes] = OrderedDict()
        self._bytes = 0

    def put(self, key: object, correction: bytes) -> None:
        """Holds a correction."""
        self._held[key] = correction
        self._bytes += len(correction)
        while self._bytes > MAX_UNSENT_BYTES:
            self.drop(next(iter(self._held)))

    def piece(self, key: object, start: int) -> bytes:
        """The next bytes of a correction; none if it is not held."""
        if key not in self._held:
            return b""
        self._held.move_to_end(key)
        return self._held[key][start : start + tensors.CHUNK_BYTES]

    def drop(self, key: object) -> None:
        """Lets a correction go, if it is held."""
        self._bytes -= len(self._held.pop(key, b""))


class _Deal:
    """One session: the seeds of its parties as they come, then commitments, then corrections."""

    def __init__(self, session: Session, begun_by: str, workshop: _Workshop) -> None:
        self.session = session
        self.begun_by = begun_by
        self._listed = _LISTED * sum(len(run.items) for run in session.plan.runs)
        self.weight = session.plan.items * session.copies + self._listed
        self.seed_hashes: list[bytes] = []
        self._workshop = workshop
        self._seeds: dict[int, tuple[bytes, ...]] = {}
        self._whole = asyncio.get_running_loop().create_future()
        # By copy and rank.
        self._keys: list[list[bytes]] = []
        self._uncommitted = enumerate(session.plan)
        self._uncollected = enumerate(session.plan)
        self._digests: list[bytes] = []
        self._making = asyncio.Lock()
        self._readers = len(session.parties)
        # Whoever did not come, once nobody waits for it any more.
        self.late = ""
        self._ended = ""
        self._expiry: asyncio.TimerHandle | None = None

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
            names = [n for r, n in enumerate(self.session.parties) if r not in self._seeds]
            missing = " and ".join(names)
            self.late = f"{missing} did not ask for it in time"
            what = f"The request of {missing} to the dealer"
            raise VoteError(ErrorKind.DEADLINE, what=what, seconds=_GATHER_SECONDS)
        self.check_open()

    async def commitments(self) -> AsyncIterator[bytes]:
        """To each item in turn, for one party; made once for all that ask."""
        for place in range(self.session.plan.items):
            async with self._making:
                self.check_open()
                if place == len(self._digests):
                    index, item = next(self._uncommitted)
                    self._digests.append(await self._commit(index, item))
            yield self._digests[place]
        self._readers -= 1
        if not self._readers:
            self._digests = []

    async def _commit(self, index: int, item: Item[Any]) -> bytes:
        """To an item in all copies, side by side; a session that ends meanwhile is left soon."""
        keys = self._keys
        step = max(1, _AT_A_STRETCH // max(1, item.correction_bytes))
        step = min(step, -(-len(keys) // MADE_AT_ONCE))

        async def made(start: int) -> bytes:
            some = keys[start : start + step]
            return await self._workshop.run(
                item, self.check_open, lambda: commit(item, some, index)
            )

        pieces = await asyncio.gather(*map(made, range(0, len(keys), step)))
        self.check_open()
        return b"".join(pieces)

    def collect(self, copy: int) -> Sequence[bytes]:
        """The keys of a copy by rank; all others are forgotten, and only the plan is kept."""
        if self._readers:
            raise VoteError(ErrorKind.DEAL_INVALID, why="not all parties have their commitments")
        if not copy < len(self._keys):
            raise VoteError(ErrorKind.DEAL_INVALID, why="there is no such copy")
        keys, self._keys = self._keys[copy], []
        self.weight = self._listed
        # The party has come: how long it takes to read is its own affair.
        self._forget_expiry()
        return keys

    def next_item(self) -> tuple[int, Item[Any]] | None:
        """The next item to collect, with its number; None after the last."""
        self.check_open()
        return next(self._uncollected, None)

    def expire(self, then: Callable[[], None]) -> None:
        """Does this if the session still lasts when nobody is waited for any more."""
        self._forget_expiry()
        if not self._ended:
            self._expiry = asyncio.get_running_loop().call_later(_CHECK_SECONDS, then)

    def _forget_expiry(self) -> None:
        """Else the loop would keep what has ended: sessions can end much quicker than they
        expire."""
        if self._expiry is not None:
            self._expiry.cancel()
        self._expiry = None

    def end(self, why: str) -> None:
        """Forgets everything; whoever still waits is told why."""
        self._ended = why
        self._forget_expiry()
        self._seeds, self._keys, self._digests = {}, [], []
        # A call that its party doesn't read lasts longer than the session: plans can be long.
        self.session = dataclasses.replace(self.session, plan=PreprocessingPlan(()))
        self._uncommitted = self._uncollected = enumerate(self.session.plan)
        if not self._whole.done():
            self._whole.set_result(None)

    def check_open(self) -> None:
        """Refuses to go on with a session that has ended."""
        if self._ended:
            raise VoteError(ErrorKind.DEAL_ENDED, session=self.session.id, why=self._ended)


class DealerServicer(dealer_pb2_grpc.DealerServiceServicer):
    """Deals to parties."""

    def __init__(self) -> None:
        # By name, until they are collected.
        self._deals: dict[str, _Deal] = {}
        # These, and those that are being collected, for as long as that takes; the oldest first.
        self._held: dict[_Deal, None] = {}
        self._workshop = _Workshop()
        self._unsent = _Unsent()

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
                self._end(deal, deal.late or f"party {party} was not served")
        deal.expire(lambda: self._end(deal, "nobody came for its corrections"))

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
        del self._deals[request.session_id]
        offset = 0
        try:
            async with contextlib.aclosing(self._corrections(deal, keys)) as pieces:
                async for piece in pieces:
                    yield dealer_pb2.CollectResponse(data=piece, offset=offset)
                    offset += len(piece)
        finally:
            self._end(deal, "its corrections were collected")

    async def _corrections(self, deal: _Deal, keys: Sequence[bytes]) -> AsyncGenerator[bytes, None]:
        """All corrections, piece by piece; the next is made while one is on its way."""
        # Of no other call, and by the number of the item.
        held = [object(), object()]

        async def make(index: int, item: Item[Any]) -> None:
            work = partial(item.correct, keys, index)
            made = await self._workshop.run(item, deal.check_open, work)
            self._unsent.put(held[index % 2], made)

        ahead: asyncio.Task[None] | None = None
        before: tuple[int, Item[Any]] | None = None
        try:
            while (place := deal.next_item()) is not None or before is not None:
                ready, ahead = ahead, None if place is None else asyncio.create_task(make(*place))
                if ready is not None and before is not None:
                    await ready
                    key, sent = held[before[0] % 2], 0
                    while sent < before[1].correction_bytes:
                        piece = self._unsent.piece(key, sent)
                        if not piece:
                            await make(*before)
                        else:
                            sent += len(piece)
                            yield piece
                    self._unsent.drop(key)
                before = place
        finally:
            if ahead is not None:
                ahead.cancel()
            for key in held:
                self._unsent.drop(key)

    def _end(self, deal: _Deal, why: str) -> None:
        """Somebody who breaks in later finds nothing of it."""
        if deal not in self._held:
            return
        del self._held[deal]
        if self._deals.get(deal.session.id) is deal:
            del self._deals[deal.session.id]
        deal.end(why)

    def _admit(self, request: dealer_pb2.DealRequest, party: str) -> _Deal:
        """Takes a party's seeds into a session that is as it says."""
        session = _session(request)
        if party not in session.parties:
            raise VoteError(ErrorKind.NAME_REFUSED, who=party, what=f"session {session.id}")
        # Counted first: millions fit into a request.
        count, copies = len(request.seeds), session.copies
        if count != copies or any(len(seed) != SEED_BYTES for seed in request.seeds):
            why = f"there must be a seed of {SEED_BYTES} bytes for each copy"
            raise VoteError(ErrorKind.DEAL_INVALID, why=why)
        deal = self._deals.get(session.id) or self._begin(session, party)
        deal.check_open()
        _check_same(session, deal.session, party)
        deal.take_seeds(session.parties.index(party), tuple(request.seeds))
        return deal

    def _begin(self, session: Session, party: str) -> _Deal:
        deal = self._deals[session.id] = _Deal(session, party, self._workshop)
        self._held[deal] = None
        while len(self._held) > MAX_SESSIONS or self._weight > MAX_COMMITMENTS:
            self._end(self._too_much(), "there were too many sessions")
        return deal

    @property
    def _weight(self) -> int:
        return sum(deal.weight for deal in self._held)

    def _too_much(self) -> _Deal:
        """The oldest session of the party that has begun most: one can't end those of others by
        beginning many, or long ones that nobody joins, or that nobody reads."""
        by_weight = self._weight > MAX_COMMITMENTS
        begun: Counter[str] = Counter()
        for deal in self._held:
            begun[deal.begun_by] += deal.weight if by_weight else 1
        most = max(begun, key=begun.__getitem__)
        return next(deal for deal in self._held if deal.begun_by == most)


def _session(request: dealer_pb2.DealRequest) -> Session:
    """What a request asks for."""
    count = len(request.parties)
    if not NAME_PATTERN.fullmatch(request.session_id):
        raise VoteError(ErrorKind.DEAL_INVALID, why="the session id is malformed")
    # Counted before they are looked at: millions fit into a request.
    if not 2 <= count <= MAX_PARTIES or len(set(request.parties)) != count:
        raise VoteError(ErrorKind.DEAL_INVALID, why="the parties are not 2 or more, once each")
    parties = tuple(request.parties)
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
