"""Tasks: what all members of a federation agree on, in one public file."""

from __future__ import annotations

from mpc_vote.tasks.inputs import (
    CategoryColumn,
    Column,
    ImageInput,
    Input,
    NumberColumn,
    TableInput,
    TextInput,
    VectorInput,
)
from mpc_vote.tasks.parsing import TaskError
from mpc_vote.tasks.task import MAX_TASK_BYTES, Features, Task, Vote

__all__ = [
    "MAX_TASK_BYTES",
    "CategoryColumn",
    "Column",
    "Features",
    "ImageInput",
    "Input",
    "NumberColumn",
    "TableInput",
    "Task",
    "TaskError",
    "TextInput",
    "VectorInput",
    "Vote",
]
