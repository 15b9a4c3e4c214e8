"""Students by name: ours do what they did, and others are checked before they are relied on."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from safetensors.torch import save_file

from aggregator.coordinator.command import _check_student
from aggregator.coordinator.settings import CoordinatorSettings
from mpc_vote.app import config
from mpc_vote.app.config import ConfigError
from mpc_vote.data.dataset import FloatArray
from mpc_vote.learning import students
from mpc_vote.learning.nets.networks import Architecture, Network
from mpc_vote.learning.students.classifier import GlobalModel
from mpc_vote.plugins import PluginError

SEED = 3
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


@pytest.mark.parametrize("name", students.OWN)
@pytest.mark.parametrize("more", [None, MORE])
def test_ours_learn_repeat_themselves_and_survive_their_files(
    name: str, more: FloatArray | None, tmp_path: Path
) -> None:
    told: list[tuple[int, int, float]] = []
    options = students.StudentOptions(3, SEED, "", lambda *step: told.append(step))
    student = students.find_student(name)
    model = students.check_model(student.train(X, Y, more, options), 3)
    assert (student.train(X, Y, more, options).scores(MORE) == model.scores(MORE)).all()
    assert "agreement" in model.metrics
    assert told and told[-1][0] == told[-1][1]
    model.save(tmp_path / "model", {"epsilon": "2"})
    for read in (student.load(tmp_path / "model"), students.load_model(tmp_path / "model")):
        np.testing.assert_allclose(read.scores(MORE), model.scores(MORE), atol=1e-6)


@pytest.mark.parametrize("name", students.OWN)
def test_ours_see_points_through_the_feature_map_that_is_named(name: str, tmp_path: Path) -> None:
    """With directions alone, a point and its double are the same."""
    options = students.StudentOptions(3, SEED, "unit")
    model = students.find_student(name).train(X, Y, MORE, options)
    np.testing.assert_allclose(model.scores(2 * MORE), model.scores(MORE), atol=1e-6)
    model.save(tmp_path / "model", {})
    read = students.load_model(tmp_path / "model")
    np.testing.assert_allclose(read.scores(2 * MORE), model.scores(MORE), atol=1e-6)


@pytest.mark.parametrize("name", students.OWN)
def test_ours_never_predict_a_class_without_a_label(name: str) -> None:
    labels = np.where(Y == 1, 0, Y)
    model = students.find_student(name).train(X, labels, MORE, students.StudentOptions(3, SEED))
    if name != "network":  # its chances are never 0
        assert 1 not in model.predict(MORE)
    alone = students.find_student(name).train(X, 0 * Y + 2, MORE, students.StudentOptions(3, SEED))
    assert set(alone.predict(MORE).tolist()) == {2}


@pytest.mark.parametrize("name", students.OWN)
def test_ours_refuse_what_can_not_be_learnt_from(name: str) -> None:
    student, options = students.find_student(name), students.StudentOptions(3)
    with pytest.raises(ValueError, match="12 points but 11 labels"):
        student.train(X, Y[:-1], None, options)
    with pytest.raises(ValueError, match="label 3"):
        student.train(X, Y + 1, None, options)
    with pytest.raises(ValueError, match="at least two points"):
        student.train(X[:1], Y[:1], None, options)
    with pytest.raises(ValueError, match="NaN"):
        student.train(np.full_like(X, np.nan), Y, None, options)


def test_models_of_the_version_before_are_read_by_the_default(tmp_path: Path) -> None:
    """Their files hold a network, and don't say so."""
    save_file(
        Network(Architecture("mlp", (4,), 3, 8)).state_dict(),
        tmp_path / "model",
        {"mpc_vote.architecture": Architecture("mlp", (4,), 3, 8).to_json(), "rounds": "r1"},
    )
    for name in ("network", students.DEFAULT):
        assert students.find_student(name).load(tmp_path / "model").scores(X).shape == (12, 3)


# By name


def test_the_coordinators_setting_is_a_name_or_a_place() -> None:
    assert config.load(CoordinatorSettings, REQUIRED).student == "chooser"
    for name in ("linear", "not.loaded.here:yet"):
        assert config.load(CoordinatorSettings, [*REQUIRED, f"--student={name}"]).student == name
    with pytest.raises(
        ConfigError, match="choose one of chooser, linear, network, propagation, prototypes"
    ):
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
