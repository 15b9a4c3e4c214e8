"""The ledger: a durable, append-only record of every spend, and the gate that enforces a budget.

Law: when `charge` returns, the spend is on disk and stays there; when it raises, nothing may be
released. Checking and recording are one transaction under the database's write lock, so neither
threads nor processes that share the file can overspend together. The record is only as
trustworthy as the file: whoever can rewrite it, or restore an old copy, can spend again.
"""

from __future__ import annotations

import math
import os
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType

from mpc_vote.privacy.accountant import epsilon_of_totals, totals
from mpc_vote.privacy.mechanisms import (
    Level,
    Mechanism,
    check_mechanism,
    mechanism_from_json,
    one_query,
)

BUSY_SECONDS = 30.0
"""How long to wait for another process to finish its charge."""

_APPLICATION_ID = 0x6D70764C

_MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        f"PRAGMA application_id = {_APPLICATION_ID}",
        """CREATE TABLE spends (
            seq INTEGER PRIMARY KEY AUTOINCREMENT,
            round_id TEXT NOT NULL UNIQUE,
            mechanism TEXT NOT NULL,
            note TEXT NOT NULL,
            charged_at TEXT NOT NULL
        ) STRICT""",
        """CREATE TRIGGER spends_never_change BEFORE UPDATE ON spends
            BEGIN SELECT RAISE(ABORT, 'a spend is never changed'); END""",
        """CREATE TRIGGER spends_never_vanish BEFORE DELETE ON spends
            BEGIN SELECT RAISE(ABORT, 'a spend is never taken back'); END""",
    ),
)


class BudgetExhausted(Exception):
    """The charge would take the total at one level from `spent` to `asked`, above `limit`."""

    def __init__(
        self, level: Level, asked: float, spent: float, limit: float, delta: float
    ) -> None:
        super().__init__(level, asked, spent, limit, delta)
        self.level = level
        self.asked = asked
        self.spent = spent
        self.limit = limit
        self.delta = delta

    def __str__(self) -> str:
        return (
            f"the {self.level.value}-level budget allows epsilon {self.limit:.6g} at delta "
            f"{self.delta:g}: {self.spent:.6g} is spent and this would make it {self.asked:.6g}; "
            "ask for fewer queries or more noise"
        )


class AlreadyCharged(Exception):
    """The round is in the ledger: charge a new round under a new id."""

    def __init__(self, round_id: str) -> None:
        super().__init__(round_id)
        self.round_id = round_id

    def __str__(self) -> str:
        return f"round {self.round_id!r} is charged already: use a new id for a new round"


class LedgerError(Exception):
    """The file is not a ledger that this version can read."""


@dataclass(frozen=True)
class Budget:
    """The most that may ever be spent at each level, at one delta; None or infinity is no limit."""

    epsilon_agent: float | None
    epsilon_instance: float | None
    delta: float

    def __post_init__(self) -> None:
        if not 0 < self.delta < 1:
            raise ValueError(f"delta must lie strictly between 0 and 1, not {self.delta}")
        for level, limit in self.limits().items():
            if not 0 <= limit < math.inf:
                raise ValueError(
                    f"the {level.value}-level epsilon must be finite and not negative, not {limit}"
                )

    def limits(self) -> dict[Level, float]:
        """The levels that have a limit."""
        given = {Level.AGENT: self.epsilon_agent, Level.INSTANCE: self.epsilon_instance}
        return {
            level: limit
            for level, limit in given.items()
            if limit is not None and limit != math.inf
        }


@dataclass(frozen=True)
class Spend:
    """One charge, as recorded."""

    round_id: str
    mechanism: Mechanism
    note: str
    charged_at: datetime


class Ledger:
    """Spends on one SQLite file, under a budget or, with None, only recorded."""

    def __init__(self, path: Path, budget: Budget | None) -> None:
        self.path = path
        self.budget = budget
        self._lock = threading.RLock()
        self._totals: Counter[Mechanism] = Counter()
        self._read_up_to = 0
        self._db = sqlite3.connect(
            path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
        )
        try:
            self._prepare()
        except BaseException:
            self._db.close()
            raise

    def check(self, round_id: str, mechanism: Mechanism) -> None:
        """Raises what `charge` would raise now; records nothing and promises nothing."""
        check_mechanism(mechanism)
        with self._transaction():
            self._check(round_id, mechanism)

    def charge(self, round_id: str, mechanism: Mechanism, note: str = "") -> None:
        """Records the spend durably, or raises `BudgetExhausted` or `AlreadyCharged`."""
        if not round_id:
            raise ValueError("a charge needs the id of its round")
        check_mechanism(mechanism)
        with self._transaction():
            self._check(round_id, mechanism)
            self._db.execute(
                "INSERT INTO spends (round_id, mechanism, note, charged_at) VALUES (?, ?, ?, ?)",
                (round_id, mechanism.to_json(), note, datetime.now(UTC).isoformat()),
            )

    def spends(self) -> list[Spend]:
        """Every charge, oldest first."""
        with self._lock:
            rows = self._db.execute(
                "SELECT round_id, mechanism, note, charged_at FROM spends ORDER BY seq"
            ).fetchall()
        return [
            Spend(round_id, mechanism_from_json(text), note, datetime.fromisoformat(charged_at))
            for round_id, text, note, charged_at in rows
        ]

    def spent(self, level: Level, delta: float) -> float:
        """The epsilon of everything ever charged."""
        with self._lock:
            self._read_new()
            return epsilon_of_totals(self._totals, level, delta)

    def remaining(self) -> dict[Level, float]:
        """Limit less spend for each limited level. A guide only: epsilons do not simply add."""
        if self.budget is None:
            return {}
        delta = self.budget.delta
        return {
            level: max(0.0, limit - self.spent(level, delta))
            for level, limit in self.budget.limits().items()
        }

    def close(self) -> None:
        """Closes the file; the ledger can't be used afterwards."""
        with self._lock:
            self._db.close()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _check(self, round_id: str, mechanism: Mechanism) -> None:
        known = self._db.execute("SELECT 1 FROM spends WHERE round_id = ?", (round_id,))
        if known.fetchone() is not None:
            raise AlreadyCharged(round_id)
        self._read_new()
        self._check_budget(mechanism)

    def _check_budget(self, mechanism: Mechanism) -> None:
        if self.budget is None:
            return
        delta = self.budget.delta
        after = self._totals + totals([mechanism])
        for level, limit in self.budget.limits().items():
            asked = epsilon_of_totals(after, level, delta)
            if not asked <= limit:
                spent = epsilon_of_totals(self._totals, level, delta)
                raise BudgetExhausted(level, asked, spent, limit, delta)

    def _read_new(self) -> None:
        """Adds the spends recorded since the last look, by whichever process, to the totals."""
        rows = self._db.execute(
            "SELECT seq, mechanism FROM spends WHERE seq > ? ORDER BY seq", (self._read_up_to,)
        ).fetchall()
        read = [(seq, mechanism_from_json(text)) for seq, text in rows]
        for seq, mechanism in read:
            self._totals[one_query(mechanism)] += mechanism.queries
            self._read_up_to = seq

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """Holds the file's write lock from the first read; commits, or leaves no trace."""
        with self._lock:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise

    def _prepare(self) -> None:
        try:
            self._use_wal()
            self._db.execute("PRAGMA synchronous = FULL")
            with self._transaction():
                self._migrate()
        except sqlite3.DatabaseError as error:
            raise LedgerError(f"{self.path} can't be opened as a ledger: {error}") from error
        directory = os.open(self.path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    def _use_wal(self) -> None:
        """Switches the journal, which SQLite does not wait to do while another opener writes."""
        deadline = time.monotonic() + BUSY_SECONDS
        while True:
            try:
                self._db.execute("PRAGMA journal_mode = WAL")
                return
            except sqlite3.OperationalError:
                if time.monotonic() > deadline:
                    raise
            with self._transaction():
                pass

    def _migrate(self) -> None:
        (version,) = self._db.execute("PRAGMA user_version").fetchone()
        (application,) = self._db.execute("PRAGMA application_id").fetchone()
        (tables,) = self._db.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if application != _APPLICATION_ID and (version or tables):
            raise LedgerError(f"{self.path} is a database, but no ledger: give the ledger its own")
        if version > len(_MIGRATIONS):
            raise LedgerError(
                f"{self.path} has schema {version}, this version knows up to "
                f"{len(_MIGRATIONS)}: use the release that wrote it, or a newer one"
            )
        for number, statements in enumerate(_MIGRATIONS[version:], start=version + 1):
            for statement in statements:
                self._db.execute(statement)
            self._db.execute(f"PRAGMA user_version = {number}")
