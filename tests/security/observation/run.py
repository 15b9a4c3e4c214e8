"""One round of the whole service, every role a process under the recorder."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mpc_vote.argmax.registry import EngineKind
from mpc_vote.data.dataset import Dataset
from mpc_vote.data.partition import save_part
from mpc_vote.mpc import ring
from mpc_vote.mpc.sharing import Share, ShareReader
from mpc_vote.proto.mpcvote.v1 import party_pb2
from mpc_vote.testbed.cluster import Cluster
from mpc_vote.verified.encoding import BitReader, Layout
from mpc_vote.voting.spec import Spec
from tests.security.observation.recorder import GROUPS, RECEIVED, SENT, Message, read_messages
from tests.unit.verified.plain import noise_of

PARTIES, AGENTS = 3, 4
QUERIES, CLASSES, NEIGHBOURS = 120, 10, 60

_RECORDER = Path(__file__).with_name("recorder.py")
_POINTS, _FEATURES = 400, 8
_SEED = 20_260
_READY_SECONDS = 90.0
_LABEL_SECONDS = 60.0
_ROLES = ("agent", "party", "dealer", "coordinator", "label")


@dataclass(frozen=True)
class Way:
    """How the winners are found: the engine, and for the table engine its groups if not its own;
    whether ballots are verified; and whether the coordinator waits so little for the count that
    the round fails when all shares are there."""

    engine: EngineKind
    groups: tuple[int, ...] = ()
    verified: bool = False
    fails: bool = False

    @property
    def variables(self) -> dict[str, str]:
        """What tells the recorder of a coordinator."""
        return {GROUPS: ",".join(map(str, self.groups))}


@dataclass(frozen=True)
class View:
    """What one role sent and received, what it printed, and what is in the files it wrote."""

    name: str
    messages: Sequence[Message]
    log: bytes
    disk: bytes
    deeds: Sequence[str]

    def passed(self, direction: str, method: str = "") -> list[bytes]:
        """Messages of one direction, of one method or of all."""
        return [
            m.content
            for m in self.messages
            if m.direction == direction and m.method.endswith(method)
        ]

    def methods(self, direction: str) -> set[str]:
        """The methods, without their package, of which messages passed."""
        chosen = (m.method for m in self.messages if m.direction == direction)
        return {method.rpartition(".")[2] for method in chosen}

    def places(self) -> dict[str, bytes]:
        """Everything, by where it was."""
        return {
            SENT: b"".join(self.passed(SENT)),
            RECEIVED: b"".join(self.passed(RECEIVED)),
            "log": self.log,
            "disk": self.disk,
        }


@dataclass(frozen=True)
class Truth:
    """What one agent alone knows: its ballot, its noise, and all shares it made.

    With a layout, what was shared are bits.
    """

    ballot: npt.NDArray[np.int64]
    noise: npt.NDArray[np.int64]
    explicit: int
    shares: tuple[Share, ...]
    ring_bits: int
    layout: Layout | None

    @classmethod
    def load(cls, path: Path, spec: Spec, agent: str) -> Truth:
        with np.load(path) as data:
            explicit = int(data["explicit"])
            residual = data["residual"].tobytes()
            seeds = [row.tobytes() for row in data["seeds"]]
            shares = [
                Share(packed=residual) if rank == explicit else Share(seed=seed)
                for rank, seed in enumerate(seeds)
            ]
            layout = spec.layout(agent) if spec.message.verified else None
            bits = spec.message.ring_bits
            return cls(data["ballot"], data["noise"], explicit, tuple(shares), bits, layout)

    @property
    def noisy(self) -> npt.NDArray[np.int64]:
        """What is counted."""
        return self.ballot + self.noise

    @property
    def bits(self) -> int:
        """Of each number that was shared."""
        return self.ring_bits if self.layout is None else 1

    @property
    def shared(self) -> npt.NDArray[np.int64]:
        """What was shared; of bits, all shares together, as nobody keeps the pointers' order."""
        if self.layout is None:
            return self.noisy
        shares = [self.expanded(rank) for rank in range(len(self.shares))]
        together: npt.NDArray[np.int64] = np.bitwise_xor.reduce(shares)
        return together

    def expanded(self, rank: int) -> npt.NDArray[np.int64]:
        """The share of a rank as the numbers that it stands for."""
        if self.layout is not None:
            reader = BitReader(self.shares[rank], self.layout)
            return reader.take(len(self.ballot)).astype(np.int64)
        words = ShareReader(self.shares[rank], self.ring_bits).take(self.ballot.size)
        return ring.signed(words, self.ring_bits).reshape(self.ballot.shape)


@dataclass(frozen=True)
class Observation:
    """A finished round: every role's view, the agents' truths, the labels that came out."""

    cluster: WatchedCluster
    views: dict[str, View]
    truths: dict[str, Truth]
    labels: npt.NDArray[np.int64]
    coins: dict[str, bytes]
    """What each party drew in a verified round, and it alone may know."""

    @property
    def unit(self) -> int:
        """Units in a vote."""
        return 1 << self.spec.message.fraction_bits

    @cached_property
    def tossed(self) -> npt.NDArray[np.uint8]:
        """The coins of a verified round: of all parties together."""
        drawn = [np.frombuffer(own, np.uint8) for own in self.coins.values()]
        count = self.spec.cells * self.spec.coin_law.coins
        return np.unpackbits(np.bitwise_xor.reduce(drawn), bitorder="little", count=count)

    @property
    def parties(self) -> list[str]:
        return list(self.cluster.party_addresses)

    @cached_property
    def spec(self) -> Spec:
        """The round's public spec, as the parties were told."""
        orders = self.views[self.parties[0]].passed(RECEIVED, "PartyService/OpenRound")
        (content,) = set(orders)
        return Spec.parse(party_pb2.OpenRoundRequest.FromString(content).spec)

    @property
    def ring_bits(self) -> int:
        """Ballots and totals are shared modulo two to this."""
        return self.spec.message.ring_bits

    def total(self) -> npt.NDArray[np.int64]:
        """The votes of all agents, without noise."""
        votes: npt.NDArray[np.int64] = np.sum([t.ballot for t in self.truths.values()], axis=0)
        return votes

    def noisy_total(self) -> npt.NDArray[np.int64]:
        """The votes of all agents, with noise: what the committee finds the argmax of; without, if
        parties gave up before they drew any."""
        votes: npt.NDArray[np.int64] = np.sum([t.noisy for t in self.truths.values()], axis=0)
        if not self.coins:
            return votes
        return votes + noise_of(self.spec.coin_law, self.tossed, self.spec.message.classes)


class WatchedCluster(Cluster):
    """A cluster whose roles run under the recorder."""

    def records(self, label: str) -> Path:
        """Where the recorder puts what it saw of a role."""
        return self.directory / "records" / label

    def _program(self, label: str) -> list[str]:
        # -P: the recorder's own folder is no place to import from.
        return [sys.executable, "-P", str(_RECORDER), str(self.records(label)), "--"]

    def label(self, queries: Path, out: Path, verified: bool) -> bool:
        """A client, as a process of its own, asks for labels; whether it got them."""
        options: dict[str, Any] = {
            "coordinator": self.coordinator_address,
            "certs": self.client_certs,
            "queries": queries,
            "out": out,
            "classes": CLASSES,
            "ballot": "knn_count",
        }
        flags = [str(part) for key, value in options.items() for part in (f"--{key}", value)]
        flags.append("--verified" if verified else "--no-verified")
        log = self.directory / "logs" / "client.log"
        with log.open("wb") as output:
            command = [*self._program("client"), "label", *flags]
            done = subprocess.run(command, stdout=output, stderr=output, timeout=_LABEL_SECONDS)
        return done.returncode == 0


def environment(way: Way) -> dict[str, str]:
    """Variables for the run: every role tells as much as it ever does."""
    levels = {f"MPC_VOTE_{role.upper()}_LOG_LEVEL": "debug" for role in _ROLES}
    return {**levels, **way.variables, "PYTHONDONTWRITEBYTECODE": "1"}


def observe(directory: Path, way: Way) -> Observation:
    """Runs one round; all ground truth stays under `directory`."""
    rng = np.random.default_rng(_SEED)
    agents = {}
    for number in range(AGENTS):
        name = f"agent-{number}"
        # Labels at random: ballots in which every class has votes, so that no two rows are alike.
        points = rng.normal(size=(_POINTS, _FEATURES)).astype(np.float32)
        labels = rng.integers(0, CLASSES, _POINTS)
        save_part(directory / f"{name}.npz", Dataset(name, points, labels, CLASSES))
        agents[name] = {
            "data": str(directory / f"{name}.npz"),
            "voter": "knn",
            "k": str(NEIGHBOURS),
        }
    queries, out = directory / "queries.npy", directory / "client" / "labels.npy"
    out.parent.mkdir()
    np.save(queries, rng.normal(size=(QUERIES, _FEATURES)).astype(np.float32))
    settings = {"engine": way.engine.name}
    if way.fails:
        settings["aggregate-seconds"] = "1e-4"
    # One round is watched, and nothing that would be dealt after it.
    parties = {"stock-mib": "0"}
    cluster = WatchedCluster(directory, PARTIES, agents, settings, parties)
    cluster.issue()
    try:
        cluster.start()
        asyncio.run(cluster.ready(_READY_SECONDS))
        labelled = cluster.label(queries, out, way.verified)
        assert labelled is not way.fails, (directory / "logs" / "client.log").read_text()
        # Databases hold more while they are open: their journals are gone after the end.
        running = {label: _disk(cluster, label) for label in [*cluster.children, "client"]}
    finally:
        cluster.stop()
    views = {label: _view(cluster, label, disk) for label, disk in running.items()}
    labels = np.load(out) if labelled else np.empty(0, np.int64)
    seen = Observation(cluster, views, {}, labels, {})
    for name in agents:
        seen.truths[name] = Truth.load(cluster.records(name) / "truth.npz", seen.spec, name)
    for name in seen.parties:
        drawn = cluster.records(name) / "coins.bin"
        if drawn.exists():
            seen.coins[name] = drawn.read_bytes()
    return seen


def own_folder(cluster: Cluster, label: str) -> Path:
    """The only folder that a role may write to."""
    return cluster.directory / "client" if label == "client" else cluster.directory / "data" / label


def _disk(cluster: Cluster, label: str) -> bytes:
    files = sorted(path for path in own_folder(cluster, label).rglob("*") if path.is_file())
    return b"".join(path.read_bytes() for path in files)


def _view(cluster: WatchedCluster, label: str, disk: bytes) -> View:
    records = cluster.records(label)
    own = str(records)
    deeds = (records / "deeds.txt").read_text().splitlines()
    return View(
        name=label,
        messages=list(read_messages(records / "messages.bin")),
        log=(cluster.directory / "logs" / f"{label}.log").read_bytes(),
        disk=disk + _disk(cluster, label),
        deeds=[deed for deed in deeds if own not in deed],
    )
