"""A small federation of real processes on the harness's wire, with votes that are known."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path

import numpy as np
import numpy.typing as npt
import psutil

from mpc_vote.client import LabelResult, Plan
from mpc_vote.data.dataset import Dataset
from mpc_vote.data.partition import save_part
from mpc_vote.errors import ErrorKind, VoteError
from mpc_vote.learning.voters.knn import KnnVoter
from mpc_vote.pki.identity import Credentials, Role
from mpc_vote.tasks import Features, Task, VectorInput, Vote
from mpc_vote.tasks.toml import dump
from mpc_vote.testbed.chaos.passing import Pair
from mpc_vote.testbed.chaos.proxy import ProxyNetwork
from mpc_vote.testbed.children import RoleProcess
from mpc_vote.testbed.cluster import Cluster
from mpc_vote.voting.ballots import KNN_COUNT

PARTIES = 3
AGENTS = ("agent-0", "agent-1", "agent-2")
QUORUM = 2
ANSWER_SECONDS = 5
AGGREGATE_SECONDS = 10
EXCHANGE_SECONDS = 5
# What a round may take beyond answering and counting: two calls to a party that says nothing, and a
# measurement of the way to it; or until a silent connection is given up, and the machine.
GRACE_SECONDS = 50
LIMIT_SECONDS = ANSWER_SECONDS + AGGREGATE_SECONDS + GRACE_SECONDS

_CLASSES, _FEATURES, _ROWS, _NEIGHBOURS = 3, 5, 60, 5
QUERIES = 12
# So little that a round carries no noise at all, almost surely: its labels are known.
_SIGMA = 1e-5
# All records lie within the radius, and contribute to every query that is answered.
_TASK = Task(
    "faults",
    tuple(str(number) for number in range(_CLASSES)),
    VectorInput((_FEATURES,)),
    Features("raw"),
    Vote(KNN_COUNT, _NEIGHBOURS, radius=1e6, max_contributions=1 << 30),
)
_START_SECONDS = 120.0
_POLL_SECONDS = 0.05

Labels = npt.NDArray[np.int64]


@dataclass(frozen=True)
class RequestOutcome:
    """How a request ended for its client: with labels, with an error, or with its death."""

    request_id: str
    seconds: float
    result: LabelResult | None = None
    labels: Labels | None = None
    error: str = ""
    message: str = ""

    @property
    def name(self) -> str:
        """In a word."""
        return "completed" if self.labels is not None else self.error


def _points(seed: int, rows: int) -> Dataset:
    """Around one centre per class, so far spread that neighbours disagree: every vote counts."""
    centres = np.random.default_rng(7).normal(size=(_CLASSES, _FEATURES)) * 3
    rng = np.random.default_rng(seed)
    y = rng.integers(_CLASSES, size=rows)
    x = centres[y] + rng.normal(size=(rows, _FEATURES)) * 4
    return Dataset("points", x.astype(np.float32), y.astype(np.int64), _CLASSES)


@dataclass
class Federation(Cluster):
    """A cluster in which nobody dials anybody but through the wire."""

    killed: set[str] = field(default_factory=set)
    asking: RoleProcess | None = None

    @classmethod
    def create(cls, directory: Path) -> Federation:
        """With certificates and data, not started yet."""
        agents = {}
        task = directory / "task.toml"
        task.write_text(dump(_TASK))
        for number, name in enumerate(AGENTS):
            path = directory / f"{name}.npz"
            save_part(path, _points(100 + number, _ROWS))
            agents[name] = {"task": str(task), "data": str(path)}
        federation = cls(
            directory,
            PARTIES,
            agents,
            {"aggregate-seconds": str(AGGREGATE_SECONDS)},
            {"exchange-seconds": str(EXCHANGE_SECONDS)},
            tasks=(task,),
        )
        federation.issue()
        return federation

    def __post_init__(self) -> None:
        super().__post_init__()
        # Sockets with names: nobody else takes a port while its process is dead.
        self.coordinator_address = self._socket("coordinator")
        self.dealer_address = self._socket("dealer")
        self.party_addresses = {name: self._socket(name) for name in self.party_addresses}
        self.servers = {
            "coordinator": self.coordinator_address,
            "dealer": self.dealer_address,
            **self.party_addresses,
        }
        self.peer_addresses = {name: self._socket(f"{name}-links") for name in self.peer_addresses}
        self.wire = ProxyNetwork(
            self.directory, self.servers, self._pairs(), peers=self.peer_addresses
        )

    def _socket(self, name: str) -> str:
        return f"unix:{self.directory / name}.sock"

    def _pairs(self) -> Iterator[Pair]:
        yield "client", "coordinator"
        for party in self.party_addresses:
            yield "coordinator", party
            yield party, "dealer"
        # Of two parties, the one of lower rank dials.
        yield from combinations(self.party_addresses, 2)
        for agent in self.agents:
            yield agent, "coordinator"
            yield from ((agent, party) for party in self.party_addresses)

    def address(self, caller: str, server: str) -> str:
        """A line of the wire; nobody dials itself."""
        line = self.wire.lines.get((caller, server))
        return self.servers[server] if line is None else line.address

    def peer_address(self, caller: str, peer: str) -> str:
        """A line of the wire to a party of higher rank; no other is dialled."""
        line = self.wire.lines.get((caller, peer))
        return self.peer_addresses[peer] if line is None else line.address

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """All processes run and attend inside."""
        roles = {"client": Role.CLIENT, "coordinator": Role.COORDINATOR, "dealer": Role.DEALER}
        roles |= {name: Role.PARTY for name in self.party_addresses}
        roles |= {name: Role.AGENT for name in self.agents}
        await self.wire.start(
            {name: Credentials.load(self.certs(role, name)) for name, role in roles.items()}
        )
        try:
            self.start()
            await self.ready(_START_SECONDS)
            yield
        finally:
            await asyncio.to_thread(self.stop)
            await self.wire.stop()

    # faults

    def process(self, name: str) -> psutil.Process:
        """The process of a role."""
        child = self.asking if name == "client" else self.children[name]
        assert child is not None, f"{name} does not run"
        return psutil.Process(child.process.pid)

    async def kill(self, name: str, number: signal.Signals) -> None:
        """Ends a process; its port refuses until it is back."""
        if name == "client":
            self.process(name).send_signal(number)
            return
        self.killed.add(name)
        if number is signal.SIGKILL:
            self.process(name).kill()
        else:
            await asyncio.to_thread(self.stop_child, name, number)
        for line in self.wire.to(name):
            line.cut()
        if name in self.children:
            await asyncio.to_thread(self.stop_child, name, number)

    async def revive(self, name: str) -> None:
        """Starts a process that was ended; its port answers once it listens."""
        if name == "dealer":
            self.start_dealer()
        elif name == "coordinator":
            self.start_coordinator()
        elif name in self.agents:
            self.start_agent(name)
        else:
            self.start_party(name)
        if name in self.servers:
            async with asyncio.timeout(_START_SECONDS):
                while not await _listens(self.servers[name]):
                    self.check()
                    await asyncio.sleep(_POLL_SECONDS)
        for line in self.wire.to(name):
            line.join()
        self.killed.discard(name)

    # rounds

    def queries(self, request_id: str) -> npt.NDArray[np.float32]:
        """The public queries of a request: other ones for each."""
        return _points(int.from_bytes(request_id.encode()), QUERIES).x

    def winners(self, request_id: str, agents: list[str]) -> Labels:
        """What these agents' votes add up to, in the plain; ties go to the lower class."""
        queries = self.queries(request_id)
        parts = {name: _points(100 + number, _ROWS) for number, name in enumerate(AGENTS)}
        counts = [
            KnnVoter(parts[name].x, parts[name].y, _CLASSES, _NEIGHBOURS).counts(queries)
            for name in agents
        ]
        winners: Labels = np.argmax(np.sum(counts, axis=0), axis=1)
        return winners

    async def ask(self, request_id: str) -> RequestOutcome:
        """A request from this process."""
        started = time.monotonic()
        plan = Plan(
            task=_TASK,
            sigma=_SIGMA,
            quorum=QUORUM,
            answer_seconds=ANSWER_SECONDS,
            request_id=request_id,
        )
        error = message = ""
        result: LabelResult | None = None
        try:
            async with asyncio.timeout(LIMIT_SECONDS), self.client() as client:
                result = await client.label(self.queries(request_id), plan)
        except VoteError as failure:
            error, message = failure.name, failure.message
        except TimeoutError:
            error, message = "hung", f"no answer within {LIMIT_SECONDS} s"
        except Exception as failure:
            error, message = "raised", repr(failure)
        labels = None if result is None else result.labels
        return RequestOutcome(
            request_id, time.monotonic() - started, result, labels, error, message
        )

    async def ask_by_command(self, request_id: str) -> RequestOutcome:
        """A request from a process of its own, which may be killed or paused."""
        queries, out = self.directory / "queries.npy", self.directory / "labels.npy"
        out.unlink(missing_ok=True)
        np.save(queries, self.queries(request_id))
        settings = {
            "certs": str(self.client_certs),
            "coordinator": self.address("client", "coordinator"),
            "queries": str(queries),
            "out": str(out),
            "task": str(self.tasks[0]),
            "sigma": str(_SIGMA),
            "quorum": str(QUORUM),
            "answer-seconds": str(ANSWER_SECONDS),
            "request-id": request_id,
        }
        started = time.monotonic()
        self.start_command("client", "label", settings)
        # It ends by itself, unlike the others.
        self.asking = child = self.children.pop("client")
        try:
            code = await asyncio.to_thread(child.process.wait, LIMIT_SECONDS)
        except Exception:
            child.process.kill()
            return RequestOutcome(request_id, time.monotonic() - started, error="hung")
        seconds = time.monotonic() - started
        if code == 0:
            return RequestOutcome(request_id, seconds, labels=np.load(out))
        words = child.last_words()
        name = words.partition(": error: ")[2].partition(":")[0]
        if code < 0:
            name = "killed"
        known = name in ErrorKind.__members__ or name == "killed"
        return RequestOutcome(request_id, seconds, error=name if known else "raised", message=words)


async def _listens(address: str) -> bool:
    try:
        _, writer = await asyncio.open_unix_connection(address.removeprefix("unix:"))
    except OSError:
        return False
    writer.close()
    return True
