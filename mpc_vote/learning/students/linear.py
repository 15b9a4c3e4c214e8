"""The plain student: logistic regression on what the task's features say of labelled points.

How strongly weights are regularised is chosen by the likelihood of held-out labels, so that few or
noisy labels make a cautious model. Only the folds are random.
"""

from __future__ import annotations

import json

import numpy as np

from mpc_vote.data.dataset import FloatArray
from mpc_vote.learning.students import model_file
from mpc_vote.learning.students.lesson import Doubles, Lesson, Places, Sight
from mpc_vote.learning.students.logistic import (
    Affine,
    choose_decay,
    fit_logistic,
    one_hot,
    softmax,
)
from mpc_vote.learning.students.model_file import Packed, Stored
from mpc_vote.learning.students.packed import PackedModel
from mpc_vote.learning.students.single import SingleStudent


class LinearModel(PackedModel):
    """An affine score for each class, of points as they are seen."""

    def __init__(self, see: Sight, shape: tuple[int, ...], affine: Affine) -> None:
        self._see, self.shape = see, shape
        self._weight, self._offset = affine
        self.metrics = {}

    @property
    def classes(self) -> int:
        return len(self._offset)

    def scores(self, x: FloatArray) -> Doubles:
        """Chances of classes, (rows, classes)."""
        if tuple(x.shape[1:]) != self.shape:
            raise ValueError(f"a point has shape {x.shape[1:]}, the model takes {self.shape}")
        return softmax(self._see(x) @ self._weight + self._offset)

    def pack(self) -> Packed:
        arrays = {
            "centre": self._see.centre,
            "scale": self._see.scale,
            "weight": self._weight,
            "offset": self._offset,
        }
        own = {
            model_file.READER: "linear",
            model_file.FEATURES: self._see.features,
            model_file.SHAPE: json.dumps(self.shape),
        }
        return Packed(arrays, own)

    @classmethod
    def unpack(cls, stored: Stored) -> LinearModel:
        centre, scale, weight, offset = stored.doubles(
            centre="d", scale="d", weight="dc", offset="c"
        )
        see = Sight(stored.says(model_file.FEATURES), centre, scale)
        return cls(see, stored.shape, (weight, offset))


class LinearHead:
    """Learns from vectors that are first centred, and brought to a mean square length of 1."""

    def __init__(self, vectors: FloatArray) -> None:
        self._centre = vectors.mean(axis=0, dtype=np.float64)
        apart = vectors - self._centre
        self._size = float(np.sqrt((apart**2).sum(axis=1).mean())) or 1.0
        self.points: Doubles = apart / self._size

    def fit(self, rows: Places, targets: Doubles, decay: float) -> Affine:
        """Weights and offsets for vectors as they were given, from these rows of them."""
        weight, offset = fit_logistic(self.points[rows], targets, decay)
        weight = weight / self._size
        return weight, offset - self._centre @ weight


class Linear(SingleStudent):
    """The student of that name; points without labels only say on which scale the others lie."""

    load = staticmethod(LinearModel.load)

    def __init__(self, lesson: Lesson) -> None:
        super().__init__(lesson)
        self._head = LinearHead(lesson.public.vectors)
        points = self._head.points[lesson.asked]
        self._decay = choose_decay(points, lesson.labels, lesson.classes, lesson.seed)

    def guess(self, part: Lesson, rows: Places) -> Doubles:
        weight, offset = self._fit(part)
        return softmax(part.public.vectors[rows] @ weight + offset)

    def learn(self) -> LinearModel:
        lesson = self.lesson
        model = LinearModel(lesson.public.see, lesson.public.shape, self._fit(lesson))
        found = model.scores(lesson.public.x[lesson.asked])
        chances = found[np.arange(len(lesson.labels)), lesson.labels]
        loss = float(-np.log(np.maximum(chances, 1e-12)).mean())
        agreement = float(np.mean(found.argmax(axis=1) == lesson.labels))
        model.metrics = {"loss": loss, "agreement": agreement, "decay": self._decay}
        lesson.tell(1, 1, loss)
        return model

    def _fit(self, part: Lesson) -> Affine:
        return self._head.fit(part.asked, one_hot(part.labels, part.classes), self._decay)
