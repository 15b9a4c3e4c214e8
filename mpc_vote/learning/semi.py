"""The student that makes the most of few noisy labels: it also learns from the unasked points.

It only ever sees public points and released labels, so by post-processing nothing here costs
privacy. Three parts, each of which can be left out:

* *propagation*: labels walk along the graph of nearest neighbours of the public points (Zhou et
  al., "Learning with local and global consistency"). A label that the walk from the other labels
  contradicts is doubted, which cleans the asked points too;
* *consistency*: once the network is sure of a point as it is, it learns that class from distorted
  views of the point, in place of the label it had (FixMatch of Sohn et al., renewed each round);
* an *ensemble*: several networks give their mean opinion on the public points, and the student is
  one network distilled from that. So it is stored and served like any other `Student`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch.nn import functional

from mpc_vote.data.dataset import FloatArray, LabelArray, check_labels, check_points
from mpc_vote.learning.features import raw
from mpc_vote.learning.networks import (
    Architecture,
    Network,
    Progress,
    _AdamW,
    _one_cycle,
    _one_thread,
    predict_scores,
    warp,
)
from mpc_vote.learning.student import Student

_BATCH = 64
_ROUNDS = 20
_RATE, _DECAY, _SMOOTHING = 4e-3, 0.05, 0.1
_FIRST_SURE_ROUND, _SURE = 6, 0.6
_MASKED = 0.3

_WALK = 2.0
_CLEANINGS, _SHARPNESS = 3, 3.0
_WRONG_AT_FIRST, _WRONG_LEAST, _WRONG_MOST = 0.05, 0.02, 0.5
_SOLVER_STEPS, _SOLVER_ERROR = 300, 1e-10
_ROWS = 512


@dataclass(frozen=True)
class SemiRecipe:
    """Which parts to use; `steps` are taken by each network, `members` = 1 means no ensemble."""

    propagate: bool = True
    consistency: bool = True
    members: int = 1
    steps: int = 2000

    def __post_init__(self) -> None:
        if self.members < 1:
            raise ValueError(f"an ensemble has at least 1 member, not {self.members}")
        if self.steps < _ROUNDS:
            raise ValueError(f"training takes at least {_ROUNDS} steps, not {self.steps}")


class Propagation(NamedTuple):
    """What the labels say of all public points."""

    scores: FloatArray
    """(n, classes): rows sum to 1, or to 0 where no label can be reached."""
    cleaned: FloatArray
    """(asked, classes): the likely true labels of the asked points."""
    wrong: float
    """The estimated share of wrong labels among the asked ones."""


def propagate(
    features: FloatArray, asked: LabelArray, labels: LabelArray, classes: int
) -> Propagation:
    """Spread the labels of the `asked` rows along the graph of nearest neighbours.

    How wrong the labels are is estimated alongside (expectation maximisation): each label is
    weighed against what all the others say of its point, for a few rounds.
    """
    _check(features, asked, labels, classes)
    if features.ndim != 2:
        raise ValueError(f"features must be vectors, (n, d), got shape {features.shape}")
    with _one_thread():
        reach = _reach(torch.from_numpy(features), torch.from_numpy(asked)).double()
    given = functional.one_hot(torch.from_numpy(labels), classes).double()
    others = reach[asked].fill_diagonal_(0.0)
    total = reach.sum(dim=0)
    cleaned, wrong = given, _WRONG_AT_FIRST
    for _ in range(_CLEANINGS):
        belief = (_rows_to_one(others @ _by_class(cleaned, total)) + 1e-3) ** _SHARPNESS
        cleaned = _rows_to_one(
            belief * torch.where(given > 0, 1 - wrong, wrong / max(1, classes - 1))
        )
        wrong = min(_WRONG_MOST, max(_WRONG_LEAST, 1 - (cleaned * given).sum(dim=1).mean().item()))
    scores = _rows_to_one(reach @ _by_class(cleaned, total))
    return Propagation(scores.float().numpy(), cleaned.float().numpy(), wrong)


def train_semi(
    x: FloatArray,
    asked: LabelArray,
    labels: LabelArray,
    classes: int,
    seed: int,
    recipe: SemiRecipe,
    *,
    features: FloatArray | None = None,
    on_progress: Progress | None = None,
    validation: tuple[FloatArray, LabelArray] | None = None,
) -> Student:
    """Train on all public points `x`, of which the rows `asked` have `labels`, some of them wrong.

    Neighbours are sought among `features` (n, d), one row for each point, or else among the points
    themselves. `validation` is only scored, never trained on.
    """
    _check(x, asked, labels, classes)
    if features is not None and len(features) != len(x):
        raise ValueError(f"there are {len(x)} points but {len(features)} rows of features")
    if len(x) < 2:
        raise ValueError(f"training needs at least two points, got {len(x)}")
    metrics: dict[str, float] = {}
    if recipe.propagate:
        spread = propagate(raw(x) if features is None else features, asked, labels, classes)
        metrics["wrong_labels"] = spread.wrong
        told = _hard(spread.scores)
    else:
        told = torch.zeros(len(x), classes)
        told[asked] = functional.one_hot(torch.from_numpy(labels), classes).float()

    fits = recipe.members + (recipe.members > 1)
    done = 0

    def on_round(loss: float) -> None:
        nonlocal done
        done += 1
        if on_progress is not None:
            on_progress(done, fits * _ROUNDS, loss)

    seeds = [int(part) for part in np.random.SeedSequence(seed).generate_state(fits)]
    fitted = [
        _fit(x, told, one, recipe.steps, recipe.consistency, on_round)
        for one in seeds[: recipe.members]
    ]
    network, loss = fitted[0]
    if recipe.members > 1:
        opinion = np.mean([predict_scores(member, x) for member, _ in fitted], axis=0)
        network, loss = _fit(x, _hard(opinion), seeds[-1], recipe.steps, False, on_round)
    student = Student(network)
    student.metrics = metrics | {"loss": loss, "agreement": student.agreement(x[asked], labels)}
    if validation is not None:
        student.metrics["validation_agreement"] = student.agreement(*validation)
    return student


def _fit(
    x: FloatArray,
    told: torch.Tensor,
    seed: int,
    steps: int,
    consistency: bool,
    on_round: Callable[[float], None],
) -> tuple[Network, float]:
    """A network trained on distorted views of the points, and its last mean loss.

    Rows of `told` are distributions over classes, or zero where nothing is known.
    """
    with _one_thread(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = Network(Architecture.for_shape(tuple(x.shape[1:]), told.shape[1]))
        points = network.prepare(x)
        network.standardise(points)
        image = network.architecture.kind == "cnn"
        if image:  # a third less time for a step
            network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        optimiser = _AdamW(network.parameters(), _DECAY)
        rates = _one_cycle(_RATE, steps)
        targets = told
        loss_mean = 0.0
        for part in range(_ROUNDS):
            if consistency and part >= _FIRST_SURE_ROUND:
                targets = _renew(told, torch.from_numpy(predict_scores(network, x)))
            network.train()
            round_rates = rates[part * steps // _ROUNDS : (part + 1) * steps // _ROUNDS]
            losses = []
            for rate, rows in zip(
                round_rates, _batches(told, targets, len(round_rates)), strict=True
            ):
                view = warp(points[rows]) if image else _mask(points[rows], network.mean)
                loss = functional.cross_entropy(
                    network(view), targets[rows], label_smoothing=_SMOOTHING
                )
                network.zero_grad(set_to_none=True)
                loss.backward()  # type: ignore[no-untyped-call]
                optimiser.step(rate)
                losses.append(loss.item())
            loss_mean = float(np.mean(losses))
            on_round(loss_mean)
        network.eval()
        network.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
        return network, loss_mean


def _renew(told: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    """The network's own class where it is sure of one, elsewhere what was told.

    Scores are first aligned with the told shares of classes: a class that the network likes a
    little too much would otherwise take over the others, round by round.
    """
    share = told.sum(dim=0) + 1
    aligned = _rows_to_one(scores * share / share.sum() / scores.mean(dim=0).clamp_min(1e-6))
    best, own = aligned.max(dim=1)
    return torch.where(
        (best > _SURE)[:, None], functional.one_hot(own, told.shape[1]).to(told.dtype), told
    )


def _batches(told: torch.Tensor, targets: torch.Tensor, count: int) -> list[torch.Tensor]:
    """Rows to learn from: half of a batch was told a class, half has any target by now."""
    halves = [_shuffled(table, count * _BATCH // 2) for table in (told, targets)]
    return list(torch.cat([half.reshape(count, -1) for half in halves], dim=1))


def _shuffled(targets: torch.Tensor, count: int) -> torch.Tensor:
    """So many rows with a target, each as often as any other."""
    known = torch.nonzero(targets.sum(dim=1) > 0)[:, 0]
    repeats = math.ceil(count / len(known))
    return torch.cat([known[torch.randperm(len(known))] for _ in range(repeats)])[:count]


def _mask(vectors: torch.Tensor, mean: torch.Tensor) -> torch.Tensor:
    """Distorted views of vectors: features drawn at random are replaced by their means."""
    return torch.where(torch.rand(vectors.shape) < _MASKED, mean, vectors)


def _hard(scores: FloatArray) -> torch.Tensor:
    """One-hot rows of the best class; rows of zeros stay."""
    table = torch.from_numpy(scores)
    best = functional.one_hot(table.argmax(dim=1), table.shape[1])
    return best * (table.sum(dim=1, keepdim=True) > 0).float()


def _by_class(labels: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
    """Labels (asked, classes) scaled so that every class spreads the same mass over all points.

    Without it a class with a few more labels, or in denser parts, floods its neighbours.
    """
    return labels / (total @ labels + 1e-12)


def _rows_to_one(table: torch.Tensor) -> torch.Tensor:
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


def _check(x: FloatArray, asked: LabelArray, labels: LabelArray, classes: int) -> None:
    check_points(x)
    check_labels(labels, classes)
    if asked.dtype != np.int64 or asked.shape != labels.shape or len(asked) == 0:
        raise ValueError(
            f"each asked row (int64) needs its label, got {asked.dtype} {asked.shape} "
            f"and {labels.shape}"
        )
    if asked.min() < 0 or asked.max() >= len(x) or len(np.unique(asked)) < len(asked):
        raise ValueError(f"asked rows must be distinct and in 0..{len(x) - 1}")
