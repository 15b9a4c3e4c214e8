"""All roles as separate processes on this machine: for the demo, for tests and for measuring.

The same commands, settings and certificates as on different machines; only the addresses are
loopback. A child that ends by itself is an error that carries the child's own words. Children die
with their parent.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from mpc_vote.app.process import PARENT_VARIABLE, CommandError
from mpc_vote.client import AsyncLabelClient
from mpc_vote.errors import VoteError
from mpc_vote.pki.authority import CertificateAuthority
from mpc_vote.pki.identity import Identity, Role

_STOP_SECONDS = 10.0
_POLL_SECONDS = 0.1
_MEMORY_SECONDS = 0.5


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
class Cluster:
    """A dealer, parties, a coordinator and agents under one folder.

    `tasks` are files of tasks that the coordinator serves. An agent takes one by its settings (task
    and data), or several: `serves` has for such an agent a table of settings for each.
    """

    directory: Path
    parties: int
    agents: Mapping[str, Mapping[str, str]]
    coordinator_settings: Mapping[str, str] = field(default_factory=dict)
    party_settings: Mapping[str, str] = field(default_factory=dict)
    tasks: Sequence[Path] = ()
    serves: Mapping[str, Sequence[Mapping[str, str]]] = field(default_factory=dict)
    children: dict[str, RoleProcess] = field(default_factory=dict)
    _memory: _MemoryWatch | None = None

    def __post_init__(self) -> None:
        if self.parties < 2:
            raise CommandError("at least two parties are needed")
        ports = free_ports(self.parties + 2)
        self.coordinator_address = f"127.0.0.1:{ports[0]}"
        self.dealer_address = f"127.0.0.1:{ports[1]}"
        self.party_addresses = {
            f"party-{rank}": f"127.0.0.1:{port}" for rank, port in enumerate(ports[2:])
        }

    def address(self, caller: str, server: str) -> str:
        """Where a caller finds a server; a subclass may put something in between."""
        servers = {"coordinator": self.coordinator_address, "dealer": self.dealer_address}
        return {**servers, **self.party_addresses}[server]

    @property
    def client_certs(self) -> Path:
        """The client's certificate."""
        return self.certs(Role.CLIENT, "client")

    def certs(self, role: Role, name: str) -> Path:
        """Where an identity's files are."""
        return self.directory / "certs" / role / name

    @property
    def authority(self) -> CertificateAuthority:
        """The authority of this cluster."""
        return CertificateAuthority.load(self.directory / "certs" / "ca")

    def issue(self) -> None:
        """Makes fresh certificates for everybody."""
        authority = CertificateAuthority.create(self.directory / "certs" / "ca")
        identities = [
            Identity(Role.COORDINATOR, "coordinator"),
            Identity(Role.DEALER, "dealer"),
            Identity(Role.CLIENT, "client"),
            *(Identity(Role.PARTY, name) for name in self.party_addresses),
            *(Identity(Role.AGENT, name) for name in self.agents),
        ]
        for identity in identities:
            authority.issue(identity, self.certs(identity.role, identity.name), hosts=["localhost"])

    def start(self) -> None:
        """Starts all roles."""
        self._memory = _MemoryWatch(self.pids)
        self.start_dealer()
        for name in self.party_addresses:
            self.start_party(name)
        self.start_coordinator()
        self.start_agents()

    def start_dealer(self) -> None:
        """Starts the dealer."""
        self._spawn("dealer", Role.DEALER, "dealer", {"listen": self.dealer_address})

    def start_party(self, name: str) -> None:
        """Starts one party."""
        settings = {
            "listen": self.party_addresses[name],
            "data-dir": str(self.directory / "data" / name),
            "parties": self._parties(name),
            "dealer": self.address(name, "dealer"),
            **self.party_settings,
        }
        self._spawn(name, Role.PARTY, name, settings)

    def start_coordinator(self) -> None:
        """Starts the coordinator."""
        settings = {
            "listen": self.coordinator_address,
            "data-dir": str(self.directory / "data" / "coordinator"),
            "parties": self._parties("coordinator"),
            "min-sigma": "1e-9",
            **({"task": ",".join(map(str, self.tasks))} if self.tasks else {}),
            **self.coordinator_settings,
        }
        self._spawn("coordinator", Role.COORDINATOR, "coordinator", settings)

    def start_agents(self) -> None:
        """Starts all agents."""
        for name in self.agents:
            self.start_agent(name)

    def start_agent(self, name: str) -> None:
        """Starts one agent."""
        settings = {
            "coordinator": self.address(name, "coordinator"),
            "parties": self._parties(name),
            "data-dir": str(self.directory / "data" / name),
            # For trying things out: agents accept what they are not told to refuse.
            "budget-instance": "inf",
            "min-quorum": "1",
            "min-collusion": "0",
            **({"config": str(self._config(name))} if name in self.serves else {}),
            **self.agents[name],
        }
        self._spawn(name, Role.AGENT, name, settings)

    def _config(self, name: str) -> Path:
        """A file of settings with what an agent serves."""
        lines = []
        for table in self.serves[name]:
            # JSON's texts are TOML's.
            lines += ["[[serves]]", *(f"{key} = {json.dumps(table[key])}" for key in table)]
        path = self.directory / "config" / f"{name}.toml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(lines) + "\n")
        return path

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
        """Ends all roles, politely first."""
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

    def client(self) -> AsyncLabelClient:
        """A client of the cluster."""
        return AsyncLabelClient(self.address("client", "coordinator"), self.client_certs)

    async def ready(
        self, seconds: float, on_progress: Callable[[int], None] = lambda _: None
    ) -> None:
        """Waits until the service can label and every agent attends; tells how many agents do."""
        try:
            async with asyncio.timeout(seconds), self.client() as client:
                while (attending := await self._attending(client)) < len(self.agents):
                    on_progress(attending)
                    await asyncio.sleep(_POLL_SECONDS)
                on_progress(attending)
                while not await client.is_ready():
                    self.check()
                    await asyncio.sleep(_POLL_SECONDS)
        except TimeoutError as error:
            self.check()
            raise CommandError(
                f"the service was not ready after {seconds:g} s; the logs are in {self.directory}"
            ) from error

    async def _attending(self, client: AsyncLabelClient) -> int:
        self.check()
        try:
            return len((await client.service()).agents)
        except VoteError:
            return 0

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

    def _parties(self, caller: str) -> str:
        return ",".join(f"{name}={self.address(caller, name)}" for name in self.party_addresses)

    def _program(self, label: str) -> list[str]:
        """What runs the role of this label, before its arguments; for tests to put in another."""
        return [sys.executable, "-m", "mpc_vote.cli"]

    def _spawn(self, label: str, role: Role, name: str, settings: Mapping[str, str]) -> None:
        certs = str(self.certs(role, name))
        self.start_command(label, role.value, {"certs": certs, **settings})

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


def free_ports(count: int) -> list[int]:
    """Ports of the loopback interface that nobody listens on."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


class _MemoryWatch:
    """Samples the memory of this process and its children; pages they share count once."""

    def __init__(self, pids: Callable[[], Iterable[int]]) -> None:
        self._pids = pids
        self._stopped = threading.Event()
        self.peak = 0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(_MEMORY_SECONDS):
            self.peak = max(self.peak, sum(map(_memory_of, [os.getpid(), *self._pids()])))


def _memory_of(pid: int) -> int:
    try:
        info = psutil.Process(pid).memory_full_info()
    except psutil.Error:
        return 0
    size: int = getattr(info, "pss", info.rss)
    return size
