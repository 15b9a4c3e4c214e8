"""What a kind of ballot is: the interface that all kinds have, and the checks that they share.

A ballot is what one agent says about one query, as integers: a vote is `2**fraction_bits` units.
Every sensitivity is in units and covers the rounding of the encoding, so noise calibrated to it
needs no further allowance. The bounds hold only for ballots made by `encode`, or checked to be of
its form.

Neighbouring inputs:

- *agent level*: one agent's ballot is left out of the sum; the noise of the total stays what it
  is, with the agent's own part of it where agents draw it.
- *instance level*: one record of one agent is added, removed or replaced. For the kNN ballots the
  feature map and the distance must not depend on the private records; for the others the model
  may change in any way.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt

from mpc_vote.privacy.mechanisms import Decided
from mpc_vote.privacy.sensitivity import Sensitivity
from mpc_vote.proto.mpcvote.v1 import common_pb2
from mpc_vote.verified.encoding import Layout

IntArray = npt.NDArray[np.int64]
BallotCode: TypeAlias = common_pb2.BallotKind.ValueType

MAX_FRACTION_BITS = 24
"""Finer votes buy nothing: at 4 bits integer noise already costs only 1e-5 in epsilon."""

MAX_NEIGHBOURS = 1 << 31
"""With `MAX_FRACTION_BITS` it keeps every encoded ballot within an int64."""

_FRACTION_BITS = 4


class BallotKind(ABC):
    """A form that ballots may take. A kind has no state: there is one object of each."""

    name: ClassVar[str]
    """On the command line, in files and in messages to people."""

    code: ClassVar[BallotCode]
    """On the wire."""

    about: ClassVar[str]
    """Whose vote it is, in a few words."""

    wants: ClassVar[str] = "votes of the form that its kind encodes"
    """What a voter has to give, in a few words for those who wrote one that gives something else:
    the same whatever it gave, for they are told to others."""

    decided: ClassVar[Decided] = Decided.UNKNOWN
    """What a vote decides by the totals, where neighbours move them by whole votes: a label then
    tells less than the totals."""

    min_classes: ClassVar[int] = 2

    needs_k: ClassVar[bool] = False
    """Whether each agent has a public k, its number of neighbours."""

    attributes: ClassVar[bool] = False
    """Whether classes are attributes, each with a yes or no of its own: a query has a label for
    each."""

    needs_tau: ClassVar[bool] = False
    """Whether a round has a public tau: the most classes, or attributes, that an agent names."""

    @abstractmethod
    def encode(
        self, votes: npt.ArrayLike, *, classes: int, fraction_bits: int, k: int = 0, tau: int = 0
    ) -> IntArray:
        """The ballots of one agent, (queries, classes) in units, from what its voter says."""

    @abstractmethod
    def agent_sensitivity(
        self, *, fraction_bits: int, ks: Sequence[int] = (), tau: int | None = None
    ) -> Sensitivity:
        """The size of one ballot; `ks` are the public k of the agents that are meant."""

    @abstractmethod
    def instance_sensitivity(
        self, *, fraction_bits: int, ks: Sequence[int] = (), tau: int | None = None
    ) -> Sensitivity:
        """How far one record can move one ballot, for the agent where it moves it furthest."""

    @abstractmethod
    def max_entry(
        self, *, fraction_bits: int, ks: Sequence[int] = (), tau: int | None = None
    ) -> int:
        """The largest value, in units, that one honest agent puts into one cell."""

    def default_fraction_bits(self, ks: Sequence[int]) -> int:
        """Enough that rounding costs next to nothing."""
        return _FRACTION_BITS

    def ideal_unit(self, ks: Sequence[int]) -> int:
        """Units in a vote without an encoding, such that sensitivities are whole: for noise that is
        not of integers."""
        return 1

    def ideal_sensitivities(
        self, ks: Sequence[int], tau: int | None
    ) -> tuple[Sensitivity, Sensitivity]:
        """Agent and instance level without an encoding, in units of `ideal_unit`."""
        return (
            self.agent_sensitivity(fraction_bits=0, ks=ks, tau=tau),
            self.instance_sensitivity(fraction_bits=0, ks=ks, tau=tau),
        )

    def layout(self, classes: int, unit: int, k: int, tau: int) -> Layout | None:
        """How an agent with this k shares its ballot in a verified round; None if such ballots
        can't be verified."""
        return None

    @property
    def can_be_verified(self) -> bool:
        """Whether there are verified rounds of such ballots."""
        return self.layout(self.min_classes, 1, 1, 1) is not None

    def votes(self, ks: Sequence[int]) -> int:
        """Votes that agents with these k cast on a query, at most."""
        return len(ks)

    def width(self, classes: int) -> int:
        """Labels of a query."""
        return classes if self.attributes else 1

    def row_classes(self, classes: int) -> int:
        """Classes in a row of the secure argmax: no and yes for an attribute."""
        return 2 if self.attributes else classes

    def __repr__(self) -> str:
        return f"<ballot kind {self.name}>"

    def __reduce__(self) -> tuple[Any, ...]:
        # A copy, also in another process, is the one object.
        return _registered, (self.name,)


def _registered(name: str) -> BallotKind:
    from mpc_vote.voting.ballots import BALLOTS

    return BALLOTS.by_name(name)


def unit_of(fraction_bits: int) -> int:
    """Units in a vote."""
    if not 0 <= fraction_bits <= MAX_FRACTION_BITS:
        raise ValueError(f"fraction_bits must lie in 0..{MAX_FRACTION_BITS}, not {fraction_bits}")
    return 1 << fraction_bits


def check_positive(name: str, value: int) -> None:
    """Refuses what is below 1."""
    if value < 1:
        raise ValueError(f"{name} must be at least 1, not {value}")


def integers(name: str, values: npt.ArrayLike, dimensions: int) -> IntArray:
    """An array of integers with so many dimensions."""
    given: npt.NDArray[Any] = np.asarray(values)
    if given.ndim != dimensions:
        raise ValueError(f"{name} must have {dimensions} dimension(s), not shape {given.shape}")
    if given.size and given.dtype.kind not in "iu":
        raise ValueError(f"{name} must be integers, not {given.dtype}: round them explicitly")
    if given.dtype.kind == "u" and given.size and given.max() > np.iinfo(np.int64).max:
        raise ValueError(f"{name} must fit an int64")
    return given.astype(np.int64)
