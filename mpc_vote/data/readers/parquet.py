"""Parquet files; the place of a row, from 1, stands for its line.

A cell that is repeated takes no room in the file, and nothing need be true of what the file says
about its own size. So a table is read some rows at a time, with texts as codes into what there are
of them, and counted before it is expanded. What is not bounded here is a single page of a file
that lies, by the format 2 GiB at most.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from mpc_vote.data.readers.room import Room, check_columns
from mpc_vote.data.readers.sheet import Sheet

_ROWS = 8_192
_CELL_BYTES = 8  # of what a cell becomes, also where it is nothing


def read_parquet(path: Path) -> Sheet:
    """The columns with their types."""
    try:
        table, nested = _table(path)
    except (pa.ArrowException, OSError) as error:
        why = str(error).splitlines()[0]
        raise ValueError(f"{path}: not a Parquet file that can be read ({why})") from error
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    try:
        return Sheet(path, table, range(1, table.num_rows + 1), nested=nested)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _table(path: Path) -> tuple[pa.Table, dict[str, str]]:
    """Columns of one value a row, and the types of others: one row of lists could hold any number
    of values, so they are not even read."""
    with pq.ParquetFile(path) as file:
        schema, metadata = file.schema_arrow, file.metadata
        check_columns(metadata.num_columns)
        nested = {one.name: str(one.type) for one in schema if pa.types.is_nested(one.type)}
        schema = pa.schema([one for one in schema if one.name not in nested], schema.metadata)
        if not len(schema):
            raise ValueError("no column has one value a row")
        # What it says of itself is refused at once, whether or not it is true.
        Room().take(sum(_claimed(metadata)), metadata.num_rows)
    texts = [one.name for one in schema if _is_text(one.type)]
    room = Room()
    with pq.ParquetFile(path, read_dictionary=texts) as file:
        wanted = file.iter_batches(_ROWS, columns=schema.names if nested else None)
        batches = [_plain(batch, schema, room) for batch in wanted]
    return pa.Table.from_batches(batches, schema), nested


def _claimed(metadata: Any) -> Iterator[int]:
    for place in range(metadata.num_row_groups):
        yield metadata.row_group(place).total_byte_size


def _is_text(kind: pa.DataType) -> bool:
    tests = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
    binary = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view)
    return any(test(kind) for test in (*tests, *binary))


def _plain(batch: pa.RecordBatch, schema: pa.Schema, room: Room) -> pa.RecordBatch:
    """Rows as the file's schema has them, if there is room for all that they say."""
    size = sum(max(_size(column), _CELL_BYTES * len(column)) for column in batch.columns)
    room.take(size, batch.num_rows)
    columns = [
        _decoded(column).cast(one.type) if column.type != one.type else column
        for column, one in zip(batch.columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _size(column: Any) -> int:
    """Bytes of a column when codes are replaced by what they stand for."""
    if not pa.types.is_dictionary(column.type):
        return int(column.nbytes)
    values = column.dictionary
    if not _is_text(values.type):
        return int(len(column) * max(1, values.nbytes // max(1, len(values))))
    lengths = pc.binary_length(values)
    return int(pc.sum(pc.take(lengths, column.indices)).as_py() or 0)


def _decoded(column: Any) -> Any:
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
