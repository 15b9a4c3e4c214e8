"""Fixed feature maps: shapes, and that no image's features depend on its neighbours in a batch."""

from __future__ import annotations

import numpy as np
import pytest

from mpc_vote.learning.features.maps import FEATURE_MAPS, feature_map, raw, strokes, unit


def _images(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).random((count, 28, 28), dtype=np.float32)


def test_raw_flattens() -> None:
    assert raw(_images(3)).shape == (3, 784)


def test_strokes_are_unit_vectors_for_any_batch() -> None:
    for count in (0, 1, 65):
        features = strokes(_images(count))
        assert features.shape == (count, 12 * 7 * 7)
        assert features.dtype == np.float32
        assert np.allclose(np.linalg.norm(features, axis=1), 1, atol=1e-4)


@pytest.mark.parametrize("shape", [(28, 28), (4, 9), (40, 40), (3, 32, 32)])
@pytest.mark.parametrize("name", sorted(FEATURE_MAPS))
def test_a_point_has_the_same_features_in_any_batch(name: str, shape: tuple[int, ...]) -> None:
    """Bit for bit, and however the batch lies in memory."""
    images = np.random.default_rng(1).random((70, *shape), dtype=np.float32)
    images[3] *= np.float32(1e38)
    features = feature_map(name)
    together = features(images)
    assert np.array_equal(features(np.asfortranarray(images)), together)
    for row in range(0, 70, 7):
        others = np.random.default_rng(row).permutation(70)
        place = int(np.flatnonzero(others == row)[0])
        assert np.array_equal(features(images[others])[place], together[row])
        assert np.array_equal(features(images[row:])[0], together[row])
        assert np.array_equal(features(images[row : row + 1])[0], together[row])


@pytest.mark.parametrize("shape", [(28, 28), (3, 8, 8)])
@pytest.mark.parametrize("name", ["strokes", "unit"])
def test_the_size_of_a_point_neither_overflows_nor_matters(
    name: str, shape: tuple[int, ...]
) -> None:
    points = np.random.default_rng(2).random((6, *shape), dtype=np.float32)
    features = feature_map(name)
    usual = features(points)
    for size in (1e9, 1e12, 1e19, 1e25, 3.4e38):
        assert np.allclose(features(points * np.float32(size)), usual, atol=1e-3)
    for size in (1e-45, 1e-38):
        assert np.isfinite(features(points * np.float32(size))).all()
    assert np.isfinite(features((points - 1) * np.float32(3.4e38))).all()


def test_channels_are_averaged() -> None:
    images = _images(2)
    assert np.array_equal(strokes(np.stack([images] * 4, axis=1)), strokes(images))


def test_slant_is_taken_out() -> None:
    upright, slanted = np.zeros((2, 28, 28), np.float32)
    for row in range(4, 24):
        upright[row, 12:15] = 1
        left = 13 + (14 - row) // 3
        slanted[row, left - 1 : left + 2] = 1
    pair = np.stack([upright, slanted])
    pixels, features = raw(pair), strokes(pair)
    pixels /= np.linalg.norm(pixels, axis=1, keepdims=True)
    assert features[0] @ features[1] > 0.75 > 0.5 > pixels[0] @ pixels[1]


def test_blank_and_extreme_images_stay_finite() -> None:
    images = np.stack([np.zeros((28, 28)), np.full((28, 28), 1e6), np.full((28, 28), -1.0)])
    assert np.isfinite(strokes(images.astype(np.float32))).all()


def test_unit_keeps_the_direction_and_leaves_the_length() -> None:
    points = np.array([[3, 4], [-0.3, 0.4], [0, 0], [3e38, 0], [0, 1e-40]], np.float32)
    wanted = np.array([[0.6, 0.8], [-0.6, 0.8], [0, 0], [1, 0], [0, 1]])
    assert unit(points).dtype == np.float32
    assert np.allclose(unit(points), wanted, atol=1e-6)
    assert unit(_images(2)).shape == (2, 784)
    assert unit(_images(0)).shape == (0, 784)


@pytest.mark.parametrize("width", [3, 800, 2048])
def test_a_point_has_the_same_unit_vector_in_any_batch(width: int) -> None:
    points = np.random.default_rng(1).random((70, width), dtype=np.float32)
    together = unit(points)
    assert np.array_equal(unit(np.asfortranarray(points)), together)
    for row in range(70):
        assert np.array_equal(unit(points[row:])[0], together[row])
        assert np.array_equal(unit(points[row : row + 1])[0], together[row])


@pytest.mark.parametrize("shape", [(2, 5), (2, 3, 3), (2, 1, 1, 4, 4)])
def test_strokes_refuse_what_is_no_image(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="strokes needs images"):
        strokes(np.zeros(shape, np.float32))


def test_an_unknown_map_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="raw, strokes"):
        feature_map("hog")
