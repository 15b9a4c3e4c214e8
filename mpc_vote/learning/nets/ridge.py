"""Ridge regression: a linear model for few labels, in closed form and without randomness.

On features of a strong backbone a linear map is enough, and with decay it tolerates few records (an
agent's local model) and wrong labels (the head of a server's student).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mpc_vote.data.dataset import FloatArray, LabelArray, check_labels, check_points
from mpc_vote.learning.features.maps import raw

Doubles = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Ridge:
    """One affine score per class or attribute: points (n, ...) to scores (n, outputs)."""

    weight: Doubles
    offset: Doubles

    @classmethod
    def fit(cls, x: FloatArray, targets: npt.ArrayLike, decay: float) -> Ridge:
        """Least sum of squared errors plus `decay` times the squared weights; offsets are free.

        `targets` are (n, outputs), 0 and 1 mostly: attributes, or classes by `one_hot`.
        """
        check_points(x)
        points, wanted = raw(x).astype(np.float64), np.asarray(targets, dtype=np.float64)
        if wanted.ndim != 2 or len(wanted) != len(points) or wanted.shape[1] == 0:
            raise ValueError(
                f"targets must be ({len(points)}, outputs) as there are {len(points)} points, "
                f"got shape {wanted.shape}"
            )
        if not len(points):
            raise ValueError("there is no point to learn from")
        if not np.isfinite(wanted).all():
            raise ValueError("targets must be finite")
        if not 0 < decay < np.inf:
            raise ValueError(f"decay must be positive, got {decay}")
        points_mean, wanted_mean = points.mean(axis=0), wanted.mean(axis=0)
        points, wanted = points - points_mean, wanted - wanted_mean
        rows, inputs = points.shape
        if rows < inputs:  # the same solution by the smaller of two systems
            inner = points @ points.T + decay * np.eye(rows)
            weight = points.T @ np.linalg.solve(inner, wanted)
        else:
            inner = points.T @ points + decay * np.eye(inputs)
            weight = np.linalg.solve(inner, points.T @ wanted)
        return cls(weight, wanted_mean - points_mean @ weight)

    def scores(self, x: FloatArray) -> Doubles:
        """About the chance of each class or attribute, (n, outputs), but not bounded by 0 and 1."""
        check_points(x)
        points = raw(x)
        if points.shape[1] != len(self.weight):
            raise ValueError(f"points have {points.shape[1]} features, not {len(self.weight)}")
        return np.asarray(points.astype(np.float64) @ self.weight + self.offset)

    def attributes(self, x: FloatArray) -> LabelArray:
        """1 for each attribute that scores above 1/2."""
        return (self.scores(x) > 0.5).astype(np.int64)


def one_hot(labels: LabelArray, classes: int) -> Doubles:
    """Classes as targets; a class without a point is a column of zeros and is never predicted."""
    check_labels(labels, classes)
    targets = np.zeros((len(labels), classes))
    targets[np.arange(len(labels)), labels] = 1.0
    return targets
