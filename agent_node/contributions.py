"""How often each record has contributed, on disk before an answer leaves: an agent's counters.

They are the agent's, not a task's or a file's: a record is known by its name
(`mpc_vote.data.identity`) in every task, and when its file is read again. One transaction writes
down a round and all counters of its records, the same number of bytes whichever have changed. A
round that is in the file is never answered again, and what the file does not have was never sent:
so a crash at any point neither counts twice nor forgets what others have seen.

The file belongs to the ledger beside it, whose spends say what was asked. A round of the ledger
that this file lacks, because it is an old copy, or new, counts as one without a bound
(`rounds`, and `mpc_vote.privacy.contributions`).
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np
import numpy.typing as npt

from agent_node.serving import Serving
from mpc_vote import database
from mpc_vote.app.process import CommandError
from mpc_vote.data.identity import DTYPE, ID_BYTES, IdentityArray
from mpc_vote.voting.ballots import BallotKind

if TYPE_CHECKING:
    from mpc_vote.learning.voters.bounded import BoundedVoter, CountArray, UsedArray

FILE = "contributions.db"

_APPLICATION_ID = 0x6D707663
_SCHEMA = 1
_PART = 1 << 16
_USED = np.dtype("<u4")
_TABLES = (
    f"PRAGMA application_id = {_APPLICATION_ID}",
    """CREATE TABLE origin (
        only INTEGER PRIMARY KEY CHECK (only = 1),
        ledger_id TEXT NOT NULL
    ) STRICT""",
    """CREATE TABLE rounds (
        seq INTEGER PRIMARY KEY AUTOINCREMENT,
        round_id TEXT NOT NULL UNIQUE,
        bound INTEGER NOT NULL
    ) STRICT""",
    # Records by number, some thousands in a row; names never change, counters do with every round.
    "CREATE TABLE names (part INTEGER PRIMARY KEY, names BLOB NOT NULL) STRICT",
    "CREATE TABLE counters (part INTEGER PRIMARY KEY, used BLOB NOT NULL) STRICT",
    f"PRAGMA user_version = {_SCHEMA}",
)
_DAMAGED = (sqlite3.DatabaseError, TypeError, ValueError)


class ContributionsError(CommandError):
    """The file of counters can't be used; the sentence says what to do."""


class AlreadyAnswered(Exception):
    """The round is in the file: it was answered, perhaps before a restart."""


class Contributions:
    """The counters of one agent's records, for the ledger of this id."""

    def __init__(self, path: Path, ledger_id: str) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._db = database.connect(path)
        try:
            with self._reading():
                self._open(ledger_id)
                self._names, self._used = self._read()
        except BaseException:
            self._db.close()
            raise

    def close(self) -> None:
        """Closes the file."""
        with self._lock:
            self._db.close()

    def rounds(self) -> dict[str, int]:
        """The rounds that counters were kept for, and the bound that each had."""
        with self._lock, self._reading():
            return dict(self._db.execute("SELECT round_id, bound FROM rounds ORDER BY seq"))

    def of(self, names: IdentityArray) -> RecordCounters:
        """Counters of these records; who is new starts at none, who was here before goes on."""
        with self._lock:
            order = np.argsort(self._names, kind="stable")
            known = self._names[order]
            at = np.searchsorted(known, names)
            found = at < len(known)
            found[found] = known[at[found]] == names[found]
            fresh = np.unique(names[~found])
            places = np.empty(len(names), dtype=np.int64)
            places[found] = order[at[found]]
            places[~found] = len(known) + np.searchsorted(fresh, names[~found])
            if len(fresh):
                self._add(fresh)
            return RecordCounters(self, places)

    def used(self, places: npt.NDArray[np.int64]) -> UsedArray:
        """How often these records were counted."""
        with self._lock:
            return self._used[places]

    def keep(
        self, round_id: str, bound: int, places: npt.NDArray[np.int64], used: UsedArray
    ) -> None:
        """Writes down a round and what its records now have been counted, durably."""
        with self._lock:
            after = self._used.copy()
            after[places] = used
            with self._transaction():
                try:
                    self._db.execute(
                        "INSERT INTO rounds (round_id, bound) VALUES (?, ?)", (round_id, bound)
                    )
                except sqlite3.IntegrityError as error:
                    raise AlreadyAnswered(round_id) from error
                self._write(after, 0)
            self._used = after

    def check_new(self, round_id: str) -> None:
        """Refuses a round that was answered before."""
        with self._lock:
            known = self._db.execute("SELECT 1 FROM rounds WHERE round_id = ?", (round_id,))
            if known.fetchone() is not None:
                raise AlreadyAnswered(round_id)

    def _add(self, fresh: IdentityArray) -> None:
        """Takes in new records; only parts that they are in are written."""
        names = np.concatenate([self._names, fresh])
        used = np.concatenate([self._used, np.zeros(len(fresh), _USED)])
        first = len(self._names) // _PART
        with self._transaction():
            for part in range(first, -(-len(names) // _PART)):
                held = names[part * _PART : (part + 1) * _PART].tobytes()
                self._db.execute("REPLACE INTO names (part, names) VALUES (?, ?)", (part, held))
            self._write(used, first)
        self._names, self._used = names, used

    def _write(self, used: UsedArray, first: int) -> None:
        for part in range(first, -(-len(used) // _PART)):
            held = used[part * _PART : (part + 1) * _PART].astype(_USED).tobytes()
            self._db.execute("REPLACE INTO counters (part, used) VALUES (?, ?)", (part, held))

    def _read(self) -> tuple[IdentityArray, UsedArray]:
        rows = self._db.execute("SELECT part, names FROM names ORDER BY part").fetchall()
        counters = self._db.execute("SELECT part, used FROM counters ORDER BY part").fetchall()
        if [part for part, _ in rows] != [part for part, _ in counters]:
            raise ValueError("names and counters are not of the same records")
        names = np.frombuffer(b"".join(held for _, held in rows), dtype=DTYPE)
        used = np.frombuffer(b"".join(held for _, held in counters), dtype=_USED)
        if len(names) != len(used) or any(len(held) != _PART * ID_BYTES for _, held in rows[:-1]):
            raise ValueError("names and counters are not of the same records")
        return names.copy(), used.astype(np.uint32)

    def _open(self, ledger_id: str) -> None:
        database.sync_fully(self._db)
        with self._transaction():
            (version,) = self._db.execute("PRAGMA user_version").fetchone()
            (application,) = self._db.execute("PRAGMA application_id").fetchone()
            (tables,) = self._db.execute("SELECT count(*) FROM sqlite_master").fetchone()
            if application != _APPLICATION_ID and self.path.stat().st_size:
                raise ContributionsError(
                    f"{self.path} does not hold counters of contributions: it is another file, or "
                    f"was copied without {self.path.name}-wal; put both back"
                )
            if version > _SCHEMA:
                raise ContributionsError(
                    f"{self.path} was written by a newer release: use that one"
                )
            if not tables:
                for statement in _TABLES:
                    self._db.execute(statement)
                self._db.execute("INSERT INTO origin VALUES (1, ?)", (ledger_id,))
            (known,) = self._db.execute("SELECT ledger_id FROM origin").fetchone()
        if known != ledger_id:
            raise ContributionsError(
                f"{self.path} belongs to ledger {known}, and this agent spends from {ledger_id}: "
                "put both files of one agent into its folder"
            )
        database.use_wal(self._db)
        database.settle(self._db)
        folder = os.open(self.path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except _DAMAGED as error:
            raise ContributionsError(
                f"{self.path} can't be read: {error}; put back a whole copy, with the ledger of "
                "the same moment"
            ) from error

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """Commits, or leaves no trace."""
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise


class RecordCounters:
    """The counters of the records of one file."""

    def __init__(self, kept: Contributions, places: npt.NDArray[np.int64]) -> None:
        self._kept = kept
        self._places = places

    def used(self) -> UsedArray:
        """Of each record, in the order in which they were named."""
        return self._kept.used(self._places)

    def keep(self, round_id: str, bound: int, used: UsedArray) -> None:
        """Writes a round down, before anything of it leaves."""
        self._kept.keep(round_id, bound, self._places, used)

    def check_new(self, round_id: str) -> None:
        """Refuses a round that was answered before."""
        self._kept.check_new(round_id)


@contextmanager
def counted(
    servings: Sequence[Serving], folder: Path, ledger_id: str
) -> Iterator[tuple[list[Serving], Contributions | None]]:
    """Servings with voters that count, where their task bounds contributions, and the file that all
    of them share; none where no task does."""
    # An agent makes no other voter for such a task.
    bounded = {
        number: cast("BoundedVoter", one.voter)
        for number, one in enumerate(servings)
        if one.task is not None and one.task.vote.max_contributions is not None
    }
    if not bounded:
        yield list(servings), None
        return
    with closing(Contributions(folder / FILE, ledger_id)) as kept:
        found = list(servings)
        for number, voter in bounded.items():
            counting = CountingVoter(voter, kept.of(voter.identities))
            found[number] = replace(found[number], voter=counting)
        yield found, kept


class CountingVoter:
    """A voter of bounded contributions with counters that last: it answers a round once."""

    def __init__(self, voter: BoundedVoter, counters: RecordCounters) -> None:
        self.kinds: tuple[BallotKind, ...] = voter.kinds
        self.k = voter.k
        self.bound = voter.bound
        self._voter = voter
        self._counters = counters

    def vote(self, queries: npt.NDArray[np.generic], kind: BallotKind) -> CountArray:
        """A vote without a round would be one that nobody counts."""
        raise ValueError("this voter answers rounds only, each once")

    def check_new(self, round_id: str) -> None:
        """Refuses a round that was answered before."""
        self._counters.check_new(round_id)

    def answer(self, round_id: str, queries: npt.NDArray[np.generic]) -> CountArray:
        """The votes of a round, once it is written down that records have cast them."""
        self._counters.check_new(round_id)
        counts, used = self._voter.answer(queries, self._counters.used())
        self._counters.keep(round_id, self.bound, used)
        return counts
