"""Labels written beside what they belong to: a table gets a column more, in its own order."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING

from mpc_vote.data.readers.records import Inputs, Line
from mpc_vote.data.readers.sheet import Sheet, read_sheet

if TYPE_CHECKING:
    import pyarrow as pa

TABLES = (".csv", ".tsv", ".parquet")


def check_output(out: Path) -> None:
    """Refuses a name that `write_labelled` does not write, before anything is spent for it."""
    if out.suffix.lower() not in TABLES:
        raise ValueError(f"{out}: labels are written to .csv, .tsv or .parquet")
    import pyarrow  # noqa: F401  what writing takes is asked for now, too


def write_labelled(out: str | Path, source: Inputs | Path, names: Sequence[str | None]) -> None:
    """Writes a table's rows with their labels, .csv, .tsv or .parquet by the name of `out`.

    The new column has the task's name for it; if the file has such a column already, `label`, then
    `label_2` and so on. Rows that were skipped, and those whose name is None, have an
    empty label. What is no table, as
    pictures and arrays are, becomes one of the file or row and its label.
    """
    out = Path(out)
    check_output(out)
    if isinstance(source, Inputs):
        sheet, lines, label = source.sheet or _listed(source), source.lines, source.label
    else:
        sheet = read_sheet(source)
        lines, label = sheet.lines, "label"
    if len(names) != len(lines):
        raise ValueError(f"{sheet.path}: there are {len(lines)} rows but {len(names)} labels")
    _write(out, sheet, _free(sheet, label), dict(zip(lines, names, strict=True)))


def _listed(inputs: Inputs) -> Sheet:
    """A table of where rows are from, with those that were skipped at their place."""
    import pyarrow as pa

    lines: list[Line] = [*inputs.lines, *(one.line for one in inputs.skipped)]
    numbered = all(isinstance(line, int) for line in lines)
    lines.sort(key=lambda line: (line if isinstance(line, int) else 0, str(line)))
    return Sheet(inputs.path, pa.table({"row" if numbered else "file": pa.array(lines)}), lines)


def _free(sheet: Sheet, wanted: str) -> str:
    """A name for the new column that no column has."""
    taken = set(sheet.table.column_names)
    further = (f"label_{number}" for number in count(2))
    return next(name for name in chain((wanted, "label"), further) if name not in taken)


def _write(out: Path, sheet: Sheet, column: str, names: Mapping[Line, str | None]) -> None:
    labels = [names.get(line) for line in sheet.lines]
    kept = sheet.quoted and out.suffix.lower() == ".tsv"
    table = sheet.table if kept or not sheet.quoted else _unquoted(sheet.table)
    if out.suffix.lower() == ".parquet":
        _write_parquet(out, table, column, labels)
        return
    cells = [one.to_pylist() for one in table.columns]
    with out.open("w", encoding="utf-8", newline="") as file:
        if out.suffix.lower() == ".csv":
            writer = csv.writer(file, delimiter=sheet.delimiter, lineterminator="\n")
        elif kept:  # what was between tabs is written as it was
            writer = csv.writer(
                file, delimiter="\t", lineterminator="\n", quoting=csv.QUOTE_NONE, quotechar=None
            )
        else:
            writer = csv.writer(file, delimiter="\t", lineterminator="\n")
        writer.writerow([*sheet.table.column_names, column])
        writer.writerows(zip(*cells, labels, strict=True))


def _unquoted(table: pa.Table) -> pa.Table:
    """Cells of a TSV file as they are meant, for a format with quotes of its own, or none."""
    import pyarrow as pa

    from mpc_vote.data.readers.cells import unquoted

    columns = [[unquoted(cell) for cell in one.to_pylist()] for one in table.columns]
    arrays = [pa.array(column, pa.string()) for column in columns]
    return pa.table(arrays, names=table.column_names)


def _write_parquet(out: Path, table: pa.Table, column: str, labels: list[str | None]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(table.append_column(column, pa.array(labels, pa.string())), out)
