"""Reading data files that somebody else made: never pickle, and a clear reason when it fails.

A file that is not there is a FileNotFoundError; one that can't be used is a ValueError. Both name
the path and say what to do.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Arrays = dict[str, npt.NDArray[Any]]


def find_file(root: Path, relative: str, advice: str) -> Path:
    """The path of a file below the data folder, if it is there."""
    if not root.is_dir():
        raise FileNotFoundError(f"{root}: there is no such data folder. {advice}")
    path = root / relative
    if not path.is_file():
        raise FileNotFoundError(f"{path}: there is no such data file. {advice}")
    return path


def check_digest(path: Path, known: Iterable[str], advice: str) -> None:
    """Refuse a file whose digest is none of the known ones, given as "md5:..." or "sha256:..."."""
    expected = tuple(known)
    for algorithm in sorted({digest.partition(":")[0] for digest in expected}):
        with path.open("rb") as file:
            found = hashlib.file_digest(file, algorithm).hexdigest()
        if f"{algorithm}:{found}" in expected:
            return
    raise ValueError(
        f"{path}: its checksum is not that of the standard file. It has {path.stat().st_size:,} "
        f"bytes, and may be cut short or altered: remove it and get it again. {advice}"
    )


def read_npz(path: Path, keys: Iterable[str]) -> Arrays:
    """The wanted arrays of an .npz, all of which must be there."""
    wanted = tuple(keys)
    try:
        with path.open("rb") as file:
            stored = np.load(file, allow_pickle=False)
            if not isinstance(stored, np.lib.npyio.NpzFile):
                raise ValueError("it holds a single array")
            arrays = {key: stored[key] for key in wanted if key in stored.files}
    except Exception as error:  # numpy has no one error for a damaged file
        raise ValueError(f"{path}: not a readable .npz without pickle ({error})") from error
    _check_keys(path, arrays, wanted)
    return arrays


def read_mat(path: Path, keys: Iterable[str]) -> Arrays:
    """The wanted arrays of a MATLAB file, all of which must be there."""
    wanted = tuple(keys)
    loadmat = import_scipy_io(path).loadmat
    try:
        arrays: Arrays = loadmat(path, variable_names=wanted)
    except Exception as error:  # scipy has no one error for a damaged file
        raise ValueError(f"{path}: not a readable MATLAB file ({error})") from error
    arrays = {key: arrays[key] for key in wanted if key in arrays}
    _check_keys(path, arrays, wanted)
    return arrays


def import_scipy_io(path: Path) -> Any:
    """scipy.io, which only MATLAB files need."""
    try:
        import scipy.io
    except ImportError as error:
        raise ValueError(
            f"{path}: reading a MATLAB file takes scipy, which is not installed: pip install scipy"
        ) from error
    return scipy.io


def _check_keys(path: Path, arrays: Arrays, wanted: tuple[str, ...]) -> None:
    missing = [key for key in wanted if key not in arrays]
    if missing:
        raise ValueError(f"{path}: misses {', '.join(missing)}; expected {', '.join(wanted)}")
