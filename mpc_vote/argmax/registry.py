"""The engines that a round can choose from.

An engine is a class with the interface `Engine`, made by an `EngineKind` that is registered here
with the preprocessing that it uses, and a value of the enum in `common.proto`; nothing else lists
the engines that there are.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

from mpc_vote.argmax.crypten.engine import CryptenArgmax, MaxMethod
from mpc_vote.argmax.crypten.triples import Triples
from mpc_vote.argmax.engine import Engine, Schedule
from mpc_vote.argmax.table.engine import TableArgmax
from mpc_vote.argmax.table.grouping import choose_schedule
from mpc_vote.argmax.table.level import MAX_BITS, MIN_BITS, LevelTables
from mpc_vote.argmax.table.marks import MarkTables
from mpc_vote.mpc import ring
from mpc_vote.mpc.preprocessing import Item
from mpc_vote.proto.mpcvote.v1 import common_pb2
from mpc_vote.registry import Registry


class EngineKind(ABC):
    """How engines of one kind are made for a round."""

    items: ClassVar[tuple[type[Item[Any]], ...]]
    """The preprocessing that it may ask the dealer for."""

    slow_to_load: ClassVar[bool] = False
    """Whether the first `load` of a process takes seconds, on a busy machine ten and more."""

    @property
    @abstractmethod
    def name(self) -> str:
        """On the command line, in files and in messages to people."""

    @property
    @abstractmethod
    def code(self) -> common_pb2.Engine.ValueType:
        """On the wire."""

    @abstractmethod
    def ring_bits(self, bound: int) -> int:
        """The ring in which it takes totals up to `bound` in absolute value."""

    def schedule(
        self, bits: int, rows: int, classes: int, parties: int, round_trip: float
    ) -> Schedule:
        """The quickest way for so many rows of totals modulo 2^bits, among parties that are
        `round_trip` seconds apart."""
        return Schedule()

    def load(self) -> None:  # noqa: B027, most need nothing
        """Imports what running it needs beside this project, which may take seconds; raises
        `ModuleNotFoundError` where that is not installed."""

    @abstractmethod
    def make(self, bits: int, groups: Sequence[int] = (), two_rounds: bool = False) -> Engine:
        """An engine for totals modulo 2^bits, with a schedule's groups and rounds."""

    def __repr__(self) -> str:
        return f"<engine {self.name}>"

    def __reduce__(self) -> tuple[Any, ...]:
        # A copy, also in another process, is the one object.
        return _registered, (self.name,)


def _registered(name: str) -> EngineKind:
    return ENGINES.by_name(name)


class Table(EngineKind):
    """Ours: three rounds for each level, or two for all, whatever the number of parties."""

    items = (LevelTables, MarkTables)
    name = "table"
    code = common_pb2.ENGINE_TABLE

    def ring_bits(self, bound: int) -> int:
        return min(MAX_BITS, max(MIN_BITS, ring.bits_for(bound)))

    def schedule(
        self, bits: int, rows: int, classes: int, parties: int, round_trip: float
    ) -> Schedule:
        return choose_schedule(bits, rows, classes, parties, round_trip)

    def make(self, bits: int, groups: Sequence[int] = (), two_rounds: bool = False) -> Engine:
        return TableArgmax(bits, groups, two_rounds=two_rounds)


class Crypten(EngineKind):
    """CrypTen's own argmax, with one of its methods."""

    items = (Triples,)
    slow_to_load = True

    def __init__(self, method: MaxMethod, code: common_pb2.Engine.ValueType) -> None:
        self._method = method
        self._code = code

    @property
    def name(self) -> str:
        return self._method.value

    @property
    def code(self) -> common_pb2.Engine.ValueType:
        return self._code

    def ring_bits(self, bound: int) -> int:
        return CryptenArgmax.ring_bits

    def load(self) -> None:
        import torch

        import mpc_vote.argmax.crypten.binding  # noqa: F401

        # Parties of one machine share its cores; the tensors are small, and one thread is as fast.
        torch.set_num_threads(1)

    def make(self, bits: int, groups: Sequence[int] = (), two_rounds: bool = False) -> Engine:
        want = CryptenArgmax.ring_bits
        if bits != want or groups or two_rounds:
            raise ValueError(f"the engine {self.name} has a ring of {want} bits, no groups")
        return CryptenArgmax(self._method)


ENGINES: Registry[EngineKind] = Registry("engine")

TABLE = ENGINES.register(Table())
PAIRWISE = ENGINES.register(Crypten(MaxMethod.PAIRWISE, common_pb2.ENGINE_CRYPTEN_PAIRWISE))
LOG_REDUCTION = ENGINES.register(
    Crypten(MaxMethod.LOG_REDUCTION, common_pb2.ENGINE_CRYPTEN_LOG_REDUCTION)
)
DOUBLE_LOG_REDUCTION = ENGINES.register(
    Crypten(MaxMethod.DOUBLE_LOG_REDUCTION, common_pb2.ENGINE_CRYPTEN_DOUBLE_LOG_REDUCTION)
)
ACCELERATED_CASCADE = ENGINES.register(
    Crypten(MaxMethod.ACCELERATED_CASCADE, common_pb2.ENGINE_CRYPTEN_ACCELERATED_CASCADE)
)
