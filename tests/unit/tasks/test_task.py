"""A task's file is read strictly, has one digest whatever its layout, and says what differs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpc_vote.tasks import CategoryColumn, NumberColumn, TableInput, Task, TaskError, TextInput
from mpc_vote.tasks.toml import dump

TABLE = """
format = 1
name = "sepsis"
classes = ["no", "yes"]

[input]
kind = "table"
label = "died"
ignored = ["pid"]

[[input.columns]]
name = "age"
kind = "number"
center = 61.5
scale = 16.0

[[input.columns]]
name = "sex \\"m/f\\""
kind = "category"
values = ["Female", "Male"]

[features]
map = "standard"

[vote]
ballot = "knn_count"
k = 50
reach = 0.07
"""

OTHERS = {
    "vector": 'kind = "vector"\nshape = [28, 28]',
    "image": 'kind = "image"\nheight = 32\nwidth = 24\nchannels = 3',
    "text": 'kind = "text"\ntext = "SMS"\nlabel = "Label"\nmax_bytes = 8',
}


def of_kind(kind: str) -> str:
    return (
        f'format = 1\nname = "t"\nclasses = ["a", "b"]\n[input]\n{OTHERS[kind]}\n'
        '[features]\nmap = "raw"\n[vote]\nballot = "one_hot"\n'
    )


@pytest.mark.parametrize("text", [TABLE, *(of_kind(kind) for kind in OTHERS)])
def test_a_task_is_the_same_after_it_is_written_and_read_again(text: str) -> None:
    task = Task.parse(text)
    assert Task.parse(dump(task, ("Made from public data.",))) == task
    again = Task.from_wire(task.wire)
    assert again == task and again.digest == task.digest


def test_the_digest_is_of_the_content_not_of_its_layout() -> None:
    loose = TABLE.replace("k = 50\nreach = 0.07", "reach=7e-2 # public\nk = 50")
    assert Task.parse(loose).digest == Task.parse(TABLE).digest
    assert Task.parse(TABLE.replace("k = 50", "k = 51")).digest != Task.parse(TABLE).digest


@pytest.mark.parametrize(
    ("one", "other"), [("p = 1", "p = 1.0"), ("p = 0", "p = -0.0"), ("p = 100", "p = 1e2")]
)
def test_a_number_is_the_same_however_it_is_written(one: str, other: str) -> None:
    head = 'map = "standard"\n'
    first, second = (Task.parse(TABLE.replace(head, f"{head}{line}\n")) for line in (one, other))
    assert first.digest == second.digest == Task.from_wire(second.wire).digest
    different = Task.parse(TABLE.replace(head, f"{head}p = 1.5\n"))
    assert first.digest != different.digest
    assert first.differences(different) == [f"features.p is {one[4:]} here, 1.5 there"]


@pytest.mark.parametrize(
    "change",
    [("scale = 16.0", "scale = 16"), ("reach = 0.07", "reach = 7e-2"), ("61.5", "615e-1")],
)
def test_so_is_every_other_number_of_a_task(change: tuple[str, str]) -> None:
    assert Task.parse(TABLE.replace(*change)).digest == Task.parse(TABLE).digest


def test_differences_are_named_one_by_one() -> None:
    other = TABLE.replace("k = 50", "k = 20").replace("61.5", "60.0").replace(', "Male"', "")
    found = Task.parse(TABLE).differences(Task.parse(other))
    assert found == [
        "input.columns[age].center is 61.5 here, 60.0 there",
        'input.columns[sex "m/f"].values is ["Female", "Male"] here, ["Female"] there',
        "vote.k is 50 here, 20 there",
    ]
    assert Task.parse(TABLE).differences(Task.parse(TABLE)) == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("format = 1", "format = 2"), "format"),
        (('name = "sepsis"', 'name = "Sepsis!"'), "lower-case"),
        (('["no", "yes"]', '["no", "no"]'), "twice"),
        (('["no", "yes"]', '["no"]'), "classes"),
        (('["no", "yes"]', '"no"'), "list"),
        (('kind = "table"', 'kind = "tables"'), "input.kind"),
        (("scale = 16.0", "scale = 0.0"), "scale"),
        (("scale = 16.0", "scale = nan"), "scale"),
        (("scale = 16.0", "skale = 16.0"), "scale is missing"),
        (('label = "died"', 'label = "age"'), "twice"),
        (("k = 50", "k = 0"), "vote.k"),
        (("k = 50", "k = true"), "vote.k"),
        (("k = 50", "k = 50\nkk = 1"), "vote.kk"),
        (("reach = 0.07", "reach = 1.5"), "reach"),
        (('"knn_count"', '"knn"'), "knn_count"),
        (('ballot = "knn_count"', 'ballot = "multi_label"'), "tau"),
        (("[features]", "[feature]"), "features is missing"),
        (('"Female", "Male"', ""), "values"),
        (('map = "standard"', 'map = "standard"\nlist = [1]'), "features.list"),
        (("format = 1", "format = ["), "TOML"),
    ],
)
def test_what_can_not_be_used_is_refused_by_name(change: tuple[str, str], said: str) -> None:
    assert change[0] in TABLE
    with pytest.raises(TaskError, match=said):
        Task.parse(TABLE.replace(*change))


@pytest.mark.parametrize("part", ["a", '"a"', "'a'", '"\\""', "a "])
def test_a_key_of_very_many_parts_is_refused_before_it_is_parsed(part: str) -> None:
    """The parser's time grows with the square of their number: half a million take hours."""
    key = ".".join([part] * 200_000)
    for text in (f"{key} = 1", f"[{key}]"):
        with pytest.raises(TaskError, match="a key has too many parts"):
            Task.parse(text)


def test_a_text_may_have_as_many_parts_as_it_has_room_for() -> None:
    name = ".".join("a" * 100)
    assert Task.parse(TABLE.replace('"no"', f'"{name}"')).classes[0] == name


def test_a_file_that_can_not_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match=r"none\.toml.*No such file"):
        Task.load(tmp_path / "none.toml")
    (tmp_path / "task.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(TaskError, match=r"task\.toml"):
        Task.load(tmp_path / "task.toml")


def test_a_table_is_decoded_as_it_was() -> None:
    table = Task.parse(TABLE).input
    assert isinstance(table, TableInput)
    rows = table.encode({"age": [70.5, None, float("nan")], 'sex "m/f"': ["Male", None, "x"]})
    assert rows.dtype == np.float32 and rows.tolist() == [[70.5, 1, 2], [0, 0, 0], [0, 0, 3]]
    assert table.decode(rows) == {"age": [70.5, None, None], 'sex "m/f"': ["Male", None, None]}


@pytest.mark.parametrize("row", [[1, 2, 0], [1, 0, 0], [1, 1, 4], [1, 1, 0.5], [np.nan, 1, 0]])
def test_rows_that_no_table_encodes_are_refused(row: list[float]) -> None:
    table = TableInput((NumberColumn("a", 0, 1), CategoryColumn("b", ("x", "y"))), "label")
    good = np.array([[1, 1, 3]], dtype=np.float32)
    table.check(good)
    with pytest.raises(ValueError, match="row 1"):
        table.check(np.concatenate([good, np.array([row], dtype=np.float32)]))


@given(
    st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")), max_size=5)
)
def test_texts_that_fit_come_back_and_longer_ones_are_cut_between_characters(
    texts: list[str],
) -> None:
    text = TextInput(8, "SMS", "Label")
    rows = text.encode(texts)
    text.check(rows)
    for before, after in zip(texts, text.decode(rows), strict=True):
        assert before.startswith(after)
        assert after == before or (len(before.encode()) > 8 and len(after.encode()) > 4)


HUGE = 10**400


@pytest.mark.parametrize(
    ("found", "instead"),
    [
        ('"center":61.5', f'"center":{HUGE}'),
        ('"scale":16.0', f'"scale":{HUGE}'),
        ('"scale":16.0', '"scale":NaN'),
        ('"reach":0.07', f'"reach":{HUGE}'),
        ('"map":"standard"', f'"map":"standard","a":{HUGE}'),
        ('"map":"standard"', '"map":"standard","a":NaN'),
        ('"map":"standard"', '"map":"standard","\\ud800":1'),
        ('"map":"standard"', '"map":"standard","\\u001b[2J":1'),
        ('"format":1', '"format":1,"\\ud800":1'),
        ('"format":1', f'"format":1,"{"x" * 100_000}":1'),
    ],
)
def test_whoever_sends_a_task_is_refused_in_words_that_can_be_shown(
    found: str, instead: str
) -> None:
    wire = Task.parse(TABLE).wire.decode()
    assert found in wire
    with pytest.raises(TaskError) as refused:
        Task.from_wire(wire.replace(found, instead).encode())
    assert str(refused.value).isprintable() and len(str(refused.value)) < 500


@pytest.mark.parametrize("number", ["1" * 5_000, "0x" + "f" * 5_000])
def test_a_number_of_too_many_digits_is_no_task(number: str) -> None:
    with pytest.raises(TaskError):
        Task.parse(TABLE.replace('"standard"', f'"standard"\na = {number}'))


def test_a_task_may_bound_what_a_record_contributes_and_name_it_by_an_identifier() -> None:
    text = TABLE.replace('label = "died"\nignored = ["pid"]', 'label = "died"\nidentifier = "pid"')
    task = Task.parse(f"{text}radius = 2\nmax_contributions = 60\n")
    assert (task.vote.radius, task.vote.max_contributions) == (2.0, 60)
    assert isinstance(task.input, TableInput) and task.input.identifier == "pid"
    assert Task.parse(dump(task)) == task == Task.from_wire(task.wire)
    other = Task.parse(f"{text}radius = 2\nmax_contributions = 61\n")
    assert task.differences(other) == ["vote.max_contributions is 60 here, 61 there"]
    # Who bounds nothing has the task, and the digest, that it had before.
    assert b"radius" not in Task.parse(TABLE).wire
    assert b"identifier" not in Task.parse(TABLE).wire


@pytest.mark.parametrize(
    ("found", "instead", "why"),
    [
        ("k = 50", "k = 50\nmax_contributions = 9", "takes a kNN ballot and a radius"),
        ("k = 50", "k = 50\nradius = 1\nmax_contributions = 0", "whole number from 1"),
        ("k = 50", "k = 50\nradius = 1\nmax_contributions = 1.5", "whole number from 1"),
        ("k = 50", "k = 50\nradius = 0", "strictly between"),
        ("k = 50", "k = 50\nradius = 1e16", "strictly between"),
        (
            'ballot = "knn_count"',
            'ballot = "one_hot"\nradius = 1\nmax_contributions = 9',
            "takes a kNN ballot",
        ),
        (
            'ballot = "knn_count"',
            'ballot = "multi_label"\ntau = 1\nradius = 1',
            "have no radius",
        ),
        ('ignored = ["pid"]', 'ignored = ["pid"]\nidentifier = "pid"', "twice"),
        ('ignored = ["pid"]', 'identifier = "age"', "twice"),
    ],
)
def test_a_bound_without_what_it_stands_on_is_refused(found: str, instead: str, why: str) -> None:
    with pytest.raises(TaskError, match=why):
        Task.parse(TABLE.replace(found, instead))
