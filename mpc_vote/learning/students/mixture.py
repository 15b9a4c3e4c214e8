"""Several models that decide together, each by its weight."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from mpc_vote.data.dataset import FloatArray
from mpc_vote.learning.students import model_file, unpack
from mpc_vote.learning.students.lesson import Doubles
from mpc_vote.learning.students.model_file import Packed, Stored
from mpc_vote.learning.students.packed import PackedModel

_WEIGHTS = f"{model_file.OWN}weights"
_MOST = 16


class Mixture(PackedModel):
    """The mean of what its members say, by weight; all have the same classes."""

    def __init__(self, members: Sequence[PackedModel], weights: Sequence[float]) -> None:
        if not members or len(members) != len(weights) or len(members) > _MOST:
            raise ValueError(f"a mixture has 1 to {_MOST} members, each with its weight")
        if not all(math.isfinite(weight) and weight > 0 for weight in weights):
            raise ValueError(f"weights must be positive, got {list(weights)}")
        if len({member.classes for member in members}) > 1:
            raise ValueError("the members of a mixture have unlike classes")
        self._members, self._weights = tuple(members), tuple(weights)
        self.metrics = {}

    @property
    def classes(self) -> int:
        return self._members[0].classes

    def scores(self, x: FloatArray) -> Doubles:
        """Chances of classes, (rows, classes)."""
        total = np.zeros((len(x), self.classes))
        for weight, member in zip(self._weights, self._members, strict=True):
            total += weight / sum(self._weights) * _chances(member.scores(x))
        return total

    def pack(self) -> Packed:
        arrays: dict[str, torch.Tensor | npt.NDArray[Any]] = {}
        own = {model_file.READER: "mixture", _WEIGHTS: json.dumps(self._weights)}
        for place, member in enumerate(self._members):
            packed = member.pack()
            arrays |= {f"{place}.{name}": array for name, array in packed.arrays.items()}
            for key, value in packed.own.items():
                own[_key(place) + key.removeprefix(model_file.OWN)] = value
        return Packed(arrays, own)

    @classmethod
    def unpack(cls, stored: Stored) -> Mixture:
        """No member is a mixture itself."""
        try:
            weights = [float(weight) for weight in json.loads(stored.says(_WEIGHTS))]
        except (ValueError, TypeError, RecursionError) as error:
            raise ValueError(f"{stored.path}: the weights can't be read") from error
        members = [_member(stored, place) for place in range(min(_MOST, len(weights)))]
        try:
            return cls(members, weights)
        except ValueError as error:
            raise ValueError(f"{stored.path}: {error}") from error


def _key(place: int) -> str:
    return f"{model_file.OWN}{place}."


def _member(stored: Stored, place: int) -> PackedModel:
    """The member whose arrays and words begin with its place."""
    arrays = {
        name.removeprefix(f"{place}."): array
        for name, array in stored.arrays.items()
        if name.startswith(f"{place}.")
    }
    own = {
        model_file.OWN + key.removeprefix(_key(place)): value
        for key, value in stored.own.items()
        if key.startswith(_key(place))
    }
    reader = own.get(model_file.READER)
    if reader is None:
        raise ValueError(f"{stored.path}: member {place} is missing")
    if reader == "mixture":
        raise ValueError(f"{stored.path}: a mixture can't be a member of another")
    return unpack(stored._replace(arrays=arrays, own=own))


def _chances(scores: npt.NDArray[np.floating[Any]]) -> Doubles:
    """Scores as chances: nothing below 0, rows that sum to 1."""
    above = np.maximum(scores.astype(np.float64), 0.0)
    total = above.sum(axis=1, keepdims=True)
    even: Doubles = np.full(above.shape, 1 / above.shape[1])
    np.divide(above, total, out=even, where=total > 0)
    return even
