"""What readers find, row by row, and what becomes of rows that can't be used.

Whether a row is used depends on that row and the task alone, never on other rows: skipping rows
then changes nothing about how far one record moves a vote.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from mpc_vote.data.readers.sheet import Sheet

Array = npt.NDArray[Any]
BadRows: TypeAlias = Literal["refuse", "skip"]
Line: TypeAlias = int | str

SHOWN = 5
"""Bad rows that an error shows before it says how many more there are."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class BadRow:
    """A row that can't be used."""

    line: Line
    """Its line in a text file, its number from 1 in others, or the name of a picture's file."""
    why: str

    def __str__(self) -> str:
        where = f"line {self.line}" if isinstance(self.line, int) else self.line
        return f"{where}: {self.why}"


@dataclass(frozen=True, eq=False)
class Records:
    """All rows of a file, encoded as on the wire; what a reader gives.

    Rows in `bad`, by place from 0 with the reason, hold anything. `labels` are texts or whole
    numbers as the file has them, None where one is missing; or None altogether where the file has
    no labels: for attributes an array (rows, classes) of 0 and 1, or texts with semicolons.
    """

    rows: Array
    labels: Sequence[Any] | Array | None = None
    lines: Sequence[Line] = ()
    bad: Mapping[int, str] = field(default_factory=dict)
    unknown: Mapping[str, int] = field(default_factory=dict)
    """Cells with a category that the task does not list, by column."""
    extra: tuple[str, ...] = ()
    """Columns that the task does not know, which are left out."""
    sheet: Sheet | None = None
    """The table that they are from, with which labels are written."""
    identifiers: Sequence[str | None] | None = None
    """Where the task names a column of them, and the file has it."""

    def __post_init__(self) -> None:
        if not len(self.lines):
            object.__setattr__(self, "lines", range(1, len(self.rows) + 1))
        if len(self.lines) != len(self.rows):
            raise ValueError(f"there are {len(self.rows)} rows but {len(self.lines)} lines")
        if self.labels is not None and len(self.labels) != len(self.rows):
            raise ValueError(f"there are {len(self.rows)} rows but {len(self.labels)} labels")


@dataclass(frozen=True, eq=False)
class Inputs:
    """Rows that can be asked about, as they travel, and where each is from."""

    path: Path
    rows: Array
    lines: Sequence[Line]
    skipped: list[BadRow]
    label: str = "label"
    """What a column with their labels is called."""
    sheet: Sheet | None = None
    """The table that they are from: it is kept, as a file may be gone by the time of labels."""

    def __len__(self) -> int:
        return len(self.rows)


class BadRowsError(ValueError):
    """Rows can't be used, and nobody said to skip them."""

    def __init__(self, path: Path, bad: Sequence[BadRow], rows: int, advice: str) -> None:
        self.bad = tuple(bad)
        super().__init__(f"{path}: {told(bad, rows)}. {advice}")


def told(bad: Sequence[BadRow], rows: int) -> str:
    """How many rows can't be used, and the first of them."""
    shown = "; ".join(str(one) for one in bad[:SHOWN])
    more = f"; and {len(bad) - SHOWN:,} more" if len(bad) > SHOWN else ""
    return f"{len(bad):,} of {rows:,} rows can't be used: {shown}{more}"


def usable(
    path: Path, records: Records, bad: Mapping[int, str], bad_rows: BadRows
) -> tuple[npt.NDArray[np.int64], list[BadRow]]:
    """The places of rows to use, and the rows that are skipped, if that is allowed."""
    if bad_rows not in ("refuse", "skip"):
        raise ValueError(f"bad rows are refused or skipped (refuse, skip), not {bad_rows!r}")
    skipped = [BadRow(records.lines[place], bad[place]) for place in sorted(bad)]
    rows = len(records.rows)
    if skipped and bad_rows == "refuse":
        skip = ", or skip them with --bad-rows skip" if len(skipped) < rows else ", or the task"
        raise BadRowsError(path, skipped, rows, f"Correct them{skip}")
    if len(skipped) == rows:
        why = f": {told(skipped, rows)}" if rows else ""
        raise ValueError(f"{path}: there is no row that can be used{why}")
    if skipped:
        lines = ", ".join(str(one.line) for one in skipped[:SHOWN])
        _log.warning("%s: skipped %d of %d rows, the first: %s", path, len(skipped), rows, lines)
    kept = np.ones(rows, dtype=np.bool_)
    kept[list(bad)] = False
    return np.flatnonzero(kept), skipped
