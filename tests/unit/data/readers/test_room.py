"""Small files that would become large tables are refused before they do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mpc_vote.data.readers import read_inputs, room
from mpc_vote.data.readers.sheet import read_sheet
from mpc_vote.tasks import Task
from tests.unit.data.readers.tables import HEADER, TABLE, TEXT, written

MEBIBYTE = 1 << 20


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "MAX_BYTES", 4 * MEBIBYTE)


def bomb(path: Path, values: Any, rows: int) -> Path:
    """One value, many times over, in a file of a few kilobytes."""
    codes = pa.array([0] * rows, pa.int32())
    column = pa.DictionaryArray.from_arrays(codes, values).cast(values.type)
    pq.write_table(pa.table({"age": column}), path, compression="zstd")
    assert path.stat().st_size < MEBIBYTE // 8
    return path


@pytest.mark.parametrize("claimed", [True, False])
def test_a_parquet_file_whose_cells_repeat_is_counted_before_it_is_expanded(
    claimed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = bomb(tmp_path / "a.parquet", pa.array(["x" * 10_000]), 20_000)
    if not claimed:
        monkeypatch.setattr("mpc_vote.data.readers.parquet._claimed", lambda _: [0])
    before = pa.total_allocated_bytes()
    with pytest.raises(ValueError, match=r"a\.parquet: it takes over 4 MiB of memory"):
        read_sheet(path)
    pool = pa.default_memory_pool()
    assert pool.bytes_allocated() - before < 4 * MEBIBYTE


def test_numbers_that_repeat_are_counted_as_they_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"age": pa.array([7.0] * 2_000_000)}), path)
    assert path.stat().st_size < MEBIBYTE // 8
    monkeypatch.setattr("mpc_vote.data.readers.parquet._claimed", lambda _: [0])
    monkeypatch.setattr(room, "_ROW_BYTES", 0)
    with pytest.raises(ValueError, match="over 4 MiB"):
        read_sheet(path)


def test_rows_of_nothing_take_room_too(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"age": pa.nulls(1_000_000)}), path)
    with pytest.raises(ValueError, match="over 4 MiB"):
        read_sheet(path)


def test_types_stay_as_they_are_in_the_file(tmp_path: Path) -> None:
    table = pa.table(
        {
            "a": pa.array(["x", None], pa.string()),
            "b": pa.array(["x", "y"], pa.large_string()),
            "c": pa.array(["x", "x"]).dictionary_encode(),
            "d": pa.array([1, None], pa.int16()),
            "e": pa.array([b"x", None], pa.binary()),
        }
    )
    pq.write_table(table, tmp_path / "a.parquet")
    found = read_sheet(tmp_path / "a.parquet").table
    assert found.schema.types == table.schema.types
    assert found.to_pylist() == table.to_pylist()


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (HEADER + "1" * ((1 << 24) + 1), "a row has over 16,777,216 characters"),
        ("," * (1 << 25), "a row has over 16,777,216 characters"),
        (HEADER + '"' + "\n" * (1 << 17) + "x" * (1 << 24), "a row has over"),
        (",".join(map(str, range(70_000))), "it has 70,000 columns, at most 65,536"),
        (HEADER + "1,50,Male,1,no\n" * 60_000, "it takes over 4 MiB"),
    ],
)
def test_a_text_file_is_read_row_by_row(content: str, why: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=rf"a\.csv: {why}"):
        read_inputs(written(tmp_path / "a.csv", content), TABLE)


def test_text_is_told_from_other_bytes_wherever_they_are(tmp_path: Path) -> None:
    """Also at the end of a piece, and of the file."""
    piece = (HEADER + "1,50,Male,1,no\n" * 80_000).encode()[:MEBIBYTE]
    with pytest.raises(ValueError, match="is not UTF-8"):
        read_sheet(written(tmp_path / "a.csv", piece[:-1] + b"\xc3"))
    with pytest.raises(ValueError, match="zero bytes"):
        read_sheet(written(tmp_path / "b.csv", piece + b"\0"))
    lines = piece.count(b"\n") + 1
    with pytest.raises(ValueError, match=f"line {lines} is not UTF-8"):
        read_sheet(written(tmp_path / "c.csv", piece + b"\xe9,"))


def test_arrays_that_repeat_are_counted_before_they_are_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez_compressed(path, x=np.zeros((4_000, 400), np.float32), other=np.zeros(3))
    assert path.stat().st_size < MEBIBYTE // 8
    with pytest.raises(ValueError, match=r"a\.npz: it takes over 4 MiB of memory"):
        read_inputs(path, TABLE)


@pytest.mark.parametrize("name", ["a.npz", "a.csv", "a.txt"])
def test_texts_are_counted_as_wide_as_the_task_has_them(name: str, tmp_path: Path) -> None:
    """Four bytes each in the file, 4 KiB in a row."""
    path, wide = tmp_path / name, Task.from_wire(TEXT.wire.replace(b":16,", b":4096,"))
    if name == "a.npz":
        np.savez_compressed(path, x=np.full(600, "a"))
    else:
        written(path, ("SMS\n" if name == "a.csv" else "") + "a\n" * 600)
    assert len(read_inputs(path, TEXT)) == 600
    with pytest.raises(ValueError, match="it takes over 4 MiB of memory"):
        read_inputs(path, wide)


def test_numbers_are_counted_as_wide_as_their_rows_are(tmp_path: Path) -> None:
    """Columns of nothing have no bytes in the file, nor in Arrow's memory."""
    names = [f"c{number}" for number in range(100)]
    columns = [{"name": name, "kind": "number", "center": 0, "scale": 1} for name in names]
    settings = TABLE.settings()
    settings["input"]["columns"] = columns
    task = Task.from_wire(json.dumps(settings).encode())
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({name: pa.nulls(3_000) for name in names}), path)
    with pytest.raises(ValueError, match=r"a\.parquet: it takes over 4 MiB of memory"):
        read_inputs(path, task)
    np.save(tmp_path / "a.npy", np.zeros((6_000, 200), np.float16))
    with pytest.raises(ValueError, match=r"a\.npy: it takes over 4 MiB of memory"):
        read_inputs(tmp_path / "a.npy", task)
