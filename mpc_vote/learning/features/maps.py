"""Fixed feature maps for nearest neighbours: no parameter is learnt, so using one costs no privacy.

`strokes` is for images of handwriting (bright ink on a dark background): it normalises slant and
size, then takes soft histograms of gradient directions on a grid. Neighbours are then of one class
far more often than in pixels, which is what the margins of a vote are made of.

The privacy of a vote by neighbours rests on this: the features of a point never depend on the other
points of a batch, not even in their last bit. Sums and products of matrices may round by where a
row lies in its batch, so they are done point by point. Finite points have finite features.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from mpc_vote.data.dataset import FloatArray, PointArray

FeatureMap = Callable[[PointArray], FloatArray]
"""Points as they travel, (n, ...), to vectors (n, width)."""

_DIRECTIONS = 12
_WIDTH = 0.9
_CELL = 4
_TALL, _WIDE, _ZOOM_LIMIT = 5.2 / 28, 4.0 / 28, 0.35
# Larger images are scaled by a power of two, which rounds nothing, before anything can overflow.
_LARGE, _SHRINK = np.float32(2.0**64), np.float32(2.0**-64)


def pixels(points: PointArray) -> FloatArray:
    """Points as numbers: bytes of pictures become 0 to 1, others stay as they are."""
    if points.dtype != np.uint8:
        return points.astype(np.float32, copy=False)
    return points.astype(np.float32) / np.float32(255)


def raw(points: PointArray) -> FloatArray:
    """The points themselves, as vectors."""
    vectors = pixels(points).reshape(len(points), math.prod(points.shape[1:]))
    return np.ascontiguousarray(vectors, dtype=np.float32)


def strokes(images: PointArray) -> FloatArray:
    """Unit vectors of the directions of strokes in images (n, h, w) or (n, channels, h, w)."""
    images = pixels(images)
    if images.ndim not in (3, 4) or min(images.shape[-2:]) < _CELL:
        raise ValueError(
            f"strokes needs images of at least {_CELL}x{_CELL} pixels, got points of shape "
            f"{images.shape[1:]}"
        )
    each = [_directions(_normalise(_grey(images[at : at + 1]))) for at in range(len(images))]
    return np.concatenate(each) if each else _directions(_grey(images))


def unit(points: PointArray) -> FloatArray:
    """The points as vectors of length 1, where only their direction says something; zero stays."""
    vectors = raw(points).astype(np.float64)
    squares = vectors**2
    # Row by row: a sum over an axis may be cut into blocks by where a row lies in its batch.
    lengths = np.sqrt(np.array([row.sum() for row in squares]))[:, None]
    return np.ascontiguousarray(vectors / np.where(lengths > 0, lengths, 1), dtype=np.float32)


FEATURE_MAPS: dict[str, FeatureMap] = {"raw": raw, "strokes": strokes, "unit": unit}


def feature_map(name: str) -> FeatureMap:
    """The map of this name."""
    try:
        return FEATURE_MAPS[name]
    except KeyError:
        known = ", ".join(FEATURE_MAPS)
        raise ValueError(f"feature map {name!r} is unknown; choose one of: {known}") from None


def _grey(images: FloatArray) -> FloatArray:
    """Images without channels, contiguous and of a size that has room for what is done to them."""
    images = np.ascontiguousarray(images, dtype=np.float32)
    if images.size and np.abs(images).max() > _LARGE:
        images = images * _SHRINK
    return images if images.ndim == 3 else images.mean(axis=1, dtype=np.float32)


def _normalise(images: FloatArray) -> FloatArray:
    """Centre the ink, take out its slant, bring its height and width halfway to a common size."""
    count, height, width = images.shape
    rows, columns = np.arange(height), np.arange(width)
    ink = np.maximum(images, 0).astype(np.float64)
    total = ink.sum(axis=(1, 2)) + 1e-9
    row_ink, column_ink = ink.sum(axis=2), ink.sum(axis=1)
    row_mean = (row_ink * rows).sum(axis=1) / total
    column_mean = (column_ink * columns).sum(axis=1) / total
    row_off, column_off = rows - row_mean[:, None], columns - column_mean[:, None]
    tall = (row_ink * row_off**2).sum(axis=1) / total + 1e-6
    slant = np.einsum("nhw,nh,nw->n", ink, row_off, column_off) / total / tall
    wide = (column_ink * column_off**2).sum(axis=1) / total - slant**2 * tall
    zoom_row = _zoom(tall, _TALL * height)[:, None, None]
    zoom_column = _zoom(wide, _WIDE * width)[:, None, None]
    from_row = zoom_row * (rows - (height - 1) / 2)[:, None]
    from_column = zoom_column * (columns - (width - 1) / 2) + slant[:, None, None] * from_row
    return _sample(
        ink,
        np.broadcast_to(from_row + row_mean[:, None, None], (count, height, width)),
        from_column + column_mean[:, None, None],
    )


def _zoom(variance: npt.NDArray[np.float64], target: float) -> npt.NDArray[np.float64]:
    """The square root of the ratio of spreads: half of a full normalisation keeps 1 unlike 0."""
    ratio = np.sqrt(np.sqrt(np.maximum(variance, 1e-3)) / target)
    return np.asarray(np.clip(ratio, 1 - _ZOOM_LIMIT, 1 + _ZOOM_LIMIT))


def _sample(
    images: npt.NDArray[np.float64],
    row: npt.NDArray[np.float64],
    column: npt.NDArray[np.float64],
) -> FloatArray:
    """Bilinear values at fractional positions; outside an image there is no ink."""
    row, column = np.clip(row, -1, images.shape[1]), np.clip(column, -1, images.shape[2])
    top, left = np.floor(row).astype(np.int64), np.floor(column).astype(np.int64)
    down, right = row - top, column - left
    padded = _framed(images, 2)
    image = np.arange(len(images))[:, None, None]
    upper = (
        padded[image, top + 1, left + 1] * (1 - right) + padded[image, top + 1, left + 2] * right
    )
    lower = (
        padded[image, top + 2, left + 1] * (1 - right) + padded[image, top + 2, left + 2] * right
    )
    return np.asarray(upper * (1 - down) + lower * down, dtype=np.float32)


def _directions(images: FloatArray) -> FloatArray:
    """Gradient strength by direction and cell; the root evens out strong and weak strokes."""
    padded = _framed(images, 1)
    across = padded[:, 1:-1, 2:] - padded[:, 1:-1, :-2]
    down = padded[:, 2:, 1:-1] - padded[:, :-2, 1:-1]
    strength = np.hypot(across, down)
    angle = (np.arctan2(down, across) * (_DIRECTIONS / (2 * np.pi))) % _DIRECTIONS
    distance = np.abs(angle[:, None] - np.arange(_DIRECTIONS, dtype=np.float32)[:, None, None])
    distance = np.minimum(distance, _DIRECTIONS - distance)
    maps = strength[:, None] * np.maximum(0, 1 - distance / _WIDTH)
    by_row, by_column = (_cells(size) for size in images.shape[1:])
    cells = np.sqrt(by_row @ maps @ by_column.T)
    cells = cells.reshape(len(images), math.prod(cells.shape[1:]))
    norm = np.linalg.norm(cells, axis=1, keepdims=True) + 1e-6
    return np.ascontiguousarray(cells / norm, dtype=np.float32)


def _framed(images: npt.NDArray[Any], after: int) -> npt.NDArray[Any]:
    """Images with one empty pixel before, and so many after, in both directions."""
    count, height, width = images.shape
    framed = np.zeros((count, height + 1 + after, width + 1 + after), images.dtype)
    framed[:, 1 : height + 1, 1 : width + 1] = images
    return framed


@cache
def _cells(size: int) -> FloatArray:
    """Triangular weights of pixels in overlapping cells."""
    centres = np.arange(_CELL / 2, size, _CELL)[:, None]
    weights = np.maximum(0, 1 - np.abs(np.arange(size) + 0.5 - centres) / _CELL)
    weights = weights.astype(np.float32)
    weights.flags.writeable = False
    return weights
