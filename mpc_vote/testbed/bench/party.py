"""One compute party for measuring: `mpc-vote bench` starts it and drives it by JSON lines.

It computes as a party of the service does, with the same engines, the same streams under mutual TLS
and the real dealer. What differs is around it: the totals come from a public seed instead of
agents' shares, all preprocessing is dealt and expanded before the clock starts, and the driver
gives the start, to all parties at once. So the clock sees the secure argmax and nothing else.
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

from aggregator.party.peers import PeerChannel, PeerServicer
from aggregator.party.preprocessing import DealtPreprocessing, PreprocessingPool, ask
from mpc_vote.app import process
from mpc_vote.app.config import Address, Name, Positive, RoleSettings
from mpc_vote.app.process import CommandError
from mpc_vote.argmax.engine import Engine, reduced, session_plan
from mpc_vote.errors import ErrorKind, VoteError
from mpc_vote.mpc.cut_and_choose import Session, choose
from mpc_vote.mpc.preprocessing import PreprocessingPlan
from mpc_vote.mpc.prg import Words
from mpc_vote.pki.identity import Credentials, Identity, Role
from mpc_vote.proto.mpcvote.v1 import party_pb2, party_pb2_grpc
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


class BenchPartySettings(RoleSettings):
    """A compute party for `mpc-vote bench`, which starts it and tells it what to do."""

    command: ClassVar[str] = "bench-party"

    listen: Address = Field(description="host:port to serve peers on")
    dealer: Address = Field(description="host:port of the dealer")
    dealer_name: Name = Field("dealer", description="name in the dealer's certificate")
    exchange_seconds: Positive = Field(60.0, description="longest wait for a peer")
    deal_seconds: Positive = Field(300.0, description="longest wait for a job's preprocessing")


def command(arguments: Sequence[str]) -> int:
    """`mpc-vote bench-party`."""
    return process.run(BenchPartySettings, arguments, serve)


async def serve(settings: BenchPartySettings) -> None:
    """Answers requests until their end, or until told to stop."""
    requests = await _standard_input()
    credentials = Credentials.load(settings.certs, Role.PARTY)
    async with contextlib.AsyncExitStack() as stack:
        stopped = await stack.enter_async_context(process.until_stopped())
        party = _BenchParty(settings, credentials, stack)
        services = [(party_pb2_grpc.add_PeerServiceServicer_to_server, party.peer_servicer)]
        server = rpc.Server(credentials, settings.listen, services, party.health)
        await server.start()
        stack.push_async_callback(server.stop)
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
    """A job whose preprocessing and streams are there."""

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
        self._channels: dict[tuple[Identity, str], grpc.aio.Channel] = {}
        self._session: _PreparedJob | None = None
        # Who its peers are is told with each job.
        self.peer_servicer = PeerServicer(None)

    async def health(self) -> Mapping[str, bool]:
        """A measured party serves as long as it runs."""
        return {party_pb2.DESCRIPTOR.services_by_name["PeerService"].full_name: True}

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
                return await self._measure()

    async def _prepare(self, job: ArgmaxJob, addresses: Mapping[str, str]) -> None:
        self._end_session()
        rank = job.parties.index(self._name)
        peers = {name: await self._peer(name, address) for name, address in addresses.items()}
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
                    channel = await self._open(job, rank, peers, grant.transcript())
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
        self, job: ArgmaxJob, rank: int, peers: Mapping[str, grpc.aio.Channel], transcript: bytes
    ) -> PeerChannel:
        return await PeerChannel.open(
            job.session,
            hashlib.sha256(job.digest() + transcript).digest(),
            job.parties,
            rank,
            peers,
            self.peer_servicer,
            self._settings.exchange_seconds,
        )

    async def _measure(self) -> jobs.PartyMeasurement:
        """Runs the prepared session by the clock."""
        if self._session is None:
            raise VoteError(ErrorKind.INTERNAL, who=self._name, why="nothing was prepared")
        session = self._session
        engine, channel, classes = session.engine, session.channel, session.job.classes
        before = dataclasses.replace(channel.traffic)
        step = engine.block_rows(classes) * classes
        blocks = [session.share[at : at + step] for at in range(0, session.share.size, step)]
        labels = []
        _reset_peak_memory()
        cpu_started, started = time.process_time(), time.perf_counter()
        for block in blocks:
            labels.append(
                await asyncio.to_thread(engine.run, block, classes, channel, session.preprocessing)
            )
        seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - cpu_started
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
            label_shares=jobs.PartyMeasurement.encode(reduced(np.concatenate(labels), classes)),
        )

    async def _round_trips(self, addresses: Mapping[str, str]) -> dict[str, float]:
        """One after the other: they would delay each other."""
        return {
            name: await rpc.round_trip(await self._peer(name, address))
            for name, address in addresses.items()
        }

    async def _peer(self, name: str, address: str) -> grpc.aio.Channel:
        return await self._dial(Identity(Role.PARTY, name), address)

    async def _dealer(self) -> grpc.aio.Channel:
        return await self._dial(
            Identity(Role.DEALER, self._settings.dealer_name), self._settings.dealer
        )

    async def _dial(self, server: Identity, address: str) -> grpc.aio.Channel:
        """A channel that is up; the same one for the same address."""
        key = (server, address)
        if key not in self._channels:
            channel = rpc.dial(self._credentials, address, server)
            self._channels[key] = await self._stack.enter_async_context(channel)
        seconds = self._settings.exchange_seconds
        try:
            await asyncio.wait_for(self._channels[key].channel_ready(), seconds)
        except TimeoutError as error:
            what = f"The connection to {server}"
            raise VoteError(ErrorKind.DEADLINE, what=what, seconds=seconds) from error
        return self._channels[key]

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
