"""From a file to a data set, and how another format is added.

A reader is a function of a path. Other packages add theirs under the entry point
`mpc_vote.readers`, by the ending of the files that it is for; an agent takes the one of its file's
ending, or that of `--reader NAME` or `--reader module:function`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from mpc_vote import plugins
from mpc_vote.data.dataset import Dataset

GROUP = "mpc_vote.readers"
OWN = {"npz": "mpc_vote.data.partition:load_part"}
DEFAULT = "npz"


class Reader(Protocol):
    """Reads a file; a `ValueError` or `OSError` says why it can't."""

    def __call__(self, path: Path, /) -> Dataset: ...


def check_reader(name: str) -> str:
    """A name that stands for a reader; nothing is loaded."""
    plugins.place(GROUP, OWN, name)
    return name


def reader_for(path: Path) -> str:
    """The name of the reader for a file's ending; npz where there is none."""
    ending = path.suffix.removeprefix(".").lower()
    return ending if ending in plugins.names(GROUP, OWN) else DEFAULT


def read(path: Path, name: str | None = None) -> Dataset:
    """The data set in a file, by the reader of this name or of the file's ending."""
    name = name or reader_for(path)
    reader: Reader = plugins.load(GROUP, OWN, name)
    try:
        data: object = reader(path)
    except (ValueError, OSError):
        raise
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        raise ValueError(f"{path}: the reader {name} failed: {why}") from error
    if not isinstance(data, Dataset):
        raise ValueError(f"{path}: the reader {name} gave no Dataset but {type(data).__name__}")
    return data
