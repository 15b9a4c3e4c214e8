"""Labels spread first: shares of classes are those of the labels, and what learns them suits."""

from __future__ import annotations

import numpy as np

from mpc_vote.learning.students import StudentOptions
from mpc_vote.learning.students.lesson import Lesson, PublicPoints
from mpc_vote.learning.students.linear import LinearModel
from mpc_vote.learning.students.propagation import Propagation
from mpc_vote.learning.students.spreading import Walks, propagate
from mpc_vote.learning.students.supervised import Student


def _overlapping(count: int, rare: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """A common class all over the place, and a rare one beside its middle."""
    rng = np.random.default_rng(seed)
    y = (rng.random(count) < rare).astype(np.int64)
    x = rng.normal(size=(count, 8)) * np.where(y, 0.6, 1.0)[:, None] + 0.9 * y[:, None]
    return x.astype(np.float32), y


def _moons(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    y = np.arange(count) % 2
    angle = np.pi * rng.random(count)
    x = np.stack([np.cos(angle), np.sin(angle)], axis=1) * np.where(y, -1, 1)[:, None]
    return (x + y[:, None] * [1, 0.5] + rng.normal(0, 0.1, (count, 2))).astype(np.float32), y


def test_a_rare_class_does_not_take_an_equal_share() -> None:
    x, y = _overlapping(1500, 0.1, 0)
    asked = np.arange(120, dtype=np.int64)
    spread = propagate(x, asked, y[asked], 2)
    assert np.mean(spread.scores.argmax(axis=1)) < 0.2
    assert np.mean(spread.scores.argmax(axis=1) == y) > 0.9


def test_a_class_without_a_label_gets_no_point() -> None:
    x, y = _overlapping(300, 0.5, 1)
    asked = np.arange(40, dtype=np.int64)
    spread = propagate(x, asked, 2 * y[asked], 5)
    assert set(np.unique(spread.scores.argmax(axis=1))) <= {0, 2}
    assert (spread.scores[:, [1, 3, 4]] == 0).all() and (spread.cleaned[:, [1, 3, 4]] == 0).all()


def test_a_label_that_is_held_out_has_no_say_in_its_guess() -> None:
    x, y = _overlapping(300, 0.4, 2)
    asked = np.arange(50, dtype=np.int64)
    walks, told, held = Walks(x, asked), np.arange(40), np.arange(40, 50)
    guessed = walks.guess(held, told, y[:40], 2)
    student = Propagation(Lesson(PublicPoints(x, "raw"), asked, np.where(asked < 40, y[:50], 0), 2))
    assert np.array_equal(student.guess(student.lesson.only(told), held), guessed)
    assert np.mean(guessed.argmax(axis=1) == y[held]) > 0.6


def test_classes_that_no_line_parts_are_learnt_by_a_network() -> None:
    x, y = _moons(600, 0)
    model = Propagation.train(x[:40], y[:40], x[40:], StudentOptions(2))
    assert isinstance(model, Student)
    assert model.agreement(*_moons(500, 1)) > 0.95


def test_classes_that_a_line_parts_are_learnt_by_a_linear_model() -> None:
    rng = np.random.default_rng(0)
    y = np.arange(400) % 2
    x = (rng.normal(size=(400, 30)) + np.where(y, 0.7, -0.7)[:, None]).astype(np.float32)
    model = Propagation.train(x[:40], y[:40], x[40:], StudentOptions(2))
    assert isinstance(model, LinearModel)
    assert model.agreement(x, y) > 0.97
