"""FedAvg, and DP-FedAvg with agent-level privacy (the paper's Algorithm 1).

In each round every agent takes part with probability q, on its own, starts from the common model,
takes E gradient steps on its data and sends the difference. FedAvg moves the model by the mean of
the differences. DP-FedAvg clips each and adds noise to their sum. One thing is not as Algorithm 1
has it, as its epsilon would not hold: the sum is divided by the expected number of agents, not by
the number that took part, which is private. The noise on the sum is the same, sigma S, which there
agents add in parts; here it is there even if nobody takes part.

The local loss and the public points are arguments: with those of `adaptation`, both are the "+DA"
of the tables. A loss sees in `Batch.done` the share of all rounds.

    architecture = Architecture("cnn", (28, 28), 10, 16)
    stack = lambda agents: StackedNetwork(architecture, agents)
    start = stack(1)
    start.draw(seed, [0])
    network = fed_avg(start, stack, data, classify(), IMAGES, seed)
    scores = predict_logits(network, queries)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch

from mpc_vote.data.dataset import FloatArray
from mpc_vote.learning.baselines.common_model import CommonModel, M, Stack, flatten
from mpc_vote.learning.baselines.noisy_sum import clipped_sum, noise_for, noisy_mean
from mpc_vote.learning.nets.networks import Progress
from mpc_vote.learning.nets.optimisers import one_thread
from mpc_vote.learning.nets.stacked_networks import Labelled
from mpc_vote.learning.nets.stacked_training import (
    Loss,
    StackBatch,
    StackRecipe,
    chunked,
    train_chunk,
)
from mpc_vote.privacy import Clipped, PoissonGaussian

_KEY = 0xFEDA  # keeps these draws apart from those of agents


@dataclass(frozen=True)
class FedAvgRecipe:
    """How rounds go: `local` says how an agent trains, with a rate that falls by `fade` a round."""

    rounds: int
    local: StackRecipe
    sampling: float = 1.0
    fade: float = 1.0
    momentum: float = 0.0

    def __post_init__(self) -> None:
        if self.rounds < 1:
            raise ValueError(f"there must be at least one round, not {self.rounds}")
        if not 0 < self.sampling <= 1:
            raise ValueError(f"sampling must be a probability above 0, not {self.sampling}")
        if not 0 < self.fade <= 1 or not 0 <= self.momentum < 1:
            raise ValueError(f"fade must be above 0 to 1, momentum 0 to below 1: {self}")


@dataclass(frozen=True)
class DpFedAvgRecipe(FedAvgRecipe):
    """The same, with differences clipped to the l2 norm `clip` (S in the paper)."""

    clip: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.clip > 0:
            raise ValueError(f"clip must be positive, not {self.clip}")

    def mechanism(self, noise_multiplier: float) -> PoissonGaussian:
        """What all rounds cost with noise of so many clips (sigma in the paper)."""
        return PoissonGaussian(
            self.rounds, self.sampling, noise_multiplier, Clipped(1.0), Clipped(1.0, replaced=True)
        )

    def noise_for(self, epsilon: float, delta: float) -> float:
        """The least noise multiplier for this agent-level epsilon."""
        return noise_for(epsilon, delta, self.rounds, self.sampling)


IMAGES = FedAvgRecipe(
    rounds=60, local=StackRecipe(steps=20, batch=32, rate=0.1, adam=False), sampling=0.1
)
"""FedAvg of convolutional networks of width 16 over a hundred agents with small images."""

FEATURES = FedAvgRecipe(rounds=40, local=StackRecipe(steps=20, batch=32, rate=30.0, adam=False))
"""FedAvg of a linear model (`StackedLinear`) on features that `project` has scaled."""

FEATURES_OF_FEW = FedAvgRecipe(
    rounds=10, local=StackRecipe(steps=20, batch=32, rate=10.0, adam=False)
)
"""The same for a few agents with domains of their own, which long training leads astray."""

PRIVATE_IMAGES = DpFedAvgRecipe(
    rounds=10, local=StackRecipe(steps=60, batch=16, rate=0.05, adam=False), clip=0.7
)
"""DP-FedAvg of convolutional networks of width 4: noise on more parameters costs more."""

PRIVATE_FEATURES = DpFedAvgRecipe(
    rounds=40, local=StackRecipe(steps=20, batch=32, rate=30.0, adam=False), clip=3.0
)
"""DP-FedAvg of a linear model on 60 dimensions of `strokes` that `project` has kept."""


def fed_avg(
    start: M,
    stack: Stack[M],
    data: Sequence[Labelled],
    loss: Loss[M],
    plan: FedAvgRecipe,
    seed: int,
    *,
    public: FloatArray | None = None,
    workers: int = 1,
    on_round: Progress | None = None,
) -> M:
    """Train the common model without privacy; an agent counts by its points.

    McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data"
    (2017), Algorithm 1. `on_round` gets (rounds done, rounds in all, the mean local loss).
    """
    model = CommonModel(start, plan.momentum)
    rounds = _rounds(model, stack, data, loss, plan, seed, public, workers)
    for number, (chosen, differences, mean) in enumerate(rounds):
        if chosen:
            points = torch.tensor([len(data[agent][0]) for agent in chosen], dtype=torch.float64)
            model.move(points @ differences.double() / points.sum())
        if on_round is not None:
            on_round(number + 1, plan.rounds, mean)
    return model.network


def dp_fed_avg(
    start: M,
    stack: Stack[M],
    data: Sequence[Labelled],
    loss: Loss[M],
    plan: DpFedAvgRecipe,
    noise_multiplier: float,
    seed: int,
    *,
    public: FloatArray | None = None,
    workers: int = 1,
    on_round: Progress | None = None,
) -> tuple[M, PoissonGaussian]:
    """Train the common model with agent-level privacy; gives it with what to account for.

    `start` must be free of private data, its statistics too. What `on_round` gets is private.
    """
    mechanism = plan.mechanism(noise_multiplier)
    model = CommonModel(start, plan.momentum)
    expected = plan.sampling * len(data)
    rounds = _rounds(model, stack, data, loss, plan, seed, public, workers)
    for number, (_, differences, mean) in enumerate(rounds):
        total = clipped_sum(differences, plan.clip)
        noise = _draws(seed, number, 1)
        model.move(noisy_mean(total, plan.clip, noise_multiplier, expected, noise))
        if on_round is not None:
            on_round(number + 1, plan.rounds, mean)
    return model.network, mechanism


def _rounds(
    model: CommonModel[M],
    stack: Stack[M],
    data: Sequence[Labelled],
    loss: Loss[M],
    plan: FedAvgRecipe,
    seed: int,
    public: FloatArray | None,
    workers: int,
) -> Iterator[tuple[list[int], torch.Tensor, float]]:
    """Who takes part in each round, what they send, (agents, parameters), and their mean loss.

    A round starts from the model as it is when the round is asked for.
    """
    if not data:
        raise ValueError("there are no agents to train")
    with one_thread(), ThreadPoolExecutor(workers) as pool:
        for number in range(plan.rounds):
            taking_part = _draws(seed, number, 0).random(len(data)) < plan.sampling
            chosen = [int(agent) for agent in np.flatnonzero(taking_part)]
            common = flatten(model.network)
            train = partial(
                train_chunk,
                lambda agents: model.spread(stack, len(agents)),
                data,
                _at_round(loss, number, plan.rounds),
                replace(plan.local, rate=plan.local.rate * plan.fade**number),
                int(_draws(seed, number, 2).integers(1 << 63)),
                public=public,
            )
            parts = (
                [[chosen[place] for place in part] for part in chunked(len(chosen))]
                if chosen
                else []
            )
            trained = list(pool.map(train, parts))
            differences = [flatten(network) - common for network, _ in trained]
            lost = sum(mean * len(part) for (_, mean), part in zip(trained, parts, strict=True))
            yield chosen, torch.cat([common[:0], *differences]), lost / max(1, len(chosen))


def _at_round(loss: Loss[M], number: int, rounds: int) -> Loss[M]:
    """The loss as of this round: done is the share of all rounds."""

    def at(network: M, batch: StackBatch) -> torch.Tensor:
        return loss(network, replace(batch, done=(number + batch.done) / rounds))

    return at


def _draws(seed: int, number: int, purpose: int) -> np.random.Generator:
    return np.random.default_rng([seed, number, purpose, _KEY])
