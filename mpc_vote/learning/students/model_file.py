"""One file for a model: arrays as safetensors, and in the metadata how it is read again."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from mpc_vote.transport.tensors import MAX_DIMENSIONS

OWN = "mpc_vote."
"""How the metadata begin that models write themselves."""
READER = f"{OWN}reader"
ARCHITECTURE = f"{OWN}architecture"
FEATURES = f"{OWN}features"
SHAPE = f"{OWN}shape"
CLASSES = f"{OWN}classes"

_LARGEST_POINT, _MOST_CLASSES = 1 << 26, 1 << 16


class Packed(NamedTuple):
    """A model as arrays, and words about them under keys that begin with `OWN`."""

    arrays: Mapping[str, torch.Tensor | npt.NDArray[Any]]
    own: Mapping[str, str]


class Stored(NamedTuple):
    """What is in a file: `own` says what the arrays mean, `metadata` what the caller added."""

    path: Path
    arrays: dict[str, torch.Tensor]
    own: dict[str, str]
    metadata: dict[str, str]

    def says(self, key: str) -> str:
        """What the model wrote of itself."""
        if key not in self.own:
            raise ValueError(f"{self.path}: the file doesn't say {key}")
        return self.own[key]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the points that the model takes."""
        try:
            shape = tuple(json.loads(self.says(SHAPE)))
        except (ValueError, TypeError, RecursionError) as error:
            raise ValueError(f"{self.path}: the shape of points can't be read") from error
        sound = 0 < len(shape) < MAX_DIMENSIONS and all(
            type(size) is int and 1 <= size <= _LARGEST_POINT for size in shape
        )
        if not sound or math.prod(shape) > _LARGEST_POINT:
            raise ValueError(f"{self.path}: points can't have such a shape")
        return shape

    @property
    def classes(self) -> int:
        """How many classes the model has."""
        classes = self.says(CLASSES)
        if not classes.isdecimal() or not 2 <= int(classes) <= _MOST_CLASSES:
            raise ValueError(f"{self.path}: a model can't have {classes} classes")
        return int(classes)

    def doubles(self, **wanted: str) -> list[npt.NDArray[np.float64]]:
        """The arrays of these names; there must be no others.

        Each has a dimension for each letter of `wanted`, as long as all others of that letter.
        """
        if wanted.keys() != self.arrays.keys():
            odd = ", ".join(sorted(wanted.keys() ^ self.arrays.keys()))
            raise ValueError(f"{self.path}: arrays do not fit the model: {odd}")
        sizes: dict[str, int] = {}
        for name, letters in wanted.items():
            array = self.arrays[name]
            if array.dtype != torch.float64 or array.ndim != len(letters):
                raise ValueError(f"{self.path}: array {name} is {array.dtype} {tuple(array.shape)}")
            for letter, size in zip(letters, array.shape, strict=True):
                if sizes.setdefault(letter, size) != size:
                    raise ValueError(f"{self.path}: array {name} is {size} long in one direction")
        return [self.arrays[name].numpy() for name in wanted]


def write(path: Path, packed: Packed, metadata: Mapping[str, str]) -> None:
    """Write a model, whole or not at all."""
    if not all(isinstance(part, str) for item in metadata.items() for part in item):
        raise ValueError("metadata must map strings to strings")
    for key in metadata:
        if key.startswith(OWN):
            raise ValueError(f"{key} is written by the model itself")
    draft = path.with_name(f".{path.name}.{os.getpid()}.draft")
    tensors = {  # copies, as safetensors refuses arrays that share memory
        name: torch.as_tensor(array).clone(memory_format=torch.contiguous_format)
        for name, array in packed.arrays.items()
    }
    try:
        save_file(tensors, draft, metadata={**metadata, **packed.own})
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def read(path: Path) -> Stored:
    """Read what `write` wrote; every array is finite."""
    if not path.is_file():
        raise FileNotFoundError(f"{path}: there is no such model file")
    try:
        with safe_open(path, framework="pt") as stored:
            found = dict(stored.metadata() or {})
            arrays = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(f"{path}: not a safetensors file ({error})") from error
    own = {key: value for key, value in found.items() if key.startswith(OWN)}
    if not own:
        raise ValueError(f"{path}: a safetensors file, but not of a student")
    for name, array in arrays.items():
        if not bool(torch.isfinite(array).all()):
            raise ValueError(f"{path}: array {name} holds NaN or infinity")
    return Stored(path, arrays, own, {key: found[key] for key in found if key not in own})
