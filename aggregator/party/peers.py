"""The parties' channel: one link to each peer for as long as a session lasts.

The party of lower rank begins. Both ends first say what they are about to compute (spec,
contributors, deal); unless these agree nothing else is delivered and the session aborts. The rank
before sends along the seed of the zero sharing between the two. After that every exchange is one
frame to each peer, all at once, in the thread that computes.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from typing import Any

from aggregator.party.links import Lease, LinkPool, LinkServer, parse_hello
from mpc_vote.errors import ErrorKind, VoteError
from mpc_vote.mpc.channel import Traffic
from mpc_vote.mpc.prg import SEED_BYTES, SeedStream, new_seed
from mpc_vote.proto.mpcvote.v1 import party_pb2
from mpc_vote.transport import frames
from mpc_vote.transport.exchange import Interrupted, exchange
from mpc_vote.transport.frames import HEADER_BYTES, FrameError, Kind
from mpc_vote.transport.link import Frame, LinkError


class PeerChannel:
    """A session's channel. `open` runs on the loop; `exchange` in the engine's thread."""

    def __init__(
        self, session_id: str, context: bytes, parties: Sequence[str], rank: int, timeout: float
    ) -> None:
        self._session_id = session_id
        self._context = context
        self._parties = parties
        self._timeout = timeout
        self._seed = new_seed()
        self._leases: dict[int, Lease] = {}
        self._number = 0
        self.rank = rank
        self.size = len(parties)
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
        pools: Mapping[str, LinkPool],
        server: LinkServer,
        timeout: float,
    ) -> PeerChannel:
        """Joins the session and agrees with every peer on what is computed."""
        channel = cls(session_id, context, parties, rank, timeout)

        async def begin(peer: int) -> None:
            channel._leases[peer] = await pools[parties[peer]].lease()
            await channel._greet(peer)

        async def admit(peer: int) -> None:
            # Among the leases at once: whatever else fails, closing the channel ends this link.
            lease = await server.await_link(session_id, parties[peer], timeout)
            channel._leases[peer] = lease
            await channel._greet(peer)

        try:
            # All at once: a party that greeted some only after it had heard others would wait for
            # a party that waits for it.
            await _together(
                *(begin(peer) for peer in range(rank + 1, len(parties))),
                *(admit(peer) for peer in range(rank)),
            )
            for peer in sorted(channel._leases):
                await channel._agree(peer)
        except BaseException:
            channel.close()
            server.forget(session_id)
            raise
        channel.next_stream = SeedStream(channel._seed)
        return channel

    def exchange(self, payload: bytes) -> Sequence[bytes]:
        """See `Channel`."""
        ranks = list(self._leases)
        links = [self._leases[rank].link for rank in ranks]
        try:
            payloads = exchange(links, payload, self._number, self._timeout)
        except Interrupted as error:
            raise self._blame(ranks[links.index(error.link)], error.cause) from error
        except TimeoutError as error:
            raise self._late() from error
        self._number += 1
        received = {self.rank: payload, **dict(zip(ranks, payloads, strict=True))}
        self.traffic.rounds += 1
        self.traffic.bytes_sent += len(payload) * len(ranks)
        self.traffic.bytes_received += sum(map(len, payloads))
        self.traffic.frame_bytes_sent += (len(payload) + HEADER_BYTES) * len(ranks)
        return [received[rank] for rank in range(self.size)]

    async def finish(self) -> None:
        """Ends the session after the last exchange; its links serve others once every peer has
        ended it as well, and nothing that a peer still needs is taken back."""
        # A peer that fails now fails by itself; this party's work is done.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._timeout):
                await asyncio.gather(*(lease.finish() for lease in self._leases.values()))

    def close(self) -> None:
        """Ends all links that were not given back; a peer that still waits fails at once."""
        for lease in self._leases.values():
            lease.close()

    async def _greet(self, peer: int) -> None:
        following = peer == (self.rank + 1) % self.size
        hello = party_pb2.SessionHello(
            session_id=self._session_id,
            context=self._context,
            zero_seed=self._seed if following else b"",
        )
        frame = frames.encode(Kind.HELLO, hello.SerializeToString())
        with self._blaming(peer):
            async with asyncio.timeout(self._timeout):
                await self._leases[peer].link.send(frame)

    async def _agree(self, peer: int) -> None:
        """Compares what a peer is about to compute with what this party is."""
        lease = self._leases[peer]
        with self._blaming(peer):
            async with asyncio.timeout(self._timeout):
                frame = lease.hello or await lease.link.receive()
        if frame.kind is not Kind.HELLO:
            raise self._blame(peer, frame)
        hello = parse_hello(frame)
        if hello.session_id != self._session_id or hello.context != self._context:
            raise self._disagreement(
                f"rank {peer} would compute on another spec, set of agents or deal"
            )
        if peer == (self.rank - 1) % self.size:
            if len(hello.zero_seed) != SEED_BYTES:
                raise self._disagreement(f"rank {peer} sent no seed")
            self.previous_stream = SeedStream(hello.zero_seed)

    @contextlib.contextmanager
    def _blaming(self, peer: int) -> Iterator[None]:
        try:
            yield
        except LinkError as error:
            raise self._blame(peer, error) from error
        except TimeoutError as error:
            raise self._late() from error

    def _blame(self, peer: int, cause: Frame | LinkError | FrameError) -> VoteError:
        """What a peer did instead of what was expected of it.

        An error that it sends is its statement, and no error of this party's: else a peer could
        have this party blame whom it likes, the dealer for one.
        """
        link = self._leases[peer].link
        if link.objection:
            who = f"Party {self._parties[peer]}"
            return VoteError(ErrorKind.PARTY_UNREACHABLE, who=who, why=link.objection.rstrip("."))
        if isinstance(cause, Frame) and cause.kind is Kind.ERROR:
            return VoteError.quoted_status(cause.content, f"Party {self._parties[peer]}")
        if isinstance(cause, LinkError) or cause == Frame(Kind.END):
            # It may have had its reasons, and be the one to say them.
            who, why = f"Party of rank {peer}", "it left the session"
            return VoteError(ErrorKind.PARTY_UNREACHABLE, who=who, why=why)
        return self._disagreement(f"rank {peer} sent an unexpected frame")

    def _late(self) -> VoteError:
        return VoteError(ErrorKind.DEADLINE, what="A peer", seconds=self._timeout)

    def _disagreement(self, why: str) -> VoteError:
        return VoteError(ErrorKind.COMMITTEE_DISAGREES, round=self._session_id, why=why)


async def _together(*work: Coroutine[Any, Any, None]) -> None:
    """Until all is done, or the first of it fails; nothing is left running."""
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in tasks:
            if task.done():
                task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
