"""Logistic regression for few labels: least cross-entropy with decay, without randomness."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize
from scipy.special import logsumexp

from mpc_vote.data.dataset import LabelArray
from mpc_vote.learning.students.folds import stratified

Doubles = npt.NDArray[np.float64]
Affine = tuple[Doubles, Doubles]
"""Weights (inputs, classes) and offsets (classes,)."""

_DECAYS = tuple(float(decay) for decay in np.geomspace(1.0, 1e-4, 7))
_FOLDS = 5
_STEPS = 200
# A label that noise made should not decide by itself how sure the model may be.
_LEAST_CHANCE = 1e-3
# The offset of a class that no target names: it is never predicted.
_NEVER = -60.0


def fit_logistic(points: Doubles, targets: Doubles, decay: float) -> Affine:
    """Least mean cross-entropy to `targets`, rows of chances, plus `decay`/2 times squared weights;
    offsets are free."""
    return _path(points, targets, [decay])[0]


def choose_decay(points: Doubles, labels: LabelArray, classes: int, seed: int) -> float:
    """The decay under which held-out labels are likeliest. Points should have a mean square length
    of about 1."""
    folds = min(_FOLDS, len(labels))
    if folds < 2:
        return _DECAYS[0]
    fold = stratified(labels, folds, np.random.default_rng(seed))
    likely = np.zeros(len(_DECAYS))
    for held in range(folds):
        told, asked = fold != held, fold == held
        found = _path(points[told], one_hot(labels[told], classes), _DECAYS)
        for place, (weight, offset) in enumerate(found):
            chances = softmax(points[asked] @ weight + offset)
            own = chances[np.arange(int(asked.sum())), labels[asked]]
            likely[place] += np.log(np.maximum(own, _LEAST_CHANCE)).sum()
    return _DECAYS[int(likely.argmax())]


def one_hot(labels: LabelArray, classes: int) -> Doubles:
    """Labels as rows of chances."""
    return np.asarray(np.eye(classes)[labels])


def softmax(logits: Doubles) -> Doubles:
    """Rows of chances."""
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


def _path(points: Doubles, targets: Doubles, decays: Sequence[float]) -> list[Affine]:
    """A solution for each decay, each sought from the one before."""
    present = np.flatnonzero(targets.sum(axis=0) > 0)
    inner, turn = points, None
    if len(points) < points.shape[1]:  # solutions lie in the span of the points
        left, sizes, turn = np.linalg.svd(points, full_matrices=False)
        inner = left * sizes
    at = np.zeros((inner.shape[1] + 1, len(present)))
    found = []
    for decay in decays:
        at = _descend(inner, targets[:, present], decay, at)
        weight = np.zeros((points.shape[1], targets.shape[1]))
        offset = np.full(targets.shape[1], _NEVER)
        weight[:, present] = at[:-1] if turn is None else turn.T @ at[:-1]
        offset[present] = at[-1]
        found.append((weight, offset))
    return found


def _descend(points: Doubles, targets: Doubles, decay: float, start: Doubles) -> Doubles:
    """Weights, and offsets as the last row, by L-BFGS."""
    total = targets.sum()
    mass = targets.sum(axis=1, keepdims=True)

    def loss(flat: Doubles) -> tuple[float, Doubles]:
        at = flat.reshape(start.shape)
        logits = points @ at[:-1] + at[-1]
        level = logsumexp(logits, axis=1, keepdims=True)
        apart = (np.exp(logits - level) * mass - targets) / total
        value = ((level * mass).sum() - (logits * targets).sum()) / total
        slope = np.vstack([points.T @ apart + decay * at[:-1], apart.sum(axis=0)])
        return float(value + decay / 2 * (at[:-1] ** 2).sum()), slope.ravel()

    found = minimize(loss, start.ravel(), jac=True, method="L-BFGS-B", options={"maxiter": _STEPS})
    return np.asarray(found.x).reshape(start.shape)
