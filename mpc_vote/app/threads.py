"""Work in a thread that may never return: plug-ins run there."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


def start(work: Callable[..., T], *given: Any) -> asyncio.Future[T]:
    """Begins work in a thread of its own, which the process does not wait for when it ends."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()
    # Who no longer waits for it does not want to know how it ended.
    future.add_done_callback(lambda done: done.cancelled() or done.exception())

    def settle(finish: Callable[[Any], None], outcome: Any) -> None:
        if not future.done():
            finish(outcome)

    def run() -> None:
        finish: Callable[[Any], None]
        outcome: Any
        try:
            finish, outcome = future.set_result, work(*given)
        except Exception as error:
            finish, outcome = future.set_exception, error
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
            loop.call_soon_threadsafe(settle, finish, outcome)

    threading.Thread(target=run, daemon=True, name=getattr(work, "__name__", "work")).start()
    return future
