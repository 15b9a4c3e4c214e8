"""Labels come back beside the rows that they belong to, in the order and form of the file."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mpc_vote.data.readers import Inputs, read_inputs, write_labelled
from mpc_vote.data.readers.output import check_output
from mpc_vote.data.readers.records import BadRow
from mpc_vote.data.readers.sheet import read_sheet
from tests.unit.data.readers.tables import TABLE, TEXT, written

CSV = 'name,age,sex,ward\n"Meier, A.",50,Male,1\n"two\nlines",x,,2\nc,1e1,"say ""hi""",2\n'


def test_a_csv_gets_one_column_more_and_keeps_its_cells(tmp_path: Path) -> None:
    path = written(tmp_path / "in.csv", CSV)
    inputs = read_inputs(path, TABLE, bad_rows="skip")
    path.unlink()
    write_labelled(tmp_path / "out.csv", inputs, ["yes", "no"])
    with (tmp_path / "out.csv").open(newline="") as file:
        assert list(csv.reader(file)) == [
            ["name", "age", "sex", "ward", "died"],
            ["Meier, A.", "50", "Male", "1", "yes"],
            ["two\nlines", "x", "", "2", ""],
            ["c", "1e1", 'say "hi"', "2", "no"],
        ]


def test_a_csv_with_semicolons_keeps_them(tmp_path: Path) -> None:
    path = written(tmp_path / "in.csv", "age;sex;ward\n50;Male;1\n")
    write_labelled(tmp_path / "out.csv", read_inputs(path, TABLE), ["yes"])
    assert (tmp_path / "out.csv").read_text() == "age;sex;ward;died\n50;Male;1;yes\n"


def test_what_was_written_can_be_read_as_labelled_data(tmp_path: Path) -> None:
    from mpc_vote.data.readers import read_labelled

    for ending in ("csv", "tsv", "parquet"):
        path = written(tmp_path / "in.csv", "age,sex,ward\n50,Male,1\n,Female,\n")
        out = tmp_path / f"out.{ending}"
        inputs = read_inputs(path, TABLE)
        write_labelled(out, inputs, ["yes", "no"])
        found = read_labelled(out, TABLE)
        assert found.y.tolist() == [1, 0]
        assert np.array_equal(found.x, inputs.rows)


def test_a_row_that_is_not_whole_loses_nothing_and_has_no_label(tmp_path: Path) -> None:
    path = written(tmp_path / "in.csv", 'age,sex,ward\n1,Male,1,yes\n2,Male,1\n3\n"4"x,F,1\n')
    inputs = read_inputs(path, TABLE, bad_rows="skip")
    write_labelled(tmp_path / "out.csv", inputs, ["no"])
    lines = (tmp_path / "out.csv").read_text().splitlines()
    assert lines == [
        "age,sex,ward,died",
        '1,Male,"1,yes",',
        "2,Male,1,no",
        "3,,,",
        '"""4""x,F,1",,,',
    ]


def test_a_tsv_keeps_its_quotes_as_they_were(tmp_path: Path) -> None:
    path = written(tmp_path / "in.tsv", 'SMS\tx\n"a" b"\t"1"\n5"\t""\n')
    write_labelled(tmp_path / "out.tsv", read_inputs(path, TEXT), ["ham", "spam"])
    text = (tmp_path / "out.tsv").read_text()
    assert text == 'SMS\tx\tLabel\n"a" b"\t"1"\tham\n5"\t""\tspam\n'


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_quotes_around_a_tsvs_cells_are_taken_off_for_other_formats(
    ending: str, tmp_path: Path
) -> None:
    path = written(tmp_path / "in.tsv", 'SMS\t"x, y"\n"said ""hi"""\t5"\n')
    out = tmp_path / f"out.{ending}"
    write_labelled(out, read_inputs(path, TEXT), ["ham"])
    assert read_sheet(out).table.to_pylist() == [
        {"SMS": 'said "hi"', '"x, y"': '5"', "Label": "ham"}
    ]


def test_a_parquet_file_keeps_its_types(tmp_path: Path) -> None:
    table = pa.table({"age": pa.array([1, 2], pa.int16()), "sex": ["Male", None], "ward": [1, 2]})
    pq.write_table(table, tmp_path / "in.parquet")
    inputs = read_inputs(tmp_path / "in.parquet", TABLE)
    write_labelled(tmp_path / "out.parquet", inputs, ["yes", "no"])
    found = pq.read_table(tmp_path / "out.parquet")
    assert found.schema.field("age").type == pa.int16()
    assert found.column("died").to_pylist() == ["yes", "no"]


@pytest.mark.parametrize(
    ("header", "column"),
    [
        ("a", "died"),
        ("died", "label"),
        ("died,label", "label_2"),
        ("label_2,died,label", "label_3"),
    ],
)
def test_a_column_that_is_there_is_never_replaced(header: str, column: str, tmp_path: Path) -> None:
    path = written(tmp_path / "in.csv", f"{header},age,sex,ward\n{'x,' * 3}1\n")
    inputs = Inputs(path, np.zeros((1, 3), np.float32), [2], [], "died", read_sheet(path))
    write_labelled(tmp_path / "out.csv", inputs, ["yes"])
    first = (tmp_path / "out.csv").read_text().splitlines()[0]
    assert first == f"{header},age,sex,ward,{column}"


def test_without_a_task_a_table_gets_a_column_called_label(tmp_path: Path) -> None:
    path = written(tmp_path / "in.csv", "a\n1\n2\n")
    write_labelled(tmp_path / "out.csv", path, ["x", "y"])
    assert (tmp_path / "out.csv").read_text() == "a,label\n1,x\n2,y\n"


def test_what_is_no_table_becomes_a_list_of_files_or_rows(tmp_path: Path) -> None:
    pictures = Inputs(
        tmp_path, np.zeros((2, 2, 2), np.uint8), ["a.png", "c.png"], [BadRow("b.png", "broken")]
    )
    write_labelled(tmp_path / "out.csv", pictures, ["cat", "dog"])
    text = (tmp_path / "out.csv").read_text()
    assert text == "file,label\na.png,cat\nb.png,\nc.png,dog\n"
    rows = Inputs(tmp_path / "x.npy", np.zeros((2, 2), np.float32), [1, 10], [BadRow(2, "NaN")])
    write_labelled(tmp_path / "out.csv", rows, ["a", "b"])
    assert (tmp_path / "out.csv").read_text() == "row,label\n1,a\n2,\n10,b\n"


def test_labels_of_another_number_or_name_are_refused_before_a_file_is_made(
    tmp_path: Path,
) -> None:
    path = written(tmp_path / "in.csv", "a\n1\n2\n")
    with pytest.raises(ValueError, match="there are 2 rows but 1 labels"):
        write_labelled(tmp_path / "out.csv", path, ["x"])
    with pytest.raises(ValueError, match=r"labels are written to \.csv, \.tsv or \.parquet"):
        check_output(tmp_path / "out.xlsx")
    assert [one.name for one in tmp_path.iterdir()] == ["in.csv"]
