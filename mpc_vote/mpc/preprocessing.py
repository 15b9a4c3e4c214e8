"""Correlated randomness: what the dealer makes and how a party turns it into its share.

Each party holds a key that only it and the dealer know (`mpc_vote.mpc.cut_and_choose`), and expands
its share of every item from it. What depends on the others' shares can't be free at all of them, so
the dealer sends it to the last party: the correction. Without the dealer's view, the shares of any
P-1 parties are uniform and independent of the values that they are shares of. An item is used once:
it has a stream number of its own, and items are taken in the order of a plan that all parties told
the dealer.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar

P = TypeVar("P")


class Item(ABC, Generic[P]):
    """A request for correlated randomness of one shape; `P` is what a party gets.

    A subclass is a dataclass whose fields are those of its message in `dealer.proto`.
    """

    wire_name: ClassVar[str]
    """Of its message in `DealItem`, and in the text of a plan."""

    @classmethod
    def read(cls, fields: Mapping[str, Any]) -> Self:
        """An item from the fields of its message; raises `ValueError` where there is none such, or
        the dealer could not make it in bounded memory."""
        item = cls(**fields)
        item.check()
        return item

    @abstractmethod
    def check(self) -> None:
        """Raises `ValueError` for a size that is out of bounds."""

    @property
    @abstractmethod
    def correction_bytes(self) -> int:
        """Size of the correction that the last party gets."""

    @property
    @abstractmethod
    def part_bytes(self) -> int:
        """Memory that a party's share takes."""

    @abstractmethod
    def expand(self, seed: bytes, index: int, correction: bytes | None) -> P:
        """A party's share of item number `index`; the last party passes its correction."""

    @abstractmethod
    def correct(self, seeds: Sequence[bytes], index: int) -> bytes:
        """The last party's correction of item number `index`: the dealer's work.

        It follows from the seeds alone, so that whoever has all seeds can check it.
        """


@dataclass(frozen=True)
class Run:
    """The same items in the same order, several times over."""

    items: tuple[Item[Any], ...]
    times: int


@dataclass(frozen=True)
class PreprocessingPlan:
    """All items of a session, in the order in which they are used."""

    runs: tuple[Run, ...]

    @property
    def items(self) -> int:
        """How many there are, their repetitions counted."""
        return sum(len(run.items) * run.times for run in self.runs)

    @cached_property
    def digest(self) -> bytes:
        """Stands for the plan: SHA-256 of its text."""
        return hashlib.sha256(self.text.encode()).digest()

    @property
    def text(self) -> str:
        """JSON without spaces, a list of runs. A run is its times, then for each item a list of its
        name and its fields."""
        runs = [[run.times, *map(_described, run.items)] for run in self.runs]
        return json.dumps(runs, separators=(",", ":"))

    def __iter__(self) -> Iterator[Item[Any]]:
        for run in self.runs:
            for _ in range(run.times):
                yield from run.items


def _described(item: Item[Any]) -> list[Any]:
    """An item's name on the wire and its fields, in the order of their declaration."""
    return [item.wire_name, *dataclasses.astuple(item)]  # type: ignore[call-overload]


class Preprocessing(Protocol):
    """Where an engine gets its shares from, in the order of the plan."""

    def take(self, item: Item[P]) -> P:
        """This party's share of the next item, which must be `item`."""
        ...


def require(condition: bool, what: str) -> None:
    """Refuses an item, naming what is out of bounds."""
    if not condition:
        raise ValueError(what)
