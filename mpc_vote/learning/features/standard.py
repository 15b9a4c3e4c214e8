"""Tables as vectors in which all columns weigh alike: `standard`.

A number becomes (value - center) / scale, by the task's public center and scale, and is kept within
five scales, so that one far value does not drown all other columns. A category is one-hot encoded,
with places of their own for "any other" and "missing": two different categories are then at a
squared distance of 2, as two numbers of standard deviation 1 are on average. A missing number is at
the center, with a 1 in an indicator of its own: about as far from what is there.

All is done cell by cell and rounded the same everywhere, so a row's features do not depend on the
other rows, and change by nothing but that row's own cells.
"""

from __future__ import annotations

import numpy as np

from mpc_vote.data.dataset import FloatArray, PointArray
from mpc_vote.tasks import CategoryColumn, NumberColumn, TableInput

LIMIT = 5.0
"""Scales from the center beyond which a number counts as no farther."""


class Standard:
    """The map of a table's rows as they travel."""

    def __init__(self, table: TableInput) -> None:
        self._table = table
        self.width = sum(_width(column) for column in table.columns)

    def __call__(self, rows: PointArray) -> FloatArray:
        """Vectors, (rows, width)."""
        self._table.check(rows)
        found: FloatArray = np.zeros((len(rows), self.width), dtype=np.float32)
        at = 0
        for column, cells in zip(self._table.columns, self._table.cells(rows), strict=True):
            if isinstance(column, NumberColumn):
                found[:, at : at + 2] = _number(column, cells)
            else:
                found[np.arange(len(rows)), at + cells[:, 0].astype(np.int64)] = 1
            at += _width(column)
        return found


def _width(column: NumberColumn | CategoryColumn) -> int:
    return 2 if isinstance(column, NumberColumn) else column.other + 1


def _number(column: NumberColumn, cells: FloatArray) -> FloatArray:
    value, there = cells[:, 0].astype(np.float64), cells[:, 1] == 1
    scaled = np.clip((value - column.center) / column.scale, -LIMIT, LIMIT)
    both = np.stack([np.where(there, scaled, 0.0), ~there], axis=1)
    return np.asarray(both, dtype=np.float32)
