"""Finished work on disk, found again by everything that it depends on.

A result is looked up by its name, its configuration and a digest of the code that makes results:
after a change of code nothing old is taken for new. Files appear whole or not at all, so that an
interrupted run continues where it stopped.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import os
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from mpc_vote.data.dataset import Dataset

log = logging.getLogger(__name__)

Arrays: TypeAlias = dict[str, npt.NDArray[Any]]
Config: TypeAlias = Mapping[str, Any]

# What no result follows from, but for the data, which are in their names.
_OTHER = (
    *("testbed", "cli", "proto", "simulation/experiments"),
    *("simulation/plots.py", "simulation/report.py"),
)
_PACKAGES = ("numpy", "torch", "faiss-cpu")


class ResultStore:
    """A folder of results."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def arrays(self, name: str, config: Config, make: Callable[[], Arrays]) -> Arrays:
        """The arrays of this name and configuration, made if they are not there yet."""
        path = self._path(name, config, "npz")
        if path.exists():
            try:
                with np.load(path, allow_pickle=False) as stored:
                    return {key: stored[key] for key in stored.files}
            except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
                log.warning("%s can't be read and is made again: %s", path, error)
        made = make()
        with _draft(path) as draft, draft.open("wb") as file:
            np.savez_compressed(file, **made)  # type: ignore[arg-type]
        return made

    def figures(
        self, name: str, config: Config, make: Callable[[], dict[str, Any]]
    ) -> dict[str, Any]:
        """The same for figures; they are given as JSON gives them back."""
        path = self._path(name, config, "json")
        if path.exists():
            try:
                stored: dict[str, Any] = json.loads(path.read_text())["figures"]
                return stored
            except (OSError, ValueError, KeyError) as error:
                log.warning("%s can't be read and is made again: %s", path, error)
        text = json.dumps({"config": dict(config), "figures": make()}, indent=1)
        with _draft(path) as draft:
            draft.write_text(text)
        figures: dict[str, Any] = json.loads(text)["figures"]
        return figures

    def _path(self, name: str, config: Config, ending: str) -> Path:
        wanted = json.dumps([name, config, _code()], sort_keys=True)
        digest = hashlib.sha256(wanted.encode()).hexdigest()
        return self._root / name / f"{digest[:24]}.{ending}"


def plain(config: Any) -> Any:
    """A configuration made of dataclasses as JSON has it, with the kinds of its parts."""
    if not dataclasses.is_dataclass(config):
        return config
    parts = {part.name: plain(getattr(config, part.name)) for part in dataclasses.fields(config)}
    return {"kind": type(config).__name__, **parts}


def fingerprint(dataset: Dataset) -> str:
    """A digest of all that a dataset holds, for configurations."""
    digest = hashlib.sha256(f"{dataset.classes}{dataset.x.shape}{dataset.y.shape}".encode())
    digest.update(np.ascontiguousarray(dataset.x).data)
    digest.update(np.ascontiguousarray(dataset.y).data)
    return digest.hexdigest()[:24]


@contextmanager
def _draft(path: Path) -> Iterator[Path]:
    """A file beside the wanted one, which takes its place if all goes well."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield draft
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


@cache
def _code() -> str:
    digest = hashlib.sha256()
    for path in _sources():
        digest.update(path.read_bytes())
    for package in _PACKAGES:
        digest.update(metadata.version(package).encode())
    return digest.hexdigest()


def _sources() -> Iterator[Path]:
    root = Path(__file__).parent.parent
    other = [root / part for part in _OTHER]
    for path in sorted(root.rglob("*.py")):
        if not any(path.is_relative_to(part) for part in other):
            yield path
