"""From files to what a task votes on, and how another format is added.

A reader is a function of a path and a task, or None where there is none. Other packages add theirs
under the entry point `mpc_vote.readers`, by the ending of the files that it is for; an agent or a
client takes the one of its file's ending, or that of `--reader NAME` or `--reader module:function`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from mpc_vote import plugins
from mpc_vote.data import identity
from mpc_vote.data.dataset import Dataset
from mpc_vote.data.identity import IdentityArray
from mpc_vote.data.readers.labels import label_names, match
from mpc_vote.data.readers.output import write_labelled
from mpc_vote.data.readers.records import (
    BadRow,
    BadRows,
    BadRowsError,
    Inputs,
    Records,
    told,
    usable,
)
from mpc_vote.tasks import ImageInput, TableInput, Task, TextInput

__all__ = [
    "BadRow",
    "BadRows",
    "BadRowsError",
    "Inputs",
    "Reader",
    "Records",
    "check_reader",
    "label_names",
    "read",
    "read_inputs",
    "read_labelled",
    "read_records",
    "reader_for",
    "told",
    "write_labelled",
]

GROUP = "mpc_vote.readers"
OWN = {
    "npz": "mpc_vote.data.readers.arrays:read_npz",
    "npy": "mpc_vote.data.readers.arrays:read_npy",
    "csv": "mpc_vote.data.readers.tables:read",
    "tsv": "mpc_vote.data.readers.tables:read",
    "parquet": "mpc_vote.data.readers.tables:read",
    "txt": "mpc_vote.data.readers.tables:read_lines",
    "pictures": "mpc_vote.data.readers.pictures:read",
}
DEFAULT = "npz"
FOLDER = "pictures"


class Reader(Protocol):
    """Reads a file, or a folder; a `ValueError` or `OSError` says why it can't.

    `Records` leave it to the caller what becomes of bad rows; a `Dataset` has none.
    """

    def __call__(self, path: Path, task: Task | None, /) -> Dataset | Records: ...


def check_reader(name: str) -> str:
    """A name that stands for a reader; nothing is loaded."""
    plugins.place(GROUP, OWN, name)
    return name


def reader_for(path: Path) -> str:
    """The name of the reader for a folder or a file's ending; npz where there is none."""
    if path.is_dir():
        return FOLDER
    ending = path.suffix.removeprefix(".").lower()
    return ending if ending in plugins.names(GROUP, OWN) else DEFAULT


def read(path: Path, name: str | None = None) -> Dataset:
    """The data set in a file that needs no task, by the reader of this name or of its ending."""
    name = name or reader_for(path)
    found = _run(path, None, name)
    if not isinstance(found, Dataset):
        raise ValueError(f"{path}: the reader {name} gave no Dataset but {type(found).__name__}")
    return found


def read_labelled(
    path: str | Path, task: Task, *, reader: str | None = None, bad_rows: BadRows = "refuse"
) -> Dataset:
    """The labelled rows of a file as a task has them: inputs as on the wire, classes by number."""
    path = Path(path)
    records = read_records(path, task, reader=reader)
    if records.labels is None:
        raise ValueError(
            f"{path}: it has no labels ({where_labels(task)}), which private data needs"
        )
    try:
        labels, unlabelled = match(records.labels, task)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    bad = unlabelled | unidentified(records, task) | dict(records.bad)
    kept, _ = usable(path, records, bad, bad_rows)
    try:
        named = names_of(records, task, kept)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    return Dataset(path.stem, records.rows[kept], labels[kept], len(task.classes), named)


def unidentified(records: Records, task: Task) -> dict[int, str]:
    """Rows of private data that lack the identifier by which the task knows them."""
    column = identifier_column(task)
    if not column or records.identifiers is None:
        return {}
    given = enumerate(records.identifiers)
    return {row: f"it has no {column}" for row, one in given if not (one or "").strip()}


def identifier_column(task: Task) -> str:
    """What the task calls the column of identifiers, if it has one."""
    return task.input.identifier if isinstance(task.input, TableInput) else ""


def names_of(records: Records, task: Task, kept: npt.NDArray[np.int64]) -> IdentityArray | None:
    """The names of rows that have identifiers. No two may be alike: contributions of one record
    would then depend on another one, and a query could lose both at once."""
    column = identifier_column(task)
    if not column:
        return None
    if records.identifiers is None:
        raise ValueError(
            f"it has no column {column!r}, by which the task {task.name} knows records"
        )
    texts = [(records.identifiers[int(place)] or "").strip() for place in kept]
    first: dict[str, int] = {}
    for place, text in zip(kept.tolist(), texts, strict=True):
        if text in first:
            lines = f"{records.lines[first[text]]} and {records.lines[place]}"
            raise ValueError(
                f"lines {lines} have the same {column}: a record is one line, so leave one of them "
                "out"
            )
        first[text] = place
    return identity.of_identifiers(texts)


def read_inputs(
    path: str | Path, task: Task, *, reader: str | None = None, bad_rows: BadRows = "refuse"
) -> Inputs:
    """The rows of a file to ask about; labels in it are not looked at."""
    path = Path(path)
    records = read_records(path, task, reader=reader)
    kept, skipped = usable(path, records, records.bad, bad_rows)
    lines = [records.lines[int(place)] for place in kept]
    return Inputs(path, records.rows[kept], lines, skipped, label_column(task), records.sheet)


def label_column(task: Task) -> str:
    """What the task calls the column of labels."""
    return task.input.label if isinstance(task.input, TableInput | TextInput) else "label"


def read_records(path: Path, task: Task, *, reader: str | None = None) -> Records:
    """All rows of a file, the bad ones too, by the reader of this name or of the file's ending."""
    name = reader or reader_for(path)
    found = _run(path, task, name)
    if isinstance(found, Dataset):
        found = Records(found.x, found.y)
    if not isinstance(found, Records):
        kind = type(found).__name__
        raise ValueError(f"{path}: the reader {name} gave no Records or Dataset but {kind}")
    good = np.delete(found.rows, list(found.bad), axis=0) if found.bad else found.rows
    try:
        task.input.check(good)
    except ValueError as error:
        raise ValueError(f"{path}: the reader {name}: {error}") from error
    return found


def _run(path: Path, task: Task | None, name: str) -> object:
    reader: Reader = plugins.load(GROUP, OWN, name)
    try:
        return reader(path, task)
    except (ValueError, OSError, ModuleNotFoundError):
        raise
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        raise ValueError(f"{path}: the reader {name} failed: {why}") from error


def where_labels(task: Task) -> str:
    """Where a file for the task has its labels."""
    if isinstance(task.input, ImageInput):
        return "a folder for each class"
    if isinstance(task.input, TableInput | TextInput):
        return f"a column {label_column(task)!r}"
    return "an array y"
