"""How a command runs as a process: logging, signals, and errors reported in a sentence instead of a
traceback."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import os
import platform
import resource
import signal
import sqlite3
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any, TypeVar

from mpc_vote.app.config import ConfigError, Settings, load
from mpc_vote.errors import VoteError, printable
from mpc_vote.pki.identity import IdentityError
from mpc_vote.privacy.ledger import LedgerError

_EXIT_FAILED = 1
_EXIT_USAGE = 2
_EXIT_INTERRUPTED = 130

S = TypeVar("S", bound=Settings)


# Names the process that a role must not outlive. The child asks for that itself: code that runs
# between fork and exec would share the process with gRPC's threads.
PARENT_VARIABLE = "MPC_VOTE_PARENT"
_PR_SET_PDEATHSIG = 1
# Of mallopt, and what glibc settles on at most by itself.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_KEPT_BYTES = 64 << 20
_KEPT_BLOCK_BYTES = 32 << 20


def no_cancelled_call(record: logging.LogRecord) -> bool:
    """gRPC logs calls that end with the server as errors of their handlers: not those."""
    return not (record.exc_info and isinstance(record.exc_info[1], asyncio.CancelledError))


class LineFormatter(logging.Formatter):
    """One line for each record, whatever peers put into it: none can write lines of its own."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        return printable(super().formatMessage(record))


class CommandError(Exception):
    """A command can't do its work; the sentence says why and what to do."""


class Interrupted(Exception):
    """A command was interrupted; the sentence says what became of its work."""


def run(
    model: type[S],
    arguments: Sequence[str],
    main: Callable[[S], Coroutine[Any, Any, None]],
) -> int:
    """Loads a command's settings, runs it, and returns the exit code."""
    name = f"mpc-vote {model.command}"
    die_with_parent()
    leave_no_core()
    try:
        settings = load(model, arguments)
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(LineFormatter("%(asctime)s %(levelname)s %(message)s"))
        logging.basicConfig(level=settings.log_level.upper(), handlers=[handler])
        # It tells which builds of itself it could not find.
        logging.getLogger("faiss").setLevel(logging.WARNING)
        logging.getLogger("grpc._cython.cygrpc").addFilter(no_cancelled_call)
        asyncio.run(main(settings))
    except ConfigError as error:
        return _fail(name, str(error), _EXIT_USAGE)
    except VoteError as error:
        return _fail(name, f"{error.name}: {error.message}", _EXIT_FAILED)
    except Interrupted as error:
        return _fail(name, str(error), _EXIT_INTERRUPTED)
    except (CommandError, IdentityError, LedgerError) as error:
        return _fail(name, str(error), _EXIT_FAILED)
    except sqlite3.Error as error:
        return _fail(name, f"a database in the data folder can't be used: {error}", _EXIT_FAILED)
    except OSError as error:
        return _fail(name, _told(error), _EXIT_FAILED)
    except (KeyboardInterrupt, asyncio.CancelledError):
        return _fail(name, "interrupted", _EXIT_INTERRUPTED)
    return 0


def die_with_parent() -> None:
    """On Linux: SIGTERM when the thread that started this process ends, however it does."""
    parent = os.environ.get(PARENT_VARIABLE)
    if parent is None or sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != int(parent):
        sys.exit(f"the process {parent} that started this one is gone")


def leave_no_core() -> None:
    """Keeps what this process holds in memory out of core files.

    The limit is one byte, not zero: Linux ignores zero where cores are piped to a program, and
    takes one for "none at all", there and for files. Other processes of the same user could still
    look into this one: they could read its key file as well.
    """
    _, most = resource.getrlimit(resource.RLIMIT_CORE)
    # Where the system allows zero at most, it is zero already.
    if most != 0:
        resource.setrlimit(resource.RLIMIT_CORE, (1, most))


def keep_freed_memory() -> None:
    """Keeps memory that numpy gives back for the next array, where the C library is glibc.

    Else pages can go back to the kernel whenever over 128 KiB are free, and come again one fault
    after the other: about a thousand in a secure argmax of 500 x 100. Glibc raises these limits by
    itself, but only once large blocks were freed. No more is kept than was in use before.
    """
    if "libc" in platform.libc_ver()[0]:
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_MMAP_THRESHOLD, _KEPT_BLOCK_BYTES)
        libc.mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)


def _told(error: OSError) -> str:
    """The system's error message, with the file that it is about, if any."""
    why = error.strerror or str(error) or type(error).__name__
    return f"can't use {error.filename}: {why}" if error.filename is not None else why


def _fail(name: str, why: str, code: int) -> int:
    print(f"{name}: error: {why}", file=sys.stderr, flush=True)
    return code


@contextlib.asynccontextmanager
async def until_stopped() -> AsyncIterator[asyncio.Event]:
    """An event that SIGTERM or SIGINT sets, so that a role can shut down cleanly."""
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    try:
        yield stopped
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
