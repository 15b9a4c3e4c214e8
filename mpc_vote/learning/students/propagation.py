"""The student that makes the most of few noisy labels: they are spread over all public points.

What then learns from all points is a convolutional network where they are images, made consistent
by distorted views. Of vectors it is a linear model or a network, whichever tells more of the spread
labels of points that it has not learnt from.
"""

from __future__ import annotations

import numpy as np
import torch

from mpc_vote.learning.students import load_model
from mpc_vote.learning.students.folds import stratified
from mpc_vote.learning.students.lesson import Doubles, Lesson, Places
from mpc_vote.learning.students.linear import LinearHead, LinearModel
from mpc_vote.learning.students.packed import PackedModel
from mpc_vote.learning.students.semi_supervised import (
    SemiSupervisedRecipe,
    fit_told,
    hard,
    train_semi_supervised,
)
from mpc_vote.learning.students.single import SingleStudent
from mpc_vote.learning.students.spreading import Walks
from mpc_vote.learning.students.supervised import Student

# In the service somebody waits.
_IMAGE_STEPS, _VECTOR_STEPS, _TRIAL_STEPS = 1000, 400, 200
_DECAY = 1e-3
# How much more of the spread labels a network must tell to be worth its chances.
_GAIN = 0.01


class Propagation(SingleStudent):
    """The student of that name."""

    load = staticmethod(load_model)

    def __init__(self, lesson: Lesson) -> None:
        super().__init__(lesson)
        self._walks = Walks(lesson.public.vectors, lesson.asked)
        self._places = np.full(len(lesson.public), -1)
        self._places[lesson.asked] = np.arange(len(lesson.asked))

    def guess(self, part: Lesson, rows: Places) -> Doubles:
        """By the spread labels themselves."""
        held, told = self._places[rows], self._places[part.asked]
        return self._walks.guess(held, told, part.labels, part.classes)

    def learn(self) -> PackedModel:
        lesson = self.lesson
        spread = self._walks.spread(lesson.labels, lesson.classes)
        if lesson.public.images:
            return train_semi_supervised(
                lesson.public.x,
                lesson.asked,
                lesson.labels,
                lesson.classes,
                lesson.seed,
                SemiSupervisedRecipe(steps=_IMAGE_STEPS),
                spread=spread,
                on_progress=lesson.on_progress,
            )
        model = _best_of_vectors(lesson, hard(spread.scores).numpy().astype(np.float64))
        agreement = model.agreement(lesson.public.x[lesson.asked], lesson.labels)
        model.metrics |= {"agreement": agreement, "wrong_labels": spread.wrong}
        lesson.tell(1, 1, 1 - agreement)
        return model


def _best_of_vectors(lesson: Lesson, told: Doubles) -> LinearModel | Student:
    """A linear model or a network, whichever suits the labels told, (n, classes)."""
    known = np.flatnonzero(told.sum(axis=1) > 0)
    labels = told.argmax(axis=1)
    half = stratified(labels[known], 2, np.random.default_rng(lesson.seed))
    shown, held = known[half == 0], known[half == 1]
    x = lesson.public.x[held]

    def network(rows: Places, steps: int) -> Student:
        targets = torch.zeros(told.shape)
        targets[rows] = torch.from_numpy(told[rows]).float()
        fitted, loss = fit_told(lesson.public.inputs, targets, lesson.seed, steps)
        return Student(fitted, {"loss": loss}, features=lesson.public.input_features)

    head = LinearHead(lesson.public.vectors)

    def linear(rows: Places) -> LinearModel:
        affine = head.fit(rows, told[rows], _DECAY)
        return LinearModel(lesson.public.see, lesson.public.shape, affine)

    gain = network(shown, _TRIAL_STEPS).agreement(x, labels[held]) - linear(shown).agreement(
        x, labels[held]
    )
    return network(known, _VECTOR_STEPS) if gain > _GAIN else linear(known)
