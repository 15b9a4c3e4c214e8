"""Ridge: the least squares it promises, by either system, and scores that classify."""

from __future__ import annotations

import numpy as np
import pytest

from mpc_vote.learning.nets.ridge import Ridge, one_hot


def _clumps(each: int, seed: int, width: int = 6) -> tuple[np.ndarray, np.ndarray]:
    """Points of three classes; the classes are the same for every seed."""
    centres = np.random.default_rng(99).normal(size=(3, width)) * 3
    y = np.repeat(np.arange(3), each)
    x = centres[y] + np.random.default_rng(seed).normal(size=(len(y), width))
    return x.astype(np.float32), y


def _loss(model: Ridge, x: np.ndarray, targets: np.ndarray, decay: float) -> float:
    errors = (model.scores(x) - targets) ** 2
    return float(errors.sum() + decay * (model.weight**2).sum())


@pytest.mark.parametrize("width", [4, 60])
def test_no_other_model_near_it_has_a_lower_loss(width: int) -> None:
    x, y = _clumps(8, 0, width)
    targets = one_hot(y, 3)
    model = Ridge.fit(x, targets, 0.7)
    least = _loss(model, x, targets, 0.7)
    rng = np.random.default_rng(1)
    for size in (1e-3, 1e-1):
        for _ in range(20):
            other = Ridge(
                model.weight + size * rng.normal(size=model.weight.shape),
                model.offset + size * rng.normal(size=3),
            )
            assert _loss(other, x, targets, 0.7) > least


def test_both_systems_give_the_same_model() -> None:
    x, y = _clumps(4, 0, 11)  # 12 rows, 11 features: solved by features
    fewer = Ridge.fit(x, one_hot(y, 3), 0.5)
    padded = Ridge.fit(np.pad(x, ((0, 0), (0, 30))), one_hot(y, 3), 0.5)  # solved by rows
    assert np.allclose(fewer.weight, padded.weight[:11])
    assert np.allclose(padded.weight[11:], 0)
    assert np.allclose(fewer.offset, padded.offset)


def test_classes_are_learnt_and_an_absent_one_is_never_predicted() -> None:
    x, y = _clumps(30, 0)
    model = Ridge.fit(x, one_hot(y, 5), 1.0)
    new, truth = _clumps(200, 1)
    assert np.mean(model.scores(new).argmax(axis=1) == truth) > 0.9
    wild = np.random.default_rng(3).normal(size=(500, 6)).astype(np.float32) * 100
    assert set(model.scores(wild).argmax(axis=1).tolist()) <= {0, 1, 2}


def test_attributes_are_scores_above_one_half() -> None:
    model = Ridge(np.array([[1.0, -1.0]]), np.array([0.0, 1.0]))
    x = np.array([[0.2], [0.5], [0.8]], dtype=np.float32)
    assert model.attributes(x).tolist() == [[0, 1], [0, 0], [1, 0]]


def test_decay_shrinks_to_the_share_of_each_target_and_offsets_are_free() -> None:
    x, y = _clumps(10, 0)
    model = Ridge.fit(x + 1000, one_hot(y, 3), 1e9)
    assert np.allclose(model.scores(x + 1000), 1 / 3, atol=1e-3)


def test_arithmetic_is_in_doubles_and_repeats_itself() -> None:
    x, y = _clumps(10, 0)
    first, second = (Ridge.fit(x, one_hot(y, 3), 0.1) for _ in range(2))
    assert first.weight.dtype == first.offset.dtype == first.scores(x).dtype == np.float64
    assert np.array_equal(first.weight, second.weight)
    assert first.attributes(x).dtype == np.int64


def test_what_cannot_be_learnt_from_is_refused() -> None:
    x, y = _clumps(2, 0)
    targets = one_hot(y, 3)
    with pytest.raises(ValueError, match="targets"):
        Ridge.fit(x, targets[:-1], 1.0)
    with pytest.raises(ValueError, match="targets"):
        Ridge.fit(x, y, 1.0)
    with pytest.raises(ValueError, match="finite"):
        Ridge.fit(x, targets * np.nan, 1.0)
    for decay in (0.0, -1.0, np.inf, np.nan):
        with pytest.raises(ValueError, match="decay"):
            Ridge.fit(x, targets, decay)
    with pytest.raises(ValueError, match="no point"):
        Ridge.fit(x[:0], targets[:0], 1.0)
    with pytest.raises(ValueError, match="features"):
        Ridge.fit(x, targets, 1.0).scores(x[:, :2])
