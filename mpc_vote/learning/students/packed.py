"""Models that are arrays and a few words about them: all of ours are stored the same way."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from mpc_vote.learning.students import model_file
from mpc_vote.learning.students.classifier import GlobalModel
from mpc_vote.learning.students.model_file import Packed, Stored


class PackedModel(GlobalModel):
    """A model whose file is read by `load_model`, or by its class."""

    metrics: dict[str, float]

    @abstractmethod
    def pack(self) -> Packed:
        """The arrays, and what they mean: `model_file.READER` says who unpacks them."""

    @classmethod
    @abstractmethod
    def unpack(cls, stored: Stored) -> Self:
        """The model of what `pack` gave; everything is checked, as files come from anywhere."""

    def save(self, path: str | Path, metadata: Mapping[str, str]) -> None:
        """Write safetensors, whole or not at all; `metadata` is kept beside the model's own."""
        model_file.write(Path(path), self.pack(), metadata)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read what `save` wrote."""
        return cls.unpack(model_file.read(Path(path)))
