"""`mpc-vote audit-agents`: agents whose ballots are prescribed, for `mpc-vote audit --live`.

Each is a real agent with its own certificate, ledger and connections. A query says how the votes
are placed and which class is the target, and a file that only the victim reads says in which world
it lives: the queries are the same in both. Agents that collude add no noise, and agents over the
number of voters stay away.
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
from mpc_vote.app.config import Method, Name
from mpc_vote.errors import ErrorKind, VoteError
from mpc_vote.pki.identity import Credentials, Role
from mpc_vote.privacy.mechanisms import Level
from mpc_vote.proto.mpcvote.v1 import common_pb2
from mpc_vote.testbed.audit.labels import WITH, AttackScenario
from mpc_vote.voting.ballots import BallotKind, IntArray
from mpc_vote.voting.spec import Spec


class AuditAgentsSettings(AgentSettings):
    """Agents with the same settings; --certs and --data-dir hold a folder for each."""

    command: ClassVar[str] = "audit-agents"

    agents: list[Name] = Field(min_length=1, description="names of the agents, the victim first")
    method: Method = Field(description="how they are said to vote")
    level: Level = Field(description="what makes the difference between the worlds")
    voters: int = Field(ge=1, description="agents that vote; the others stay away")
    collusion: int = Field(ge=0, description="agents after the victim that add no noise")
    classes: int = Field(ge=2, description="number of classes")
    world: Path = Field(description="file with the number of the victim's world")
    data: Path = Field(Path(), description="not used: the votes are prescribed")


def command(arguments: Sequence[str]) -> int:
    """`mpc-vote audit-agents`."""
    return process.run(AuditAgentsSettings, arguments, _serve)


class _Prescribed:
    """Votes as the scenario says."""

    def __init__(self, scenario: AttackScenario, place: int, world: Path) -> None:
        self.kinds: tuple[BallotKind, ...] = (scenario.kind,)
        self.k = scenario.public_k
        self._scenario = scenario
        self._place = place
        self._world = world

    def vote(self, queries: npt.NDArray[Any], kind: BallotKind) -> IntArray:
        world = int(self._world.read_text()) if self._place == 0 else WITH
        placements, targets = queries.astype(np.int64).T
        return self._scenario.votes(self._place, world, placements, targets)


class _Colluder(Agent):
    """An agent whose noise is known, so it may as well be zero."""

    def _noise(self, spec: Spec) -> IntArray:
        return np.zeros((spec.message.queries, spec.message.classes), dtype=np.int64)


class _Absentee(Agent):
    """An agent that answers no round."""

    async def _take_part(self, spec: Spec, call: Any) -> int:
        raise VoteError(ErrorKind.POLICY_REFUSED, why="this agent stays away on purpose")


async def _serve(settings: AuditAgentsSettings) -> None:
    async with contextlib.AsyncExitStack() as stack:
        await attend(
            [
                await _open(stack, settings, place, name)
                for place, name in enumerate(settings.agents)
            ]
        )


async def _open(
    stack: contextlib.AsyncExitStack, settings: AuditAgentsSettings, place: int, name: str
) -> Agent:
    """One agent with everything of its own."""
    credentials = Credentials.load(settings.certs / name, Role.AGENT)
    data_dir = settings.data_dir / name
    scenario = AttackScenario.of(
        settings.level,
        settings.method,
        settings.k,
        settings.classes,
        settings.voters,
        settings.collusion,
    )
    voter = _Prescribed(scenario, place, settings.world)
    offer = common_pb2.Offer(
        classes=settings.classes,
        query_dtype=common_pb2.DTYPE_INT64,
        query_shape=[2],
        ballots=[kind.code for kind in voter.kinds],
        k=voter.k,
    )
    kind = Agent if scenario.is_noisy(place) else _Colluder
    if place >= scenario.voters:
        kind = _Absentee
    serving = Serving(offer, voter, "prescribed")
    return await open_agent(stack, settings, credentials, data_dir, [serving], kind)
