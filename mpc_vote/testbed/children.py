"""Commands of `mpc-vote` as children of this process: started, watched and ended together."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from mpc_vote.app.process import PARENT_VARIABLE, CommandError
from mpc_vote.testbed.memory import MemoryWatch

_STOP_SECONDS = 10.0
_POLL_SECONDS = 0.1


@dataclass
class RoleProcess:
    """A running role."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    def last_words(self) -> str:
        """What it said before it ended: its error, or the end of its log."""
        lines = self.log.read_text(errors="replace").strip().splitlines()
        told = [line for line in lines if ": error: " in line]
        return (told or lines or ["nothing"])[-1]


@dataclass
class Children:
    """Children, whose logs are under one folder."""

    directory: Path
    children: dict[str, RoleProcess] = field(default_factory=dict, kw_only=True)
    _memory: MemoryWatch | None = field(default=None, kw_only=True)

    def start_command(self, label: str, command: str, settings: Mapping[str, str]) -> None:
        """Starts any command of `mpc-vote` as a child."""
        log = self.directory / "logs" / f"{label}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        flags = [part for key, value in settings.items() for part in (f"--{key}", value)]
        with log.open("ab") as output:
            process = subprocess.Popen(
                [*self._program(label), command, *flags],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                # One thread and few heaps each: there are more processes than cores.
                env={
                    **os.environ,
                    "OMP_NUM_THREADS": "1",
                    "MALLOC_ARENA_MAX": "2",
                    PARENT_VARIABLE: str(os.getpid()),
                },
            )
        self.children[label] = RoleProcess(label, process, log)

    def _program(self, label: str) -> list[str]:
        """What runs the role of this label, before its arguments; for tests to put in another."""
        return [sys.executable, "-m", "mpc_vote.cli"]

    def stop_child(self, name: str, number: signal.Signals = signal.SIGTERM) -> None:
        """Ends one role and waits until it is gone."""
        child = self.children.pop(name)
        child.process.send_signal(number)
        try:
            child.process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            child.process.kill()
            child.process.wait()

    def stop(self) -> None:
        """Ends all children, politely first."""
        children = list(self.children.values())
        self.children.clear()
        for child in children:
            child.process.terminate()
        for child in children:
            try:
                child.process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                child.process.kill()
                child.process.wait()
        if self._memory is not None:
            self._memory.stop()

    def watch_memory(self) -> None:
        """Begins to watch how much memory all take."""
        self._memory = MemoryWatch(self.pids)

    def check(self) -> None:
        """Raises if a child has ended by itself."""
        for child in self.children.values():
            code = child.process.poll()
            if code is not None:
                raise CommandError(f"{child.name} ended with code {code}: {child.last_words()}")

    def pids(self) -> list[int]:
        """Process ids of all children."""
        return [child.process.pid for child in self.children.values()]

    @property
    def peak_memory_bytes(self) -> int:
        """The most memory that all processes, this one included, took together at one time."""
        return self._memory.peak if self._memory is not None else 0

    @contextlib.asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """Fails the work inside as soon as a child ends by itself."""
        work = asyncio.current_task()
        failure: list[CommandError] = []

        async def watch() -> None:
            while True:
                await asyncio.sleep(_POLL_SECONDS)
                try:
                    self.check()
                except CommandError as error:
                    failure.append(error)
                    if work is not None:
                        work.cancel()
                    return

        watcher = asyncio.create_task(watch())
        try:
            yield
        except asyncio.CancelledError:
            if failure:
                raise failure[0] from None
            raise
        finally:
            watcher.cancel()
