"""Least squares with decay: a linear model for few labels, found in one step without any chance.

On features of a strong backbone a linear map is enough, and with decay it stands few records (an
agent's local model) and wrong labels (the head of a server's student).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mpc_vote.data.dataset import FloatArray, LabelArray, check_labels, check_points
from mpc_vote.learning.features import raw

Doubles = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Ridge:
    """One affine score per class or attribute: points (n, ...) to scores (n, outputs)."""

    weight: Doubles
    offset: Doubles

    @classmethod
    def fit(
        cls,
        x: FloatArray,
        targets: npt.ArrayLike,
        decay: float,
        weights: npt.ArrayLike | None = None,
    ) -> Ridge:
        """Least sum of squared errors plus `decay` times the squared weights; offsets are free.

        `targets` are (n, outputs), 0 and 1 mostly: attributes, or classes by `one_hot`. `weights`
        say how much each row's errors count; rows of weight 0 change nothing.
        """
        check_points(x)
        points, wanted = raw(x).astype(np.float64), np.asarray(targets, dtype=np.float64)
        if wanted.ndim != 2 or len(wanted) != len(points) or wanted.shape[1] == 0:
            raise ValueError(
                f"targets must be ({len(points)}, outputs) as there are {len(points)} points, "
                f"got shape {wanted.shape}"
            )
        if not np.isfinite(wanted).all():
            raise ValueError("targets must be finite")
        if not 0 < decay < np.inf:
            raise ValueError(f"decay must be positive, got {decay}")
        share = _shares(weights, len(points))
        points_mean, wanted_mean = share @ points / share.sum(), share @ wanted / share.sum()
        root = np.sqrt(share)[:, None]
        points, wanted = root * (points - points_mean), root * (wanted - wanted_mean)
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

    def predict(self, x: FloatArray) -> LabelArray:
        """The class with the highest score; ties go to the lower one."""
        return np.asarray(np.argmax(self.scores(x), axis=1), dtype=np.int64)

    def attributes(self, x: FloatArray, threshold: npt.ArrayLike = 0.5) -> LabelArray:
        """1 for each attribute that scores above the threshold, one for all or one for each."""
        return (self.scores(x) > np.asarray(threshold, dtype=np.float64)).astype(np.int64)


def one_hot(labels: LabelArray, classes: int) -> Doubles:
    """Classes as targets; a class without a point is a column of zeros and is never predicted."""
    check_labels(labels, classes)
    targets = np.zeros((len(labels), classes))
    targets[np.arange(len(labels)), labels] = 1.0
    return targets


def _shares(weights: npt.ArrayLike | None, rows: int) -> Doubles:
    shares = np.ones(rows) if weights is None else np.asarray(weights, dtype=np.float64)
    if shares.shape != (rows,) or not np.isfinite(shares).all() or (shares < 0).any():
        raise ValueError(f"weights must be {rows} finite numbers of at least 0")
    if not shares.sum() > 0:
        raise ValueError("there is no point to learn from")
    return shares
