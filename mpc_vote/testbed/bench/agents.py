"""`mpc-vote bench-agents`: many agents in one process, for measuring the service.

Each is a real agent with its own certificate, ledger and connections; only the votes cost nothing:
the first feature of a query is the class that an agent, or most of its neighbours, are said to vote
for. What agents on different machines do at the same time, these do one after the other.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from pydantic import Field

from agent_node.agent import Agent
from agent_node.serving import Serving
from agent_node.settings import AgentSettings
from agent_node.startup import attend, open_agent
from mpc_vote.app import process
from mpc_vote.app.config import Name
from mpc_vote.pki.identity import Credentials, Role
from mpc_vote.proto.mpcvote.v1 import common_pb2
from mpc_vote.voting.ballots import KNN_COUNT, ONE_HOT, BallotKind

# One neighbour in so many has another class.
_DISSENT = 10


class BenchAgentsSettings(AgentSettings):
    """Agents with the same settings; --certs and --data-dir hold a folder for each."""

    command: ClassVar[str] = "bench-agents"

    agents: list[Name] = Field(min_length=1, description="names of the agents")
    classes: int = Field(ge=2, description="number of classes")
    query_features: int = Field(ge=1, description="numbers in a query")
    data: Path = Field(Path(), description="not used: the votes are made up")


def command(arguments: Sequence[str]) -> int:
    """`mpc-vote bench-agents`."""
    return process.run(BenchAgentsSettings, arguments, _serve)


async def _serve(settings: BenchAgentsSettings) -> None:
    async with contextlib.AsyncExitStack() as stack:
        await attend([await _open(stack, settings, name) for name in settings.agents])


async def _open(
    stack: contextlib.AsyncExitStack, settings: BenchAgentsSettings, name: str
) -> Agent:
    """One agent with everything of its own."""
    credentials = Credentials.load(settings.certs / name, Role.AGENT)
    data_dir = settings.data_dir / name
    voter = _SyntheticVotes(settings.k, settings.classes)
    offer = common_pb2.Offer(
        classes=settings.classes,
        query_dtype=common_pb2.DTYPE_FLOAT32,
        query_shape=[settings.query_features],
        ballots=[kind.code for kind in voter.kinds],
        k=voter.k,
    )
    serving = Serving(offer, voter, "synthetic")
    return await open_agent(stack, settings, credentials, data_dir, [serving])


class _SyntheticVotes:
    """Votes that cost nothing, of an agent or of its neighbours."""

    kinds: tuple[BallotKind, ...] = (ONE_HOT, KNN_COUNT)

    def __init__(self, neighbours: int, classes: int) -> None:
        self.k = neighbours
        self._classes = classes

    def vote(self, queries: npt.NDArray[Any], kind: BallotKind) -> npt.NDArray[np.int64]:
        named = queries[:, 0].astype(np.int64) % self._classes
        if kind is ONE_HOT:
            return named
        dissenting = self.k // _DISSENT
        rows = np.arange(len(queries))
        votes = np.zeros((len(queries), self._classes), dtype=np.int64)
        votes[rows, named] = self.k - dissenting
        votes[rows, (named + 1) % self._classes] = dissenting
        return votes
