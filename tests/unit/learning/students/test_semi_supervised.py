"""Few noisy labels reach all public points, wrong ones are doubted, and a student learns it all."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from mpc_vote.data.embedded import load_embedded
from mpc_vote.learning.features.maps import strokes
from mpc_vote.learning.query_selection import representatives
from mpc_vote.learning.students.semi_supervised import SemiSupervisedRecipe, train_semi_supervised
from mpc_vote.learning.students.spreading import PropagatedLabels, propagate
from mpc_vote.learning.students.supervised import Student

_QUICK = SemiSupervisedRecipe(propagate=True, consistency=True, members=1, steps=120)


def _rings(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Two rings, one inside the other: only along a ring do neighbours have one class."""
    rng = np.random.default_rng(seed)
    labels = np.arange(count) % 2
    angle, radius = rng.random(count) * 2 * np.pi, 1.0 + labels + rng.normal(0, 0.05, count)
    points = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1)
    return points.astype(np.float32), labels


def _clumps(
    count: int, seed: int, classes: int = 4, spread: float = 1.3
) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, count)
    centres = np.random.default_rng(99).normal(size=(classes, 20)) * spread
    return (centres[labels] + rng.normal(size=(count, 20))).astype(np.float32), labels


def _spoil(labels: np.ndarray, rows: int, classes: int) -> np.ndarray:
    spoiled = labels.copy()
    spoiled[:rows] = (spoiled[:rows] + 1) % classes
    return spoiled


@pytest.fixture(scope="module")
def digits() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    data = load_embedded()
    rows = np.random.default_rng(0).permutation(len(data))
    public, test = rows[:800], rows[800:1500]
    return data.x[public], data.y[public], data.x[test], data.y[test]


def test_labels_follow_the_shape_of_the_data_and_not_the_nearest_label() -> None:
    points, truth = _rings(400, 0)
    asked = np.array([0, 1, 2, 3], dtype=np.int64)
    spread = propagate(points, asked, truth[asked], 2)
    assert np.mean(spread.scores.argmax(axis=1) == truth) == 1.0
    nearest = np.linalg.norm(points[:, None] - points[asked], axis=2).argmin(axis=1)
    assert np.mean(truth[asked][nearest] == truth) < 0.8


@pytest.mark.parametrize("bad", [12, 24])
def test_wrong_labels_are_found_and_counted(bad: int) -> None:
    points, truth = _clumps(600, 1, spread=2.0)
    asked = np.arange(80, dtype=np.int64)
    spread = propagate(points, asked, _spoil(truth[asked], bad, 4), 4)
    assert np.array_equal(spread.cleaned.argmax(axis=1), truth[asked])
    assert spread.wrong == pytest.approx(bad / 80, abs=0.02)
    assert np.mean(spread.scores.argmax(axis=1) == truth) > 0.99


def test_wrong_labels_of_classes_that_overlap_are_mostly_found() -> None:
    points, truth = _clumps(600, 1)
    asked = np.arange(80, dtype=np.int64)
    spread = propagate(points, asked, _spoil(truth[asked], 24, 4), 4)
    assert np.mean(spread.cleaned.argmax(axis=1) == truth[asked]) > 0.95
    assert spread.wrong == pytest.approx(24 / 80, abs=0.05)
    assert np.mean(spread.scores.argmax(axis=1) == truth) > 0.98


def test_a_class_with_more_labels_does_not_flood_the_others() -> None:
    truth = np.arange(600) % 2
    points = np.random.default_rng(0).normal(size=(600, 2)).astype(np.float32)
    points[:, 0] += 4 * truth
    common, rare = np.flatnonzero(truth == 0)[:60], np.flatnonzero(truth == 1)[:6]
    asked = np.concatenate([common, rare]).astype(np.int64)
    spread = propagate(points, asked, truth[asked], 2)
    assert np.mean(spread.scores.argmax(axis=1) == truth) > 0.94


def test_points_that_no_label_reaches_stay_unknown() -> None:
    points, truth = _clumps(200, 4, classes=2)
    far = np.concatenate([points, points[:50] + 40]).astype(np.float32)
    asked = np.arange(20, dtype=np.int64)
    scores = propagate(far, asked, truth[asked], 2).scores
    assert np.all(scores[200:] == 0)
    np.testing.assert_allclose(scores[:200].sum(axis=1), 1, rtol=1e-5)
    student = train_semi_supervised(far, asked, truth[asked], 2, 0, _QUICK)
    assert student.agreement(points, truth) > 0.9


def test_the_order_of_points_does_not_matter_and_equal_points_do_no_harm() -> None:
    points, truth = _clumps(150, 5)
    points[100:110] = points[100]
    order = np.random.default_rng(1).permutation(150)
    asked = np.arange(30, dtype=np.int64)
    moved = np.argsort(order)[asked]

    def close(a: PropagatedLabels, b: PropagatedLabels) -> None:
        np.testing.assert_allclose(a.cleaned, b.cleaned, atol=1e-3)
        assert np.mean(np.abs(a.scores - b.scores)) < 1e-3

    plain = propagate(points, asked, truth[asked], 4)
    mixed = propagate(points[order], moved, truth[asked], 4)
    close(plain, mixed._replace(scores=mixed.scores[np.argsort(order)]))


def test_a_class_with_one_label_keeps_it() -> None:
    for seed in range(5):
        points, truth = _clumps(400, seed)
        asked = np.array([np.flatnonzero(truth == label)[0] for label in range(4)])
        spread = propagate(points, asked, truth[asked], 4)
        assert np.array_equal(spread.cleaned.argmax(axis=1), truth[asked])
        assert np.mean(spread.scores.argmax(axis=1) == truth) > 0.97


def test_propagation_makes_up_for_few_and_wrong_labels_of_real_digits(
    digits: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray],
) -> None:
    x, y, test_x, test_y = digits
    features = strokes(x)
    asked = representatives(features, 40, 0)
    labels = _spoil(y[asked], 2, 10)

    def accuracy(propagate: bool) -> float:
        recipe = SemiSupervisedRecipe(propagate, consistency=propagate, members=1, steps=120)
        student = train_semi_supervised(x, asked, labels, 10, 3, recipe, features=features)
        return student.agreement(test_x, test_y)

    assert accuracy(True) > max(0.92, accuracy(False) + 0.04)


@pytest.mark.parametrize("seed", range(3))
def test_consistency_learns_from_points_without_a_label(seed: int) -> None:
    x, y = _clumps(500, seed, spread=0.8)
    asked = np.arange(16, dtype=np.int64)
    alone, consistent = (
        train_semi_supervised(
            x, asked, y[asked], 4, seed, SemiSupervisedRecipe(False, consistency, 1, 200)
        )
        for consistency in (False, True)
    )
    test = _clumps(500, 50 + seed, spread=0.8)
    assert consistent.agreement(*test) > alone.agreement(*test) + 0.05


def test_an_ensemble_becomes_one_network_that_can_be_stored(tmp_path: Path) -> None:
    x, y = _clumps(200, 6)
    asked = np.arange(24, dtype=np.int64)
    seen: list[tuple[int, int]] = []
    student = train_semi_supervised(
        x,
        asked,
        _spoil(y[asked], 2, 4),
        4,
        0,
        SemiSupervisedRecipe(True, True, members=2, steps=100),
        on_progress=lambda done, total, _: seen.append((done, total)),
        validation=_clumps(300, 7),
    )
    assert student.metrics["validation_agreement"] > 0.95
    assert 0.02 <= student.metrics["wrong_labels"] < 0.2
    assert seen == [(done, 60) for done in range(1, 61)]
    student.save(tmp_path / "model.safetensors", {})
    again = Student.load(tmp_path / "model.safetensors")
    np.testing.assert_array_equal(again.scores(x), student.scores(x))


def test_a_student_of_images_can_be_stored(
    tmp_path: Path, digits: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
) -> None:
    x, y = digits[0][:60], digits[1][:60]
    asked = np.arange(20, dtype=np.int64)
    student = train_semi_supervised(
        x, asked, y[:20], 10, 0, SemiSupervisedRecipe(False, False, 1, 20), features=strokes(x)
    )
    student.save(tmp_path / "model.safetensors", {})
    again = Student.load(tmp_path / "model.safetensors")
    np.testing.assert_allclose(again.scores(x), student.scores(x), atol=1e-6)


def test_training_repeats_itself_and_leaves_global_state_alone() -> None:
    x, y = _clumps(120, 8)
    asked = np.arange(20, dtype=np.int64)
    torch.manual_seed(3)
    state, threads = torch.random.get_rng_state(), torch.get_num_threads()
    students = [train_semi_supervised(x, asked, y[asked], 4, seed, _QUICK) for seed in (1, 1, 2)]
    first, same, other = (student.scores(x) for student in students)
    np.testing.assert_array_equal(first, same)
    assert not np.array_equal(first, other)
    assert torch.equal(state, torch.random.get_rng_state())
    assert threads == torch.get_num_threads()


def test_one_label_of_one_class_is_enough_to_train_on() -> None:
    x, y = _clumps(40, 9)
    student = train_semi_supervised(
        x, np.array([5]), y[[5]], 4, 0, SemiSupervisedRecipe(False, False, 1, 20)
    )
    assert student.predict(x[[5]])[0] == y[5]


@pytest.mark.parametrize(
    ("asked", "labels", "match"),
    [
        ([0, 0], [1, 1], "distinct and in 0..9"),
        ([0, 10], [1, 1], "distinct and in 0..9"),
        ([-1, 3], [1, 1], "distinct and in 0..9"),
        ([1, 2], [1], "needs its label"),
        ([], [], "needs its label"),
        ([1, 2], [1, 4], "is not in 0..3"),
    ],
)
def test_labels_that_do_not_fit_are_refused(
    asked: list[int], labels: list[int], match: str
) -> None:
    x, _ = _clumps(10, 0)
    rows, given = np.array(asked, dtype=np.int64), np.array(labels, dtype=np.int64)
    with pytest.raises(ValueError, match=match):
        train_semi_supervised(x, rows, given, 4, 0, _QUICK)
    with pytest.raises(ValueError, match=match):
        propagate(x, rows, given, 4)


def test_features_and_recipes_that_make_no_sense_are_refused() -> None:
    x, y = _clumps(10, 0)
    asked = np.array([0, 1])
    with pytest.raises(ValueError, match="10 points but 9 rows of features"):
        train_semi_supervised(x, asked, y[asked], 4, 0, _QUICK, features=x[:9])
    with pytest.raises(ValueError, match="must be vectors"):
        propagate(x[:, :, None], asked, y[asked], 4)
    with pytest.raises(ValueError, match="at least two points"):
        train_semi_supervised(x[:1], asked[:1], y[:1], 4, 0, _QUICK)
    with pytest.raises(ValueError, match="at least 1 member"):
        SemiSupervisedRecipe(members=0)
    with pytest.raises(ValueError, match="at least 20 steps"):
        SemiSupervisedRecipe(steps=19)
