"""What the coordinator keeps under one data directory: rounds, their queries and labels, models,
tasks that it has served, and by which ledger it knows each agent.

SQLite for what is small (WAL, full sync: a commit is on disk when it returns), plain files for
arrays and models, written beside their place and renamed into it. Labels here were released by the
vote; nothing else about any agent's data ever arrives.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mpc_vote import database
from mpc_vote.errors import ErrorKind, VoteError
from mpc_vote.proto.mpcvote.v1 import common_pb2, label_pb2, model_pb2
from mpc_vote.tasks import Task
from mpc_vote.voting.ballots import BALLOTS
from mpc_vote.voting.spec import Spec

DATABASE = "coordinator.db"

_MIGRATIONS = (
    """
    CREATE TABLE rounds (
        round_id TEXT PRIMARY KEY,
        client TEXT NOT NULL,
        request_id TEXT,
        plan BLOB NOT NULL,
        spec BLOB NOT NULL,
        state INTEGER NOT NULL,
        reason TEXT NOT NULL DEFAULT '',
        opened_ms INTEGER NOT NULL,
        completed BLOB,
        labels BLOB,
        UNIQUE (client, request_id)
    ) STRICT;
    CREATE TABLE models (
        client TEXT NOT NULL,
        version INTEGER NOT NULL,
        description BLOB NOT NULL,
        PRIMARY KEY (client, version)
    ) STRICT;
    """,
    """
    CREATE TABLE agents (
        name TEXT PRIMARY KEY,
        ledger_id TEXT NOT NULL
    ) STRICT;
    """,
    """
    CREATE TABLE tasks (
        digest BLOB PRIMARY KEY,
        content BLOB NOT NULL
    ) STRICT;
    """,
)

OPEN = label_pb2.ROUND_STATE_OPEN
COMPLETE = label_pb2.ROUND_STATE_COMPLETE
FAILED = label_pb2.ROUND_STATE_FAILED

Labels = npt.NDArray[np.uint32]


@dataclass(frozen=True)
class RoundRecord:
    """A round as it is on disk."""

    round_id: str
    client: str
    request_id: str
    plan: bytes
    spec: common_pb2.RoundSpec
    state: label_pb2.RoundState.ValueType
    reason: str
    opened_ms: int
    completed: label_pb2.RoundCompleted | None
    labels: Labels | None

    @property
    def width(self) -> int:
        """Labels per query."""
        kind = BALLOTS.by_code(self.spec.ballot)
        return 1 if kind is None else kind.width(self.spec.classes)

    @property
    def attributes(self) -> bool:
        """Whether its labels are attributes."""
        kind = BALLOTS.by_code(self.spec.ballot)
        return kind is not None and kind.attributes

    def summary(self) -> label_pb2.RoundSummary:
        """The record as clients see it."""
        return label_pb2.RoundSummary(
            round_id=self.round_id,
            state=self.state,
            reason=self.reason,
            queries=self.spec.queries,
            classes=self.spec.classes,
            ballot=self.spec.ballot,
            sigma=self.spec.sigma,
            opened_unix_ms=self.opened_ms,
            cost=self.completed.cost if self.completed else None,
            task=self.spec.task,
            task_digest=self.spec.task_digest,
            queries_digest=self.spec.queries_digest,
            request_id=self.request_id,
        )


class Archive:
    """The coordinator's memory; safe to use from several threads."""

    def __init__(self, directory: Path) -> None:
        self._queries = directory / "queries"
        self._models = directory / "models"
        for folder in (directory, self._queries, self._models):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._lock = threading.Lock()
        self._db = database.connect_durable(directory / DATABASE)
        self._migrate()

    def close(self) -> None:
        """Closes the database."""
        with self._lock:
            self._db.close()

    # rounds

    def open_round(
        self,
        client: str,
        request_id: str,
        plan: bytes,
        spec: Spec,
        queries: npt.NDArray[Any],
    ) -> None:
        """Writes down a round and its queries; a client uses a request id once."""
        with _replaced(self.queries_path(spec.round_id)) as part, part.open("wb") as file:
            np.save(file, queries, allow_pickle=False)
        row = (spec.round_id, client, request_id or None, plan, spec.wire, OPEN, _now_ms())
        try:
            with self._lock:
                self._db.execute(
                    "INSERT INTO rounds "
                    "(round_id, client, request_id, plan, spec, state, opened_ms) "
                    "VALUES (?, ?, ?, ?, ?, ?, ?)",
                    row,
                )
        except sqlite3.IntegrityError as error:
            self.queries_path(spec.round_id).unlink(missing_ok=True)
            raise VoteError(
                ErrorKind.REQUEST_ID_REUSED, field="plan.request_id", got=request_id
            ) from error

    def complete_round(self, completed: label_pb2.RoundCompleted, labels: Labels) -> None:
        """Writes down a round's labels and cost."""
        with self._lock:
            self._db.execute(
                "UPDATE rounds SET state = ?, completed = ?, labels = ? WHERE round_id = ?",
                (
                    COMPLETE,
                    completed.SerializeToString(),
                    labels.astype("<u4").tobytes(),
                    completed.round_id,
                ),
            )

    def fail_round(self, round_id: str, reason: str) -> None:
        """Writes down why a round failed, and drops its queries."""
        with self._lock:
            self._db.execute(
                "UPDATE rounds SET state = ?, reason = ? WHERE round_id = ? AND state = ?",
                (FAILED, reason, round_id, OPEN),
            )
            failed = self._db.execute("SELECT changes()").fetchone()[0]
        if failed:
            self.queries_path(round_id).unlink(missing_ok=True)

    def fail_interrupted(self) -> list[str]:
        """At start: rounds that a crash left open have failed; what they were charged stays."""
        open_rounds = [r.round_id for r in self._select("state = ?", (OPEN,))]
        for round_id in open_rounds:
            self.fail_round(round_id, "the coordinator was restarted while the round was open.")
        return open_rounds

    def round(self, round_id: str, client: str) -> RoundRecord | None:
        """A round of this client."""
        found = self._select("round_id = ? AND client = ?", (round_id, client))
        return found[0] if found else None

    def requested(self, client: str, request_id: str) -> RoundRecord | None:
        """The round that this client asked for under this request id."""
        found = self._select("client = ? AND request_id = ?", (client, request_id))
        return found[0] if found else None

    def rounds(self, client: str, most: int) -> list[RoundRecord]:
        """The newest rounds of a client, oldest first, without their labels: there may be many."""
        newest = "SELECT rowid FROM rounds WHERE client = ? ORDER BY opened_ms DESC, rowid DESC"
        return self._select(f"rowid IN ({newest} LIMIT ?)", (client, most), "NULL")

    def labels(self, rounds: Sequence[RoundRecord]) -> Labels:
        """The labels of complete rounds, one after the other."""
        found = [self._select("round_id = ?", (one.round_id,))[0].labels for one in rounds]
        return np.concatenate([labels for labels in found if labels is not None])

    def queries_path(self, round_id: str) -> Path:
        """Where a round's queries are."""
        return self._queries / f"{round_id}.npy"

    def queries(self, round_id: str) -> npt.NDArray[Any]:
        """A round's queries, mapped from disk."""
        array: npt.NDArray[Any] = np.load(
            self.queries_path(round_id), mmap_mode="r", allow_pickle=False
        )
        return array

    def _select(
        self, where: str, values: Sequence[object], labels: str = "labels"
    ) -> list[RoundRecord]:
        with self._lock:
            rows = self._db.execute(
                "SELECT round_id, client, request_id, plan, spec, state, reason, opened_ms, "
                f"completed, {labels} FROM rounds WHERE {where} ORDER BY opened_ms, rowid",
                values,
            ).fetchall()
        return [
            RoundRecord(
                round_id,
                client,
                request_id or "",
                plan,
                common_pb2.RoundSpec.FromString(spec),
                state,
                reason,
                opened_ms,
                label_pb2.RoundCompleted.FromString(completed) if completed else None,
                np.frombuffer(packed, dtype="<u4") if packed else None,
            )
            for (
                round_id,
                client,
                request_id,
                plan,
                spec,
                state,
                reason,
                opened_ms,
                completed,
                packed,
            ) in rows
        ]

    # tasks

    def add_task(self, task: Task) -> None:
        """Keeps what a task says for as long as there are rounds of it."""
        with self._lock:
            self._db.execute("INSERT OR IGNORE INTO tasks VALUES (?, ?)", (task.digest, task.wire))

    def task(self, digest: bytes) -> Task | None:
        """The task of this digest, if it was ever served."""
        with self._lock:
            found = self._db.execute("SELECT content FROM tasks WHERE digest = ?", (digest,))
            row = found.fetchone()
        return None if row is None else Task.from_wire(row[0])

    # models

    def add_model(
        self, client: str, description: model_pb2.Model, content: Path
    ) -> model_pb2.Model:
        """Takes a trained model in as the client's next version."""
        with self._lock, self._transaction():
            last = self._db.execute(
                "SELECT COALESCE(MAX(version), 0) FROM models WHERE client = ?", (client,)
            )
            description.version = last.fetchone()[0] + 1
            os.replace(content, self.model_path(client, description.version))
            self._db.execute(
                "INSERT INTO models (client, version, description) VALUES (?, ?, ?)",
                (client, description.version, description.SerializeToString()),
            )
        return description

    def models(self, client: str) -> list[model_pb2.Model]:
        """A client's versions, oldest first."""
        with self._lock:
            rows = self._db.execute(
                "SELECT description FROM models WHERE client = ? ORDER BY version", (client,)
            ).fetchall()
        return [model_pb2.Model.FromString(row[0]) for row in rows]

    def model_path(self, client: str, version: int) -> Path:
        """Where a version's safetensors file is."""
        return self._models / f"{client}-{version}.safetensors"

    def scratch_model_path(self, token: str) -> Path:
        """Where a model is written before it has a version."""
        return self._models / f".{token}.part"

    # agents

    def known_ledger(self, agent: str, ledger_id: str) -> str:
        """The ledger that an agent is known by, for ever: the first that it announced."""
        with self._lock:
            self._db.execute("INSERT OR IGNORE INTO agents VALUES (?, ?)", (agent, ledger_id))
            known = self._db.execute("SELECT ledger_id FROM agents WHERE name = ?", (agent,))
            return str(known.fetchone()[0])

    def accept_ledger(self, agent: str, ledger_id: str) -> None:
        """Has an agent known by this ledger from now on: its operator has lost the other."""
        with self._lock:
            self._db.execute("INSERT OR REPLACE INTO agents VALUES (?, ?)", (agent, ledger_id))

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")

    def _migrate(self) -> None:
        version: int = self._db.execute("PRAGMA user_version").fetchone()[0]
        for number, script in enumerate(_MIGRATIONS[version:], start=version + 1):
            self._db.executescript(f"BEGIN; {script} PRAGMA user_version = {number}; COMMIT;")


@contextlib.contextmanager
def _replaced(path: Path) -> Iterator[Path]:
    """A file beside `path` that takes its place once it is complete."""
    part = path.with_suffix(".part")
    try:
        yield part
        with part.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def _now_ms() -> int:
    return int(time.time() * 1000)
