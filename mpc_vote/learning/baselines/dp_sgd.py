"""DP-FedSGD: noisy gradient steps with instance-level privacy.

In each step every record of every agent takes part with the same probability, on its own. An agent
sends the sum of its records' gradients, each clipped by itself; the sum over agents gets Gaussian
noise, and the server takes one step (Abadi et al., "Deep Learning with Differential Privacy", 2016,
Algorithm 1, over federated records: the paper's DP-FedSGD with one local iteration, its sums
aggregated under MPC). Gradients of single records come from `torch.func`, so that any stacked
network will do as long as no record's logits depend on other records.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch.func import functional_call, grad_and_value, vmap
from torch.nn import functional

from mpc_vote.data.dataset import check_points
from mpc_vote.learning.baselines.common_model import CommonModel, M, flatten
from mpc_vote.learning.baselines.noisy_sum import clipped_sum, noise_for, noisy_mean
from mpc_vote.learning.nets.networks import Progress
from mpc_vote.learning.nets.optimisers import one_thread
from mpc_vote.learning.nets.stacked_networks import Labelled
from mpc_vote.privacy import Clipped, PoissonGaussian

_KEY = 0xD59D  # keeps these draws apart from all others
_MOST_NUMBERS = 1 << 22  # gradients of single records that are held at a time


@dataclass(frozen=True)
class DpSgdRecipe:
    """How steps go: the gradient of a record is clipped to the l2 norm `clip`."""

    steps: int
    sampling: float
    rate: float
    clip: float
    momentum: float = 0.0

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ValueError(f"there must be at least one step, not {self.steps}")
        if not 0 < self.sampling <= 1:
            raise ValueError(f"sampling must be a probability above 0, not {self.sampling}")
        if not self.rate > 0 or not self.clip > 0 or not 0 <= self.momentum < 1:
            raise ValueError(f"rate and clip must be positive, momentum 0 to below 1: {self}")

    def mechanism(self, noise_multiplier: float) -> PoissonGaussian:
        """What all steps cost with noise of so many clips; at agent level there is no bound."""
        return PoissonGaussian(self.steps, self.sampling, noise_multiplier, None, Clipped(1.0))

    def noise_for(self, epsilon: float, delta: float) -> float:
        """The least noise multiplier for this instance-level epsilon."""
        return noise_for(epsilon, delta, self.steps, self.sampling)


PRIVATE_RECORDS = DpSgdRecipe(steps=30, sampling=1.0, rate=10.0, clip=0.5)
"""For a linear model on unit features of a strong backbone, 30 dimensions that `project` kept."""


def dp_fed_sgd(
    start: M,
    data: Sequence[Labelled],
    plan: DpSgdRecipe,
    noise_multiplier: float,
    seed: int,
    *,
    on_step: Progress | None = None,
) -> tuple[M, PoissonGaussian]:
    """Train the common model with instance-level privacy; gives it with what to account for.

    The number of records is taken as public. `start` must be free of private data, its statistics
    too. `on_step` gets (steps done, steps in all, the sample's mean loss), which is private.
    """
    mechanism = plan.mechanism(noise_multiplier)
    for x, y in data:
        check_points(x)
        if len(x) != len(y):
            raise ValueError(f"an agent has {len(x)} points and {len(y)} labels")
    if not sum(len(x) for x, _ in data):
        raise ValueError("there are no records to train on")
    points = torch.from_numpy(np.concatenate([x for x, _ in data]))
    labels = torch.from_numpy(np.concatenate([y for _, y in data]))
    model = CommonModel(start, plan.momentum)
    model.network.eval()
    expected = plan.sampling * len(points)
    with one_thread():
        for step in range(plan.steps):
            draws = np.random.default_rng([seed, step, _KEY])
            rows = torch.from_numpy(np.flatnonzero(draws.random(len(points)) < plan.sampling))
            total, lost = torch.zeros(flatten(start).shape[1], dtype=torch.float64), 0.0
            for gradients, losses in _gradients(model.network, points[rows], labels[rows]):
                total += clipped_sum(gradients, plan.clip)
                lost += float(losses.sum())
            mean = noisy_mean(total, plan.clip, noise_multiplier, expected, draws)
            model.move(-plan.rate * mean)
            if on_step is not None:
                on_step(step + 1, plan.steps, lost / max(1, len(rows)))
    return model.network, mechanism


def _gradients(
    network: torch.nn.Module, points: torch.Tensor, labels: torch.Tensor
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """The gradient and the loss of every record, (rows, parameters) and (rows,), in pieces."""
    parameters = {name: value.detach() for name, value in network.named_parameters()}
    buffers = dict(network.named_buffers())

    def loss(values: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        logits = functional_call(network, (values, buffers), (x[None, None],))
        return functional.cross_entropy(logits[0], y[None])

    each = vmap(grad_and_value(loss), in_dims=(None, 0, 0))
    size = sum(math.prod(value.shape) for value in parameters.values())
    rows = max(1, _MOST_NUMBERS // size)
    for x, y in zip(torch.split(points, rows), torch.split(labels, rows), strict=True):
        if len(x):
            gradients, losses = each(parameters, x, y)
            yield torch.cat([gradients[name].flatten(1) for name in parameters], dim=1), losses
