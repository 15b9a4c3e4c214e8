"""What a demo's global model is compared with, computed beside the service's own work."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
from typing import Any

import numpy as np

from mpc_vote.testbed.demo.subject import Subject

_LEAVE_SECONDS = 10.0


class Comparison:
    """In a thread: the test accuracy of the same model on true labels, and of the best agent.

    A demo that is interrupted doesn't wait for all of it, only for the step under way: a thread
    that is in native code when Python ends can take the process down.
    """

    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        self._loop = asyncio.get_running_loop()
        self.result: asyncio.Future[tuple[float, float]] = self._loop.create_future()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends it, where nobody waits for the result any more."""
        self._stopped.set()
        self._thread.join(_LEAVE_SECONDS)

    def _run(self) -> None:
        try:
            outcome = functools.partial(_settle, self.result, self._compare(), None)
        except _Stopped:
            return
        except Exception as error:
            outcome = functools.partial(_settle, self.result, None, error)
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
            self._loop.call_soon_threadsafe(outcome)

    def _check(self, *_: float) -> None:
        if self._stopped.is_set():
            raise _Stopped

    def _compare(self) -> tuple[float, float]:
        subject, test = self._subject, self._subject.data.test
        oracle, best = subject.oracle(self._check), 0.0
        for number, part in enumerate(subject.data.private):
            self._check()
            predicted = subject.alone(part, number)(test.x)
            best = max(best, float(np.mean(predicted == test.y)))
        return oracle, best


class _Stopped(Exception):
    """Nobody waits for the comparison any more."""


def _settle(future: asyncio.Future[Any], result: Any, error: Exception | None) -> None:
    if future.cancelled():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)
