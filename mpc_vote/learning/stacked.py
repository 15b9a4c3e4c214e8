"""Many small networks, one per agent, trained as one batched computation.

Three parts that know nothing of each other's inside:

* a *stacked network*: any `nn.Module` whose parameters and buffers lead with the axis of agents.
  `StackedNetwork` is the one for classifiers: `forward` and `features` take points (agents, rows,
  ...), `fresh` gives every agent weights of its own, `one.pick([0] * agents)` starts all of them
  from one common state. `StackedLinear` serves for further heads (a domain classifier, say);
* a *loss*: `loss(network, batch)` gives one figure per agent, (agents,); see `Batch`. As no
  parameter is shared, the gradient of their sum is each agent's own gradient. `classify` is the
  mean cross-entropy;
* a *loop*: `train` takes steps on one stack, `train_agents` cuts many agents into chunks that fit
  in the cache and trains each; `predict_scores` asks the trained chunks about public queries.

    data = [(x, y), ...]                                               # one pair for each agent
    start = lambda agents: fresh(architecture, seed, agents, data)     # agents: their numbers
    chunks = train_agents(start, data, classify(0.05), recipe, seed)   # list of StackedNetwork
    scores = predict_scores(chunks, queries)                           # (agents, rows, classes)

Each agent draws from generators of its own, seeded by (seed, agent), and its part of the batched
arithmetic is the same whatever its neighbours are: on one kind of machine its weights are the same
bits in whatever chunk it is trained. There is no normalisation over a batch, so nothing of a batch
is kept. A chunk runs on one thread: on busy cores more threads lose time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import Self, TypeVar

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from mpc_vote.data.dataset import FloatArray, LabelArray, check_points
from mpc_vote.learning.networks import Architecture, Progress, _AdamW, _one_cycle, _one_thread

Labelled = tuple[FloatArray, LabelArray]
"""One agent's points and labels."""

_CHUNK = 8
_PREDICT_ROWS = 128


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
            draws = _generator(seed, agent, 0)
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


@dataclass(frozen=True)
class Batch:
    """What one step sees; each agent has drawn its rows by itself."""

    agents: Sequence[int]
    """The numbers of the agents."""
    x: torch.Tensor
    """Points, (agents, rows, *shape), warped where the recipe says so."""
    y: torch.Tensor
    """Their labels, (agents, rows)."""
    public: torch.Tensor
    """Unlabelled public points, (agents, public rows, *shape); none where the recipe takes none."""
    public_rows: torch.Tensor
    """Which rows of the public points these are, (agents, public rows)."""
    done: float
    """The share of the steps that lies behind, from 0 to below 1."""


M = TypeVar("M", bound=nn.Module)
T = TypeVar("T")
Loss = Callable[[M, Batch], torch.Tensor]
"""Gives one loss per agent, (agents,)."""
Start = Callable[[Sequence[int]], M]
"""Makes the stack of the agents with these numbers, before training."""


def classify(smoothing: float = 0.0) -> Loss[StackedNetwork]:
    """Each agent's mean cross-entropy."""

    def loss(network: StackedNetwork, batch: Batch) -> torch.Tensor:
        return cross_entropy(network(batch.x), batch.y, smoothing).mean(dim=1)

    return loss


def cross_entropy(logits: torch.Tensor, y: torch.Tensor, smoothing: float) -> torch.Tensor:
    """The cross-entropy of each point, (agents, rows)."""
    return functional.cross_entropy(
        logits.transpose(1, 2), y, reduction="none", label_smoothing=smoothing
    )


@dataclass(frozen=True)
class Recipe:
    """How a stack is trained: every agent takes the same number of steps.

    With `adam` the rate rises to `rate` and falls to nothing along cosines, with decoupled weight
    decay; without it, plain gradient steps at a constant rate (the local steps of FedAvg).
    """

    steps: int
    batch: int
    rate: float
    decay: float = 0.0
    augment: bool = False
    adam: bool = True
    public_batch: int = 0

    def __post_init__(self) -> None:
        if self.steps < 1 or self.batch < 1 or self.public_batch < 0 or not self.rate > 0:
            raise ValueError(f"steps, batch and rate must be positive: {self}")


def train(
    network: M,
    data: Sequence[Labelled],
    loss: Loss[M],
    recipe: Recipe,
    seed: int,
    agents: Sequence[int],
    public: FloatArray | None = None,
) -> FloatArray:
    """Train a stack in place on `data[agent]` for each of `agents`.

    Gives each agent's mean loss over the last tenth of the steps.
    """
    if recipe.public_batch and (public is None or not len(public)):
        raise ValueError(f"the recipe takes {recipe.public_batch} public points a step: give some")
    shared = None if public is None else torch.from_numpy(np.ascontiguousarray(public))
    streams = [_Stream(data[agent], recipe, seed, agent, shared) for agent in agents]
    parameters = list(network.parameters())
    rates = _one_cycle(recipe.rate, recipe.steps) if recipe.adam else [recipe.rate] * recipe.steps
    rule = _AdamW if recipe.adam else _Descent
    optimiser = rule(parameters, recipe.decay)
    tail, kept = max(1, recipe.steps // 10), []
    network.train()
    with _one_thread():
        for step, rate in enumerate(rates):
            losses = loss(network, _gather(agents, streams, step / recipe.steps))
            if losses.shape != (len(agents),):
                raise ValueError(f"the loss must have one figure per agent, not {losses.shape}")
            network.zero_grad(set_to_none=True)
            losses.sum().backward()  # type: ignore[no-untyped-call]
            optimiser.step(rate)
            if step >= recipe.steps - tail:
                kept.append(losses.detach())
    network.zero_grad(set_to_none=True)
    network.eval()
    mean: FloatArray = torch.stack(kept).mean(dim=0).numpy()
    return mean


def train_agents(
    start: Start[M],
    data: Sequence[Labelled],
    loss: Loss[M],
    recipe: Recipe,
    seed: int,
    *,
    public: FloatArray | None = None,
    workers: int = 1,
    on_chunk: Progress | None = None,
) -> list[M]:
    """Train a network for every agent; gives the chunks in order (see `in_chunks`)."""

    def one(agents: Sequence[int]) -> tuple[M, float]:
        return train_chunk(start, data, loss, recipe, seed, agents, public)

    return in_chunks(one, len(data), workers, on_chunk)


def in_chunks(
    task: Callable[[Sequence[int]], tuple[T, float]],
    agents: int,
    workers: int = 1,
    on_chunk: Progress | None = None,
) -> list[T]:
    """Do `task`, which gives a result and a loss, for every chunk of agents on `workers` threads.

    `on_chunk` gets (chunks done, chunks in all, the chunk's loss).
    """
    parts, results = chunked(agents), list[T]()
    with _one_thread(), ThreadPoolExecutor(workers) as pool:
        for result, loss in pool.map(task, parts):
            results.append(result)
            if on_chunk is not None:
                on_chunk(len(results), len(parts), loss)
    return results


def chunked(agents: int) -> list[range]:
    """Cut agents into ranges of about equal length that are quick to train together."""
    if agents < 1:
        raise ValueError("there are no agents to train")
    count = -(-agents // _CHUNK)
    ends = [agents * part // count for part in range(count + 1)]
    return [range(first, last) for first, last in pairwise(ends)]


def train_chunk(
    start: Start[M],
    data: Sequence[Labelled],
    loss: Loss[M],
    recipe: Recipe,
    seed: int,
    agents: Sequence[int],
    public: FloatArray | None = None,
) -> tuple[M, float]:
    """Start and train the stack of some agents of `data`; gives it with its mean loss.

    A lone agent is trained beside a copy of itself: a stack of one takes other kernels, with other
    roundings, and an agent's weights should not depend on its company.
    """
    if len(agents) > 1:
        network = start(agents)
        return network, float(train(network, data, loss, recipe, seed, agents, public).mean())
    twins = start([*agents, *agents])
    mean = train(twins, data, loss, recipe, seed, [*agents, *agents], public).mean()
    network = start(agents)
    network.load_state_dict({name: value[:1] for name, value in twins.state_dict().items()})
    network.eval()
    return network, float(mean)


def predict_scores(chunks: Iterable[StackedNetwork], queries: FloatArray) -> FloatArray:
    """Softmax scores of every agent, (agents, rows, classes), a few rows of one chunk at a time."""
    check_points(queries)
    points = torch.from_numpy(np.ascontiguousarray(queries))
    parts: list[FloatArray] = []
    with _one_thread(), torch.inference_mode():
        for network in chunks:
            network.eval()
            scores = np.empty(
                (network.agents, len(points), network.architecture.classes), dtype=np.float32
            )
            for first in range(0, len(points), _PREDICT_ROWS):
                rows = slice(first, first + _PREDICT_ROWS)
                scores[:, rows] = functional.softmax(network(points[None, rows]), dim=2).numpy()
            parts.append(scores)
    return np.concatenate(parts)


class _Descent:
    """Plain gradient steps, with weight decay."""

    def __init__(self, parameters: Sequence[torch.Tensor], decay: float) -> None:
        self._parameters, self._decay = parameters, decay

    @torch.no_grad()
    def step(self, rate: float) -> None:
        for point in self._parameters:
            if point.grad is not None:
                point.mul_(1 - rate * self._decay).add_(point.grad, alpha=-rate)


class _Stream:
    """One agent's batches: passes over its points in random order, and what warps them."""

    def __init__(
        self, own: Labelled, recipe: Recipe, seed: int, agent: int, public: torch.Tensor | None
    ) -> None:
        x, y = own
        check_points(x)
        if not len(x) or len(x) != len(y):
            raise ValueError(f"agent {agent} has {len(x)} points and {len(y)} labels")
        self._x, self._y = torch.from_numpy(np.ascontiguousarray(x)), torch.from_numpy(y)
        self._public, self._recipe = public, recipe
        self._rows = _passes(_generator(seed, agent, 1), len(x), recipe.batch)
        self._public_rows = _passes(
            _generator(seed, agent, 2), 0 if public is None else len(public), recipe.public_batch
        )
        self._warps = _generator(seed, agent, 3)

    def next(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """The points, the labels, the public points and which rows those are."""
        rows, public_rows = next(self._rows), next(self._public_rows)
        x, public = self._x[rows], self._x[:0]
        if self._public is not None:
            public = self._public[public_rows]
        if self._recipe.augment:
            both = torch.cat([x, public])
            draws = torch.from_numpy(self._warps.random((len(both), 6), dtype=np.float32))
            x, public = torch.split(_warp(both, draws), [len(x), len(public)])
        return x, self._y[rows], public, public_rows


def _passes(draws: np.random.Generator, points: int, batch: int) -> Iterator[torch.Tensor]:
    """Batches of row numbers from one random order after the other; a batch may span two."""
    rows = np.empty(0, dtype=np.int64)
    while True:
        while len(rows) < batch:
            rows = np.concatenate([rows, draws.permutation(points)])
        yield torch.from_numpy(rows[:batch])
        rows = rows[batch:]


def _gather(agents: Sequence[int], streams: Sequence[_Stream], done: float) -> Batch:
    parts = [stream.next() for stream in streams]
    x, y, public, public_rows = (torch.stack(column) for column in zip(*parts, strict=True))
    return Batch(agents, x, y, public, public_rows, done)


def _generator(seed: int, agent: int, purpose: int) -> np.random.Generator:
    return np.random.default_rng([seed, agent, purpose])


def _warp(images: torch.Tensor, draws: torch.Tensor) -> torch.Tensor:
    """Rotate, shear, zoom and shift images (rows, [channels,] height, width) by six draws each."""
    angle, shear, zoom_row, zoom_column, right, down = (
        (draws * 2 - 1) * torch.tensor([0.25, 0.2, 0.12, 0.12, 0.14, 0.14])
    ).unbind(dim=1)
    sine, cosine = torch.sin(angle), torch.cos(angle)
    top = torch.stack([(1 + zoom_column) * cosine, (1 + zoom_column) * (shear - sine), right], 1)
    bottom = torch.stack([(1 + zoom_row) * sine, (1 + zoom_row) * cosine, down], 1)
    planes = images.reshape(len(images), -1, *images.shape[-2:])
    grid = functional.affine_grid(
        torch.stack([top, bottom], dim=1), list(planes.shape), align_corners=False
    )
    return functional.grid_sample(planes, grid, align_corners=False).reshape(images.shape)
