"""What commands write: a file that can't be written is refused before anybody is asked."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from mpc_vote import cli
from mpc_vote.app.process import CommandError
from mpc_vote.cli.common import check_labels_file

# Nobody is there: a command that went on would say that nobody answers.
NOBODY = "--coordinator=127.0.0.1:1"


@pytest.mark.parametrize("name", ["out.xlsx", "out", "out.json", "out.csv.gz"])
def test_labels_are_written_to_endings_that_say_how(name: str, tmp_path: Path) -> None:
    with pytest.raises(CommandError, match=r"name it \.npy, \.csv, \.tsv or \.parquet"):
        check_labels_file(tmp_path / name, None)


@pytest.mark.parametrize(
    ("command", "wanted"),
    [
        (["label", "--queries=Q", "--classes=3", "--out=out.xlsx"], "name it .npy, .csv"),
        (["rounds", "--round=r", "--out=out.xlsx"], "name it .npy, .csv"),
        (["model", "--inputs=Q", "--labels=out.xlsx"], "name it .npy, .csv"),
        (["model", "--out=model.pt"], "name it .safetensors"),
        (["model", "--version=7"], "--version is for a model to fetch or ask"),
    ],
)
def test_what_can_not_be_written_is_refused_before_anybody_is_asked(
    command: Sequence[str],
    wanted: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("q.npy", np.zeros((4, 2), np.float32))
    given = [word.replace("=Q", "=q.npy") for word in command]
    assert cli.main([*given, "--certs=none", NOBODY]) == 1
    assert wanted in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["q.npy"]


def test_a_reader_that_leaves_is_no_error() -> None:
    """As `mpc-vote --help | head -1` does."""
    read, write = os.pipe()
    os.close(read)
    with open(write, "wb") as gone:
        done = subprocess.run(
            [sys.executable, "-m", "mpc_vote.cli", "--help"], stdout=gone, stderr=subprocess.PIPE
        )
    assert (done.returncode, done.stderr) == (0, b"")
