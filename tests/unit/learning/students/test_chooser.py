"""The default student takes after the data: whoever guesses held-out labels best is trained."""

from __future__ import annotations

import numpy as np
import pytest

from mpc_vote.data.embedded import load_embedded
from mpc_vote.learning.features.maps import strokes
from mpc_vote.learning.query_selection import representatives
from mpc_vote.learning.students import StudentOptions, chooser
from mpc_vote.learning.students.chooser import Chooser, Trial, head_starts, try_out, weigh
from mpc_vote.learning.students.lesson import Lesson, PublicPoints


def _trial(rate: float, seed: int, labels: int = 400) -> Trial:
    guessed = (np.random.default_rng(seed).random(labels) < rate).astype(np.float64)
    return Trial(guessed, np.ones(labels))


def _lesson(points: int, labels: int, shape: tuple[int, ...] = (4,), classes: int = 2) -> Lesson:
    x = np.random.default_rng(0).normal(size=(points, *shape)).astype(np.float32)
    return Lesson(PublicPoints(x), np.arange(labels), np.arange(labels) % classes, classes)


def _xor(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(seed).uniform(-1, 1, (count, 2)).astype(np.float32)
    return x, ((x[:, 0] > 0) ^ (x[:, 1] > 0)).astype(np.int64)


def _columns(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """One of 60 columns tells the class, so that neighbours tell little."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count, 60)).astype(np.float32)
    x[:, 0] *= 3
    return x, (x[:, 0] + 0.3 * rng.normal(size=count) > 1).astype(np.int64)


def test_who_is_clearly_behind_has_no_say() -> None:
    lesson = _lesson(100, 50)
    weights = weigh(lesson, {"linear": _trial(0.95, 1), "propagation": _trial(0.8, 0)})
    assert weights == {"linear": 1.0}


def test_those_that_can_not_be_told_apart_decide_together() -> None:
    lesson, best = _lesson(400, 400), _trial(0.8, 0)
    assert weigh(lesson, {"linear": best, "propagation": best}) == {
        "linear": 0.5,
        "propagation": 0.5,
    }
    guessed = best.guessed.copy()
    guessed[np.flatnonzero(guessed)[:3]] = 0  # 1.7 standard errors
    weights = weigh(lesson, {"linear": Trial(guessed, best.tried), "prototypes": best})
    assert weights["linear"] == pytest.approx(
        np.exp(-9 / 3.25 / 2) * weights["prototypes"], rel=0.02
    )
    assert sum(weights.values()) == pytest.approx(1)


def test_a_network_is_compared_on_the_folds_that_it_was_tried_on() -> None:
    """Where others have an easier time, its figure is the higher one by that alone."""
    easy = np.arange(400) < 200
    others = Trial(np.where(easy, 1.0, np.arange(400) % 4 > 0), np.ones(400))
    network = Trial(np.where(easy, 0.0, np.arange(400) % 8 > 0), (~easy).astype(np.float64))
    assert others.agreement == network.agreement == 0.875
    assert weigh(_lesson(400, 400), {"linear": others, "network": network}) == {"network": 1.0}


@pytest.mark.parametrize(
    ("lesson", "trusted"),
    [
        (_lesson(100, 50), "propagation"),
        (_lesson(50, 50), "linear"),
        (_lesson(50, 50, (16, 16)), "network"),
        (_lesson(100, 50, (16, 16)), "propagation"),
    ],
)
def test_without_a_trial_it_depends_on_the_points(lesson: Lesson, trusted: str) -> None:
    assert weigh(lesson, {}) == {trusted: 1.0}


def test_students_are_compared_on_labels_that_both_were_tried_on() -> None:
    some = Trial(np.array([0.0, 0.0, 1.0, 1.0, 1.0]), np.array([0.0, 0.0, 1.0, 1.0, 1.0]))
    other = Trial(np.array([2.0, 2.0, 2.0, 0.0, 2.0]), np.full(5, 2.0))
    assert some.agreement == 1.0
    assert other.agreement == 0.8
    error = np.hypot(np.std([0, 1, 0]) / np.sqrt(3), 0.5 / 3)
    assert some.beats(other) == pytest.approx(1 / 3 / error)
    assert some.beats(other, lead=0.5) == pytest.approx((1 / 3 + 0.5) / error)
    assert some.beats(some) == 0


def test_three_labels_a_class_trust_those_that_learn_from_all_points() -> None:
    """One of thirty labels more is no evidence against what is true of most tasks."""
    plain = Trial((np.arange(30) > 1).astype(np.float64), np.ones(30))
    spread = Trial((np.arange(30) > 2).astype(np.float64), np.ones(30))
    trials = {"linear": plain, "propagation": spread, "prototypes": spread}
    few = weigh(_lesson(3000, 30, classes=10), trials)
    assert few == {"propagation": 0.5, "prototypes": 0.5}
    many = weigh(_lesson(3000, 30, classes=2), trials)
    assert max(many, key=lambda name: many[name]) == "linear"
    none_unlabelled = weigh(_lesson(30, 30, classes=10), trials)
    assert max(none_unlabelled, key=lambda name: none_unlabelled[name]) == "linear"


def test_a_head_start_is_for_students_that_guess_well_and_fades_with_labels() -> None:
    trials = {"linear": _trial(0.9, 0), "propagation": _trial(0.9, 0), "prototypes": _trial(0.3, 0)}
    at_three = head_starts(_lesson(3000, 30, classes=10), trials)
    assert at_three["linear"] == 0
    assert at_three["propagation"] > 0.1 > 0.02 > at_three["prototypes"] > 0
    at_six = head_starts(_lesson(6000, 60, classes=10), trials)
    assert at_six["propagation"] == pytest.approx(at_three["propagation"] / 4)
    assert head_starts(_lesson(30, 30, classes=10), trials)["propagation"] == 0


def test_students_that_guess_the_same_labels_decide_together_however_small_a_head_start() -> None:
    all_right = Trial(np.ones(200), np.ones(200))
    weights = weigh(_lesson(1000, 200), {"linear": all_right, "propagation": all_right})
    assert weights["linear"] > 0.45


def test_a_student_is_never_shown_the_label_that_it_guesses() -> None:
    """Labels without any rule can't be guessed, however well they can be learnt by heart."""
    x = np.random.default_rng(0).normal(size=(200, 5)).astype(np.float32)
    y = np.random.default_rng(1).integers(0, 2, 200)
    trials = try_out(Lesson(PublicPoints(x), np.arange(100), y[:100], 2))
    assert set(trials) == set(chooser.SINGLE)
    assert all(abs(trial.agreement - 0.5) < 0.15 for trial in trials.values())


def test_a_linear_task_gets_what_a_linear_student_gets() -> None:
    x, y = _columns(700, 0)
    test = _columns(2000, 1)
    options = StudentOptions(2)
    model = Chooser.train(x[:200], y[:200], x[200:], options)
    assert model.metrics["weight_linear"] > 0.5
    plain = chooser.SINGLE["linear"].train(x[:200], y[:200], x[200:], options)
    assert model.agreement(*test) >= plain.agreement(*test) > 0.85
    assert model.metrics["agreement_linear"] > model.metrics["agreement_propagation"] + 0.03


def test_a_task_that_no_line_solves_gets_another_student() -> None:
    x, y = _xor(260, 0)
    model = Chooser.train(x[:250], y[:250], None, StudentOptions(2))
    assert model.metrics["weight_network"] == 1
    assert model.metrics["agreement_linear"] < 0.7
    assert model.agreement(*_xor(1000, 1)) > 0.9


def test_wrong_labels_are_outvoted_where_neighbours_are_alike() -> None:
    data = load_embedded()
    rows = np.random.default_rng(0).permutation(len(data))[:1500]
    x, y = data.x[rows], data.y[rows]
    asked = representatives(strokes(x[:800]), 60, 0)
    labels = y[asked].copy()
    labels[::6] = (labels[::6] + 1) % 10
    lesson = Lesson(PublicPoints(x[:800], "strokes"), asked, labels, 10)
    trials = try_out(lesson)
    assert "network" not in trials, "propagation trains one already"
    weights = weigh(lesson, trials)
    assert max(weights, key=lambda name: weights[name]) == "propagation"


@pytest.mark.parametrize("labels", [2, 12, 29])
def test_few_labels_are_all_learnt_from(labels: int) -> None:
    x, _ = _columns(100, 0)
    model = Chooser.train(x[:labels], np.arange(labels) % 2, x[labels:], StudentOptions(2))
    assert model.metrics["weight_propagation"] == 1
    assert not any(key.startswith("agreement_") for key in model.metrics)


def test_of_very_many_labels_some_are_tried_and_all_are_learnt_from(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(chooser, "_MOST_TRIED", 60)
    x, y = _columns(300, 0)
    lesson = Lesson(PublicPoints(x), np.arange(300), y, 2)
    assert all(len(trial.tried) == 60 for trial in try_out(lesson).values())
    monkeypatch.setattr(chooser, "weigh", lambda *_: {"linear": 1.0})
    model = Chooser.train(x, y, None, StudentOptions(2))
    plain = chooser.SINGLE["linear"].train(x, y, None, StudentOptions(2))
    assert np.array_equal(model.scores(x), plain.scores(x))
