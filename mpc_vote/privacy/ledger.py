"""The ledger: a durable, append-only record of every spend, and the gate that enforces a budget.

When `charge` returns, the spend is on disk and stays there; when it raises, nothing may be
released. Checking and recording are one transaction under the database's write lock, so neither
threads nor processes that share the file can overspend together. The record is only as
trustworthy as the file: whoever can rewrite it, or restore an old copy, can spend again.

What was spent is replayed in its order through the filter that holds the limits
(`mpc_vote.privacy.charging`). Certificates that this takes are made before the lock is.

The limits that a role was started with are noted beside the spends, so that `LedgerView` can tell
what is left without asking the role. A ledger also has a random id, which is public, and an owner,
the first who opened it in a name: nobody else's spends get into it.
"""

from __future__ import annotations

import abc
import math
import os
import re
import secrets
import sqlite3
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from mpc_vote import database
from mpc_vote.privacy.accountant import check_delta
from mpc_vote.privacy.charging import PREFIX, Against, Charges, account_against, prepare
from mpc_vote.privacy.mechanisms import (
    Level,
    Mechanism,
    check_mechanism,
    mechanism_from_json,
    with_queries,
)
from mpc_vote.privacy.rounding import round_down, round_up

"""How long to wait for another process to finish its charge."""

LEDGER_ID = re.compile(r"[0-9a-f]{32}")
"""What a ledger's id looks like."""

MAX_QUERIES_COUNTED = 1 << 53
"""No answer of `affordable` is larger: this many single queries are as good as no limit."""

_APPLICATION_ID = 0x6D70764C
_BUDGETS_SINCE = 2
_ORIGIN_SINCE = 3
_AGAINST_SINCE = 4
_ID_BYTES = 16
# What a file that is no ledger, or not whole, may hold in the place of text and numbers.
_DAMAGED = (sqlite3.DatabaseError, TypeError, ValueError)

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
    (
        """CREATE TABLE budgets (
            seq INTEGER PRIMARY KEY AUTOINCREMENT,
            epsilon_agent REAL,
            epsilon_instance REAL,
            delta REAL NOT NULL,
            set_at TEXT NOT NULL
        ) STRICT""",
    ),
    (
        """CREATE TABLE origin (
            only INTEGER PRIMARY KEY CHECK (only = 1),
            ledger_id TEXT NOT NULL,
            owner TEXT
        ) STRICT""",
        """CREATE TRIGGER origin_never_changes BEFORE UPDATE ON origin
            WHEN old.owner IS NOT NULL OR new.ledger_id <> old.ledger_id
            BEGIN SELECT RAISE(ABORT, 'a ledger keeps its id and its owner'); END""",
        """CREATE TRIGGER origin_never_vanishes BEFORE DELETE ON origin
            BEGIN SELECT RAISE(ABORT, 'a ledger keeps its id and its owner'); END""",
    ),
    # Spends without what they decide are charged as noisy totals, whomever limits are held against.
    ("ALTER TABLE budgets ADD COLUMN against TEXT NOT NULL DEFAULT 'totals'",),
)


@dataclass(frozen=True)
class Standing:
    """Epsilon at one level: what is spent, what it would become, and the limit if there is one."""

    level: Level
    spent: float
    asked: float
    limit: float | None

    @property
    def exceeded(self) -> bool:
        """Whether the limit forbids what is asked for."""
        return self.limit is not None and not self.asked <= self.limit

    @property
    def left(self) -> float | None:
        """Limit less spend, if there is a limit. A guide only: epsilons do not simply add."""
        return None if self.limit is None else max(0.0, self.limit - self.spent)


class BudgetExhausted(Exception):
    """A limit forbids the charge: where both levels stand, and how many queries would still fit.

    `promised` other rounds count as spent there.
    """

    def __init__(
        self,
        standings: tuple[Standing, ...],
        delta: float,
        fitting: int,
        promised: int,
        against: Against = Against.TOTALS,
    ) -> None:
        super().__init__(standings, delta, fitting, promised, against)
        self.against = against
        self.standings = standings
        self.delta = delta
        self.fitting = fitting
        self.promised = promised

    @property
    def over(self) -> Standing:
        """The first level whose limit is exceeded."""
        return next(standing for standing in self.standings if standing.exceeded)

    @property
    def figures(self) -> dict[str, Any]:
        """All figures by name, for programs."""
        told: dict[str, Any] = {"delta": self.delta, "fitting": self.fitting}
        told["against"] = self.against.value
        for standing in self.standings:
            level = standing.level.value
            told |= {f"spent_{level}": standing.spent, f"asked_{level}": standing.asked}
            told[f"limit_{level}"] = standing.limit
        return told

    @property
    def why(self) -> str:
        """What is left at the level that is exceeded, what is asked for, and what would fit."""
        over = self.over
        assert over.limit is not None and over.left is not None, "only a limit can be exceeded"
        promised = f", with {self.promised} rounds under way" if self.promised else ""
        return (
            f"epsilon {round_down(over.left)} of {round_down(over.limit)} is left and it would "
            f"bring the spend to {round_up(over.asked)} (delta {self.delta:g}{promised}; "
            f"{self.fitting} queries with this noise would fit)"
        )

    def __str__(self) -> str:
        level = self.over.level.value
        return f"the {level}-level budget forbids it: {self.why}; ask for fewer or more noise"


class AlreadyCharged(Exception):
    """The round is in the ledger: charge a new round under a new id."""

    def __init__(self, round_id: str) -> None:
        super().__init__(round_id)
        self.round_id = round_id

    def __str__(self) -> str:
        return f"round {self.round_id!r} is charged already: use a new id for a new round"


class LedgerError(Exception):
    """There is no ledger, or none that this version can read."""


@dataclass(frozen=True)
class Budget:
    """The most that may ever be spent at each level, at one delta, held against those who may see
    noisy totals or labels only; None or infinity is no limit."""

    epsilon_agent: float | None
    epsilon_instance: float | None
    delta: float
    against: Against = Against.TOTALS

    def __post_init__(self) -> None:
        check_delta(self.delta)
        object.__setattr__(self, "against", Against(self.against))
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


class _Exceeded(Exception):
    """A limit forbids the charge of a mechanism."""

    def __init__(self, promised: Sequence[Mechanism], mechanism: Mechanism) -> None:
        super().__init__(promised, mechanism)
        self.promised = promised
        self.mechanism = mechanism


class _Records(abc.ABC):
    """What can be read of a ledger's file."""

    def __init__(
        self,
        path: Path,
        connect: Callable[[Path], sqlite3.Connection],
        budget: Budget | None,
    ) -> None:
        self.path = path
        self.budget = budget
        # Of schemas before there were any, a reader finds none.
        self.ledger_id = ""
        self.owner: str | None = None
        self._lock = threading.RLock()
        self._charges: dict[tuple[Level, Against], Charges] = {}
        self._spent: list[Mechanism] = []
        self._read_up_to = 0
        self._db = connect(path)
        try:
            self._prepare()
        except BaseException:
            self._db.close()
            raise

    def spends(self) -> list[Spend]:
        """Every charge, oldest first."""
        with self._lock, self._reading():
            rows = self._db.execute(
                "SELECT round_id, mechanism, note, charged_at FROM spends ORDER BY seq"
            ).fetchall()
            return [
                Spend(round_id, mechanism_from_json(text), note, datetime.fromisoformat(charged_at))
                for round_id, text, note, charged_at in rows
            ]

    @property
    def against(self) -> Against:
        """Whom its limits, or if it has none its figures, are held against."""
        return Against.TOTALS if self.budget is None else self.budget.against

    def spent(
        self, level: Level, delta: float, *planned: Mechanism, against: Against | None = None
    ) -> float:
        """The epsilon of everything ever charged, and of what is planned besides in any order."""
        prepare(planned, level)
        with self._lock:
            self._read_new()
            return self._epsilon(level, delta, planned, against or self.against)

    def figures(self, delta: float, *planned: Mechanism) -> dict[str, float]:
        """`spent` at both levels, against whoever may see totals and those who see labels only."""
        return {
            f"total_{PREFIX[against]}epsilon_{level.value}": self.spent(
                level, delta, *planned, against=against
            )
            for against in Against
            for level in Level
        }

    def remaining(self) -> dict[Level, float]:
        """Limit less spend for each limited level. A guide only: epsilons do not simply add."""
        if self.budget is None:
            return {}
        delta = self.budget.delta
        return {
            level: max(0.0, limit - self.spent(level, delta))
            for level, limit in self.budget.limits().items()
        }

    def affordable(self, mechanism: Mechanism) -> int | None:
        """How many single queries of this mechanism the budget still allows; None: no limit."""
        check_mechanism(mechanism)
        if self.budget is None or not self.budget.limits():
            return None
        for level in self.budget.limits():
            prepare([mechanism], level)
        with self._lock:
            self._read_new()
            return self._fitting([], mechanism)

    def close(self) -> None:
        """Closes the file; the ledger can't be used afterwards."""
        with self._lock:
            self._db.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @abc.abstractmethod
    def _prepare(self) -> None:
        """Makes sure that the open file is a ledger."""

    def _schema(self) -> int:
        """The file's schema, 0 if it has none; refuses other databases and newer schemas."""
        version: int = self._db.execute("PRAGMA user_version").fetchone()[0]
        (application,) = self._db.execute("PRAGMA application_id").fetchone()
        (tables,) = self._db.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if application != _APPLICATION_ID and (version or tables):
            raise LedgerError(f"{self.path} is a database, but no ledger: give the ledger its own")
        if version > len(_MIGRATIONS):
            raise LedgerError(
                f"{self.path} has schema {version}, this version knows up to "
                f"{len(_MIGRATIONS)}: use the release that wrote it, or a newer one"
            )
        return version

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Says which file it is that does not hold what was written."""
        try:
            yield
        except _DAMAGED as error:
            raise LedgerError(f"the spends in {self.path} can't be read: {error}") from error

    def _noted_budget(self, schema: int) -> Budget | None:
        against = ", against" if schema >= _AGAINST_SINCE else ""
        row = self._db.execute(
            f"SELECT epsilon_agent, epsilon_instance, delta{against} FROM budgets "
            "ORDER BY seq DESC LIMIT 1"
        ).fetchone()
        return None if row is None else Budget(*row)

    def _read_origin(self) -> None:
        row = self._db.execute("SELECT ledger_id, owner FROM origin").fetchone()
        if row is None:
            raise LedgerError(f"{self.path} has lost its id: put a whole copy back")
        self.ledger_id, self.owner = row

    def _read_new(self) -> None:
        """Takes note of the spends recorded since the last look, by whichever process."""
        with self._reading():
            rows = self._db.execute(
                "SELECT seq, mechanism FROM spends WHERE seq > ? ORDER BY seq", (self._read_up_to,)
            ).fetchall()
            read = [(seq, mechanism_from_json(text)) for seq, text in rows]
        for seq, mechanism in read:
            self._spent.append(mechanism)
            self._read_up_to = seq

    def _epsilon(
        self, level: Level, delta: float, later: Sequence[Mechanism], against: Against
    ) -> float:
        """Of what was read so far and what may follow."""
        account = level, account_against(against, delta)
        charges = self._charges.setdefault(account, Charges(*account))
        charges.add_new(self._spent)
        return charges.epsilon(delta, later)

    def _within(self, later: Sequence[Mechanism]) -> bool:
        """Whether what may follow stays within the limits."""
        assert self.budget is not None, "only a budget has limits"
        delta, against = self.budget.delta, self.budget.against
        return all(
            self._epsilon(level, delta, later, against) <= limit
            for level, limit in self.budget.limits().items()
        )

    def _fitting(self, promised: Sequence[Mechanism], mechanism: Mechanism) -> int:
        """The most single queries of a mechanism that may follow, besides what is promised."""

        def exceeds(queries: int) -> bool:
            return not self._within([*promised, with_queries(mechanism, queries)])

        beyond = 1
        while beyond < MAX_QUERIES_COUNTED and not exceeds(beyond):
            beyond *= 2
        return bisect_left(range(1, beyond), True, key=exceeds)


class LedgerView(_Records):
    """A ledger as it was when opened, with the limits noted in it; safe beside its role."""

    def __init__(self, path: Path) -> None:
        if not path.is_file():
            raise LedgerError(
                f"there is no ledger at {path}: name the folder of an agent or coordinator that "
                "was started before"
            )
        super().__init__(path, database.read_only, None)

    def _prepare(self) -> None:
        try:
            # All that is read is of one moment.
            self._db.execute("BEGIN")
            version = self._schema()
            if version == 0:
                raise LedgerError(f"{self.path} holds no ledger yet: start its role first")
            if version >= _BUDGETS_SINCE:
                self.budget = self._noted_budget(version)
            if version >= _ORIGIN_SINCE:
                self._read_origin()
        except sqlite3.OperationalError as error:
            raise LedgerError(
                f"{self.path} can't be read: {error}; read it as the user that its role runs as"
            ) from error
        except _DAMAGED as error:
            raise LedgerError(f"{self.path} is no ledger: {error}") from error


class Ledger(_Records):
    """Spends on one SQLite file, under a budget or, with None, only recorded.

    An `owner` takes a ledger that is new, or older than owners are, for its own for ever.
    """

    def __init__(self, path: Path, budget: Budget | None, owner: str | None = None) -> None:
        self._claimant = owner
        super().__init__(path, database.connect, budget)

    def check(
        self, round_id: str, mechanism: Mechanism, promised: Mapping[str, Mechanism] | None = None
    ) -> None:
        """Raises what `charge` would raise after the promised rounds; records nothing.

        It is no promise itself: whoever gives one passes it on to the next check.
        """
        others = promised or {}
        self._prepare_charge(mechanism, *others.values())
        with self._refusing(), self._transaction():
            self._check(
                round_id, mechanism, [m for r, m in others.items() if not self._is_charged(r)]
            )

    def charge(self, round_id: str, mechanism: Mechanism, note: str = "") -> None:
        """Records the spend durably, or raises `BudgetExhausted` or `AlreadyCharged`."""
        if not round_id:
            raise ValueError("a charge needs the id of its round")
        self._prepare_charge(mechanism)
        with self._refusing(), self._transaction():
            self._check(round_id, mechanism, [])
            self._db.execute(
                "INSERT INTO spends (round_id, mechanism, note, charged_at) VALUES (?, ?, ?, ?)",
                (round_id, mechanism.to_json(), note, _now()),
            )
        self._settle()

    def _check(self, round_id: str, mechanism: Mechanism, promised: list[Mechanism]) -> None:
        if self._is_charged(round_id):
            raise AlreadyCharged(round_id)
        self._read_new()
        if self.budget is not None and not self._within([*promised, mechanism]):
            raise _Exceeded(promised, mechanism)

    @contextmanager
    def _refusing(self) -> Iterator[None]:
        """Says why, once nothing is locked any more: that may take certificates of its own."""
        try:
            yield
        except _Exceeded as exceeded:
            later = [*exceeded.promised, exceeded.mechanism]
            for level in Level:
                prepare(later, level)
            with self._lock:
                raise self._exhausted(exceeded.promised, exceeded.mechanism) from None

    def _prepare_charge(self, *mechanisms: Mechanism) -> None:
        """What takes long, before anything is locked."""
        for mechanism in mechanisms:
            check_mechanism(mechanism)
        if self.budget is None:
            return
        for level in self.budget.limits():
            prepare(mechanisms, level)
        with self._lock:
            self._read_new()
            self._within([])

    def _exhausted(self, promised: Sequence[Mechanism], mechanism: Mechanism) -> BudgetExhausted:
        assert self.budget is not None, "only a budget is exhausted"
        limits, delta, against = self.budget.limits(), self.budget.delta, self.budget.against
        standings = tuple(
            Standing(
                level,
                self._epsilon(level, delta, promised, against),
                self._epsilon(level, delta, [*promised, mechanism], against),
                limits.get(level),
            )
            for level in Level
        )
        fitting = self._fitting(promised, mechanism)
        return BudgetExhausted(standings, delta, fitting, len(promised), against)

    def _is_charged(self, round_id: str) -> bool:
        known = self._db.execute("SELECT 1 FROM spends WHERE round_id = ?", (round_id,))
        return known.fetchone() is not None

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
            database.sync_fully(self._db)
            with self._transaction():
                if not self._schema() and self.path.stat().st_size:
                    raise LedgerError(
                        f"{self.path} holds no spends, not even none: it was copied or moved "
                        f"without {self.path.name}-wal, which belongs to it; put both back"
                    )
                self._migrate()
                self._claim()
                if self.budget is not None:
                    self._note(self.budget)
            # Not before: a file in this mode may be empty while all that was written lies beside.
            self._use_wal()
            self._settle()
        except _DAMAGED as error:
            raise LedgerError(f"{self.path} can't be opened as a ledger: {error}") from error
        directory = os.open(self.path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    def _use_wal(self) -> None:
        """Switches the journal, which SQLite does not wait to do while another opener writes."""
        deadline = time.monotonic() + database.BUSY_SECONDS
        while True:
            try:
                database.use_wal(self._db)
                return
            except sqlite3.OperationalError:
                if time.monotonic() > deadline:
                    raise
            with self._transaction():
                pass

    def _settle(self) -> None:
        """Writes the log back into the file itself, or if somebody reads, leaves it to the next
        time."""
        with self._lock:
            database.settle(self._db)

    def _migrate(self) -> None:
        version = self._schema()
        for number, statements in enumerate(_MIGRATIONS[version:], start=version + 1):
            for statement in statements:
                self._db.execute(statement)
            if number == _ORIGIN_SINCE:
                fresh = secrets.token_hex(_ID_BYTES)
                self._db.execute("INSERT INTO origin (only, ledger_id) VALUES (1, ?)", (fresh,))
            self._db.execute(f"PRAGMA user_version = {number}")

    def _claim(self) -> None:
        """Makes sure of the owner before anything is written in its name."""
        self._read_origin()
        if self._claimant is None or self._claimant == self.owner:
            return
        if self.owner is not None:
            raise LedgerError(
                f"{self.path} is the ledger of {self.owner}, not of {self._claimant}: give each "
                "its own data folder, and put back the one that belongs here"
            )
        self._db.execute("UPDATE origin SET owner = ?", (self._claimant,))
        self.owner = self._claimant

    def _note(self, budget: Budget) -> None:
        """Writes the limits down for readers, where they are not those noted last."""
        limits = budget.limits()
        row = (limits.get(Level.AGENT), limits.get(Level.INSTANCE), budget.delta, budget.against)
        if self._noted_budget(len(_MIGRATIONS)) != Budget(*row):
            self._db.execute(
                "INSERT INTO budgets (epsilon_agent, epsilon_instance, delta, against, set_at) "
                "VALUES (?, ?, ?, ?, ?)",
                (*row, _now()),
            )


def _now() -> str:
    return datetime.now(UTC).isoformat()
