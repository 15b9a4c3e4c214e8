"""Threads that may never come back."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from mpc_vote.app import threads
from tests.system.service.support import SECONDS


async def test_work_ends_with_its_result_or_its_error() -> None:
    assert await threads.start(divmod, 7, 3) == (2, 1)
    with pytest.raises(ZeroDivisionError):
        await threads.start(divmod, 7, 0)


async def test_who_no_longer_waits_is_told_nothing() -> None:
    released = threading.Event()
    work = threads.start(released.wait)
    work.cancel()
    released.set()
    assert await threads.start(divmod, 7, 3) == (2, 1)
    assert work.cancelled()


_NEVER = """
import asyncio, threading
from mpc_vote.app import threads

async def main():
    begun = threading.Event()
    def never():
        begun.set()
        threading.Event().wait()
    threads.start(never)
    await asyncio.to_thread(begun.wait)

asyncio.run(main())
print("ended")
"""


def test_a_process_ends_though_its_work_never_does() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _NEVER], capture_output=True, text=True, timeout=SECONDS, check=True
    )
    assert done.stdout == "ended\n"
