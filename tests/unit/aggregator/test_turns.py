"""Clients that ask for work in threads: each in its turn, and none for more than a few at a time.

Invariants: what one client asks for holds up another's by one piece of work at most, also where it
asks without end or hangs up; and no more than one thread is taken from everybody else.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

from aggregator.coordinator.turns import CALLS_EACH, Turns
from mpc_vote.errors import ErrorKind
from tests.system.service.support import SECONDS, refused


class Work:
    """Work that takes until it is told to end, one piece after the other; who it was for."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.running = 0
        self._ends = threading.Semaphore(0)

    def piece(self, name: str) -> Callable[[], None]:
        def work() -> None:
            self.running += 1
            assert self.running == 1, "one at a time"
            assert self._ends.acquire(timeout=SECONDS)
            self.running -= 1
            self.done.append(name)

        return work

    def end(self, pieces: int = 1) -> None:
        self._ends.release(pieces)


async def _begun(work: Work) -> None:
    async with asyncio.timeout(SECONDS):
        while not work.running:
            await asyncio.sleep(0.001)


async def test_clients_take_turns_however_much_one_of_them_asks_for() -> None:
    turns, work = Turns(), Work()
    calls = [asyncio.create_task(turns.do("greedy", work.piece("greedy"))) for _ in range(5)]
    await _begun(work)
    calls.append(asyncio.create_task(turns.do("modest", work.piece("modest"))))
    await asyncio.sleep(0)
    work.end(6)
    await asyncio.gather(*calls)
    assert work.done.index("modest") <= 2


async def test_a_client_has_few_calls_at_a_time() -> None:
    turns, work = Turns(), Work()
    calls = [
        asyncio.create_task(turns.do("greedy", work.piece("greedy"))) for _ in range(CALLS_EACH)
    ]
    await _begun(work)
    with refused(ErrorKind.SERVICE_BUSY):
        await turns.do("greedy", work.piece("greedy"))
    work.end(CALLS_EACH + 1)
    await turns.do("modest", work.piece("modest"))
    await asyncio.gather(*calls)
    await turns.do("greedy", lambda: None)


async def test_who_hangs_up_makes_no_room_before_its_work_has_ended() -> None:
    turns, work = Turns(), Work()
    call = asyncio.create_task(turns.do("hasty", work.piece("hasty")))
    await _begun(work)
    call.cancel()
    other = asyncio.create_task(turns.do("modest", work.piece("modest")))
    await asyncio.sleep(0.02)
    assert work.running == 1 and not call.done()
    work.end(2)
    await other
    assert call.cancelled() and work.done == ["hasty", "modest"]


async def test_others_are_asked_for_one_call_of_a_client_at_a_time() -> None:
    turns, asked, most = Turns(), 0, 0
    answer = asyncio.Event()

    async def others() -> None:
        nonlocal asked, most
        asked += 1
        most = max(most, asked)
        await answer.wait()
        asked -= 1

    calls = [asyncio.create_task(turns.ask("greedy", others)) for _ in range(CALLS_EACH)]
    await asyncio.sleep(0)
    with refused(ErrorKind.SERVICE_BUSY):
        await turns.ask("greedy", others)
    calls.append(asyncio.create_task(turns.ask("modest", others)))
    await asyncio.sleep(0)
    assert asked == 2, "one for each of the two clients"
    answer.set()
    await asyncio.gather(*calls)
    assert most == 2
