"""What passes the harness's wire: calls of gRPC and sessions of links, with what was sent."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

Send = Callable[[bytes], Awaitable[Any]]
Pair = tuple[str, str]


class Passing:
    """A call, or a session of a link; keeps what the caller sent, so that it can be repeated."""

    def __init__(self, pair: Pair, method: str, numbers: Counter[str]) -> None:
        self.pair = pair
        self.method = method
        self.numbers = numbers
        self.requests: list[bytes] = []
        self.whole = asyncio.Event()

    async def replay(self, seconds: float) -> None:
        """Sends all of it again, as the same caller; nobody waits for the answers."""
        raise NotImplementedError
