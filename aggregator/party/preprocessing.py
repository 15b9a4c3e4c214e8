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
import traceback
from collections.abc import Callable
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
    """Room for preprocessing that waits to be used, in bytes."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._held = 0
        self._changed = asyncio.Event()

    @property
    def held(self) -> int:
        """Bytes that wait."""
        return self._held

    async def reserve(self, size: int, wanted: asyncio.Event) -> None:
        """Waits for room, or until the item is wanted at once."""
        while self._held + size > self._capacity and not wanted.is_set():
            self._changed.clear()
            waits = [asyncio.ensure_future(e.wait()) for e in (self._changed, wanted)]
            try:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for wait in waits:
                    wait.cancel()
        self._held += size

    def release(self, size: int) -> None:
        """Gives room back."""
        self._held -= size
        self._changed.set()


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
    ) -> None:
        """Starts to fetch the copy that the parties drew; `on_caught` is called in any thread."""
        self._drawn = dataclasses.replace(drawn, key=b"")
        self._on_caught = on_caught
        self._plan = plan
        self._pool = pool
        self._timeout = timeout
        self._loop = asyncio.get_running_loop()
        self._key = drawn.key
        self._pending = bytearray()
        self._collected = 0
        self._ready: queue.SimpleQueue[tuple[Item[Any], Any] | VoteError] = queue.SimpleQueue()
        self._wanted = asyncio.Event()
        self._held = 0
        self.context = drawn.context
        self.received_bytes = drawn.heard_bytes
        self._call: Any = None
        if last:
            request = dealer_pb2.CollectRequest(session_id=drawn.session_id, copy=drawn.copy)
            self._call = dealer_pb2_grpc.DealerServiceStub(channel).Collect(request)
        self._fetching = asyncio.create_task(self._fetch())

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
        self._loop.call_soon_threadsafe(self._release, item.part_bytes)
        result: P = part
        return result

    def close(self) -> None:
        """Ends the stream, gives the room back and forgets the key; an engine that waits fails."""
        if self._call is not None:
            self._call.cancel()
        self._fetching.cancel()
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
                self._held += item.part_bytes
                correction = None
                if self._call is not None:
                    correction = await self._bytes(item.correction_bytes)
                part = await asyncio.to_thread(self._part, self._key, item, index, correction)
                self._wanted.clear()
                self._ready.put((item, part))
            self._ready.put(VoteError(ErrorKind.DEAL_INVALID, why="the engine left its plan"))
        except VoteError as error:
            # It is kept, and must not keep what was being read.
            traceback.clear_frames(error.__traceback__)
            self._pending.clear()
            self._ready.put(error)
        except Exception as error:
            log.exception("dealing failed")
            why = type(error).__name__
            self._ready.put(VoteError(ErrorKind.INTERNAL, who="The dealing", why=why))

    def _part(self, key: bytes, item: Item[P], index: int, correction: bytes | None) -> P:
        """This party's share of an item; a correction is only used if it is the one committed to.

        The key is given, as the preprocessing may be closed, and have forgotten it, before a thread
        is free: whoever compared without it would blame an honest dealer.
        """
        digest = self._drawn.digests[index]
        if correction is not None and commitment(correction, key, index) != digest:
            error = self._drawn.wrong(f"item {index} is not what it committed to")
            self._on_caught(error)
            raise error
        return item.expand(key, index, correction)

    def _release(self, size: int) -> None:
        size = min(size, self._held)
        self._held -= size
        self._pool.release(size)

    async def _bytes(self, size: int) -> bytes:
        while len(self._pending) < size:
            response = await _read(self._call, dealer_pb2.CollectResponse, self._timeout)
            self.received_bytes += response.ByteSize()
            # Of empty pieces there could be any number, each in time.
            if response.offset != self._collected or not response.data:
                raise _malformed("its corrections have gaps")
            # The pool has room for this item and no other.
            if len(self._pending) + len(response.data) > size:
                raise _malformed("a piece of its corrections is of two items")
            self._collected += len(response.data)
            self._pending += response.data
        data = bytes(self._pending)
        self._pending.clear()
        return data
