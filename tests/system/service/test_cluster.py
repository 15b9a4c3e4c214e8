"""A cluster in one call, as a script or a notebook has it: real processes, and functions."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from mpc_vote import Plan, Task
from mpc_vote.app.process import CommandError
from mpc_vote.testbed.cluster import Cluster
from mpc_vote.testbed.members import Member
from mpc_vote.voting.ballots import KNN_COUNT

SIDES = Task.parse(
    """
    format = 1
    name = "sides"
    classes = ["left", "right"]
    [input]
    kind = "vector"
    shape = [2]
    [features]
    map = "raw"
    [vote]
    ballot = "one_hot"
    """
)
QUERIES = np.array([[-3, 0], [4, 1], [5, -1], [-2, 2]], np.float32)
TRUTH = ["left", "right", "right", "left"]


def side(features: Any) -> Any:
    return np.where(features[:, 0] < 0, "left", "right")


def data(path: Path) -> Path:
    x = np.random.default_rng(0).normal(size=(40, 2)).astype(np.float32)
    np.savez(path, x=x, y=(x[:, 0] > 0).astype(np.int64), classes=2, name="sides")
    return path


def test_files_and_functions_vote_together_and_all_ends_with_the_statement(tmp_path: Path) -> None:
    agents: dict[str, Member] = {
        "ann": side,
        "bob": side,
        "cleo": {"data": data(tmp_path / "cleo.npz"), "k": 3},
    }
    with Cluster.of(SIDES, agents, parties=2) as cluster, cluster.connect() as client:
        pids, folder = cluster.pids(), cluster.directory
        assert {agent.agent for agent in client.service().agents} == set(agents)
        result = client.label(QUERIES, Plan(task=SIDES, sigma=0.1))
        assert (result.names, result.contributors, result.absences) == (TRUTH, 3, {})
        model = client.train(task=SIDES)
        assert (model.version, model.labels, model.task) == (1, 4, "sides")
        assert len(client.predict(QUERIES, task=SIDES)) == 4
    assert len(pids) == 5 and not any(map(psutil.pid_exists, pids))
    assert not folder.exists()


async def test_it_is_brought_up_where_a_loop_runs_already(tmp_path: Path) -> None:
    """As in a notebook."""
    asyncio.get_running_loop()
    cluster = Cluster.of(SIDES, {"ann": side}, parties=2, directory=tmp_path / "kept")
    cluster.up()
    try:
        async with cluster.client() as client:
            result = await client.label(QUERIES, Plan(task=SIDES, sigma=0.1, collusion=0))
            assert result.names == TRUTH
    finally:
        cluster.stop()
    assert (tmp_path / "kept" / "data" / "ann" / "ledger.db").is_file()
    assert (tmp_path / "kept" / "logs" / "coordinator.log").is_file()


def test_an_agent_that_fails_ends_the_wait_with_its_words(tmp_path: Path) -> None:
    path = tmp_path / "bad.npz"
    path.write_text("no arrays")
    cluster = Cluster.of(SIDES, {"ann": path}, parties=2)
    with pytest.raises(CommandError, match=r"ann ended with code 1: .*bad\.npz"):
        cluster.up()
    assert not cluster.children and not cluster.directory.exists()


def nonsense(features: Any) -> Any:
    return ["up"] * len(features)


@pytest.mark.parametrize(
    ("task", "function", "words"),
    [
        (SIDES, nonsense, "can't vote: .*'up'"),
        (replace(SIDES, vote=replace(SIDES.vote, ballot=KNN_COUNT, k=3)), side, "takes knn_count"),
    ],
)
def test_a_function_that_can_not_vote_is_refused_at_once(
    task: Task, function: Any, words: str
) -> None:
    with (
        pytest.raises(CommandError, match=f"agent ann.*{words}"),
        Cluster.of(task, {"ann": function}, parties=2),
    ):
        pytest.fail("it came up")
