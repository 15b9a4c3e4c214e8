"""A function of inputs alone is a voter; one of data and options makes one."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from mpc_vote.data.dataset import Dataset
from mpc_vote.learning.voters import ModelInputs, VoterOptions, make_voter
from mpc_vote.learning.voters.function import is_function
from mpc_vote.tasks import TableInput, Task, TextInput
from mpc_vote.voting.ballots import ABSTAIN, ONE_HOT
from tests.unit.learning.voters.tasks import PICTURES, TABLE, TEXT, VECTORS


@pytest.fixture
def rules(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = ModuleType("rules_of_mine")
    monkeypatch.setitem(sys.modules, "rules_of_mine", module)
    return module


def ask(rules: ModuleType, function: Any, task: Task, rows: Any, inputs: str = "raw") -> list[int]:
    rules.rule = function  # type: ignore[attr-defined]
    options = VoterOptions(task=task, inputs=ModelInputs(inputs))
    votes: list[int] = make_voter("rules_of_mine:rule", None, options).vote(rows, ONE_HOT).tolist()
    return votes


def test_a_table_comes_by_columns(rules: ModuleType) -> None:
    assert isinstance(TABLE.input, TableInput)
    rows = TABLE.input.encode({"age": [30, 80, None], "ward": ["a", None, "b"]})

    def rule(columns: dict[str, list[Any]]) -> list[str | int]:
        assert set(columns) == {"age", "ward"}
        return ["low" if (age or 0) < 60 else "high" for age in columns["age"]]

    assert ask(rules, rule, TABLE, rows) == [0, 1, 0]


@pytest.mark.parametrize(
    ("task", "rule", "what"),
    [
        (
            TABLE,
            lambda c: ["high" if one > 60 else "low" for one in c["age"]],
            "values are missing",
        ),
        (TABLE, lambda c: [{"a": 0, "b": 1}[one] for one in c["ward"]], "categories are not the"),
        (TEXT, lambda texts: ["spam" if one[0] == "!" else "ham" for one in texts], "is empty"),
        (TABLE, lambda c: [0] * min(len(c["age"]), 2), "values are missing"),
    ],
)
def test_what_can_not_do_without_a_value_is_refused_before_it_could_fail_a_round(
    task: Task, rule: Any, what: str, rules: ModuleType
) -> None:
    with pytest.raises(ValueError, match=f"it votes, but not where .*{what}.*let it fill in"):
        ask(rules, rule, task, None)


def test_texts_come_as_texts(rules: ModuleType) -> None:
    assert isinstance(TEXT.input, TextInput)
    rows = TEXT.input.encode(["hello", "win a prize"])
    found = ask(rules, lambda texts: ["spam" if "win" in t else "ham" for t in texts], TEXT, rows)
    assert found == [0, 1]


def test_pictures_come_as_bytes(rules: ModuleType) -> None:
    rows = np.stack([np.full((3, 4, 5), value, np.uint8) for value in (10, 200)])
    found = ask(rules, lambda x: (x.mean(axis=(1, 2, 3)) > 99).astype(int), PICTURES, rows)
    assert found == [0, 1]


def test_features_come_where_they_are_asked_for(rules: ModuleType) -> None:
    assert isinstance(TABLE.input, TableInput)
    rows = TABLE.input.encode({"age": [30, 80], "ward": ["a", "b"]})
    widths: list[int] = []

    def rule(features: Any) -> Any:
        widths.append(features.shape[1])
        return (features[:, 0] > 0).astype(int)

    assert ask(rules, rule, TABLE, rows, "features") == [0, 1]
    assert min(widths) > 2


def test_a_function_may_abstain(rules: ModuleType) -> None:
    rows = np.zeros((2, 3), np.float32)
    assert ask(rules, lambda x: [ABSTAIN] * len(x), VECTORS, rows) == [ABSTAIN, ABSTAIN]


def test_without_a_task_a_function_gets_points(rules: ModuleType) -> None:
    rules.rule = lambda x: (x[:, 0] > 0).astype(int)  # type: ignore[attr-defined]
    data = Dataset("points", np.zeros((2, 2), np.float32), np.array([0, 1]), 2)
    made = make_voter("rules_of_mine:rule", data, VoterOptions())
    assert made.vote(np.array([[1, 0], [-1, 0]], np.float32), ONE_HOT).tolist() == [1, 0]


def test_a_function_that_fails_on_an_example_is_refused_at_the_start(rules: ModuleType) -> None:
    with pytest.raises(ValueError, match="KeyError: 'weight'"):
        ask(rules, lambda columns: columns["weight"], TABLE, None)


@pytest.mark.parametrize(
    ("function", "inputs", "told"),
    [
        (lambda texts: ["ham"], "raw", "2 queries got 1 answer: the model must give a label"),
        (lambda texts: None, "raw", "2 queries got None: the model must give a label, or a score"),
        (lambda texts: "ham", "raw", "2 queries got a single str: the model must"),
        (lambda texts: texts.x, "raw", "given the texts; with --inputs features it is given the"),
    ],
)
def test_a_function_whose_answer_is_no_vote_says_what_to_give(
    function: Any, inputs: str, told: str, rules: ModuleType
) -> None:
    with pytest.raises(ValueError, match=f"rules_of_mine:rule failed on 2 example rows: .*{told}"):
        ask(rules, function, TEXT, None, inputs)


def test_a_function_of_columns_that_is_given_features_is_told_of_the_columns(
    rules: ModuleType,
) -> None:
    told = r"IndexError: .* task's features, an array; with --inputs raw it is given the columns by"
    with pytest.raises(ValueError, match=told):
        ask(rules, lambda columns: [a > 60 for a in columns["age"]], TABLE, None, "features")


class _Callable:
    def __call__(self, inputs: Any) -> Any: ...


@pytest.mark.parametrize(
    ("made", "function"),
    [
        (lambda inputs: 0, True),
        (lambda inputs, threshold=1: 0, True),
        (_Callable(), True),
        (lambda data, options: 0, False),
        (lambda *_: 0, False),
        (lambda: 0, False),
        (1, False),
    ],
)
def test_functions_and_factories_are_told_apart_by_what_they_take(
    made: Any, function: bool
) -> None:
    assert is_function(made) is function
