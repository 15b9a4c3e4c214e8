"""One-time tokens with which new agents enrol.

A token stands for one name, until it is used or expires. Only its SHA-256 is stored: who reads the
database can't enrol with it. Tokens are looked up by that hash, so the time that a look-up takes
says something of a hash at most, and nothing of the token, which has 256 random bits.
"""

from __future__ import annotations

import contextlib
import hashlib
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from mpc_vote import database
from mpc_vote.app.process import CommandError

TOKENS = "enrolment.db"

_TOKEN_BYTES = 32


class Tokens:
    """The tokens of a coordinator, in a database that its command line writes to as well."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._db = database.connect_durable(path)
        self._db.execute(
            "CREATE TABLE IF NOT EXISTS tokens (digest BLOB PRIMARY KEY, name TEXT NOT NULL, "
            "expires_at REAL NOT NULL, used_at REAL) STRICT"
        )

    def make(
        self, names: Iterable[str], seconds: float, *, renew: bool = False, keep: bool = False
    ) -> dict[str, str]:
        """A token per name, all or none.

        For a name that has a live token, or has enrolled: `keep` makes none, `renew` makes one and
        withdraws the other, and without either the call is refused.
        """
        made = {}
        with self._lock, self._transaction():
            now = self._clock()
            for name in names:
                state = None if renew else self._state(name, now)
                if state is not None and not keep:
                    raise CommandError(
                        f"{name} {state}; nothing was made. Ask with --renew to give it another "
                        "token, or with --keep to pass over it"
                    )
                if state is None:
                    made[name] = self._replace(name, now + seconds)
        return made

    def redeem(self, token: str) -> str | None:
        """The name that a token stands for, which is used up on disk when this returns; None for
        one that is unknown, used or expired."""
        now = self._clock()
        with self._lock:
            rows = self._db.execute(
                "UPDATE tokens SET used_at = ? WHERE digest = ? AND used_at IS NULL "
                "AND expires_at > ? RETURNING name",
                (now, _digest(token), now),
            ).fetchall()
        return str(rows[0][0]) if rows else None

    def close(self) -> None:
        """Closes the database."""
        with self._lock:
            self._db.close()

    def _state(self, name: str, now: float) -> str | None:
        """What is known of a name that would be in the way of a new token."""
        rows = self._db.execute(
            "SELECT used_at FROM tokens WHERE name = ? "
            "AND (used_at IS NOT NULL OR expires_at > ?) ORDER BY used_at DESC",
            (name, now),
        ).fetchall()
        if not rows:
            return None
        return "has a token that is not used" if rows[0][0] is None else "has enrolled"

    def _replace(self, name: str, expires_at: float) -> str:
        token = secrets.token_urlsafe(_TOKEN_BYTES)
        self._db.execute("DELETE FROM tokens WHERE name = ? AND used_at IS NULL", (name,))
        self._db.execute(
            "INSERT INTO tokens (digest, name, expires_at) VALUES (?, ?, ?)",
            (_digest(token), name, expires_at),
        )
        return token

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()
