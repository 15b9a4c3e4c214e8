"""What a coordinator answers, checked before anybody relies on it, and fit to be printed."""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from mpc_vote.errors import ErrorKind, VoteError, printable
from mpc_vote.proto.mpcvote.v1 import common_pb2, label_pb2
from mpc_vote.results import Cost
from mpc_vote.tasks import Task

WHO = "The coordinator"
# From so many labels on, it says something if so many of them are alike.
_FEW = 20
_NEARLY_ALL = 0.9


@dataclass(frozen=True)
class Progress:
    """How far a round is; seconds since its start, by the coordinator's clock.

    In the stage `waiting`, there is none yet: seconds since the first request, by the client's. The
    stage `opened` is the first that knows the round's id.
    """

    stage: str
    done: int
    total: int
    detail: str
    seconds: float
    round_id: str = ""


@dataclass(frozen=True)
class LabelResult:
    """Released labels: (rows,), or (rows, attributes) of 0 and 1 for multi-label ballots."""

    round_id: str
    labels: npt.NDArray[np.int64]
    cost: Cost
    contributors: int
    absences: dict[str, str]
    warnings: tuple[str, ...]
    spec: common_pb2.RoundSpec | None
    task: Task | None = None

    @property
    def names(self) -> list[str] | list[list[str]] | None:
        """The labels by name, for attributes a list of those that a row has; None without a
        task."""
        return None if self.task is None else self.task.names(self.labels)


def progress_of(message: label_pb2.Progress, round_id: str) -> Progress:
    known = message.stage in label_pb2.Stage.values()
    stage = label_pb2.Stage.Name(message.stage).removeprefix("STAGE_").lower() if known else "?"
    return Progress(stage, message.done, message.total, message.detail, message.seconds, round_id)


def result_of(
    completed: label_pb2.RoundCompleted,
    parts: Sequence[label_pb2.Labels],
    opened: label_pb2.RoundOpened,
    queries: npt.NDArray[Any],
    plan: label_pb2.LabelPlan,
    task: Task | None,
) -> LabelResult:
    """All labels in their places, once there is one for each query."""
    rows, classes = len(queries), plan.classes
    width = parts[0].width if parts else 1
    values = {part.offset: part.values for part in parts}
    flat = np.array([value for o in sorted(values) for value in values[o]], dtype=np.int64)
    if width == 0 or flat.size != rows * width:
        raise nonsense(f"{flat.size} labels for {rows} queries")
    if task is not None and width != task.vote.ballot.width(classes):
        raise nonsense(f"{width} labels for a query of task {task.name}")
    if flat.max() >= max(2, classes):
        raise nonsense(f"label {flat.max()} of {classes} classes")
    alone = () if width > 1 else _nearly_alone(flat, task)
    return LabelResult(
        round_id=completed.round_id,
        labels=flat if width == 1 else flat.reshape(-1, width),
        cost=Cost.from_message(completed.cost),
        contributors=completed.contributors,
        absences={one.agent: one.reason for one in completed.absences},
        warnings=(*opened.warnings, *alone),
        spec=opened.spec if opened.HasField("spec") else None,
        task=task,
    )


def _nearly_alone(labels: npt.NDArray[np.int64], task: Task | None) -> tuple[str, ...]:
    """Says so where hardly a label is of another class than the commonest."""
    counts = np.bincount(labels)
    commonest = int(counts.argmax())
    if labels.size < _FEW or counts[commonest] < _NEARLY_ALL * labels.size:
        return ()
    name = f"class {commonest}" if task is None else repr(task.classes[commonest])
    return (
        f"{counts[commonest]} of {labels.size} labels are {name}: a model that learns from them "
        "may say nothing else, and agree with nearly all of them. If other classes are not that "
        "rare, noise or agents' k may drown them; ask about more rows of theirs",
    )


def nonsense(why: str) -> VoteError:
    return VoteError(ErrorKind.ANSWER_MALFORMED, who=WHO, why=why)


def plain(answer: Message) -> None:
    """Has all texts of an answer fit for a line of a terminal, whoever wrote them."""
    for field, value in answer.ListFields():
        if field.type == FieldDescriptor.TYPE_STRING:
            if isinstance(value, str):
                setattr(answer, field.name, printable(value))
            else:
                value[:] = [printable(text) for text in value]
        elif field.type == FieldDescriptor.TYPE_MESSAGE:
            if isinstance(value, MutableMapping):
                # The only maps are of numbers, by name.
                told = {printable(name): number for name, number in value.items()}
                value.clear()
                value.update(told)
            else:
                for part in [value] if isinstance(value, Message) else value:
                    plain(part)
