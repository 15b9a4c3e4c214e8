"""Pictures of any size come to one frame, and keep what they show."""

from __future__ import annotations

import numpy as np
import pytest

from mpc_vote.data import Dataset, load_embedded
from mpc_vote.data.images import frame_like_mnist, resize


def _pictures(x: np.ndarray) -> Dataset:
    return Dataset("pictures", x.astype(np.float32), np.zeros(len(x), np.int64), 2)


def _centres(x: np.ndarray) -> np.ndarray:
    places = np.arange(x.shape[1])
    mass = x.sum(axis=(1, 2))
    return np.stack([x.sum(axis=2) @ places / mass, x.sum(axis=1) @ places / mass], axis=1)


@pytest.mark.parametrize("side", [16, 28, 32])
def test_resizing_keeps_range_brightness_and_labels(side: int) -> None:
    pictures = _pictures(np.random.default_rng(0).random((5000, side, side)) > 0.5)
    made = resize(pictures)
    assert made.shape == (28, 28)
    assert made.x.dtype == np.float32
    assert made.x.min() >= 0.0
    assert made.x.max() <= 1.0
    assert made.x.mean() == pytest.approx(pictures.x.mean(), abs=0.01)
    assert (made.y == pictures.y).all()
    if side == 28:
        assert np.allclose(made.x, pictures.x)


def test_resizing_treats_every_picture_by_itself() -> None:
    pictures = _pictures(np.random.default_rng(0).random((4200, 16, 16)))
    alone = resize(pictures.take(np.array([4150])))
    assert np.allclose(resize(pictures).x[4150], alone.x[0], atol=1e-6)


def test_a_digit_is_framed_with_its_mass_in_the_middle() -> None:
    x = np.zeros((2, 16, 16))
    x[0, 3:9, 4:7] = 1
    x[1, 8:14, 6:9] = 0.5
    made = frame_like_mnist(_pictures(x))
    assert made.shape == (28, 28)
    assert np.abs(_centres(made.x) - 14).max() <= 0.51
    assert made.x[1].max() == pytest.approx(0.5, abs=0.05)


def test_a_frame_cuts_nothing_off() -> None:
    x = np.zeros((1, 20, 20))
    x[0, 0, :] = x[0, :, 0] = 1
    made = frame_like_mnist(_pictures(x))
    assert made.x.sum() == pytest.approx(x.sum())


def test_an_empty_picture_stays_empty() -> None:
    assert not frame_like_mnist(_pictures(np.zeros((1, 16, 16)))).x.any()


def test_framing_undoes_how_another_set_was_framed() -> None:
    """Digits cut to their box and shrunk, as USPS's are, come back close to where they were."""
    digits = load_embedded().take(np.arange(0, 5000, 50))
    cut = resize(_pictures(digits.x[:, 4:24, 4:24]), 16)

    def distance(made: Dataset) -> float:
        return float(np.square(made.x - digits.x).sum(axis=(1, 2)).mean())

    assert distance(frame_like_mnist(cut)) < 0.3 * distance(resize(cut))


def test_only_grey_pictures_are_taken() -> None:
    with pytest.raises(ValueError, match=r"pictures: only grey pictures .* \(3, 8, 8\)"):
        resize(_pictures(np.zeros((2, 3, 8, 8))))
    with pytest.raises(ValueError, match="only grey"):
        frame_like_mnist(_pictures(np.zeros((2, 8))))
    with pytest.raises(ValueError, match="at least 1"):
        resize(_pictures(np.zeros((2, 8, 8))), 0)
