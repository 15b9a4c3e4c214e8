"""The default: a choice among the single students, by cross-validation on released labels.

Which student suits a task depends on its data: labels spread well along neighbours in digits,
centres suit strong features, and a linear model suits many a table. Released labels cost no more
privacy, whatever is done with them, so each student is tried on folds of them. Some are wrong by
design of the noise, but wrong alike for all students; points whose label is held out stay among the
public points, as they would be if nobody had asked about them.

Few labels don't tell students apart for certain. So students that may be as good as the best decide
together with it, weighted by how near they are to it. And those that also learn from points without
a label have a head start of 1.5 (a/m)^2 in their agreement a, if classes have m labels on average:
with three labels a class they are ahead in most tasks, by more than thirty held-out labels can
show. A student that guesses few labels has little of it, and with many labels nothing is left of
it. `docs/experiments.md` says how the rule was chosen.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mpc_vote.data.dataset import FloatArray, LabelArray
from mpc_vote.learning.students import StudentOptions, load_model
from mpc_vote.learning.students.folds import stratified
from mpc_vote.learning.students.lesson import Doubles, Lesson, Places
from mpc_vote.learning.students.linear import Linear
from mpc_vote.learning.students.mixture import Mixture
from mpc_vote.learning.students.packed import PackedModel
from mpc_vote.learning.students.propagation import Propagation
from mpc_vote.learning.students.prototypes import Prototypes
from mpc_vote.learning.students.single import SingleStudent
from mpc_vote.learning.students.supervised import Supervised

SINGLE: dict[str, type[SingleStudent]] = {
    "linear": Linear,
    "prototypes": Prototypes,
    "propagation": Propagation,
    "network": Supervised,
}

_FOLDS = 5
# About so many labels are guessed in a try-out, by folds that are drawn anew where there are fewer.
_GUESSES, _MOST_REPEATS = 400, 6
# Of more labels some are tried on, the most that are worth waiting for.
_MOST_TRIED = 1000
# A convolutional network is tried on some folds only: it learns for longer than all others do.
_IMAGE_FOLDS = 2
# Fewer labels can't tell students apart.
_LEAST_LABELS = 30
# A student of less weight than this part of the best one's has no say.
_LEAST_WEIGHT = 0.1
# They learn from points without a label, too; and what that is taken to be worth, see above.
_SEMI_SUPERVISED, _HEAD_START = ("prototypes", "propagation"), 1.5
# Students that guessed the same labels are still not told apart by less than this part of a label.
_DOUBT = 0.5


@dataclass(frozen=True, eq=False)
class Trial:
    """How often a student guessed each label that it was not shown, of the times that it was
    tried on it."""

    guessed: Doubles
    tried: Doubles

    @property
    def agreement(self) -> float:
        """The share of labels that it guessed."""
        return float(self.guessed.sum() / self.tried.sum())

    def beats(self, other: Trial, lead: float = 0.0) -> float:
        """By how many standard errors it is better, on the labels that both were tried on, if its
        share of them counts `lead` more."""
        both = (self.tried > 0) & (other.tried > 0)
        gain = self.guessed[both] / self.tried[both] - other.guessed[both] / other.tried[both]
        error = math.hypot(gain.std() / math.sqrt(len(gain)), _DOUBT / len(gain))
        return (float(gain.mean()) + lead) / error


class Chooser:
    """The default student."""

    load = staticmethod(load_model)

    @staticmethod
    def train(
        x: FloatArray, y: LabelArray, unlabelled: FloatArray | None, options: StudentOptions
    ) -> PackedModel:
        """See `StudentFactory`. The metrics have the weight of each student that was chosen, and of
        each that was tried the share of held-out labels that it guessed."""
        lesson = Lesson.of(x, y, unlabelled, options)
        trials = try_out(lesson)
        weights = weigh(lesson, trials)
        members = {name: SINGLE[name](lesson).learn() for name in weights}
        model = _together(members, weights)
        model.metrics = {
            **model.metrics,
            "agreement": model.agreement(x, y),
            **{f"agreement_{name}": trial.agreement for name, trial in trials.items()},
            **{f"weight_{name}": weight for name, weight in weights.items()},
        }
        return model


def _together(members: Mapping[str, PackedModel], weights: Mapping[str, float]) -> PackedModel:
    """One model, or a mixture of several."""
    if len(members) == 1:
        return next(iter(members.values()))
    return Mixture(list(members.values()), [weights[name] for name in members])


def try_out(lesson: Lesson) -> dict[str, Trial]:
    """Each student that may suit the lesson, tried on labels that it was not shown; none at all
    where there are too few labels to tell.

    A convolutional network is tried where it has no rival: propagation trains one, too, and from
    more points.
    """
    if len(lesson.labels) < _LEAST_LABELS or (lesson.counts > 0).sum() < 2:
        return {}
    rng = np.random.default_rng(lesson.seed)
    if len(lesson.labels) > _MOST_TRIED:
        lesson = lesson.only(np.sort(rng.permutation(len(lesson.labels))[:_MOST_TRIED]))
    repeats = min(_MOST_REPEATS, -(-_GUESSES // len(lesson.labels)))
    folds = [stratified(lesson.labels, _FOLDS, rng) for _ in range(repeats)]
    trials = {
        name: _try(SINGLE[name](lesson), folds)
        for name in ("linear", "prototypes", "propagation")
        if name != "propagation" or lesson.further
    }
    images = lesson.public.images
    if not images or not lesson.further:
        held = np.where(folds[0] < _IMAGE_FOLDS, folds[0], -1) if images else folds[0]
        trials["network"] = _try(SINGLE["network"](lesson), [held])
    return trials


def weigh(lesson: Lesson, trials: Mapping[str, Trial]) -> dict[str, float]:
    """The weights of those that should decide; they sum to 1.

    A student that is z standard errors behind the best, head starts included, has exp(-z^2/2) of
    its weight, which is how likely such a lag is by chance. Without a trial one student has all the
    weight: propagation if there are points without a label, else a network for images, or a linear
    model.
    """
    if not trials:
        trusted = (
            "propagation" if lesson.further else "network" if lesson.public.images else "linear"
        )
        return {trusted: 1.0}
    ahead = head_starts(lesson, trials)

    def lead(one: str, other: str) -> float:
        return trials[one].beats(trials[other], ahead[one] - ahead[other])

    best = max(trials, key=lambda name: trials[name].agreement + ahead[name])
    if "network" in trials and lead("network", best) > 0:  # on its own folds
        best = "network"
    weights = {name: math.exp(-(max(0.0, lead(best, name)) ** 2) / 2) for name in trials}
    total = sum(weight for weight in weights.values() if weight >= _LEAST_WEIGHT)
    return {name: weight / total for name, weight in weights.items() if weight >= _LEAST_WEIGHT}


def head_starts(lesson: Lesson, trials: Mapping[str, Trial]) -> dict[str, float]:
    """What each student's agreement counts more; less where fewer points have no label."""
    each = len(lesson.labels) / int((lesson.counts > 0).sum())
    unlabelled = lesson.further / len(lesson.public)
    return {
        name: unlabelled * _HEAD_START * (trial.agreement / each) ** 2
        if name in _SEMI_SUPERVISED
        else 0.0
        for name, trial in trials.items()
    }


def _try(student: SingleStudent, folds: Sequence[Places]) -> Trial:
    """The student on all folds but those of negative number, which are always shown."""
    lesson = student.lesson
    guessed, tried = np.zeros(len(lesson.labels)), np.zeros(len(lesson.labels))
    for fold in folds:
        for number in range(int(fold.max()) + 1):
            held = np.flatnonzero(fold == number)
            part = lesson.only(np.flatnonzero(fold != number))
            scores = student.guess(part, lesson.asked[held])
            guessed[held] += scores.argmax(axis=1) == lesson.labels[held]
            tried[held] += 1
    return Trial(guessed, tried)
