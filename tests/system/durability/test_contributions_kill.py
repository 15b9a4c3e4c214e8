"""Kill -9 at every write point in the life of an agent's counters: no contribution that led to a
vote is forgotten, none counts twice, and the file opens and goes on.

The steps are those of `test_ledger_kill`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from agent_node.contributions import AlreadyAnswered, Contributions, CountingVoter
from mpc_vote.data.dataset import Dataset
from mpc_vote.learning.voters.bounded import BoundedVoter
from tests.system.durability.test_ledger_kill import (
    REACHABLE,
    Steps,
    top,
    watch_statements,
    watch_system_calls,
)

__all__ = ["top"]

LEDGER = "7" * 32
FILE, SAID, STEPS = "contributions.db", "said", "steps"
BOUND = 3
X = np.arange(4, dtype=np.float32)[:, None] / 8
# Two lives: in the second there are more records. The last round finds the first ones retired.
LIVES = ((2, ("a", "b")), (4, ("c", "d")))
ROUNDS = tuple(name for _, rounds in LIVES for name in rounds)
# What each round says, and how often records were counted after it.
VOTES = {"a": 2, "b": 2, "c": 4, "d": 2}
USED = {
    "": [0, 0, 0, 0],
    "a": [1, 1, 0, 0],
    "b": [2, 2, 0, 0],
    "c": [3, 3, 1, 1],
    "d": [3, 3, 2, 2],
}


def voter(kept: Contributions, records: int) -> CountingVoter:
    data = Dataset("some", X[:records], np.zeros(records, np.int64), 2)
    made = BoundedVoter(data, 9, 1.0, BOUND)
    return CountingVoter(made, kept.of(made.identities))


def live(directory: Path, steps: Steps) -> None:
    """Answers, and says what it has answered."""
    alive = watch_system_calls(steps) if REACHABLE else []
    watch_statements(steps, checkpoint=False)
    with (directory / SAID).open("a", buffering=1) as said:
        for records, rounds in LIVES:
            with closing(Contributions(directory / FILE, LEDGER)) as kept:
                mine = voter(kept, records)
                for round_id in rounds:
                    votes = mine.answer(round_id, X[:1])
                    said.write(f"{round_id} {votes.sum()}\n")
    del alive


def main(folder: Path) -> None:
    """Lives once to the end, and once to each step."""
    die_at, survived = -1, False
    while not survived:
        directory = folder / (str(die_at) if die_at >= 0 else "whole")
        directory.mkdir()
        pid = os.fork()
        if pid == 0:
            steps = Steps(die_at)
            live(directory, steps)
            (directory / STEPS).write_text("\n".join(steps.names))
            os._exit(0)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        assert status in (0, -signal.SIGKILL), status
        survived = status == 0 and die_at >= 0
        die_at += 1


def test_counters_survive_a_kill_at_every_step(top: Path) -> None:
    program = [sys.executable, "-m", __spec__.name, str(top)]
    subprocess.run(program, check=True, timeout=100)
    names = (top / "whole" / STEPS).read_text().splitlines()
    for where in ("whole", *map(str, range(len(names)))):
        survive(top / where, where)
    assert (top / str(len(names)) / STEPS).read_text().splitlines() == names
    for statement in (
        "INSERT INTO rounds",
        "REPLACE INTO counters",
        "REPLACE INTO names",
        "COMMIT",
    ):
        for moment in ("before", "after"):
            assert any(name.startswith(f"{moment} {statement}") for name in names), statement


def answered(directory: Path) -> Iterator[tuple[str, int]]:
    for word in (directory / SAID).read_text().splitlines():
        round_id, votes = word.split()
        yield round_id, int(votes)


def survive(directory: Path, where: str) -> None:
    """Checks the counters of one agent that was killed, and lets it go on."""
    said = dict(answered(directory))
    assert all(VOTES[round_id] == votes for round_id, votes in said.items()), where
    with closing(Contributions(directory / FILE, LEDGER)) as kept:
        assert kept._db.execute("PRAGMA integrity_check").fetchall() == [("ok",)], where
        found = list(kept.rounds())
        # What was answered is there, and at most the one round that was being written down.
        assert found in ([*said], [*said, *ROUNDS[len(said) :][:1]]), where
        mine = voter(kept, 4)
        order = np.argsort(voter(kept, 4)._voter._vectors[:, 0])
        used = mine._counters.used()[order].tolist()
        assert used == USED[found[-1] if found else ""], where
        for round_id in found:
            with pytest.raises(AlreadyAnswered):
                mine.answer(round_id, X[:1])
        # However often it was killed, no record answers more than it may.
        for number in range(2 * BOUND):
            mine.answer(f"after {number}", X[:1])
        assert mine._counters.used().tolist() == [BOUND] * 4, where


if __name__ == "__main__":
    main(Path(sys.argv[1]))
