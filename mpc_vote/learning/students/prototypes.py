"""A student for feature vectors of a strong backbone, where points of a class lie close together.

A few noisy labels say little by themselves, but the public points show the clusters. So each class
has a centre, at first that of the points that were asked about; each public point goes to the
classes by how close their centres are and how frequent they seem, and centres move, until both no
longer change (expectation maximisation). This outvotes single wrong labels. A linear head learns
the result.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from mpc_vote.data.dataset import FloatArray, LabelArray
from mpc_vote.learning.features.maps import unit
from mpc_vote.learning.nets.ridge import Ridge
from mpc_vote.learning.students import model_file
from mpc_vote.learning.students.lesson import (
    Doubles,
    Lesson,
    Places,
    PublicPoints,
    Sight,
    class_shares,
)
from mpc_vote.learning.students.logistic import one_hot, softmax
from mpc_vote.learning.students.model_file import Packed, Stored
from mpc_vote.learning.students.packed import PackedModel
from mpc_vote.learning.students.single import SingleStudent

# What an asked point's label weighs beside what the centres say of the point.
_ANCHOR = 3.0
_LOOSEST, _TIGHTEST = 0.05, 0.98


@dataclass(frozen=True)
class PrototypeRecipe:
    """How labels spread; with 0 `rounds`, only asked points teach.

    `dimensions`: how many principal directions of the public points are seen.
    `rounds`: how often all public points are given to the classes by their centres, at most.
    `decay`: of the head, which is least squares on unit vectors.
    """

    dimensions: int = 30
    rounds: int = 5
    decay: float = 0.1

    def __post_init__(self) -> None:
        if self.dimensions < 1:
            raise ValueError(f"dimensions must be at least 1, got {self.dimensions}")
        if self.rounds < 0:
            raise ValueError(f"rounds must not be negative, got {self.rounds}")
        if not 0 < self.decay < np.inf:
            raise ValueError(f"decay must be positive, got {self.decay}")


class Directions(NamedTuple):
    """Unit vectors in the principal directions of public points as unit vectors.

    The few directions in which public points differ most tell classes apart; the many others add
    noise to distances.
    """

    middle: Doubles
    basis: Doubles

    @classmethod
    def of(cls, public: FloatArray, dimensions: int) -> Directions:
        """No more than the points have."""
        points = unit(public).astype(np.float64)
        middle = points.mean(axis=0)
        _, _, directions = np.linalg.svd(points - middle, full_matrices=False)
        most = max(1, min(dimensions, len(points) - 1, points.shape[1]))
        return cls(middle, directions[:most].T)

    def __call__(self, vectors: FloatArray) -> FloatArray:
        return unit(np.asarray((unit(vectors) - self.middle) @ self.basis, dtype=np.float32))


class PrototypeStudent(PackedModel):
    """A linear model of directions, with the metrics of its training."""

    def __init__(self, head: Ridge, look: Directions, see: Sight, shape: tuple[int, ...]) -> None:
        self._head, self._look, self._see = head, look, see
        self.shape = shape
        self.metrics = {}

    @property
    def classes(self) -> int:
        return len(self._head.offset)

    def scores(self, x: FloatArray) -> Doubles:
        """Scores of the head, (rows, classes): higher is likelier."""
        if tuple(x.shape[1:]) != self.shape:
            raise ValueError(f"points have shape {x.shape[1:]}, the student's {self.shape}")
        return self._head.scores(self._look(self._see(x)))

    def pack(self) -> Packed:
        arrays = {
            "centre": self._see.centre,
            "scale": self._see.scale,
            "middle": self._look.middle,
            "basis": self._look.basis,
            "weight": self._head.weight,
            "offset": self._head.offset,
        }
        own = {
            model_file.READER: "prototypes",
            model_file.FEATURES: self._see.features,
            model_file.SHAPE: json.dumps(self.shape),
        }
        return Packed(arrays, own)

    @classmethod
    def unpack(cls, stored: Stored) -> PrototypeStudent:
        centre, scale, middle, basis, weight, offset = stored.doubles(
            centre="d", scale="d", middle="d", basis="dp", weight="pc", offset="c"
        )
        see = Sight(stored.says(model_file.FEATURES), centre, scale)
        return cls(Ridge(weight, offset), Directions(middle, basis), see, stored.shape)


class Prototypes(SingleStudent):
    """The student of that name."""

    load = staticmethod(PrototypeStudent.load)

    def __init__(self, lesson: Lesson, recipe: PrototypeRecipe | None = None) -> None:
        super().__init__(lesson)
        self._recipe = recipe or PrototypeRecipe()
        self._look = Directions.of(lesson.public.vectors, self._recipe.dimensions)
        self._points = self._look(lesson.public.vectors)

    def guess(self, part: Lesson, rows: Places) -> Doubles:
        head, _ = self._fit(part)
        return head.scores(self._points[rows])

    def learn(self) -> PrototypeStudent:
        lesson = self.lesson
        head, rounds = self._fit(lesson)
        student = PrototypeStudent(head, self._look, lesson.public.see, lesson.public.shape)
        student.metrics = {
            "agreement": student.agreement(lesson.public.x[lesson.asked], lesson.labels),
            "classes": float((lesson.counts > 0).sum()),
            "rounds": float(rounds),
        }
        lesson.tell(1, 1, 1 - student.metrics["agreement"])
        return student

    def _fit(self, part: Lesson) -> tuple[Ridge, int]:
        rows, targets = part.asked, one_hot(part.labels, part.classes)
        rounds = 0
        if self._recipe.rounds:
            targets, rounds = settle(self._points, rows, targets, self._recipe.rounds)
            rows = np.arange(len(self._points))
        return Ridge.fit(self._points[rows], targets, self._recipe.decay), rounds


def train_prototypes(
    x: FloatArray, asked: LabelArray, labels: LabelArray, classes: int, recipe: PrototypeRecipe
) -> PrototypeStudent:
    """Learn from public points `x`, of which rows `asked` have these labels, some of them wrong;
    points are seen as they are.

    Classes without a label are never predicted.
    """
    as_they_are = "raw"
    lesson = Lesson(PublicPoints(x, as_they_are), asked, labels, classes)
    return Prototypes(lesson, recipe).learn()


def settle(points: FloatArray, asked: Places, given: Doubles, rounds: int) -> tuple[Doubles, int]:
    """Chances of classes of all points, (n, classes), and how many rounds it took.

    Points are unit vectors and classes von Mises-Fisher distributions of one common concentration,
    which is estimated (Banerjee et al.); the shares of classes are those of the labels. An asked
    point belongs to its label and to what the centres say of it.
    """
    counts = given.sum(axis=0)
    with np.errstate(divide="ignore"):
        prior = np.log(class_shares(counts))
    width = points.shape[1]
    belongs = np.zeros((len(points), given.shape[1]))
    belongs[asked] = given
    before: LabelArray | None = None
    done = 0
    while done < rounds:
        done += 1
        sums = belongs.T @ points
        lengths = np.linalg.norm(sums, axis=1, keepdims=True)
        tight = float(np.clip(lengths.sum() / belongs.sum(), _LOOSEST, _TIGHTEST))
        concentration = tight * (width - tight**2) / (1 - tight**2)
        centres = sums / np.maximum(lengths, 1e-12)
        chances = softmax(concentration * (points @ centres.T) + prior)
        belongs = chances.copy()
        belongs[asked] += _ANCHOR * given
        found = belongs.argmax(axis=1)
        if before is not None and np.array_equal(found, before):
            break
        before = found
    return belongs / belongs.sum(axis=1, keepdims=True), done
