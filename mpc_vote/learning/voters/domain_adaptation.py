"""Domain adaptation of agents to the server's unlabelled public points.

An agent's points may look unlike the server's. Each part here lessens that, needs no label of a
public point, and can be used without the others; nothing of it leaves the agent but its ballot, so
the sensitivity of a vote stays what it was:

* `ink` brings pictures of digits to one look, bright ink on a dark ground;
* `DomainStatistics` standardise the points of each domain by that domain's own mean and spread;
* `adversarial` trains with gradient reversal (Ganin et al. 2016), the paper's way from AE-DPFL to
  AE-DPFL+DA and from FedAvg to FedAvg+DA: a second head learns to tell an agent's points from
  public ones, and the features learn to keep it from that. With an `AdversarialNetwork` the head
  sees the features alone, as in the paper; with a `ConditionalNetwork` it sees them by class (Long
  et al. 2018), which holds where the shares of the classes differ between the domains;
* `smooth` lets public points that are close to each other get like scores.

    start = lambda agents: fresh_adversarial(ConditionalNetwork, architecture, seed, agents)
    recipe = Recipe(..., public_batch=32)
    chunks = train_agents(start, data, adversarial(0.05, 0.3), recipe, seed, public=public)
    scores = smooth(predict_scores(chunks, public), neighbours(public))
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self, TypeVar

import numpy as np
import torch
from torch.nn import functional

from mpc_vote.data.dataset import FloatArray, LabelArray, check_points
from mpc_vote.learning.nets.networks import Architecture
from mpc_vote.learning.nets.stacked_networks import StackedLinear, StackedNetwork
from mpc_vote.learning.nets.stacked_training import Loss, StackBatch, cross_entropy

_DOMAIN_WIDTH = 32
_DOMAIN_DRAWS = 4
_FLOOR = 0.3
_ROWS = 512


def ink(images: FloatArray) -> FloatArray:
    """Grey images (n, h, w) as bright ink, near 1, on a dark ground, near 0.

    Otsu's threshold parts an image's pixels; the side that holds less of the image's border is
    the ink. An image never depends on the others.
    """
    check_points(images)
    if images.ndim != 3 or math.prod(images.shape[1:]) < 2:
        raise ValueError(f"ink needs grey images (n, height, width), got {images.shape}")
    ground, bright = _two_means(images.reshape(len(images), math.prod(images.shape[1:])))
    middle = ((ground + bright) / 2)[:, None, None]
    ends = [images[:, 0], images[:, -1], images[:, :, 0], images[:, :, -1]]
    turned = (np.concatenate(ends, axis=1) > middle[:, 0]).mean(axis=1) > 0.5
    width = np.maximum(bright - ground, 1e-3)[:, None, None]
    shown = np.clip((images - ground[:, None, None]) / width, 0, 1)
    return np.asarray(np.where(turned[:, None, None], 1 - shown, shown), dtype=np.float32)


def _two_means(pixels: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Means of the dark and of the bright pixels of each row, parted where Otsu would."""
    ordered = np.sort(pixels, axis=1).astype(np.float64)
    sums, count = np.cumsum(ordered, axis=1), ordered.shape[1]
    dark = np.arange(1, count)
    low = sums[:, :-1] / dark
    high = (sums[:, -1:] - sums[:, :-1]) / (count - dark)
    best = np.argmax(dark * (count - dark) * (high - low) ** 2, axis=1)
    row = np.arange(len(pixels))
    return low[row, best].astype(np.float32), high[row, best].astype(np.float32)


@dataclass(frozen=True, eq=False)
class DomainStatistics:
    """Mean and spread of each feature of one domain's points."""

    mean: FloatArray
    spread: FloatArray

    @classmethod
    def of(cls, points: FloatArray) -> Self:
        """A part of the spread of all features is added to each: none of them blows up."""
        check_points(points)
        if not len(points):
            raise ValueError("statistics need at least one point")
        wide = points.astype(np.float64)
        spread = wide.std(axis=0)
        spread += max(_FLOOR * math.sqrt(float((spread**2).mean())), 1e-6)
        return cls(wide.mean(axis=0).astype(np.float32), spread.astype(np.float32))

    def apply(self, points: FloatArray) -> FloatArray:
        """Points in units of the spread, about the mean."""
        return np.asarray((points - self.mean) / self.spread, dtype=np.float32)


class AdversarialNetwork(StackedNetwork):
    """Classifiers with a second head each that tells an agent's points from public ones."""

    def __init__(self, architecture: Architecture, agents: int) -> None:
        super().__init__(architecture, agents)
        self.domain_hidden = StackedLinear(agents, self._seen_width(), _DOMAIN_WIDTH)
        self.domain_head = StackedLinear(agents, _DOMAIN_WIDTH, 1)

    def domain(self, features: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Log-odds that points with these features and class scores are public, (agents, rows).

        The features come in at one length: else they fool the head by growing without bound.
        """
        units = functional.normalize(features, dim=2) * math.sqrt(features.shape[2])
        hidden = functional.relu(self.domain_hidden(self._seen(units, scores)))
        odds: torch.Tensor = self.domain_head(hidden)
        return odds.squeeze(2)

    def _seen_width(self) -> int:
        return self.head.weight.shape[1]

    def _seen(self, features: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return features

    @torch.no_grad()
    def draw(self, seed: int, agents: Sequence[int]) -> None:
        """Fill each agent's weights, those of the classifier as without a second head."""
        super().draw(seed, agents)
        for place, agent in enumerate(agents):
            draws = np.random.default_rng([seed, agent, _DOMAIN_DRAWS])
            for layer in (self.domain_hidden, self.domain_head):
                weight = layer.weight[place]
                drawn = draws.standard_normal(tuple(weight.shape), dtype=np.float32)
                weight.copy_(torch.from_numpy(drawn)).mul_(math.sqrt(2 / len(weight)))
                layer.bias[place].zero_()


class ConditionalNetwork(AdversarialNetwork):
    """The second head sees the features once for each class, weighted by the class's score."""

    def _seen_width(self) -> int:
        return self.architecture.classes * super()._seen_width()

    def _seen(self, features: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return (scores.detach()[..., None] * features[:, :, None]).flatten(2)


N = TypeVar("N", bound=AdversarialNetwork)


def fresh_adversarial(
    kind: type[N], architecture: Architecture, seed: int, agents: Sequence[int]
) -> N:
    """A stack for these agents, each with weights of its own.

    It takes points as they are, since one set of statistics can't fit both domains: standardise
    each domain first.
    """
    network = kind(architecture, len(agents))
    network.draw(seed, agents)
    return network


def reverse(x: torch.Tensor, strength: float) -> torch.Tensor:
    """x itself, but its gradient is the one that comes in, turned round: times -strength."""
    still = x.detach()
    return still + strength * (still - x)


def adversarial(smoothing: float, strength: float) -> Loss[AdversarialNetwork]:
    """Cross-entropy of the classes, and of the domains through a gradient reversal.

    The reversal sets in slowly, along Ganin et al.'s ramp up to `strength`: at first the features
    are those of no class, and to align them would teach nothing.
    """
    if strength < 0:
        raise ValueError(f"the strength of a reversal can't be negative, got {strength}")

    def loss(network: AdversarialNetwork, batch: StackBatch) -> torch.Tensor:
        rows, public_rows = batch.x.shape[1], batch.public.shape[1]
        if not public_rows:
            raise ValueError("adaptation needs public points: set the recipe's public_batch")
        ramp = 2 / (1 + math.exp(-10 * batch.done)) - 1
        features = network.features(torch.cat([batch.x, batch.public], dim=1))
        logits = network.head(features)
        scores = functional.softmax(logits, dim=2)
        odds = network.domain(reverse(features, strength * ramp), scores)
        told = functional.softplus(odds[:, :rows]).mean(dim=1) / 2
        told = told + functional.softplus(-odds[:, rows:]).mean(dim=1) / 2
        return cross_entropy(logits[:, :rows], batch.y, smoothing).mean(dim=1) + told

    return loss


def neighbours(points: FloatArray, count: int = 10) -> LabelArray:
    """The numbers of the `count` points nearest to each, itself left out, (n, count)."""
    check_points(points)
    if not 0 < count < len(points):
        raise ValueError(f"{len(points)} points can't have {count} neighbours each")
    flat = torch.from_numpy(points.reshape(len(points), -1)).double()
    squares = (flat**2).sum(dim=1)
    found = []
    for first in range(0, len(flat), _ROWS):
        some = flat[first : first + _ROWS]
        distances = squares - 2 * some @ flat.T
        own = torch.arange(len(some))
        distances[own, first + own] = math.inf
        found.append(distances.topk(count, dim=1, largest=False).indices)
    return np.asarray(torch.cat(found).numpy(), dtype=np.int64)


def smooth(
    scores: FloatArray, near: LabelArray, share: float = 0.8, rounds: int = 10
) -> FloatArray:
    """Scores (agents, rows, classes), drawn to the mean of those of near rows, again and again.

    Each agent by itself (label spreading, Zhou et al. 2004, from an agent's own scores): `share`
    of a score comes from the neighbours, the rest is what the agent's network said.
    """
    if scores.ndim != 3 or scores.shape[1] != len(near):
        raise ValueError(
            f"scores of shape {scores.shape} are not of {len(near)} rows with neighbours"
        )
    if not 0 <= share < 1:
        raise ValueError(f"the neighbours' share must be at least 0 and below 1, got {share}")
    spread = np.empty_like(scores)
    for agent, own in enumerate(scores):
        drawn = own
        for _ in range(rounds):
            drawn = (1 - share) * own + share * drawn[near].mean(axis=1)
        spread[agent] = drawn
    return spread
