"""What the service's tests share: small federations with known votes, raw channels, waiting."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import hashlib
import os
import secrets
import subprocess
import sys
import time
from collections.abc import (
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import numpy as np
import numpy.typing as npt
import pytest

from agent_node.agent import Agent
from agent_node.command import serve_agent
from agent_node.settings import AgentSettings
from agent_node.startup import open_agent
from agent_node.voting import prepare
from mpc_vote.app import config
from mpc_vote.client import AsyncLabelClient, Plan
from mpc_vote.data.dataset import Dataset
from mpc_vote.data.partition import save_part
from mpc_vote.errors import ErrorKind, VoteError
from mpc_vote.learning.voters import Voter
from mpc_vote.learning.voters.knn import KnnVoter
from mpc_vote.pki.identity import Credentials, Identity, Role
from mpc_vote.privacy.ledger import Ledger, Spend
from mpc_vote.proto.mpcvote.v1 import agent_pb2, agent_pb2_grpc, common_pb2
from mpc_vote.testbed.cluster import Cluster
from mpc_vote.transport import rpc
from mpc_vote.voting.ballots import KNN_COUNT, BallotKind

QUIET = 1e-5
"""A sigma at which a round of thousands of queries carries no noise at all, almost surely."""

SECONDS = 30.0
"""Longer than anything here takes on a busy machine; only a failing test waits for it."""

UNKNOWN_FIELD = b"\xc2\x3e\x80\x80\x08" + bytes(1 << 17)
"""At the end of any message: field 1000, which none has, of 128 KiB."""

_TAIL_LINES = 25

Queries = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int64]


def points(seed: int, rows: int, shape: tuple[int, ...], classes: int, spread: float) -> Dataset:
    """Points around one centre per class; a large spread makes neighbours disagree."""
    centres = np.random.default_rng(7).normal(size=(classes, *shape)) * 3
    rng = np.random.default_rng(seed)
    y = rng.integers(classes, size=rows)
    x = centres[y] + rng.normal(size=(rows, *shape)) * spread
    return Dataset("points", x.astype(np.float32), y.astype(np.int64), classes)


@dataclass(frozen=True)
class Group:
    """Agents that answer the same queries, each with a part of its own and a public k."""

    shape: tuple[int, ...]
    classes: int
    ks: Mapping[str, int]
    spread: float
    rows: int = 60
    settings: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def parts(self) -> dict[str, Dataset]:
        """What each agent holds."""
        return {
            name: points(100 + place, self.rows, self.shape, self.classes, self.spread)
            for place, name in enumerate(self.ks)
        }

    def queries(self, rows: int, seed: int = 0) -> Queries:
        """Public queries like the private points."""
        return points(seed, rows, self.shape, self.classes, self.spread).x

    def totals(
        self, queries: Queries, kind: BallotKind, agents: Sequence[str] | None = None
    ) -> npt.NDArray[np.int64]:
        """The plain sum of these agents' ballots, which nobody in the service ever sees."""
        names = list(self.ks) if agents is None else agents
        bits = kind.default_fraction_bits([self.ks[name] for name in self.ks])
        total = np.zeros((len(queries), self.classes), dtype=np.int64)
        for name in names:
            part, k = self.parts[name], self.ks[name]
            voter = KnnVoter(part.x, part.y, part.classes, k)
            total += kind.encode(
                voter.counts(queries), classes=self.classes, fraction_bits=bits, k=k
            )
        return total

    def winners(
        self,
        queries: Queries,
        kind: BallotKind = KNN_COUNT,
        agents: Sequence[str] | None = None,
    ) -> Labels:
        """The plain argmax; ties go to the lower class."""
        best: Labels = np.argmax(self.totals(queries, kind, agents), axis=1)
        return best

    def plan(self, **more: Any) -> Plan:
        """A plan without noise that this group can answer."""
        return Plan(**{"classes": self.classes, "sigma": QUIET, **more})

    def write(self, directory: Path) -> dict[str, dict[str, str]]:
        """The agents' data as files, and their settings."""
        directory.mkdir(parents=True, exist_ok=True)
        given = {}
        for name, part in self.parts.items():
            path = directory / f"{name}.npz"
            save_part(path, part)
            given[name] = {
                "data": str(path),
                "k": str(self.ks[name]),
                **self.settings,
            }
        return given


# Neighbours disagree, and totals tie now and then: the label depends on every single vote.
CLINICS = Group(shape=(6,), classes=3, ks={"clinic-0": 3, "clinic-1": 5, "clinic-2": 7}, spread=4.0)
# Another shape and number of classes, and agents that insist on some noise.
LABS = Group(
    shape=(16, 8),
    classes=4,
    ks={"lab-0": 9, "lab-1": 9},
    spread=0.5,
    settings={"min-sigma": "0.5"},
)
FARMS = Group(shape=(5,), classes=3, ks={"north": 5, "south": 5, "east": 5}, spread=4.0)


@dataclass
class Service:
    """A running cluster and the groups of agents in it."""

    cluster: Cluster
    groups: Mapping[str, Group]

    def client(self, name: str = "client") -> AsyncLabelClient:
        """A client with a certificate of this name."""
        return AsyncLabelClient(self.cluster.coordinator_address, self.certs(Role.CLIENT, name))

    def certs(self, role: Role, name: str) -> Path:
        """Where an identity's files are; they are issued when first asked for."""
        directory = self.cluster.certs(role, name)
        if not directory.exists():
            self.cluster.authority.issue(Identity(role, name), directory)
        return directory

    def credentials(self, role: Role, name: str) -> Credentials:
        """An identity of the cluster's authority."""
        return Credentials.load(self.certs(role, name))

    def address(self, server: Identity) -> str:
        """Where a server of the cluster listens."""
        if server.role is Role.PARTY:
            return self.cluster.party_addresses[server.name]
        if server.role is Role.DEALER:
            return self.cluster.dealer_address
        return self.cluster.coordinator_address

    @contextlib.asynccontextmanager
    async def channel(self, caller: Identity, server: Identity) -> AsyncIterator[grpc.aio.Channel]:
        """A channel from anybody to any server of the cluster."""
        credentials = self.credentials(caller.role, caller.name)
        async with rpc.dial(credentials, self.address(server), server) as channel:
            yield channel

    def spends(self) -> list[Spend]:
        """Everything that the coordinator has ever charged, as it is on disk."""
        path = self.cluster.directory / "data" / "coordinator" / "ledger.db"
        with Ledger(path, None) as ledger:
            return ledger.spends()

    def tails(self) -> Iterator[tuple[str, str]]:
        """The end of every process's log."""
        for log in sorted((self.cluster.directory / "logs").glob("*.log")):
            lines = log.read_text(errors="replace").splitlines()[-_TAIL_LINES:]
            yield log.stem, "\n".join(lines)

    @contextlib.asynccontextmanager
    async def extra_agent(self, name: str, group: Group, **flags: str) -> AsyncIterator[None]:
        """One more agent, in this process, with its own settings; it attends inside."""
        part = self.cluster.directory / f"{name}.npz"
        save_part(part, points(5, group.rows, group.shape, group.classes, group.spread))
        given = {
            "certs": str(self.certs(Role.AGENT, name)),
            "data": str(part),
            "data_dir": str(self.cluster.directory / "data" / name),
            "coordinator": self.cluster.coordinator_address,
            "parties": ",".join(f"{n}={a}" for n, a in self.cluster.party_addresses.items()),
            "k": "5",
            "budget_instance": "inf",
            "min_quorum": "1",
            "min_collusion": "0",
            **flags,
        }
        arguments = [f"--{key.replace('_', '-')}={value}" for key, value in given.items()]
        async with cancelled(serve_agent(config.load(AgentSettings, arguments))):
            async with self.client() as client:
                await until(lambda: attends(client, name), f"{name} attends")
            yield


async def join(
    stack: contextlib.AsyncExitStack,
    service: Service,
    name: str,
    part: Dataset,
    kind: type[Agent],
    *flags: str,
) -> Voter:
    """An agent of this kind and data in the test's own process; attends until the stack ends."""
    path = service.cluster.directory / f"{name}.npz"
    save_part(path, part)
    parties = ",".join(f"{n}={a}" for n, a in service.cluster.party_addresses.items())
    settings = config.load(
        AgentSettings,
        [
            *flags,
            f"--certs={service.certs(Role.AGENT, name)}",
            f"--data={path}",
            f"--data-dir={service.cluster.directory / 'data' / name}",
            f"--coordinator={service.cluster.coordinator_address}",
            f"--parties={parties}",
            "--budget-instance=inf",
            "--min-quorum=1",
            "--min-collusion=0",
        ],
    )
    servings = prepare(settings, name)
    credentials = service.credentials(Role.AGENT, name)
    agent = await open_agent(stack, settings, credentials, settings.data_dir, servings, kind)
    await stack.enter_async_context(cancelled(agent.attend()))
    return servings[0].voter


async def attends(client: AsyncLabelClient, *names: str) -> bool:
    """Whether all these agents attend."""
    try:
        present = {agent.agent for agent in (await client.service()).agents}
    except VoteError:
        return False
    return set(names) <= present


class Ghost:
    """An agent under the test's control: it attends, and answers only what it is told to."""

    def __init__(self, call: Any) -> None:
        self._call = call

    async def announced(self) -> common_pb2.RoundSpec:
        """The next round that it is told of."""
        response = await asyncio.wait_for(self._call.read(), SECONDS)
        return common_pb2.RoundSpec.FromString(response.announcement.spec)

    async def say(self, **message: Any) -> None:
        """Says anything."""
        await self.write(agent_pb2.AttendRequest(**message))

    async def write(self, message: agent_pb2.AttendRequest) -> None:
        """Says just this."""
        await self._call.write(message)

    async def prepare(self, round_id: str) -> None:
        """Says that it is prepared, and waits until it is told to charge and send."""
        await self.say(prepared=agent_pb2.Prepared(round_id=round_id))
        await self.started(round_id)

    async def started(self, round_id: str) -> None:
        """Waits until it is told to charge and send."""
        response = await asyncio.wait_for(self._call.read(), SECONDS)
        assert response.go.round_id == round_id

    async def decline(self, round_id: str, reason: str = "it does not want to") -> None:
        """Refuses a round."""
        declined = agent_pb2.Declined(round_id=round_id, error="POLICY_REFUSED", reason=reason)
        await self._call.write(agent_pb2.AttendRequest(declined=declined))


@contextlib.asynccontextmanager
async def ghost(
    service: Service,
    name: str,
    *,
    classes: int,
    shape: tuple[int, ...] = (2,),
    address: str = "",
    min_quorum: int = 1,
    process_id: str = "",
) -> AsyncIterator[Ghost]:
    """An agent that attends, for rounds that stay open until the test ends them."""
    credentials = service.credentials(Role.AGENT, name)
    coordinator = Identity(Role.COORDINATOR, "coordinator")
    where = address or service.cluster.coordinator_address
    async with rpc.dial(credentials, where, coordinator) as channel:
        call = agent_pb2_grpc.AgentServiceStub(channel).Attend()
        offer = common_pb2.Offer(
            classes=classes,
            query_dtype=common_pb2.DTYPE_FLOAT32,
            query_shape=shape,
            ballots=[common_pb2.BALLOT_KIND_ONE_HOT],
        )
        capabilities = agent_pb2.Capabilities(
            offers=[offer],
            min_quorum=min_quorum,
            ledger_id=hashlib.sha256(name.encode()).hexdigest()[:32],
            process_id=process_id or secrets.token_hex(16),
        )
        await call.write(agent_pb2.AttendRequest(capabilities=capabilities))
        welcome: Any = await asyncio.wait_for(call.read(), SECONDS)
        assert welcome.HasField("welcome")
        try:
            yield Ghost(call)
        finally:
            call.cancel()


async def until(
    test: Callable[[], Awaitable[bool]], what: str, seconds: float = SECONDS, step: float = 0.05
) -> None:
    """Waits until the test holds; fails, saying what never happened, if it does not in time."""
    deadline = time.monotonic() + seconds
    while not await test():
        if time.monotonic() > deadline:
            pytest.fail(f"this did not happen within {seconds:g} s: {what}")
        await asyncio.sleep(step)


@contextlib.contextmanager
def refused(kind: ErrorKind, *parts: str) -> Iterator[None]:
    """The work inside raises this entry of the catalogue, and its sentence has these parts."""
    with pytest.raises(VoteError) as caught:
        yield
    assert caught.value.name == kind.name, caught.value.message
    for part in parts:
        assert part in caught.value.message


async def error_of(work: Awaitable[Any] | AsyncIterable[Any]) -> VoteError:
    """The catalogue's error that a raw call ends with."""
    try:
        result = await asyncio.wait_for(_drained(work), SECONDS)
    except grpc.RpcError as error:
        return VoteError.from_rpc(error, "The server")
    except VoteError as error:
        return error
    pytest.fail(f"this should have been refused: {result!r}")


async def _drained(work: Any) -> Any:
    """What a call answers, whether it streams or not."""
    if hasattr(work, "__aiter__"):
        return [response async for response in work]
    return await work


@contextlib.asynccontextmanager
async def cancelled(work: Coroutine[Any, Any, Any]) -> AsyncIterator[asyncio.Task[Any]]:
    """Runs beside what is inside, and ends with it."""
    task = asyncio.create_task(work)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def expired(service: Service, identity: Identity, directory: Path) -> Path:
    """Files of an identity whose certificate was good until some days ago."""
    start = dt.datetime.now(dt.UTC) - dt.timedelta(days=20)
    service.cluster.authority.issue(identity, directory, days=10, valid_from=start)
    return directory


def command(*arguments: str | Path, seconds: float = 60.0) -> subprocess.CompletedProcess[str]:
    """`mpc-vote` as a user runs it."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("MPC_VOTE_")}
    return subprocess.run(
        [sys.executable, "-m", "mpc_vote.cli", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=seconds,
        env={**environment, "OMP_NUM_THREADS": "1", "COLUMNS": "200"},
    )
