"""The parties' links on the harness's wire: frames that are seen, and that can be held or repeated.

A proxy answers in the place of a party, with its certificate, and dials on with the caller's. What
is sent between two hellos on a link is one session, as a call is for gRPC. Pings pass unseen: they
are of no round.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from mpc_vote.pki import tls
from mpc_vote.pki.identity import Credentials
from mpc_vote.testbed.chaos.passing import Pair, Passing, Send
from mpc_vote.transport import link
from mpc_vote.transport.frames import HEADER_BYTES, Kind
from mpc_vote.transport.link import PROTOCOL, Link, LinkError, failing

EXCHANGE = "Exchange"
_HEADER = struct.Struct(">BII")
_HANDSHAKE_SECONDS = 10.0

# Passes on what goes one way in a session.
Carry = Callable[[Passing, str, bytes, Send], Awaitable[None]]


class _WholeLink(Link):
    """A link that is read frame by frame, whatever they are."""

    async def whole(self) -> bytes:
        """The next frame."""
        with self.used(), failing():
            header = await self._read(HEADER_BYTES)
            return header + await self._read(_HEADER.unpack(header)[2])


class ProxiedSession(Passing):
    """One session of a link."""

    def __init__(
        self, pair: Pair, numbers: Counter[str], dial: Callable[[], Awaitable[_WholeLink]]
    ) -> None:
        super().__init__(pair, EXCHANGE, numbers)
        self._dial = dial

    async def replay(self, seconds: float) -> None:
        """Sends all of it again, on a link of its own, as the same caller."""
        with contextlib.suppress(LinkError, TimeoutError):
            async with asyncio.timeout(seconds):
                again = await self._dial()
                try:
                    for frame in list(self.requests):
                        await again.send(frame)
                    while True:
                        await again.whole()
                finally:
                    again.close()


class LinkProxy:
    """In front of one party's links."""

    def __init__(
        self,
        name: str,
        listen: str,
        target: str,
        credentials: Mapping[str, Credentials],
        numbers: Callable[[], Counter[str]],
        carry: Carry,
    ) -> None:
        self._name = name
        self._target = target
        self._credentials = credentials
        self._numbers = numbers
        self._carry = carry
        self._context = tls.answering_context(credentials[name], PROTOCOL)
        self._listener = link.listen(listen)
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Answers from now on."""
        self._begin(self._accept())

    async def stop(self) -> None:
        """Ends for good."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._listener.close()

    def _begin(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _accept(self) -> None:
        while True:
            connection, _ = await asyncio.get_running_loop().sock_accept(self._listener)
            self._begin(self._serve(_WholeLink(connection)))

    async def _serve(self, near: _WholeLink) -> None:
        far: _WholeLink | None = None
        try:
            async with asyncio.timeout(_HANDSHAKE_SECONDS):
                await near.shake(self._context)
                assert near.peer is not None, "TLS lets nobody else in"
                caller = near.peer.name
                far = await self._dial(caller)
            await self._join(caller, near, far)
        except (LinkError, TimeoutError):
            pass
        finally:
            near.close()
            if far is not None:
                far.close()

    async def _dial(self, caller: str) -> _WholeLink:
        far = _WholeLink(await link.connect(self._target))
        try:
            context = tls.dialling_context(self._credentials[caller], PROTOCOL)
            await far.shake(context, self._credentials[self._name].identity)
        except BaseException:
            far.close()
            raise
        return far

    async def _join(self, caller: str, near: _WholeLink, far: _WholeLink) -> None:
        """Carries frames both ways until one of the ends is gone."""
        pair, session = (caller, self._name), None

        async def carry(source: _WholeLink, sink: _WholeLink, request: bool) -> None:
            nonlocal session
            turn = asyncio.Lock()

            async def send(frame: bytes) -> None:
                # What was held back may be sent by somebody else.
                async with turn:
                    await sink.send(frame)

            while True:
                frame = await source.whole()
                kind = Kind(frame[0])
                if request and kind is Kind.HELLO:
                    session = ProxiedSession(pair, self._numbers(), lambda: self._dial(caller))
                if session is None or kind in (Kind.PING, Kind.PONG):
                    await send(frame)
                    continue
                if request:
                    session.requests.append(frame)
                    if kind is Kind.END:
                        session.whole.set()
                await self._carry(session, "request" if request else "response", frame, send)

        ways = [
            asyncio.create_task(carry(near, far, True)),
            asyncio.create_task(carry(far, near, False)),
        ]
        try:
            done, _ = await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            for one in done:
                one.result()
        finally:
            near.close()
            far.close()
            for one in ways:
                one.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
