"""CSV and TSV files, each row with its line.

Where a record of a CSV file ends is told by its quotes alone: at the first line's end before which
there is an even number of them. So a record that is changed, whatever is written into it, leaves
all others as they are; or, if its quotes become odd, the file ends within a quote and is refused.
Were a record split by its cells, one that is malformed could hide others or become several of them,
and move a vote by more than one record. Cells are kept in Arrow's columns.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import pyarrow as pa

from mpc_vote.data.readers.room import MAX_LINE, Room, check_columns
from mpc_vote.data.readers.sheet import Sheet

_HELD = 1 << 20  # cells and characters
_PIECE = 1 << 20
_STRAY = "a quote within a cell must be doubled, and the cell be quoted without a space before"
_DELIMITERS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}


def read_csv(path: Path) -> Sheet:
    """Cells between commas, quoted where they hold commas, quotes or line breaks (RFC 4180); or
    between semicolons, if the first line has some and no comma."""
    return _sheet(path, ",")


def read_tsv(path: Path) -> Sheet:
    """Cells between tabs; a quote is a character like others, unless it surrounds a cell."""
    return _sheet(path, "\t")


def read_lines(path: Path, column: str) -> Sheet:
    """A cell to a line, in one column of this name."""
    try:
        check_text(path)
        Room().take(path.stat().st_size)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    with path.open(encoding="utf-8-sig") as file:
        lines = [(at, line.rstrip("\n")) for at, line in enumerate(file, 1) if line.strip()]
    table = pa.table({column: pa.array([line for _, line in lines], pa.string())})
    return Sheet(path, table, [at for at, _ in lines])


def check_text(path: Path) -> None:
    """Refuses a file that is not UTF-8, or empty, without having it in memory."""
    decoder = codecs.getincrementaldecoder("utf-8-sig")()
    line, blank, more = 1, True, True
    with path.open("rb") as file:
        while more:
            piece = file.read(_PIECE)
            more = bool(piece)
            if line == 1 and piece.startswith((b"\xff\xfe", b"\xfe\xff")):
                raise ValueError("it is UTF-16: save it as UTF-8 (in Excel: 'CSV UTF-8')")
            if b"\0" in piece:
                raise ValueError("it holds zero bytes, so it is no text: is its ending right?")
            try:
                blank &= not decoder.decode(piece, final=not more).strip()
            except UnicodeDecodeError as error:
                line += error.object.count(b"\n", 0, error.start)
                raise ValueError(
                    f"line {line} is not UTF-8, perhaps Latin-1 or Windows-1252: save it as UTF-8 "
                    "(in Excel: 'CSV UTF-8'; elsewhere: iconv -f WINDOWS-1252 -t UTF-8)"
                ) from error
            line += piece.count(b"\n")
    if blank:
        raise ValueError("it is empty")


def _sheet(path: Path, delimiter: str) -> Sheet:
    try:
        check_text(path)
        with path.open(encoding="utf-8-sig", newline="") as file:
            # The first line alone decides: no record may say how others are read.
            first = file.readline(MAX_LINE)
            file.seek(0)
            if delimiter == "," and ";" in first and "," not in first:
                delimiter = ";"
            return _parsed(path, file, delimiter)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _parsed(path: Path, file: TextIO, delimiter: str) -> Sheet:
    rows, room = _rows(file, delimiter), Room()
    line, header, broken = next(rows)
    if broken:
        raise ValueError(f"line {line}: {broken}")
    check_columns(len(header))
    _check_header(header, delimiter)
    lines: list[int] = []
    bad: dict[int, str] = {}
    batches, held, size = [], [], 0
    schema = pa.schema([(name, pa.string()) for name in header])
    for line, cells, broken in rows:
        if broken:
            bad[len(lines)] = broken
        elif len(cells) != len(header):
            bad[len(lines)] = f"it has {len(cells)} cells, the header {len(header)}"
            # Nothing is lost where the row is written again.
            cells[len(header) - 1 :] = [delimiter.join(cells[len(header) - 1 :])]
        lines.append(line)
        held.append(cells + [""] * (len(header) - len(cells)))
        size += sum(map(len, held[-1])) + len(header)
        if size >= _HELD:
            batches.append(_batch(held, schema, room))
            held, size = [], 0
    table = pa.Table.from_batches([*batches, _batch(held, schema, room)], schema)
    if delimiter == "\t":
        return Sheet(path, table, lines, bad, quoted=True)
    return Sheet(path, table, lines, bad, delimiter=delimiter)


def _records(file: TextIO, *, quotes: bool) -> Iterator[tuple[int, int, str]]:
    """Each record's first and last line, and its text; empty lines are left out."""
    last = 0
    while piece := file.readline(MAX_LINE + 1):
        first = last = last + 1
        pieces, size = [piece], len(piece)
        is_open = quotes and piece.count('"') % 2 == 1
        while size <= MAX_LINE and is_open:
            if not (piece := file.readline(MAX_LINE + 1 - size)):
                raise ValueError(f"line {first}: a quote is opened in this row and never closed")
            last += 1
            pieces.append(piece)
            size += len(piece)
            is_open ^= piece.count('"') % 2 == 1
        if size > MAX_LINE:
            raise ValueError(f"a row has over {MAX_LINE:,} characters: is it such a table?")
        if text := "".join(pieces).rstrip("\r\n"):
            yield first, last, text


def _rows(file: TextIO, delimiter: str) -> Iterator[tuple[int, list[str], str]]:
    """Each row's first line, its cells, and what is wrong with them."""
    quotes, before = delimiter != "\t", re.escape(delimiter)
    field = rf'(?:"(?:[^"]++|"")*+"|[^"{before}]*+)'  # of RFC 4180
    whole, fields = re.compile(rf"(?:{before}{field})*+"), re.compile(rf"{before}({field})")
    for first, last, text in _records(file, quotes=quotes):
        if not quotes or '"' not in text:
            yield first, text.split(delimiter), ""
        elif whole.fullmatch(delimiter + text):
            yield first, [_unquoted(cell) for cell in fields.findall(delimiter + text)], ""
        elif first == last:
            yield first, [text], _STRAY
        else:
            # It may be many records, between two quotes that belong to none of them.
            raise ValueError(
                f"lines {first} to {last}: a quote is opened and not closed, or {_STRAY}"
            )


def _unquoted(cell: str) -> str:
    return cell[1:-1].replace('""', '"') if cell.startswith('"') else cell


def _batch(rows: list[list[str]], schema: pa.Schema, room: Room) -> pa.RecordBatch:
    columns = zip(*rows, strict=True) if rows else [()] * len(schema)
    arrays = [pa.array(column, pa.string()) for column in columns]
    batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
    room.take(batch.nbytes, batch.num_rows)
    return batch


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
