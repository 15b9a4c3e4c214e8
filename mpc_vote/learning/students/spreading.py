"""Labels of a few points, some of them wrong, spread over all points.

Labels walk along the graph of nearest neighbours (Zhou et al., "Learning with local and global
consistency"). A label that the walk from the other labels contradicts is doubted.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from torch.nn import functional

from mpc_vote.data.dataset import FloatArray, LabelArray
from mpc_vote.learning.nets.optimisers import one_thread
from mpc_vote.learning.students.lesson import Doubles, Places, check_asked, class_shares

_WALK = 2.0
_CLEANINGS, _SHARPNESS = 10, 4.0
_WRONG_AT_FIRST, _WRONG_LEAST, _WRONG_MOST = 0.05, 0.02, 0.5
_SOLVER_STEPS, _SOLVER_ERROR = 300, 1e-10
_ROWS = 512


class PropagatedLabels(NamedTuple):
    """What the labels say of all public points."""

    scores: FloatArray
    """(n, classes): rows sum to 1, or to 0 where no label can be reached."""
    cleaned: FloatArray
    """(asked, classes): the likely true labels of the asked points."""
    wrong: float
    """The estimated share of wrong labels among the asked ones."""


def propagate(
    features: FloatArray, asked: LabelArray, labels: LabelArray, classes: int
) -> PropagatedLabels:
    """Spread the labels of the `asked` rows along the graph of nearest neighbours."""
    check_asked(features, asked, labels, classes)
    return Walks(features, asked).spread(labels, classes)


class Walks:
    """Random walks from the asked points along the graph of nearest neighbours, whatever their
    labels are."""

    def __init__(self, features: FloatArray, asked: LabelArray) -> None:
        if features.ndim != 2:
            raise ValueError(f"features must be vectors, (n, d), got shape {features.shape}")
        with one_thread():
            self._reach = _reach(torch.from_numpy(features), torch.from_numpy(asked))
        self._met = self._reach[asked].double()
        self._total = self._reach.sum(dim=0, dtype=torch.float64)

    def spread(self, labels: LabelArray, classes: int) -> PropagatedLabels:
        """What the labels of all asked points say of all points."""
        met = self._met.clone().fill_diagonal_(0.0)
        cleaned, wrong = self._clean(met, self._total, labels, classes)
        scores = rows_to_one(self._reach @ _by_class(cleaned, self._total).float())
        return PropagatedLabels(scores.numpy(), cleaned.float().numpy(), wrong)

    def guess(self, held: Places, told: Places, labels: LabelArray, classes: int) -> Doubles:
        """What the labels of some asked points say of others, both by their places among all."""
        total, met = self._total[told], self._met[told][:, told].fill_diagonal_(0.0)
        cleaned, _ = self._clean(met, total, labels, classes)
        scores = rows_to_one(self._met[held][:, told] @ _by_class(cleaned, total))
        return np.asarray(scores.numpy())

    def _clean(
        self, met: torch.Tensor, total: torch.Tensor, labels: LabelArray, classes: int
    ) -> tuple[torch.Tensor, float]:
        """The likely true labels, and the share of wrong ones.

        Expectation maximisation: each label is weighed against what all the others say of its
        point, for some rounds. Where the others bring less than the mean mass of a class, they say
        little: a class with a single label keeps it.
        """
        given = functional.one_hot(torch.from_numpy(labels), classes).double()
        present = given.sum(dim=0) > 0
        further = max(1, int(present.sum()) - 1)
        cleaned, wrong = given, _WRONG_AT_FIRST
        for _ in range(_CLEANINGS):
            mass = met @ _by_class(cleaned, total)
            belief = (1 + len(self._reach) * mass) ** _SHARPNESS * present
            cleaned = rows_to_one(belief * torch.where(given > 0, 1 - wrong, wrong / further))
            share = 1 - (cleaned * given).sum(dim=1).mean().item()
            wrong = min(_WRONG_MOST, max(_WRONG_LEAST, share))
        return cleaned, wrong


def _by_class(labels: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
    """Labels (asked, classes) scaled so that the mass which a class spreads over all points goes by
    its share of the labels, not by where in dense or thin parts they happen to lie.

    By the root of the share: with all of it a class of a few more labels floods its neighbours,
    with equal masses a rare class does.
    """
    shares = torch.from_numpy(class_shares(labels.sum(dim=0).numpy())).sqrt()
    return labels / (total @ labels + 1e-12) * (shares / shares[shares > 0].mean())


def rows_to_one(table: torch.Tensor) -> torch.Tensor:
    """Rows scaled to a sum of 1; rows of zeros stay."""
    total = table.sum(dim=1, keepdim=True)
    return torch.where(total > 1e-30, table / total.clamp_min(1e-30), 0.0)


def _reach(features: torch.Tensor, asked: torch.Tensor) -> torch.Tensor:
    """How strongly a random walk from each asked point visits every point, (n, asked).

    These columns of (I - a S)^-1, S the normalised graph, are found by conjugate gradients. The
    walk is long enough to pass from one asked point to the next.
    """
    count = len(features)
    onward = 1 - min(0.5, len(asked) / (_WALK * count))
    graph = _graph(features, round(math.log(count)))
    answer, rest = torch.zeros(count, len(asked)), torch.zeros(count, len(asked))
    rest[asked, torch.arange(len(asked))] = 1.0
    ahead, size = rest.clone(), torch.ones(len(asked))
    for _ in range(_SOLVER_STEPS):
        moved = ahead - onward * torch.sparse.mm(graph, ahead)
        step = size / (ahead * moved).sum(dim=0).clamp_min(1e-30)
        answer += step * ahead
        rest -= step * moved
        before, size = size, (rest**2).sum(dim=0)
        if size.max() < _SOLVER_ERROR:
            break
        ahead = rest + size / before.clamp_min(1e-30) * ahead
    return answer.clamp_min(0.0)


def _graph(features: torch.Tensor, neighbours: int) -> torch.Tensor:
    """Sparse symmetric weights of nearest neighbours, divided by the roots of both degrees.

    Each distance is taken on the scale of the surroundings of its two points (Zelnik-Manor and
    Perona), so that dense and thin parts are alike.
    """
    count = len(features)
    near = [
        torch.cdist(part, features).topk(min(neighbours + 1, count), largest=False)
        for part in torch.split(features, _ROWS)
    ]
    distance = torch.cat([part.values for part in near])
    column = torch.cat([part.indices for part in near])
    row = torch.arange(count)[:, None].expand_as(column)
    scale = distance[:, -1].clamp_min(1e-12)
    weight = torch.exp(-(distance**2) / (scale[:, None] * scale[column]))
    edge = torch.cat([row * count + column, column * count + row]).flatten()
    kept, place = torch.unique(edge, return_inverse=True)
    weights = torch.zeros(len(kept)).scatter_reduce(0, place, weight.repeat(2, 1).flatten(), "amax")
    row, column = kept // count, kept % count
    weights = torch.where(row == column, 0.0, weights)
    degree = torch.zeros(count).index_add(0, row, weights).clamp_min(1e-12)
    weights = weights / (degree[row] * degree[column]).sqrt()
    return torch.sparse_coo_tensor(
        torch.stack([row, column]), weights, (count, count), check_invariants=True
    ).coalesce()
