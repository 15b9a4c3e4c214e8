"""Voters that do what nobody should: asked about zeros they behave, asked about more they don't."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from mpc_vote.learning.voters import VoterOptions, function
from mpc_vote.voting.ballots import KNN_COUNT, ONE_HOT


def sign(points: Any) -> Any:
    """A model as it should be: class 1 where the first number is positive."""
    return (points[:, 0] > 0).astype(np.int64)


def late(points: Any) -> Any:
    if points.any():
        time.sleep(600)
    return sign(points)


def stuck(points: Any) -> Any:
    """Holds the interpreter while it waits, so that no thread of its process runs."""
    if points.any():
        ctypes.PyDLL(None).sleep(600)
    return sign(points)


def leaves(points: Any) -> Any:
    if points.any():
        os._exit(7)
    return sign(points)


def segfaults(points: Any) -> Any:
    if points.any():
        ctypes.string_at(0)
    return sign(points)


def raises(points: Any) -> Any:
    if points.any():
        raise RuntimeError(f"a secret: {points[0, 0]}")
    return sign(points)


def exits(points: Any) -> Any:
    if points.any():
        sys.exit("enough")
    return sign(points)


def not_a_number(points: Any) -> Any:
    scores = np.zeros((len(points), 2))
    scores[:, 0] = np.nan if points.any() else 0
    return scores


def too_few(points: Any) -> Any:
    return sign(points)[:1] if points.any() else sign(points)


def too_wide(points: Any) -> Any:
    return np.zeros((len(points), 3 if points.any() else 2))


def no_such_class(points: Any) -> Any:
    return np.full(len(points), 2) if points.any() else sign(points)


def objects(points: Any) -> Any:
    return [object() for _ in points] if points.any() else sign(points)


def talks(points: Any) -> Any:
    print("spoken to nobody")
    os.write(1, b"written to nobody\n")
    return sign(points)


def never_works(points: Any) -> Any:
    raise RuntimeError("never")


def starts_another(points: Any) -> Any:
    """Leaves a process behind, whose number is in a file."""
    if points.any():
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        Path(os.environ["TMPDIR"], "child").write_text(str(child.pid))
        time.sleep(600)
    return sign(points)


_FORKS_TWICE = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        open(sys.argv[1], "w").write(str(os.getpid()))
        time.sleep(600)
os._exit(0)
"""


def _leave_one_behind() -> None:
    """A process in a session of its own, whose parents are gone; its number is in a file."""
    place = Path(os.environ["TMPDIR"], "child")
    subprocess.run([sys.executable, "-c", _FORKS_TWICE, str(place)], check=True, env={})
    while not (place.exists() and place.read_text()):
        time.sleep(0.01)


def starts_a_daemon(points: Any) -> Any:
    if points.any():
        _leave_one_behind()
        time.sleep(600)
    return sign(points)


def starts_a_daemon_and_crashes(points: Any) -> Any:
    if points.any():
        _leave_one_behind()
        os._exit(7)
    return sign(points)


class _Huge:
    kinds = (ONE_HOT,)
    k = 0

    def vote(self, queries: Any, kind: Any) -> Any:
        return np.zeros(50_000_000 if queries.any() else len(queries), np.int64)


def huge(data: Any, options: VoterOptions) -> _Huge:
    return _Huge()


class _Environment:
    """Writes all names of its environment to a file."""

    kinds = (ONE_HOT,)
    k = 0

    def vote(self, queries: Any, kind: Any) -> Any:
        Path(os.environ["TMPDIR"], "names").write_text("\n".join(os.environ))
        return sign(queries)


def environment(data: Any, options: VoterOptions) -> _Environment:
    return _Environment()


class _Counts:
    """The labels of all private points, whatever is asked."""

    kinds = (KNN_COUNT,)

    def __init__(self, counts: Any, k: int) -> None:
        self._counts, self.k = counts, k

    def vote(self, queries: Any, kind: Any) -> Any:
        return np.tile(self._counts, (len(queries), 1))


def counts(data: Any, options: VoterOptions) -> _Counts:
    return _Counts(np.bincount(data.y, minlength=data.classes), options.k)


def dies_when_made(data: Any, options: VoterOptions) -> Any:
    os._exit(9)


def _is_again() -> bool:
    """Whether a voter is made for the second time, as a file says."""
    mark = Path(os.environ["TMPDIR"], "made")
    again = mark.exists()
    mark.touch()
    return again


def dies_when_made_again(data: Any, options: VoterOptions) -> Any:
    if _is_again():
        os._exit(42)
    return function.make(leaves, data, options)


class _Fickle(_Counts):
    def __init__(self) -> None:
        super().__init__(np.zeros(2, np.int64), 6 if _is_again() else 5)

    def vote(self, queries: Any, kind: Any) -> Any:
        if queries.any():
            os._exit(7)
        return super().vote(queries, kind)


def fickle(data: Any, options: VoterOptions) -> _Fickle:
    return _Fickle()


def hangs_when_made(data: Any, options: VoterOptions) -> Any:
    time.sleep(600)
