"""Students by name: ours do what they did, and others are checked before they are relied on."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from aggregator.coordinator.command import _check_student
from aggregator.coordinator.settings import CoordinatorSettings
from mpc_vote.app import config
from mpc_vote.app.config import ConfigError
from mpc_vote.data.dataset import FloatArray
from mpc_vote.learning import students
from mpc_vote.learning.features.maps import feature_map
from mpc_vote.learning.students import semi_supervised
from mpc_vote.learning.students.classifier import GlobalModel
from mpc_vote.learning.students.semi_supervised import SemiSupervisedRecipe, train_semi_supervised
from mpc_vote.learning.students.supervised import train_student
from mpc_vote.plugins import PluginError

STEPS, SEED = 20, 3
REQUIRED = ("--certs=x", "--data-dir=x", "--parties=a=h:1,b=h:2")


def _points(rows: int, seed: int) -> FloatArray:
    return np.random.default_rng(seed).normal(size=(rows, 4)).astype(np.float32)


X, MORE = _points(12, 0), _points(20, 1)
Y = np.arange(12) % 3


class Fixed(GlobalModel):
    """Gives everything the same scores."""

    def __init__(self, scores: Any, classes: int = 3) -> None:
        self._scores = scores
        self._classes = classes

    @property
    def classes(self) -> int:
        return self._classes

    def scores(self, x: FloatArray) -> Any:
        return self._scores

    def save(self, path: Path, metadata: Mapping[str, str]) -> None:
        raise AssertionError("nobody keeps it")


# Ours


@pytest.mark.parametrize("features", ["", "unit"])
def test_ours_is_the_semi_supervised_student_with_the_same_seeds(
    features: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(semi_supervised, "_SERVED_STEPS", STEPS)
    told: list[tuple[int, int, float]] = []
    options = students.StudentOptions(3, SEED, features, lambda *step: told.append(step))
    model = students.find_student(students.DEFAULT).train(X, Y, MORE, options)
    all_points = np.concatenate([X, MORE])
    seen = feature_map(features)(all_points) if features else None
    recipe = SemiSupervisedRecipe(steps=STEPS)
    same = train_semi_supervised(all_points, np.arange(12), Y, 3, SEED, recipe, features=seen)
    assert (model.scores(MORE) == same.scores(MORE)).all()
    assert model.metrics == same.metrics
    assert told and told[-1][0] == told[-1][1]


@pytest.mark.parametrize("name", students.OWN)
def test_both_of_ours_learn_from_labelled_points_alone_in_one_way(
    name: str, tmp_path: Path
) -> None:
    student = students.find_student(name)
    model = student.train(X, Y, None, students.StudentOptions(3, SEED))
    assert (model.scores(MORE) == train_student(X, Y, 3, SEED).scores(MORE)).all()
    model.save(tmp_path / "model", {})
    assert (student.load(tmp_path / "model").scores(MORE) == model.scores(MORE)).all()


def test_the_supervised_student_does_not_pretend_to_learn_from_points_without_labels() -> None:
    with pytest.raises(ValueError, match="labelled points alone"):
        students.find_student("supervised").train(X, Y, MORE, students.StudentOptions(3))


# By name


def test_the_coordinators_setting_is_a_name_or_a_place() -> None:
    assert config.load(CoordinatorSettings, REQUIRED).student == "semi_supervised"
    for name in ("supervised", "not.loaded.here:yet"):
        assert config.load(CoordinatorSettings, [*REQUIRED, f"--student={name}"]).student == name
    with pytest.raises(ConfigError, match="choose one of semi_supervised, supervised"):
        config.load(CoordinatorSettings, [*REQUIRED, "--student=nobody"])


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("no_such_module:thing", "No module named"),
        ("test_student:missing", "has no attribute"),
        ("test_student:half", "it has no load"),
        ("broken_student:thing", "ZeroDivisionError"),
    ],
)
def test_what_can_not_be_loaded_says_why(
    name: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_student.py").write_text("1 / 0\n")
    (tmp_path / "test_student.py").write_text("class half:\n    train = print\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "test_student", raising=False)
    with pytest.raises(PluginError, match=words) as caught:
        students.find_student(name)
    assert name in str(caught.value)
    # A coordinator finds out before it serves anybody.
    with pytest.raises(ConfigError, match=f"--student: .*{words}"):
        _check_student(name)


# What others give


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (None, "but NoneType"),
        (SimpleNamespace(classes=3), "but SimpleNamespace"),
        (Fixed(None, classes=4), "4 classes instead of 3"),
    ],
)
def test_a_model_that_can_not_be_used_is_refused(model: object, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        students.check_model(model, 3)


@pytest.mark.parametrize(
    ("scores", "words"),
    [
        (np.zeros((12, 4)), "shape"),
        (np.zeros(12), "shape"),
        (None, "shape"),
        (np.full((12, 3), "a"), "instead of numbers"),
        (np.full((12, 3), np.nan), "NaN"),
        (np.full((12, 3), np.inf), "infinity"),
    ],
)
def test_scores_that_say_no_class_are_refused(scores: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        students.predict(Fixed(scores), X, 3)


def test_scores_that_do_are_taken() -> None:
    assert students.predict(Fixed(np.eye(3)), X[:3], 3).tolist() == [0, 1, 2]
