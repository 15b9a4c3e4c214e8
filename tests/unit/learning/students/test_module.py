"""Networks of one's own as students."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from mpc_vote.learning.students import StudentOptions, load_model
from mpc_vote.learning.students.module import from_module


def _build(shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(math.prod(shape), 16), nn.ReLU(), nn.Linear(16, classes)
    )


def _rings(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 2, count)
    angle = 2 * np.pi * rng.random(count)
    radius = 1 + y + rng.normal(0, 0.1, count)
    return np.stack([radius * np.cos(angle), radius * np.sin(angle)], 1).astype(np.float32), y


def test_a_network_learns_and_survives_its_file(tmp_path: Path) -> None:
    x, y = _rings(200, 0)
    told: list[tuple[int, int]] = []
    options = StudentOptions(2, 3, "", lambda step, steps, _: told.append((step, steps)))
    student = from_module(_build, steps=300, rate=2e-2)
    torch.manual_seed(1)
    before = torch.random.get_rng_state()
    model = student.train(x, y, x[:5], options)
    assert torch.equal(before, torch.random.get_rng_state())
    new, truth = _rings(500, 1)
    assert model.agreement(new, truth) > 0.95
    assert told == [(step, 300) for step in range(1, 301)]
    assert np.array_equal(student.train(x, y, None, options).scores(new), model.scores(new))
    model.save(tmp_path / "model", {"epsilon": "2"})
    assert np.array_equal(student.load(tmp_path / "model").scores(new), model.scores(new))
    assert model.scores(new[:0]).shape == (0, 2)
    with pytest.raises(ValueError, match="the model takes"):
        model.scores(new[:, :1])


def test_it_sees_vectors_through_the_feature_map_and_images_as_they_are(tmp_path: Path) -> None:
    seen: list[tuple[int, ...]] = []

    def build(shape: tuple[int, ...], classes: int) -> nn.Module:
        seen.append(shape)
        return _build(shape, classes)

    student = from_module(build, steps=5)
    images = np.random.default_rng(0).random((10, 16, 16)).astype(np.float32)
    y = np.arange(10) % 2
    student.train(images, y, None, StudentOptions(2, 0, "strokes"))
    model = student.train(images.reshape(10, 256), y, None, StudentOptions(2, 0, "unit"))
    vectors = images.reshape(10, 256)
    np.testing.assert_allclose(model.scores(3 * vectors), model.scores(vectors), atol=1e-5)
    model.save(tmp_path / "model", {})
    student.load(tmp_path / "model")
    assert seen == [(16, 16), (256,), (256,)]


def test_a_file_alone_does_not_choose_the_code_that_reads_it(tmp_path: Path) -> None:
    model = from_module(_build, steps=1).train(*_rings(20, 0), None, StudentOptions(2))
    model.save(tmp_path / "model", {})
    with pytest.raises(ValueError, match="pass the student that made it"):
        load_model(tmp_path / "model")
    other = from_module(lambda shape, classes: nn.Linear(shape[0], classes))
    with pytest.raises(ValueError, match="those of another network"):
        other.load(tmp_path / "model")


def test_what_is_no_classifier_is_refused() -> None:
    with pytest.raises(TypeError, match="must be a function"):
        from_module(nn.Linear(2, 2).weight)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="must be positive"):
        from_module(_build, steps=0)
    student = from_module(lambda shape, classes: nn.Linear(shape[0], classes + 1), steps=1)
    with pytest.raises(ValueError, match=r"gives shape \(20, 3\) instead of \(20, 2\)"):
        student.train(*_rings(20, 0), None, StudentOptions(2))
