"""The journal in which a party remembers the rounds that it ever opened.

A round id is opened once and aggregated once, ever, also across restarts: two aggregations over the
same shares with different sets of agents would let the noise cancel. Shares themselves are never
written down.
"""

from __future__ import annotations

import threading
from pathlib import Path

from mpc_vote import database


class RoundJournal:
    """Durable marks: opened, then aggregated. Every mark is on disk when the call returns."""

    def __init__(self, path: Path) -> None:
        self._lock = threading.Lock()
        self._db = database.connect_durable(path)
        self._db.execute(
            "CREATE TABLE IF NOT EXISTS rounds "
            "(round_id TEXT PRIMARY KEY, aggregated INTEGER NOT NULL DEFAULT 0) STRICT"
        )

    def open(self, round_id: str) -> bool:
        """Marks a round as opened; False if it ever was."""
        with self._lock:
            statement = "INSERT OR IGNORE INTO rounds (round_id) VALUES (?)"
            return self._db.execute(statement, (round_id,)).rowcount == 1

    def aggregate(self, round_id: str) -> bool:
        """Marks an opened round as aggregated; False if it ever was."""
        with self._lock:
            statement = "UPDATE rounds SET aggregated = 1 WHERE round_id = ? AND aggregated = 0"
            return self._db.execute(statement, (round_id,)).rowcount == 1

    def close(self) -> None:
        """Closes the database."""
        with self._lock:
            self._db.close()
