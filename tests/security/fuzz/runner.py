"""Runs a target on many inputs in a process of its own, and says what it did to it.

An input must be accepted, or refused in words of the catalogue. Whatever else comes of it is a
finding: another exception, too long a time, too much memory, the end of the process. Memory is
bounded three times: for one input by the most that the process ever held, for any allocation by the
address space that it may have, and for all inputs together by what it holds at the end.
"""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import multiprocessing
import os
import random
import re
import resource
import signal
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tests.security.fuzz.mutate import MAX_BYTES, Mutator

CORPUS = Path(__file__).parent / "corpus"

INPUT_SECONDS = 20.0
"""An input that takes longer hangs."""
INPUT_BYTES = 384 << 20
"""No input, of up to a megabyte, may make the process hold so much more."""
SPACE_BYTES = 4 << 30
"""Nothing may be allocated beyond this, touched or not."""
GROWTH_BYTES = 64 << 20
"""All inputs of a run together may leave no more than this behind."""

_STALLED_SECONDS = 4 * INPUT_SECONDS
_POOL = 400
_BASE_BYTES = 40_000
_KEPT_BYTES = 6_000
_BATCH = 500
_WARM = 200
_HEADER = 12

Run = Callable[[bytes], str]


@dataclass(frozen=True)
class Target:
    """Something that reads what others wrote.

    `open` makes, in the process that runs it, a function that takes an input and returns a word for
    the result.
    """

    name: str
    open: Callable[[Path], contextlib.AbstractContextManager[Run]]
    seeds: Callable[[], list[bytes]]
    mutate: Mutator


@dataclass
class Result:
    """What came of a run."""

    inputs: int = 0
    seconds: float = 0.0
    slowest: float = 0.0
    peak_bytes: int = 0
    growth_bytes: int = 0
    outcomes: dict[str, int] = field(default_factory=dict)
    findings: dict[str, bytes] = field(default_factory=dict)
    fresh: list[bytes] = field(default_factory=list)


class Hang(BaseException):
    """An input took too long."""


class Finding(AssertionError):
    """A target says what an input did that it must not do."""


def corpus(target: Target) -> list[bytes]:
    """What is kept for a target: inputs that once did something new, and all findings."""
    folder = CORPUS / target.name
    return [path.read_bytes() for path in sorted(folder.glob("*"))]


def keep(target: Target, data: bytes, why: str) -> Path:
    """Keeps an input, so that every run begins with it."""
    folder = CORPUS / target.name
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{why}-{hashlib.sha256(data).hexdigest()[:12]}"
    path.write_bytes(data)
    return path


class Watched:
    """A run in a process of its own, which can hang or die without harm."""

    def __init__(self, target: Target, inputs: int, seed: int) -> None:
        self.target = target
        self.result = Result()
        # Shared with the process: the number of the input that it is at, its length, and the input.
        self._current = mmap.mmap(-1, _HEADER + MAX_BYTES)
        self._moved = (b"", time.monotonic())
        context = multiprocessing.get_context("fork")
        self._pipe, theirs = context.Pipe(duplex=False)
        arguments = (target, inputs, seed, self._current, theirs)
        self._process = context.Process(target=_work, args=arguments, daemon=True)
        self._process.start()
        theirs.close()

    def poll(self, seconds: float) -> bool:
        """Takes in what the process says; False once it has ended."""
        with contextlib.suppress(EOFError):
            while self._pipe.poll(seconds):
                self.result, seconds = self._pipe.recv(), 0.0
            counter = self._current[:8]
            if counter != self._moved[0]:
                self._moved = (counter, time.monotonic())
            if time.monotonic() - self._moved[1] < _STALLED_SECONDS:
                return True
            self._process.kill()
        self._process.join()
        if self._process.exitcode:
            size = int.from_bytes(self._current[8:_HEADER], "little")
            why = f"the process ended with {self._process.exitcode}"
            self.result.findings[why] = self._current[_HEADER : _HEADER + size]
        return False


def _work(target: Target, inputs: int, seed: int, current: mmap.mmap, pipe: Connection) -> None:
    with tempfile.TemporaryDirectory(dir=_fast_folder()) as folder:
        worker = _Worker(target, random.Random(f"{seed} {target.name}"), current)
        for result in worker.run(inputs, Path(folder)):
            pipe.send(result)
    # Threads of a target must not keep the process.
    pipe.close()
    os._exit(0)


class _Worker:
    def __init__(self, target: Target, rng: random.Random, current: mmap.mmap) -> None:
        self._target = target
        self._rng = rng
        self._current = current
        self._result = Result()
        self._pool: list[bytes] = []
        self._number = 0
        self._most = 0

    def run(self, inputs: int, folder: Path) -> Iterator[Result]:
        signal.signal(signal.SIGALRM, _ring)
        known = [*self._target.seeds(), *corpus(self._target)]
        space = _memory("VmSize") + SPACE_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (space, space))
        opened = contextlib.ExitStack()
        started = time.monotonic()
        with opened:
            run = opened.enter_context(self._target.open(folder))
            self._most = _peak()
            held, warm = 0, min(_WARM + len(known), inputs // 2 + len(known))
            for number in range(len(known) + inputs):
                data = known[number] if number < len(known) else self._next()
                self._one(run, data, fresh=number >= len(known))
                if number == warm:
                    held = _memory("VmRSS")
                if number % _BATCH == 0:
                    self._result.seconds = time.monotonic() - started
                    yield self._result
            self._result.growth_bytes = max(0, _memory("VmRSS") - held) if held else 0
            if self._result.growth_bytes > GROWTH_BYTES:
                self._result.findings["memory grew with the inputs"] = b""
        self._result.seconds = time.monotonic() - started
        yield self._result

    def _next(self) -> bytes:
        if self._rng.random() < 0.01:
            return self._rng.randbytes(self._rng.choice((0, 1, 8, 64, 512)))
        data, other = self._rng.choice(self._pool), self._rng.choice(self._pool)
        return self._target.mutate(data, other, self._rng)[:MAX_BYTES]

    def _one(self, run: Run, data: bytes, fresh: bool) -> None:
        result = self._result
        self._number += 1
        self._current[:_HEADER] = self._number.to_bytes(8, "little") + len(data).to_bytes(
            4, "little"
        )
        self._current[_HEADER : _HEADER + len(data)] = data
        started = time.monotonic()
        signal.setitimer(signal.ITIMER_REAL, INPUT_SECONDS)
        try:
            outcome = run(data)
        except (Exception, Hang) as error:
            outcome = _told(error)
            result.findings.setdefault(outcome, data)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        result.slowest = max(result.slowest, time.monotonic() - started)
        peak = _peak()
        if peak > self._most:
            result.peak_bytes = max(result.peak_bytes, peak - self._most)
            if peak - self._most > INPUT_BYTES:
                result.findings.setdefault("an input took too much memory", data)
                self._most = peak
        if outcome not in result.outcomes:
            self._remember(data)
            if fresh and len(data) <= _KEPT_BYTES:
                result.fresh.append(data)
        elif not fresh:
            self._remember(data)
        result.inputs += 1
        result.outcomes[outcome] = result.outcomes.get(outcome, 0) + 1

    def _remember(self, data: bytes) -> None:
        if len(self._pool) < _POOL and len(data) <= _BASE_BYTES:
            self._pool.append(data)


def _ring(*_: Any) -> None:
    raise Hang(f"over {INPUT_SECONDS:g} s")


def _told(error: BaseException) -> str:
    """An exception by its type and places, so that one fault is told once."""
    frames = traceback.extract_tb(error.__traceback__)[-4:]
    places = " > ".join(f"{Path(f.filename).name}:{f.lineno} {f.name}" for f in frames)
    said = str(error) if isinstance(error, Finding) else ""
    return f"{type(error).__name__} {re.sub(r'[0-9,]+', '#', said)[:200]} ({places})"


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def _memory(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) << 10
    raise LookupError(name)


def _fast_folder() -> str | None:
    """Databases of the targets are synced at every step: in memory, where there is such a place."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None
