"""What every classifier can do, whatever is inside, and what a global model can do beside."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from mpc_vote.data.dataset import FloatArray, LabelArray, check_labels


class Classifier(ABC):
    """Gives points one of some classes."""

    @property
    @abstractmethod
    def classes(self) -> int:
        """How many there are."""

    @abstractmethod
    def scores(self, x: FloatArray) -> npt.NDArray[np.floating[Any]]:
        """One for each class, (rows, classes): the higher, the likelier."""

    def predict(self, x: FloatArray) -> LabelArray:
        """The likeliest class of each point."""
        return np.asarray(np.argmax(self.scores(x), axis=1), dtype=np.int64)

    def agreement(self, x: FloatArray, y: LabelArray) -> float:
        """The share of points that the model labels as `y` does."""
        check_labels(y, self.classes)
        if len(x) != len(y) or len(y) == 0:
            raise ValueError(f"there are {len(x)} points and {len(y)} labels to compare")
        return float(np.mean(self.predict(x) == y))


class GlobalModel(Classifier):
    """A classifier that the service can keep. Who trained it can load it."""

    metrics: Mapping[str, float] = MappingProxyType({})
    """Figures of its training, for people."""

    @abstractmethod
    def save(self, path: Path, metadata: Mapping[str, str]) -> None:
        """Write one file at exactly this path. `metadata` says where the model came from, for
        formats that have room for it; the service keeps it anyway."""
