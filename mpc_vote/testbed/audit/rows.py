"""Hostile points as rows that a task lets through: whatever else is sent is refused unseen."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from mpc_vote.data.dataset import PointArray
from mpc_vote.tasks import Input, NumberColumn, TableInput
from mpc_vote.transport.tensors import MAX_SIZE

_MISSING = 0.1


def usual_rows(schema: Input, rng: np.random.Generator, count: int) -> PointArray:
    """Rows as data has them: numbers about their centers, some of them missing, any bytes."""
    if not isinstance(schema, TableInput):
        return rng.integers(0, 256, (count, *schema.shape), dtype=np.uint8)
    cells = []
    for column in schema.columns:
        if isinstance(column, NumberColumn):
            value = rng.normal(column.center, 2 * column.scale, count)
            cells.append(np.stack([value, rng.random(count) > _MISSING], axis=1))
        else:
            cells.append(rng.integers(0, column.other + 1, (count, 1)).astype(float))
    return nearest_rows(schema, np.concatenate(cells, axis=1))


def nearest_rows(schema: Input, points: npt.NDArray[Any]) -> PointArray:
    """Rows that are like any points; what is sound already stays as it is."""
    if not isinstance(schema, TableInput):
        return np.asarray(np.clip(np.rint(points), 0, 255), dtype=np.uint8)
    rows = np.array(np.clip(points, -MAX_SIZE, MAX_SIZE), dtype=np.float32)
    for column, cells in zip(schema.columns, schema.cells(rows), strict=True):
        if isinstance(column, NumberColumn):
            cells[:, 1] = cells[:, 1] >= 0.5
            cells[cells[:, 1] == 0, 0] = 0
        else:
            cells[:] = np.clip(np.rint(np.abs(cells)), 0, column.other)
    return rows
