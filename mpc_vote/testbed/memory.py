"""How much memory processes take together."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable

import psutil

_MEMORY_SECONDS = 0.5


class MemoryWatch:
    """Samples the memory of this process and its children; pages they share count once."""

    def __init__(self, pids: Callable[[], Iterable[int]]) -> None:
        self._pids = pids
        self._stopped = threading.Event()
        self.peak = 0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends the watch; `peak` stays."""
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(_MEMORY_SECONDS):
            self.peak = max(self.peak, sum(map(_memory_of, [os.getpid(), *self._pids()])))


def _memory_of(pid: int) -> int:
    try:
        info = psutil.Process(pid).memory_full_info()
    except psutil.Error:
        return 0
    size: int = getattr(info, "pss", info.rss)
    return size
