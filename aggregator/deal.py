"""A party's side of the dealer: its seed, and at the last party the corrections as they stream
in."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import grpc
import numpy as np

from mpc_vote.argmax.material import Item, Part, expand
from mpc_vote.csprng import SEED_BYTES
from mpc_vote.errors import ErrorKind, VoteError
from mpc_vote.proto.mpcvote.v1 import dealer_pb2, dealer_pb2_grpc

_ITEMS_PER_REQUEST = 1_024
_DEAL_ID_BYTES = 16


class DealtMaterial:
    """Material of one session. `open` runs on the loop; `announce` and `take` in the engine's
    thread."""

    def __init__(self, call: Any, rank: int, size: int, timeout: float) -> None:
        self._call = call
        self._rank = rank
        self._last = rank == size - 1
        self._timeout = timeout
        self._loop = asyncio.get_running_loop()
        self._seed = b""
        self._index = 0
        self._pending = bytearray()
        self.deal_id = b""
        self.received_bytes = 0

    @classmethod
    async def open(
        cls,
        channel: grpc.aio.Channel,
        session_id: str,
        parties: Sequence[str],
        rank: int,
        timeout: float,
    ) -> DealtMaterial:
        """Asks the dealer for this party's grant."""
        stub = dealer_pb2_grpc.DealerServiceStub(channel)
        material = cls(stub.Deal(), rank, len(parties), timeout)
        opening = dealer_pb2.DealOpening(session_id=session_id, parties=parties)
        await material._write(dealer_pb2.DealRequest(opening=opening))
        grant = (await material._read()).grant
        if len(grant.seed) != SEED_BYTES or len(grant.deal_id) != _DEAL_ID_BYTES:
            raise VoteError(ErrorKind.DEAL_INVALID, why="the dealer sent no grant")
        material._seed, material.deal_id = grant.seed, grant.deal_id
        return material

    def announce(self, items: Sequence[Item]) -> None:
        """The last party asks for all corrections of a run at once, so they arrive ahead of use."""
        if self._last and items:
            asyncio.run_coroutine_threadsafe(self._request(items), self._loop).result()

    def take(self, item: Item) -> Part:
        """This party's part of the next item."""
        correction = None
        if self._last:
            raw = asyncio.run_coroutine_threadsafe(self._words(8 * item.count), self._loop).result()
            correction = np.frombuffer(raw, dtype="<u8")
        part = expand(self._seed, self._index, item, correction)
        self._index += 1
        return part

    def close(self) -> None:
        """Ends the stream and forgets the seed."""
        self._call.cancel()
        self._seed = b""

    async def _request(self, items: Sequence[Item]) -> None:
        for start in range(0, len(items), _ITEMS_PER_REQUEST):
            some = items[start : start + _ITEMS_PER_REQUEST]
            wanted = [dealer_pb2.DealItem(kind=i.kind.value, count=i.count) for i in some]  # type: ignore[arg-type]
            await self._write(dealer_pb2.DealRequest(items=wanted))

    async def _words(self, size: int) -> bytes:
        while len(self._pending) < size:
            self._pending += (await self._read()).correction.words
        words = bytes(self._pending[:size])
        del self._pending[:size]
        return words

    async def _write(self, request: dealer_pb2.DealRequest) -> None:
        try:
            await asyncio.wait_for(self._call.write(request), self._timeout)
        except (grpc.RpcError, asyncio.InvalidStateError, TimeoutError) as error:
            raise await self._failure(error) from error

    async def _read(self) -> dealer_pb2.DealResponse:
        try:
            response = await asyncio.wait_for(self._call.read(), self._timeout)
        except (grpc.RpcError, TimeoutError) as error:
            raise await self._failure(error) from error
        if not isinstance(response, dealer_pb2.DealResponse):
            raise VoteError(
                ErrorKind.PARTY_UNREACHABLE, who="The dealer", why="it ended the stream"
            )
        self.received_bytes += response.ByteSize()
        return response

    async def _failure(self, error: Exception) -> VoteError:
        if isinstance(error, grpc.RpcError):
            return VoteError.from_rpc(error, "The dealer")
        if isinstance(error, TimeoutError):
            return VoteError(ErrorKind.DEADLINE, what="The dealer", seconds=self._timeout)
        return VoteError(ErrorKind.PARTY_UNREACHABLE, who="The dealer", why="it ended the stream")
