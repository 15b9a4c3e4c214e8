"""Tables and texts for a task, from the cells of a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from mpc_vote.data.readers import cells
from mpc_vote.data.readers.records import Records
from mpc_vote.data.readers.room import check_rows
from mpc_vote.data.readers.sheet import Sheet, meant, read_sheet
from mpc_vote.tasks import CategoryColumn, Input, NumberColumn, TableInput, Task, TextInput


def read(path: Path, task: Task | None) -> Records:
    """The rows of a .csv, .tsv or .parquet file, encoded as the task says."""
    if task is None:
        raise ValueError(
            f"{path}: what its columns mean is for a task to say: make one first from public data, "
            f"mpc-vote task init --sample PUBLIC{path.suffix} --label COLUMN --out task.toml, and "
            "pass it as --task task.toml"
        )
    if isinstance(task.input, TableInput):
        return table_records(read_sheet(path), task.input)
    if isinstance(task.input, TextInput):
        return text_records(read_sheet(path), task.input)
    raise ValueError(
        f"{path}: inputs of the task {task.name} are of the kind {task.input.kind}, which are not "
        f"read from {path.suffix} files"
    )


def read_lines(path: Path, task: Task | None) -> Records:
    """The lines of a .txt file, each a text without a label."""
    from mpc_vote.data.readers.delimited import read_lines as lines_of

    if task is None or not isinstance(task.input, TextInput):
        raise ValueError(f"{path}: a .txt file is read for a task whose inputs are texts")
    return text_records(lines_of(path, task.input.text), task.input)


def table_records(sheet: Sheet, schema: TableInput) -> Records:
    """Rows of a table; a category that the task does not list is "any other"."""
    names = [column.name for column in schema.columns]
    _check_columns(sheet, names, "; one of which nothing is known may be empty")
    bad: dict[int, list[str]] = {}
    unknown: dict[str, int] = {}
    _check_room(sheet, schema, sheet.table.nbytes)
    rows = np.empty((sheet.table.num_rows, *schema.shape), schema.dtype)
    for column, place in zip(schema.columns, schema.cells(rows), strict=True):
        given = sheet.table.column(column.name)
        try:
            if isinstance(column, NumberColumn):
                found, wrong = cells.numbers(unquoted(sheet, given))
                place[:] = column.encode(found.tolist())
                for row, why in wrong.items():
                    bad.setdefault(row, []).append(f"{column.name} {why}")
            else:
                values, others = _categories(sheet, given, column)
                place[:] = column.encode(values)
                if others:
                    unknown[column.name] = others
        except ValueError as error:
            raise ValueError(f"{sheet.path}: column {column.name!r}: {error}") from error
    known = {schema.label, schema.identifier, *names, *schema.ignored}
    return Records(
        rows,
        _texts(sheet, schema.label),
        sheet.lines,
        {row: "; ".join(why) for row, why in bad.items()} | dict(sheet.bad),
        unknown,
        tuple(name for name in sheet.table.column_names if name not in known),
        sheet,
        _texts(sheet, schema.identifier),
    )


def text_records(sheet: Sheet, schema: TextInput) -> Records:
    """Rows of texts; one without any text is bad."""
    _check_columns(sheet, [schema.text])
    _check_room(sheet, schema, 2 * sheet.table.nbytes)
    try:
        texts = cells.texts(sheet.table.column(schema.text), unquote=sheet.quoted)
    except ValueError as error:
        raise ValueError(f"{sheet.path}: column {schema.text!r}: {error}") from error
    empty = {row: "it has no text" for row, text in enumerate(texts) if not (text or "").strip()}
    known = (schema.text, schema.label)
    return Records(
        schema.encode([text or "" for text in texts]),
        _texts(sheet, schema.label),
        sheet.lines,
        empty | dict(sheet.bad),
        extra=tuple(name for name in sheet.table.column_names if name not in known),
        sheet=sheet,
    )


def _check_room(sheet: Sheet, schema: Input, held: int) -> None:
    try:
        check_rows(sheet.table.num_rows, schema, held)
    except ValueError as error:
        raise ValueError(f"{sheet.path}: {error}") from error


def _categories(sheet: Sheet, given: Any, column: CategoryColumn) -> tuple[Any, int]:
    found = cells.texts(given, unquote=sheet.quoted)
    values, others = cells.categories(found, column.values)
    return values, int(np.count_nonzero(others))


def _texts(sheet: Sheet, column: str) -> list[str | None] | None:
    """Of a column that a file may lack."""
    if column not in sheet.table.column_names:
        return None
    return cells.texts(sheet.table.column(column), unquote=sheet.quoted)


def unquoted(sheet: Sheet, given: Any) -> Any:
    """A column's cells without the quotes that a TSV file has around them."""
    if not sheet.quoted:
        return given
    return pa.chunked_array([pa.array(cells.texts(given, unquote=True), pa.string())])


def _check_columns(sheet: Sheet, wanted: list[str], advice: str = "") -> None:
    """Refuses a file that lacks columns, naming what it has in their stead."""
    have = sheet.table.column_names
    missing = [name for name in wanted if name not in have]
    if not missing:
        return
    for name in missing:
        if name in sheet.nested:
            raise ValueError(f"{sheet.path}: {sheet.no_single_values(name)}")
    extra = [name for name in have if name not in wanted]
    shown = ", ".join(
        repr(name) + (f" (is it {near!r}?)" if (near := meant(name, extra)) else "")
        for name in missing[:8]
    )
    more = f" and {len(missing) - 8} more" if len(missing) > 8 else ""
    noun = "column" if len(missing) == 1 else "columns"
    also = f"; it has {', '.join(map(repr, extra[:8]))} besides" if extra else ""
    raise ValueError(
        f"{sheet.path}: it lacks the task's {noun} {shown}{more}{also}. Name columns as the task "
        f"does{advice}"
    )
