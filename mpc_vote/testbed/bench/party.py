"""One compute party for measuring: `mpc-vote bench` starts it and drives it by JSON lines.

It computes as a party of the service does, with the same engines, the same links under mutual TLS
and the real dealer. What differs is around it: the totals come from a public seed instead of
agents' shares, all preprocessing is dealt and expanded before the clock starts, and the driver
names the moment of the start, the same for all parties, in the time of the machine's clock that
they have in common. So the clock sees the secure argmax and nothing else: from that moment until
the last of a party's label shares.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import hashlib
import logging
import os
import resource
import stat
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import grpc
import numpy as np
from pydantic import Field

from aggregator.party.links import LinkPool, LinkServer
from aggregator.party.peers import PeerChannel
from aggregator.party.preprocessing import DealtPreprocessing, PreprocessingPool, ask
from mpc_vote.app import process
from mpc_vote.app.config import Address, Name, Positive, RoleSettings
from mpc_vote.app.process import CommandError
from mpc_vote.argmax.engine import Engine, session_plan
from mpc_vote.errors import ErrorKind, VoteError
from mpc_vote.mpc.cut_and_choose import Session, choose
from mpc_vote.mpc.preprocessing import PreprocessingPlan
from mpc_vote.mpc.prg import Words
from mpc_vote.pki.identity import Credentials, Identity, Role
from mpc_vote.testbed.bench import jobs
from mpc_vote.testbed.bench.jobs import ArgmaxJob
from mpc_vote.transport import rpc

log = logging.getLogger(__name__)

# All of a job's preprocessing waits before the start, however much it is.
_POOL_BYTES = 1 << 62
_PROC = Path("/proc/self")
_RESET_PEAK = "5"
_PEAK = "VmHWM:"
_KIB = 1 << 10
_RETRY_SECONDS = 0.1


class BenchPartySettings(RoleSettings):
    """A compute party for `mpc-vote bench`, which starts it and tells it what to do."""

    command: ClassVar[str] = "bench-party"

    listen: Address = Field(description="host:port for links from peers")
    dealer: Address = Field(description="host:port of the dealer")
    dealer_name: Name = Field("dealer", description="name in the dealer's certificate")
    exchange_seconds: Positive = Field(60.0, description="longest wait for a peer")
    deal_seconds: Positive = Field(300.0, description="longest wait for a job's preprocessing")


def command(arguments: Sequence[str]) -> int:
    """`mpc-vote bench-party`."""
    process.keep_freed_memory()
    return process.run(BenchPartySettings, arguments, serve)


async def serve(settings: BenchPartySettings) -> None:
    """Answers requests until their end, or until told to stop."""
    requests = await _standard_input()
    credentials = Credentials.load(settings.certs, Role.PARTY)
    async with contextlib.AsyncExitStack() as stack:
        stopped = await stack.enter_async_context(process.until_stopped())
        party = _BenchParty(settings, credentials, stack)
        await stack.enter_async_context(party.link_server)
        work = asyncio.create_task(party.work(requests))
        stop = asyncio.create_task(stopped.wait())
        await asyncio.wait({work, stop}, return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        work.cancel()
        await asyncio.wait({work, stop})
        if not work.cancelled():
            work.result()


@dataclass
class _PreparedJob:
    """A job whose preprocessing and links are there."""

    job: ArgmaxJob
    engine: Engine
    share: Words
    preprocessing: DealtPreprocessing
    channel: PeerChannel
    stack: contextlib.ExitStack


class _BenchParty:
    """Does one request after the other."""

    def __init__(
        self,
        settings: BenchPartySettings,
        credentials: Credentials,
        stack: contextlib.AsyncExitStack,
    ) -> None:
        self._settings = settings
        self._credentials = credentials
        self._stack = stack
        self._name = credentials.identity.name
        self._dealer_channel: grpc.aio.Channel | None = None
        self._pools: dict[tuple[str, str], LinkPool] = {}
        self._session: _PreparedJob | None = None
        # Who its peers are is told with each job.
        self.link_server = LinkServer(credentials, settings.listen, None)

    async def work(self, requests: asyncio.StreamReader) -> None:
        """Answers each line by one line; the first says that the dealer was reached."""
        await self._dealer()
        _say(jobs.Ready())
        try:
            while line := await requests.readline():
                try:
                    answer = await self._answer(jobs.REQUESTS.validate_json(line))
                except VoteError as error:
                    log.error("%s: %s", error.name, error.message)
                    answer = jobs.Failure(error=f"{error.name}: {error.message}")
                _say(answer)
        finally:
            self._end_session()

    async def _answer(self, request: jobs.Request) -> jobs.Answer:
        match request:
            case jobs.Probe():
                return jobs.Ready(round_trips=await self._round_trips(request.peers))
            case jobs.SizePreprocessing():
                _, plan = await asyncio.to_thread(_planned, request.job)
                return jobs.PreprocessingSize(
                    preprocessing_bytes=sum(item.part_bytes for item in plan)
                )
            case jobs.Prepare():
                await self._prepare(request.job, request.peers)
                return jobs.Ready()
            case jobs.Go():
                return await self._measure(request.at)

    async def _prepare(self, job: ArgmaxJob, addresses: Mapping[str, str]) -> None:
        self._end_session()
        rank = job.parties.index(self._name)
        pools = {name: await self._pool(name, address) for name, address in addresses.items()}
        engine, plan = await asyncio.to_thread(_planned, job)
        share = await asyncio.to_thread(job.share, rank)
        seconds = self._settings.deal_seconds
        try:
            with contextlib.ExitStack() as stack:
                async with asyncio.timeout(seconds):
                    dealer, pool = await self._dealer(), PreprocessingPool(_POOL_BYTES)
                    # One copy: the argmax is measured, not the checks of its preprocessing.
                    asked = Session(job.session, tuple(job.parties), plan, copies=1)
                    grant = await ask(dealer, asked, rank, seconds)
                    channel = await self._open(job, rank, pools, grant.transcript())
                    stack.callback(channel.close)
                    drawn = await asyncio.to_thread(choose, grant, channel)
                    last = rank == len(job.parties) - 1
                    preprocessing = DealtPreprocessing(dealer, drawn, plan, last, pool, seconds)
                    stack.callback(preprocessing.close)
                    await preprocessing.ready()
                kept = stack.pop_all()
        except TimeoutError as error:
            raise VoteError(ErrorKind.PREPROCESSING_LATE, seconds=seconds) from error
        self._session = _PreparedJob(job, engine, share, preprocessing, channel, kept)

    async def _open(
        self, job: ArgmaxJob, rank: int, pools: Mapping[str, LinkPool], transcript: bytes
    ) -> PeerChannel:
        return await PeerChannel.open(
            job.session,
            hashlib.sha256(job.digest() + transcript).digest(),
            job.parties,
            rank,
            pools,
            self.link_server,
            self._settings.exchange_seconds,
        )

    async def _measure(self, at: float) -> jobs.PartyMeasurement:
        """Runs the prepared session by the clock, from the common start on."""
        if self._session is None:
            raise VoteError(ErrorKind.INTERNAL, who=self._name, why="nothing was prepared")
        session = self._session
        engine, channel, classes = session.engine, session.channel, session.job.classes
        before = dataclasses.replace(channel.traffic)
        step = engine.block_rows(classes) * classes
        blocks = [session.share[row : row + step] for row in range(0, session.share.size, step)]

        def run() -> tuple[list[Words], float, float]:
            # In the thread that computes: nothing but the moment itself is waited for.
            time.sleep(max(at - time.monotonic(), 0))
            cpu_started = time.process_time()
            labels = [
                engine.run(block, classes, channel, session.preprocessing) for block in blocks
            ]
            return labels, time.monotonic() - at, time.process_time() - cpu_started

        _reset_peak_memory()
        labels, seconds, cpu_seconds = await asyncio.to_thread(run)
        peak = _peak_memory()
        traffic = channel.traffic
        await channel.finish()
        self._end_session()
        return jobs.PartyMeasurement(
            seconds=seconds,
            cpu_seconds=cpu_seconds,
            rounds=traffic.rounds - before.rounds,
            bytes_sent=traffic.bytes_sent - before.bytes_sent,
            frame_bytes_sent=traffic.frame_bytes_sent - before.frame_bytes_sent,
            dealer_bytes=session.preprocessing.received_bytes,
            peak_memory_bytes=peak,
            label_shares=jobs.PartyMeasurement.encode(
                engine.label_code(classes).pack(np.concatenate(labels))
            ),
        )

    async def _round_trips(self, addresses: Mapping[str, str]) -> dict[str, float]:
        """One after the other: they would delay each other."""
        return {
            name: await (await self._pool(name, address)).round_trip()
            for name, address in addresses.items()
        }

    async def _pool(self, name: str, address: str) -> LinkPool:
        """Links that can be made; the same ones for the same address."""
        key = (name, address)
        if key not in self._pools:
            pool = LinkPool(self._credentials, address, name)
            self._pools[key] = await self._stack.enter_async_context(pool)
            # What is in between may not listen yet.
            deadline = time.monotonic() + self._settings.exchange_seconds
            while True:
                try:
                    await pool.ping()
                    break
                except VoteError:
                    if time.monotonic() > deadline:
                        raise
                    await asyncio.sleep(_RETRY_SECONDS)
        return self._pools[key]

    async def _dealer(self) -> grpc.aio.Channel:
        """A channel that is up."""
        dealer = Identity(Role.DEALER, self._settings.dealer_name)
        if self._dealer_channel is None:
            channel = rpc.dial(self._credentials, self._settings.dealer, dealer)
            self._dealer_channel = await self._stack.enter_async_context(channel)
        seconds = self._settings.exchange_seconds
        try:
            await asyncio.wait_for(self._dealer_channel.channel_ready(), seconds)
        except TimeoutError as error:
            what = f"The connection to {dealer}"
            raise VoteError(ErrorKind.DEADLINE, what=what, seconds=seconds) from error
        return self._dealer_channel

    def _end_session(self) -> None:
        if self._session is not None:
            self._session.stack.close()
            self._session = None


def _planned(job: ArgmaxJob) -> tuple[Engine, PreprocessingPlan]:
    job.engine.load()
    engine = job.make_engine()
    return engine, session_plan(engine, job.rows, job.classes, len(job.parties))


async def _standard_input() -> asyncio.StreamReader:
    if not stat.S_ISFIFO(os.fstat(sys.stdin.fileno()).st_mode):
        raise CommandError("requests come by a pipe: run mpc-vote bench, which starts this command")
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    return reader


def _say(answer: jobs.Answer) -> None:
    print(answer.model_dump_json(), flush=True)


def _reset_peak_memory() -> None:
    """Forgets the process's peak so far, where the kernel can."""
    with contextlib.suppress(OSError):
        (_PROC / "clear_refs").write_text(_RESET_PEAK)


def _peak_memory() -> int:
    """The most memory held since the reset, in bytes; without the kernel's help, ever."""
    try:
        lines = (_PROC / "status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(_PEAK)) * _KIB
    except (OSError, StopIteration):
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most * _KIB
