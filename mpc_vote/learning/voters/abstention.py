"""When an agent's model should not vote: agents that know what they do not know.

In AE-DPFL an agent that never saw a class must name one of its own for it, and such votes gather
on the classes that look alike: they cost more of the margin than all other mistakes together. An
all-zero ballot is no more sensitive than a one-hot one, so such an agent had better abstain. What
it does with its own data to decide so changes nothing but its own ballot, and agent-level privacy
pays for the whole ballot already. At instance level this would not hold.

The network gets one more class, "unknown", for which unlabelled public points are the examples:

1. All public points count as unknown, at a small weight. Points like the agent's own are pulled
   both ways and lean to their class; what it never saw is pulled one way only.
2. Some of the agent's own points were kept back, and now say how unknown a point of a known class
   may seem that the network has not learnt from (as spies do, Liu et al., "Partially supervised
   classification of text documents"). A public point that seems more unknown than nearly all of
   them is taken for unknown; the rest gets the class that the network gives it. The network learns
   on from these labels beside all of the agent's own. How frequent classes are among the public
   points is nowhere assumed. An agent that has points of all classes takes none for unknown.

The public points should be those that may be asked, or be like them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from mpc_vote.data.dataset import FloatArray, LabelArray, check_labels
from mpc_vote.learning.nets.networks import Architecture, Progress
from mpc_vote.learning.nets.stacked_networks import Labelled, StackedNetwork, fresh, generator
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
_KEPT_BACK, _NEARLY_ALL = 0.2, 0.98
_SPIES = 6  # keeps the draw of spies apart from an agent's others


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
    drawn = {agent: _kept_back(data[agent], seed, agent) for agent in agents}
    told = [drawn[agent][0] if agent in drawn else own for agent, own in enumerate(data)]

    def learn(
        start: Start[StackedNetwork], own: Sequence[Labelled], targets: LabelArray, weight: float
    ) -> tuple[StackedNetwork, float]:
        loss = _learn_from(places, targets, weight)
        return train_chunk(start, own, loss, _RECIPES[architecture.kind], seed, agents, public)

    everything = np.full((len(agents), len(public)), classes)
    first, _ = learn(
        lambda some: fresh(architecture, seed, some, told), told, everything, _EXPOSURE
    )
    limits = [
        np.inf
        if len(np.unique(data[agent][1])) == classes
        else _limit(first.pick([places[agent]]), drawn[agent][1], classes)
        for agent in agents
    ]
    targets = _share_out(predict_scores([first], public), limits)
    return learn(lambda some: first.pick([places[agent] for agent in some]), data, targets, 1.0)


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


def _kept_back(own: Labelled, seed: int, agent: int) -> tuple[Labelled, FloatArray]:
    """The points to learn from at first, and those that are kept back; a lone point is both."""
    x, y = own
    order = generator(seed, agent, _SPIES).permutation(len(x))
    count = max(1, round(_KEPT_BACK * len(x)))
    rest = order[count:] if len(x) > 1 else order
    return (x[rest], y[rest]), x[order[:count]]


def _limit(network: StackedNetwork, spies: FloatArray, unknown: int) -> float:
    """How unknown nearly all of an agent's own points seem at most."""
    return float(np.quantile(predict_scores([network], spies)[0, :, unknown], _NEARLY_ALL))


def _share_out(scores: FloatArray, limits: Sequence[float]) -> LabelArray:
    """Labels for public points: unknown above each agent's limit, else the best class."""
    unknown = scores.shape[2] - 1
    seems = scores[:, :, unknown] > np.array(limits)[:, None]
    return np.where(seems, unknown, scores[:, :, :unknown].argmax(axis=2)).astype(np.int64)
