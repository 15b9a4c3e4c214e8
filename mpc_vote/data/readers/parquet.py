"""Parquet files; the place of a row, from 1, stands for its line."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from mpc_vote.data.readers.sheet import Sheet


def read_parquet(path: Path) -> Sheet:
    """The columns with their types."""
    try:
        table = pq.read_table(path, partitioning=None)
    except (pa.ArrowException, OSError) as error:
        why = str(error).splitlines()[0]
        raise ValueError(f"{path}: not a Parquet file that can be read ({why})") from error
    try:
        return Sheet(path, table, range(1, table.num_rows + 1))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
