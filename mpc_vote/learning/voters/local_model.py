"""Votes of a local model (AE-DPFL): what an agent's own network says of a query."""

from __future__ import annotations

from typing import Self

import numpy as np

from mpc_vote.data.dataset import Dataset, FloatArray, LabelArray
from mpc_vote.learning.nets.networks import Network, NetworkRecipe, Progress, fit, predict_scores
from mpc_vote.learning.voters import VoterOptions
from mpc_vote.voting.ballots import ONE_HOT, BallotKind

_RECIPE = NetworkRecipe(epochs=15, batch=32, rate=4e-3, decay=0.02, smoothing=0.05, augment=True)


def make(data: Dataset, options: VoterOptions) -> ModelVoter:
    """A network trained on the agent's data."""
    if data.multi_label:
        raise ValueError("a network takes one class per point; use --voter knn for attributes")
    return ModelVoter.train(data.x, data.y, data.classes, options.seed)


class ModelVoter:
    """The paper's Algorithm 2: the class that a network trained on one agent's private points
    predicts; it never leaves the agent."""

    kinds: tuple[BallotKind, ...] = (ONE_HOT,)
    k = 0

    def __init__(self, network: Network) -> None:
        self._network = network

    @classmethod
    def train(
        cls,
        x: FloatArray,
        y: LabelArray,
        classes: int,
        seed: int,
        on_epoch: Progress | None = None,
    ) -> Self:
        """Train from scratch; `on_epoch` gets (epochs done, epochs in all, loss)."""
        network, _ = fit(x, y, classes, seed, _RECIPE, on_epoch)
        return cls(network)

    def vote(self, queries: FloatArray, kind: BallotKind) -> LabelArray:
        """See `Voter`."""
        return self.predict(queries)

    def scores(self, queries: FloatArray) -> FloatArray:
        """Softmax scores, (rows, classes)."""
        return predict_scores(self._network, queries)

    def predict(self, queries: FloatArray) -> LabelArray:
        """The likeliest class of each query."""
        return np.asarray(np.argmax(self.scores(queries), axis=1), dtype=np.int64)
