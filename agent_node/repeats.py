"""What goes on for hours is logged when it begins, when it changes, and ever more rarely."""

from __future__ import annotations

import time
from collections.abc import Callable

_FIRST_SECONDS = 60.0
_MOST_SECONDS = 3_600.0


class Repeats:
    """Whether a sentence that comes again and again is due."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.forget()

    def forget(self) -> None:
        """It is over: the next sentence is new, even if it is the same."""
        self._last: str | None = None
        self._wait = _FIRST_SECONDS
        self._next = 0.0

    def due(self, sentence: str) -> bool:
        """Whether to say it now: it is new, or was last said long enough ago."""
        now = self._clock()
        if sentence == self._last and now < self._next:
            return False
        self._wait = (
            min(_MOST_SECONDS, 2 * self._wait) if sentence == self._last else _FIRST_SECONDS
        )
        self._last, self._next = sentence, now + self._wait
        return True
