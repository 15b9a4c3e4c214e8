"""How agents' models vote: always, with abstention, or adapted to the server's data.

Each kind of agents is a frozen dataclass that says all about their training but data and seed. The
votes of all agents on all public points are kept in the store: they serve any number of arms.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from mpc_vote.data.dataset import Dataset, FloatArray, LabelArray
from mpc_vote.data.partition import Partition
from mpc_vote.learning.features.maps import FeatureMap
from mpc_vote.learning.nets.augmentation import augment
from mpc_vote.learning.nets.networks import Architecture
from mpc_vote.learning.nets.stacked_networks import Labelled, fresh
from mpc_vote.learning.nets.stacked_training import (
    StackRecipe,
    classify,
    predict_scores,
    train_agents,
)
from mpc_vote.learning.voters.abstention import train_abstaining
from mpc_vote.learning.voters.abstention import votes as abstaining_votes
from mpc_vote.learning.voters.domain_adaptation import (
    AdversarialNetwork,
    ConditionalNetwork,
    DomainStatistics,
    adversarial,
    fresh_adversarial,
    neighbours,
    smooth,
)
from mpc_vote.simulation.experiment import ArmContext
from mpc_vote.simulation.feature_pipeline import FeaturePipeline
from mpc_vote.simulation.store import fingerprint, plain

STROKES = FeaturePipeline("strokes")
VOTING = StackRecipe(steps=200, batch=32, rate=5e-3, decay=0.1)
ADAPTING = StackRecipe(steps=300, batch=32, rate=4e-3, decay=0.02, public_batch=32)

_SMOOTHING = 0.05
_COPIES = 5  # keeps the draws of warped copies apart from an agent's others


class SimulatedAgents(Protocol):
    """Agents of one kind."""

    @property
    def sees_public(self) -> bool:
        """Whether they train with all public points, and not only vote on some."""

    def votes(self, context: ArmContext, partition: Partition, seed: int) -> LabelArray:
        """What each says of each public point, (agents, points); -1 is nothing."""


def cast(
    context: ArmContext, partition: Partition, agents: SimulatedAgents, seed: int
) -> LabelArray:
    """The votes of all agents on all public points, taken from the store where they are there."""
    config = {
        "parts": [fingerprint(part) for part in partition.private],
        "public": fingerprint(partition.public),
        "agents": plain(agents),
        "seed": seed,
    }
    made = context.store.arrays(
        "votes", config, lambda: {"votes": agents.votes(context, partition, seed).astype(np.int16)}
    )
    return made["votes"].astype(np.int64)


@dataclass(frozen=True)
class AlwaysVotingAgents:
    """Agents that vote on whatever they are asked: the paper's way."""

    features: FeaturePipeline = STROKES
    recipe: StackRecipe = VOTING

    sees_public = False

    def votes(self, context: ArmContext, partition: Partition, seed: int) -> LabelArray:
        see = self.features.of(partition.public.x)
        queries, data = see(partition.public.x), _seen(context, partition.private, see)
        architecture = Architecture.for_shape(tuple(queries.shape[1:]), partition.public.classes)
        chunks = train_agents(
            lambda agents: fresh(architecture, seed, agents, data),
            data,
            classify(_SMOOTHING),
            self.recipe,
            seed,
            workers=context.workers,
            on_chunk=lambda done, total, _: context.tell("agents learn", done, total),
        )
        return _likeliest(predict_scores(chunks, queries))


@dataclass(frozen=True)
class AbstainingAgents:
    """Agents that cast an empty ballot where a query is unlike their data."""

    features: FeaturePipeline = STROKES

    sees_public = True

    def votes(self, context: ArmContext, partition: Partition, seed: int) -> LabelArray:
        see = self.features.of(partition.public.x)
        queries, data = see(partition.public.x), _seen(context, partition.private, see)
        chunks = train_abstaining(
            data,
            partition.public.classes,
            queries,
            seed,
            workers=context.workers,
            on_chunk=lambda done, total, _: context.tell("agents learn", done, total),
        )
        return abstaining_votes(predict_scores(chunks, queries))


@dataclass(frozen=True)
class AdaptedAgents:
    """Agents whose models are adapted to the server's unlabelled points.

    Points of each domain are standardised by themselves. Then, each on its own: gradient reversal
    of some `strength` (by class where it is `conditional`), and scores that are made `even` among
    public points close to each other. An agent with fewer than `least` images adds warped copies.
    """

    features: FeaturePipeline = STROKES
    strength: float = 0.3
    conditional: bool = True
    even: bool = True
    least: int = 600
    width: int = 64
    recipe: StackRecipe = ADAPTING

    sees_public = True

    def votes(self, context: ArmContext, partition: Partition, seed: int) -> LabelArray:
        see = self.features.of(partition.public.x)
        features = see(partition.public.x)
        queries = DomainStatistics.of(features).apply(features)
        parts = [self._enough(part, seed, agent) for agent, part in enumerate(partition.private)]
        data = [(DomainStatistics.of(x).apply(x), y) for x, y in _seen(context, parts, see)]
        shape, classes = tuple(queries.shape[1:]), partition.public.classes
        architecture = Architecture("mlp", shape, classes, self.width)
        kind = ConditionalNetwork if self.conditional else AdversarialNetwork
        chunks = train_agents(
            lambda agents: fresh_adversarial(kind, architecture, seed, agents),
            data,
            adversarial(_SMOOTHING, self.strength),
            self.recipe,
            seed,
            public=queries,
            workers=context.workers,
            on_chunk=lambda done, total, _: context.tell("agents learn", done, total),
        )
        scores = predict_scores(chunks, queries)
        if self.even:
            scores = smooth(scores, neighbours(features))
        return _likeliest(scores)

    def _enough(self, part: Dataset, seed: int, agent: int) -> Dataset:
        copies = math.ceil(self.least / len(part)) - 1
        if copies < 1:
            return part
        draws = np.random.default_rng([seed, agent, _COPIES])
        images = torch.from_numpy(part.x)
        warped = [
            augment(images, torch.from_numpy(draws.random((len(part), 6), dtype=np.float32)))
            for _ in range(copies)
        ]
        x: FloatArray = torch.cat([images, *warped]).numpy()
        return Dataset(part.name, x, np.tile(part.y, copies + 1), part.classes)


def _seen(context: ArmContext, parts: Sequence[Dataset], see: FeatureMap) -> list[Labelled]:
    data: list[Labelled] = []
    for part in parts:
        context.tell("features", len(data), len(parts))
        data.append((see(part.x), part.y))
    return data


def _likeliest(scores: FloatArray) -> LabelArray:
    return np.asarray(np.argmax(scores, axis=2), dtype=np.int64)
