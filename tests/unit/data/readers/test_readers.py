"""Files become data sets by their ending or by a reader that is named; what fails says why."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from agent_node.settings import AgentSettings
from mpc_vote.app import config
from mpc_vote.app.config import ConfigError
from mpc_vote.data.dataset import Dataset
from mpc_vote.data.partition import save_part
from mpc_vote.data.readers import read, reader_for
from mpc_vote.plugins import PluginError

PART = Dataset("part", np.ones((3, 2), np.float32), np.array([0, 1, 1]), 2)
REQUIRED = ("--certs=x", "--data=x", "--data-dir=x", "--coordinator=h:1", "--parties=a=h:1,b=h:2")


def _plug_in(monkeypatch: pytest.MonkeyPatch, reader: Any) -> str:
    monkeypatch.setitem(sys.modules, "my_readers", SimpleNamespace(read=reader))
    return "my_readers:read"


@pytest.mark.parametrize("name", ["part.npz", "PART.NPZ", "part", "part.unknown"])
def test_npz_is_what_files_are_unless_their_ending_says_otherwise(
    name: str, tmp_path: Path
) -> None:
    save_part(tmp_path / name, PART)
    assert reader_for(tmp_path / name) == "npz"
    for found in (read(tmp_path / name), read(tmp_path / name, "npz")):
        assert (found.name, found.classes) == ("part", 2)
        assert (found.x == PART.x).all() and (found.y == PART.y).all()


def test_a_reader_that_is_named_comes_before_the_ending(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Path] = []

    def noted(path: Path, task: object) -> Dataset:
        seen.append(path)
        return PART

    name = _plug_in(monkeypatch, noted)
    assert read(tmp_path / "part.npz", name) is PART
    assert seen == [tmp_path / "part.npz"]


def _raise(error: BaseException) -> Any:
    def reader(path: Path, task: object) -> Dataset:
        raise error

    return reader


@pytest.mark.parametrize(
    ("reader", "kind", "words"),
    [
        (_raise(ValueError("line 3 is odd")), ValueError, "^line 3 is odd$"),
        (_raise(PermissionError("no")), OSError, "no"),
        (_raise(KeyError("x")), ValueError, "the reader my_readers:read failed: KeyError: 'x'"),
        (lambda path, task: (1, 2), ValueError, "no Dataset but tuple"),
    ],
)
def test_a_reader_that_fails_is_named(
    reader: Any, kind: type[Exception], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(kind, match=words):
        read(Path("part.csv"), _plug_in(monkeypatch, reader))


def test_a_reader_that_is_not_there_is_a_mistake_in_the_settings() -> None:
    assert config.load(AgentSettings, REQUIRED).reader is None
    with pytest.raises(
        ConfigError, match="choose one of csv, npy, npz, parquet, pictures, tsv, txt"
    ):
        config.load(AgentSettings, [*REQUIRED, "--reader=xml"])
    with pytest.raises(PluginError, match="No module named"):
        read(Path("part"), "no_such_module:read")
