"""Small networks for agents and for the server, and the one training loop they have in common.

The architecture follows from the shape of a point: a convolutional network for images of at least
16x16, a perceptron on standardised features for anything else. All runs on one thread: results then
depend on the seed only, and networks this small lose far more by sharing busy cores than they gain.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from mpc_vote.data.dataset import FloatArray, LabelArray, check_labels, check_points
from mpc_vote.learning.nets.augmentation import augment_at_random
from mpc_vote.learning.nets.optimisers import AdamW, one_cycle, one_thread
from mpc_vote.transport.tensors import MAX_DIMENSIONS

Progress = Callable[[int, int, float], None]
"""Called after each epoch with (epochs done, epochs in all, training loss)."""

_LEAST_SIDE = 16
_MOST_CHANNELS = 4
_PREDICT_ROWS = 256
_LARGEST = 2**22


@dataclass(frozen=True)
class Architecture:
    """Everything needed to rebuild a network before its arrays are filled in."""

    kind: str
    shape: tuple[int, ...]
    classes: int
    width: int

    @classmethod
    def for_shape(cls, shape: tuple[int, ...], classes: int) -> Architecture:
        """The architecture that suits points of this shape."""
        channels = shape[0] if len(shape) == 3 else 1
        image = len(shape) in (2, 3) and channels <= _MOST_CHANNELS
        if image and min(shape[-2:]) >= _LEAST_SIDE:
            return cls("cnn", shape, classes, 16)
        return cls("mlp", shape, classes, 128)

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Architecture:
        """Parse and check."""
        try:
            fields = json.loads(text)
            made = cls(fields["kind"], tuple(fields["shape"]), fields["classes"], fields["width"])
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise ValueError(f"not an architecture: {error}") from error
        sizes = (*made.shape, made.classes, made.width)
        sound = all(type(size) is int and 1 <= size <= _LARGEST for size in sizes)
        if not sound or not 0 < len(made.shape) < MAX_DIMENSIONS:
            raise ValueError("the architecture has impossible sizes")
        if math.prod(made.shape) > _LARGEST or made.classes > 2**16 or made.width > 2**12:
            raise ValueError(f"the architecture is too large: {sizes}")
        if made.classes < 2 or made.kind not in ("cnn", "mlp"):
            raise ValueError(f"unknown architecture {made.kind!r} with {made.classes} classes")
        if made.kind == "cnn" and (len(made.shape) not in (2, 3) or min(made.shape[-2:]) < 8):
            raise ValueError(f"a cnn needs images, not points of shape {made.shape}")
        return made


class Network(nn.Module):
    """Standardisation by stored statistics, then the body; gives one logit per class."""

    mean: torch.Tensor
    scale: torch.Tensor

    def __init__(self, architecture: Architecture) -> None:
        super().__init__()
        self.architecture = architecture
        shape, classes, width = architecture.shape, architecture.classes, architecture.width
        self.body: nn.Sequential
        self._input: tuple[int, ...]
        statistics: tuple[int, ...]
        if architecture.kind == "cnn":
            channels = shape[0] if len(shape) == 3 else 1
            self._input = (channels, *shape[-2:])
            statistics = (channels, 1, 1)
            self.body = nn.Sequential(
                *_block(channels, width),
                *_block(width, 2 * width),
                *_block(2 * width, 2 * width),
                nn.AdaptiveAvgPool2d(3),
                nn.Flatten(),
                nn.Dropout(0.3),
                nn.Linear(2 * width * 9, classes),
            )
        else:
            self._input = (math.prod(shape),)
            statistics = self._input
            self.body = nn.Sequential(
                nn.Linear(self._input[0], width),
                nn.ReLU(),
                nn.Dropout(0.3),
                nn.Linear(width, width),
                nn.ReLU(),
                nn.Linear(width, classes),
            )
        self.register_buffer("mean", torch.zeros(statistics))
        self.register_buffer("scale", torch.ones(statistics))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits of points that `prepare` has shaped."""
        logits: torch.Tensor = self.body((x - self.mean) / self.scale)
        return logits

    def prepare(self, x: FloatArray) -> torch.Tensor:
        """Checked points as a tensor in the shape that the body takes."""
        check_points(x)
        if tuple(x.shape[1:]) != self.architecture.shape:
            raise ValueError(
                f"a point has shape {tuple(x.shape[1:])}, the model takes {self.architecture.shape}"
            )
        return torch.from_numpy(np.ascontiguousarray(x)).reshape(len(x), *self._input)

    def standardise(self, x: torch.Tensor) -> None:
        """Set the statistics: per channel of images, per feature of vectors."""
        axes = (0, 2, 3) if self.architecture.kind == "cnn" else (0,)
        self.mean.copy_(x.mean(dim=axes).reshape(self.mean.shape))
        scale = x.std(dim=axes, correction=0).reshape(self.scale.shape)
        self.scale.copy_(torch.where(scale > 1e-6, scale, 1.0))


def predict_scores(network: Network, x: FloatArray) -> FloatArray:
    """Softmax scores, (rows, classes)."""
    points = network.prepare(x)
    network.eval()
    with one_thread(), torch.inference_mode():
        parts = [
            functional.softmax(network(part), dim=1) for part in torch.split(points, _PREDICT_ROWS)
        ]
    scores: FloatArray = (
        torch.cat(parts).numpy()
        if len(points)
        else np.empty((0, network.architecture.classes), dtype=np.float32)
    )
    return scores


@dataclass(frozen=True)
class NetworkRecipe:
    """How to train: an epoch passes over all points once."""

    epochs: int
    batch: int
    rate: float
    decay: float
    smoothing: float
    augment: bool


def fit(
    x: FloatArray,
    y: LabelArray,
    classes: int,
    seed: int,
    recipe: NetworkRecipe,
    on_epoch: Progress | None = None,
) -> tuple[Network, float]:
    """Train a network from scratch; gives it with the last epoch's mean loss."""
    check_points(x)
    check_labels(y, classes)
    if len(x) != len(y):
        raise ValueError(f"there are {len(x)} points but {len(y)} labels")
    if len(x) < 2:
        raise ValueError(f"training needs at least two points, got {len(x)}")
    with one_thread(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = Network(Architecture.for_shape(tuple(x.shape[1:]), classes))
        points, labels = network.prepare(x), torch.from_numpy(y)
        network.standardise(points)
        return network, _descend(network, points, labels, recipe, on_epoch)


def _descend(
    network: Network,
    points: torch.Tensor,
    labels: torch.Tensor,
    recipe: NetworkRecipe,
    on_epoch: Progress | None,
) -> float:
    batches = max(1, len(points) // recipe.batch)
    optimiser = AdamW(network.parameters(), recipe.decay)
    rates = iter(one_cycle(recipe.rate, recipe.epochs * batches))
    augment = recipe.augment and network.architecture.kind == "cnn"
    network.train()
    loss_mean = 0.0
    for epoch in range(recipe.epochs):
        total = 0.0
        for rows in torch.randperm(len(points)).tensor_split(batches):
            batch = augment_at_random(points[rows]) if augment else points[rows]
            loss = functional.cross_entropy(
                network(batch), labels[rows], label_smoothing=recipe.smoothing
            )
            network.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step(next(rates))
            total += loss.item() * len(rows)
        loss_mean = total / len(points)
        if on_epoch is not None:
            on_epoch(epoch + 1, recipe.epochs, loss_mean)
    network.eval()
    return loss_mean


def _block(inputs: int, outputs: int) -> list[nn.Module]:
    return [
        nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(),
        nn.MaxPool2d(2),
    ]
