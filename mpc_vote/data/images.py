"""Grey pictures brought to one size, so that sets of different origin can be used together."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch.nn import functional

from mpc_vote.data.dataset import Dataset, FloatArray

_SIDE = 28
_BOX = 20
_ROWS = 4096


def resize(dataset: Dataset, side: int = _SIDE) -> Dataset:
    """Every picture at `side` x `side`, values staying in their range."""
    return replace(dataset, x=_scale(_pictures(dataset), side))


def frame_like_mnist(dataset: Dataset) -> Dataset:
    """Bright digits on black brought to 28x28 in the way that MNIST's own were made.

    A digit fills a box of 20x20 that is put where its centre of mass comes to the middle of the
    frame, as far as the box stays inside. Digits of other sets differ more by their frame than by
    their strokes: merely enlarged, USPS digits are 1.4 times MNIST's size and off their centre. The
    rule is public and looks at one picture at a time, so it costs no privacy. It makes no sense for
    photographs, whose mass is mostly background.
    """
    boxes = _scale(_pictures(dataset), _BOX)
    spare = _SIDE - _BOX
    places = np.arange(_BOX, dtype=np.float32)
    mass = np.maximum(boxes.sum(axis=(1, 2)), np.finfo(np.float32).tiny)
    framed = np.zeros((len(boxes), _SIDE, _SIDE), dtype=np.float32)
    offsets = []
    for kept in (1, 2):
        centre = boxes.sum(axis=3 - kept) @ places / mass
        offsets.append(np.clip(np.rint(_SIDE / 2 - centre), 0, spare).astype(np.int64))
    down, right = offsets
    for top in range(spare + 1):
        for left in range(spare + 1):
            rows = np.flatnonzero((down == top) & (right == left))
            framed[rows, top : top + _BOX, left : left + _BOX] = boxes[rows]
    return replace(dataset, x=framed)


def _pictures(dataset: Dataset) -> FloatArray:
    if len(dataset.shape) != 2:
        raise ValueError(
            f"{dataset.name}: only grey pictures of shape (height, width) can be resized, "
            f"got {dataset.shape}"
        )
    return dataset.x


def _scale(pictures: FloatArray, side: int) -> FloatArray:
    """Bilinear, averaging where pictures shrink; in slices, to keep the working set small."""
    if side < 1:
        raise ValueError(f"a side must be at least 1, got {side}")
    scaled = np.empty((len(pictures), side, side), dtype=np.float32)
    for start in range(0, len(pictures), _ROWS):
        some = torch.from_numpy(np.ascontiguousarray(pictures[start : start + _ROWS, None]))
        large = functional.interpolate(some, (side, side), mode="bilinear", antialias=True)
        # Rounding must not push a white pixel above white.
        scaled[start : start + _ROWS] = large[:, 0].clamp(some.min(), some.max()).numpy()
    return scaled
