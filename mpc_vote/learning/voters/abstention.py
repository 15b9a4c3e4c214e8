"""When an agent's model should not vote: detection of classes that its data lacks.

In AE-DPFL an agent that never saw a class must name one of its own for it, and such votes gather on
the classes that look alike: they cost more of the margin than all other mistakes together. An
all-zero ballot is no more sensitive than a one-hot one, so such an agent does better to abstain.
What it does with its own data to decide so changes nothing but its own ballot, and the charge of
`one_hot` ballots covers all of it: at agent level the vote, at instance level one that moves to
another class, which is further than from a class to nothing.

The network gets one more class, "unknown", for which unlabelled public points are the examples:

1. All public points count as unknown, at a small weight. Points like the agent's own are pulled
   both ways and lean to their class; what it never saw is pulled one way only.
2. Of the public points, a little less than the share that is of none of the agent's classes is
   taken for unknown, likeliest first; the rest gets the class that the network gives it. (A little
   less, as votes that should not be cast scatter over classes, but those that are missing all miss
   in one.) The network learns on from these labels beside the agent's own.

An agent is not told how large that share is, and classes need not be equally frequent. So it is
estimated: networks that learnt from one half of the agent's points, as in step 1, call a share `s`
of the public points unknown, and a share `f` of the agent's other half, wrongly. Of points that are
unknown all are called so, of the others a share `f`: hence s = u + (1 - u) f.

The public points should be those that may be asked, or be like them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from mpc_vote.data.dataset import FloatArray, LabelArray, check_labels
from mpc_vote.learning.nets.networks import Architecture, Progress
from mpc_vote.learning.nets.stacked_networks import Labelled, StackedNetwork, fresh
from mpc_vote.learning.nets.stacked_training import (
    Loss,
    StackBatch,
    StackRecipe,
    Start,
    cross_entropy,
    in_chunks,
    predict_scores,
    train_chunk,
)

ABSTAIN = -1
"""What `votes` gives where an agent casts an all-zero ballot."""

_RECIPES = {
    "cnn": StackRecipe(steps=175, batch=32, rate=4e-3, decay=0.1, augment=True, public_batch=32),
    "mlp": StackRecipe(steps=100, batch=32, rate=1e-2, decay=3.0, public_batch=64),
}
_EXPOSURE = 0.1
_SMOOTHING = 0.1
_KEEN = 0.98
_MOST_WRONG = 0.9


def votes(scores: FloatArray) -> LabelArray:
    """The likeliest class, or ABSTAIN: (..., classes + 1) scores, the last one of "unknown"."""
    likeliest = np.argmax(scores, axis=-1)
    return np.where(likeliest == scores.shape[-1] - 1, ABSTAIN, likeliest).astype(np.int64)


def train_abstaining(
    data: Sequence[Labelled],
    classes: int,
    public: FloatArray,
    seed: int,
    *,
    workers: int = 1,
    on_chunk: Progress | None = None,
) -> list[StackedNetwork]:
    """Networks with `classes + 1` outputs for all agents, in chunks; none depends on another."""

    def one(agents: Sequence[int]) -> tuple[StackedNetwork, float]:
        return train_abstaining_chunk(data, classes, public, seed, agents)

    return in_chunks(one, len(data), workers, on_chunk)


def train_abstaining_chunk(
    data: Sequence[Labelled],
    classes: int,
    public: FloatArray,
    seed: int,
    agents: Sequence[int],
) -> tuple[StackedNetwork, float]:
    """The stack of some agents of `data`, with its mean loss."""
    architecture = Architecture.for_shape(tuple(public.shape[1:]), classes + 1)
    for agent in agents:
        check_labels(data[agent][1], classes)
    places = {agent: place for place, agent in enumerate(agents)}

    def learn(
        start: Start[StackedNetwork], targets: LabelArray, weight: float
    ) -> tuple[StackedNetwork, float]:
        loss = _learn_from(places, targets, weight)
        return train_chunk(start, data, loss, _RECIPES[architecture.kind], seed, agents, public)

    everything = np.full((len(agents), len(public)), classes)
    first, _ = learn(lambda some: fresh(architecture, seed, some, data), everything, _EXPOSURE)
    shares = _unknown_shares(data, classes, public, seed, agents, architecture)
    targets = _share_out(predict_scores([first], public), [_KEEN * share for share in shares])
    return learn(lambda some: first.pick([places[agent] for agent in some]), targets, 1.0)


def _unknown_shares(
    data: Sequence[Labelled],
    classes: int,
    public: FloatArray,
    seed: int,
    agents: Sequence[int],
    architecture: Architecture,
) -> list[float]:
    """What share of the public points is of none of an agent's classes; none where it has all."""
    lacking = [agent for agent in agents if len(np.unique(data[agent][1])) < classes]
    halves = [half for x, y in data for half in _halves(x, y)]
    learners = [2 * agent + half for agent in lacking for half in (0, 1)]
    shares = dict.fromkeys(agents, 0.0)
    if not lacking:
        return list(shares.values())
    places = {learner: place for place, learner in enumerate(learners)}
    everything = np.full((len(learners), len(public)), classes)
    network, _ = train_chunk(
        lambda some: fresh(architecture, seed, some, halves),
        halves,
        _learn_from(places, everything, _EXPOSURE),
        _RECIPES[architecture.kind],
        seed,
        learners,
        public,
    )
    called = _called_unknown(predict_scores([network], public))
    for learner in learners:
        other = _called_unknown(predict_scores([network], halves[learner ^ 1][0]))
        place = places[learner]
        wrongly = min(float(other[place]), _MOST_WRONG)
        share = (float(called[place]) - wrongly) / (1 - wrongly)
        shares[learner // 2] += max(0.0, share) / 2
    return list(shares.values())


def _halves(x: FloatArray, y: LabelArray) -> tuple[Labelled, Labelled]:
    """An agent's points, of each class every other one."""
    order = np.argsort(y, kind="stable")
    return (x[order[0::2]], y[order[0::2]]), (x[order[1::2]], y[order[1::2]])


def _called_unknown(scores: FloatArray) -> FloatArray:
    """The share of rows that each network rather calls unknown than anything else, (networks,)."""
    return np.asarray((scores[:, :, -1] > 1 / 2).mean(axis=1), dtype=np.float32)


def _learn_from(
    places: Mapping[int, int], targets: LabelArray, weight: float
) -> Loss[StackedNetwork]:
    """Cross-entropy on an agent's points, and at `weight` on public points with these labels."""
    labels = torch.from_numpy(targets)

    def loss(network: StackedNetwork, batch: StackBatch) -> torch.Tensor:
        rows = torch.tensor([[places[agent]] for agent in batch.agents])
        y = torch.cat([batch.y, labels[rows, batch.public_rows]], dim=1)
        losses = cross_entropy(network(torch.cat([batch.x, batch.public], dim=1)), y, _SMOOTHING)
        own, public = torch.split(losses, [batch.x.shape[1], batch.public.shape[1]], dim=1)
        return own.mean(dim=1) + weight * public.mean(dim=1)

    return loss


def _share_out(scores: FloatArray, unknown: Sequence[float]) -> LabelArray:
    """Labels for public points: each agent's share of likeliest unknowns, else the best class."""
    labels: LabelArray = np.argmax(scores[:, :, :-1], axis=2)
    count = scores.shape[1]
    for row, score, share in zip(labels, scores[:, :, -1], unknown, strict=True):
        order = np.argsort(-score, kind="stable")
        row[order[: round(share * count)]] = scores.shape[2] - 1
    return labels
