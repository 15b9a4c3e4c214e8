"""An agent's voter: made from its settings and private data, and asked for ballots."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from agent_node.settings import AgentSettings
from mpc_vote.app.config import ConfigError
from mpc_vote.app.process import CommandError
from mpc_vote.data.dataset import Dataset
from mpc_vote.data.readers import read
from mpc_vote.errors import ErrorKind, VoteError
from mpc_vote.learning.voters import Voter, VoterOptions, make_voter
from mpc_vote.plugins import PluginError
from mpc_vote.proto.mpcvote.v1 import agent_pb2
from mpc_vote.transport import tensors
from mpc_vote.voting.ballots import BallotKind, IntArray
from mpc_vote.voting.spec import Spec

log = logging.getLogger(__name__)

# In place of a file: the part of the embedded data that belongs to this agent's name.
DEMO_DATA = Path("demo")


def prepare(settings: AgentSettings, agent: str) -> tuple[Voter, agent_pb2.Capabilities]:
    """Loads the private data and builds the index or trains the model."""
    data = _read(settings, agent)
    voter = _voter(settings, agent, data)
    return voter, agent_pb2.Capabilities(
        classes=data.classes,
        query_dtype=tensors.dtype_code(data.x.dtype),
        query_shape=data.shape,
        ballots=[kind.code for kind in _accepted(voter.kinds, settings.ballots)],
        k=voter.k,
    )


def cast_ballot(
    voter: Voter, name: str, agent: str, spec: Spec, queries: npt.NDArray[Any]
) -> IntArray:
    """What a voter says of queries, encoded.

    One that fails, or says what no ballot is made of, is declined for in words that depend on the
    kind of mistake alone: sizes and messages may come from private data, and are for this agent's
    log.
    """
    votes: npt.NDArray[Any] | None = None
    why = "it ended with an error"
    try:
        votes = np.asarray(voter.vote(queries, spec.ballot))
        why = f"{spec.ballot.name} ballots take {spec.ballot.wants}"
        if votes.dtype.kind == "f" and np.isnan(votes).any():
            why = "its votes hold NaN"
        elif votes.ndim == 0 or len(votes) != spec.message.queries:
            why = f"its votes are not of {spec.message.queries} queries"
        else:
            return spec.encode(agent, votes)
        raise ValueError(why)
    except (Exception, SystemExit) as error:
        given = "no votes" if votes is None else f"votes of {votes.dtype} {votes.shape}"
        log.exception("round %s: voter %s gave %s", spec.round_id, name, given)
        raise VoteError(ErrorKind.VOTER_FAILED, voter=name, why=why) from error


def _read(settings: AgentSettings, agent: str) -> Dataset:
    try:
        demo = settings.data == DEMO_DATA
        data = _demo_part(agent) if demo else read(settings.data, settings.reader)
        if (np.abs(data.x) > tensors.MAX_SIZE).any():
            raise ValueError(f"it holds numbers beyond {tensors.MAX_SIZE:g}: scale them")
    except PluginError as error:
        raise ConfigError(f"--reader: {error}") from error
    except (ValueError, OSError) as error:
        raise CommandError(f"the data of agent {agent} can't be used: {error}") from error
    return data


def _voter(settings: AgentSettings, agent: str, data: Dataset) -> Voter:
    options = VoterOptions(settings.k, settings.features, settings.reach, settings.seed)
    try:
        return make_voter(settings.voter, data, options)
    except PluginError as error:
        raise ConfigError(f"--voter: {error}") from error
    except (ValueError, OSError) as error:
        why = f"agent {agent} can't make the voter {settings.voter}: {error}"
        raise CommandError(why) from error


def _accepted(kinds: Sequence[BallotKind], asked: Sequence[BallotKind]) -> list[BallotKind]:
    """The kinds that a voter can cast and its owner agrees to."""
    accepted = [kind for kind in kinds if kind in asked or not asked]
    if not accepted:
        known = ", ".join(kind.name for kind in kinds)
        raise ConfigError(f"--ballots: this voter casts {known} ballots on this data: name those")
    return accepted


def _demo_part(agent: str) -> Dataset:
    from mpc_vote.data.demo import demo_partition, part_number

    return demo_partition().private[part_number(agent)]
