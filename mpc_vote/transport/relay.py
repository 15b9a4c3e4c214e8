"""A link between two addresses that forwards bytes, with a delay and at a limited rate if told to.

For machines that may only reach the outside through one gateway, and for trying the service under
the distances of a real network where the kernel has no emulation of its own. Every byte really
waits: each direction is a pipe with a one-way delay and a rate, shared by all of its connections,
and a bounded amount under way. It sees ciphertext only: TLS is between the two ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

log = logging.getLogger(__name__)

_READ_BYTES = 1 << 16
_DIAL_SECONDS = 10.0
_UNIX = "unix:"


@dataclass
class Pipe:
    """One direction of a link."""

    delay: float
    rate: float | None
    _free_at: float = field(default=0.0)

    def due(self, size: int, now: float) -> float:
        """When the last of `size` bytes handed over now comes out at the other end."""
        started = max(now, self._free_at)
        self._free_at = started + (size / self.rate if self.rate else 0.0)
        return self._free_at + self.delay

    def window(self) -> int:
        """Pieces under way at most: enough to fill the link, few enough to bound memory."""
        carried = int((self.rate or 125e6) * self.delay / _READ_BYTES)
        return 16 + 2 * carried


class Relay:
    """Listens on one address and forwards every connection to another."""

    def __init__(
        self, listen: str, target: str, *, delay: float = 0.0, rate: float | None = None
    ) -> None:
        self._listen = listen
        self._target = target
        self._there = Pipe(delay, rate)
        self._back = Pipe(delay, rate)
        self._connections: set[asyncio.Task[None]] = set()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Serves while the context lasts."""
        if self._listen.startswith(_UNIX):
            path = self._listen.removeprefix(_UNIX)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            server = await asyncio.start_unix_server(self._accept, path)
            # Who may use the socket is decided by who can see its folder.
            os.chmod(path, 0o666)
        else:
            host, _, port = self._listen.rpartition(":")
            server = await asyncio.start_server(self._accept, host, int(port))
        try:
            yield
        finally:
            server.close()
            for connection in self._connections:
                connection.cancel()
            await asyncio.gather(*self._connections, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = asyncio.create_task(self._forward(reader, writer))
        self._connections.add(connection)
        connection.add_done_callback(self._connections.discard)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer):
            try:
                async with asyncio.timeout(_DIAL_SECONDS):
                    far_reader, far_writer = await self._dial()
            except (OSError, TimeoutError) as error:
                log.warning("can't reach %s: %s", self._target, error)
                return
            with contextlib.closing(far_writer):
                there = asyncio.create_task(_carry(reader, far_writer, self._there))
                back = asyncio.create_task(_carry(far_reader, writer, self._back))
                try:
                    await asyncio.wait({there, back}, return_when=asyncio.FIRST_EXCEPTION)
                finally:
                    there.cancel()
                    back.cancel()

    async def _dial(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._target.startswith(_UNIX):
            return await asyncio.open_unix_connection(self._target.removeprefix(_UNIX))
        host, _, port = self._target.rpartition(":")
        return await asyncio.open_connection(host, int(port))


async def _carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, pipe: Pipe) -> None:
    """Carries one direction of one connection, then passes its end on."""
    clock = asyncio.get_running_loop().time
    under_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(pipe.window())

    async def deliver() -> None:
        while True:
            due, piece = await under_way.get()
            if (wait := due - clock()) > 0:
                await asyncio.sleep(wait)
            if not piece:
                break
            writer.write(piece)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()

    delivery = asyncio.create_task(deliver())
    try:
        while True:
            piece = await reader.read(_READ_BYTES)
            await under_way.put((pipe.due(len(piece), clock()), piece))
            if not piece:
                break
            if delivery.done():
                break
        await delivery
    finally:
        delivery.cancel()
