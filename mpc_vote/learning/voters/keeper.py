"""Between an agent and its voter's process: ends all that the voter started, when either ends.

On Linux it adopts orphans of the voter's (as a child subreaper), whatever sessions or groups they
made for themselves, and kills its children until there are none. Elsewhere the voter's own group is
killed. It runs as a script with the standard library alone, so that it takes little memory.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import sys
import time
from pathlib import Path

_PARENT_VARIABLE = "MPC_VOTE_PARENT"
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
# For processes that the system does not end at once.
_END_SECONDS = 5.0
_STEP_SECONDS = 0.01


_AWAITED = (signal.SIGTERM, signal.SIGCHLD)


def main(descriptor: int, command: list[str]) -> None:
    """Runs a command that is given the descriptor, and ends as it does."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # Waited for, not handled: a handler might come between the end of the voter and its record.
    signal.pthread_sigmask(signal.SIG_BLOCK, _AWAITED)
    if sys.platform == "linux":
        prctl = ctypes.CDLL(None).prctl
        prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != int(os.environ[_PARENT_VARIABLE]):
            sys.exit("its agent is gone")
    os.environ[_PARENT_VARIABLE] = str(os.getpid())
    voter = os.fork()
    if voter == 0:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _AWAITED)
        os.setsid()
        os.execv(command[0], command)
    os.close(descriptor)  # else nobody would see that the voter has hung up
    ends: dict[int, int] = {}
    while voter not in ends and signal.sigwait(_AWAITED) != signal.SIGTERM:
        _reap(ends)
    _end_all(voter, ends)
    status = ends.get(voter, signal.SIGKILL)
    if os.WIFSIGNALED(status):
        os.kill(os.getpid(), os.WTERMSIG(status))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _AWAITED)
    sys.exit(os.waitstatus_to_exitcode(status))


def _reap(ends: dict[int, int]) -> bool:
    """Takes note of children that have ended; whether there are others."""
    try:
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            ends.update([found])
    except ChildProcessError:
        return False
    return True


def _end_all(voter: int, ends: dict[int, int]) -> None:
    """Kills children until there are none: those of the killed become children of this process.

    One that had ended before keeps the status that it ended with.
    """
    end = time.monotonic() + _END_SECONDS
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(voter, signal.SIGKILL)
    while _reap(ends) and time.monotonic() < end:
        for child in _children():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(child, signal.SIGKILL)
        time.sleep(_STEP_SECONDS)


def _children() -> list[int]:
    """By what Linux says of each process; nothing elsewhere."""
    me, found = os.getpid(), []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            # The name, in parentheses, may hold anything; the state and the parent follow it.
            parent = int(path.read_bytes().rpartition(b")")[2].split()[1])
            if parent == me:
                found.append(int(path.parent.name))
    return found


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
