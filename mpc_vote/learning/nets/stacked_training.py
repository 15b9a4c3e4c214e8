"""Training of many small networks, one per agent, as one batched computation.

Three parts that know nothing of each other's inside:

* a *stack*: any `nn.Module` whose parameters and buffers lead with the axis of agents; see
  `stacked_networks`;
* a *loss*: `loss(network, batch)` gives one figure per agent, (agents,); see `StackBatch`. As no
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
bits in whatever chunk it is trained. A chunk runs on one thread: on busy cores more threads lose
time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from mpc_vote.data.dataset import FloatArray, check_points
from mpc_vote.learning.nets.augmentation import augment
from mpc_vote.learning.nets.networks import Progress
from mpc_vote.learning.nets.optimisers import AdamW, GradientDescent, one_cycle, one_thread
from mpc_vote.learning.nets.stacked_networks import Labelled, StackedNetwork, generator

_CHUNK = 8
_PREDICT_ROWS = 128


@dataclass(frozen=True)
class StackBatch:
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
Loss = Callable[[M, StackBatch], torch.Tensor]
"""Gives one loss per agent, (agents,)."""
Start = Callable[[Sequence[int]], M]
"""Makes the stack of the agents with these numbers, before training."""


def classify(smoothing: float = 0.0) -> Loss[nn.Module]:
    """Each agent's mean cross-entropy."""

    def loss(network: nn.Module, batch: StackBatch) -> torch.Tensor:
        return cross_entropy(network(batch.x), batch.y, smoothing).mean(dim=1)

    return loss


def cross_entropy(logits: torch.Tensor, y: torch.Tensor, smoothing: float) -> torch.Tensor:
    """The cross-entropy of each point, (agents, rows)."""
    return functional.cross_entropy(
        logits.transpose(1, 2), y, reduction="none", label_smoothing=smoothing
    )


@dataclass(frozen=True)
class StackRecipe:
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
    recipe: StackRecipe,
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
    streams = [_BatchStream(data[agent], recipe, seed, agent, shared) for agent in agents]
    parameters = list(network.parameters())
    rates = one_cycle(recipe.rate, recipe.steps) if recipe.adam else [recipe.rate] * recipe.steps
    rule = AdamW if recipe.adam else GradientDescent
    optimiser = rule(parameters, recipe.decay)
    tail, kept = max(1, recipe.steps // 10), []
    network.train()
    with one_thread():
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
    recipe: StackRecipe,
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
    with one_thread(), ThreadPoolExecutor(workers) as pool:
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
    recipe: StackRecipe,
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
    with one_thread(), torch.inference_mode():
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


class _BatchStream:
    """One agent's batches: passes over its points in random order, and what warps them."""

    def __init__(
        self, own: Labelled, recipe: StackRecipe, seed: int, agent: int, public: torch.Tensor | None
    ) -> None:
        x, y = own
        check_points(x)
        if not len(x) or len(x) != len(y):
            raise ValueError(f"agent {agent} has {len(x)} points and {len(y)} labels")
        self._x, self._y = torch.from_numpy(np.ascontiguousarray(x)), torch.from_numpy(y)
        self._public, self._recipe = public, recipe
        self._rows = _passes(generator(seed, agent, 1), len(x), recipe.batch)
        self._public_rows = _passes(
            generator(seed, agent, 2), 0 if public is None else len(public), recipe.public_batch
        )
        self._warps = generator(seed, agent, 3)

    def next(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """The points, the labels, the public points and which rows those are."""
        rows, public_rows = next(self._rows), next(self._public_rows)
        x, public = self._x[rows], self._x[:0]
        if self._public is not None:
            public = self._public[public_rows]
        if self._recipe.augment:
            both = torch.cat([x, public])
            draws = torch.from_numpy(self._warps.random((len(both), 6), dtype=np.float32))
            x, public = torch.split(augment(both, draws), [len(x), len(public)])
        return x, self._y[rows], public, public_rows


def _passes(draws: np.random.Generator, points: int, batch: int) -> Iterator[torch.Tensor]:
    """Batches of row numbers from one random order after the other; a batch may span two."""
    rows = np.empty(0, dtype=np.int64)
    while True:
        while len(rows) < batch:
            rows = np.concatenate([rows, draws.permutation(points)])
        yield torch.from_numpy(rows[:batch])
        rows = rows[batch:]


def _gather(agents: Sequence[int], streams: Sequence[_BatchStream], done: float) -> StackBatch:
    parts = [stream.next() for stream in streams]
    x, y, public, public_rows = (torch.stack(column) for column in zip(*parts, strict=True))
    return StackBatch(agents, x, y, public, public_rows, done)
