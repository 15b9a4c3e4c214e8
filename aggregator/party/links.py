"""A party's links to its peers: opened once, kept, and lent to one session after the other.

The party of lower rank dials (`LinkPool`), the other answers (`LinkServer`). Either end reads from
the other's certificate who it is, refuses who is not of the committee, and ends links whose peer's
certificate has expired or been revoked since. A party whose own certificate was replaced dials with
the new one from then on, and asks peers that dialled it before for new links. What a peer can have
this party keep is bounded: links, the hello that waits on each, and how long it waits. A caller
that is refused keeps a descriptor for two seconds more, to be told why.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Coroutine, Iterator
from typing import Any, Self

from google.protobuf.message import DecodeError

from mpc_vote.errors import ErrorKind, VoteError
from mpc_vote.pki import tls
from mpc_vote.pki.identity import Credentials, Identity, Role
from mpc_vote.proto.mpcvote.v1 import party_pb2
from mpc_vote.transport import frames, link
from mpc_vote.transport.frames import Kind
from mpc_vote.transport.link import PROTOCOL, Frame, Link, LinkError
from mpc_vote.transport.validity import objection

log = logging.getLogger(__name__)

# Of one peer, whatever becomes of them: more than it can have rounds open.
_MAX_LINKS = 512
# Of callers of whom nobody knows yet who they are: whoever takes longest makes room for the next.
_MAX_HANDSHAKES = 256
_HANDSHAKE_SECONDS = 10.0
_HELLO_SECONDS = 30.0
_END_SECONDS = 30.0
_PROBE_SECONDS = 3.0
_LOOK_SECONDS = 1.0
_BREATH_SECONDS = 0.1
_IDLE_LINKS = 8
_TRIPS = 5


class Lease:
    """A link while a session has it: given back whole, or closed."""

    def __init__(self, leased: Link, ended: Callable[[bool], None], hello: Frame | None) -> None:
        self.link = leased
        # With which the peer began, at the end that was dialled.
        self.hello = hello
        self._ended: Callable[[bool], None] | None = ended

    async def finish(self) -> None:
        """Says that nothing of the session follows. What was sent before stays sent: the link is
        kept, for the next session, once the peer says so as well."""
        try:
            await self.link.send(frames.END)
        except LinkError:
            self.close()
        else:
            self._end(whole=True)

    def close(self) -> None:
        """Ends the link, unless it was given back: a peer that still waits fails at once."""
        self._end(whole=False)

    def _end(self, whole: bool) -> None:
        if self._ended is not None:
            ended, self._ended = self._ended, None
            if not whole:
                self.link.close()
            ended(whole)


class _Links:
    """What both ends have in common: links that are looked after, and work on the loop."""

    def __init__(
        self, credentials: Credentials, make: Callable[[Credentials, str], ssl.SSLContext]
    ) -> None:
        self.credentials = credentials
        self._make = make
        self._used = credentials.newest()
        self._context = make(self._used, PROTOCOL)
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._begin(self._watch())
        return self

    async def __aexit__(self, *_: object) -> None:
        for one in self.open():
            one.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def open(self) -> list[Link]:
        """All links that there are."""
        raise NotImplementedError

    def _tidy(self) -> None:
        """Puts links out of use, between sessions, that were made with an older certificate."""
        raise NotImplementedError

    def _newest(self) -> ssl.SSLContext:
        """TLS with the newest certificate."""
        newest = self.credentials.newest()
        if not newest.connects_like(self._used):
            self._context, self._used = self._make(newest, PROTOCOL), newest
        return self._context

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _watch(self) -> None:
        """Ends links whose peer's certificate is no longer good, also of sessions under way."""
        while True:
            self._tidy()
            for one in self.open():
                error = objection(self.credentials, one.certificate)
                if error is not None and not one.closed:
                    log.info("a link to %s ends: %s", one.peer, error.name)
                    one.close(objection=error.message)
            await asyncio.sleep(_LOOK_SECONDS)


class LinkPool(_Links):
    """Links that this party dials: to one peer, at one address."""

    def __init__(self, credentials: Credentials, address: str, peer: str) -> None:
        super().__init__(credentials, tls.dialling_context)
        self.peer = peer
        self._address = address
        # With the credentials that each was made with.
        self._links: dict[Link, Credentials] = {}
        self._idle: list[Link] = []

    def open(self) -> list[Link]:
        """All links that there are."""
        return list(self._links)

    async def lease(self) -> Lease:
        """A link for a session: one that is idle, or a new one."""
        with self._blaming():
            taken = await self._take()

        def ended(whole: bool) -> None:
            if whole:
                self._begin(self._settle(taken))
            else:
                self._drop(taken)

        return Lease(taken, ended, None)

    async def ping(self) -> float:
        """Seconds of a round trip to the peer."""
        with self._blaming():
            taken = await self._take()
            try:
                async with asyncio.timeout(_PROBE_SECONDS):
                    started = time.perf_counter()
                    await self._greet(taken)
                    trip = time.perf_counter() - started
            except BaseException:
                self._drop(taken)
                raise
            self._keep(taken)
            return trip

    async def round_trip(self) -> float:
        """Seconds that the quickest of a few round trips takes; how long one was tried, if none
        succeeds."""
        seconds = []
        for _ in range(_TRIPS):
            started = time.perf_counter()
            try:
                seconds.append(await self.ping())
            except VoteError:
                seconds.append(time.perf_counter() - started)
        return min(seconds)

    async def _take(self) -> Link:
        while self._idle:
            kept = self._idle.pop()
            if self._is_usable(kept):
                return kept
            self._drop(kept)
        async with asyncio.timeout(_HANDSHAKE_SECONDS):
            return await self._dial()

    def _is_usable(self, kept: Link) -> bool:
        newest = self.credentials.newest()
        like_new = self._links[kept].connects_like(newest)
        # One that is not idle was left by the peer, or retired.
        return like_new and kept.idle and objection(newest, kept.certificate) is None

    def _tidy(self) -> None:
        for kept in [kept for kept in self._idle if not self._is_usable(kept)]:
            self._idle.remove(kept)
            self._drop(kept)

    async def _dial(self) -> Link:
        context, used = self._newest(), self._used
        dialled = Link(await link.connect(self._address))
        try:
            await dialled.shake(context, Identity(Role.PARTY, self.peer))
            if (error := objection(self.credentials, dialled.certificate)) is not None:
                raise LinkError(error.message)
            # Only an answer shows that the peer accepts this party.
            await self._greet(dialled)
        except BaseException:
            dialled.close()
            raise
        self._links[dialled] = used
        return dialled

    async def _greet(self, taken: Link) -> None:
        await taken.send(frames.PING)
        frame = await taken.receive()
        if frame.kind is Kind.ERROR:
            raise VoteError.quoted_status(frame.content, f"Party {self.peer}")
        if frame.kind is not Kind.PONG:
            raise LinkError("it does not answer a ping")

    async def _settle(self, given: Link) -> None:
        """After a session, waits for the peer's word that it is over there as well."""
        try:
            async with asyncio.timeout(_END_SECONDS):
                await _await_end(given)
        except (LinkError, TimeoutError):
            self._drop(given)
        else:
            self._keep(given)

    def _keep(self, given: Link) -> None:
        if given.retired:
            self._drop(given)
            return
        self._idle.append(given)
        while len(self._idle) > _IDLE_LINKS:
            self._drop(self._idle.pop(0))

    def _drop(self, given: Link) -> None:
        given.close()
        self._links.pop(given, None)

    @contextlib.contextmanager
    def _blaming(self) -> Iterator[None]:
        """An error that the peer answers with is what the peer says, and no error of this party's:
        else a peer could have this party blame whom it likes, the dealer for one."""
        try:
            yield
        except (LinkError, TimeoutError) as error:
            why = str(error) or "it does not answer in time"
            who = f"A peer, {self.peer},"
            raise VoteError(ErrorKind.PARTY_UNREACHABLE, who=who, why=why) from error


class _Arrival:
    """A link with a hello, which waits for its session."""

    def __init__(self, leased: Link, hello: Frame) -> None:
        loop = asyncio.get_running_loop()
        self.claimed: asyncio.Future[bool] = loop.create_future()
        self.ended: asyncio.Future[bool] = loop.create_future()
        self._lease = Lease(leased, self._end, hello)
        leased.watch(lambda: self._settle(False))

    def claim(self) -> Lease:
        """For the session, which reads the link from now on."""
        self._lease.link.unwatch()
        self._settle(True)
        return self._lease

    def _end(self, whole: bool) -> None:
        # Where the party stops, nobody waits for it any more.
        if not self.ended.done():
            self.ended.set_result(whole)

    def _settle(self, claimed: bool) -> None:
        if not self.claimed.done():
            self.claimed.set_result(claimed)


class LinkServer(_Links):
    """Takes links from parties of lower rank, and lends them to the sessions that wait."""

    def __init__(
        self, credentials: Credentials, listen: str, peers: Collection[str] | None
    ) -> None:
        """For these parties alone; without a list for any, as long as a session waits for it."""
        super().__init__(credentials, tls.answering_context)
        try:
            self._listener = link.listen(listen)
        except OSError as error:
            raise VoteError(ErrorKind.PORT_IN_USE, address=listen) from error
        self._peers = peers
        self._shaking: dict[Link, None] = {}
        self._links: dict[str, set[Link]] = defaultdict(set)
        # Those that no session has, with the credentials that each was made with.
        self._free: dict[Link, Credentials] = {}
        self._waiting: dict[tuple[str, str], asyncio.Future[_Arrival]] = {}

    @property
    def port(self) -> int:
        """Where it listens."""
        port: int = self._listener.getsockname()[1]
        return port

    def open(self) -> list[Link]:
        """All links that there are."""
        return [one for links in self._links.values() for one in links]

    async def __aenter__(self) -> Self:
        self._begin(self._accept())
        return await super().__aenter__()

    async def __aexit__(self, *_: object) -> None:
        await super().__aexit__()
        self._listener.close()

    async def reached_by(self, peer: str) -> bool:
        """Whether a peer has a link here, at once or within the time of a probe."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_PROBE_SECONDS):
                while not self._links.get(peer):
                    await asyncio.sleep(_BREATH_SECONDS)
                return True
        return False

    async def await_link(self, session_id: str, peer: str, timeout: float) -> Lease:
        """The link on which `peer` begins the session."""
        try:
            async with asyncio.timeout(timeout):
                arrival = await self._arrival(session_id, peer)
            return arrival.claim()
        except TimeoutError as error:
            raise VoteError(ErrorKind.DEADLINE, what=f"Party {peer}", seconds=timeout) from error
        finally:
            self._waiting.pop((session_id, peer), None)

    def forget(self, session_id: str) -> None:
        """Drops links that came for a session which will not run."""
        for key in [key for key in self._waiting if key[0] == session_id]:
            arrival = self._waiting.pop(key)
            if arrival.done() and not arrival.cancelled():
                arrival.result().claim().close()
            arrival.cancel()

    def _arrival(self, session_id: str, peer: str) -> asyncio.Future[_Arrival]:
        key = (session_id, peer)
        if key not in self._waiting:
            self._waiting[key] = asyncio.get_running_loop().create_future()
        return self._waiting[key]

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, _ = await loop.sock_accept(self._listener)
            except OSError as error:
                # For want of descriptors, say, which may pass.
                log.warning("no link can be taken: %s", error)
                await asyncio.sleep(_BREATH_SECONDS)
                continue
            self._begin(self._serve(connection))
            # Whoever connects without end holds up nobody who is connected.
            await asyncio.sleep(0)

    async def _serve(self, connection: socket.socket) -> None:
        """One link, from its handshake to its end."""
        taken = Link(connection)
        while len(self._shaking) >= _MAX_HANDSHAKES:
            # A peer's takes a moment: it is not among the oldest.
            oldest = next(iter(self._shaking))
            del self._shaking[oldest]
            oldest.close()
        self._shaking[taken] = None
        context, used = self._newest(), self._used
        try:
            async with asyncio.timeout(_HANDSHAKE_SECONDS):
                await taken.shake(context)
        except (LinkError, TimeoutError) as error:
            log.info("a link was not made: %s", str(error) or "it took too long")
            taken.close()
            return
        finally:
            self._shaking.pop(taken, None)
        peer = ""
        try:
            peer = self._admit(taken)
            self._links[peer].add(taken)
            while True:
                await self._answer(taken, peer, used)
        except VoteError as error:
            log.info("refused: %s: %s", error.name, error.message)
            await taken.refuse(error)
        except (LinkError, TimeoutError):
            # Its session, or the next, finds out.
            pass
        finally:
            taken.close()
            self._links[peer].discard(taken)
            if not self._links[peer]:
                del self._links[peer]

    def _admit(self, taken: Link) -> str:
        """The name of a peer that may have one more link."""
        if (error := objection(self.credentials, taken.certificate)) is not None:
            raise error
        peer = taken.peer
        if peer is None:
            raise VoteError(ErrorKind.UNAUTHENTICATED)
        if peer.role is not Role.PARTY:
            want = Role.PARTY.value
            raise VoteError(ErrorKind.ROLE_REFUSED, who=peer, method="a peer link", want=want)
        if self._peers is not None and peer.name not in self._peers:
            what = "the committee of this party"
            raise VoteError(ErrorKind.NAME_REFUSED, who=peer.name, what=what)
        if len(self._links.get(peer.name, ())) >= _MAX_LINKS:
            raise VoteError(ErrorKind.SERVICE_BUSY, got=_MAX_LINKS, retry_after=5.0)
        return peer.name

    def _tidy(self) -> None:
        for taken, used in self._free.items():
            if not used.connects_like(self.credentials.newest()):
                taken.retire()

    async def _answer(self, taken: Link, peer: str, used: Credentials) -> None:
        """The next frame of a link that no session has, and the session that it begins."""
        self._free[taken] = used
        try:
            # At once: the link of a busy peer may never be free for long.
            self._tidy()
            frame = await taken.receive()
        finally:
            del self._free[taken]
        if frame.kind is Kind.PING:
            async with asyncio.timeout(_PROBE_SECONDS):
                await taken.send(frames.PONG)
        elif frame.kind is Kind.HELLO:
            await self._lend(taken, peer, frame)
        else:
            raise LinkError("it sends what belongs into a session")

    async def _lend(self, taken: Link, peer: str, hello: Frame) -> None:
        session_id = parse_hello(hello).session_id
        waiting = self._arrival(session_id, peer)
        if waiting.done():
            why = "a party opened its link twice"
            raise VoteError(ErrorKind.COMMITTEE_DISAGREES, round=session_id, why=why)
        arrival = _Arrival(taken, hello)
        waiting.set_result(arrival)
        try:
            # Not `wait_for`, which goes on where it is cancelled just as somebody comes.
            async with asyncio.timeout(_HELLO_SECONDS):
                claimed = await arrival.claimed
        except TimeoutError as error:
            what = "The session's start"
            raise VoteError(ErrorKind.DEADLINE, what=what, seconds=_HELLO_SECONDS) from error
        finally:
            # Nobody came for it, or the peer hung up: it must not keep a place.
            if self._waiting.get((session_id, peer)) is waiting:
                del self._waiting[session_id, peer]
            taken_over = arrival.claimed.done() and not arrival.claimed.cancelled()
            if not taken_over:
                taken.unwatch()
        if not claimed or not await arrival.ended:
            raise LinkError("it is over")
        async with asyncio.timeout(_END_SECONDS):
            await _await_end(taken)


async def _await_end(given: Link) -> None:
    if (await given.receive()).kind is not Kind.END:
        raise LinkError("it goes on after the session's end")


def parse_hello(frame: Frame) -> party_pb2.SessionHello:
    """What a peer says first in a session."""
    try:
        return party_pb2.SessionHello.FromString(frame.content)
    except DecodeError as error:
        raise VoteError(ErrorKind.MESSAGE_UNREADABLE, method="a peer link") from error
