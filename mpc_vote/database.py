"""How every SQLite file of this project is opened: durable when a statement returns, for its owner
only, with a bounded wait for others."""

from __future__ import annotations

import sqlite3
from pathlib import Path

BUSY_SECONDS = 30.0


def connect(path: Path) -> sqlite3.Connection:
    """A database for reading and writing; it and its folder are made if there are none.

    Transactions are explicit, and threads share it under a lock of their owner. Nothing is read
    yet: whoever opens it says what is wrong with a file that is no database.
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    # Absolute: a relative name may look like a URI, which some builds of SQLite take unasked.
    return _open(str(path.absolute()), uri=False)


def connect_durable(path: Path) -> sqlite3.Connection:
    """The same, ready for use: on disk when a statement returns, and readers don't wait."""
    opened = connect(path)
    sync_fully(opened)
    use_wal(opened)
    return opened


def read_only(path: Path) -> sqlite3.Connection:
    """A database that another process may be writing to."""
    return _open(f"{path.absolute().as_uri()}?mode=ro", uri=True)


def sync_fully(database: sqlite3.Connection) -> None:
    """Has every transaction on disk when it is committed."""
    database.execute("PRAGMA synchronous = FULL")


def use_wal(database: sqlite3.Connection) -> None:
    """Switches to a write-ahead log. A file that is switched before anything is in it looks empty
    without its log."""
    database.execute("PRAGMA journal_mode = WAL")


def settle(database: sqlite3.Connection) -> None:
    """Writes the log back into the file itself (a checkpoint). If somebody reads meanwhile, it is
    left to the next time."""
    database.execute("PRAGMA busy_timeout = 0")
    try:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    finally:
        database.execute(f"PRAGMA busy_timeout = {BUSY_SECONDS * 1000:.0f}")


def _open(name: str, *, uri: bool) -> sqlite3.Connection:
    return sqlite3.connect(
        name,
        uri=uri,
        timeout=BUSY_SECONDS,
        isolation_level=None,
        check_same_thread=False,
    )
