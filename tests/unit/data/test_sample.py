"""A task is drafted from a public sample: kinds, scales, categories, classes, and what is odd."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from mpc_vote.data.readers.sheet import read_sheet
from mpc_vote.data.sample import Draft, Wishes, draft_lines, draft_pictures, draft_sheet
from mpc_vote.tasks import CategoryColumn, Column, ImageInput, NumberColumn, TableInput, TextInput

ROWS = 40


def drafted(path: Path, columns: Mapping[str, Sequence[object]], **wishes: object) -> Draft:
    """From a table with these columns and a label."""
    given = {**columns, "label": ["no", "yes"] * (ROWS // 2)}
    lines = [
        ",".join(given),
        *(",".join(map(str, row)) for row in zip(*given.values(), strict=True)),
    ]
    (path / "s.csv").write_text("\n".join(lines))
    return draft_sheet(read_sheet(path / "s.csv"), Wishes("label", **wishes))  # type: ignore[arg-type]


def only(draft: Draft) -> Column:
    assert isinstance(draft.input, TableInput)
    (column,) = draft.input.columns
    return column


def test_numbers_are_measured_and_one_typing_error_does_not_set_the_scale(tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(60, 10, 4000)
    given = "age,label\n" + "".join(f"{value:.3f},a\n7,b\n" for value in values)
    column = []
    for name, more in (("a.csv", ""), ("b.csv", "1e9,a\n")):
        (tmp_path / name).write_text(given.replace("7,b\n", "") + more + "60,b\n")
        column.append(only(draft_sheet(read_sheet(tmp_path / name), Wishes("label"))))
    for one in column:
        assert isinstance(one, NumberColumn)
        assert one.center == pytest.approx(60, abs=1) and one.scale == pytest.approx(10, abs=0.5)


def test_decimal_commas_are_refused_and_do_not_become_categories(tmp_path: Path) -> None:
    cells = [f'"{place},5"' for place in range(ROWS - 1)] + ['"7"']
    with pytest.raises(ValueError, match=r"line 2: column 'x' .* decimal comma, such as '0,5'"):
        drafted(tmp_path, {"x": cells})
    codes = drafted(tmp_path, {"x": ['"1,5"', '"2,5"'] * (ROWS // 2)}, categories=("x",))
    assert isinstance(only(codes), CategoryColumn)


def test_two_values_are_as_far_apart_as_two_categories(tmp_path: Path) -> None:
    for rare in (1, 20):
        flags = [1] * rare + [0] * (ROWS - rare)
        column = only(drafted(tmp_path, {"flag": flags}))
        assert isinstance(column, NumberColumn)
        assert (1 / column.scale) ** 2 == pytest.approx(2, rel=1e-3)


def test_missing_cells_and_a_few_wrong_ones_do_not_make_a_category(tmp_path: Path) -> None:
    values = ["", "NA", "abc", *np.linspace(0, 1, ROWS - 3)]
    draft = drafted(tmp_path, {"a": values})
    assert isinstance(only(draft), NumberColumn)
    assert draft.notes == ["'a' has 1 cells that are no usable numbers"]


def test_categories_are_the_most_frequent_ones(tmp_path: Path) -> None:
    values = ["b"] * 20 + ["a"] * 10 + ["NA"] * 5 + ["d"] * 3 + ["c"] * 2
    draft = drafted(tmp_path, {"a": values}, max_categories=3)
    assert only(draft) == CategoryColumn("a", ("a", "b", "d"))
    assert draft.notes == ["'a' has 1 rarer values, which become \"any other\""]


def test_codes_are_categories_if_one_says_so(tmp_path: Path) -> None:
    values = [10, 9, 2, 1] * (ROWS // 4)
    assert isinstance(only(drafted(tmp_path, {"a": values})), NumberColumn)
    as_said = only(drafted(tmp_path, {"a": values}, categories=("a",)))
    assert as_said == CategoryColumn("a", ("1", "2", "9", "10"))


def test_what_can_say_nothing_is_left_out_and_what_looks_like_an_identifier_told(
    tmp_path: Path,
) -> None:
    draft = drafted(
        tmp_path,
        {
            "pid": list(range(ROWS)),
            "name": [f"patient {n}" for n in range(ROWS)],
            "same": [1] * ROWS,
            "nothing": [""] * ROWS,
            "age": [n % 7 + 0.5 for n in range(ROWS)],
        },
        ignored=(),
    )
    assert isinstance(draft.input, TableInput)
    assert [column.name for column in draft.input.columns] == ["age"]
    assert draft.input.ignored == ("pid", "name", "same", "nothing")
    told = "; ".join(draft.notes)
    for words in (
        "'pid' is left out: it looks like an identifier",
        "'name' is left out: nearly all",
        "'same' is",
    ):
        assert words in told
    again = drafted(tmp_path, {"pid": [1] * ROWS, "age": [*range(5)] * 8}, ignored=("pid",))
    assert isinstance(again.input, TableInput) and again.input.ignored == ("pid",)


@pytest.mark.parametrize(
    ("name", "values", "kept"),
    [
        ("pid", [7 * n for n in range(ROWS)], False),
        ("number", [900 + n for n in range(ROWS)], False),  # as if somebody had counted
        ("pid", [n // 2 for n in range(ROWS)], True),
        ("income", [n * n for n in range(ROWS)], True),
        ("age", [20 + n % 30 for n in range(ROWS)], True),
    ],
)
def test_identifiers_are_left_out_and_measurements_are_not(
    name: str, values: list[int], kept: bool, tmp_path: Path
) -> None:
    draft = drafted(tmp_path, {"x": [*range(5)] * 8, name: values})
    assert isinstance(draft.input, TableInput)
    assert (name in [column.name for column in draft.input.columns]) is kept
    assert (name in draft.input.ignored) is not kept


@pytest.mark.parametrize(
    "name",
    [
        *("PatientID", "patientId", "patient_id", "Patient Id", "patientid", "PATIENT_ID", "ID"),
        *(
            "id_patient",
            "MRN",
            "patient.mrn",
            "Medical Record Number",
            "CaseNo",
            "case nr",
            "rowid",
        ),
        *("Row Names", "hospital number", "subject-key", "NHS no"),
    ],
)
def test_identifiers_are_known_by_their_names(name: str, tmp_path: Path) -> None:
    values = [37 * n * n + 100_003 for n in range(ROWS)]
    draft = drafted(tmp_path, {"x": [*range(5)] * 8, name: values})
    assert isinstance(draft.input, TableInput) and draft.input.ignored == (name,)


@pytest.mark.parametrize(
    "name",
    [
        *("steroid", "UricAcid", "Lactic acid", "COVID", "lipid", "thyroid_tsh", "ideal_weight"),
        *("Platelets", "mass index", "number of visits", "no", "rowing_watts", "idle"),
    ],
)
def test_measurements_are_not_taken_for_identifiers(name: str, tmp_path: Path) -> None:
    values = [37 * n * n + 100_003 for n in range(ROWS - 1)] + [100_003]
    draft = drafted(tmp_path, {"x": [*range(5)] * 8, name: values})
    assert isinstance(draft.input, TableInput)
    assert (draft.input.ignored, draft.notes) == ((), [])


@pytest.mark.parametrize("date", ["2024-03-0{}", "0{}.03.2024", "{}/3/24", "2024-03-0{}T10:00:00Z"])
def test_dates_are_left_out_from_a_text_file_as_from_a_typed_one(date: str, tmp_path: Path) -> None:
    days = [date.format(1 + n % 9) for n in range(ROWS)]
    draft = drafted(tmp_path, {"x": [*range(5)] * 8, "day": days})
    assert isinstance(draft.input, TableInput) and draft.input.ignored == ("day",)
    assert "'day' is left out: it holds dates" in draft.notes[0]
    kept = drafted(tmp_path, {"day": days}, categories=("day",))
    assert isinstance(only(kept), CategoryColumn)


def test_values_that_no_task_can_list_are_told_as_such(tmp_path: Path) -> None:
    values = ["a", "b", "c" * 5_000, "a"] * (ROWS // 4)
    draft = drafted(tmp_path, {"x": values})
    assert draft.notes == [
        "'x' has 1 values of over 200 characters or of none that are printed, "
        'which become "any other"'
    ]


def test_labels_that_look_like_a_measurement_are_told(tmp_path: Path) -> None:
    rows = "".join(f"{n % 5},{n % 25 / 10}\n" for n in range(100))
    (tmp_path / "s.csv").write_text(f"a,s6\n{rows}")
    (note,) = draft_sheet(read_sheet(tmp_path / "s.csv"), Wishes("s6")).notes
    assert "'s6' has 25 different numbers, and each became a class: if it is a measurem" in note


def test_lists_in_a_parquet_file_are_left_out(tmp_path: Path) -> None:
    columns = {"x": [*range(5)] * 8, "codes": [[1, 2]] * ROWS, "y": ["no", "yes"] * (ROWS // 2)}
    pq.write_table(pa.table(columns), tmp_path / "s.parquet")
    sheet = read_sheet(tmp_path / "s.parquet")
    draft = draft_sheet(sheet, Wishes("y"))
    assert isinstance(draft.input, TableInput) and draft.input.ignored == ("codes",)
    assert "'codes' is left out: it holds list<" in draft.notes[0]
    with pytest.raises(ValueError, match=r"column 'codes' holds list<.*not one value a row"):
        draft_sheet(sheet, Wishes("codes"))


@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        (["yes", "no"], ["no", "yes"]),
        (["10", "9.0", "9"], ["9", "10"]),
        (["True", "False", ""], ["false", "true"]),
    ],
)
def test_classes_are_those_of_the_sample_in_order(
    labels: list[str], classes: list[str], tmp_path: Path
) -> None:
    text = "".join(f"{n % 5},{labels[n % len(labels)]}\n" for n in range(30))
    (tmp_path / "s.csv").write_text(f"a,label\n{text}")
    assert draft_sheet(read_sheet(tmp_path / "s.csv"), Wishes("label")).classes == classes


def test_classes_that_are_named_come_first(tmp_path: Path) -> None:
    draft = drafted(tmp_path, {"a": [*range(5)] * 8}, classes=("yes", "unsure"))
    assert draft.classes == ["yes", "unsure"]
    assert draft.notes == ["labels of the sample that are none of the classes: 'no'"]


def test_one_column_of_prose_is_a_text(tmp_path: Path) -> None:
    sizes = [*[20] * 99, 3000]
    rows = "".join(f"{('word ' * size)[:size]}.\tham\n" for size in sizes)
    (tmp_path / "s.tsv").write_text(f"SMS\tLabel\n{rows}")
    sheet = read_sheet(tmp_path / "s.tsv")
    assert draft_sheet(sheet, Wishes("Label")).input == TextInput(64, "SMS", "Label")
    (tmp_path / "s.csv").write_text("id,note,label\n" + "1,short,a\n2,too,b\n" * 20)
    wishes = Wishes("label", text="note")
    assert draft_sheet(read_sheet(tmp_path / "s.csv"), wishes).input == TextInput(
        64, "note", "label"
    )


def test_lines_are_texts_whose_classes_are_named(tmp_path: Path) -> None:
    (tmp_path / "s.txt").write_text("one text\n\nand another of " + "more words " * 20)
    draft = draft_lines(tmp_path / "s.txt", Wishes(classes=("a", "b")))
    assert (draft.input, draft.rows) == (TextInput(256, "text", "label"), 2)
    with pytest.raises(ValueError, match="it has no labels: name the classes"):
        draft_lines(tmp_path / "s.txt", Wishes())


def test_attributes_are_the_parts_of_labels(tmp_path: Path) -> None:
    (tmp_path / "s.csv").write_text("a,label\n1,old;ill\n2,\n3,tall; old\n")
    sheet = read_sheet(tmp_path / "s.csv")
    found = draft_sheet(sheet, Wishes("label", attributes=True))
    assert found.classes == ["ill", "old", "tall"]


@pytest.mark.parametrize(
    ("text", "wishes", "why"),
    [
        ("a,b\n1,x\n", Wishes(), r"the labels \(--label\): one of 'a', 'b'"),
        ("a,b\n1,x\n", Wishes("c"), "it has no column 'c', only 'a', 'b'"),
        ("a,b\n1,x\n", Wishes("b", ignored=("z",)), "it has no column 'z'"),
        ("a,Outcome\n1,x\n", Wishes("outcome"), r"'outcome' \(is it 'Outcome'\?\), only 'a'"),
        (
            "a,b\n1,died\n2,survived\n",
            Wishes("b", classes=("dead", "alive")),
            "no label in column 'b' is one of the .*: the labels are 'died', 'survived'",
        ),
        ("a,b\n", Wishes("b"), "it has no rows"),
        ("a,b\n1\n", Wishes("b"), "line 2: it has 1 cells, the header 2"),
        ("a,b\n1,x\n1,y\n", Wishes("b"), "no column is left.*'a' is left out: it is the same"),
        (
            "a,b\n" + "".join(f"1,{n}\n" for n in range(50)),
            Wishes("b"),
            "'b' has 50 different values in 50 rows: is it a class?",
        ),
    ],
)
def test_a_sample_that_says_too_little_is_refused(
    text: str, wishes: Wishes, why: str, tmp_path: Path
) -> None:
    (tmp_path / "s.csv").write_text(text)
    with pytest.raises(ValueError, match=why):
        draft_sheet(read_sheet(tmp_path / "s.csv"), wishes)


def test_pictures_say_their_size_colour_and_classes(tmp_path: Path) -> None:
    for name in ("b", "a"):
        (tmp_path / name).mkdir()
        Image.new("L", (20, 30)).save(tmp_path / name / "x.png")
    draft = draft_pictures(tmp_path, Wishes())
    assert (draft.input, draft.classes, draft.rows) == (ImageInput(30, 20, 1), ["a", "b"], 2)
    Image.new("RGB", (10, 10)).save(tmp_path / "a" / "y.png")
    mixed = draft_pictures(tmp_path, Wishes())
    assert mixed.input == ImageInput(224, 224, 3)
    assert "2 different sizes" in mixed.notes[0]
    assert draft_pictures(tmp_path, Wishes(size=(8, 9))).input == ImageInput(8, 9, 3)
    flat = tmp_path / "a"
    with pytest.raises(ValueError, match="name the classes with --classes, or give a folder"):
        draft_pictures(flat, Wishes())
    assert draft_pictures(flat, Wishes(classes=("p", "q"))).classes == ["p", "q"]
