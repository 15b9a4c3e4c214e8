"""What a model of the owner's is asked: inputs in one form, about these classes.

With a task a model gets the task's feature vectors, or its inputs as they are: vectors, pixels,
columns by name, or texts. Without one it gets the points that the agent's data have.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mpc_vote.data.dataset import Dataset, check_points
from mpc_vote.learning.features import for_task
from mpc_vote.learning.voters import ModelInputs, VoterOptions, classes_of
from mpc_vote.tasks import CategoryColumn, ImageInput, Input, TableInput, Task, TextInput

Array = npt.NDArray[Any]
EXAMPLES = 2
"""How many rows a voter is tried on."""


class Form(enum.StrEnum):
    """How inputs are given to a model."""

    VECTORS = "vectors"
    """An array of float32."""

    PIXELS = "pixels"
    """An array of bytes, (n, height, width) or (n, 3, height, width)."""

    COLUMNS = "columns"
    """Lists by column name, of numbers or texts; None is missing."""

    TEXTS = "texts"
    """A list of texts."""


@dataclass(frozen=True)
class Question:
    """The classes by name, and how rows of the wire become what the model is given."""

    classes: tuple[str, ...]
    attributes: bool
    form: Form
    given: Callable[[Array], Any]
    example: Array
    """Rows to try a model on: see `example_rows`."""

    @classmethod
    def of(cls, data: Dataset | None, options: VoterOptions) -> Question:
        """What an agent's settings ask a model."""
        task, rows = options.task, example_rows(data, options)
        if task is not None:
            form, given = _given(task, options)
            return cls(task.classes, task.attributes, form, given, rows)
        classes = tuple(str(place) for place in range(classes_of(data, options)))
        attributes = data is not None and data.multi_label
        return cls(classes, attributes, Form.VECTORS, _points, rows)


def example_rows(data: Dataset | None, options: VoterOptions) -> Array:
    """Rows to try a voter on, made of public things: numbers at their centres, the first category
    of each column, a word, no ink; zeros where there is no task."""
    if options.task is not None:
        return _of_task(options.task.input)
    if data is None:
        raise ValueError("without a task (--task) a voter takes the agent's data (--data)")
    return np.zeros((EXAMPLES, *data.shape), dtype=data.x.dtype)


def odd_rows(task: Task) -> tuple[Array, str] | None:
    """Rows that anybody may ask about though they lack something, and what that is: in a table each
    value is missing, or each category is none of the task's; of texts one is empty."""
    schema = task.input
    if isinstance(schema, TableInput):
        cells = {
            column.name: [None, "" if isinstance(column, CategoryColumn) else column.center]
            for column in schema.columns
        }
        return schema.encode(cells), "values are missing or categories are not the task's"
    if isinstance(schema, TextInput):
        return schema.encode([""]), "a text is empty"
    return None


def _of_task(schema: Input) -> Array:
    rows: Array
    if isinstance(schema, TableInput):
        rows = schema.encode(
            {
                column.name: [
                    column.values[0] if isinstance(column, CategoryColumn) else column.center
                ]
                * EXAMPLES
                for column in schema.columns
            }
        )
    elif isinstance(schema, TextInput):
        rows = schema.encode(["a"] * EXAMPLES)
    else:
        rows = np.zeros((EXAMPLES, *schema.shape), dtype=schema.dtype)
    return rows


def _given(task: Task, options: VoterOptions) -> tuple[Form, Callable[[Array], Any]]:
    schema = task.input
    if options.inputs is ModelInputs.FEATURES:
        return Form.VECTORS, for_task(task, options.weights)
    if isinstance(schema, TableInput):
        return Form.COLUMNS, schema.decode
    if isinstance(schema, TextInput):
        return Form.TEXTS, schema.decode
    return (Form.PIXELS if isinstance(schema, ImageInput) else Form.VECTORS), _as_is


def _as_is(rows: Array) -> Array:
    return rows


def _points(rows: Array) -> Array:
    check_points(rows)
    return rows
