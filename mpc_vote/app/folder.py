"""A role's data folder, which one process uses at a time.

A role's folder records what it must never do twice: two processes on one folder would each take the
other's work for what a crash left behind. The lock is the kernel's, so it ends with the process,
however that ends. It binds roles only: tools that read beside a role (`mpc-vote budget`), or write
what it shares (`mpc-vote token`), rely on SQLite's own locks.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import platform
from collections.abc import Iterator
from pathlib import Path

from mpc_vote.app.process import CommandError

LOCK = "lock"


@contextlib.contextmanager
def held(folder: Path) -> Iterator[Path]:
    """A folder that no other process, nor another role in this one, holds meanwhile."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except (FileExistsError, NotADirectoryError) as error:
        raise CommandError(
            f"--data-dir: {folder} is, or lies under, a file: name a folder, made if there is none"
        ) from error
    # The file stays when the lock ends: who removed it would leave two with a lock each.
    with os.fdopen(os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o600), "r+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = file.read(200).strip() or "another process"
            raise CommandError(
                f"{folder} is in use by {holder}: give every process a data folder of its own, or "
                "stop that one first"
            ) from error
        except OSError as error:
            raise CommandError(
                f"{folder} can't be locked ({error.strerror}): put it on a disk of this machine"
            ) from error
        file.truncate()
        file.write(f"process {os.getpid()} on {platform.node()}\n")
        file.flush()
        yield folder
