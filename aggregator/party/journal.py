"""The database in which a party remembers the rounds it ever opened.

A round id is opened once and aggregated once, ever, also across restarts: two aggregations over the
same shares with different sets of agents would let the noise cancel. Shares themselves are never
written down.
"""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path


class Tally:
    """Durable marks: opened, then aggregated. Every mark is on disk when the call returns."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._lock = threading.Lock()
        self._db = sqlite3.connect(path, check_same_thread=False, isolation_level=None, timeout=10)
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = FULL")
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
