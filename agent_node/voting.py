"""From private data to ballots: what an agent says about public queries, before noise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from agent_node.settings import AgentSettings
from mpc_vote.app.config import Method
from mpc_vote.data.dataset import Dataset
from mpc_vote.data.partition import load_part
from mpc_vote.proto.mpcvote.v1 import agent_pb2
from mpc_vote.transport import tensors
from mpc_vote.voting import ballots
from mpc_vote.voting.ballots import BallotKind
from mpc_vote.voting.spec import BALLOT_CODES, Spec

# In place of a file: the part of the embedded data that belongs to this agent's name.
DEMO_DATA = Path("demo")

Queries = npt.NDArray[Any]
Ballot = npt.NDArray[np.int64]


class Voter(Protocol):
    """Casts ballots of the kinds it knows."""

    kinds: tuple[BallotKind, ...]
    k: int

    def vote(self, spec: Spec, queries: Queries) -> Ballot:
        """Ballots in units, one row of cells per query."""
        ...


class Neighbours:
    """kNN-DPFL (the paper's Algorithm 3): the labels of the nearest private points."""

    kinds: tuple[BallotKind, ...] = (BallotKind.KNN_COUNT, BallotKind.KNN_FREQUENCY)

    def __init__(self, counts: Callable[[Queries], npt.NDArray[np.int64]], k: int) -> None:
        self._counts = counts
        self.k = k

    def vote(self, spec: Spec, queries: Queries) -> Ballot:
        counts = self._counts(queries)
        encode = ballots.knn_count if spec.ballot is BallotKind.KNN_COUNT else ballots.knn_frequency
        return encode(counts, self.k, spec.message.fraction_bits)


class Attributes:
    """Multi-label: yes to the attributes that most of the nearest private points have."""

    kinds: tuple[BallotKind, ...] = (BallotKind.MULTI_LABEL,)
    k = 0

    def __init__(self, scores: Callable[[Queries], npt.NDArray[np.float64]]) -> None:
        self._scores = scores

    def vote(self, spec: Spec, queries: Queries) -> Ballot:
        message = spec.message
        return ballots.multi_label(self._scores(queries), message.tau, message.fraction_bits)


class LocalModel:
    """AE-DPFL (the paper's Algorithm 2): the class that the agent's own model predicts."""

    kinds: tuple[BallotKind, ...] = (BallotKind.ONE_HOT,)
    k = 0

    def __init__(self, predict: Callable[[Queries], npt.NDArray[np.int64]]) -> None:
        self._predict = predict

    def vote(self, spec: Spec, queries: Queries) -> Ballot:
        message = spec.message
        return ballots.one_hot(self._predict(queries), message.classes, message.fraction_bits)


def prepare(settings: AgentSettings, agent: str) -> tuple[Voter, agent_pb2.Capabilities]:
    """Loads the private data and builds the index or trains the model."""
    data = _demo_part(agent) if settings.data == DEMO_DATA else load_part(settings.data)
    if (np.abs(data.x) > tensors.MAX_SIZE).any():
        raise ValueError(f"the private points hold numbers beyond {tensors.MAX_SIZE:g}: scale them")
    voter = make_voter(
        data,
        settings.method,
        settings.neighbours,
        features=settings.features,
        reach=settings.reach,
        seed=settings.seed,
    )
    return voter, agent_pb2.Capabilities(
        classes=data.classes,
        query_dtype=tensors.dtype_code(data.x.dtype),
        query_shape=data.shape,
        ballots=[BALLOT_CODES[kind] for kind in _accepted(voter.kinds, settings.ballots)],
        k=voter.k,
    )


def _accepted(kinds: Sequence[BallotKind], asked: Sequence[BallotKind]) -> list[BallotKind]:
    """The kinds that a voter can cast and its owner agrees to."""
    accepted = [kind for kind in kinds if kind in asked or not asked]
    if not accepted:
        known = ", ".join(kind.value for kind in kinds)
        raise ValueError(f"--ballots: with such data and method it can be {known} only")
    return accepted


def make_voter(
    data: Dataset,
    method: Method,
    neighbours: int,
    *,
    features: str = "raw",
    reach: float | None = None,
    seed: int = 0,
) -> Voter:
    """The voter for an agent's data and settings."""
    if data.multi_label and method is Method.AE:
        raise ValueError("local models take one class per point; use --method knn for attributes")
    if data.multi_label:
        from mpc_vote.learning.voters.knn import AttributeVoter

        attributes = AttributeVoter(data.x, data.y, data.classes, neighbours, features=features)
        return Attributes(attributes.scores)
    if method is Method.KNN:
        from mpc_vote.learning.voters.knn import KnnVoter

        index = KnnVoter(data.x, data.y, data.classes, neighbours, features=features, reach=reach)
        return Neighbours(index.counts, neighbours)
    from mpc_vote.learning.voters.local_model import ModelVoter

    return LocalModel(ModelVoter.train(data.x, data.y, data.classes, seed).predict)


def _demo_part(agent: str) -> Dataset:
    from mpc_vote.data.demo import demo_partition, part_number

    return demo_partition().private[part_number(agent)]
