"""Votes of a scikit-learn estimator, from a file that skops wrote.

skops stores no code: a file names the types that it is made of, and those that are not known to be
harmless are refused unless the owner trusts them by name. Pickles and joblib files run whatever
their author wrote, and are never loaded. A vectorizer of texts may take its queries for names of
files, which a client would then choose: such a one is refused, wherever in an estimator it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from mpc_vote.data.dataset import Dataset
from mpc_vote.learning.voters import VoterOptions
from mpc_vote.learning.voters.answers import PredictionVoter, known_places
from mpc_vote.learning.voters.files import check_packed, model_file
from mpc_vote.learning.voters.questions import Form, Question
from mpc_vote.tasks import NumberColumn, TableInput

_WHAT = "an estimator that skops.io.dump saved"


def make(data: Dataset | None, options: VoterOptions) -> PredictionVoter:
    """The voter of the estimator in `--model`. See `PredictionVoter` for what is accounted."""
    question = Question.of(data, options)
    path = model_file(options, _WHAT)
    # What is missing here is told before an owner looks into what the file asks to be trusted.
    shape = _shaped(question, options)
    estimator = _load(path, options.trusted)
    classes = getattr(estimator, "classes_", None)
    if classes is not None and not question.attributes:
        try:
            known_places(np.asarray(classes), question.classes)
        except ValueError as error:
            raise ValueError(f"{path}: its classes are not the task's: {error}") from error
    ask = _attributes(estimator) if question.attributes else estimator.predict
    return PredictionVoter(question, lambda given: ask(shape(given)))


def _load(path: Path, trusted: tuple[str, ...]) -> Any:
    import skops.io

    check_packed(path)
    try:
        untrusted = skops.io.get_untrusted_types(file=path)
    except Exception as error:  # skops has no one error for what it did not write
        raise ValueError(
            f"{path}: it is no file of skops: save the estimator with skops.io.dump; pickle and "
            "joblib files are not loaded"
        ) from error
    if strange := sorted(set(untrusted) - set(trusted)):
        raise ValueError(
            f"{path}: it holds types that are not known to be harmless: {', '.join(strange)}. "
            f"If you trust them, say so: --trust {','.join(strange)}"
        )
    try:
        estimator = skops.io.load(path, trusted=list(untrusted))
    except Exception as error:  # of any type that the file names
        why = f"{type(error).__name__}: {error}"
        raise ValueError(f"{path}: the estimator can't be loaded: {why}") from error
    if any(getattr(part, "input", "content") != "content" for part in _vectorizers(estimator)):
        raise ValueError(
            f"{path}: a vectorizer in it takes queries for names of files to read: make it with "
            "input='content'"
        )
    if not callable(getattr(estimator, "predict", None)):
        raise ValueError(f"{path}: a {type(estimator).__name__} can't predict: save a classifier")
    return estimator


def _vectorizers(estimator: Any) -> Iterator[Any]:
    """All objects in an estimator that could read files: those that decode documents."""
    seen: dict[int, Any] = {}
    left = [estimator]
    while left:
        part = left.pop()
        if id(part) in seen or isinstance(part, str | bytes | int | float | type(None)):
            continue
        seen[id(part)] = part
        if callable(getattr(type(part), "build_analyzer", None)):
            yield part
        if isinstance(part, Mapping):
            left.extend((*part.keys(), *part.values()))
        elif isinstance(part, list | tuple | set | frozenset):
            left.extend(part)
        elif isinstance(part, np.ndarray):
            left.extend(part.reshape(-1).tolist() if part.dtype == object else ())
        left.extend(getattr(part, "__dict__", {}).values())


def _shaped(question: Question, options: VoterOptions) -> Callable[[Any], Any]:
    """Rows of numbers in two dimensions; columns as a data frame."""
    if question.form is Form.TEXTS:
        return list
    if question.form is Form.COLUMNS:
        assert options.task is not None and isinstance(options.task.input, TableInput)
        return _frame(options.task.input)
    if question.form is Form.PIXELS:
        return lambda rows: rows.reshape(len(rows), -1).astype(np.float32) / np.float32(255)
    return lambda rows: rows.reshape(len(rows), -1)


def _frame(schema: TableInput) -> Callable[[Any], Any]:
    """Columns have the same types whatever is missing: numbers with NaN, texts with None."""
    try:
        import pandas
    except ImportError as error:
        raise ValueError(
            "columns by name take pandas, which is not installed: pip install pandas, or leave "
            "--inputs at features"
        ) from error
    types = {
        column.name: np.float64 if isinstance(column, NumberColumn) else np.object_
        for column in schema.columns
    }
    return lambda columns: pandas.DataFrame(
        {name: np.array(columns[name], dtype=kind) for name, kind in types.items()}
    )


def _attributes(estimator: Any) -> Callable[[Any], Any]:
    """Scores of attributes: an estimator's probabilities of yes, or its yes and no."""
    if not callable(getattr(estimator, "predict_proba", None)):
        return lambda given: np.asarray(estimator.predict(given), dtype=np.float64)

    def scores(given: Any) -> Any:
        found = estimator.predict_proba(given)
        if isinstance(found, list):  # of no and yes, for each attribute
            return np.stack([np.asarray(one)[:, -1] for one in found], axis=1)
        return found

    return scores
