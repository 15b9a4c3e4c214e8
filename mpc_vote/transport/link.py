"""A link: one TLS 1.3 connection between two parties, which carries frames.

Both ends have verified the other's certificate before the first frame, and read from it whom they
talk to. A link is used by one session at a time and outlives it: the next one pays for no
handshake.

The loop opens links and carries what is rare: pings, hellos, ends. Payloads are carried by the
thread that computes (`mpc_vote/transport/exchange.py`). Only one of the two uses a link at a time;
whoever else closes it makes the other's wait end at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from mpc_vote.errors import VoteError
from mpc_vote.pki import revocation, tls
from mpc_vote.pki.identity import Identity, peer_identity
from mpc_vote.transport import frames
from mpc_vote.transport.frames import HEADER_BYTES, FrameError, Header, Kind

# Both ends name it in the handshake: a version that speaks otherwise is refused there.
PROTOCOL = "mpc-vote-link/1"
READ_BYTES = 1 << 16
_UNIX = "unix:"
_FAREWELL_SECONDS = 2.0
_BACKLOG = 128
# A connection whose far end is silently gone is given up after less than a minute.
_KEEPALIVE = {"TCP_KEEPIDLE": 20, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}


class LinkError(Exception):
    """A link that is of no use any more."""


@dataclass(frozen=True)
class Frame:
    """A frame as it came."""

    kind: Kind
    content: bytes = b""
    number: int = 0


class Link:
    """One end of a connection."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        if connection.family != socket.AF_UNIX:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in _KEEPALIVE.items():
                if hasattr(socket, name):
                    connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        self._socket = connection
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls: ssl.SSLObject
        self._lock = threading.Lock()
        self._users = 0
        self._watching: Callable[[], None] | None = None
        self.closed = False
        # Whether the peer would rather have another link for the next session.
        self.retired = False
        self._retiring = False
        # Why this end has closed it, for a session that was using it.
        self.objection = ""
        # Whom the peer's certificate names, and how long it is good.
        self.peer: Identity | None = None
        self.certificate: revocation.Peer | None = None

    async def shake(self, context: ssl.SSLContext, server: Identity | None = None) -> None:
        """Makes the handshake: of the end that has dialled, if it says whom it means."""
        name = None if server is None else server.dns_name
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server is None, name)
        with self.used(), failing():
            while True:
                try:
                    self._tls.do_handshake()
                    break
                except ssl.SSLWantReadError:
                    await self._flush()
                    await self._fill()
                except ssl.SSLError:
                    # The peer is told by an alert.
                    await self._flush()
                    raise
            await self._flush()
            if self._tls.selected_alpn_protocol() != PROTOCOL:
                raise LinkError("it speaks another version")
            certificates = tls.presented(self._tls)
        self.peer, self.certificate = peer_identity(certificates), revocation.peer(certificates)
        if server not in (None, self.peer):
            raise LinkError(f"its certificate is that of {self.peer}")

    async def send(self, frame: bytes) -> None:
        """Sends a whole frame."""
        with self.used(), failing():
            self._tls.write(frame)
            await self._flush()

    async def receive(self, payload: int = -1) -> Frame:
        """The next frame; a payload only of this many bytes."""
        with self.used(), failing():
            header = Header.parse(await self._read(HEADER_BYTES), payload)
            if header.kind is Kind.LAST and not self.retired:
                self.retired = True
                header = Header.parse(await self._read(HEADER_BYTES), payload)
            return Frame(header.kind, await self._read(header.length), header.number)

    def retire(self) -> None:
        """Asks the peer, once, for another link for the next session. Only while no session has
        this one; does not wait, and ends a link that does not take it."""
        if self._retiring or self.closed:
            return
        self._retiring = True
        try:
            with self.used(), failing():
                self._tls.write(frames.LAST)
                encrypted = self._outgoing.read()
                if self._socket.send(encrypted) < len(encrypted):
                    self.close()
        except (LinkError, BlockingIOError):
            self.close()

    async def refuse(self, error: VoteError) -> None:
        """Tells the peer why, and ends the link."""
        with contextlib.suppress(LinkError, TimeoutError):
            async with asyncio.timeout(_FAREWELL_SECONDS):
                status = error.to_status().SerializeToString()
                await self.send(frames.encode(Kind.ERROR, status))
                # Closed before the peer has read it, the link might take it back.
                with self.used(), failing():
                    self._socket.shutdown(socket.SHUT_WR)
                    while await asyncio.get_running_loop().sock_recv(self._socket, READ_BYTES):
                        pass
        self.close()

    @property
    def idle(self) -> bool:
        """Whether it is open, and the peer has neither sent anything nor left."""
        try:
            with self.used(), failing():
                if not self.buffered:
                    self._socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        except LinkError:
            pass
        return False

    def watch(self, stirs: Callable[[], None]) -> None:
        """Calls back if the peer sends anything or leaves while nobody reads."""
        self.take()
        self._watching = stirs
        asyncio.get_running_loop().add_reader(self._socket, self._stirred)

    def unwatch(self) -> None:
        """Before somebody reads again."""
        if self._watching is not None:
            self._watching = None
            asyncio.get_running_loop().remove_reader(self._socket)
            self.release()

    def _stirred(self) -> None:
        stirs = self._watching
        self.unwatch()
        if stirs is not None:
            stirs()

    def close(self, objection: str = "") -> None:
        """Ends it, from whichever thread; who waits for it waits no longer."""
        with self._lock:
            if not self.closed:
                self.closed, self.objection = True, objection
                with contextlib.suppress(OSError):
                    self._socket.shutdown(socket.SHUT_RDWR)
            if not self._users:
                self._socket.close()

    @contextlib.contextmanager
    def used(self) -> Iterator[None]:
        """Keeps the socket's number from being given away while somebody waits for it."""
        self.take()
        try:
            yield
        finally:
            self.release()

    def take(self) -> None:
        """As `used`, until `release`."""
        with self._lock:
            if self.closed:
                raise LinkError("it is closed")
            self._users += 1

    def release(self) -> None:
        """After `take`."""
        with self._lock:
            self._users -= 1
            if self.closed and not self._users:
                self._socket.close()

    # For the thread that has the link; none of these waits.

    def fileno(self) -> int:
        """What to poll."""
        return self._socket.fileno()

    def encrypted(self, piece: memoryview) -> bytes:
        """What is to be sent of a piece of a frame."""
        self._tls.write(piece)
        return self._outgoing.read()

    def put(self, encrypted: memoryview) -> int:
        """Sends as much as the connection takes now: a BlockingIOError says that it is nothing."""
        return self._socket.send(encrypted)

    @property
    def buffered(self) -> bool:
        """Whether there is something to read of what came before, as it came or decrypted."""
        return self._incoming.pending > 0 or self._tls.pending() > 0

    def pull(self, into: memoryview) -> int:
        """Reads what has come, at most as much as is asked for: a BlockingIOError says that it is
        nothing. What came beyond waits for the next to read."""
        came = True if self.buffered else self._take_in()
        while came:
            try:
                if count := self._read_some(len(into), into):
                    return count
                break
            except ssl.SSLWantReadError:
                came = self._take_in()
        raise LinkError("it hung up")

    def _take_in(self) -> bool:
        piece = self._socket.recv(READ_BYTES)
        self._incoming.write(piece)
        return bool(piece)

    def _read_some(self, size: int, into: memoryview) -> int:
        # Into a buffer, which the types don't know, it reads a number of bytes.
        read: Callable[[int, memoryview], int] = self._tls.read  # type: ignore[assignment]
        return read(size, into)

    async def _read(self, size: int) -> bytes:
        content = bytearray(size)
        view, at = memoryview(content), 0
        while at < size:
            try:
                count = self._read_some(size - at, view[at:])
            except ssl.SSLWantReadError:
                await self._fill()
                continue
            if not count:
                raise LinkError("it hung up")
            at += count
        return bytes(content)

    async def _fill(self) -> None:
        piece = await asyncio.get_running_loop().sock_recv(self._socket, READ_BYTES)
        if not piece:
            raise LinkError("it hung up")
        self._incoming.write(piece)

    async def _flush(self) -> None:
        if self._outgoing.pending:
            loop = asyncio.get_running_loop()
            await loop.sock_sendall(self._socket, self._outgoing.read())


@contextlib.contextmanager
def failing() -> Iterator[None]:
    """Whatever ends a connection is one kind of error; that nothing has come yet is none."""
    try:
        yield
    except BlockingIOError:
        raise
    except FrameError as error:
        raise LinkError(str(error)) from error
    except OSError as error:
        raise LinkError(reason(error)) from error


def reason(error: OSError) -> str:
    """Why a connection failed; errors of TLS are such errors, too."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate was refused: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"TLS failed ({error.reason or 'no reason given'})"
    return os.strerror(error.errno).lower() if error.errno else "no connection"


async def connect(address: str) -> socket.socket:
    """A connection to host:port or unix:/path."""
    loop = asyncio.get_running_loop()
    with failing():
        failure: OSError = ConnectionError("no such address")
        for family, place in await asyncio.to_thread(_places, address):
            one = socket.socket(family, socket.SOCK_STREAM)
            try:
                one.setblocking(False)
                await loop.sock_connect(one, place)
                return one
            except OSError as error:
                one.close()
                failure = error
            except BaseException:
                one.close()
                raise
        raise failure


def listen(address: str) -> socket.socket:
    """A socket that takes connections at host:port or unix:/path."""
    family, place = _places(address)[0]
    one = socket.socket(family, socket.SOCK_STREAM)
    try:
        if family == socket.AF_UNIX:
            # A process that was killed leaves its socket's name behind.
            with contextlib.suppress(FileNotFoundError):
                os.unlink(place)
        else:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        one.bind(place)
        one.listen(_BACKLOG)
        one.setblocking(False)
    except BaseException:
        one.close()
        raise
    return one


def _places(address: str) -> list[tuple[int, Any]]:
    """Where an address may be, by family of sockets."""
    if address.startswith(_UNIX):
        return [(socket.AF_UNIX, address.removeprefix(_UNIX))]
    host, _, port = address.rpartition(":")
    found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
    return [(family, place) for family, *_, place in found]
