"""How every SQLite file of this project is opened: durable when a statement returns, for its owner
only, with a bounded wait for others."""

from __future__ import annotations

import sqlite3
from pathlib import Path

BUSY_SECONDS = 30.0


def connect(path: Path) -> sqlite3.Connection:
    """A database for reading and writing; it and its folder are made if there are none.

    Transactions are explicit, and threads share it under a lock of their owner. The journal is the
    owner's choice (`use_wal`), as a file that is switched before anything is in it looks empty.
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    database = _open(str(path))
    database.execute("PRAGMA synchronous = FULL")
    return database


def connect_durable(path: Path) -> sqlite3.Connection:
    """The same with a write-ahead log, so that readers don't wait for a writer."""
    database = connect(path)
    use_wal(database)
    return database


def read_only(path: Path) -> sqlite3.Connection:
    """A database that another process may be writing to."""
    return _open(f"{path.absolute().as_uri()}?mode=ro")


def use_wal(database: sqlite3.Connection) -> None:
    """Switches to a write-ahead log."""
    database.execute("PRAGMA journal_mode = WAL")


def _open(name: str) -> sqlite3.Connection:
    return sqlite3.connect(
        name,
        uri=name.startswith("file:"),
        timeout=BUSY_SECONDS,
        isolation_level=None,
        check_same_thread=False,
    )
