"""An agent's voter: made from its settings and private data, and asked for ballots."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from agent_node.advice import owner_warnings
from agent_node.contributions import AlreadyAnswered, CountingVoter
from agent_node.serving import Serving
from agent_node.settings import AgentSettings, ServedTask, VoterSettings
from mpc_vote.app.config import ConfigError
from mpc_vote.app.process import CommandError
from mpc_vote.data.dataset import Dataset
from mpc_vote.data.readers import read, read_inputs, read_labelled
from mpc_vote.errors import ErrorKind, VoteError
from mpc_vote.learning.voters import NEIGHBOURS, Voter, VoterOptions, is_foreign, make_voter
from mpc_vote.learning.voters.isolated import IsolatedVoter, VoterError
from mpc_vote.plugins import PluginError
from mpc_vote.proto.mpcvote.v1 import common_pb2
from mpc_vote.tasks import Task, TaskError, agreement
from mpc_vote.transport import tensors
from mpc_vote.voting.ballots import BallotKind, IntArray
from mpc_vote.voting.spec import Spec

log = logging.getLogger(__name__)

# In place of a file: the part of the embedded data that belongs to this agent's name.
DEMO_DATA = Path("demo")
# Of the time till a round's deadline, what a voter may take; shares have to be sent in the rest.
_SHARE_OF_TIME = 0.8


def prepare(settings: AgentSettings, agent: str) -> list[Serving]:
    """Loads the private data of all that the agent answers, and builds indices or trains models."""
    servings = []
    if settings.task is not None:
        task = _load(settings.task)
        _check_agree(settings, task)
        servings.append(_of_task(settings, task, settings, agent))
    elif settings.data is not None:
        servings.append(_without_task(settings, settings.data, agent))
    for served in settings.serves:
        servings.append(_of_task(served, _load(served.task), settings, agent))
    names = [one.offer.task for one in servings]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(
                f"--task: two of the tasks are called {name}: an agent answers each once"
            )
    return servings


def _load(path: Path) -> Task:
    try:
        return Task.load(path)
    except TaskError as error:
        raise ConfigError(f"--task: {error}") from error


@contextlib.contextmanager
def _told(what: str, flag: str) -> Iterator[None]:
    """What is wrong with files and plug-ins of the owner's, in a sentence."""
    try:
        yield
    except PluginError as error:
        raise ConfigError(f"{flag}: {error}") from error
    except (ValueError, OSError) as error:
        raise CommandError(f"{what}: {error}") from error


def _without_task(settings: AgentSettings, path: Path, agent: str) -> Serving:
    """What answers rounds that have no task."""
    with _reading(agent):
        data = _demo_part(agent) if path == DEMO_DATA else read(path, settings.reader)
        _check_size(data)
    if settings.public is not None:
        raise ConfigError("--public: public records are read as inputs of a task: pass --task")
    options = _options(settings, settings.k, settings.features, settings.reach)
    voter = _voter(settings, data, options, settings.delta, agent)
    offer = common_pb2.Offer(
        classes=data.classes,
        query_dtype=tensors.dtype_code(data.x.dtype),
        query_shape=data.shape,
        ballots=[kind.code for kind in _accepted(voter.kinds, settings.ballots)],
        k=voter.k,
    )
    return Serving(offer, voter, settings.voter)


def _of_task(
    settings: ServedTask | AgentSettings, task: Task, agent_settings: AgentSettings, agent: str
) -> Serving:
    """What answers the rounds of a task. Neighbours that cast one vote for all may be of any
    number: theirs is the agent's own k where the task has none."""
    data, public = None, None
    with _reading(agent):
        if settings.data is not None:
            data = read_labelled(
                settings.data, task, reader=settings.reader, bad_rows=settings.bad_rows
            )
            _check_size(data)
        if settings.public is not None:
            public = read_inputs(settings.public, task, bad_rows=settings.bad_rows).rows
    vote = task.vote
    if vote.max_contributions is not None and settings.voter != NEIGHBOURS:
        raise ConfigError(
            f"--voter: task {task.name} bounds what a record contributes, which {NEIGHBOURS} keeps "
            f"to and {settings.voter} does not"
        )
    k = vote.k or agent_settings.k
    options = _options(settings, k, task.features.map, vote.reach, task=task, public=public)
    voter = _voter(settings, data, options, agent_settings.delta, agent)
    if vote.ballot not in voter.kinds:
        known = ", ".join(kind.name for kind in voter.kinds)
        raise ConfigError(
            f"--voter: task {task.name} takes {vote.ballot.name} ballots, and {settings.voter} "
            f"casts {known}: choose another"
        )
    if vote.ballot.needs_k and voter.k != vote.k:
        raise ConfigError(
            f"--voter: {settings.voter} counts {voter.k} neighbours, and task {task.name} "
            f"{vote.k}: choose another"
        )
    return Serving(agreement.offer_of(task), voter, settings.voter, task)


def _options(
    settings: VoterSettings,
    k: int,
    features: str,
    reach: float | None,
    *,
    task: Task | None = None,
    public: npt.NDArray[Any] | None = None,
) -> VoterOptions:
    return VoterOptions(
        k=k,
        features=features,
        reach=reach,
        seed=settings.seed,
        task=task,
        weights=settings.weights,
        model=settings.model or "",
        inputs=settings.inputs,
        trusted=tuple(settings.trust),
        ca=settings.model_ca,
        plain_http=settings.plain_http,
        public=public,
        start_seconds=settings.start_seconds,
    )


def _voter(
    settings: VoterSettings,
    data: Dataset | None,
    options: VoterOptions,
    delta: float,
    agent: str,
) -> Voter:
    """The voter, made and tried; one of the owner's in a process of its own."""
    if data is not None:
        k = options.k if settings.voter == NEIGHBOURS else 0
        classes = None if options.task is None else options.task.classes
        for warning in owner_warnings(data, k, delta, classes):
            log.warning("%s", warning)
    with _told(f"agent {agent} can't make the voter {settings.voter}", "--voter"):
        if is_foreign(settings.voter):
            return IsolatedVoter(settings.voter, data, options)
        return make_voter(settings.voter, data, options)


def _check_agree(settings: AgentSettings, task: Task) -> None:
    """Refuses settings that say something else than the task does."""
    vote = task.vote
    for name, given, want in (
        ("k", settings.k, vote.k or settings.k),
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
        raise ValueError(f"it holds numbers beyond {tensors.MAX_SIZE:g}: scale them")


def _reading(agent: str) -> contextlib.AbstractContextManager[None]:
    return _told(f"the data of agent {agent} can't be used", "--reader")


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
        votes = _asked(voter, spec, queries)
        why = f"{spec.ballot.name} ballots take {spec.ballot.wants}"
        if votes.dtype.kind == "f" and np.isnan(votes).any():
            why = "its votes hold NaN"
        elif votes.ndim == 0 or len(votes) != spec.message.queries:
            why = f"its votes are not of {spec.message.queries} queries"
        else:
            return spec.encode(agent, votes)
        raise ValueError(why)
    except (Exception, SystemExit) as error:
        why = error.why if isinstance(error, VoterError) else why
        given = "no votes" if votes is None else f"votes of {votes.dtype} {votes.shape}"
        log.exception("round %s: voter %s gave %s", spec.round_id, name, given)
        raise VoteError(ErrorKind.VOTER_FAILED, voter=name, why=why) from error


def await_voter(voter: Voter, name: str, spec: Spec) -> None:
    """Waits until a voter can be asked about a round; nothing is charged if it can't.

    Whether it can depends on no query, and on no record.
    """
    if isinstance(voter, CountingVoter):
        try:
            voter.check_new(spec.round_id)
        except AlreadyAnswered as error:
            why = "it was answered before, perhaps by this agent before a restart"
            raise VoteError(ErrorKind.POLICY_REFUSED, why=why) from error
    if not isinstance(voter, IsolatedVoter):
        return
    try:
        voter.start(_SHARE_OF_TIME * spec.seconds_left())
    except (VoterError, ValueError, ImportError) as error:
        log.exception("round %s: voter %s can't be asked", spec.round_id, name)
        why = error.why if isinstance(error, VoterError) else "it can't be started again"
        raise VoteError(ErrorKind.VOTER_FAILED, voter=name, why=why) from error


def _asked(voter: Voter, spec: Spec, queries: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Votes, in time for them to be shared."""
    if isinstance(voter, IsolatedVoter):
        return voter.vote(queries, spec.ballot, _SHARE_OF_TIME * spec.seconds_left())
    if isinstance(voter, CountingVoter):
        return voter.answer(spec.round_id, queries)
    return np.asarray(voter.vote(queries, spec.ballot))


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
