"""How roles find out whether they have the same task, and say in which settings theirs differ."""

from __future__ import annotations

from collections.abc import Iterable

from mpc_vote.errors import ErrorKind, VoteError
from mpc_vote.proto.mpcvote.v1 import common_pb2
from mpc_vote.tasks.inputs import Array
from mpc_vote.tasks.parsing import TaskError
from mpc_vote.tasks.task import Task
from mpc_vote.transport import tensors

_TOLD = 5
_DIGITS = 12


def offer_of(task: Task) -> common_pb2.Offer:
    """What an agent that serves the task offers: all of it follows from the task."""
    return common_pb2.Offer(
        task=task.name,
        task_digest=task.digest,
        classes=len(task.classes),
        query_dtype=tensors.dtype_code(task.input.dtype),
        query_shape=task.input.shape,
        ballots=[task.vote.ballot.code],
        k=task.vote.k if task.vote.ballot.needs_k else 0,
    )


def to_wire(task: Task, *, content: bool = True) -> common_pb2.Task:
    """A task as a message."""
    return common_pb2.Task(
        name=task.name, digest=task.digest, content=task.wire if content else b""
    )


def from_wire(message: common_pb2.Task, who: str) -> Task:
    """A task that somebody sent, if it is what it says."""
    try:
        task = Task.from_wire(message.content)
        if (task.name, task.digest) != (message.name, message.digest):
            raise TaskError("its name or digest is not that of its content")
    except TaskError as error:
        why = f"the task can't be used: {error}"
        raise VoteError(ErrorKind.ANSWER_MALFORMED, who=who, why=why) from error
    return task


def check_rows(task: Task, rows: Array, field: str, before: int = 0) -> None:
    """Refuses rows that are no inputs of the task; others may come `before`."""
    try:
        task.input.check(rows, before)
    except ValueError as error:
        raise VoteError(
            ErrorKind.INPUT_UNFIT, field=field, task=task.name, why=str(error)
        ) from error


def unknown(who: str, task: str, known: Iterable[str]) -> VoteError:
    """The error that somebody has no such task."""
    want = ", ".join(known) or "none at all"
    return VoteError(ErrorKind.TASK_UNKNOWN, field="task", who=who, task=task, want=want)


def differs(here: str, mine: Task, there: str, other: Task) -> VoteError:
    """That two have different tasks of one name, and in what."""
    found = mine.differences(other)
    told = "; ".join(found[:_TOLD]) or "it is not said in what"
    if len(found) > _TOLD:
        told += f"; and {len(found) - _TOLD} more"
    who = f"{here} (here) and {there} (there)"
    return VoteError(ErrorKind.TASK_DIFFERS, field="task", task=mine.name, who=who, why=told)


def digests_differ(task: str, here: str, mine: bytes, there: str, other: bytes) -> VoteError:
    """That two have different tasks of one name, where only their digests are known."""
    why = f"their digests begin with {mine.hex()[:_DIGITS]} and {other.hex()[:_DIGITS]}"
    who = f"{here} and {there}"
    return VoteError(ErrorKind.TASK_DIFFERS, field="task", task=task, who=who, why=why)
