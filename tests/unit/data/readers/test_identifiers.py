"""Records of a table are known by the task's column of identifiers, which must tell them apart."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from mpc_vote.data import identity
from mpc_vote.data.readers import BadRowsError, read_inputs, read_labelled, read_records
from mpc_vote.data.readers.report import fit
from mpc_vote.tasks import TableInput, Task
from tests.unit.data.readers.tables import HEADER, TABLE, written

assert isinstance(TABLE.input, TableInput)
NAMED = replace(
    TABLE,
    input=replace(
        TABLE.input,
        identifier="pid",
        ignored=tuple(name for name in TABLE.input.ignored if name != "pid"),
    ),
)
ROWS = f"{HEADER}a,50,Male,1,yes\nb,61.5,Female,2,no\n"


def clinic(folder: Path, text: str, task: Task = NAMED) -> identity.IdentityArray:
    return read_labelled(written(folder / "clinic.csv", text), task).identities()


def test_a_record_keeps_its_name_when_it_is_edited_or_moved(tmp_path: Path) -> None:
    assert HEADER.startswith("pid,")
    names = clinic(tmp_path, ROWS)
    assert (names == identity.of_identifiers(["a", "b"])).all()
    edited = f"{HEADER} b ,62,Male,2,yes\na,50,Male,1,no\n"
    assert (clinic(tmp_path, edited) == names[::-1]).all()
    assert (clinic(tmp_path, edited, TABLE)[1] == clinic(tmp_path, ROWS, TABLE)[0]).all()


def test_identifiers_are_no_inputs_and_queries_need_none(tmp_path: Path) -> None:
    path = written(tmp_path / "clinic.csv", ROWS)
    assert read_labelled(path, NAMED).x.tolist() == read_labelled(path, TABLE).x.tolist()
    assert read_records(path, NAMED).extra == ()
    without = "\n".join(line.partition(",")[2] for line in ROWS.splitlines()) + "\n"
    asked = written(tmp_path / "queries.csv", without)
    assert len(read_inputs(asked, NAMED)) == 2
    with pytest.raises(ValueError, match="no column 'pid', by which the task"):
        read_labelled(asked, NAMED)


def test_a_row_without_an_identifier_is_bad_and_two_of_one_are_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "clinic.csv", f"{ROWS} ,50,Male,1,yes\n")
    with pytest.raises(BadRowsError, match="line 4: it has no pid"):
        read_labelled(path, NAMED)
    assert len(read_labelled(path, NAMED, bad_rows="skip")) == 2
    found = fit(read_records(path, NAMED), NAMED, labelled=True)
    assert [one.why for one in found.bad] == ["it has no pid"]
    twice = written(tmp_path / "twice.csv", f"{ROWS}a,70,Male,1,yes\n")
    with pytest.raises(ValueError, match="lines 2 and 4 have the same pid"):
        read_labelled(twice, NAMED, bad_rows="skip")
    with pytest.raises(ValueError, match="lines 2 and 4 have the same pid"):
        fit(read_records(twice, NAMED), NAMED, labelled=True)
