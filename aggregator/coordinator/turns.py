"""Read calls that take a while: the work of one call at a time, clients in turn.

Rounds need threads as well, and whoever asks without end must hold up neither those nor other
clients. Of each client one call at most waits for the thread, so that clients take turns; its
others wait behind that one, and beyond a few they are refused.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

from mpc_vote.errors import ErrorKind, VoteError

CALLS_EACH = 16
_RETRY_SECONDS = 1.0

T = TypeVar("T")


@dataclass
class _Calls:
    """The calls of one client."""

    count: int = 0
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)


class Turns:
    """A thread that clients share."""

    def __init__(self) -> None:
        self._calls: dict[str, _Calls] = {}
        self._thread = asyncio.Lock()

    @contextlib.contextmanager
    def call(self, client: str) -> Iterator[asyncio.Lock]:
        """Counts a call, or refuses one too many; gives what orders the calls of this client."""
        calls = self._calls.setdefault(client, _Calls())
        if calls.count >= CALLS_EACH:
            raise VoteError(ErrorKind.SERVICE_BUSY, got=CALLS_EACH, retry_after=_RETRY_SECONDS)
        calls.count += 1
        try:
            yield calls.turn
        finally:
            calls.count -= 1
            if not calls.count:
                del self._calls[client]

    async def ask(self, client: str, others: Callable[[], Awaitable[T]]) -> T:
        """What others are asked on a client's behalf, for one of its calls at a time."""
        with self.call(client) as turn:
            async with turn:
                return await others()

    async def do(self, client: str, work: Callable[..., T], *given: Any) -> T:
        """Does a client's work when it is its turn."""
        with self.call(client) as turn:
            async with turn, self._thread:
                task = asyncio.create_task(asyncio.to_thread(work, *given))
                try:
                    return await asyncio.shield(task)
                finally:
                    # A thread can't be cancelled: who hangs up does not make room for more.
                    await asyncio.wait([task])
