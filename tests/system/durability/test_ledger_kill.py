"""Kill -9 at every write point of a ledger's life: no spend is lost, none is doubled, and the file
opens and takes the next one.

A life is lived once to count its steps, and then once for every step, at which the process kills
itself. Steps are the moments before and after each SQL statement that may write, and, where SQLite
is a library that can be reached, before and after each system call with which it creates, writes,
cuts or removes a file. Between these the files do not change: no other moment leaves other files.
"""

from __future__ import annotations

import _sqlite3
import ctypes
import itertools
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from mpc_vote.privacy import (
    AlreadyCharged,
    Budget,
    BudgetExhausted,
    Ledger,
    LedgerError,
    Level,
    SkellamVote,
    charged_epsilon,
)
from mpc_vote.privacy.ledger import LEDGER_ID, LedgerView
from mpc_vote.privacy.sensitivity import Sensitivity

DELTA = 1e-5
VOTE = SkellamVote(10, 256 * 625.0, Sensitivity(16, 256), Sensitivity(32, 512))
FIRST = Budget(None, 9.0, DELTA)
SECOND = Budget(charged_epsilon([VOTE] * 3, Level.AGENT, DELTA), None, DELTA)
ROUNDS = ("a", "b", "c")
OPENED = "opened"
OWNER = "agent/ann"

# How a process opens a ledger, what it charges, and so on.
LIVES = {
    "a new ledger": ((FIRST, "ab"), (SECOND, "c")),
    "an older schema": ((SECOND, "a"),),
    "after a crash": ((SECOND, "b"),),
    "a checkpoint after every charge": ((SECOND, "ab"),),
}

LEDGER, SAID, STEPS = "ledger.db", "said", "steps"


# The process that dies


class Steps:
    """Counts steps, and dies at one of them."""

    def __init__(self, die_at: int) -> None:
        self._die_at = die_at
        self.names: list[str] = []

    def step(self, name: str) -> None:
        if len(self.names) == self._die_at:
            os.kill(os.getpid(), signal.SIGKILL)
        self.names.append(name)

    def around(self, name: str, work: Callable[..., Any]) -> Callable[..., Any]:
        """The work, with a step before and after it."""

        def stepping(*arguments: Any) -> Any:
            self.step(f"before {name}")
            result = work(*arguments)
            self.step(f"after {name}")
            return result

        return stepping


def watch_statements(steps: Steps, checkpoint: bool) -> None:
    class Watched(sqlite3.Connection):
        def execute(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
            run: Callable[..., sqlite3.Cursor] = super().execute
            text = " ".join(sql.split())
            if not text.startswith("SELECT ") and (not text.startswith("PRAGMA ") or "=" in text):
                run = steps.around(text[:40], run)
            return run(sql, *parameters)

    def connect(*arguments: Any, **options: Any) -> sqlite3.Connection:
        db = connect_plainly(*arguments, factory=Watched, **options)
        if checkpoint:
            # After every commit, where SQLite by itself waits for a thousand pages.
            sqlite3.Connection.execute(db, "PRAGMA wal_autocheckpoint = 1")
        return db

    connect_plainly = sqlite3.connect
    cast(Any, sqlite3).connect = connect
    os.fsync = steps.around("fsync of the folder", os.fsync)


_INT, _TEXT, _SIZE = ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t
_CALLS: dict[str, tuple[Any, ...]] = {
    "open": (_INT, _TEXT, _INT, _INT),
    "write": (ctypes.c_ssize_t, _INT, ctypes.c_void_p, _SIZE),
    "pwrite": (ctypes.c_ssize_t, _INT, ctypes.c_void_p, _SIZE, ctypes.c_int64),
    "pwrite64": (ctypes.c_ssize_t, _INT, ctypes.c_void_p, _SIZE, ctypes.c_int64),
    "ftruncate": (_INT, _INT, ctypes.c_int64),
    "unlink": (_INT, _TEXT),
}


class _Vfs(ctypes.Structure):
    """`sqlite3_vfs` of version 3: SQLite's own tests put system calls in through it."""

    _fields_ = (
        ("iVersion", _INT),
        ("szOsFile", _INT),
        ("mxPathname", _INT),
        *((name, ctypes.c_void_p) for name in ("pNext", "zName", "pAppData")),
        *((f"method{number}", ctypes.c_void_p) for number in range(13)),
        *((name, ctypes.c_void_p) for name in ("xSetSystemCall", "xGetSystemCall")),
    )


SQLITE = ctypes.CDLL(_sqlite3.__file__)
REACHABLE = hasattr(SQLITE, "sqlite3_vfs_find")


def watch_system_calls(steps: Steps) -> list[object]:
    """Returns what must stay alive while SQLite is used."""
    SQLITE.sqlite3_vfs_find.restype = ctypes.POINTER(_Vfs)
    vfs = SQLITE.sqlite3_vfs_find(None)
    pointer = ctypes.c_void_p
    put = ctypes.CFUNCTYPE(_INT, pointer, _TEXT, pointer)(vfs.contents.xSetSystemCall)
    get = ctypes.CFUNCTYPE(pointer, pointer, _TEXT)(vfs.contents.xGetSystemCall)
    kept: list[object] = []
    for name, signature in _CALLS.items():
        address = get(vfs, name.encode())
        if address is None:
            continue
        kind = ctypes.CFUNCTYPE(*signature, use_errno=True)
        watched = kind(steps.around(name, kind(address)))
        put(vfs, name.encode(), ctypes.cast(watched, pointer))
        kept.append(watched)
    return kept


def live(directory: Path, steps: Steps, scenario: str) -> None:
    """Opens, spends, closes; says what it has been promised."""
    kept = watch_system_calls(steps) if REACHABLE else []
    watch_statements(steps, checkpoint="checkpoint" in scenario)
    with (directory / SAID).open("a", buffering=1) as said:
        for budget, rounds in LIVES[scenario]:
            with Ledger(directory / LEDGER, budget, OWNER) as ledger:
                said.write(f"{OPENED}\n")
                for round_id in rounds:
                    ledger.charge(round_id, VOTE)
                    said.write(f"{round_id}\n")
    del kept


def prepare(directory: Path, scenario: str) -> None:
    """What the process finds."""
    directory.mkdir()
    if scenario == "an older schema":
        with Ledger(directory / LEDGER, None) as ledger:
            ledger._db.execute("DROP TABLE budgets")
            ledger._db.execute("DROP TABLE origin")
            ledger._db.execute("PRAGMA user_version = 1")
    if scenario == "after a crash":
        other = directory / "other"
        with Ledger(other, FIRST) as ledger:
            ledger.charge("a", VOTE)
            for suffix in ("", "-wal"):
                shutil.copy(f"{other}{suffix}", f"{directory / LEDGER}{suffix}")
        (directory / SAID).write_text(f"{OPENED}\na\n")


def main(top: Path, scenario: str) -> None:
    """Lives once to the end, and once to each step."""
    die_at, survived = -1, False
    while not survived:
        directory = top / (str(die_at) if die_at >= 0 else "whole")
        prepare(directory, scenario)
        pid = os.fork()
        if pid == 0:
            steps = Steps(die_at)
            live(directory, steps, scenario)
            (directory / STEPS).write_text("\n".join(steps.names))
            os._exit(0)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        assert status in (0, -signal.SIGKILL), status
        survived = status == 0 and die_at >= 0
        die_at += 1


# What is left of it


@pytest.fixture
def top() -> Iterator[Path]:
    """In memory where there is such a place: a kill leaves the same files, and syncing is quick."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as directory:
        yield Path(directory)


@pytest.mark.parametrize("scenario", LIVES)
def test_a_ledger_survives_a_kill_at_every_step(scenario: str, top: Path) -> None:
    program = [sys.executable, "-m", __spec__.name, str(top), scenario]
    subprocess.run(program, check=True, timeout=100)
    names = (top / "whole" / STEPS).read_text().splitlines()
    survive(top / "whole", "the end")
    for number, name in enumerate(names):
        survive(top / str(number), f"step {number}, {name}")
    # The last life dies at no step, so there are no more: the list is whole.
    assert (top / str(len(names)) / STEPS).read_text().splitlines() == names
    for statement in ("PRAGMA journal_mode", "INSERT INTO budgets", "INSERT INTO spends", "COMMIT"):
        for moment in ("before", "after"):
            assert any(name.startswith(f"{moment} {statement}") for name in names), statement
    if REACHABLE:
        pairs = [(one, two[:13]) for one, two in itertools.pairwise(names)]
        assert ("before COMMIT", "before pwrite") in pairs, "inside of a commit"


def survive(directory: Path, where: str) -> None:
    """Checks one ledger whose process was killed."""
    path, said = directory / LEDGER, (directory / SAID).read_text().split()
    promised = [word for word in said if word != OPENED]
    try:
        with LedgerView(path) as view:
            read: list[str] | None = [spend.round_id for spend in view.spends()]
    except LedgerError:
        read = None
    assert read is not None or OPENED not in said, where
    with Ledger(path, SECOND, OWNER) as ledger:
        assert ledger._db.execute("PRAGMA integrity_check").fetchall() == [("ok",)], where
        found = [spend.round_id for spend in ledger.spends()]
        assert read is None or read == found, where
        # What was promised is there, and at most the one round that was being charged.
        assert found in (promised, [*promised, *ROUNDS[len(promised) :][:1]]), where
        for round_id in found:
            with pytest.raises(AlreadyCharged):
                ledger.charge(round_id, VOTE)
        for round_id in ROUNDS[len(found) :]:
            ledger.charge(round_id, VOTE)
        with pytest.raises(BudgetExhausted):
            ledger.charge("one more", VOTE)
        assert [spend.round_id for spend in ledger.spends()] == [*ROUNDS], where
        assert ledger.spent(Level.AGENT, DELTA) == charged_epsilon(
            [VOTE] * 3, Level.AGENT, DELTA
        ), where
    with LedgerView(path) as view:
        assert view.budget == SECOND, where
        assert view.owner == OWNER and LEDGER_ID.fullmatch(view.ledger_id), where


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
