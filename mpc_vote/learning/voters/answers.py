"""From what a model says to votes: labels by name or place, or scores, checked.

Nothing is corrected here. What is not one answer to each query, holds NaN, or names a class that
the task does not have, is no vote, and the agent declines the round.

What a label means follows from the task and from that label alone, never from the others of its
batch. A text is a name. A whole number is a name where any class is called by one, else a place; a
boolean is a name where a class is called true or false, else the number 1 or 0. -1 abstains unless
a class is called so.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from mpc_vote.data.readers.labels import Names, canonical
from mpc_vote.learning.voters.questions import Question
from mpc_vote.voting.ballots import ABSTAIN, MULTI_LABEL, ONE_HOT, BallotKind

_WHOLE = re.compile(r"[+-]?[0-9]+")


class Fault(enum.StrEnum):
    """What may be told to others about an answer that is no vote."""

    NAN = "its votes hold NaN"
    ROWS = "its votes are not one for each query"
    SHAPE = "its votes are neither labels nor scores of each class"
    LABEL = "its votes name a class that does not exist"


class FaultyAnswer(ValueError):
    """No votes, for a reason of this kind; the text is for the model's owner."""

    def __init__(self, fault: Fault, detail: str) -> None:
        super().__init__(detail)
        self.fault = fault


class PredictionVoter:
    """Votes by a model that somebody trained: its most likely class, or its scores of attributes.

    Any model casts `one_hot` ballots (`multi_label` ones where the task's classes are attributes).
    Nothing is assumed of it, so nothing less is accounted than that all of its answers change with
    any record: at agent level one vote of each query (`tau` of attributes), at instance level a
    vote that moves from one class to another. That holds for the records of *this* agent. A model
    which several agents share casts a vote for each of them, and what its training records move is
    then as many votes.
    """

    k = 0

    def __init__(self, question: Question, predict: Callable[[Any], Any]) -> None:
        self._question = question
        self._predict = predict
        self.kinds: tuple[BallotKind, ...] = (MULTI_LABEL if question.attributes else ONE_HOT,)

    def vote(self, queries: npt.NDArray[Any], kind: BallotKind) -> npt.NDArray[Any]:
        """See `Voter`."""
        answer = self._predict(self._question.given(queries))
        make = scores if self._question.attributes else labels
        return make(answer, len(queries), self._question.classes)


def labels(answer: Any, rows: int, classes: tuple[str, ...]) -> npt.NDArray[np.int64]:
    """Places of classes, or `ABSTAIN`, from labels (rows,) or scores (rows, classes)."""
    given = np.asarray(answer)
    _check_rows(given, rows)
    if given.ndim == 2 and given.dtype.kind in "fiu":
        found = scores(given, rows, classes)
        return np.asarray(np.argmax(found, axis=1), dtype=np.int64)
    if given.ndim != 1 or given.dtype.kind == "f":
        raise FaultyAnswer(
            Fault.SHAPE,
            f"an answer of {given.dtype} {given.shape} is neither labels ({rows},) nor scores "
            f"({rows}, {len(classes)})",
        )
    return _places(given, classes)


def scores(answer: Any, rows: int, classes: tuple[str, ...]) -> npt.NDArray[np.float64]:
    """Scores (rows, classes), in the task's order."""
    given = np.asarray(answer)
    _check_rows(given, rows)
    if given.shape != (rows, len(classes)) or given.dtype.kind not in "fiub":
        raise FaultyAnswer(
            Fault.SHAPE,
            f"scores must have the shape ({rows}, {len(classes)}), in the order of the task's "
            f"classes, not {given.dtype} {given.shape}",
        )
    found = given.astype(np.float64)
    if np.isnan(found).any():
        raise FaultyAnswer(Fault.NAN, "scores hold NaN: repair the model before it votes")
    return found


def known_places(names: npt.NDArray[Any], classes: tuple[str, ...]) -> npt.NDArray[np.int64]:
    """Where a model's own classes are among the task's; a `ValueError` names one that is not."""
    try:
        return _places(np.asarray(names), classes)
    except FaultyAnswer as error:
        raise ValueError(str(error)) from error


def _places(given: npt.NDArray[Any], classes: tuple[str, ...]) -> npt.NDArray[np.int64]:
    lexicon = _Lexicon(classes)
    # 1 and True are equal, and may mean different things.
    known: dict[tuple[type, Any], int] = {}
    found = np.empty(len(given), dtype=np.int64)
    for row, value in enumerate(given.tolist()):
        label = value.item() if isinstance(value, np.generic) else value
        place = known.get((type(label), label)) if isinstance(label, str | int) else None
        if place is None:
            place = lexicon.place(label)
            if place is None:
                raise FaultyAnswer(Fault.LABEL, lexicon.unknown(label))
            known[type(label), label] = place
        found[row] = place
    return found


class _Lexicon:
    """What labels mean for these classes."""

    def __init__(self, classes: tuple[str, ...]) -> None:
        self._classes = classes
        self._names = Names(classes)
        self._numbers: dict[int, int | None] = {}
        for place, name in enumerate(classes):
            if _WHOLE.fullmatch(spelt := canonical(name)):
                # Two names of one number are told apart by their text only.
                self._numbers[int(spelt)] = None if int(spelt) in self._numbers else place

    def place(self, label: Any) -> int | None:
        """The class of a label, or `ABSTAIN`; None if it has no meaning."""
        if not isinstance(label, str | int):
            return None
        named = self._names.place(str(label))
        if named is not None:
            return named
        if isinstance(label, str):
            return ABSTAIN if label == str(ABSTAIN) else None
        if int(label) in self._numbers:
            return self._numbers[int(label)]
        if label == ABSTAIN:
            return ABSTAIN
        return int(label) if not self._numbers and 0 <= label < len(self._classes) else None

    def unknown(self, label: Any) -> str:
        """What is wrong with a label that has no meaning."""
        known = ", ".join(self._classes[:20])
        hint = ": as one is called by a number, numbers are names" if self._numbers else ""
        return f"the model says {str(label)[:60]!r}, and the classes are {known}{hint}"


def _check_rows(given: npt.NDArray[Any], rows: int) -> None:
    if given.ndim == 0 or len(given) != rows:
        raise FaultyAnswer(
            Fault.ROWS,
            f"{rows} queries got {_counted(given)}: the model must give a label, or a score of "
            "each class, for each query",
        )


def _counted(given: npt.NDArray[Any]) -> str:
    if given.ndim:
        return f"{len(given)} answer{'' if len(given) == 1 else 's'}"
    return "None" if given.item() is None else f"a single {type(given.item()).__name__}"
