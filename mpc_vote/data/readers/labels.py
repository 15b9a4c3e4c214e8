"""Labels of a file matched to the classes of a task, and back."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from mpc_vote.tasks import Task

SEPARATOR = ";"
"""Between the attributes of one row in a column of labels."""

_WHOLE = re.compile(r"([+-]?\d+)\.0*")
_NAMED = 8


def canonical(text: str) -> str:
    """One spelling for texts that other programs write differently: `1.0` is `1`, `True` `true`."""
    text = text.strip()
    whole = _WHOLE.fullmatch(text)
    if whole:
        return whole[1]
    return text.lower() if text.lower() in ("true", "false") else text


class Names:
    """Finds texts among known ones: as they are, or else by their one spelling."""

    def __init__(self, known: Sequence[str]) -> None:
        self._places: dict[str, int | None] = {}
        for place, name in enumerate(known):
            spelt = canonical(name)
            # Two names of one spelling are told apart by their exact text only.
            self._places[spelt] = None if spelt in self._places else place
        self._exact = {name: place for place, name in enumerate(known)}

    def place(self, text: str) -> int | None:
        """Where it is, or None."""
        if text in self._exact:
            return self._exact[text]
        return self._places.get(canonical(text))


def match(
    labels: Sequence[Any] | npt.NDArray[Any], task: Task
) -> tuple[npt.NDArray[np.int64], dict[int, str]]:
    """Labels as the vote has them, and why rows have none that the task knows.

    Numbers of an array are places of classes; texts are their names.
    """
    if isinstance(labels, np.ndarray) and labels.dtype.kind in "iub":
        return _numbers(labels, task)
    texts = [None if one is None else str(one) for one in labels]
    return _attributes(texts, task) if task.attributes else _classes(texts, task)


def label_names(labels: npt.NDArray[np.integer[Any]], task: Task) -> list[str]:
    """The class of each label by name; of attributes all that a row has, with semicolons."""
    if not task.attributes:
        return [task.classes[int(label)] for label in labels]
    return [
        SEPARATOR.join(name for name, has in zip(task.classes, row, strict=True) if has)
        for row in labels
    ]


def _numbers(labels: npt.NDArray[Any], task: Task) -> tuple[npt.NDArray[np.int64], dict[int, str]]:
    count = len(task.classes)
    want = (len(labels), count) if task.attributes else (len(labels),)
    if labels.shape != want:
        raise ValueError(f"labels of this task have the shape {want}, not {labels.shape}")
    found = labels.astype(np.int64)
    top = 2 if task.attributes else count
    wrong = (found < 0) | (found >= top)
    rows = np.flatnonzero(wrong.reshape(len(labels), -1).any(axis=1))
    bad = {int(row): f"a label is not in 0..{top - 1}" for row in rows}
    found[wrong] = 0
    return found, bad


def _classes(texts: list[str | None], task: Task) -> tuple[npt.NDArray[np.int64], dict[int, str]]:
    names, bad = Names(task.classes), {}
    found = np.zeros(len(texts), dtype=np.int64)
    for row, text in enumerate(texts):
        place = None if text is None else names.place(text)
        if place is None:
            bad[row] = _unknown(text, task)
        else:
            found[row] = place
    return found, bad


def _attributes(
    texts: list[str | None], task: Task
) -> tuple[npt.NDArray[np.int64], dict[int, str]]:
    names, bad = Names(task.classes), {}
    found = np.zeros((len(texts), len(task.classes)), dtype=np.int64)
    for row, text in enumerate(texts):
        for part in filter(None, map(str.strip, (text or "").split(SEPARATOR))):
            place = names.place(part)
            if place is None:
                bad[row] = _unknown(part, task)
            else:
                found[row, place] = 1
    return found, bad


def _unknown(text: str | None, task: Task) -> str:
    if text is None or not text.strip():
        return "it has no label"
    known = ", ".join(task.classes[:_NAMED])
    more = f" and {len(task.classes) - _NAMED} more" if len(task.classes) > _NAMED else ""
    return f"its label {text[:40]!r} is none of the task's classes ({known}{more})"
