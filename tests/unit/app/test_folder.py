"""A data folder has one holder, who is named, and none when its process is gone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mpc_vote.app import folder
from mpc_vote.app.process import CommandError

_HOLD = """
import sys
from pathlib import Path
from mpc_vote.app import folder

with folder.held(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("below", [".", "data"])
def test_a_file_is_no_data_folder(tmp_path: Path, below: str) -> None:
    (tmp_path / "file").write_text("something else")
    given = tmp_path / "file" / below
    with pytest.raises(CommandError, match=r"a file: name a folder"), folder.held(given):
        pass


def test_a_folder_has_one_holder_in_one_process_too(tmp_path: Path) -> None:
    """Agents that share a process must not share a ledger."""
    data = tmp_path / "new" / "data"
    with folder.held(data):
        with (
            pytest.raises(CommandError, match=f"{data} is in use by process {os.getpid()} on"),
            folder.held(data),
        ):
            pass
        with folder.held(tmp_path / "other"):
            pass
    with folder.held(data):
        pass
    assert data.stat().st_mode & 0o077 == 0


def test_a_killed_holder_leaves_the_folder_free_at_once(tmp_path: Path) -> None:
    """Whoever comes next is named in full, however long the name before was."""
    program = [sys.executable, "-c", _HOLD, str(tmp_path)]
    (tmp_path / folder.LOCK).write_text("process 123456789012345 on a host of long ago\n")
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
        with (
            pytest.raises(CommandError, match=f"in use by process {holder.pid} on [^ ]*: give"),
            folder.held(tmp_path),
        ):
            pass
        holder.kill()
        holder.wait()
    with folder.held(tmp_path):
        pass


def test_a_child_does_not_inherit_the_lock(tmp_path: Path) -> None:
    with folder.held(tmp_path):
        child = subprocess.Popen(["sleep", "60"], close_fds=False)
    try:
        with folder.held(tmp_path):
            pass
    finally:
        child.kill()
        child.wait()
