"""A student for feature vectors of a strong backbone, where points of a class lie close together.

A few noisy labels say little by themselves, but the public points say how they hang together. So
each public point goes to the class with the nearest centre, at first the centre of the points that
were asked about, again and again until classes settle. This outvotes single wrong labels. A linear
head learns the result. Like any student it sees released labels and public points only, and costs
no privacy.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mpc_vote.data.dataset import FloatArray, LabelArray, check_labels, check_points
from mpc_vote.learning.features.maps import FeatureMap, unit
from mpc_vote.learning.features.projection import project
from mpc_vote.learning.nets.ridge import Doubles, Ridge, one_hot
from mpc_vote.learning.students.classifier import Classifier


@dataclass(frozen=True)
class PrototypeRecipe:
    """How labels spread; with 0 `rounds`, only asked points teach.

    `dimensions`: how many principal directions of the public points are seen, or all features.
    `rounds`: how often all public points are given to the class with the nearest centre, at most.
    `decay`: of the head, which is least squares on unit vectors.
    """

    dimensions: int | None = 30
    rounds: int = 5
    decay: float = 0.1

    def __post_init__(self) -> None:
        if self.dimensions is not None and self.dimensions < 1:
            raise ValueError(f"dimensions must be at least 1, got {self.dimensions}")
        if self.rounds < 0:
            raise ValueError(f"rounds must not be negative, got {self.rounds}")
        if not 0 < self.decay < np.inf:
            raise ValueError(f"decay must be positive, got {self.decay}")


class PrototypeStudent(Classifier):
    """A linear model of directions, with the metrics of its training."""

    def __init__(self, head: Ridge, see: FeatureMap, shape: tuple[int, ...]) -> None:
        self._head, self._see = head, see
        self.shape = shape
        self.metrics: dict[str, float] = {}

    @property
    def classes(self) -> int:
        return len(self._head.offset)

    def scores(self, x: FloatArray) -> Doubles:
        """Scores of the head, (rows, classes): higher is likelier."""
        if x.shape[1:] != self.shape:
            raise ValueError(f"points have shape {x.shape[1:]}, the student's {self.shape}")
        return self._head.scores(self._see(x))


def directions(public: FloatArray, dimensions: int | None = 30) -> FeatureMap:
    """Unit vectors in the principal directions of public points as unit vectors, or in all.

    The few directions in which public points differ most tell classes apart; the many others add
    noise to distances.
    """
    if dimensions is None:
        return unit
    points = unit(public)
    project_unit = project(points, min(dimensions, len(points) - 1, points.shape[1]))
    return lambda x: unit(project_unit(unit(x)))


def train_prototypes(
    x: FloatArray,
    asked: LabelArray,
    labels: LabelArray,
    classes: int,
    recipe: PrototypeRecipe,
) -> PrototypeStudent:
    """Learn from public points `x`, of which rows `asked` have these labels, some of them wrong.

    Classes without a label are never predicted.
    """
    check_points(x)
    check_labels(labels, classes)
    if len(asked) != len(labels) or len(asked) == 0:
        raise ValueError(f"there are {len(asked)} asked points and {len(labels)} labels")
    if len(np.unique(asked)) < len(asked) or not 0 <= asked.min() <= asked.max() < len(x):
        raise ValueError(f"asked must be distinct rows of the {len(x)} public points")
    see = directions(x, recipe.dimensions)
    points = see(x)
    rows, held, rounds = asked, labels, 0
    while rounds < recipe.rounds:
        rounds += 1
        present, places = np.unique(held, return_inverse=True)
        found = present[_nearest(points, _centres(points[rows], places))]
        settled = len(rows) == len(x) and np.array_equal(found, held)
        rows, held = np.arange(len(x)), found
        if settled:
            break
    head = Ridge.fit(points[rows], one_hot(held, classes), recipe.decay)
    student = PrototypeStudent(head, see, x.shape[1:])
    student.metrics = {
        "agreement": student.agreement(x[asked], labels),
        "classes": float(len(np.unique(held))),
        "rounds": float(rounds),
    }
    return student


def _nearest(points: FloatArray, others: FloatArray) -> LabelArray:
    """For each point the place of the other with the highest cosine; all are unit vectors."""
    return np.asarray(np.argmax(points @ others.T, axis=1), dtype=np.int64)


def _centres(points: FloatArray, places: LabelArray) -> FloatArray:
    """The direction of each class, (classes, d), where every class has a point."""
    sums = np.zeros((int(places.max()) + 1, points.shape[1]), dtype=np.float32)
    np.add.at(sums, places, points)
    return unit(sums)
