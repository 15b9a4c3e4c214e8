"""Labelled points, checked once where they enter."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from mpc_vote.data import identity
from mpc_vote.data.identity import IdentityArray

FloatArray = npt.NDArray[np.float32]
PointArray = npt.NDArray[Any]
"""float32, or uint8."""
LabelArray = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Dataset:
    """Points `x` of shape (n, ...) with labels `y` in 0..classes-1; n may be 0.

    Points are float32, or uint8 where they are pictures or texts as they travel.
    With several attributes to a point, `y` is (n, classes) of 0 and 1. Records that have
    identifiers of their own are known by them, others by their content.
    """

    name: str
    x: PointArray
    y: LabelArray
    classes: int
    named: IdentityArray | None = None

    def __post_init__(self) -> None:
        check_points(self.x)
        check = check_attributes if self.multi_label else check_labels
        check(self.y, self.classes)
        if len(self.x) != len(self.y):
            raise ValueError(f"there are {len(self.x)} points but {len(self.y)} labels")
        if self.named is not None and len(self.named) != len(self.x):
            raise ValueError(f"there are {len(self.x)} points but {len(self.named)} names")

    def __len__(self) -> int:
        return len(self.y)

    @property
    def multi_label(self) -> bool:
        """Whether a point has attributes instead of one class."""
        return self.y.ndim == 2

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one point."""
        return tuple(self.x.shape[1:])

    def take(self, rows: npt.NDArray[np.int64], name: str | None = None) -> Dataset:
        """The chosen rows, copied, under a new name where one is given."""
        named = None if self.named is None else self.named[rows]
        return replace(self, name=name or self.name, x=self.x[rows], y=self.y[rows], named=named)

    def identities(self) -> IdentityArray:
        """Which records these are, in whatever file they come again."""
        return identity.of_content(self.x) if self.named is None else self.named


def check_points(x: PointArray) -> None:
    """Refuse anything but bytes or finite float32, of at least one dimension and one feature."""
    if x.dtype not in (np.float32, np.uint8):
        raise ValueError(f"points must be float32 or uint8, got {x.dtype}")
    if x.ndim < 2 or 0 in x.shape[1:]:
        raise ValueError(f"points must have shape (n, ...) with features, got {x.shape}")
    if not np.isfinite(x).all():
        row = int(np.flatnonzero(~np.isfinite(x.reshape(len(x), -1)).all(axis=1))[0])
        raise ValueError(f"point {row} holds NaN or infinity")


def check_labels(y: LabelArray, classes: int) -> None:
    """Refuse anything but a vector of int64 labels in 0..classes-1, with at least two classes."""
    if classes < 2:
        raise ValueError(f"at least two classes are needed, got {classes}")
    if y.dtype != np.int64:
        raise ValueError(f"labels must be int64, got {y.dtype}")
    if y.ndim != 1:
        raise ValueError(f"labels must be a vector, got shape {y.shape}")
    outside = np.flatnonzero((y < 0) | (y >= classes))
    if len(outside):
        row = int(outside[0])
        raise ValueError(f"label {int(y[row])} of point {row} is not in 0..{classes - 1}")


def check_attributes(y: LabelArray, classes: int) -> None:
    """Refuse anything but int64 rows of 0 and 1, one column per attribute."""
    if y.dtype != np.int64 or y.ndim != 2 or y.shape[1] != classes or classes < 1:
        raise ValueError(
            f"attributes must be int64 of shape (n, {classes}), got {y.dtype} {y.shape}"
        )
    if ((y != 0) & (y != 1)).any():
        raise ValueError("attributes must be 0 or 1")
