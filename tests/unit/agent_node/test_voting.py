"""What an agent refuses before its voter is asked at all: numbers that no distance has room for."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import grpc.aio
import numpy as np
import pytest

from agent_node import batch as batch_module
from agent_node.agent import Agent
from agent_node.batch import Batch
from agent_node.settings import AgentSettings
from agent_node.voting import prepare
from mpc_vote.app import config
from mpc_vote.app.config import ConfigError
from mpc_vote.app.process import CommandError
from mpc_vote.data.dataset import Dataset
from mpc_vote.data.partition import save_part
from mpc_vote.errors import ErrorKind, VoteError
from mpc_vote.proto.mpcvote.v1 import agent_pb2
from mpc_vote.simulation.vote import simulated_spec
from mpc_vote.transport import tensors
from mpc_vote.voting.ballots import ONE_HOT
from mpc_vote.voting.spec import Spec


@pytest.mark.parametrize("size", [2e12, -1e19])
def test_private_points_that_no_distance_has_room_for_are_refused(
    size: float, tmp_path: Path
) -> None:
    points = np.full((3, 2), -tensors.MAX_SIZE, np.float32)
    path = tmp_path / "part.npz"
    settings = config.load(
        AgentSettings,
        [
            f"--certs={tmp_path}",
            f"--data={path}",
            f"--data-dir={tmp_path}",
            "--coordinator=localhost:1",
            "--parties=a=localhost:2,b=localhost:3",
        ],
    )
    save_part(path, Dataset("part", points, np.array([0, 1, 1]), 2))
    prepare(settings, "agent-1")
    points[2, 1] = size
    save_part(path, Dataset("part", points, np.array([0, 1, 1]), 2))
    with pytest.raises(CommandError, match=r"data of agent agent-1 .* numbers beyond 1e"):
        prepare(settings, "agent-1")


class _Stringy:
    """A voter that names its ballots instead of giving them."""

    kinds = ("knn_count",)
    k = 3


def stringy(*_: object) -> _Stringy:
    return _Stringy()


def broken(*_: object) -> _Stringy:
    raise KeyError("knn_count")


@pytest.mark.parametrize(
    ("flags", "error", "why"),
    [
        (["--voter=nowhere:make"], ConfigError, "--voter: 'nowhere:make' can't be loaded"),
        (["--reader=nowhere:read"], ConfigError, "--reader: 'nowhere:read' can't be loaded"),
        (["--features=hearsay"], CommandError, "can't make the voter knn: "),
        ([f"--voter={__name__}:broken"], CommandError, "failed: KeyError: 'knn_count'"),
        ([f"--voter={__name__}:stringy"], CommandError, "no kinds of ballots but ('knn_count',)"),
        (["--data=nowhere.npz"], CommandError, "the data of agent ann can't be used: "),
    ],
)
def test_what_is_wrong_is_named_and_is_not_always_the_data(
    flags: list[str], error: type[Exception], why: str, tmp_path: Path
) -> None:
    path = tmp_path / "part.npz"
    save_part(path, Dataset("part", np.eye(3, 2, dtype=np.float32), np.array([0, 1, 1]), 2))
    given = [f"--certs={tmp_path}", f"--data-dir={tmp_path}", f"--data={path}"]
    others = ["--coordinator=localhost:1", "--parties=a=localhost:2,b=localhost:3"]
    with pytest.raises(error) as caught:
        prepare(config.load(AgentSettings, [*given, *others, *flags]), "ann")
    assert why in str(caught.value)
    assert ("the data of" in str(caught.value)) is (flags == ["--data=nowhere.npz"])


@pytest.mark.parametrize(
    ("size", "kind"),
    [
        (1e19, ErrorKind.QUERIES_RANGE),
        (-3e38, ErrorKind.QUERIES_RANGE),
        (np.inf, ErrorKind.QUERIES_NOT_FINITE),
    ],
)
async def test_a_coordinator_that_lets_huge_queries_pass_is_refused(
    size: float, kind: ErrorKind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queries = np.array([[0.0], [size]], np.float32)
    message = simulated_spec(ONE_HOT, 2, 2, {"ann": 0}, 1.0).message
    message.queries_digest = tensors.digest_of(queries)
    message.deadline_unix_ms = 2**42

    async def sent(*_: Any, **__: Any) -> AsyncIterator[agent_pb2.FetchQueriesResponse]:
        yield agent_pb2.FetchQueriesResponse(queries=tensors.to_tensor(queries))

    nobody: Any = None
    async with grpc.aio.insecure_channel("localhost:1") as channel:
        agent = Agent(
            "ann",
            nobody,
            [],
            agent_pb2.Capabilities(),
            cast(Any, channel),
            {},
            tmp_path,
        )
        monkeypatch.setattr(agent, "_coordinator", SimpleNamespace(FetchQueries=sent))
        spec = Spec.seal(message)
        with Batch.opened(spec, tmp_path) as batch, pytest.raises(VoteError) as caught:
            await agent._fetch(spec, batch)
    assert caught.value.kind is kind


@pytest.mark.parametrize("most", [0, 1 << 20], ids=["disk", "memory"])
async def test_a_batch_gives_the_queries_as_they_came(
    most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However few wait in memory."""
    monkeypatch.setattr(batch_module, "_IN_MEMORY_BYTES", most)
    queries = np.arange(2, dtype=np.float32).reshape(2, 1)
    message = simulated_spec(ONE_HOT, 2, 2, {"ann": 0}, 1.0).message
    message.queries_digest = tensors.digest_of(queries)

    async def sent() -> AsyncIterator[agent_pb2.FetchQueriesResponse]:
        for row in range(2):
            tensor = tensors.to_tensor(queries[row : row + 1])
            yield agent_pb2.FetchQueriesResponse(queries=tensor)

    with Batch.opened(Spec.seal(message), tmp_path) as batch:
        await batch.fill(sent())
        got = batch.read()
    assert np.array_equal(got, queries) and got.dtype == queries.dtype
    assert got.flags.writeable
