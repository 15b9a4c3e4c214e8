"""A voter in a process of its own, so that its agent keeps running, whatever the voter does.

Models and code of the owner's may hang, crash, leak or answer nonsense. They run in a child process
that is told the options, the private data and then queries, and answers with votes; it is killed
when it is late or makes no sense, with all that it started, and started anew. It gets none of the
agent's keys: not its memory, not its files' descriptors, and of its environment what `_KEPT` names.
That guards against faults, not against malice: the child runs as the same user.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy.typing as npt

from mpc_vote.app.process import PARENT_VARIABLE
from mpc_vote.data.dataset import Dataset
from mpc_vote.errors import printable
from mpc_vote.learning.voters import VoterOptions, classes_of, keeper
from mpc_vote.learning.voters.answers import Fault
from mpc_vote.learning.voters.frames import Deadline, FrameError, receive, send
from mpc_vote.learning.voters.messages import opening
from mpc_vote.plugins import PluginError
from mpc_vote.voting.ballots import BALLOTS, BallotKind

WORKER = "mpc_vote.learning.voters.worker"

_KEPT = (
    *("HOME", "LANG", "LD_LIBRARY_PATH", "MALLOC_ARENA_MAX", "PATH", "TMPDIR", "TZ"),
    *("TORCH_HOME", "XDG_CACHE_HOME"),
)
_KEPT_GROUPS = ("CUDA_", "LC_", "MKL_", "OMP_", "OPENBLAS_", "SSL_CERT_")
# What is said of a voter beside its votes: kinds, k, or how it failed.
_WORDS = 1 << 16
_ENDED = "its process ended"
_NUMBER_BYTES = 8
_VOTE_SECONDS = 600.0
_SEND_SECONDS = 60.0
_END_SECONDS = 10.0


class VoterError(Exception):
    """A voter gave no votes; `why` may be told to others, the rest is for its owner."""

    def __init__(self, why: str, detail: str = "") -> None:
        super().__init__(f"{why}: {detail}" if detail else why)
        self.why = why


class IsolatedVoter:
    """A voter that is made and asked in another process. See `Voter` for what it says.

    One vote is asked for at a time; `close` may be called while one is.
    """

    def __init__(self, name: str, data: Dataset | None, options: VoterOptions) -> None:
        self._name = name
        self._opening = opening(name, data, options)
        self._limit = options.start_seconds
        self._classes = classes_of(data, options)
        self._lock = threading.Lock()
        # A process ends with the thread that started it (`die_with_parent`), and votes are asked
        # for in threads that come and go.
        self._starter = ThreadPoolExecutor(1, thread_name_prefix="voters")
        self._closed = False
        self._child: _Child | None = None
        self.kinds: tuple[BallotKind, ...] = ()
        self.k = 0
        try:
            self.start(self._limit)
        except VoterError as error:
            self.close()
            raise ValueError(f"the voter {name} can't be started: {error}") from error
        except BaseException:
            self.close()
            raise

    def start(self, seconds: float) -> None:
        """Waits so long at most until the voter can be asked; starts it if it is not running."""
        child = self._child or self._spawn()
        if child.ready:
            if child.process.poll() is None:
                return
            self._kill()
            child = self._spawn()
        if not child.answers_within(seconds):
            if time.monotonic() - child.born > self._limit:
                self._kill()
                raise VoterError("it did not start in time")
            raise VoterError("it is still starting")
        try:
            header, _ = receive(child.line, _WORDS, Deadline(_SEND_SECONDS))
            _raise_refusal(header)
            made = _ballots(header)
            if self.kinds and made != (self.kinds, self.k):
                raise VoterError("it casts other ballots since it was started again")
            self.kinds, self.k = made
        except (FrameError, OSError, EOFError) as error:
            raise VoterError(_ENDED, self._ended(child)) from error
        except BaseException:
            self._kill()
            raise
        child.ready = True

    def vote(
        self, queries: npt.NDArray[Any], kind: BallotKind, seconds: float = _VOTE_SECONDS
    ) -> npt.NDArray[Any]:
        """See `Voter`; a `VoterError` within so many seconds if there are no votes."""
        end = time.monotonic() + seconds
        self.start(seconds)
        child = self._child
        if child is None:
            raise VoterError(_ENDED)
        deadline = Deadline(max(0.0, end - time.monotonic()))
        room = _WORDS + 2 * _NUMBER_BYTES * len(queries) * self._classes
        try:
            send(child.line, {"kind": kind.name}, [queries], deadline)
            header, arrays = receive(child.line, room, deadline)
        except TimeoutError as error:
            self._restart()
            raise VoterError("it took too long") from error
        except FrameError as error:
            self._restart()
            raise VoterError("it answered with too much", str(error)) from error
        except (OSError, EOFError) as error:
            how = self._ended(child)
            self._restart()
            raise VoterError(_ENDED, how) from error
        if not arrays:
            fault = str(header.get("fault"))
            why = Fault[fault].value if fault in Fault.__members__ else "it ended with an error"
            raise VoterError(why, str(header.get("failed")))
        return arrays[0]

    def close(self) -> None:
        """Ends the process; a vote that is asked for fails at once."""
        with self._lock:
            self._closed = True
        self._kill()
        self._starter.shutdown(wait=False)

    def _restart(self) -> None:
        """Ends the process, and lets another load while nobody waits for it."""
        self._kill()
        with contextlib.suppress(VoterError):  # the next round will say so
            self._spawn()

    def _spawn(self) -> _Child:
        with self._lock:
            if self._closed:
                raise VoterError("its agent stops")
            child = self._child = self._starter.submit(_Child).result(_SEND_SECONDS)
        try:
            send(child.line, *self._opening, Deadline(_SEND_SECONDS))
        except (OSError, TimeoutError) as error:
            raise VoterError(_ENDED, self._ended(child)) from error
        return child

    def _kill(self) -> None:
        with self._lock:
            child, self._child = self._child, None
        if child is not None:
            child.kill()

    def _ended(self, child: _Child) -> str:
        """How a process ended that no longer answers."""
        self._kill()
        code = child.process.wait(_SEND_SECONDS)  # whoever else may be ending it
        return f"with {'signal' if code < 0 else 'code'} {abs(code)}"


class _Child:
    """The process, under its keeper, and the line to it."""

    def __init__(self) -> None:
        self.born = time.monotonic()
        self.ready = False
        self.line, theirs = socket.socketpair()
        with theirs:
            number = str(theirs.fileno())
            worker = [sys.executable, "-Pu", "-m", WORKER, number]
            self.process = subprocess.Popen(
                [sys.executable, "-IS", keeper.__file__, number, *worker],
                stdin=subprocess.DEVNULL,
                stdout=2,  # what it prints is for its owner, beside the agent's log
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                env=_environment(),
            )

    def answers_within(self, seconds: float) -> bool:
        """Whether there is something to read, or nobody left to write it."""
        try:
            return bool(select.select([self.line], [], [], max(0.0, seconds))[0])
        except (OSError, ValueError):  # closed meanwhile
            return True

    def kill(self) -> None:
        self.process.terminate()  # its keeper, which ends all that it started itself
        self.process.send_signal(signal.SIGCONT)  # it may have been stopped
        try:
            self.process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        with contextlib.suppress(OSError):  # wakes whoever waits for an answer
            self.line.shutdown(socket.SHUT_RDWR)
        self.line.close()


def _environment() -> dict[str, str]:
    kept = {
        name: value
        for name, value in os.environ.items()
        if name in _KEPT or name.startswith(_KEPT_GROUPS)
    }
    places = os.pathsep.join(place or os.getcwd() for place in sys.path)
    return {**kept, "PYTHONPATH": places, PARENT_VARIABLE: str(os.getpid())}


def _ballots(header: dict[str, Any]) -> tuple[tuple[BallotKind, ...], int]:
    """What the process says that it casts."""
    try:
        return tuple(BALLOTS.by_name(name) for name in header["kinds"]), int(header["k"])
    except (KeyError, TypeError, ValueError) as error:
        raise FrameError("it does not say which ballots it casts") from error


def _raise_refusal(header: dict[str, Any]) -> None:
    """What the process says about why there is no voter."""
    if "refused" in header:
        why = printable(str(header["refused"]))
        if header.get("plugin"):
            raise PluginError(why)
        if header.get("module"):
            raise ModuleNotFoundError(why, name=str(header["module"]))
        raise ValueError(why)
