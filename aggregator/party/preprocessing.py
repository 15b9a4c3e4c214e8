"""A party's side of the dealer: preprocessing that is dealt, expanded and waiting before it is
used.

From the moment a round is opened a background task asks the dealer, checks with the peers what it
deals, and expands this party's shares, as far as the pool has room; the engine then finds them
ready. The pool bounds what all rounds together hold ahead. A round that needs an item which is not
there yet gets it outside of the pool, so that two rounds can't wait for each other's room; it waits
for the dealer, with a deadline.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import queue
import threading
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import grpc

from mpc_vote.errors import ErrorKind, VoteError
from mpc_vote.mpc.cut_and_choose import (
    DIGEST_BYTES,
    DealerCaught,
    Drawn,
    Grant,
    Session,
    commitment,
)
from mpc_vote.mpc.preprocessing import Item, P, PreprocessingPlan
from mpc_vote.proto.mpcvote.v1 import dealer_pb2, dealer_pb2_grpc
from mpc_vote.voting import codec

log = logging.getLogger(__name__)

M = TypeVar("M")


class PreprocessingPool:
    """Room for preprocessing that waits to be used, in bytes. It is reserved on the loop, and given
    back by any thread: the loop is woken only where somebody waits for it."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._held = 0
        self._lock = threading.Lock()
        # Of each who waits, how to tell it.
        self._waiting: dict[asyncio.Event, asyncio.AbstractEventLoop] = {}

    @property
    def held(self) -> int:
        """Bytes that wait."""
        return self._held

    async def reserve(self, size: int, wanted: asyncio.Event) -> None:
        """Waits for room, or until the item is wanted at once."""
        changed, loop = asyncio.Event(), asyncio.get_running_loop()
        while not self._taken(size, wanted.is_set(), changed, loop):
            waits = [asyncio.ensure_future(e.wait()) for e in (changed, wanted)]
            try:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for wait in waits:
                    wait.cancel()
                with self._lock:
                    self._waiting.pop(changed, None)
            changed.clear()

    def _taken(
        self, size: int, at_once: bool, changed: asyncio.Event, loop: asyncio.AbstractEventLoop
    ) -> bool:
        """Whether there was room; else whoever gives some back tells."""
        with self._lock:
            if self._held + size > self._capacity and not at_once:
                self._waiting[changed] = loop
                return False
            self._held += size
            return True

    def release(self, size: int) -> None:
        """Gives room back, from whichever thread."""
        with self._lock:
            self._held -= size
            told = list(self._waiting.items())
        for changed, loop in told:
            loop.call_soon_threadsafe(changed.set)


async def ask(channel: grpc.aio.Channel, session: Session, rank: int, timeout: float) -> Grant:
    """Sends the dealer fresh seeds, and reads its hashes of all parties' seeds and its commitments
    to all of the plan. The seeds are for this answer only: a second request is made with others.
    """
    seeds = session.draw_seeds()
    request = dealer_pb2.DealRequest(
        session_id=session.id,
        parties=session.parties,
        plan=codec.to_wire(session.plan),
        copies=session.copies,
        seeds=seeds,
    )
    call = dealer_pb2_grpc.DealerServiceStub(channel).Deal(request)
    size = session.copies * DIGEST_BYTES
    try:
        grant = (await _read(call, dealer_pb2.DealResponse, timeout)).grant
        # Counted before they take several times the memory that they came in.
        if len(grant.seed_hashes) != len(session.parties):
            raise _malformed("it grants nothing")
        hashes = tuple(grant.seed_hashes)
        if any(len(of_one) != size for of_one in hashes):
            raise _malformed("it grants nothing")
        digests: list[bytes] = []
        for _ in session.plan:
            said = (await _read(call, dealer_pb2.DealResponse, timeout)).commitments
            if len(said.digests) != size or said.item != len(digests):
                raise _malformed("it commits to nothing")
            digests.append(said.digests)
        # Until the end: a call that is cancelled ends the session.
        await _end(call, timeout)
    finally:
        call.cancel()
    return Grant(session, rank, seeds, hashes, tuple(digests))


async def _next(call: Any, timeout: float) -> Any:
    """The next message of a stream from the dealer, or its end."""
    try:
        # Not `wait_for`, which goes on where it is cancelled just as the message comes.
        async with asyncio.timeout(timeout):
            return await call.read()
    except grpc.RpcError as error:
        raise VoteError.quoted(error, "The dealer") from error
    except TimeoutError as error:
        raise VoteError(ErrorKind.PREPROCESSING_LATE, seconds=timeout) from error


async def _read(call: Any, kind: type[M], timeout: float) -> M:
    """The next message of a stream from the dealer."""
    response = await _next(call, timeout)
    if not isinstance(response, kind):
        raise VoteError(ErrorKind.PARTY_UNREACHABLE, who="The dealer", why="it ended the stream")
    return response


async def _end(call: Any, timeout: float) -> None:
    """The end of a stream from the dealer."""
    if await _next(call, timeout) is not grpc.aio.EOF:
        raise _malformed("it sent more than was asked for")


def _malformed(why: str) -> VoteError:
    """What the dealer sent can't be used: no fault of the request's."""
    return VoteError(ErrorKind.ANSWER_MALFORMED, who="The dealer", why=why)


class _Collection:
    """The corrections of the copy in use, as the dealer sends them to the last party."""

    def __init__(self, channel: grpc.aio.Channel, drawn: Drawn, timeout: float) -> None:
        request = dealer_pb2.CollectRequest(session_id=drawn.session_id, copy=drawn.copy)
        self._call = dealer_pb2_grpc.DealerServiceStub(channel).Collect(request)
        self._timeout = timeout
        self._collected = 0
        self.received_bytes = 0

    async def next(self, size: int) -> bytes:
        """The next correction, of so many bytes."""
        pieces: list[bytes] = []
        missing = size
        while missing:
            response = await _read(self._call, dealer_pb2.CollectResponse, self._timeout)
            self.received_bytes += response.ByteSize()
            # Of empty pieces there could be any number, each in time.
            if response.offset != self._collected or not response.data:
                raise _malformed("its corrections have gaps")
            # There is room for this item and no other.
            if len(response.data) > missing:
                raise _malformed("a piece of its corrections is of two items")
            self._collected += len(response.data)
            missing -= len(response.data)
            pieces.append(response.data)
        return b"".join(pieces)

    def close(self) -> None:
        self._call.cancel()


def _compare(
    drawn: Drawn,
    key: bytes,
    index: int,
    correction: bytes,
    on_caught: Callable[[DealerCaught], None],
) -> None:
    """Catches a dealer that sends another correction than it committed to.

    The key is given, as the preprocessing may be closed, and have forgotten it, before a thread is
    free: whoever compared without it would blame an honest dealer.
    """
    if commitment(correction, key, index) != drawn.digests[index]:
        error = drawn.wrong(f"item {index} is not what it committed to")
        on_caught(error)
        raise error


async def collect(
    channel: grpc.aio.Channel,
    drawn: Drawn,
    plan: PreprocessingPlan,
    timeout: float,
    on_caught: Callable[[DealerCaught], None],
) -> list[bytes]:
    """All corrections of the copy that the parties drew, compared with the dealer's commitments."""
    collection = _Collection(channel, drawn, timeout)
    try:
        corrections = []
        for index, item in enumerate(plan):
            correction = await collection.next(item.correction_bytes)
            await asyncio.to_thread(_compare, drawn, drawn.key, index, correction, on_caught)
            corrections.append(correction)
        return corrections
    finally:
        collection.close()


class DealtPreprocessing:
    """Preprocessing of one session. It is made on the loop; `take` runs in the engine's thread."""

    def __init__(
        self,
        channel: grpc.aio.Channel,
        drawn: Drawn,
        plan: PreprocessingPlan,
        last: bool,
        pool: PreprocessingPool,
        timeout: float,
        on_caught: Callable[[DealerCaught], None] = lambda _: None,
        corrections: Sequence[bytes] | None = None,
    ) -> None:
        """Starts to fetch the copy that the parties drew, or to expand it where the last party has
        its corrections already; `on_caught` is called in any thread."""
        self._drawn = dataclasses.replace(drawn, key=b"")
        self._on_caught = on_caught
        self._plan = plan
        self._pool = pool
        self._timeout = timeout
        self._loop = asyncio.get_running_loop()
        self._key = drawn.key
        self._corrections = None if corrections is None else deque(corrections)
        self._ready: queue.SimpleQueue[tuple[Item[Any], Any] | VoteError] = queue.SimpleQueue()
        self._wanted = asyncio.Event()
        self._lock = threading.Lock()
        self._held = 0
        self.context = drawn.context
        self._heard_bytes = drawn.heard_bytes + sum(map(len, corrections or ()))
        self._collection: _Collection | None = None
        if last and corrections is None:
            self._collection = _Collection(channel, drawn, timeout)
        self._fetching = asyncio.create_task(self._fetch())

    @property
    def received_bytes(self) -> int:
        """What the dealer has sent."""
        collected = 0 if self._collection is None else self._collection.received_bytes
        return self._heard_bytes + collected

    async def ready(self) -> None:
        """Waits until all that the pool has room for is there: for measuring."""
        done, _ = await asyncio.wait([self._fetching], timeout=self._timeout)
        if not done:
            raise VoteError(ErrorKind.PREPROCESSING_LATE, seconds=self._timeout)

    def take(self, item: Item[P]) -> P:
        """This party's share of the next item of the plan."""
        try:
            found = self._ready.get_nowait()
        except queue.Empty:
            self._loop.call_soon_threadsafe(self._wanted.set)
            try:
                found = self._ready.get(timeout=self._timeout)
            except queue.Empty:
                raise VoteError(ErrorKind.PREPROCESSING_LATE, seconds=self._timeout) from None
        if isinstance(found, VoteError):
            # It is the last there is, whoever asks again.
            self._ready.put(found)
            raise found
        planned, part = found
        if planned != item:
            raise VoteError(ErrorKind.DEAL_INVALID, why="the engine left its plan")
        self._release(item.part_bytes)
        result: P = part
        return result

    def close(self) -> None:
        """Ends the stream, gives the room back and forgets the key; an engine that waits fails."""
        if self._collection is not None:
            self._collection.close()
        self._fetching.cancel()
        self._corrections = None
        self._release(self._held)
        with contextlib.suppress(queue.Empty):
            while True:
                self._ready.get_nowait()
        self._ready.put(
            VoteError(ErrorKind.PARTY_UNREACHABLE, who="The dealer", why="this party hung up")
        )
        self._key = b""

    async def _fetch(self) -> None:
        try:
            for index, item in enumerate(self._plan):
                await self._pool.reserve(item.part_bytes, self._wanted)
                with self._lock:
                    self._held += item.part_bytes
                correction, compared = None, self._corrections is not None
                if self._corrections is not None:
                    correction = self._corrections.popleft()
                elif self._collection is not None:
                    correction = await self._collection.next(item.correction_bytes)
                part = await asyncio.to_thread(
                    self._part, self._key, item, index, correction, compared
                )
                self._wanted.clear()
                self._ready.put((item, part))
            self._ready.put(VoteError(ErrorKind.DEAL_INVALID, why="the engine left its plan"))
        except VoteError as error:
            # It is kept, and must not keep what was being read.
            traceback.clear_frames(error.__traceback__)
            self._ready.put(error)
        except Exception as error:
            log.exception("dealing failed")
            why = type(error).__name__
            self._ready.put(VoteError(ErrorKind.INTERNAL, who="The dealing", why=why))

    def _part(
        self, key: bytes, item: Item[P], index: int, correction: bytes | None, compared: bool
    ) -> P:
        """This party's share of an item; a correction is only used if it is the one committed
        to."""
        if correction is not None and not compared:
            _compare(self._drawn, key, index, correction, self._on_caught)
        return item.expand(key, index, correction)

    def _release(self, size: int) -> None:
        with self._lock:
            size = min(size, self._held)
            self._held -= size
        self._pool.release(size)
