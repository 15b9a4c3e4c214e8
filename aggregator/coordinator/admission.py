"""Who may open a round, or train: a fixed number of places, and a fair queue of clients' names.

A request that finds no place is refused, never kept: all that is kept of it is its client's name in
the queue, and the client is told when to ask again. A free place is for the first in the queue, so
a client that was just served can't take it before those that were told to wait. A client that does
not come back in time loses its turn.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from mpc_vote.errors import ErrorKind, VoteError

MAX_NAMES = 1_024
# What rounds take, before one has ended; then it is learnt.
_FIRST_SECONDS = 4.0
_LEARNING = 0.2
_WAIT_SECONDS = (0.1, 10.0)
# For the way back to the service, and once it is a client's turn also for its upload.
_LATE_SECONDS = 3.0
_TURN_SECONDS = 30.0


class AdmissionControl:
    """Places for rounds, and the names of those that wait for one; a client waits
    once."""

    def __init__(
        self,
        places: int,
        clock: Callable[[], float] = time.monotonic,
        refusal: ErrorKind = ErrorKind.SERVICE_BUSY,
    ) -> None:
        self._places = places
        self._clock = clock
        self._refusal = refusal
        self._taken = 0
        self._seconds = _FIRST_SECONDS
        # By name, in the order of arrival: when its turn is lost.
        self._lapses: dict[str, float] = {}

    def check(self, client: str) -> None:
        """Refuses a client whose turn it is not."""
        now = self._clock()
        self._lapses = {name: lapse for name, lapse in self._lapses.items() if lapse > now}
        if self.before(client) >= self._places - self._taken:
            raise self.busy(client)
        if client in self._lapses:
            self._lapses[client] = now + _TURN_SECONDS

    def take(self, client: str) -> None:
        """Takes a place for a client whose turn it is; `release` gives it back."""
        self.check(client)
        self._lapses.pop(client, None)
        self._taken += 1

    def release(self, seconds: float | None = None) -> None:
        """Gives a place back, after a round that took so long."""
        self._taken -= 1
        if seconds is not None:
            self._seconds += _LEARNING * (seconds - self._seconds)

    def busy(self, client: str) -> VoteError:
        """What a client is told that has to wait; it is in the queue from now on."""
        before = self.before(client)
        rounds = max(1, 1 + before - (self._places - self._taken))
        # Half of what it will take, as far as that is known: who comes early is told again.
        low, high = _WAIT_SECONDS
        wait = min(high, max(low, rounds * self._seconds / self._places / 2))
        if client in self._lapses or len(self._lapses) < MAX_NAMES:
            self._lapses[client] = self._clock() + 2 * wait + _LATE_SECONDS
        return VoteError(self._refusal, got=self._places, retry_after=wait, waiting_before=before)

    def before(self, client: str) -> int:
        """Clients in the queue before this one."""
        names = list(self._lapses)
        return names.index(client) if client in self._lapses else len(names)
