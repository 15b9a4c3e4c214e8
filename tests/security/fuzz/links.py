"""Links without TLS between a party and a peer that a script plays; and bytes on such a link."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import socket
import ssl
import struct
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast
from unittest import mock

from aggregator.party import links
from aggregator.party.links import Lease, LinkServer
from aggregator.party.peers import PeerChannel
from mpc_vote.errors import ErrorKind, VoteError
from mpc_vote.mpc.cut_and_choose import DIGEST_BYTES
from mpc_vote.pki.identity import Credentials, Identity, Role
from mpc_vote.proto.mpcvote.v1 import party_pb2
from mpc_vote.transport import frames
from mpc_vote.transport.frames import HEADER_BYTES, MAX_HELLO_BYTES, Kind
from mpc_vote.transport.link import Frame, Link, LinkError
from tests.security.fuzz.runner import Finding

_HEADER = struct.Struct(">BII")
_SESSION = "session"
_PEER = "party-0"
_SEED = bytes(range(32))
_CONTEXT = bytes(32)
_PAYLOAD = b"a payload"
_SECONDS = 0.02
_ALWAYS = (dt.datetime.min.replace(tzinfo=dt.UTC), dt.datetime.max.replace(tzinfo=dt.UTC))
_CREDENTIALS = Credentials(Identity(Role.PARTY, "party-1"), *_ALWAYS, b"", b"", b"")


class _Plain:
    """In the place of TLS: bytes as they are."""

    def __init__(self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO) -> None:
        self._incoming, self._outgoing = incoming, outgoing

    def write(self, data: Any) -> int:
        return self._outgoing.write(bytes(data))

    def read(self, size: int, into: memoryview) -> int:
        if not self._incoming.pending:
            raise ssl.SSLWantReadError
        data = self._incoming.read(size)
        into[: len(data)] = data
        return len(data)

    def pending(self) -> int:
        return 0


def plain_link(end: socket.socket) -> Link:
    """A link over one end of a pair of sockets, whose peer is beyond doubt."""
    link = Link(end)
    link._tls = cast(Any, _Plain(link._incoming, link._outgoing))
    return link


class PeerAgrees:
    """A peer that repeats what it hears: seeds and coins of these tests are all the same. Only its
    coin's hash is its own, once it is known; and its hellos, where a script has some."""

    def __init__(self, hellos: Sequence[party_pb2.SessionHello]) -> None:
        self.coin_hash = b""
        self._hellos = list(hellos)
        self._tasks: list[asyncio.Task[None]] = []

    def hello(self, session_id: str) -> Frame | None:
        """What it says first."""
        for hello in self._hellos:
            if hello.session_id == session_id or not hello.session_id:
                return Frame(Kind.HELLO, hello.SerializeToString()[:MAX_HELLO_BYTES])
        return None

    def link(self, hello: Frame | None) -> Lease:
        """A link to it, with what it has said on it."""
        own, far = socket.socketpair()
        link = plain_link(own)
        self._tasks.append(asyncio.create_task(self._answer(far, hello is None)))
        return Lease(link, lambda _: link.close(), hello)

    async def lease(self) -> Lease:
        """As a pool does."""
        return self.link(None)

    async def await_link(self, session_id: str, peer: str, timeout: float) -> Lease:
        """As a server of links does."""
        hello = self.hello(session_id)
        if hello is None:
            raise VoteError(ErrorKind.DEADLINE, what=f"Party {peer}", seconds=timeout)
        return self.link(hello)

    def forget(self, session_id: str) -> None:
        """It keeps nothing."""

    async def reached_by(self, _: str) -> bool:
        return True

    async def ping(self) -> float:
        return 0.0

    async def round_trip(self) -> float:
        return 0.0

    async def _answer(self, end: socket.socket, greets: bool) -> None:
        reader, writer = await asyncio.open_connection(sock=end)
        with contextlib.suppress(OSError, asyncio.IncompleteReadError), contextlib.closing(writer):
            while True:
                kind, number, length = _HEADER.unpack(await reader.readexactly(HEADER_BYTES))
                content = await reader.readexactly(length)
                if kind == Kind.HELLO:
                    if not greets:
                        continue
                    said = self.hello(party_pb2.SessionHello.FromString(content).session_id)
                    content = content if said is None else said.content
                elif number == 0 and length == 2 * DIGEST_BYTES:
                    content = content[:DIGEST_BYTES] + self.coin_hash
                writer.write(_HEADER.pack(kind, number, len(content)) + content)


# Bytes on a link


def _hello(session: str = _SESSION) -> bytes:
    hello = party_pb2.SessionHello(session_id=session, context=_CONTEXT, zero_seed=_SEED)
    return frames.encode(Kind.HELLO, hello.SerializeToString())


def link_seeds() -> list[bytes]:
    """What a peer may send in and between sessions."""
    payload = frames.encode(Kind.PAYLOAD, _PAYLOAD)
    error = VoteError(ErrorKind.SERVICE_BUSY, got=1).to_status().SerializeToString()
    return [
        frames.PING + _hello() + payload + frames.END + frames.PING,
        frames.LAST + _hello() + payload + frames.END + frames.LAST,
        _hello() + frames.encode(Kind.ERROR, error),
        _hello() + frames.END,
        _hello("another") + payload,
    ]


@contextlib.contextmanager
def open_links(run: Callable[[Any], str]) -> Iterator[Callable[[bytes], str]]:
    """All that a link's bytes get to: a server of links, a session that waits, an exchange."""

    async def play(data: bytes) -> str:
        server = cast(Any, LinkServer.__new__(LinkServer))
        server._links, server._waiting = {_PEER: set()}, {}
        server._peers, server._shaking, server._tasks = [_PEER], {}, set()
        server._free, server.credentials = {}, _CREDENTIALS
        own, far = socket.socketpair()
        link = plain_link(own)

        async def serve() -> str:
            try:
                while True:
                    await server._answer(link, _PEER, _CREDENTIALS)
            except VoteError as error:
                await link.refuse(error)
                return error.name
            except (LinkError, TimeoutError) as error:
                return type(error).__name__
            finally:
                link.close()

        async def count() -> str:
            try:
                parties = (_PEER, "party-1")
                channel = await PeerChannel.open(
                    _SESSION, _CONTEXT, parties, 1, {}, server, _SECONDS
                )
            except VoteError as error:
                return error.name
            try:
                await asyncio.to_thread(channel.exchange, _PAYLOAD)
                await channel.finish()
                return "counted"
            except VoteError as error:
                return error.name
            finally:
                channel.close()

        serving, counting = asyncio.create_task(serve()), asyncio.create_task(count())
        far.setblocking(False)
        with far:
            # A pair of sockets takes this much at once.
            far.send(data[: 1 << 16] or b"\0")
            counted = await counting
            far.shutdown(socket.SHUT_WR)
            served = await serving
        if server._waiting:
            raise Finding("it keeps a link that has ended")
        return f"{served} {counted}"

    with mock.patch.multiple(links, _HELLO_SECONDS=_SECONDS, _END_SECONDS=_SECONDS):
        yield lambda data: run(play(data))


def opened(loop: Callable[[], Any]) -> Callable[[Path], Any]:
    """The target's `open`."""

    @contextlib.contextmanager
    def make(_: Path) -> Iterator[Callable[[bytes], str]]:
        playing = loop()
        with open_links(playing.run) as run:
            yield run
        playing.close()

    return make
