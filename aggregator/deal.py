"""A party's side of the dealer: material that is dealt, expanded and waiting before it is used.

From the moment a round is opened a background task reads the dealer's stream and expands this
party's parts, as far as the pool has room; the engine then finds them ready. The pool bounds what
all rounds together hold ahead. A round that needs an item which is not there yet gets it past the
pool, so that two rounds can't wait for each other's room; it waits for the dealer, with a deadline.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
from collections.abc import Sequence
from typing import Any

import grpc

from aggregator import plans
from mpc_vote.argmax.material import Item, P, Plan
from mpc_vote.csprng import SEED_BYTES
from mpc_vote.errors import ErrorKind, VoteError
from mpc_vote.proto.mpcvote.v1 import dealer_pb2, dealer_pb2_grpc

log = logging.getLogger(__name__)

_DEAL_ID_BYTES = 16


class MaterialPool:
    """Room for material that waits to be used, in bytes."""

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


class DealtMaterial:
    """Material of one session. `open` runs on the loop; `take` in the engine's thread."""

    def __init__(
        self, call: Any, plan: Plan, last: bool, pool: MaterialPool, timeout: float
    ) -> None:
        self._call = call
        self._plan = plan
        self._last = last
        self._pool = pool
        self._timeout = timeout
        self._loop = asyncio.get_running_loop()
        self._seed = b""
        self._pending = bytearray()
        self._ready: queue.SimpleQueue[tuple[Item[Any], Any] | VoteError] = queue.SimpleQueue()
        self._wanted = asyncio.Event()
        self._held = 0
        self._fetching: asyncio.Task[None] | None = None
        self.deal_id = b""
        self.received_bytes = 0

    @classmethod
    async def open(
        cls,
        channel: grpc.aio.Channel,
        session_id: str,
        parties: Sequence[str],
        rank: int,
        plan: Plan,
        pool: MaterialPool,
        timeout: float,
    ) -> DealtMaterial:
        """Asks the dealer for this party's grant, and starts to fetch what follows."""
        stub = dealer_pb2_grpc.DealerServiceStub(channel)
        request = dealer_pb2.DealRequest(
            session_id=session_id, parties=parties, plan=plans.to_wire(plan)
        )
        material = cls(stub.Deal(request), plan, rank == len(parties) - 1, pool, timeout)
        try:
            grant = (await material._read()).grant
            if len(grant.seed) != SEED_BYTES or len(grant.deal_id) != _DEAL_ID_BYTES:
                raise VoteError(ErrorKind.DEAL_INVALID, why="the dealer sent no grant")
        except BaseException:
            material.close()
            raise
        material._seed, material.deal_id = grant.seed, grant.deal_id
        material._fetching = asyncio.create_task(material._fetch())
        return material

    async def ready(self) -> None:
        """Waits until all that the pool has room for is there: for measuring."""
        if self._fetching is not None:
            done, _ = await asyncio.wait([self._fetching], timeout=self._timeout)
            if not done:
                raise VoteError(ErrorKind.MATERIAL_LATE, seconds=self._timeout)

    def take(self, item: Item[P]) -> P:
        """This party's part of the next item of the plan."""
        try:
            found = self._ready.get_nowait()
        except queue.Empty:
            self._loop.call_soon_threadsafe(self._wanted.set)
            try:
                found = self._ready.get(timeout=self._timeout)
            except queue.Empty:
                raise VoteError(ErrorKind.MATERIAL_LATE, seconds=self._timeout) from None
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
        """Ends the stream, gives the room back and forgets the seed; an engine that waits fails."""
        self._call.cancel()
        if self._fetching is not None:
            self._fetching.cancel()
        self._release(self._held)
        with contextlib.suppress(queue.Empty):
            while True:
                self._ready.get_nowait()
        self._ready.put(
            VoteError(ErrorKind.PARTY_UNREACHABLE, who="The dealer", why="this party hung up")
        )
        self._seed = b""

    async def _fetch(self) -> None:
        try:
            for index, item in enumerate(self._plan):
                await self._pool.reserve(item.part_bytes, self._wanted)
                self._held += item.part_bytes
                correction = await self._bytes(item.correction_bytes) if self._last else None
                part = await asyncio.to_thread(item.expand, self._seed, index, correction)
                self._wanted.clear()
                self._ready.put((item, part))
            self._ready.put(VoteError(ErrorKind.DEAL_INVALID, why="the engine left its plan"))
        except VoteError as error:
            self._ready.put(error)
        except Exception as error:
            log.exception("dealing failed")
            why = type(error).__name__
            self._ready.put(VoteError(ErrorKind.INTERNAL, who="The dealing", why=why))

    def _release(self, size: int) -> None:
        size = min(size, self._held)
        self._held -= size
        self._pool.release(size)

    async def _bytes(self, size: int) -> bytes:
        while len(self._pending) < size:
            self._pending += (await self._read()).correction.data
        data = bytes(self._pending[:size])
        del self._pending[:size]
        return data

    async def _read(self) -> dealer_pb2.DealResponse:
        try:
            response = await asyncio.wait_for(self._call.read(), self._timeout)
        except grpc.RpcError as error:
            raise VoteError.from_rpc(error, "The dealer") from error
        except TimeoutError as error:
            raise VoteError(ErrorKind.MATERIAL_LATE, seconds=self._timeout) from error
        if not isinstance(response, dealer_pb2.DealResponse):
            raise VoteError(
                ErrorKind.PARTY_UNREACHABLE, who="The dealer", why="it ended the stream"
            )
        self.received_bytes += response.ByteSize()
        return response
