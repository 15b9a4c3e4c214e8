"""Labels are found among a task's classes however they are written, and named again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpc_vote.data.readers.labels import canonical, label_names, match
from mpc_vote.tasks import Task, Vote
from mpc_vote.voting.ballots import MULTI_LABEL
from tests.unit.data.readers.tables import TABLE

ATTRIBUTES = replace(TABLE, classes=("old", "tall", "ill"), vote=Vote(MULTI_LABEL, tau=2))


def with_classes(*names: str) -> Task:
    return replace(TABLE, classes=names)


@pytest.mark.parametrize(
    ("classes", "labels", "found"),
    [
        (("no", "yes"), ["yes", " no ", "no"], [1, 0, 0]),
        (("0", "1"), ["1", "0.0", "1."], [1, 0, 1]),
        (("0", "1"), [1, 0], [1, 0]),
        (("0.0", "1.0"), ["1", "0"], [1, 0]),
        (("false", "true"), ["True", "FALSE", "true"], [1, 0, 1]),
        (("1", "1.0"), ["1.0", "1"], [1, 0]),
        (("a", "b", "c"), np.array([2, 0], np.uint8), [2, 0]),
        (("a", "b"), np.array([True, False]), [1, 0]),
    ],
)
def test_a_class_is_found_by_its_name_or_place(
    classes: tuple[str, ...], labels: Any, found: list[int]
) -> None:
    numbers, bad = match(labels, with_classes(*classes))
    assert (numbers.tolist(), bad) == (found, {})
    assert numbers.dtype == np.int64


def test_what_is_no_class_is_told_with_its_row() -> None:
    _, bad = match(["yes", "perhaps", None, " "], TABLE)
    assert bad == {
        1: "its label 'perhaps' is none of the task's classes (no, yes)",
        2: "it has no label",
        3: "it has no label",
    }
    _, bad = match(np.array([0, -1, 2]), TABLE)
    assert list(bad) == [1, 2]
    # Which of the two it is can't be said.
    assert list(match(["01.0", "1.00"], with_classes("1", "1.0"))[1]) == [0, 1]


def test_attributes_stand_in_one_cell() -> None:
    found, bad = match(["old;ill", "", None, " tall ", "ill; odd"], ATTRIBUTES)
    assert found[:4].tolist() == [[1, 0, 1], [0, 0, 0], [0, 0, 0], [0, 1, 0]]
    assert list(bad) == [4] and "'odd'" in bad[4]
    assert label_names(found[:2], ATTRIBUTES) == ["old;ill", ""]


def test_an_array_of_another_shape_is_refused() -> None:
    with pytest.raises(ValueError, match=r"have the shape \(2,\), not \(2, 1\)"):
        match(np.zeros((2, 1), np.int64), TABLE)
    with pytest.raises(ValueError, match=r"have the shape \(2, 3\)"):
        match(np.zeros(2, np.int64), ATTRIBUTES)


@given(st.lists(st.text(min_size=1, max_size=5), min_size=2, max_size=8, unique=True), st.data())
def test_every_class_is_found_by_its_exact_name(names: list[str], data: st.DataObject) -> None:
    task = with_classes(*names)
    labels = data.draw(st.lists(st.integers(0, len(names) - 1)))
    written = label_names(np.array(labels, np.int64), task)
    if all(name.strip() for name in written):
        found, bad = match(written, task)
        assert (found.tolist(), bad) == (labels, {})


@given(st.text(max_size=8))
def test_the_one_spelling_stays_as_it_is(text: str) -> None:
    assert canonical(canonical(text)) == canonical(text)
