"""A task that bounds what a record contributes, over real processes: records leave silently, also
after a kill and when their file is read again; no answer, refusal or log tells."""

from __future__ import annotations

import asyncio
import re
import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from agent_node.contributions import FILE, Contributions
from mpc_vote.client import Plan
from mpc_vote.data import identity
from mpc_vote.privacy.ledger import LedgerView
from mpc_vote.tasks import Task
from mpc_vote.tasks.toml import dump
from mpc_vote.testbed.cluster import Cluster
from tests.system.service.support import QUIET, SECONDS, Service

BOUND = 3
TASK = Task.parse(
    f"""
    format = 1
    name = "bounded"
    classes = ["left", "right", "nowhere"]
    [input]
    kind = "vector"
    shape = [2]
    [features]
    map = "raw"
    [vote]
    ballot = "knn_count"
    k = 5
    radius = 2.0
    max_contributions = {BOUND}
    """
)
AGENTS = ("ann", "bob", "cleo")
LEFT, RIGHT = np.array([[-4.0, 0.0]], np.float32), np.array([[4.0, 0.0]], np.float32)


def records(place: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(place)
    y = np.arange(20) % 2
    x = np.where(y[:, None] == 0, LEFT, RIGHT) + rng.normal(size=(20, 2)) * 0.1
    return x.astype(np.float32), y


def write(path: Path, place: int, seed: int) -> Path:
    """The records of an agent, in some order."""
    x, y = records(place)
    order = np.random.default_rng(seed).permutation(len(x))
    np.savez(path, x=x[order], y=y[order], classes=3, name="bounded")
    return path


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    directory = tmp_path_factory.mktemp("bounded")
    file = directory / "bounded.toml"
    file.write_text(dump(TASK))
    agents = {
        name: {
            "task": str(file),
            "data": str(write(directory / f"{name}.npz", place, 0)),
            "log-level": "info",
        }
        for place, name in enumerate(AGENTS)
    }
    cluster = Cluster(directory, 2, agents, tasks=[file])
    cluster.issue()
    try:
        cluster.start()
        asyncio.run(cluster.ready(2 * SECONDS))
        yield Service(cluster, {})
    finally:
        cluster.stop()


def used(service: Service, agent: str) -> list[int]:
    """How often the records of an agent that does not run were counted, on either side."""
    folder = service.cluster.directory / "data" / agent
    with (
        LedgerView(folder / "ledger.db") as view,
        closing(Contributions(folder / FILE, view.ledger_id)) as kept,
    ):
        assert len(kept.rounds()) == len(view.spends())
        counts = kept.of(identity.of_content(records(AGENTS.index(agent))[0])).used()
    return [int(counts[side::2].max()) for side in (0, 1)]


async def test_records_leave_silently_and_stay_away(federation: Service) -> None:
    cluster = federation.cluster
    plan = Plan(task=TASK, sigma=QUIET, verified=False)
    async with federation.client() as client:
        first = await client.label(np.concatenate([LEFT, RIGHT, LEFT]), plan)
        assert first.names == ["left", "right", "left"]
        for place, name in enumerate(AGENTS):
            # Killed between rounds, and then with the same records in another order.
            await asyncio.to_thread(cluster.stop_child, name, signal.SIGKILL)
            assert used(federation, name) == [2, 1]
            write(cluster.directory / f"{name}.npz", place, 1)
            await asyncio.to_thread(cluster.start_agent, name)
        await cluster.ready(2 * SECONDS)
        # Those on the left answer once more; then no records vote, and the noise alone decides.
        second = await client.label(np.repeat(np.concatenate([LEFT, RIGHT]), 4, axis=0), plan)
        assert second.names is not None and second.contributors == len(AGENTS)
        assert second.names[0] == "left" and second.names[4:6] == ["right", "right"]
        # All agents take part in a round that none of their records answers.
        third = await client.label(np.concatenate([LEFT, RIGHT]), plan)
        assert third.contributors == len(AGENTS)
    cluster.stop()
    for name in AGENTS:
        assert used(federation, name) == [BOUND, BOUND]
        log = (cluster.directory / "logs" / f"{name}.log").read_text()
        rounds = [line.split(": ", 1)[1] for line in log.splitlines() if " round " in line]
        told = {re.sub("[0-9]+", "N", line).split(" epsilon")[0] for line in rounds}
        # The same of every round, whoever answered it.
        assert told == {"voted on N queries", "a single record has lost at most"}
