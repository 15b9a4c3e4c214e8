"""What every private mechanism has: a kind, a curve of Renyi divergences, a line of JSON."""

from __future__ import annotations

import abc
import enum
import json
import math
from dataclasses import asdict, dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]


class Level(enum.Enum):
    """Whom a guarantee protects: a whole agent, or one record of one agent."""

    AGENT = "agent"
    INSTANCE = "instance"


class Decided(enum.StrEnum):
    """What a vote decides by its noisy totals: one label, the class of the largest; or for every
    cell by itself whether it reaches a public number. Where totals move, it is by whole votes."""

    ARGMAX = "argmax"
    EACH = "each"
    UNKNOWN = ""


@dataclass(frozen=True)
class BaseMechanism(abc.ABC):
    """What every mechanism can do."""

    kind: ClassVar[str]

    @abc.abstractmethod
    def curve(self, orders: FloatArray, level: Level) -> FloatArray:
        """Bounds the Renyi divergence over all queries, for every order."""

    def rdp(self, order: float, level: Level) -> float:
        """`curve` at a single order."""
        return float(self.curve(np.array([order], dtype=np.float64), level)[0])

    def to_json(self) -> str:
        """One line that `mechanism_from_json` reads back to an equal record."""
        return json.dumps({"type": self.kind, **asdict(self)}, sort_keys=True)


def check_count(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} must be a positive integer, not {value!r}")


def check_positive(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, float | int):
        raise ValueError(f"{name} must be a number, not {value!r}")
    if not 0 < value < math.inf:
        raise ValueError(f"{name} must be positive and finite, not {value!r}")


def check_orders(orders: FloatArray) -> None:
    if not (orders > 1).all():
        raise ValueError(f"an order must be above 1, not {orders}")
