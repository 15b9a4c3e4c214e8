"""The parties' channel: one mutual-TLS stream per session and pair of parties.

The party of lower rank dials. Both ends first say what they are about to compute (spec,
contributors, deal); unless these agree nothing else is delivered and the session aborts. The rank
before sends along the seed of the zero sharing between the two. After that every exchange is one
frame to each peer, all at once.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Protocol

import grpc
from google.protobuf.message import DecodeError

from mpc_vote import rpc, wire
from mpc_vote.argmax.channel import Traffic
from mpc_vote.csprng import SEED_BYTES, SeedStream, new_seed
from mpc_vote.errors import ErrorKind, VoteError
from mpc_vote.identity import Role
from mpc_vote.proto.mpcvote.v1 import party_pb2, party_pb2_grpc

# Of one peer, whatever becomes of them: more than it can have rounds open.
_MAX_STREAMS = 512
_FRAME_SECONDS = 30.0
# Before each message, gRPC sends whether it is compressed and how long it is.
_PREFIX_BYTES = 5
# A stream's first message, which is kept until the session comes for it: names and digests only.
_MAX_HELLO_BYTES = 512


class Link(Protocol):
    """One end of a stream between two parties."""

    async def send(self, frame: party_pb2.PeerFrame) -> int:
        """Sends a frame; returns the bytes of the message that carried it, prefix included."""
        ...

    async def receive(self) -> party_pb2.PeerFrame | None: ...

    async def finish(self) -> None: ...

    def close(self) -> None: ...


class _Dialled:
    """The end that called."""

    def __init__(self, call: Any, peer: str) -> None:
        self._call = call
        self._peer = peer

    async def send(self, frame: party_pb2.PeerFrame) -> int:
        message = party_pb2.ExchangeRequest(frame=frame)
        with self._quoting():
            await self._call.write(message)
        return message.ByteSize() + _PREFIX_BYTES

    async def receive(self) -> party_pb2.PeerFrame | None:
        with self._quoting():
            response = await self._call.read()
        return response.frame if isinstance(response, party_pb2.ExchangeResponse) else None

    async def finish(self) -> None:
        # Cancelling would also take back frames that the peer has not read yet: it ends the stream.
        with self._quoting():
            await self._call.done_writing()
            await self._call.read()

    def close(self) -> None:
        self._call.cancel()

    @contextlib.contextmanager
    def _quoting(self) -> Iterator[None]:
        """An error that the peer answers with is what the peer says, and no error of this party's:
        else a peer could have this party blame whom it likes, the dealer for one."""
        try:
            yield
        except grpc.RpcError as error:
            said = VoteError.quoted(error, f"Party {self._peer}")
            if said.kind is not ErrorKind.ENDED_BY:
                who, why = f"A peer, {self._peer},", "it left the session"
                said = VoteError(ErrorKind.PARTY_UNREACHABLE, who=who, why=why)
            raise said from error


class _Answered:
    """The end that was called; it lives until the session closes it."""

    def __init__(self, context: Any, first: party_pb2.PeerFrame) -> None:
        self._context = context
        self._first: party_pb2.PeerFrame | None = first
        self._writing: asyncio.Future[None] | None = None
        self.claimed = asyncio.Event()
        self.closed = asyncio.Event()

    async def send(self, frame: party_pb2.PeerFrame) -> int:
        message = party_pb2.ExchangeResponse(frame=frame)
        self._writing = asyncio.ensure_future(self._context.write(message))
        # Who no longer waits for it has still to leave it its end; whether it failed says the call.
        self._writing.add_done_callback(lambda done: done.cancelled() or done.exception())
        await asyncio.shield(self._writing)
        return message.ByteSize() + _PREFIX_BYTES

    async def settled(self) -> None:
        """Waits until nothing is being written, or the peer has hung up: gRPC can't end a call
        before, however long its peer does not read."""
        if self._writing is not None:
            await asyncio.wait([self._writing])

    async def receive(self) -> party_pb2.PeerFrame | None:
        if self._first is not None:
            first, self._first = self._first, None
            return first
        try:
            request = await self._context.read()
        except DecodeError:
            # What can't be read ends a stream, here as at the other end: it is the peer's fault,
            # not of who ordered the session.
            return None
        return request.frame if isinstance(request, party_pb2.ExchangeRequest) else None

    async def finish(self) -> None:
        self.close()

    def close(self) -> None:
        self.closed.set()


@contextlib.contextmanager
def _in_time() -> Iterator[None]:
    """Says what did not happen while a stream was new."""
    try:
        yield
    except TimeoutError as error:
        what = "The session's start"
        raise VoteError(ErrorKind.DEADLINE, what=what, seconds=_FRAME_SECONDS) from error


class PeerServicer(party_pb2_grpc.PeerServiceServicer):
    """Takes streams from parties of lower rank and hands them to the waiting session."""

    def __init__(self, peers: Collection[str] | None) -> None:
        """For these parties alone; without a list for any, as long as a session waits for it."""
        self._peers = peers
        self._streams: Counter[str] = Counter()
        self._waiting: dict[tuple[str, str], asyncio.Future[_Answered]] = {}

    @rpc.allowed(Role.PARTY)
    async def Exchange(  # type: ignore[override]  # reads and writes by the context
        self, request_iterator: Any, context: Any
    ) -> None:
        peer = rpc.caller().name
        if self._peers is not None and peer not in self._peers:
            what = "the committee of this party"
            raise VoteError(ErrorKind.NAME_REFUSED, who=peer, what=what)
        if self._streams[peer] >= _MAX_STREAMS:
            raise VoteError(ErrorKind.SERVICE_BUSY, got=_MAX_STREAMS, retry_after=5.0)
        self._streams[peer] += 1
        try:
            await self._serve(peer, context)
        finally:
            self._streams[peer] -= 1

    async def _serve(self, peer: str, context: Any) -> None:
        """One stream, from its hello to the end of its session."""
        with _in_time():
            request = await asyncio.wait_for(context.read(), _FRAME_SECONDS)
        if not isinstance(request, party_pb2.ExchangeRequest):
            return
        if request.ByteSize() > _MAX_HELLO_BYTES:
            why = "a stream begins with more than a hello"
            raise VoteError(ErrorKind.COMMITTEE_DISAGREES, round="?", why=why)
        link = _Answered(context, request.frame)
        key = (request.frame.hello.session_id, peer)
        arrival = self._arrival(*key)
        if arrival.done():
            raise VoteError(
                ErrorKind.COMMITTEE_DISAGREES,
                round=request.frame.hello.session_id,
                why="a party opened its stream twice",
            )
        arrival.set_result(link)
        try:
            with _in_time():
                await asyncio.wait_for(link.claimed.wait(), _FRAME_SECONDS)
        finally:
            # Nobody came for it, or the peer hung up: it must not keep a place.
            if not link.claimed.is_set() and self._waiting.get(key) is arrival:
                del self._waiting[key]
        await link.closed.wait()
        await link.settled()

    async def await_stream(self, session_id: str, peer: str, timeout: float) -> Link:
        """The stream that `peer` opens for the session."""
        try:
            link = await asyncio.wait_for(self._arrival(session_id, peer), timeout)
            link.claimed.set()
            return link
        except TimeoutError as error:
            raise VoteError(ErrorKind.DEADLINE, what=f"Party {peer}", seconds=timeout) from error
        finally:
            self._waiting.pop((session_id, peer), None)

    def forget(self, session_id: str) -> None:
        """Drops streams that came for a session which will not run."""
        for key in [key for key in self._waiting if key[0] == session_id]:
            arrival = self._waiting.pop(key)
            if arrival.done() and not arrival.cancelled():
                arrival.result().claimed.set()
                arrival.result().close()
            arrival.cancel()

    def _arrival(self, session_id: str, peer: str) -> asyncio.Future[_Answered]:
        key = (session_id, peer)
        if key not in self._waiting:
            self._waiting[key] = asyncio.get_running_loop().create_future()
        return self._waiting[key]


class PeerChannel:
    """A session's channel. `open` runs on the loop; `exchange` in the engine's thread."""

    def __init__(
        self, session_id: str, rank: int, links: Mapping[int, Link], timeout: float
    ) -> None:
        self._session_id = session_id
        self._links = dict(links)
        self._timeout = timeout
        self._loop = asyncio.get_running_loop()
        self._sequence = 0
        self.rank = rank
        self.size = len(links) + 1
        self.traffic = Traffic()
        # Known once the parties agree.
        self.next_stream: SeedStream
        self.previous_stream: SeedStream

    @classmethod
    async def open(
        cls,
        session_id: str,
        context: bytes,
        parties: Sequence[str],
        rank: int,
        peers: Mapping[str, grpc.aio.Channel],
        servicer: PeerServicer,
        timeout: float,
    ) -> PeerChannel:
        """Joins the session and agrees with every peer on what is computed."""

        async def admit(peer: int) -> None:
            # Among the links at once: whatever else fails, closing the channel ends this stream.
            name = parties[peer]
            channel._links[peer] = await servicer.await_stream(session_id, name, timeout)

        higher, lower = range(rank + 1, len(parties)), range(rank)
        # Streams of higher ranks must be opened, and their hellos sent, before those of lower ranks
        # are awaited, or everybody would wait for everybody.
        links: dict[int, Link] = {}
        for peer in reversed(higher):
            name = parties[peer]
            links[peer] = _Dialled(party_pb2_grpc.PeerServiceStub(peers[name]).Exchange(), name)
        seed = new_seed()
        channel = cls(session_id, rank, links, timeout)
        try:
            await asyncio.gather(*(channel._greet(p, context, seed, len(parties)) for p in links))
            await asyncio.gather(*(admit(p) for p in lower))
            channel.size = len(parties)
            await asyncio.gather(*(channel._greet(p, context, seed, len(parties)) for p in lower))
            await channel._agree(context, seed)
        except BaseException:
            channel.close()
            servicer.forget(session_id)
            raise
        return channel

    def exchange(self, payload: bytes) -> Sequence[bytes]:
        """See `Channel`."""
        return asyncio.run_coroutine_threadsafe(self._exchange(payload), self._loop).result()

    async def finish(self) -> None:
        """Ends all streams after the last exchange, once every peer has what it still needs."""
        # A peer that fails now fails by itself; this party's work is done.
        with contextlib.suppress(VoteError):
            await self._within(asyncio.gather(*(link.finish() for link in self._links.values())))

    def close(self) -> None:
        """Ends all streams; a peer that still waits fails at once."""
        for link in self._links.values():
            link.close()

    async def _exchange(self, payload: bytes) -> list[bytes]:
        peers = list(self._links)
        start = self._sequence
        pieces = list(wire.split_bytes(payload)) or [b""]
        self._sequence += len(pieces)
        results = await self._within(
            asyncio.gather(
                *(self._send(peer, start, pieces) for peer in peers),
                *(self._receive(peer, start, pieces) for peer in peers),
            )
        )
        received = {self.rank: payload, **dict(zip(peers, results[len(peers) :], strict=True))}
        self.traffic.rounds += 1
        self.traffic.bytes_sent += len(payload) * len(peers)
        self.traffic.bytes_received += sum(len(received[peer]) for peer in peers)
        return [received[rank] for rank in range(self.size)]

    async def _send(self, peer: int, start: int, pieces: Sequence[bytes]) -> None:
        for offset, piece in enumerate(pieces):
            frame = party_pb2.PeerFrame(sequence=start + offset, payload=piece)
            # Not in one statement: the sum would be read before the wait.
            sent = await self._links[peer].send(frame)
            self.traffic.frame_bytes_sent += sent

    async def _receive(self, peer: int, start: int, like: Sequence[bytes]) -> bytes:
        pieces = []
        for offset, expected in enumerate(like):
            frame = await self._links[peer].receive()
            if frame is None:
                raise _left(peer)
            if frame.sequence != start + offset or len(frame.payload) != len(expected):
                raise self._disagreement(f"rank {peer} sent an unexpected frame")
            pieces.append(frame.payload)
        return b"".join(pieces)

    async def _greet(self, peer: int, context: bytes, seed: bytes, size: int) -> None:
        zero_seed = seed if peer == (self.rank + 1) % size else b""
        hello = party_pb2.SessionHello(
            session_id=self._session_id, context=context, zero_seed=zero_seed
        )
        await self._within(self._links[peer].send(party_pb2.PeerFrame(hello=hello)))

    async def _agree(self, context: bytes, seed: bytes) -> None:
        previous = (self.rank - 1) % self.size
        self.next_stream = SeedStream(seed)
        for peer, link in self._links.items():
            frame = await self._within(link.receive())
            if frame is None:
                raise _left(peer)
            if frame.hello.session_id != self._session_id or frame.hello.context != context:
                raise self._disagreement(
                    f"rank {peer} would compute on another spec, set of agents or deal"
                )
            if peer == previous:
                if len(frame.hello.zero_seed) != SEED_BYTES:
                    raise self._disagreement(f"rank {peer} sent no seed")
                self.previous_stream = SeedStream(frame.hello.zero_seed)

    async def _within(self, work: Any) -> Any:
        try:
            # Not `wait_for`: of a gathering that is cancelled it leaves an error behind.
            async with asyncio.timeout(self._timeout):
                return await work
        except TimeoutError as error:
            raise VoteError(ErrorKind.DEADLINE, what="A peer", seconds=self._timeout) from error
        except (asyncio.InvalidStateError, grpc.aio.BaseError) as error:
            raise VoteError(
                ErrorKind.PARTY_UNREACHABLE, who="A peer", why="it left the session"
            ) from error

    def _disagreement(self, why: str) -> VoteError:
        return VoteError(ErrorKind.COMMITTEE_DISAGREES, round=self._session_id, why=why)


def _left(peer: int) -> VoteError:
    """It may have had its reasons, and be the one to say them."""
    who, why = f"Party of rank {peer}", "it left the session"
    return VoteError(ErrorKind.PARTY_UNREACHABLE, who=who, why=why)
