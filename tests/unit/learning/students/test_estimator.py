"""Estimators of scikit-learn as students, stored without pickle."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from mpc_vote.learning.students import StudentOptions, load_model
from mpc_vote.learning.students.estimator import EstimatorModel, from_estimator

linear_model = pytest.importorskip("sklearn.linear_model")
ensemble = pytest.importorskip("sklearn.ensemble")
pytest.importorskip("skops")

TREE = "sklearn.tree._tree.Tree"


def _task(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 3, count)
    x = rng.normal(size=(count, 6)) + 3 * np.eye(6)[2 * y]
    return (x * [1, 1, 1, 1, 1, 1e4]).astype(np.float32), y


def test_an_estimator_learns_and_survives_its_file(tmp_path: Path) -> None:
    x, y = _task(100, 0)
    told: list[tuple[int, int, float]] = []
    options = StudentOptions(5, 1, "", lambda *step: told.append(step))
    student = from_estimator(linear_model.LogisticRegression())
    model = student.train(x, 2 * y, _task(50, 1)[0], options)
    new, truth = _task(500, 2)
    assert model.agreement(new, 2 * truth) > 0.9
    assert model.scores(new).shape == (500, 5)
    assert (model.scores(new)[:, [1, 3]] == 0).all(), "no label had these"
    assert told == [(1, 1, 1 - model.metrics["agreement"])]
    model.save(tmp_path / "model", {"epsilon": "2"})
    for read in (student.load(tmp_path / "model"), load_model(tmp_path / "model")):
        assert np.array_equal(read.scores(new), model.scores(new))
    assert model.scores(new[:0]).shape == (0, 5)
    with pytest.raises(ValueError, match="the model takes"):
        model.scores(new[:, :5])


def test_each_training_has_a_copy_of_its_own_and_the_clients_seed() -> None:
    x, y = _task(100, 0)
    forest = ensemble.RandomForestClassifier(5)
    student = from_estimator(forest)
    one, same, other = (
        student.train(x, y, None, StudentOptions(3, seed)).scores(x) for seed in (1, 1, 2)
    )
    assert np.array_equal(one, same) and not np.array_equal(one, other)
    assert not hasattr(forest, "classes_")


def test_types_that_are_not_trusted_are_not_built(tmp_path: Path) -> None:
    x, y = _task(100, 0)
    forest = ensemble.RandomForestClassifier(5)
    model = from_estimator(forest).train(x, y, None, StudentOptions(3))
    model.save(tmp_path / "model", {})
    for read in (from_estimator(forest).load, load_model):
        with pytest.raises(ValueError, match=f"not trusted: {TREE}; name them"):
            read(tmp_path / "model")
    again = from_estimator(forest, trusted=[TREE]).load(tmp_path / "model")
    assert np.array_equal(again.scores(x), model.scores(x))


def test_an_estimator_that_unpacks_to_more_than_its_file_is_refused(tmp_path: Path) -> None:
    """Else a file of a megabyte would take a gigabyte of whoever fetched it."""
    model = from_estimator(linear_model.LogisticRegression()).train(
        *_task(100, 0), None, StudentOptions(3)
    )
    model.save(tmp_path / "model", {})
    arrays, packed = load_file(tmp_path / "model"), io.BytesIO()
    plain = zipfile.ZipFile(io.BytesIO(arrays["estimator"].numpy().tobytes()))
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in plain.namelist():
            archive.writestr(name, plain.read(name))
        archive.writestr("more.npy", bytes(1 << 20))
    arrays["estimator"] = torch.frombuffer(bytearray(packed.getvalue()), dtype=torch.uint8)
    own = {"reader": "estimator", "features": "", "shape": "[6]", "classes": "3"}
    save_file(arrays, tmp_path / "model", {f"mpc_vote.{key}": own[key] for key in own})
    with pytest.raises(ValueError, match="would take more memory"):
        load_model(tmp_path / "model")


def test_what_gives_no_chances_is_refused_at_once() -> None:
    for wrong in (linear_model.LinearRegression(), object()):
        with pytest.raises(TypeError, match=r"has no (fit|predict_proba)\(\)"):
            from_estimator(wrong)


def test_what_is_no_scikit_learn_can_learn_too() -> None:
    class Frequent:
        """Whatever it is asked, it names the class that it saw most."""

        classes_: Any

        def fit(self, x: Any, y: Any) -> None:
            self.classes_, self.counts = np.unique(y, return_counts=True)

        def predict_proba(self, x: Any) -> Any:
            return np.tile(self.counts / self.counts.sum(), (len(x), 1))

    x = _task(10, 0)[0]
    y = np.array([2] * 7 + [0] * 3)
    model = from_estimator(Frequent()).train(x, y, None, StudentOptions(3))
    np.testing.assert_allclose(model.scores(x)[0], [0.3, 0, 0.7])


@pytest.mark.parametrize("classes", ["1", "x", "-3", "99999999"])
def test_a_file_with_impossible_classes_is_refused(classes: str, tmp_path: Path) -> None:
    from safetensors.torch import save_file

    path = tmp_path / "model"
    student = from_estimator(linear_model.LogisticRegression())
    student.train(*_task(50, 0), None, StudentOptions(3)).save(path, {})
    own = {
        "mpc_vote.reader": "estimator",
        "mpc_vote.features": "",
        "mpc_vote.shape": "[6]",
        "mpc_vote.classes": classes,
    }
    save_file(load_file(path), path, own)
    with pytest.raises(ValueError, match="classes"):
        EstimatorModel.load(path)
