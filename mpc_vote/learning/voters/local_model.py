"""Votes of a local model (AE-DPFL): what an agent's own network says of a query.

With unlabelled public points like those that may be asked, the network also learns when not to vote
(`abstention`). A network casts `one_hot` ballots, and all of it may change with any record: at
agent level the whole vote is accounted, at instance level a vote that moves from one class to
another. An abstention is a ballot of zeros, so to turn it into a vote, or a vote into it, moves
less than that. Public points cost nothing.
"""

from __future__ import annotations

from typing import Self

import numpy as np

from mpc_vote.data.dataset import Dataset, FloatArray, LabelArray, PointArray
from mpc_vote.learning.features.maps import FeatureMap
from mpc_vote.learning.nets.networks import Network, NetworkRecipe, Progress, fit, predict_scores
from mpc_vote.learning.nets.stacked_networks import StackedNetwork
from mpc_vote.learning.nets.stacked_training import predict_scores as stacked_scores
from mpc_vote.learning.voters import VoterOptions
from mpc_vote.learning.voters.abstention import train_abstaining_chunk, votes
from mpc_vote.learning.voters.sight import picture_sight
from mpc_vote.voting.ballots import ONE_HOT, BallotKind

_RECIPE = NetworkRecipe(epochs=15, batch=32, rate=4e-3, decay=0.02, smoothing=0.05, augment=True)


def make(data: Dataset | None, options: VoterOptions) -> ModelVoter | AbstainingVoter:
    """A network trained on the agent's data: on pictures where they are compared as they are, else
    on the features that the task or the option names."""
    if data is None:
        raise ValueError("a network is trained on the agent's records: pass --data")
    if data.multi_label:
        raise ValueError("a network takes one class per point; use --voter knn for attributes")
    see = picture_sight(options)
    x = see(data.x)
    if options.public is None:
        return ModelVoter.train(x, data.y, data.classes, options.seed, features=see)
    if options.public.shape[1:] != data.x.shape[1:]:
        raise ValueError(
            f"--public has points of shape {options.public.shape[1:]}, --data of {data.shape}"
        )
    return AbstainingVoter.train(x, data.y, data.classes, see(options.public), options.seed, see)


class ModelVoter:
    """The paper's Algorithm 2: the class that a network trained on one agent's private points
    predicts; it never leaves the agent."""

    kinds: tuple[BallotKind, ...] = (ONE_HOT,)
    k = 0

    def __init__(self, network: Network, features: FeatureMap | None = None) -> None:
        self._network = network
        self._see = features

    @classmethod
    def train(
        cls,
        x: FloatArray,
        y: LabelArray,
        classes: int,
        seed: int,
        on_epoch: Progress | None = None,
        features: FeatureMap | None = None,
    ) -> Self:
        """Train from scratch; `on_epoch` gets (epochs done, epochs in all, loss). Queries go
        through `features` first, as the points did."""
        network, _ = fit(x, y, classes, seed, _RECIPE, on_epoch)
        return cls(network, features)

    def vote(self, queries: PointArray, kind: BallotKind) -> LabelArray:
        """See `Voter`."""
        return self.predict(queries)

    def scores(self, queries: PointArray) -> FloatArray:
        """Softmax scores, (rows, classes)."""
        return predict_scores(self._network, self._see(queries) if self._see else queries)

    def predict(self, queries: PointArray) -> LabelArray:
        """The likeliest class of each query."""
        return np.asarray(np.argmax(self.scores(queries), axis=1), dtype=np.int64)


class AbstainingVoter:
    """A network that abstains on classes that its data lacks: see `abstention`."""

    kinds: tuple[BallotKind, ...] = (ONE_HOT,)
    k = 0

    def __init__(self, network: StackedNetwork, features: FeatureMap) -> None:
        self._network = network
        self._see = features

    @classmethod
    def train(
        cls,
        x: FloatArray,
        y: LabelArray,
        classes: int,
        public: FloatArray,
        seed: int,
        features: FeatureMap,
    ) -> Self:
        """Train from scratch, on points and public points that went through `features`."""
        network, _ = train_abstaining_chunk([(x, y)], classes, public, seed, [0])
        return cls(network, features)

    def vote(self, queries: PointArray, kind: BallotKind) -> LabelArray:
        """See `Voter`."""
        return votes(stacked_scores([self._network], self._see(queries))[0])
