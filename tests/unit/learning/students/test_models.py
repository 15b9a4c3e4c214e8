"""Local models and the student learn, repeat themselves for a seed, and survive their files."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from mpc_vote.learning.nets.networks import Architecture
from mpc_vote.learning.students.supervised import Student, train_student
from mpc_vote.learning.voters.local_model import ModelVoter


def _blobs(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 3, count)
    centres = np.array([[0, 0, 500], [4, 0, 500], [0, 4, 500]], np.float32)
    return (centres[labels] + rng.normal(size=(count, 3))).astype(np.float32), labels


def _bars(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Images of an upright or a lying bar."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 2, count)
    images = rng.normal(0, 0.1, (count, 16, 16)).astype(np.float32)
    for image, label, place in zip(images, labels, rng.integers(5, 10, count), strict=True):
        bar = image if label else image.T
        bar[place : place + 2, 3:13] += 1
    return images, labels


@pytest.fixture(scope="module")
def student() -> Student:
    x, y = _blobs(150, 0)
    wrong = np.random.default_rng(1).random(150) < 0.1
    return train_student(x, np.where(wrong, (y + 1) % 3, y), 3, 5, validation=_blobs(90, 2))


@pytest.mark.parametrize(
    ("shape", "kind"),
    [
        ((28, 28), "cnn"),
        ((3, 32, 32), "cnn"),
        ((8, 8), "mlp"),
        ((20,), "mlp"),
        ((40, 16, 16), "mlp"),
    ],
)
def test_the_architecture_follows_the_shape(shape: tuple[int, ...], kind: str) -> None:
    made = Architecture.for_shape(shape, 10)
    assert made.kind == kind
    assert Architecture.from_json(made.to_json()) == made


def test_a_local_model_learns_images_and_repeats_itself() -> None:
    x, y = _bars(96, 0)
    losses: list[float] = []
    first = ModelVoter.train(x, y, 2, 3, on_epoch=lambda done, total, loss: losses.append(loss))
    test_x, test_y = _bars(60, 1)
    assert np.mean(first.predict(test_x) == test_y) > 0.9
    assert losses[-1] < losses[0]
    scores = first.scores(test_x)
    assert np.allclose(scores.sum(axis=1), 1, atol=1e-5)
    assert np.array_equal(ModelVoter.train(x, y, 2, 3).scores(test_x), scores)
    assert not np.array_equal(ModelVoter.train(x, y, 2, 4).scores(test_x), scores)


def test_training_leaves_the_callers_generator_alone() -> None:
    x, y = _blobs(20, 0)
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    ModelVoter.train(x, y, 3, 9)
    assert torch.equal(torch.rand(3), expected)


def test_a_student_sees_through_wrong_labels(student: Student) -> None:
    x, y = _blobs(300, 3)
    assert student.agreement(x, y) > 0.9
    assert student.metrics["validation_agreement"] > 0.9
    assert {"loss", "agreement"} <= student.metrics.keys()
    assert student.predict(x).dtype == np.int64
    assert student.predict(x[:0]).shape == (0,)


def test_progress_counts_to_the_end() -> None:
    x, y = _blobs(10, 0)
    steps: list[tuple[int, int]] = []
    train_student(x, y, 3, 0, on_progress=lambda done, total, _: steps.append((done, total)))
    total = steps[-1][1]
    assert steps == [(done, total) for done in range(1, total + 1)]


def test_a_student_survives_its_file(student: Student, tmp_path: Path) -> None:
    path = tmp_path / "student.safetensors"
    student.save(path, {"epsilon": "2.7"})
    read = Student.load(path)
    x, _ = _blobs(50, 4)
    assert np.array_equal(read.scores(x), student.scores(x))
    assert read.metadata == {"epsilon": "2.7"}
    assert (read.shape, read.classes) == ((3,), 3)
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_metadata_must_be_strings_and_not_reserved(student: Student, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="strings"):
        student.save(tmp_path / "s", {"epsilon": cast(Any, 2.7)})
    with pytest.raises(ValueError, match="itself"):
        student.save(tmp_path / "s", {"mpc_vote.architecture": "{}"})


def test_a_missing_or_foreign_model_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="gone"):
        Student.load(tmp_path / "gone")
    (tmp_path / "text").write_text("hello")
    with pytest.raises(ValueError, match="not a safetensors file"):
        Student.load(tmp_path / "text")
    save_file({"a": torch.zeros(1)}, tmp_path / "other")
    with pytest.raises(ValueError, match="not of a student"):
        Student.load(tmp_path / "other")


@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        ("mean", torch.zeros(4), "array mean is"),
        ("mean", torch.zeros(3, dtype=torch.float64), "array mean is"),
        ("mean", torch.full((3,), torch.nan), "NaN"),
        ("extra", torch.zeros(1), "do not fit the architecture: extra"),
    ],
)
def test_wrong_arrays_are_refused(
    student: Student, tmp_path: Path, name: str, array: torch.Tensor, message: str
) -> None:
    path = tmp_path / "student"
    student.save(path, {})
    arrays = load_file(path) | {name: array}
    save_file(arrays, path, {"mpc_vote.architecture": Architecture("mlp", (3,), 3, 128).to_json()})
    with pytest.raises(ValueError, match=message):
        Student.load(path)


def test_a_small_file_takes_no_memory_for_the_large_network_that_it_names(tmp_path: Path) -> None:
    """Its arrays would take 64 GiB, and are not there."""
    large = Architecture("mlp", (1 << 22,), 2, 1 << 12).to_json()
    save_file({"mean": torch.zeros(1)}, tmp_path / "m", {"mpc_vote.architecture": large})
    with pytest.raises(ValueError, match="arrays do not fit the architecture"):
        Student.load(tmp_path / "m")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"kind": "mlp"}',
        '{"kind": "mlp", "shape": [-1], "classes": 3, "width": 8}',
        '{"kind": "mlp", "shape": [], "classes": 3, "width": 8}',
        '{"kind": "mlp", "shape": [3], "classes": 1, "width": 8}',
        '{"kind": "mlp", "shape": [3], "classes": 3, "width": 1e9}',
        '{"kind": "mlp", "shape": [99999999], "classes": 3, "width": 8}',
        '{"kind": "mlp", "shape": [1, 1, 1, 1, 1, 1, 1, 1, 3], "classes": 3, "width": 8}',
        '{"kind": "rnn", "shape": [3], "classes": 3, "width": 8}',
        '{"kind": "cnn", "shape": [3], "classes": 3, "width": 8}',
    ],
)
def test_impossible_architectures_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"architecture|cnn"):
        Architecture.from_json(text)


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (np.zeros((3, 2), np.float32), np.array([0, 1]), "3 points but 2 labels"),
        (np.zeros((1, 2), np.float32), np.array([0]), "at least two points"),
        (np.full((2, 2), np.nan, np.float32), np.array([0, 1]), "NaN"),
        (np.zeros((2, 2), np.float32), np.array([0, 3]), "label 3"),
    ],
)
def test_bad_training_data_is_refused(x: np.ndarray, y: np.ndarray, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        train_student(x, y, 3, 0)


def test_a_model_refuses_points_of_another_shape(student: Student) -> None:
    with pytest.raises(ValueError, match="the model takes"):
        student.predict(np.zeros((2, 4), np.float32))
