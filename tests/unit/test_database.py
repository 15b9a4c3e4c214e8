"""How SQLite files are opened."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest

from mpc_vote import database


def test_a_folder_is_a_folder_whatever_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that SQLite reads as a URI could keep a ledger in memory, to be forgotten."""
    monkeypatch.chdir(tmp_path)
    path = Path("file:") / "state?mode=memory" / "ledger.db"
    with contextlib.closing(database.connect_durable(path)) as opened:
        opened.execute("CREATE TABLE spends (round_id TEXT)")
    assert path.stat().st_size > 0
    with contextlib.closing(database.read_only(path)) as read:
        assert read.execute("SELECT count(*) FROM spends").fetchone() == (0,)
    assert os.listdir(tmp_path) == ["file:"]
