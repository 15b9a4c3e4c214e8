"""The student that makes the most of few noisy labels: it also learns from the unasked points.

It only ever sees public points and released labels, so by post-processing nothing here costs
privacy. Three parts, each of which can be left out:

* *propagation*: the labels are spread over all public points, and wrong ones among them doubted;
  see `propagate`;
* *consistency*: once the network is sure of a point as it is, it learns that class from distorted
  views of the point, in place of the label it had (FixMatch of Sohn et al., renewed each round);
* an *ensemble*: several networks give their mean opinion on the public points, and the student is
  one network distilled from that. So it is stored and served like any other `Student`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch.nn import functional

from mpc_vote.data.dataset import FloatArray, LabelArray
from mpc_vote.learning.features.maps import raw
from mpc_vote.learning.nets.augmentation import augment_at_random
from mpc_vote.learning.nets.networks import Architecture, Network, Progress, predict_scores
from mpc_vote.learning.nets.optimisers import AdamW, one_cycle, one_thread
from mpc_vote.learning.students.lesson import check_asked
from mpc_vote.learning.students.spreading import PropagatedLabels, propagate, rows_to_one
from mpc_vote.learning.students.supervised import Student

_BATCH = 64
_ROUNDS = 20
_RATE, _DECAY, _SMOOTHING = 4e-3, 0.05, 0.1
_FIRST_SURE_ROUND, _SURE = 6, 0.6
_MASKED = 0.3


@dataclass(frozen=True)
class SemiSupervisedRecipe:
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


def train_semi_supervised(
    x: FloatArray,
    asked: LabelArray,
    labels: LabelArray,
    classes: int,
    seed: int,
    recipe: SemiSupervisedRecipe,
    *,
    features: FloatArray | None = None,
    spread: PropagatedLabels | None = None,
    on_progress: Progress | None = None,
    validation: tuple[FloatArray, LabelArray] | None = None,
) -> Student:
    """Train on all public points `x`, of which the rows `asked` have `labels`, some of them wrong.

    Neighbours are sought among `features` (n, d), one row for each point, or else among the points
    themselves; or the labels were `spread` already. `validation` is only scored, never trained on.
    """
    check_asked(x, asked, labels, classes)
    if features is not None and len(features) != len(x):
        raise ValueError(f"there are {len(x)} points but {len(features)} rows of features")
    if len(x) < 2:
        raise ValueError(f"training needs at least two points, got {len(x)}")
    metrics: dict[str, float] = {}
    if recipe.propagate:
        if spread is None:
            spread = propagate(raw(x) if features is None else features, asked, labels, classes)
        metrics["wrong_labels"] = spread.wrong
        told = hard(spread.scores)
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
        fit_told(x, told, one, recipe.steps, recipe.consistency, on_round)
        for one in seeds[: recipe.members]
    ]
    network, loss = fitted[0]
    if recipe.members > 1:
        opinion = np.mean([predict_scores(member, x) for member, _ in fitted], axis=0)
        network, loss = fit_told(x, hard(opinion), seeds[-1], recipe.steps, False, on_round)
    student = Student(network)
    student.metrics = metrics | {"loss": loss, "agreement": student.agreement(x[asked], labels)}
    if validation is not None:
        student.metrics["validation_agreement"] = student.agreement(*validation)
    return student


def fit_told(
    x: FloatArray,
    told: torch.Tensor,
    seed: int,
    steps: int,
    consistency: bool = False,
    on_round: Callable[[float], None] | None = None,
) -> tuple[Network, float]:
    """A network trained on distorted views of the points, and its last mean loss.

    Rows of `told` are distributions over classes, or zero where nothing is known.
    """
    with one_thread(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = Network(Architecture.for_shape(tuple(x.shape[1:]), told.shape[1]))
        points = network.prepare(x)
        network.standardise(points)
        image = network.architecture.kind == "cnn"
        if image:  # a third less time for a step
            network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        optimiser = AdamW(network.parameters(), _DECAY)
        rates = one_cycle(_RATE, steps)
        targets = told
        loss_mean = 0.0
        for part in range(_ROUNDS):
            if consistency and part >= _FIRST_SURE_ROUND:
                targets = _renew(told, torch.from_numpy(predict_scores(network, x)))
            network.train()
            round_rates = rates[part * steps // _ROUNDS : (part + 1) * steps // _ROUNDS]
            losses = []
            for rate, rows in zip(round_rates, _batches(targets, len(round_rates)), strict=True):
                view = (
                    augment_at_random(points[rows]) if image else _mask(points[rows], network.mean)
                )
                loss = functional.cross_entropy(
                    network(view), targets[rows], label_smoothing=_SMOOTHING
                )
                network.zero_grad(set_to_none=True)
                loss.backward()  # type: ignore[no-untyped-call]
                optimiser.step(rate)
                losses.append(loss.item())
            loss_mean = float(np.mean(losses))
            if on_round is not None:
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
    aligned = rows_to_one(scores * share / share.sum() / scores.mean(dim=0).clamp_min(1e-6))
    best, own = aligned.max(dim=1)
    return torch.where(
        (best > _SURE)[:, None], functional.one_hot(own, told.shape[1]).to(told.dtype), told
    )


def _batches(targets: torch.Tensor, count: int) -> list[torch.Tensor]:
    """So many batches of rows with a target, each row about as often as any other."""
    known = torch.nonzero(targets.sum(dim=1) > 0)[:, 0]
    repeats = math.ceil(count * _BATCH / len(known))
    rows = torch.cat([known[torch.randperm(len(known))] for _ in range(repeats)])
    return list(torch.split(rows[: count * _BATCH], _BATCH))


def _mask(vectors: torch.Tensor, mean: torch.Tensor) -> torch.Tensor:
    """Distorted views of vectors: features drawn at random are replaced by their means."""
    return torch.where(torch.rand(vectors.shape) < _MASKED, mean, vectors)


def hard(scores: FloatArray) -> torch.Tensor:
    """One-hot rows of the best class; rows of zeros stay."""
    table = torch.from_numpy(scores)
    best = functional.one_hot(table.argmax(dim=1), table.shape[1])
    return best * (table.sum(dim=1, keepdim=True) > 0).float()
