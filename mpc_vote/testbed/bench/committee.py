"""The processes of a benchmark: a dealer, parties that can be measured, and relays for distance.

All on this machine, with fresh certificates in a folder of their own. A case takes the first of the
parties; each pair of them has a link of its own, through a relay with half the round trip and the
full rate in each direction, which the party of lower rank dials. Every wait has a deadline, a child
that ends by itself is an error with its last words, and children die with their parent.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, count
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from mpc_vote.app.process import PARENT_VARIABLE, CommandError
from mpc_vote.pki.authority import CertificateAuthority
from mpc_vote.pki.identity import Identity, Role
from mpc_vote.testbed.bench import jobs
from mpc_vote.testbed.bench.cases import BenchCase, NetworkCondition
from mpc_vote.testbed.children import RoleProcess
from mpc_vote.testbed.cluster import free_ports

_START_SECONDS = 120.0
# Above what the parties themselves wait, so that they say what was late.
_PROBE_SECONDS = 240.0
_PREPARE_SECONDS = 420.0
_RUN_SECONDS = 1_800.0
_STOP_SECONDS = 10.0
_POLL_SECONDS = 0.1
# When a party fails because another process died, that one is gone by then.
_GRACE_SECONDS = 1.0
# An answer carries a share of each label.
_LINE_BYTES = 1 << 20
# From the word to the start: enough for every party to hear it and be ready.
_LEAD_SECONDS = 0.1
_SEED = "mpc-vote bench"

A = TypeVar("A", jobs.Ready, jobs.PreprocessingSize, jobs.PartyMeasurement)


@dataclass(frozen=True)
class CommitteeRun:
    """A job that was run, the longest round trip before it, and outcomes in rank order."""

    job: jobs.ArgmaxJob
    round_trip: float
    outcomes: Sequence[jobs.PartyMeasurement]


class BenchCommittee:
    """A dealer and parties that are measured."""

    def __init__(self, directory: Path, parties: int) -> None:
        self.names = tuple(f"party-{rank}" for rank in range(parties))
        self.children: dict[str, RoleProcess] = {}
        self._directory = directory
        self._sessions = count()
        dealer, *ports = free_ports(parties + 1)
        self._dealer = f"127.0.0.1:{dealer}"
        self._addresses = {n: f"127.0.0.1:{p}" for n, p in zip(self.names, ports, strict=True)}
        self._answers: dict[str, asyncio.StreamReader] = {}
        self._pipes: list[asyncio.BaseTransport] = []
        # By condition, where a party dials another.
        self._links: dict[NetworkCondition, dict[tuple[str, str], str]] = {}

    @classmethod
    @contextlib.asynccontextmanager
    async def running(cls, parties: int) -> AsyncIterator[BenchCommittee]:
        """A committee whose parties are ready, until the context ends."""
        handler = signal.getsignal(signal.SIGINT)
        try:
            with tempfile.TemporaryDirectory(prefix="mpc-vote-bench-") as folder:
                committee = cls(Path(folder), parties)
                try:
                    await committee._start()
                    yield committee
                finally:
                    # A second interrupt would leave processes and keys behind.
                    signal.signal(signal.SIGINT, signal.SIG_IGN)
                    committee._stop()
        finally:
            signal.signal(signal.SIGINT, handler)

    def connect(self, condition: NetworkCondition) -> None:
        """Puts relays between the parties, as far as the condition needs them; they stay."""
        if condition in self._links:
            return
        pairs = list(combinations(self.names, 2))
        if condition.direct:
            self._links[condition] = {(low, high): self._addresses[high] for low, high in pairs}
            return
        listens = [f"127.0.0.1:{port}" for port in free_ports(len(pairs))]
        self._links[condition] = dict(zip(pairs, listens, strict=True))
        targets = [
            f"{listen}={self._addresses[high]}"
            for (_, high), listen in zip(pairs, listens, strict=True)
        ]
        flags = ["--links", ",".join(targets), "--delay-ms", f"{condition.rtt_ms / 2:g}"]
        if condition.rate_mbit is not None:
            flags += ["--rate-mbit", f"{condition.rate_mbit:g}"]
        self._spawn(f"relay {len(self._links)}", ["relay", *flags])

    async def round_trip(self, condition: NetworkCondition, parties: int) -> float:
        """Seconds of the longest round trip between two of the parties, as measured."""
        names = self.names[:parties]
        requests = {n: jobs.Probe(peers=self._peers(condition, n, names)) for n in names}
        answers = await self._ask(requests, jobs.Ready, _PROBE_SECONDS)
        return max(trip for answer in answers.values() for trip in answer.round_trips.values())

    async def preprocessing_bytes(self, case: BenchCase) -> int:
        """Memory that a case's preprocessing takes at each party."""
        first = self.names[0]
        request = {first: jobs.SizePreprocessing(job=self._job(case, 0))}
        return (await self._ask(request, jobs.PreprocessingSize, _PREPARE_SECONDS))[
            first
        ].preprocessing_bytes

    async def run(self, case: BenchCase, repeat: int) -> CommitteeRun:
        """Runs a case once: all is prepared, the round trip measured, then all parties start."""
        job = self._job(case, repeat)
        prepare = {
            name: jobs.Prepare(job=job, peers=self._peers(case.condition, name, job.parties))
            for name in job.parties
        }
        await self._ask(prepare, jobs.Ready, _PREPARE_SECONDS)
        trip = await self.round_trip(case.condition, case.parties)
        start = jobs.Go(at=time.monotonic() + _LEAD_SECONDS)
        outcomes = await self._ask(
            dict.fromkeys(job.parties, start), jobs.PartyMeasurement, _RUN_SECONDS
        )
        return CommitteeRun(job, trip, [outcomes[name] for name in job.parties])

    def check(self) -> None:
        """Raises if a child has ended by itself."""
        for child in self.children.values():
            code = child.process.poll()
            if code is not None:
                raise CommandError(f"{child.name} ended with code {code}: {child.last_words()}")

    async def _start(self) -> None:
        authority = CertificateAuthority.create(self._directory / "certs" / "ca")
        for identity in [
            Identity(Role.DEALER, "dealer"),
            *(Identity(Role.PARTY, name) for name in self.names),
        ]:
            authority.issue(identity, self._certs(identity.name), hosts=["localhost"])
        self._spawn("dealer", [*self._role("dealer", "dealer"), "--listen", self._dealer])
        for name, address in self._addresses.items():
            flags = ["--listen", address, "--dealer", self._dealer]
            child = self._spawn(name, [*self._role("bench-party", name), *flags], piped=True)
            reader = asyncio.StreamReader(_LINE_BYTES)
            pipe, _ = await asyncio.get_running_loop().connect_read_pipe(
                lambda reader=reader: asyncio.StreamReaderProtocol(reader),  # type: ignore[misc]
                child.process.stdout,
            )
            self._pipes.append(pipe)
            self._answers[name] = reader
        await self._hear(self.names, jobs.Ready, _START_SECONDS)

    def _stop(self) -> None:
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
            if child.process.stdin is not None:
                # What a party did not live to read is lost.
                with contextlib.suppress(BrokenPipeError):
                    child.process.stdin.close()
        for pipe in self._pipes:
            pipe.close()

    def _certs(self, name: str) -> Path:
        return self._directory / "certs" / name

    def _role(self, command: str, name: str) -> list[str]:
        return [command, "--certs", str(self._certs(name)), "--log-level", "warning"]

    def _spawn(self, label: str, command: Sequence[str], *, piped: bool = False) -> RoleProcess:
        log = self._directory / f"{label}.log"
        with log.open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "mpc_vote.cli", *command],
                stdin=subprocess.PIPE if piped else subprocess.DEVNULL,
                stdout=subprocess.PIPE if piped else output,
                stderr=output,
                start_new_session=True,
                # As in any cluster: one thread and few heaps each.
                env={
                    **os.environ,
                    "OMP_NUM_THREADS": "1",
                    "MALLOC_ARENA_MAX": "2",
                    PARENT_VARIABLE: str(os.getpid()),
                },
            )
        self.children[label] = RoleProcess(label, process, log)
        return self.children[label]

    def _job(self, case: BenchCase, repeat: int) -> jobs.ArgmaxJob:
        """A session of its own, with totals that follow from the shape and the repeat."""
        return jobs.ArgmaxJob(
            session=f"bench-{next(self._sessions)}",
            parties=self.names[: case.parties],
            engine=case.engine,
            bits=case.bits,
            groups=case.groups or (),
            two_rounds=case.two_rounds,
            rows=case.queries,
            classes=case.classes,
            seed=_SEED,
            repeat=repeat,
        )

    def _peers(
        self, condition: NetworkCondition, name: str, names: Sequence[str]
    ) -> dict[str, str]:
        """Whom a party dials, and where."""
        links = self._links[condition]
        return {high: links[name, high] for high in names if (name, high) in links}

    async def _ask(
        self, requests: Mapping[str, jobs.Request], want: type[A], seconds: float
    ) -> dict[str, A]:
        """Sends each party its request, all at once, and returns their answers."""
        for name, request in requests.items():
            pipe = self.children[name].process.stdin
            assert pipe is not None
            try:
                pipe.write(request.model_dump_json().encode() + b"\n")
                pipe.flush()
            except BrokenPipeError as error:
                raise await self._blame(f"{name} closed its input") from error
        return await self._hear(list(requests), want, seconds)

    async def _hear(self, names: Sequence[str], want: type[A], seconds: float) -> dict[str, A]:
        """One answer of each party; fails as soon as a child ends or a party says that it can't."""
        lines = {asyncio.create_task(self._answers[name].readline()): name for name in names}
        answers: dict[str, A] = {}
        waiting = set(lines)
        clock = asyncio.get_running_loop().time
        deadline = clock() + seconds
        try:
            while waiting:
                self.check()
                if clock() > deadline:
                    late = ", ".join(sorted(lines[task] for task in waiting))
                    raise CommandError(f"no answer from {late} within {seconds:g} s")
                done, waiting = await asyncio.wait(
                    waiting, timeout=_POLL_SECONDS, return_when=asyncio.FIRST_COMPLETED
                )
                for task in done:
                    name = lines[task]
                    answers[name] = await self._parse(name, task.result(), want)
        finally:
            for task in waiting:
                task.cancel()
        return answers

    async def _parse(self, name: str, line: bytes, want: type[A]) -> A:
        if not line:
            raise await self._blame(f"{name} closed its output")
        try:
            answer = jobs.ANSWERS.validate_json(line)
        except ValidationError as error:
            raise CommandError(f"{name} said something else than an answer: {line!r}") from error
        if isinstance(answer, jobs.Failure):
            raise await self._blame(f"{name} failed: {answer.error}")
        if not isinstance(answer, want):
            raise CommandError(f"{name} answered {answer.kind} out of turn")
        return answer

    async def _blame(self, otherwise: str) -> CommandError:
        """Why a party fails: a child that is gone, if there is one within a moment."""
        try:
            async with asyncio.timeout(_GRACE_SECONDS):
                while True:
                    self.check()
                    await asyncio.sleep(_POLL_SECONDS)
        except TimeoutError:
            return CommandError(otherwise)
        except CommandError as error:
            return error
