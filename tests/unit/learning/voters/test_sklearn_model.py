"""Estimators that skops saved vote; what could hold code is refused."""

from __future__ import annotations

import pickle
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import skops.io
from sklearn.compose import ColumnTransformer
from sklearn.feature_extraction.text import CountVectorizer, HashingVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.multioutput import MultiOutputClassifier
from sklearn.pipeline import FeatureUnion, make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler

from mpc_vote.learning.features import for_task
from mpc_vote.learning.voters import ModelInputs, Voter, VoterOptions, make_voter
from mpc_vote.learning.voters.sklearn_model import _frame, _vectorizers
from mpc_vote.tasks import TableInput, Task, TextInput
from mpc_vote.voting.ballots import MULTI_LABEL, ONE_HOT
from tests.unit.learning.voters.tasks import ATTRIBUTES, SIGNS, TABLE, TEXT, VECTORS

VECTOR_ROWS = np.array([[-2, 0, 0], [0, 0, 0], [2, 0, 0]], np.float32)


def fitted(labels: Any, model: Any = None) -> Any:
    x = np.repeat(VECTOR_ROWS, 20, axis=0) + 0.01 * np.arange(60)[:, None].astype(np.float32) % 0.1
    return (model or LogisticRegression(C=100)).fit(x, np.repeat(labels, 20))


def voter(path: Path, model: Any, task: Task = VECTORS, **options: Any) -> Voter:
    skops.io.dump(model, path)
    return make_voter("sklearn", None, VoterOptions(task=task, model=str(path), **options))


@pytest.mark.parametrize("labels", [[0, 1, 2], ["minus", "zero", "plus"]])
def test_labels_are_places_or_names_of_classes(labels: list[Any], tmp_path: Path) -> None:
    model = fitted(labels, make_pipeline(StandardScaler(), LogisticRegression(C=100)))
    made = voter(tmp_path / "m.skops", model)
    assert made.vote(VECTOR_ROWS, ONE_HOT).tolist() == [0, 1, 2]


@pytest.mark.parametrize("labels", [[-1, 0, 1], ["-1", "0", "1"]])
def test_a_class_that_is_called_minus_one_is_voted_for(labels: list[Any], tmp_path: Path) -> None:
    made = voter(tmp_path / "m.skops", fitted(labels), SIGNS)
    assert made.vote(VECTOR_ROWS, ONE_HOT).tolist() == [0, 1, 2]


def test_classes_by_place_are_refused_at_the_start_where_numbers_are_names(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"'2', and the classes are -1, 0, 1: .* numbers are names"
    ):
        voter(tmp_path / "m.skops", fitted([0, 1, 2]), SIGNS)


def test_an_estimator_votes_for_what_it_predicts(tmp_path: Path) -> None:
    made = voter(tmp_path / "m.skops", fitted(["minus", "zero", "plus"]))
    assert made.vote(VECTOR_ROWS[::-1], ONE_HOT).tolist() == [2, 1, 0]


def test_an_estimator_that_knows_some_classes_only_votes_for_those(tmp_path: Path) -> None:
    made = voter(tmp_path / "m.skops", fitted(["plus", "plus", "minus"]))
    assert made.vote(VECTOR_ROWS, ONE_HOT).tolist() == [2, 2, 0]


def test_tables_come_as_the_tasks_features(tmp_path: Path) -> None:
    assert isinstance(TABLE.input, TableInput)
    rows = TABLE.input.encode({"age": [20, 80, None], "ward": ["a", "b", "c"]})
    model = LogisticRegression().fit(for_task(TABLE)(rows), [0, 1, 1])
    assert voter(tmp_path / "m.skops", model, TABLE).vote(rows, ONE_HOT).tolist() == [0, 1, 1]


def test_attributes_are_scored_by_probability(tmp_path: Path) -> None:
    x = np.array([[-1, -1], [-1, 1], [1, -1], [1, 1]] * 5, np.float32)
    model = MultiOutputClassifier(LogisticRegression()).fit(x, (x > 0).astype(int))
    made = voter(tmp_path / "m.skops", model, ATTRIBUTES)
    assert made.kinds == (MULTI_LABEL,)
    found = made.vote(x[:4], MULTI_LABEL)
    assert ((found > 0.5) == (x[:4] > 0)).all()


def test_columns_by_name_say_that_pandas_is_missing(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['pandas'] = None\n"
        "from mpc_vote.learning.voters.sklearn_model import _frame\n_frame(None)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert "pip install pandas, or leave --inputs at features" in done.stderr


def test_that_pandas_is_missing_is_told_before_types_are_to_be_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    model = make_pipeline(FunctionTransformer(np.nan_to_num), LogisticRegression())
    with pytest.raises(ValueError, match="pip install pandas"):
        voter(tmp_path / "m.skops", model, TABLE, inputs=ModelInputs.RAW)


@pytest.mark.parametrize(("age", "ward"), [(1.0, "a"), (None, None)])
def test_columns_by_name_come_as_a_data_frame_of_the_same_types_whatever_is_missing(
    age: float | None, ward: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pandas", SimpleNamespace(DataFrame=lambda columns: columns))
    assert isinstance(TABLE.input, TableInput)
    frame = _frame(TABLE.input)({"age": [age], "ward": [ward]})
    assert list(frame) == ["age", "ward"]
    assert [column.dtype for column in frame.values()] == [np.float64, np.object_]
    assert frame["ward"].tolist() == [ward] and np.isnan(frame["age"][0]) == (age is None)


@pytest.mark.parametrize(
    "around",
    [
        lambda names: names,
        lambda names: make_pipeline(names),
        lambda names: FeatureUnion([("one", CountVectorizer()), ("two", names)]),
        lambda names: make_pipeline(
            FunctionTransformer(np.reshape, kw_args={"shape": (-1, 1)}),
            ColumnTransformer([("texts", names, 0)]),
        ),
    ],
)
def test_no_query_is_taken_for_the_name_of_a_file(
    around: Callable[[Any], Any], tmp_path: Path
) -> None:
    assert isinstance(TEXT.input, TextInput)
    vectors = make_pipeline(around(HashingVectorizer(n_features=16)), LogisticRegression())
    model = vectors.fit(np.array(["win now", "hello"] * 5), ["spam", "ham"] * 5)
    trusted = ("numpy.reshape",)
    made = voter(tmp_path / "m.skops", model, TEXT, inputs=ModelInputs.RAW, trusted=trusted)
    assert made.vote(TEXT.input.encode(["win now", "hello"]), ONE_HOT).tolist() == [1, 0]
    for part in _vectorizers(model):
        part.input = "filename"
    with pytest.raises(ValueError, match="takes queries for names of files to read: make it with"):
        voter(tmp_path / "m.skops", model, TEXT, inputs=ModelInputs.RAW, trusted=trusted)


def test_a_packed_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.skops"
    skops.io.dump(fitted([0, 1, 2]), path, compression=zipfile.ZIP_DEFLATED)
    with pytest.raises(ValueError, match="unpacked: save it without compression"):
        make_voter("sklearn", None, VoterOptions(task=VECTORS, model=str(path)))


def test_types_that_are_not_known_to_be_harmless_need_the_owners_word(tmp_path: Path) -> None:
    pipeline = fitted([0, 1, 2], make_pipeline(FunctionTransformer(), LogisticRegression()))
    pipeline.set_params(functiontransformer__func=pickle.loads)
    with pytest.raises(ValueError, match=r"not known to be harmless: (\w+\.)*loads.*--trust"):
        voter(tmp_path / "m.skops", pipeline)


def test_types_that_the_owner_trusts_are_loaded(tmp_path: Path) -> None:
    model = make_pipeline(FunctionTransformer(np.nan_to_num), LogisticRegression())
    pipeline = fitted([0, 1, 2], model)
    with pytest.raises(ValueError, match=r"--trust") as caught:
        voter(tmp_path / "m.skops", pipeline)
    named = str(caught.value).partition("--trust ")[2].split(",")
    assert voter(tmp_path / "m.skops", pipeline, trusted=tuple(named)).kinds == (ONE_HOT,)


class Bomb:
    def __reduce__(self) -> tuple[Any, ...]:
        return exec, ("raise SystemExit('unpickled')",)


@pytest.mark.parametrize("content", [pickle.dumps(Bomb()), b"", b"PK\x03\x04 no archive"])
def test_pickles_and_other_files_are_not_loaded(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "model.pkl"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"skops.io.dump; pickle and joblib files are not loaded"):
        make_voter("sklearn", None, VoterOptions(task=VECTORS, model=str(path)))


@pytest.mark.parametrize(
    ("model", "task", "why"),
    [
        (lambda: fitted(["minus", "zero", "other"]), VECTORS, "'other', and the classes are minus"),
        (lambda: fitted([0, 1, 3]), VECTORS, "its classes are not the task's"),
        (lambda: fitted([0, 1, 1]), TABLE, "features"),
        (lambda: StandardScaler().fit(VECTOR_ROWS), VECTORS, "can't predict"),
    ],
)
def test_a_model_of_something_else_is_refused_at_the_start(
    model: Any, task: Task, why: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=why):
        voter(tmp_path / "m.skops", model(), task)


def test_the_file_must_be_there() -> None:
    for model, why in (("", "--model is missing"), ("/no/such", "there is no such file")):
        with pytest.raises(ValueError, match=why):
            make_voter("sklearn", None, VoterOptions(task=VECTORS, model=model))


def test_a_model_needs_a_task_or_data() -> None:
    with pytest.raises(ValueError, match="--task"):
        make_voter("sklearn", None, VoterOptions(model="x", inputs=ModelInputs.RAW))
