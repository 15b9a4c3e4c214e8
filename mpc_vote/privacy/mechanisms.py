"""The private mechanisms: frozen records of what was released, and their Renyi divergence.

A vote releases, for each query, a function of the ballots' total plus noise. Its loss is bounded
by that of the noisy total itself, whatever the secure argmax makes of it. `variance` is the part
of the noise, in units^2, that no coalition of the assumed size knows; sensitivities are in units.

The *agent* level compares a round with the same round where one agent's ballot is zeroed and its
noise stays: it holds for a fixed noise roster. A query of a multi-label round is one query,
however many attributes it has.
"""

from __future__ import annotations

import abc
import enum
import json
import math
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt

from mpc_vote.ballots import Sensitivity

FloatArray = npt.NDArray[np.float64]


class Level(enum.Enum):
    """Whom a guarantee protects: a whole agent, or one record of one agent."""

    AGENT = "agent"
    INSTANCE = "instance"


@dataclass(frozen=True)
class _Vote(abc.ABC):
    """What every vote records, and its form on disk."""

    queries: int
    variance: float
    agent: Sensitivity
    instance: Sensitivity

    kind: ClassVar[str]

    def __post_init__(self) -> None:
        if isinstance(self.queries, bool) or not isinstance(self.queries, int) or self.queries < 1:
            raise ValueError(f"queries must be a positive integer, not {self.queries!r}")
        if isinstance(self.variance, bool) or not isinstance(self.variance, float | int):
            raise ValueError(f"variance must be a number, not {self.variance!r}")
        if not 0 < self.variance < math.inf:
            raise ValueError(f"variance must be positive and finite, not {self.variance!r}")
        for name in ("agent", "instance"):
            if not isinstance(getattr(self, name), Sensitivity):
                raise ValueError(f"{name} must be a Sensitivity, not {getattr(self, name)!r}")

    def sensitivity(self, level: Level) -> Sensitivity:
        """How far neighbours at this level move one query's total."""
        return self.agent if level is Level.AGENT else self.instance

    @abc.abstractmethod
    def curve(self, orders: FloatArray, level: Level) -> FloatArray:
        """Bounds the Renyi divergence over all queries, for every order."""

    def rdp(self, order: float, level: Level) -> float:
        """`curve` at a single order."""
        return float(self.curve(np.array([order], dtype=np.float64), level)[0])

    def to_json(self) -> str:
        """One line that `mechanism_from_json` reads back to an equal record."""
        return json.dumps({"type": self.kind, **asdict(self)}, sort_keys=True)


@dataclass(frozen=True)
class SkellamVote(_Vote):
    """A vote under integer noise of Skellam's distribution.

    The bound is that of Agarwal, Kairouz and Liu, "The Skellam Mechanism for Differentially Private
    Federated Learning" (arXiv 2110.04995), proved for integer totals and integer orders. The
    sampler is within 2^-108 of Skellam (`mpc_vote.noise.STATISTICAL_DISTANCE`), which adds less
    than 2^-60 to delta over 2^40 draws at epsilon 4: negligible against any delta in use, and
    left out of the account.
    """

    kind: ClassVar[str] = "skellam_vote"
    real_orders: ClassVar[bool] = False

    def curve(self, orders: FloatArray, level: Level) -> FloatArray:
        """Bounds the Renyi divergence of integer orders >= 2 over all queries."""
        if (orders != np.floor(orders)).any() or (orders < 2).any():
            raise ValueError(f"the Skellam bound holds for integer orders >= 2, not {orders}")
        moved, twice = self.sensitivity(level), 2 * self.variance
        excess = ((2 * orders - 1) * moved.l2_squared + 6 * moved.l1) / twice / twice
        gaussian = orders * moved.l2_squared / twice
        return self.queries * (gaussian + np.minimum(excess, 3 * moved.l1 / twice))


@dataclass(frozen=True)
class GaussianVote(_Vote):
    """A vote under continuous Gaussian noise: the idealised baseline, not what rounds add."""

    kind: ClassVar[str] = "gaussian_vote"
    real_orders: ClassVar[bool] = True

    def curve(self, orders: FloatArray, level: Level) -> FloatArray:
        """The Renyi divergence of any orders > 1 over all queries."""
        if not (orders > 1).all():
            raise ValueError(f"an order must be above 1, not {orders}")
        return self.queries * (orders * self.sensitivity(level).l2_squared / (2 * self.variance))


Mechanism: TypeAlias = SkellamVote | GaussianVote

_KINDS: dict[str, type[SkellamVote] | type[GaussianVote]] = {
    vote.kind: vote for vote in (SkellamVote, GaussianVote)
}


def one_query(mechanism: Mechanism) -> Mechanism:
    """The mechanism for a single query, so that equal ones can be counted together."""
    return replace(mechanism, queries=1)


def check_mechanism(mechanism: object) -> None:
    """Refuses what this module has no bound for: an unknown loss must not count as none."""
    if not isinstance(mechanism, Mechanism):
        raise TypeError(f"no privacy bound is known for a {type(mechanism).__name__}")


def mechanism_from_json(text: str) -> Mechanism:
    """Reads `to_json` back; refuses unknown types, and fields too many or too few."""
    record = json.loads(text)
    if not isinstance(record, dict):
        raise ValueError("a mechanism must be a JSON object")
    kind = record.pop("type", None)
    vote = _KINDS.get(kind) if isinstance(kind, str) else None
    if vote is None:
        raise ValueError(f"unknown mechanism {kind!r}: a newer version may have written it")
    _check_fields(kind, record, vote)
    return vote(
        queries=record["queries"],
        variance=record["variance"],
        agent=_sensitivity(record["agent"]),
        instance=_sensitivity(record["instance"]),
    )


def _sensitivity(record: object) -> Sensitivity:
    if not isinstance(record, dict):
        raise ValueError("a sensitivity must be a JSON object")
    _check_fields("sensitivity", record, Sensitivity)
    return Sensitivity(**record)


def _check_fields(
    name: str, record: dict[str, Any], owner: type[_Vote] | type[Sensitivity]
) -> None:
    wanted = {field.name for field in fields(owner)}
    if record.keys() != wanted:
        raise ValueError(f"a {name} has the fields {sorted(wanted)}, not {sorted(record)}")
