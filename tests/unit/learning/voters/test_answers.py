"""What a model says becomes votes, or is refused for what it is."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from mpc_vote.learning.voters.answers import Fault, FaultyAnswer, known_places, labels, scores
from mpc_vote.voting.ballots import ABSTAIN

NAMES = ("benign", "malignant", "unclear")


@pytest.mark.parametrize(
    ("answer", "classes", "places"),
    [
        ([0, 2, 1], NAMES, [0, 2, 1]),
        (np.array([1, 0], np.uint8), NAMES, [1, 0]),
        (["unclear", "benign"], NAMES, [2, 0]),
        (np.array(["benign", "malignant"], object), NAMES, [0, 1]),
        ([ABSTAIN, 1], NAMES, [ABSTAIN, 1]),
        ([True, False], ("no", "yes"), [1, 0]),
        # Where a class is called by a number, numbers are names.
        ([3, 1], ("1", "2", "3"), [2, 0]),
        ([0, 1], ("1", "0"), [1, 0]),
        ([2], ("1", "2", "other"), [1]),
        ([1, 2], ("01", "2.0"), [0, 1]),
        ([1, -1], ("-1", "+1"), [1, 0]),
        (["1", "-1"], ("-1", "1"), [1, 0]),
        ([-1, 1], ("0", "1"), [ABSTAIN, 1]),
        (["-1"], NAMES, [ABSTAIN]),
        ([True, False], ("true", "false"), [0, 1]),
        ([True, False], ("1", "0"), [0, 1]),
        (np.array([1, True, "yes"], object), ("yes", "no"), [1, 1, 0]),
        (["1.0", "2.0"], ("1", "2"), [0, 1]),
        ([[0.1, 0.2, 0.7], [0.5, 0.3, 0.2]], NAMES, [2, 0]),
        ([[-1.5, -2.5, -np.inf]], NAMES, [0]),
        # The lower of equals.
        ([[0.4, 0.4, 0.2]], NAMES, [0]),
    ],
)
def test_labels_by_name_or_place_and_the_highest_score(
    answer: Any, classes: tuple[str, ...], places: list[int]
) -> None:
    found = labels(answer, len(answer), classes)
    assert found.dtype == np.int64
    assert found.tolist() == places


@pytest.mark.parametrize(
    ("answer", "fault"),
    [
        ([0], Fault.ROWS),
        (1, Fault.ROWS),
        (None, Fault.ROWS),
        ([[0.5, 0.5, 0]] * 3, Fault.ROWS),
        ([[0.5, np.nan, 0.5]] * 2, Fault.NAN),
        ([[0.5, 0.5]] * 2, Fault.SHAPE),
        (np.zeros((2, 3, 1)), Fault.SHAPE),
        ([0.0, 1.0], Fault.SHAPE),
        ([0, 3], Fault.LABEL),
        ([0, -2], Fault.LABEL),
        (["benign", "other"], Fault.LABEL),
        (["benign", ""], Fault.LABEL),
        ([None, None], Fault.LABEL),
        ([{}, 1], Fault.LABEL),
    ],
)
def test_what_is_no_answer_to_each_query_is_refused(answer: Any, fault: Fault) -> None:
    with pytest.raises(FaultyAnswer) as caught:
        labels(answer, 2, NAMES)
    assert caught.value.fault is fault


@pytest.mark.parametrize("classes", [("1", "2", "3"), ("-1", "1", "2"), ("1", "01", "2"), NAMES])
@pytest.mark.parametrize("kind", [np.int64, np.bool_, str, object])
def test_what_a_label_means_does_not_depend_on_the_others_of_its_batch(
    classes: tuple[str, ...], kind: Any
) -> None:
    def meaning(batch: list[Any]) -> list[int] | None:
        try:
            places: list[int] = labels(np.array(batch, dtype=kind), len(batch), classes).tolist()
            return places
        except FaultyAnswer:
            return None

    every = [-2, -1, 0, 1, 2, 3]
    alone = {one: meaning([one]) for one in every}
    for pair in product(every, every):
        one, other = (alone[single] for single in pair)
        want = None if one is None or other is None else one + other
        assert meaning(list(pair)) == want


def test_scores_of_attributes_keep_their_values() -> None:
    assert scores([[1, 0], [0, 1]], 2, ("a", "b")).tolist() == [[1.0, 0.0], [0.0, 1.0]]
    for wrong in ([[1, 0]], [[1], [0]], [["a", "b"]] * 2, [[np.nan, 0]] * 2):
        with pytest.raises(FaultyAnswer):
            scores(wrong, 2, ("a", "b"))


def test_a_class_that_the_task_does_not_have_is_named() -> None:
    assert known_places(np.array(["unclear", "benign"]), NAMES).tolist() == [2, 0]
    with pytest.raises(ValueError, match="'metastatic', and the classes are benign"):
        known_places(np.array(["benign", "metastatic"]), NAMES)
