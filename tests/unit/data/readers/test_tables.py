"""Tables of any origin become a task's inputs; what does not fit is told by its line or column."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpc_vote.data.readers import (
    BadRow,
    BadRowsError,
    read,
    read_inputs,
    read_labelled,
    read_records,
)
from mpc_vote.data.readers.cells import unquoted
from mpc_vote.tasks import TableInput, Task, TextInput
from tests.unit.data.readers.tables import HEADER, TABLE, TEXT, written


def columns(path: Path) -> dict[str, list[Any]]:
    assert isinstance(TABLE.input, TableInput)
    return TABLE.input.decode(read_inputs(path, TABLE).rows)


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text,
        lambda text: "\ufeff" + text,
        lambda text: text.replace("\n", "\r\n"),
        lambda text: text.replace("\n", "\r"),
        lambda text: text.rstrip("\n"),
        lambda text: text.replace("\n", "\n\n"),
        lambda text: text.replace("Male", '"Male"').replace("age", '"age"'),
        lambda text: text.replace(",Male", ", Male ").replace("50", " 50 "),
        lambda text: text.replace(",", ";"),
        lambda text: "\ufeff" + text.replace(",", ";").replace("Male", '"Male"'),
    ],
)
def test_a_table_is_the_same_however_it_was_saved(
    change: Callable[[str], str], tmp_path: Path
) -> None:
    text = f"{HEADER}a,50,Male,1,yes\nb,61.5,Female,2,no\n"
    path = written(tmp_path / "clinic.csv", change(text))
    data = read_labelled(path, TABLE)
    assert (data.name, data.classes, data.y.tolist()) == ("clinic", 2, [1, 0])
    assert data.x.dtype == np.float32
    assert data.x.tolist() == [[50, 1, 2, 1], [61.5, 1, 1, 2]]


@pytest.mark.parametrize("cell", ["61,5", "-0,25", "1.234,5"])
def test_a_decimal_comma_is_refused_with_the_mend(cell: str, tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", f"pid;age;sex;ward;died\na;{cell};Male;1;yes\n")
    with pytest.raises(BadRowsError, match=r"line 2: age .* is no number: write a point"):
        read_labelled(path, TABLE)


def test_columns_go_by_their_names_not_their_places(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", "ward,died,further,sex,age\n1,yes,x,Male,50\n")
    assert columns(path) == {"age": [50.0], "sex": ["Male"], "ward": ["1"]}
    assert read_records(path, TABLE).extra == ("further",)


@pytest.mark.parametrize("empty", ["", " ", "NA", "na", "N/A", "NaN", "nan", "null", "NULL"])
def test_what_is_missing_is_a_value_of_its_own(empty: str, tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", f"{HEADER}a,{empty},Male,{empty},yes\n")
    assert columns(path) == {"age": [None], "sex": ["Male"], "ward": [None]}


def test_a_category_that_the_task_lists_is_never_missing(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", f"{HEADER}a,1,NA,1,yes\nb,1,,1,no\n")
    assert columns(path)["sex"] == ["NA", None]


def test_an_unknown_category_is_any_other_and_counted(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", f"{HEADER}a,1,Divers,1,yes\nb,1,male,3,no\n")
    found = read_records(path, TABLE)
    assert found.rows[:, 2].tolist() == [4, 4]
    assert found.rows[:, 3].tolist() == [1, 3]
    assert found.unknown == {"sex": 2, "ward": 1}


@pytest.mark.parametrize(
    ("cell", "value"),
    [
        ("1e3", 1000),
        ("+5", 5),
        ("-.5", -0.5),
        ("5.", 5),
        ("True", 1),
        ("false", 0),
        ("16777216", 2**24),
        ("16777218", 2**24 + 2),
        ("-8e9", -8e9),
        ("16777217.5", 2**24 + 2),
    ],
)
def test_numbers_as_programs_write_them(cell: str, value: float, tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", f"{HEADER}a,{cell},Male,1,yes\n")
    assert columns(path)["age"] == [np.float32(value)]


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ("b,old,Male,1,yes", "age 'old' is no number"),
        ("b,1_000,Male,1,yes", "age '1_000' is no number"),
        ('b,"1,5",Male,1,yes', "age '1,5' is no number"),
        ("b,inf,Male,1,yes", "age 'inf' is no number"),
        ("b,0x10,Male,1,yes", "age '0x10' is no number"),
        ("b,1e13,Male,1,yes", "age 1e+13 is not within 1e+12"),
        ("b,-1e999,Male,1,yes", "age -inf is not within 1e+12"),
        ("b,16777217,Male,1,yes", "age 16777217 is a whole number that a float32 can't hold"),
        ("b,16777217.0,Male,1,yes", "age 16777217 is a whole number that a float32 can't hold"),
        ("b,1e12,Male,1,yes", "age 1000000000000 is a whole number that a float32 can't hold"),
        ("b,50,Male,1", "it has 4 cells, the header 5"),
        ("b,50,Male,1,yes,", "it has 6 cells, the header 5"),
        ('b,50,"Ma"le,1,yes', "a quote within a cell must be doubled"),
        ("b,50,Male,1,Yes", "its label 'Yes' is none of the task's classes (no, yes)"),
        ("b,50,Male,1,", "it has no label"),
    ],
)
def test_a_bad_row_is_told_by_its_line_and_skipped_or_refused_as_asked(
    row: str, why: str, tmp_path: Path
) -> None:
    before, after = 'a,50,"Ma\nle",1,yes\n\n', "c,51,Female,2,no\n"
    path = written(tmp_path / "a.csv", f"{HEADER}{before}{row}\n{after}")
    with pytest.raises(BadRowsError, match=r"a\.csv: 1 of 3 rows can't be used: line 5: ") as told:
        read_labelled(path, TABLE)
    assert why in str(told.value) and "--bad-rows skip" in str(told.value)
    assert [one.line for one in told.value.bad] == [5]
    assert read_labelled(path, TABLE, bad_rows="skip").x[:, 0].tolist() == [50, 51]


def test_all_that_is_wrong_with_a_row_is_told_and_few_rows_of_many(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", HEADER + "a,x,Male,1,maybe\n" * 12 + "a,1,Male,1,no\n")
    with pytest.raises(BadRowsError, match=r"12 of 13 rows.*line 6: .*; and 7 more") as told:
        read_labelled(path, TABLE)
    assert "line 7" not in str(told.value)
    assert len(told.value.bad) == 12


def test_rows_that_are_all_bad_are_not_advised_to_be_skipped(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", HEADER + "a,50,Male,1,maybe\n" * 2)
    with pytest.raises(BadRowsError, match=r"2 of 2 rows .* Correct them, or the task$"):
        read_labelled(path, TABLE)


def test_queries_need_no_labels_and_say_what_was_skipped(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", "age,sex,ward\n50,Male,1\nx,Male,1\n51,,2\n")
    found = read_inputs(path, TABLE, bad_rows="skip")
    assert (list(found.lines), found.label, len(found)) == ([2, 4], "died", 2)
    assert found.skipped == [BadRow(3, "age 'x' is no number")]
    with pytest.raises(ValueError, match=r"it has no labels .a column 'died'., which private data"):
        read_labelled(path, TABLE)


def test_labels_of_queries_are_not_looked_at(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", f"{HEADER}a,50,Male,1,whatever\n")
    assert len(read_inputs(path, TABLE)) == 1


@pytest.mark.parametrize("bad_rows", ["refuse", "skip"])
@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("", "it is empty"),
        ("\n \n", "it is empty"),
        (HEADER, "there is no row that can be used"),
        ("pid|age|sex|ward|died\na|1|Male|1|no\n", "bars.*save it with commas instead"),
        ("pid\tage\tsex\na\t1\tMale\n", "tabs.*save it with commas instead or name it .tsv"),
        ("Age,sex,died,ward\n1,Male,no,1\n", "lacks the task's column 'age' .is it 'Age'?."),
        ("sex,died,ward\nMale,no,1\n", "'age'.*Name columns as the task does; one of which noth"),
        ("sex,wages,died\nMale,1,no\n", "columns 'age', 'ward'; it has 'wages', 'died' besides"),
        ("sex,died,ord\nMale,no,1\n", "columns 'age', 'ward'.*it has 'died', 'ord' besides"),
        (HEADER.replace("pid", "age"), "two columns have the name 'age': rename or remove one"),
        (HEADER.replace("pid", ""), "column 1 has no name in the first line"),
        (f'{HEADER}a,1,"Male,1,no\nb,1,Male,1,no\n', "line 2: a quote is opened .*never closed"),
        (f'{HEADER}a,1,"M,1,no\nb,1,"M",1,no\nc,1,M,1,no\n', "line 2: a quote is opened .*never"),
        (f'{HEADER}a,1,"M,1,no\n' + "b,1,M,1,no\n" * 20_000, "line 2: a quote is opened .*never"),
        (f'{HEADER}5\'10",1,M,1,no\n"b,1,M,1,no\n', "lines 2 to 3: .*quote within a cell"),
        (f"{HEADER}a,1,M\u00e4n,1,no\n".encode("latin-1"), "line 2 is not UTF-8, .*Latin-1.*iconv"),
        (HEADER.encode("utf-16"), "it is UTF-16: save it as UTF-8"),
        (b"PAR1\0\0", "zero bytes.*is its ending right?"),
    ],
)
def test_a_file_that_is_no_such_table_is_refused_with_advice(
    content: str | bytes, why: str, bad_rows: Any, tmp_path: Path
) -> None:
    path = written(tmp_path / "clinic.csv", content)
    with pytest.raises(ValueError, match=f"clinic.csv: .*{why}"):
        read_labelled(path, TABLE, bad_rows=bad_rows)


def test_where_all_rows_are_bad_nothing_is_left_to_skip_to(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", f"{HEADER}a,x,Male,1,no\n")
    with pytest.raises(ValueError, match=r"no row that can be used: 1 of 1 rows.*line 2"):
        read_labelled(path, TABLE, bad_rows="skip")


def test_without_a_task_it_is_said_how_to_make_one(tmp_path: Path) -> None:
    for name in ("a.csv", "a.tsv", "a.parquet"):
        with pytest.raises(ValueError, match=r"mpc-vote task init --sample PUBLIC\.") as told:
            read(tmp_path / name)
        assert "pickle" not in str(told.value)


def test_what_is_not_there_or_a_folder_is_said_to_be_so(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"b\.csv: there is no such file"):
        read_labelled(tmp_path / "b.csv", TABLE)
    with pytest.raises(ValueError, match="a folder is read for a task whose inputs are images"):
        read_labelled(tmp_path, TABLE)
    (tmp_path / "c.csv").mkdir()
    with pytest.raises(ValueError, match=r"c\.csv: it is a folder, where a table is wanted"):
        read_labelled(tmp_path / "c.csv", TABLE, reader="csv")


def parquet(path: Path, **given: Any) -> Path:
    usual = {"age": [50.0], "sex": ["Male"], "ward": ["1"], "died": ["yes"]}
    pq.write_table(pa.table(usual | given), path)
    return path


@pytest.mark.parametrize(
    ("ages", "found"),
    [
        (pa.array([7], pa.int8()), 7.0),
        (pa.array([2**24], pa.int64()), 2.0**24),
        (pa.array([True]), 1.0),
        (pa.array([0.5], pa.float64()), 0.5),
        (pa.array([0.5], pa.float16()), 0.5),
        (pa.array([float("nan")]), None),
        (pa.array([None], pa.int32()), None),
        (pa.array([None], pa.null()), None),
        (pa.array(["0.25"]), 0.25),
        (pa.array(["0.25"]).dictionary_encode(), 0.25),
        (pa.array(["3"], pa.large_string()), 3.0),
    ],
)
def test_types_of_a_parquet_file_convert_without_loss(
    ages: Any, found: float | None, tmp_path: Path
) -> None:
    assert columns(parquet(tmp_path / "a.parquet", age=ages))["age"] == [found]


def test_categories_and_labels_may_be_numbers_or_booleans(tmp_path: Path) -> None:
    for ward in (pa.array([2]), pa.array([2.0]), pa.array(["2"]), pa.array(["2.0"])):
        path = parquet(tmp_path / "a.parquet", ward=ward)
        assert columns(path)["ward"] == ["2"]
    assert columns(parquet(tmp_path / "a.parquet", ward=[float("nan")]))["ward"] == [None]


@pytest.mark.parametrize(
    ("column", "why"),
    [
        ({"age": pa.array([2**24 + 1])}, "row.*line 1: age 16777217 is a whole number"),
        ({"age": pa.array([2**53 + 1])}, "line 1: age .* is not within"),
        ({"age": pa.array([float("inf")])}, "line 1: age inf is not within"),
        ({"age": pa.array([0], pa.timestamp("s"))}, "'age': it has the type timestamp"),
        ({"sex": pa.array([["a"]])}, "'sex' holds list.*, not one value a row"),
    ],
)
def test_what_would_be_lost_is_refused(column: dict[str, Any], why: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=why):
        read_labelled(parquet(tmp_path / "a.parquet", **column), TABLE)


@pytest.mark.parametrize(
    "kind", [pa.int64(), pa.uint32(), pa.float64(), pa.decimal128(25, 3), pa.string()]
)
def test_what_becomes_of_a_number_does_not_depend_on_the_type_of_its_column(
    kind: pa.DataType, tmp_path: Path
) -> None:
    """Another program writes other types as soon as one record has an empty cell."""
    ages = pa.array([20_000_001, 20_000_002, 7]).cast(kind)
    wards = pa.array([1, 1_000_000_000, 2]).cast(kind)
    wide = TABLE.wire.replace(b'["1","2"]', b'["1","1000000000"]')
    path = parquet(tmp_path / "a.parquet", age=ages, ward=wards, sex=["Male"] * 3, died=["no"] * 3)
    found = read_records(path, Task.from_wire(wide))
    assert list(found.bad) == [0]
    assert found.rows[:, 0].tolist() == [0, 20_000_002, 7]
    assert found.rows[:, 3].tolist() == [1, 2, 3] and found.unknown == {"ward": 1}


def test_a_damaged_parquet_file_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "a.parquet", b"PAR1 and so on")
    with pytest.raises(ValueError, match=r"a\.parquet: not a Parquet file that can be read"):
        read_labelled(path, TABLE)


def texts(path: Path) -> list[str]:
    assert isinstance(TEXT.input, TextInput)
    return TEXT.input.decode(read_inputs(path, TEXT).rows)


def test_texts_come_from_tables_with_a_label_column(tmp_path: Path) -> None:
    comma = written(tmp_path / "a.csv", 'Label,SMS\nham,"a, ""b""\nc"\nspam,d\n')
    tab = written(tmp_path / "a.tsv", 'SMS\tLabel\n"a, ""b"" c"\tham\n5" \tspam\n')
    assert texts(comma) == ['a, "b"\nc', "d"]
    assert texts(tab) == ['a, "b" c', '5" ']
    assert read_labelled(comma, TEXT).y.tolist() == read_labelled(tab, TEXT).y.tolist() == [0, 1]
    assert read_labelled(comma, TEXT).x.dtype == np.uint8


def test_lines_of_a_text_file_are_queries(tmp_path: Path) -> None:
    path = written(tmp_path / "a.txt", "one\n\ntwo\n")
    assert texts(path) == ["one", "two"]
    assert list(read_inputs(path, TEXT).lines) == [1, 3]
    with pytest.raises(ValueError, match="no labels"):
        read_labelled(path, TEXT)
    with pytest.raises(ValueError, match="whose inputs are texts"):
        read_inputs(path, TABLE)


def test_a_row_without_text_is_bad(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", "Label,SMS\nham, \nspam,d\n")
    with pytest.raises(BadRowsError, match="line 2: it has no text"):
        read_labelled(path, TEXT)


@pytest.mark.parametrize(
    ("cell", "text"), [('"a"', "a"), ('"a" b"', '"a" b"'), ('"', '"'), ('""', ""), ("a", "a")]
)
def test_quotes_of_a_tsv_cell_are_taken_off_if_they_surround_it(cell: str, text: str) -> None:
    assert unquoted(cell) == text


cells = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12)


@settings(max_examples=60, deadline=None)
@given(st.lists(cells.filter(lambda text: bool(text.strip())), min_size=1, max_size=6))
def test_any_text_comes_through_a_csv_as_it_was(
    tmp_path_factory: pytest.TempPathFactory, given_texts: list[str]
) -> None:
    path = tmp_path_factory.mktemp("csv") / "a.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([["Label", "SMS"], *(["ham", text] for text in given_texts)])
    assert isinstance(TEXT.input, TextInput)
    found = read_labelled(path, TEXT)
    assert np.array_equal(found.x, TEXT.input.encode(given_texts))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.none() | st.floats(-(2.0**39), 2.0**39, width=32),
            st.none() | st.sampled_from(["Female", "Male", "NA"]),
            st.none() | st.sampled_from(["1", "2"]),
        ),
        min_size=1,
        max_size=8,
    )
)
def test_any_row_of_a_table_comes_through_csv_and_parquet_alike(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[Any, ...]]
) -> None:
    folder = tmp_path_factory.mktemp("table")
    lines = [",".join("" if cell is None else str(cell) for cell in row) for row in rows]
    comma = written(folder / "a.csv", "age,sex,ward\n" + "\n".join(lines) + "\n")
    ages, sexes, wards = (list(column) for column in zip(*rows, strict=True))
    given_columns = {
        "age": pa.array(ages, pa.float32()),
        "sex": pa.array(sexes, pa.string()),
        "ward": pa.array([None if ward is None else int(ward) for ward in wards], pa.int64()),
    }
    pq.write_table(pa.table(given_columns), folder / "a.parquet")
    expected = {"age": ages, "sex": sexes, "ward": wards}
    assert columns(comma) == columns(folder / "a.parquet") == expected
