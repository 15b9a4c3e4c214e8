"""The baselines end to end: one common model that agents move by what they send.

FedAvg, DP-FedAvg (agent-level privacy) and DP-FedSGD (instance-level privacy), each with or without
adaptation to the server's unlabelled points. The noise follows from the epsilon to reach.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from mpc_vote.data.dataset import Dataset
from mpc_vote.data.partition import Partition
from mpc_vote.learning.baselines.common_model import Stack, flatten, predict_logits
from mpc_vote.learning.baselines.dp_sgd import DpSgdRecipe, dp_fed_sgd
from mpc_vote.learning.baselines.fedavg import DpFedAvgRecipe, FedAvgRecipe, dp_fed_avg, fed_avg
from mpc_vote.learning.nets.networks import Architecture
from mpc_vote.learning.nets.stacked_networks import Labelled, StackedLinear, StackedNetwork
from mpc_vote.learning.nets.stacked_training import Loss, StackBatch, classify
from mpc_vote.learning.voters.domain_adaptation import AdversarialNetwork, adversarial
from mpc_vote.privacy.mechanisms import Mechanism
from mpc_vote.simulation.experiment import ArmContext, SeedResult
from mpc_vote.simulation.feature_pipeline import FeaturePipeline

_SMOOTHING = 0.05
_FLOAT_BYTES = 4


@dataclass(frozen=True)
class LinearModel:
    """One affine map of the features."""


@dataclass(frozen=True)
class NeuralModel:
    """A network of this width: convolutions on images, a perceptron on vectors.

    With a `reversal` above 0 it is adapted to the public points by gradient reversal.
    """

    width: int
    reversal: float = 0.0


Model: TypeAlias = LinearModel | NeuralModel


@dataclass(frozen=True)
class FedAvgConfig:
    """FedAvg, or DP-FedAvg where the plan clips and `epsilon` at `delta` is to be kept."""

    features: FeaturePipeline
    model: Model
    plan: FedAvgRecipe
    epsilon: float | None = None
    delta: float = 1e-3

    def __post_init__(self) -> None:
        if isinstance(self.plan, DpFedAvgRecipe) != (self.epsilon is not None):
            raise ValueError("an epsilon needs a plan that clips, and the other way round")


@dataclass(frozen=True)
class DpFedSgdConfig:
    """DP-FedSGD: `epsilon` is instance-level."""

    features: FeaturePipeline
    model: Model
    plan: DpSgdRecipe
    epsilon: float
    delta: float


def averaging(
    context: ArmContext, partition: Partition, config: FedAvgConfig, seed: int
) -> SeedResult:
    """FedAvg or DP-FedAvg, scored by the common model on the test set."""
    seen = config.features.partition(partition)
    start, stack = _start(config.model, seen.public, seed)
    data = _labelled(seen.private)
    adapts = isinstance(config.model, NeuralModel) and config.model.reversal > 0

    def tell(done: int, total: int, loss: float) -> None:
        context.tell("rounds", done, total)

    plan, mechanisms = config.plan, tuple[Mechanism, ...]()
    loss = _loss(config.model, seen.public)
    public = seen.public.x if adapts else None
    if isinstance(plan, DpFedAvgRecipe) and config.epsilon is not None:
        noise = plan.noise_for(config.epsilon, config.delta)
        network, mechanism = dp_fed_avg(
            start,
            stack,
            data,
            loss,
            plan,
            noise,
            seed,
            public=public,
            workers=context.workers,
            on_round=tell,
        )
        mechanisms = (mechanism,)
    else:
        network = fed_avg(
            start,
            stack,
            data,
            loss,
            plan,
            seed,
            public=public,
            workers=context.workers,
            on_round=tell,
        )
    rounds = plan.rounds * plan.sampling
    received = partition.public.x.nbytes if adapts or config.features.dimensions is not None else 0
    return _outcome(network, seen.test, mechanisms, rounds, received)


def descent(
    context: ArmContext, partition: Partition, config: DpFedSgdConfig, seed: int
) -> SeedResult:
    """DP-FedSGD, scored by the common model on the test set."""
    seen = config.features.partition(partition)
    start, _ = _start(config.model, seen.public, seed)
    noise = config.plan.noise_for(config.epsilon, config.delta)
    network, mechanism = dp_fed_sgd(
        start,
        _labelled(seen.private),
        config.plan,
        noise,
        seed,
        on_step=lambda done, total, _: context.tell("steps", done, total),
    )
    received = 0 if config.features.dimensions is None else partition.public.x.nbytes
    return _outcome(network, seen.test, (mechanism,), config.plan.steps, received)


def _start(model: Model, public: Dataset, seed: int) -> tuple[nn.Module, Stack[nn.Module]]:
    """A common model before training, with statistics of public points only; and its stack."""
    shape, classes = public.shape, public.classes
    match model:
        case LinearModel():
            return StackedLinear(1, shape[0], classes), lambda agents: StackedLinear(
                agents, shape[0], classes
            )
        case NeuralModel(width, reversal):
            kind = AdversarialNetwork if reversal > 0 else StackedNetwork
            architecture = Architecture("mlp" if len(shape) == 1 else "cnn", shape, classes, width)
            network = kind(architecture, 1)
            network.draw(seed, [0])
            network.standardise([public.x])
            return network, lambda agents: kind(architecture, agents)


def _loss(model: Model, public: Dataset) -> Loss[Any]:
    if public.multi_label:
        return _attributes
    if isinstance(model, NeuralModel) and model.reversal > 0:
        return adversarial(_SMOOTHING, model.reversal)
    return classify(_SMOOTHING)


def _attributes(network: nn.Module, batch: StackBatch) -> torch.Tensor:
    """Each agent's mean cross-entropy of each attribute by itself."""
    losses = functional.binary_cross_entropy_with_logits(
        network(batch.x), batch.y.float(), reduction="none"
    )
    return losses.mean(dim=(1, 2))


def _labelled(parts: Sequence[Dataset]) -> list[Labelled]:
    return [(part.x, part.y) for part in parts]


def _outcome(
    network: nn.Module,
    test: Dataset,
    mechanisms: tuple[Mechanism, ...],
    rounds: float,
    received: float,
) -> SeedResult:
    """In each of `rounds` an agent gets the model and sends a vector of as many numbers."""
    logits = predict_logits(network, test.x)
    found = logits > 0 if test.multi_label else np.argmax(logits, axis=1)
    size = _FLOAT_BYTES * flatten(network).shape[1] * rounds
    figures = {"sent": size, "received": size + received}
    return SeedResult(float(np.mean(found == test.y)), mechanisms, figures)
