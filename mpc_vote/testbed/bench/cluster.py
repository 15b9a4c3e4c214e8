"""A cluster to measure: many agents in few processes, and a slow network if it is asked for.

With a delay or a rate every server is reached through a relay: connections to it, of all roles and
of the client, share its link, and wait half the round trip each way.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from mpc_vote.pki.identity import Role
from mpc_vote.testbed.cluster import Cluster, free_ports

_AGENTS_PER_PROCESS = 100
# Budgets that no round reaches, but every round is checked against.
_BUDGETS = {"budget-agent": "1e12", "budget-instance": "1e12"}
# As few agents as are asked for.
_LENIENT = {"min-quorum": "1"}


@dataclass(frozen=True)
class EmulatedNetwork:
    """Between any two processes: milliseconds there and back, megabits per second each way."""

    rtt: float = 0.0
    rate: float | None = None

    @property
    def is_far(self) -> bool:
        """Whether it is slower than this machine's own."""
        return self.rtt > 0 or self.rate is not None


class BenchCluster(Cluster):
    """Real roles, and agents with these settings of `mpc-vote bench-agents`."""

    def __init__(
        self,
        directory: Path,
        parties: int,
        agents: int,
        agent_settings: Mapping[str, str],
        network: EmulatedNetwork,
    ) -> None:
        names = [f"agent-{number}" for number in range(agents)]
        super().__init__(directory, parties, dict.fromkeys(names, agent_settings), _BUDGETS)
        self._agent_settings = agent_settings
        self._network = network
        # Where a server listens that others reach through the relay, by its label.
        self._behind_relay: dict[str, str] = {}
        # Where parties find each other's links, if through the relay.
        self._peer_relays: dict[str, str] = {}
        if network.is_far:
            self._move_behind_relay()

    def start(self) -> None:
        """Starts all roles, and the network before them."""
        if self._network.is_far:
            self._start_relay()
        super().start()

    def start_agents(self) -> None:
        """Starts all agents, many to a process."""
        names = list(self.agents)
        for start in range(0, len(names), _AGENTS_PER_PROCESS):
            settings = {
                "agents": ",".join(names[start : start + _AGENTS_PER_PROCESS]),
                "certs": str(self.certs(Role.AGENT, "")),
                "data-dir": str(self.directory / "data" / "agents"),
                "coordinator": self.coordinator_address,
                "parties": self._parties("agents"),
                **_BUDGETS,
                **_LENIENT,
                **self._agent_settings,
            }
            self.start_command(f"agents-{start}", "bench-agents", settings)

    def start_command(self, label: str, command: str, settings: Mapping[str, str]) -> None:
        """Starts a command; a server behind the relay listens where only the relay dials."""
        if label in self._behind_relay:
            settings = {**settings, "listen": self._behind_relay[label]}
        super().start_command(label, command, settings)

    def processor_seconds(self) -> dict[str, float]:
        """What the processes of each kind have used so far, together."""
        used: dict[str, float] = {}
        for label, child in self.children.items():
            times = psutil.Process(child.process.pid).cpu_times()
            kind = label.partition("-")[0]
            used[kind] = used.get(kind, 0.0) + times.user + times.system
        return used

    def _servers(self) -> dict[str, str]:
        return {
            "coordinator": self.coordinator_address,
            "dealer": self.dealer_address,
            **self.party_addresses,
        }

    def _move_behind_relay(self) -> None:
        self._behind_relay = self._servers()
        names = list(self.party_addresses)
        coordinator, dealer, *outside = (
            f"127.0.0.1:{port}" for port in free_ports(2 + 2 * len(names))
        )
        self.coordinator_address, self.dealer_address = coordinator, dealer
        self.party_addresses = dict(zip(names, outside, strict=False))
        self._peer_relays = dict(zip(names, outside[len(names) :], strict=True))

    def peer_address(self, caller: str, peer: str) -> str:
        """Through the relay, if there is one."""
        return self._peer_relays.get(peer) or super().peer_address(caller, peer)

    def _start_relay(self) -> None:
        links = [
            *zip(self._servers().values(), self._behind_relay.values(), strict=True),
            *((outside, self.peer_addresses[peer]) for peer, outside in self._peer_relays.items()),
        ]
        settings = {
            "links": ",".join(f"{outside}={inside}" for outside, inside in links),
            "delay-ms": str(self._network.rtt / 2),
        }
        if self._network.rate is not None:
            settings["rate-mbit"] = str(self._network.rate)
        self.start_command("relay", "relay", settings)
