"""The engines by name."""

from __future__ import annotations

import enum
from collections.abc import Sequence

from mpc_vote.argmax.crypten.engine import MaxMethod, StockArgmax
from mpc_vote.argmax.engine import Engine
from mpc_vote.argmax.table.engine import MIN_BITS, TableArgmax
from mpc_vote.argmax.table.level import MAX_BITS
from mpc_vote.mpc import ring


class EngineName(enum.StrEnum):
    """The table engine, and CrypTen's own argmax with each of its methods."""

    TABLE = "table"
    PAIRWISE = "pairwise"
    LOG_REDUCTION = "log_reduction"
    DOUBLE_LOG_REDUCTION = "double_log_reduction"
    ACCELERATED_CASCADE = "accelerated_cascade"


def make_engine(name: EngineName, bits: int, groups: Sequence[int] = ()) -> Engine:
    """An engine for totals modulo 2^bits; `groups` are for the table engine."""
    if name is EngineName.TABLE:
        return TableArgmax(bits, groups)
    if bits != StockArgmax.ring_bits or groups:
        raise ValueError(f"the engine {name} has a ring of {StockArgmax.ring_bits} bits, no groups")
    return StockArgmax(MaxMethod(name.value))


def ring_bits(name: EngineName, bound: int) -> int:
    """The ring in which an engine takes totals up to `bound` in absolute value."""
    if name is EngineName.TABLE:
        return min(MAX_BITS, max(MIN_BITS, ring.bits_for(bound)))
    return StockArgmax.ring_bits
