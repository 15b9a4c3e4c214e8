"""Where records of a text file begin and end is for no single record to say."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mpc_vote.data.readers.sheet import read_sheet
from tests.unit.data.readers.tables import HEADER, written

BEFORE = ["first,1,no", '"two\nlines, said ""she""",2,yes', 'height,3,"5\'10"""']
AFTER = ['"",4,no', '","," x",yes', 'last,"6\r\n",no']
PIECES = st.lists(st.text(',"ax \n', max_size=6), max_size=5)


def cells(path: Path) -> list[dict[str, str]]:
    found: list[dict[str, str]] = read_sheet(path).table.to_pylist()
    return found


def record(pieces: list[str]) -> str:
    """Anything that has no line's end outside quotes, and an even number of these."""
    parts = [piece.replace('"', "") for piece in pieces]
    parts[::2] = [part.replace("\n", "") for part in parts[::2]]
    return '"'.join(parts if len(parts) % 2 else [*parts, ""])


@settings(deadline=None)
@given(pieces=PIECES, odd=st.booleans())
@example(pieces=["a", "b,", "c"], odd=True)
@example(pieces=["a", "b", "c,", "", ""], odd=False)
def test_a_record_leaves_all_others_as_they_are_or_the_file_is_refused(
    pieces: list[str], odd: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("csv") / "a.csv"
    around = "note,a,y\n" + "".join(f"{line}\n" for line in [*BEFORE, *AFTER])
    others = cells(written(path, around))
    assert [list(row.values()) for row in others] == list(csv.reader(io.StringIO(around)))[1:]
    changed = record(pieces) + ('"' if odd else "")
    text = "note,a,y\n" + "".join(f"{line}\n" for line in [*BEFORE, changed, *AFTER])
    try:
        found = cells(written(path, text))
    except ValueError as refusal:
        assert "a quote is opened" in str(refusal)
        return
    assert not odd
    assert found[: len(BEFORE)] == others[: len(BEFORE)]
    assert found[-len(AFTER) :] == others[-len(AFTER) :]
    assert len(found) == len(others) + bool(changed)


def test_a_long_cell_is_one_record_whatever_lines_are_in_it(tmp_path: Path) -> None:
    cell = "x" * 131_073 + "\n" + "z,50,Male,1,yes\n" * 5
    path = written(tmp_path / "a.csv", f'{HEADER}"{cell}",1,Male,1,no\nb,2,Male,1,no\n')
    sheet = read_sheet(path)
    assert sheet.table.num_rows == 2 and not sheet.bad
    assert sheet.table.column(0).to_pylist() == [cell, "b"] and list(sheet.lines) == [2, 9]


def test_a_line_of_texts_ends_where_an_editor_ends_it(tmp_path: Path) -> None:
    from mpc_vote.data.readers.delimited import read_lines

    path = written(tmp_path / "a.txt", "one\u2028still one\x0c\r\ntwo\r\rfour")
    sheet = read_lines(path, "text")
    assert sheet.table.column(0).to_pylist() == ["one\u2028still one\x0c", "two", "four"]
    assert list(sheet.lines) == [1, 2, 4]
