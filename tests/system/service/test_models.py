"""Agents of all kinds in one round over real processes: neighbours, a network, ONNX, a service over
HTTP, functions; and what a federation does when some of their models fail."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import psutil
import pytest
from onnx import TensorProto, helper

from mpc_vote.client import LabelClient, Plan
from mpc_vote.privacy.ledger import LedgerView
from mpc_vote.tasks import Task
from mpc_vote.testbed.cluster import Cluster
from tests.system.service.failing_voters import CRASH, GOOD, HANG, NONSENSE
from tests.unit.learning.voters.inference_server import Model, serving

TASK = """
format = 1
name = "sign"
classes = ["minus", "plus"]
[input]
kind = "vector"
shape = [2]
[features]
map = "raw"
[vote]
ballot = "one_hot"
"""
FAILING = ("hangs", "crashes", "nonsense")
QUIET = 1e-6
ROUND_SECONDS = 15


def _queries(how: float = GOOD) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    return np.array([[3, how], [-3, how], [2, how]], np.float32)


def _onnx(path: Path) -> Path:
    """Class 1 where the first number is positive."""
    nodes = [
        helper.make_node("Gather", ["x", "first"], ["column"], axis=1),
        helper.make_node("Greater", ["column", "zero"], ["positive"]),
        helper.make_node("Cast", ["positive"], ["label"], to=TensorProto.INT64),
    ]
    graph = helper.make_graph(
        nodes,
        "sign",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 2])],
        [helper.make_tensor_value_info("label", TensorProto.INT64, ["n"])],
        [
            helper.make_tensor("first", TensorProto.INT64, [], [0]),
            helper.make_tensor("zero", TensorProto.FLOAT, [], [0.0]),
        ],
    )
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    return path


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    directory = tmp_path_factory.mktemp("models")
    task = directory / "task.toml"
    task.write_text(TASK)
    x = np.random.default_rng(0).normal(size=(60, 2)).astype(np.float32) * 3
    np.savez(directory / "part.npz", x=x, y=(x[:, 0] > 0).astype(np.int64))
    data = {"data": str(directory / "part.npz")}
    sign = Model(
        inputs=[{"name": "x", "datatype": "FP32", "shape": [-1, 2]}],
        outputs=[{"name": "label", "datatype": "BYTES", "shape": [-1]}],
        predict=lambda x: {"label": np.where(x[:, 0] > 0, "plus", "minus")},
    )
    with serving(sign) as url:
        agents = {
            "neighbours": {**data, "voter": "knn", "k": "5"},
            "network": {**data, "voter": "network"},
            "onnx": {"voter": "onnx", "model": str(_onnx(directory / "sign.onnx"))},
            "http": {"voter": "http", "model": url},
            **{name: {"voter": f"tests.system.service.failing_voters:{name}"} for name in FAILING},
        }
        running = Cluster(
            directory,
            2,
            {name: {"task": str(task), **settings} for name, settings in agents.items()},
            coordinator_settings={"answer-seconds": str(ROUND_SECONDS)},
            tasks=(task,),
        )
        running.issue()
        try:
            running.start()
            asyncio.run(running.ready(120))
            yield running
        finally:
            running.stop()


@pytest.fixture
def client(cluster: Cluster) -> Iterator[LabelClient]:
    with LabelClient(cluster.coordinator_address, cluster.client_certs) as one:
        yield one


def _plan(quorum: int) -> Plan:
    return Plan(task=Task.parse(TASK), sigma=QUIET, quorum=quorum, collusion=0)


def test_all_kinds_of_agents_meet_in_one_round(client: LabelClient) -> None:
    result = client.label(_queries(), _plan(7))
    assert result.labels.tolist() == [1, 0, 1]
    assert result.contributors == 7


@pytest.mark.parametrize(
    ("how", "who", "why"),
    [
        (NONSENSE, "nonsense", "its votes hold NaN"),
        (CRASH, "crashes", "its process ended"),
        pytest.param(HANG, "hangs", "it took too long", marks=pytest.mark.slow),
    ],
)
def test_who_fails_declines_with_a_reason_and_votes_again(
    how: float, who: str, why: str, cluster: Cluster, client: LabelClient
) -> None:
    result = client.label(_queries(how), _plan(6))
    assert result.labels.tolist() == [1, 0, 1]
    assert result.contributors == 6
    assert set(result.absences) == {who}
    assert why in result.absences[who]
    # It was charged: its voter had seen the queries.
    with contextlib.closing(LedgerView(cluster.directory / "data" / who / "ledger.db")) as ledger:
        assert result.round_id in [spend.round_id for spend in ledger.spends()]
    again = client.label(_queries(), _plan(7))
    assert again.contributors == 7


def test_voters_end_with_their_agents(cluster: Cluster) -> None:
    agent = psutil.Process(cluster.children["crashes"].process.pid)
    processes = agent.children(recursive=True)
    assert len(processes) == 2, "the voter's, and its keeper"
    cluster.stop_child("crashes")
    assert not any(one.is_running() for one in processes)
