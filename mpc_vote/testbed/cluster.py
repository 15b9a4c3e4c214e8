"""All roles as separate processes on this machine: to try things out, for the demo, for tests and
for measuring.

    from mpc_vote import Plan
    from mpc_vote.data.readers import read_inputs
    from mpc_vote.tasks import Task
    from mpc_vote.testbed.cluster import Cluster

    task = Task.load("task.toml")
    hospitals = {"alice": "alice.csv", "bob": "bob.csv", "carol": "carol.csv"}
    with Cluster.of(task, hospitals) as cluster, cluster.connect() as client:
        queries = read_inputs("public.csv", task).rows
        result = client.label(queries, Plan(task=task, sigma=10.0))
        print(result.names, result.cost.epsilon_instance)

The same commands, settings and certificates as on different machines; only the addresses are
loopback. A child that ends by itself is an error that carries the child's own words. Children die
with their parent.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from mpc_vote.app.process import CommandError
from mpc_vote.client import AsyncLabelClient, LabelClient
from mpc_vote.errors import VoteError
from mpc_vote.pki.authority import CertificateAuthority
from mpc_vote.pki.identity import Identity, Role
from mpc_vote.tasks import Task
from mpc_vote.tasks.toml import dump
from mpc_vote.testbed.children import Children
from mpc_vote.testbed.members import Member, check_members, settings_of

if TYPE_CHECKING:
    from mpc_vote.testbed.in_process import InProcessAgents

_POLL_SECONDS = 0.1
_READY_SECONDS = 120.0


@dataclass
class Cluster(Children):
    """A dealer, parties, a coordinator and agents under one folder.

    `tasks` are files of tasks that the coordinator serves. An agent takes one by its settings (task
    and data), or several: `serves` has for such an agent a table of settings for each. `functions`
    are agents that run in this process and vote on the first task as a function says.

    Agents accept what their settings don't tell them to refuse, whatever it costs: a cluster is for
    trying things out, and all that it holds is in one folder on one machine.
    """

    parties: int
    agents: Mapping[str, Mapping[str, str]]
    coordinator_settings: Mapping[str, str] = field(default_factory=dict)
    party_settings: Mapping[str, str] = field(default_factory=dict)
    tasks: Sequence[Path] = ()
    serves: Mapping[str, Sequence[Mapping[str, str]]] = field(default_factory=dict)
    functions: Mapping[str, Callable[[Any], Any]] = field(default_factory=dict)
    _in_process: InProcessAgents | None = None
    _temporary: tempfile.TemporaryDirectory[str] | None = None

    @classmethod
    def of(
        cls,
        task: Task | str | Path,
        agents: Mapping[str, Member],
        *,
        parties: int = 3,
        directory: str | Path | None = None,
        **coordinator_settings: object,
    ) -> Self:
        """A federation for one task, to be used in a `with` statement.

        An agent, by its name, is a file or folder of private data, from which its nearest
        neighbours vote; or settings as the flags of `mpc-vote agent` have them (`{"data":
        "bob.csv", "voter": "network"}`); or a function from the task's feature vectors to labels or
        scores, which votes in this process. Everything is kept under `directory`, or until the end
        in a temporary one.
        """
        check_members(agents)
        temporary = None
        if directory is None:
            temporary = tempfile.TemporaryDirectory(prefix="mpc-vote-cluster-")
            directory = temporary.name
        folder = Path(directory).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "task.toml"
        path.write_text(dump(task if isinstance(task, Task) else Task.load(task)))
        settings, functions = settings_of(agents, path)
        return cls(
            folder,
            parties,
            settings,
            coordinator_settings=_flags(coordinator_settings),
            tasks=[path],
            functions=functions,
            _temporary=temporary,
        )

    def __enter__(self) -> Self:
        self.up()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def up(self, seconds: float = _READY_SECONDS) -> None:
        """Issues certificates, starts everybody, and returns when labels can be asked for."""
        try:
            self.issue()
            self.start()
            # In a thread: a notebook has a loop of its own under way in this one.
            with ThreadPoolExecutor(1) as pool:
                pool.submit(lambda: asyncio.run(self.ready(seconds))).result()
        except BaseException:
            self.stop()
            raise

    def __post_init__(self) -> None:
        if self.parties < 2:
            raise CommandError("at least two parties are needed")
        ports = free_ports(2 * self.parties + 2)
        self.coordinator_address = f"127.0.0.1:{ports[0]}"
        self.dealer_address = f"127.0.0.1:{ports[1]}"
        names = [f"party-{rank}" for rank in range(self.parties)]
        addresses = [f"127.0.0.1:{port}" for port in ports[2:]]
        self.party_addresses = dict(zip(names, addresses, strict=False))
        # Where parties take links from each other.
        self.peer_addresses = dict(zip(names, addresses[self.parties :], strict=True))

    def address(self, caller: str, server: str) -> str:
        """Where a caller finds a server; a subclass may put something in between."""
        servers = {"coordinator": self.coordinator_address, "dealer": self.dealer_address}
        return {**servers, **self.party_addresses}[server]

    def peer_address(self, caller: str, peer: str) -> str:
        """Where a party finds another; a subclass may put something in between."""
        return self.peer_addresses[peer]

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
            *(Identity(Role.AGENT, name) for name in (*self.agents, *self.functions)),
        ]
        for identity in identities:
            authority.issue(identity, self.certs(identity.role, identity.name), hosts=["localhost"])

    def start(self) -> None:
        """Starts all roles."""
        self.watch_memory()
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
            "peer-listen": self.peer_addresses[name],
            "peers": ",".join(f"{p}={self.peer_address(name, p)}" for p in self.peer_addresses),
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
        if self.functions:
            from mpc_vote.testbed.in_process import InProcessAgents

            settings = {name: self._defaults(name) for name in self.functions}
            self._in_process = InProcessAgents(
                Task.load(self.tasks[0]),
                self.functions,
                settings,
                self.directory / "logs" / "functions.log",
            )

    def start_agent(self, name: str) -> None:
        """Starts one agent."""
        config = {"config": str(self._config(name))} if name in self.serves else {}
        settings = {**self._defaults(name), **config, **self.agents[name]}
        self._spawn(name, Role.AGENT, name, settings)

    def _defaults(self, name: str) -> dict[str, str]:
        """What agents have unless they are told otherwise."""
        return {
            "certs": str(self.certs(Role.AGENT, name)),
            "coordinator": self.address(name, "coordinator"),
            "parties": self._parties(name),
            "data-dir": str(self.directory / "data" / name),
            # For trying things out: agents accept what they are not told to refuse.
            "budget-instance": "inf",
            "min-quorum": "1",
            "min-collusion": "0",
        }

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

    def stop(self) -> None:
        """Ends all roles, politely first; a temporary folder goes, too."""
        if self._in_process is not None:
            self._in_process.stop()
        super().stop()
        if self._temporary is not None:
            self._temporary.cleanup()

    def check(self) -> None:
        """Raises if a child, or an agent of this process, has ended by itself."""
        super().check()
        if self._in_process is not None:
            self._in_process.check()

    def client(self) -> AsyncLabelClient:
        """A client of the cluster."""
        return AsyncLabelClient(self.address("client", "coordinator"), self.client_certs)

    def connect(self) -> LabelClient:
        """A client for scripts and notebooks, without asyncio."""
        return LabelClient(self.address("client", "coordinator"), self.client_certs)

    async def ready(
        self, seconds: float, on_progress: Callable[[int], None] = lambda _: None
    ) -> None:
        """Waits until the service can label and every agent attends; tells how many agents do."""
        try:
            async with asyncio.timeout(seconds), self.client() as client:
                while (attending := await self._attending(client)) < self._expected:
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

    @property
    def _expected(self) -> int:
        return len(self.agents) + len(self.functions)

    async def _attending(self, client: AsyncLabelClient) -> int:
        self.check()
        try:
            return len((await client.service()).agents)
        except VoteError:
            return 0

    def _parties(self, caller: str) -> str:
        return ",".join(f"{name}={self.address(caller, name)}" for name in self.party_addresses)

    def _spawn(self, label: str, role: Role, name: str, settings: Mapping[str, str]) -> None:
        certs = str(self.certs(role, name))
        self.start_command(label, role.value, {"certs": certs, **settings})


def _flags(settings: Mapping[str, object]) -> dict[str, str]:
    """Settings by their names in Python, as flags."""
    return {name.replace("_", "-"): str(value) for name, value in settings.items()}


def free_ports(count: int) -> list[int]:
    """Ports of the loopback interface that nobody listens on."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
