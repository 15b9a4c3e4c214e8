"""The plain student: cautious where labels are few or noisy, at home where columns differ."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from mpc_vote.learning.students import StudentOptions
from mpc_vote.learning.students.linear import Linear, LinearModel
from mpc_vote.learning.students.logistic import choose_decay, fit_logistic, one_hot, softmax


def _task(rows: int, seed: int, noise: float = 0.3) -> tuple[np.ndarray, np.ndarray]:
    """Whether a sum of 20 columns is large, which one in five is."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 20)).astype(np.float32)
    y = (x[:, :5].sum(axis=1) / np.sqrt(5) + noise * rng.normal(size=rows) > 0.9).astype(np.int64)
    return x, y


def test_it_learns_in_any_units() -> None:
    x, y = _task(300, 0)
    test_x, test_y = _task(2000, 1)
    scales = np.geomspace(1e-3, 1e3, 20).astype(np.float32)
    plain = Linear.train(x, y, None, StudentOptions(2))
    scaled = Linear.train(x * scales, y, None, StudentOptions(2))
    assert plain.agreement(test_x, test_y) > 0.92
    assert scaled.agreement(test_x * scales, plain.predict(test_x)) > 0.98


def test_with_labels_of_pure_noise_it_says_what_is_most_frequent() -> None:
    x, _ = _task(200, 0)
    y = (np.random.default_rng(5).random(200) < 0.2).astype(np.int64)
    model = Linear.train(x, y, None, StudentOptions(2))
    assert np.mean(model.predict(_task(1000, 1)[0]) == 0) > 0.97


def test_it_minimises_what_it_says() -> None:
    """At the solution the slope is 0, in the weights and in the offsets."""
    x, y = _task(60, 2)
    points, targets = x.astype(np.float64), one_hot(y, 2)
    weight, offset = fit_logistic(points, targets, 0.01)
    apart = softmax(points @ weight + offset) - targets
    np.testing.assert_allclose(points.T @ apart / 60 + 0.01 * weight, 0, atol=1e-4)
    np.testing.assert_allclose(apart.mean(axis=0), 0, atol=1e-4)


def test_more_inputs_than_points_are_solved_in_the_span_of_the_points() -> None:
    rng = np.random.default_rng(0)
    points, targets = rng.normal(size=(12, 40)), one_hot(np.arange(12) % 3, 3)
    weight, offset = fit_logistic(points, targets, 0.1)
    apart = softmax(points @ weight + offset) - targets
    np.testing.assert_allclose(points.T @ apart / 12 + 0.1 * weight, 0, atol=1e-4)


def test_the_decay_follows_the_noise() -> None:
    rng = np.random.default_rng(0)
    points = rng.normal(size=(100, 30)) / np.sqrt(30)
    clean = (points[:, 0] > 0).astype(np.int64)
    noisy = rng.integers(0, 2, 100)
    assert choose_decay(points, clean, 2, 0) < 0.1 * choose_decay(points, noisy, 2, 0)


@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        ("weight", torch.zeros(19, 2, dtype=torch.float64), "array weight is 19 long"),
        ("weight", torch.zeros(20, 2), "array weight is torch.float32"),
        ("offset", torch.full((2,), torch.nan, dtype=torch.float64), "NaN"),
        ("extra", torch.zeros(1, dtype=torch.float64), "do not fit the model: extra"),
    ],
)
def test_a_file_with_wrong_arrays_is_refused(
    name: str, array: torch.Tensor, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "model"
    Linear.train(*_task(40, 0), None, StudentOptions(2)).save(path, {})
    own = {"mpc_vote.reader": "linear", "mpc_vote.features": "", "mpc_vote.shape": "[20]"}
    save_file(load_file(path) | {name: array}, path, own)
    with pytest.raises(ValueError, match=message):
        LinearModel.load(path)


@pytest.mark.parametrize(
    "shape", ["", "[]", "[0]", "{}", "[9999999999]", '["a"]', "3", f"[{'1, ' * 9}2]"]
)
def test_a_file_with_an_impossible_shape_is_refused(shape: str, tmp_path: Path) -> None:
    path = tmp_path / "model"
    Linear.train(*_task(40, 0), None, StudentOptions(2)).save(path, {})
    own = {"mpc_vote.reader": "linear", "mpc_vote.features": "", "mpc_vote.shape": shape}
    save_file(load_file(path), path, own)
    with pytest.raises(ValueError, match="shape"):
        LinearModel.load(path)


def test_points_of_another_shape_are_refused() -> None:
    model = Linear.train(*_task(40, 0), None, StudentOptions(2))
    with pytest.raises(ValueError, match="the model takes"):
        model.scores(np.zeros((2, 21), np.float32))
