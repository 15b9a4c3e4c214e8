"""An agent's voter: made from its settings and private data, and asked for ballots."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from agent_node.serving import Serving
from agent_node.settings import AgentSettings, VoterSettings
from mpc_vote.app.config import ConfigError
from mpc_vote.data.dataset import Dataset
from mpc_vote.data.readers import read, read_labelled
from mpc_vote.errors import ErrorKind, VoteError
from mpc_vote.learning.voters import Voter, VoterOptions, make_voter
from mpc_vote.proto.mpcvote.v1 import common_pb2
from mpc_vote.tasks import Task, TaskError, agreement
from mpc_vote.transport import tensors
from mpc_vote.voting.ballots import BallotKind, IntArray
from mpc_vote.voting.spec import Spec

log = logging.getLogger(__name__)

# In place of a file: the part of the embedded data that belongs to this agent's name.
DEMO_DATA = Path("demo")


def prepare(settings: AgentSettings, agent: str) -> list[Serving]:
    """Loads the private data of all that the agent answers, and builds indices or trains models."""
    servings = []
    if settings.data is not None and settings.task is not None:
        task = _load(settings.task)
        _check_agree(settings, task)
        servings.append(_of_task(settings, task, settings.data))
    elif settings.data is not None:
        servings.append(_without_task(settings, settings.data, agent))
    for served in settings.serves:
        servings.append(_of_task(served, _load(served.task), served.data))
    names = [one.offer.task for one in servings]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"two of the tasks are called {name}: an agent answers each once")
    return servings


def _load(path: Path) -> Task:
    try:
        return Task.load(path)
    except TaskError as error:
        raise ConfigError(f"--task: {error}") from error


def _without_task(settings: AgentSettings, path: Path, agent: str) -> Serving:
    """What answers rounds that have no task."""
    data = _demo_part(agent) if path == DEMO_DATA else read(path, settings.reader)
    _check_size(data)
    options = VoterOptions(settings.k, settings.features, settings.reach, settings.seed)
    voter = make_voter(settings.voter, data, options)
    offer = common_pb2.Offer(
        classes=data.classes,
        query_dtype=tensors.dtype_code(data.x.dtype),
        query_shape=data.shape,
        ballots=[kind.code for kind in _accepted(voter.kinds, settings.ballots)],
        k=voter.k,
    )
    return Serving(offer, voter, settings.voter)


def _of_task(settings: VoterSettings, task: Task, path: Path) -> Serving:
    """What answers the rounds of a task."""
    data = read_labelled(path, task, reader=settings.reader, bad_rows=settings.bad_rows)
    _check_size(data)
    vote = task.vote
    options = VoterOptions(vote.k, task.features.map, vote.reach, settings.seed, task)
    voter = make_voter(settings.voter, data, options)
    if vote.ballot not in voter.kinds:
        known = ", ".join(kind.name for kind in voter.kinds)
        raise ValueError(
            f"task {task.name} takes {vote.ballot.name} ballots, and the voter {settings.voter} "
            f"casts {known}: choose another --voter"
        )
    if vote.ballot.needs_k and voter.k != vote.k:
        raise ValueError(f"the voter {settings.voter} counts {voter.k} neighbours, not {vote.k}")
    return Serving(agreement.offer_of(task), voter, settings.voter, task)


def _check_agree(settings: AgentSettings, task: Task) -> None:
    """Refuses settings that say something else than the task does."""
    vote = task.vote
    for name, given, want in (
        ("k", settings.k, vote.k),
        ("features", settings.features, task.features.map),
        ("reach", settings.reach, vote.reach),
        ("ballots", [kind.name for kind in settings.ballots], [vote.ballot.name]),
    ):
        if name in settings.model_fields_set and given != want:
            raise ConfigError(
                f"--{name}: {given} contradicts task {task.name}, which has {want}: leave it out"
            )


def _check_size(data: Dataset) -> None:
    if (np.abs(data.x) > tensors.MAX_SIZE).any():
        raise ValueError(f"the private points hold numbers beyond {tensors.MAX_SIZE:g}: scale them")


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
