"""From settings to a voter: loads an agent's private data and says what it can answer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from agent_node.settings import AgentSettings
from mpc_vote.data.dataset import Dataset
from mpc_vote.data.partition import load_part
from mpc_vote.learning.voters import Voter, VoterOptions, make_voter
from mpc_vote.proto.mpcvote.v1 import agent_pb2
from mpc_vote.transport import tensors
from mpc_vote.voting.ballots import BallotKind

# In place of a file: the part of the embedded data that belongs to this agent's name.
DEMO_DATA = Path("demo")


def prepare(settings: AgentSettings, agent: str) -> tuple[Voter, agent_pb2.Capabilities]:
    """Loads the private data and builds the index or trains the model."""
    data = _demo_part(agent) if settings.data == DEMO_DATA else load_part(settings.data)
    if (np.abs(data.x) > tensors.MAX_SIZE).any():
        raise ValueError(f"the private points hold numbers beyond {tensors.MAX_SIZE:g}: scale them")
    options = VoterOptions(settings.k, settings.features, settings.reach, settings.seed)
    voter = make_voter(settings.voter, data, options)
    return voter, agent_pb2.Capabilities(
        classes=data.classes,
        query_dtype=tensors.dtype_code(data.x.dtype),
        query_shape=data.shape,
        ballots=[kind.code for kind in _accepted(voter.kinds, settings.ballots)],
        k=voter.k,
    )


def _accepted(kinds: Sequence[BallotKind], asked: Sequence[BallotKind]) -> list[BallotKind]:
    """The kinds that a voter can cast and its owner agrees to."""
    accepted = [kind for kind in kinds if kind in asked or not asked]
    if not accepted:
        known = ", ".join(kind.name for kind in kinds)
        raise ValueError(f"--ballots: with such data and voter it can be {known} only")
    return accepted


def _demo_part(agent: str) -> Dataset:
    from mpc_vote.data.demo import demo_partition, part_number

    return demo_partition().private[part_number(agent)]
