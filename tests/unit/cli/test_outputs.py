"""What commands write: a file that can't be written is refused before anybody is asked."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import numpy as np
import pytest

from mpc_vote import cli
from mpc_vote.app.process import CommandError
from mpc_vote.cli import label, model
from mpc_vote.cli.common import check_labels_file
from mpc_vote.proto.mpcvote.v1 import label_pb2
from mpc_vote.results import Model

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


@pytest.mark.parametrize(
    "command",
    [
        ["label", "--queries=q.npy", "--classes=3", "--out=q.npy"],
        ["label", "--queries=q.npy", "--classes=3", "--out=./folder/../q.npy"],
        ["label", "--queries=q.npy", "--classes=3", "--out=a.npy", "--json=a.npy"],
        ["model", "--inputs=q.npy", "--labels=q.npy"],
        ["model", "--inputs=q.npy", "--labels=a.npy", "--json=q.npy"],
        ["train", "--unlabelled=q.npy", "--json=q.npy"],
    ],
)
def test_no_output_replaces_what_the_command_reads_or_writes_besides(
    command: Sequence[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    np.save("q.npy", np.zeros((4, 2), np.float32))
    assert cli.main([*command, "--certs=none", NOBODY]) == 1
    assert "for something else, too: name another file" in capsys.readouterr().err
    assert np.load("q.npy").shape == (4, 2)


def test_a_task_does_not_replace_its_sample(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sample = tmp_path / "s.csv"
    sample.write_text("a,b\n1,x\n2,y\n")
    given = ["task", "init", f"--sample={sample}", "--label=b", f"--out={sample}", "--overwrite"]
    assert cli.main(given) == 1
    assert "for something else, too: name another file" in capsys.readouterr().err
    assert sample.read_text().startswith("a,b")


class Service:
    """A service that has one round, or none, and is asked for no other."""

    def __init__(self, rounds: list[label_pb2.RoundSummary]) -> None:
        self._rounds = rounds

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        return None

    async def rounds(self) -> list[label_pb2.RoundSummary]:
        return self._rounds

    async def models(self) -> list[Model]:
        return []


def test_labels_of_a_new_round_replace_no_file_unawares(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(label, "connect", lambda _: Service([]))
    np.save("q.npy", np.zeros((4, 2), np.float32))
    (tmp_path / "old.npy").write_bytes(b"paid for")
    asked = ["label", "--queries=q.npy", "--classes=3", "--out=old.npy", "--certs=none"]
    assert cli.main(asked) == 1
    told = "nothing was asked: old.npy is there already: pass --overwrite to replace it"
    assert told in capsys.readouterr().err
    assert (tmp_path / "old.npy").read_bytes() == b"paid for"


def test_values_are_checked_before_earlier_rounds_are_told_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(tmp_path / "q.npy", np.zeros((4, 2), np.float32))
    asked = ["label", f"--queries={tmp_path}/q.npy", "--classes=3", "--sigma=-1"]
    assert cli.main([*asked, f"--out={tmp_path}/a.npy", "--certs=none", NOBODY]) == 1
    assert "SIGMA_RANGE" in capsys.readouterr().err


def test_without_a_model_there_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(model, "connect", lambda _: Service([]))
    assert cli.main(["model", f"--out={tmp_path}/m.safetensors", "--certs=none"]) == 1
    shown = capsys.readouterr()
    assert "there is no model yet: run mpc-vote train" in shown.err and not shown.out


def test_a_reader_that_leaves_is_no_error() -> None:
    """As `mpc-vote --help | head -1` does."""
    read, write = os.pipe()
    os.close(read)
    with open(write, "wb") as gone:
        done = subprocess.run(
            [sys.executable, "-m", "mpc_vote.cli", "--help"], stdout=gone, stderr=subprocess.PIPE
        )
    assert (done.returncode, done.stderr) == (0, b"")
