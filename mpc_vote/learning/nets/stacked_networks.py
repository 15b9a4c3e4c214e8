"""Many small networks, one per agent, as one module.

In a stacked network every parameter and buffer leads with the axis of agents, and no agent's part
depends on another's. `StackedNetwork` is the classifier: `forward` and `features` take points
(agents, rows, ...), `fresh` gives every agent weights of its own, `one.pick([0] * agents)` starts
all of them from one common state. `StackedLinear` serves for further heads (a domain classifier,
say). There is no normalisation over a batch, so nothing of a batch is kept.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Self

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from mpc_vote.data.dataset import FloatArray, LabelArray
from mpc_vote.learning.nets.networks import Architecture

Labelled = tuple[FloatArray, LabelArray]
"""One agent's points and labels."""


class StackedLinear(nn.Module):
    """One affine map per agent: (agents, rows, inputs) to (agents, rows, outputs)."""

    def __init__(self, agents: int, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(agents, inputs, outputs))
        self.bias = nn.Parameter(torch.zeros(agents, 1, outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.baddbmm(self.bias, x, self.weight)


class StackedConvolution(nn.Module):
    """One block per agent, as groups of a convolution over channels (agents, inputs).

    Halves the sides, by its stride or by pooling. Each channel of each image is normalised by
    itself, which needs no statistics of a batch.
    """

    def __init__(self, agents: int, inputs: int, outputs: int, side: int, pool: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(agents, outputs, inputs, side, side))
        self.gain = nn.Parameter(torch.ones(agents, outputs))
        self.bias = nn.Parameter(torch.zeros(agents, outputs))
        self._stride, self._pool = 1 if pool else 2, pool

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight, padding = self.weight.flatten(0, 1), self.weight.shape[-1] // 2
        x = functional.conv2d(
            x, weight, stride=self._stride, padding=padding, groups=len(self.weight)
        )
        if self._pool:
            x = functional.max_pool2d(x, 2)
        x = functional.group_norm(x, x.shape[1], self.gain.flatten(), self.bias.flatten())
        return functional.relu(x)


class StackedNetwork(nn.Module):
    """One small classifier per agent: two convolutions (images only), then two affine maps."""

    mean: torch.Tensor
    scale: torch.Tensor

    def __init__(self, architecture: Architecture, agents: int) -> None:
        super().__init__()
        if agents < 1:
            raise ValueError(f"a stack needs at least one agent, got {agents}")
        self.architecture, self.agents = architecture, agents
        shape, width = architecture.shape, architecture.width
        self.convolutions = nn.ModuleList()
        if architecture.kind == "cnn":
            channels = shape[0] if len(shape) == 3 else 1
            self._input: tuple[int, ...] = (channels, *shape[-2:])
            self.convolutions.append(StackedConvolution(agents, channels, width, 5, False))
            self.convolutions.append(StackedConvolution(agents, width, 2 * width, 3, True))
            inputs = 2 * width * math.prod((side + 1) // 4 for side in shape[-2:])
            hidden = 4 * width
        else:
            self._input = (math.prod(shape),)
            inputs, hidden = self._input[0], width
        self.hidden = StackedLinear(agents, inputs, hidden)
        self.head = StackedLinear(agents, hidden, architecture.classes)
        ones = (1,) * (len(self._input) - 1)
        self.register_buffer("mean", torch.zeros(agents, self._input[0], *ones))
        self.register_buffer("scale", torch.ones(agents, self._input[0], *ones))

    def pick(self, places: Sequence[int]) -> Self:
        """A stack of copies of the agents at these places; one place may serve for many agents."""
        network = type(self)(self.architecture, len(places))
        rows = list(places)
        network.load_state_dict({name: value[rows] for name, value in self.state_dict().items()})
        return network

    def features(self, x: torch.Tensor) -> torch.Tensor:
        """The last hidden layer, (agents, rows, features); one agent's points serve all."""
        self._check_shape(tuple(x.shape[2:]))
        x = x.reshape(*x.shape[:2], *self._input).expand(self.agents, -1, *self._input)
        x = (x - self.mean[:, None]) / self.scale[:, None]
        if self.convolutions:
            rows = x.shape[1]
            x = x.transpose(0, 1).flatten(1, 2)
            for convolution in self.convolutions:
                x = convolution(x)
            x = x.reshape(rows, self.agents, -1).transpose(0, 1)
        return functional.relu(self.hidden(x))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits, (agents, rows, classes)."""
        logits: torch.Tensor = self.head(self.features(x))
        return logits

    @torch.no_grad()
    def draw(self, seed: int, agents: Sequence[int]) -> None:
        """Fill each agent's weights from its own generator (He's initialisation)."""
        for place, agent in enumerate(agents):
            draws = generator(seed, agent, 0)
            for layer in (*self.convolutions, self.hidden, self.head):
                weight = layer.weight[place]
                fan = weight.shape[0] if weight.ndim == 2 else weight[0].numel()
                drawn = draws.standard_normal(tuple(weight.shape), dtype=np.float32)
                weight.copy_(torch.from_numpy(drawn)).mul_(math.sqrt(2 / fan))
                layer.bias[place].zero_()

    @torch.no_grad()
    def standardise(self, points: Sequence[FloatArray]) -> None:
        """Set each agent's statistics from its points: a mean per channel or feature, one scale.

        Features of one map have one unit. By a scale of its own, a feature that hardly varies
        among few points would be blown up to drown the rest.
        """
        if len(points) != self.agents:
            raise ValueError(f"{self.agents} agents need as many sets of points, not {len(points)}")
        for place, x in enumerate(points):
            self._check_shape(tuple(x.shape[1:]))
            parts = x.reshape(len(x), self._input[0], -1).astype(np.float64)
            mean = parts.mean(axis=(0, 2), keepdims=True)
            scale = math.sqrt(np.square(parts - mean).mean())
            self.mean[place] = torch.from_numpy(mean).reshape(self.mean.shape[1:])
            self.scale[place] = scale if scale > 1e-6 else 1.0

    def _check_shape(self, shape: tuple[int, ...]) -> None:
        takes = self.architecture.shape
        if shape != takes:
            raise ValueError(f"a point has shape {shape}, the networks take {takes}")


def fresh(
    architecture: Architecture, seed: int, agents: Sequence[int], data: Sequence[Labelled]
) -> StackedNetwork:
    """A stack for these agents of `data`, each with weights and statistics of its own."""
    network = StackedNetwork(architecture, len(agents))
    network.draw(seed, agents)
    network.standardise([data[agent][0] for agent in agents])
    return network


def generator(seed: int, agent: int, purpose: int) -> np.random.Generator:
    """What an agent draws from: one generator for each purpose."""
    return np.random.default_rng([seed, agent, purpose])
