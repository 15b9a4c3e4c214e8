"""Students from networks of one's own: any `torch.nn.Module` that gives a logit for each class.

    def build(shape, classes):
        return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), classes))

    mine = from_module(build)

in a module of yours makes a student for `--student my_module:mine`. Files hold the arrays alone, as
safetensors: whoever reads them needs `build`, too.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from mpc_vote.data.dataset import FloatArray, LabelArray, check_points
from mpc_vote.learning.nets.optimisers import AdamW, one_cycle, one_thread
from mpc_vote.learning.students import StudentOptions, model_file
from mpc_vote.learning.students.classifier import GlobalModel
from mpc_vote.learning.students.lesson import Lesson, mapped
from mpc_vote.learning.students.model_file import Packed

Build: TypeAlias = Callable[[tuple[int, ...], int], nn.Module]
"""Makes an untrained network for points of a shape and so many classes."""

_BATCH, _PREDICT_ROWS = 32, 256
_SMOOTHING, _DECAY = 0.1, 0.05


class ModuleModel(GlobalModel):
    """A trained network; it takes points as they are if they are images, else their features."""

    metrics: dict[str, float]

    def __init__(
        self, network: nn.Module, features: str, shape: tuple[int, ...], classes: int
    ) -> None:
        self._network, self._features, self.shape = network, features, shape
        self._classes = classes
        self.metrics = {}

    @property
    def classes(self) -> int:
        return self._classes

    def scores(self, x: FloatArray) -> FloatArray:
        """Softmax scores, (rows, classes)."""
        check_points(x)
        if tuple(x.shape[1:]) != self.shape:
            raise ValueError(f"a point has shape {x.shape[1:]}, the model takes {self.shape}")
        inputs = mapped(self._features)(x) if self._features else x
        self._network.eval()
        parts = [np.empty((0, self._classes), dtype=np.float32)]
        with one_thread(), torch.inference_mode():
            for first in range(0, len(inputs), _PREDICT_ROWS):
                part = torch.tensor(inputs[first : first + _PREDICT_ROWS])
                parts.append(functional.softmax(self._network(part), dim=1).numpy())
        return np.concatenate(parts)

    def save(self, path: Path, metadata: Mapping[str, str]) -> None:
        """Write safetensors, whole or not at all."""
        own = {
            model_file.READER: "module",
            model_file.FEATURES: self._features,
            model_file.SHAPE: json.dumps(self.shape),
            model_file.CLASSES: str(self._classes),
        }
        model_file.write(path, Packed(self._network.state_dict(), own), metadata)


@dataclass(frozen=True, eq=False)
class ModuleStudent:
    """Trains networks that `build` makes, on labelled points, for so many `steps`."""

    build: Build
    steps: int
    rate: float

    def train(
        self, x: FloatArray, y: LabelArray, unlabelled: FloatArray | None, options: StudentOptions
    ) -> ModuleModel:
        """See `StudentFactory`."""
        lesson = Lesson.of(x, y, unlabelled, options)
        inputs = torch.from_numpy(np.ascontiguousarray(lesson.public.inputs[lesson.asked]))
        labels = torch.from_numpy(lesson.labels)
        with one_thread(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(lesson.seed)
            network = self.build(tuple(inputs.shape[1:]), lesson.classes)
            self._descend(network, inputs, labels, lesson)
        model = ModuleModel(
            network, lesson.public.input_features, lesson.public.shape, lesson.classes
        )
        model.metrics["agreement"] = model.agreement(x, y)
        return model

    def load(self, path: Path) -> ModuleModel:
        """See `StudentFactory`."""
        stored = model_file.read(path)
        features, shape, classes = stored.says(model_file.FEATURES), stored.shape, stored.classes
        point = np.zeros((1, *shape), np.float32)
        network = self.build((mapped(features)(point) if features else point).shape[1:], classes)
        try:
            network.load_state_dict(stored.arrays)
        except RuntimeError as error:
            raise ValueError(f"{path}: the arrays are those of another network") from error
        return ModuleModel(network, features, shape, classes)

    def _descend(
        self, network: nn.Module, x: torch.Tensor, y: torch.Tensor, lesson: Lesson
    ) -> None:
        optimiser = AdamW(network.parameters(), _DECAY)
        network.train()
        order = torch.randperm(len(x))
        for step, rate in enumerate(one_cycle(self.rate, self.steps)):
            if len(order) < min(_BATCH, len(x)):
                order = torch.cat([order, torch.randperm(len(x))])
            rows, order = order[:_BATCH], order[_BATCH:]
            logits = network(x[rows])
            if logits.shape != (len(rows), lesson.classes):
                raise ValueError(
                    f"the network gives shape {tuple(logits.shape)} instead of "
                    f"{(len(rows), lesson.classes)}"
                )
            loss = functional.cross_entropy(logits, y[rows], label_smoothing=_SMOOTHING)
            network.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step(rate)
            lesson.tell(step + 1, self.steps, loss.item())
        network.eval()


def from_module(build: Build, *, steps: int = 500, rate: float = 4e-3) -> ModuleStudent:
    """A student that trains networks made by `build(shape, classes)`."""
    if not callable(build):
        raise TypeError("build must be a function of the shape of points and the number of classes")
    if steps < 1 or not rate > 0:
        raise ValueError(f"steps and rate must be positive, got {steps} and {rate}")
    return ModuleStudent(build, steps, rate)
