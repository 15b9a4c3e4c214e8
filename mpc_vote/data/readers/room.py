"""How much memory a file may take when it is read: a small file can hold a very large table."""

from __future__ import annotations

import math

from mpc_vote.tasks import Input

MAX_BYTES = 1 << 30
"""Of a table in memory."""

MAX_COLUMNS = 1 << 16
MAX_LINE = 1 << 24
"""Characters of a row in a text file."""

_ROW_BYTES = 192  # for where it is from, its label and a category, as objects of Python's
_COPIES = 2  # of encoded rows, where some are left out


class TooLarge(ValueError):
    """What does not fit."""


class Room:
    """What is left for a table that is read piece by piece; asked before a piece is kept, and where
    its size is known beforehand, before it is expanded."""

    def __init__(self) -> None:
        self._limit = MAX_BYTES
        self._taken = 0

    def take(self, size: int, rows: int = 0) -> None:
        """Refuses what does not fit any more."""
        self._taken += size + rows * _ROW_BYTES
        if self._taken > self._limit:
            raise TooLarge(
                f"it takes over {self._limit >> 20:,} MiB of memory: give fewer rows, or leave out "
                "columns that the task doesn't know"
            )


def check_rows(rows: int, schema: Input, held: int) -> None:
    """Refuses rows that would not fit once they are encoded, beside the bytes they are made of."""
    encoded = rows * math.prod(schema.shape) * schema.dtype.itemsize
    Room().take(held + _COPIES * encoded, rows)


def check_columns(count: int) -> None:
    """Refuses tables that are too wide for any task."""
    if count > MAX_COLUMNS:
        raise ValueError(f"it has {count:,} columns, at most {MAX_COLUMNS:,} are read")
