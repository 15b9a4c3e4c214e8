"""Arrays of numpy: .npz with x and y, .npy with points alone."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mpc_vote.data.partition import load_part
from mpc_vote.data.readers.records import Records
from mpc_vote.data.readers.room import Room, TooLarge, check_rows
from mpc_vote.tasks import ImageInput, Input, Task, TextInput
from mpc_vote.transport.tensors import MAX_SIZE

Array = npt.NDArray[Any]

_PIECE = 1 << 20  # numbers that are converted at a time


def read_npz(path: Path, task: Task | None) -> Any:
    """Points `x`, and labels `y` where there are any; without a task, a part of a data set."""
    if task is None:
        return load_part(path)
    arrays = _load(path)
    if not isinstance(arrays, dict) or "x" not in arrays:
        raise ValueError(f"{path}: it must hold an array x, and y with labels where there are any")
    return _records(path, arrays["x"], arrays.get("y"), task)


def read_npy(path: Path, task: Task | None) -> Records:
    """Points without labels."""
    if task is None:
        raise ValueError(f"{path}: a single array has no labels: give an .npz with x and y")
    points = _load(path)
    if isinstance(points, dict):
        raise ValueError(f"{path}: it holds several arrays: name it .npz")
    return _records(path, points, None, task)


def _load(path: Path) -> Array | dict[str, Array]:
    """The array of a file, or those named x and y."""
    if not path.is_file():
        raise FileNotFoundError(f"{path}: there is no such file")
    room = Room()
    try:
        with path.open("rb") as file:
            stored = np.load(file, allow_pickle=False)
            if not isinstance(stored, np.lib.npyio.NpzFile) or stored.zip is None:
                return _sized(np.asarray(stored))
            # Not more is unpacked of a member than its directory says.
            sizes = {member.filename: member.file_size for member in stored.zip.infolist()}
            names = [name for name in ("x", "y") if name in stored.files]
            room.take(sum(sizes.get(f"{name}.npy", sizes.get(name, 0)) for name in names))
            return {name: _sized(stored[name]) for name in names}
    except TooLarge as error:
        raise ValueError(f"{path}: {error}") from error
    except Exception as error:  # numpy has no one error, and its words advise to load pickles
        raise ValueError(f"{path}: not a whole file of numpy's arrays, without objects") from error


def _sized(array: Array) -> Array:
    """Refuses rows without a byte, of which a file of any size can claim any number."""
    if array.dtype.itemsize == 0:
        raise ValueError(f"cells of {array.dtype} hold nothing")
    return array


def _records(path: Path, points: Array, labels: Array | None, task: Task) -> Records:
    try:
        rows, bad = _rows(points, task.input)
        return Records(rows, None if labels is None else _labels(labels), bad=bad)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _labels(labels: Array) -> Any:
    if labels.dtype.kind == "U":
        return labels.tolist()
    if labels.dtype.kind not in "iub":
        raise ValueError(f"y must hold whole numbers or class names, not {labels.dtype}")
    return labels


def _rows(points: Array, schema: Input) -> tuple[Array, dict[int, str]]:
    """Points in the wire's type, if nothing of them is lost by that."""
    if isinstance(schema, TextInput) and points.dtype.kind == "U" and points.ndim == 1:
        check_rows(len(points), schema, 2 * points.nbytes)
        empty = {row: "it has no text" for row, text in enumerate(points) if not text.strip()}
        return schema.encode(points.tolist()), empty
    if points.shape[1:] != schema.shape or points.ndim < 2:
        raise ValueError(
            f"points of the task have the shape {schema.shape}, those of x {points.shape[1:]}"
        )
    check_rows(len(points), schema, points.nbytes)
    if points.dtype.kind not in "iubf":
        raise ValueError(f"points must be numbers, not {points.dtype}")
    if isinstance(schema, ImageInput) and points.dtype.kind == "f":
        raise ValueError("pictures are bytes from 0 to 255: save x as uint8")
    rows, bad = np.empty(points.shape, schema.dtype), {}
    step = max(1, _PIECE // max(1, math.prod(schema.shape)))
    for start in range(0, len(points), step):
        part = slice(start, start + step)
        for row, why in _converted(points[part], schema, rows[part]).items():
            bad[start + row] = why
    return rows, bad


def _converted(points: Array, schema: Input, rows: Array) -> dict[int, str]:
    """Fills in rows, and says which can't be what the points were."""
    low, high = (0, 255) if schema.dtype == np.uint8 else (-MAX_SIZE, MAX_SIZE)
    with np.errstate(invalid="ignore", over="ignore"):
        outside = ~((points >= low) & (points <= high))
        rows[:] = np.where(outside, 0, points)
        lost = (rows.astype(points.dtype) != points) & ~outside
    if schema.dtype != np.uint8:
        lost &= points == np.floor(points)  # others to the precision of a float32
    wrong = (outside | lost).reshape(len(points), -1).any(axis=1)
    bad = {
        int(row): f"it holds numbers that are no {schema.dtype} within {low:g} to {high:g}"
        for row in np.flatnonzero(wrong)
    }
    for row in np.flatnonzero(~schema.sound(rows) & ~wrong):
        bad[int(row)] = f"it is no {schema.kind} of this task"
    return bad
