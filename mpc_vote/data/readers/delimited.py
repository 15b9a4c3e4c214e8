"""CSV and TSV files, each row with its line.

The standard library's parser is used for its strictness: it says where a row begins, and refuses a
quote that is never closed, which others read as one long cell. Cells are kept in Arrow's columns.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from mpc_vote.data.readers.sheet import Sheet

_ROWS = 8_192
_DELIMITERS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}


def read_csv(path: Path) -> Sheet:
    """Cells between commas, quoted where they hold commas, quotes or line breaks (RFC 4180)."""
    return _sheet(path, ",")


def read_tsv(path: Path) -> Sheet:
    """Cells between tabs; a quote is a character like others, unless it surrounds a cell."""
    return _sheet(path, "\t")


def read_lines(path: Path, column: str) -> Sheet:
    """A cell to a line, in one column of this name."""
    lines = [(at, line) for at, line in enumerate(read_text(path).splitlines(), 1) if line.strip()]
    table = pa.table({column: pa.array([line for _, line in lines], pa.string())})
    return Sheet(path, table, [at for at, _ in lines])


def read_text(path: Path) -> str:
    """A file's text, which must be UTF-8."""
    content = path.read_bytes()
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise ValueError(f"{path}: it is UTF-16: save it as UTF-8 (in Excel: 'CSV UTF-8')")
    if b"\0" in content:
        raise ValueError(f"{path}: it holds zero bytes, so it is no text: is its ending right?")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ValueError(
            f"{path}: line {line} is not UTF-8, perhaps Latin-1 or Windows-1252: save it as UTF-8 "
            "(in Excel: 'CSV UTF-8'; elsewhere: iconv -f WINDOWS-1252 -t UTF-8)"
        ) from error
    if not text.strip():
        raise ValueError(f"{path}: it is empty")
    return text


def _sheet(path: Path, delimiter: str) -> Sheet:
    text = read_text(path)
    try:
        return _parsed(path, text, delimiter)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _parsed(path: Path, text: str, delimiter: str) -> Sheet:
    rows = _rows(text, delimiter)
    line, header, broken = next(rows)
    if broken:
        raise ValueError(f"line {line}: {broken}")
    _check_header(header, delimiter)
    lines: list[int] = []
    bad: dict[int, str] = {}
    batches, held = [], []
    schema = pa.schema([(name, pa.string()) for name in header])
    for line, cells, broken in rows:
        if broken:
            bad[len(lines)] = broken
        elif len(cells) != len(header):
            bad[len(lines)] = f"it has {len(cells)} cells, the header {len(header)}"
        lines.append(line)
        held.append((cells + [""] * len(header))[: len(header)])
        if len(held) == _ROWS:
            batches.append(_batch(held, schema))
            held = []
    table = pa.Table.from_batches([*batches, _batch(held, schema)], schema)
    return Sheet(path, table, lines, bad, quoted=delimiter == "\t")


def _rows(text: str, delimiter: str) -> Iterator[tuple[int, list[str], str]]:
    """Each row's first line, its cells, and what is wrong with them; empty lines are left out."""
    lines = io.StringIO(text, newline="")
    if delimiter == "\t":
        reader = csv.reader(lines, delimiter=delimiter, quoting=csv.QUOTE_NONE)
    else:
        reader = csv.reader(lines, delimiter=delimiter, strict=True)
    while True:
        line = reader.line_num + 1
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            yield line, [], _broken(line, reader.line_num, error)
        else:
            if cells:
                yield line, cells, ""


def _broken(line: int, last: int, error: csv.Error) -> str:
    """What is wrong with a row; raises where the rows after it can't be found."""
    if "unexpected end" in str(error):
        raise ValueError(f"line {line}: a quote is opened in this row and never closed")
    if last > line:
        # How many records it has swallowed nobody knows: one must not decide which others count.
        raise ValueError(f"lines {line} to {last}: a quote is opened in the first and not closed")
    if "expected after" in str(error):
        return "a quote within a cell must be doubled, and the cell be quoted"
    return str(error)


def _batch(rows: list[list[str]], schema: pa.Schema) -> pa.RecordBatch:
    columns = zip(*rows, strict=True) if rows else [()] * len(schema)
    arrays = [pa.array(column, pa.string()) for column in columns]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _check_header(header: list[str], delimiter: str) -> None:
    unnamed = [place for place, name in enumerate(header, 1) if not name.strip()]
    if unnamed:
        raise ValueError(f"column {unnamed[0]} has no name in the first line")
    if len(header) > 1:
        return
    for other, word in _DELIMITERS.items():
        if other != delimiter and other in header[0]:
            advice = " or name it .tsv" if other == "\t" else ""
            raise ValueError(
                f"its first line is one cell, {header[0][:60]!r}: it seems to have {word} "
                f"between its cells; save it with {_DELIMITERS[delimiter]} instead{advice}"
            )
