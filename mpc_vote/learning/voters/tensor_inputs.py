"""Arrays in the form that a model's tensors have: dtype, sides of one, channels, fixed batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mpc_vote.learning.voters.questions import Form, Question

Array = npt.NDArray[Any]

_ROWS = 256
"""Rows that a model is given at a time, where it takes any number."""

_COLOURS = 3


@dataclass(frozen=True)
class Tensor:
    """What a model says of one of its inputs; None is any size. Texts have the dtype object."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int | None, ...]

    def __str__(self) -> str:
        sides = ", ".join("any" if side is None else str(side) for side in self.shape)
        return f"{self.name}: {'texts' if self.dtype == object else self.dtype} ({sides})"


def fitting(question: Question, tensors: Sequence[Tensor]) -> Callable[[Any], list[Array]]:
    """A function from what a question gives to arrays for these inputs, in their order.

    Columns go by name, all else into the one input that there is. Bytes of pixels become 0 to 1
    where a model takes floats.
    """
    given = question.given(question.example)
    if question.form is Form.COLUMNS:
        unknown = [tensor.name for tensor in tensors if tensor.name not in given]
        if unknown:
            raise ValueError(
                f"the model takes {', '.join(unknown)}, which the task has no columns for; "
                "--inputs features gives it the task's feature vectors"
            )
        makers = [_column(tensor) for tensor in tensors]
        return lambda columns: [
            make(columns[tensor.name]) for make, tensor in zip(makers, tensors, strict=True)
        ]
    if len(tensors) != 1:
        raise ValueError(
            f"the model takes {len(tensors)} inputs ({', '.join(map(str, tensors))}), "
            f"and there is one to give, of {question.form.value}"
        )
    make = _texts(tensors[0]) if question.form is Form.TEXTS else _array(tensors[0], given)
    return lambda inputs: [make(inputs)]


def in_parts(
    run: Callable[[list[Array]], list[Any]], arrays: list[Array], batch: int | None
) -> list[list[Any]]:
    """A model's outputs for rows in parts; a model of fixed batches gets the last one filled up,
    and says so many rows too much, which are left out."""
    rows, step = len(arrays[0]), batch or _ROWS
    parts: list[list[Any]] = []
    for start in range(0, rows, step):
        some = [array[start : start + step] for array in arrays]
        count = len(some[0])
        if batch is not None and count < batch:
            some = [
                np.concatenate([one, np.repeat(one[:1], batch - count, axis=0)]) for one in some
            ]
        outputs = run(some)
        for output in outputs:
            if len(output) != len(some[0]):
                raise ValueError(f"{len(some[0])} rows got an output of {len(output)}")
        parts.append([output[:count] for output in outputs])
    return parts


def batch_of(tensors: Sequence[Tensor]) -> int | None:
    """The number of rows that a model takes at a time, if it is fixed."""
    sides = {tensor.shape[0] for tensor in tensors if tensor.shape} - {None}
    if len(sides) > 1:
        raise ValueError("the model's inputs have different fixed numbers of rows")
    return sides.pop() if sides else None


def _array(tensor: Tensor, given: Array) -> Callable[[Array], Array]:
    if tensor.dtype.kind not in "fiu":
        raise ValueError(f"the model takes {tensor}, and there are numbers to give")
    shape, want = given.shape[1:], tensor.shape[1:]
    sides, turn = _sides(shape, want), False
    if sides is None and len(shape) == 3 and shape[0] == _COLOURS:
        sides, turn = _sides((*shape[1:], _COLOURS), want), True
    if sides is None:
        raise ValueError(
            f"the model takes {tensor}, and a row to give has the shape {tuple(shape)}; "
            "--inputs says whether it gets the task's features or its inputs as they are"
        )
    of_row = sides

    def make(rows: Array) -> Array:
        if turn:
            rows = np.moveaxis(rows, 1, -1)
        if rows.dtype == np.uint8 and tensor.dtype.kind == "f":
            rows = rows.astype(np.float32) / np.float32(255)
        cast = rows.astype(tensor.dtype)
        if tensor.dtype.kind in "iu" and (cast != rows).any():
            raise ValueError(f"the model takes {tensor}, and there are other numbers to give")
        return np.ascontiguousarray(cast.reshape(len(rows), *of_row))

    return make


def _sides(shape: Sequence[int], want: Sequence[int | None]) -> tuple[int, ...] | None:
    """The sides that a row gets for a model that wants these, if but for sides of one it has
    them."""
    if len(shape) == len(want) and _agree(shape, want):
        return tuple(shape)
    kept = [side for side in shape if side != 1]
    if not _agree(kept, [side for side in want if side != 1]):
        return None
    left = iter(kept)
    return tuple(1 if side == 1 else next(left) for side in want)


def _agree(shape: Sequence[int], want: Sequence[int | None]) -> bool:
    return len(shape) == len(want) and all(b in (None, a) for a, b in zip(shape, want, strict=True))


def _texts(tensor: Tensor) -> Callable[[Sequence[str]], Array]:
    if (
        tensor.dtype != object
        or len(tensor.shape) > 2
        or tensor.shape[1:] not in ((), (1,), (None,))
    ):
        raise ValueError(f"the model takes {tensor}, and there are texts to give")
    return lambda texts: np.array(texts, dtype=object).reshape(-1, *(1 for _ in tensor.shape[1:]))


def _column(tensor: Tensor) -> Callable[[Sequence[Any]], Array]:
    """Missing numbers are NaN, missing texts are empty."""
    if len(tensor.shape) > 2 or tensor.shape[1:] not in ((), (1,), (None,)):
        raise ValueError(f"the model takes {tensor}, and a column has one value to a row")

    def make(values: Sequence[Any]) -> Array:
        numbers = not any(isinstance(value, str) for value in values)
        if tensor.dtype == object:
            cells = ["" if value is None else str(value) for value in values]
            array = np.array(cells, dtype=object)
        elif not numbers:
            raise ValueError(f"the model takes {tensor}, and this column has texts")
        else:
            found = np.array([np.nan if v is None else v for v in values], dtype=np.float64)
            if tensor.dtype.kind in "iu" and (found != np.floor(found)).any():
                raise ValueError(f"the model takes {tensor}, and a value is missing or no integer")
            array = found.astype(tensor.dtype)
        return array.reshape(-1, *(1 for _ in tensor.shape[1:]))

    return make
