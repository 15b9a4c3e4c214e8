"""`mpc-vote bench crypten` as a user runs it, and what it would do with a wrong result."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mpc_vote.app import config
from mpc_vote.app.process import CommandError
from mpc_vote.argmax.registry import ENGINES
from mpc_vote.testbed.bench import crypten

COMMAND = [sys.executable, "-m", "mpc_vote.cli", "bench", "crypten"]
PROGRAMS = ["argmax", "max", "min", "max_pool2d", "classify"]


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("provider", ["TFP", "TTP"])
def test_every_method_is_measured_and_right(provider: str, tmp_path: Path) -> None:
    small = ["--parties=2", "--rows=4", "--classes=3", "--repeat=1", f"--provider={provider}"]
    path = tmp_path / "figures.json"
    done = subprocess.run(
        [*COMMAND, *small, "--json", str(path)],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "every result of every repeat is right" in done.stdout
    figures = json.loads(path.read_text())
    assert set(figures) == {"settings", "machine", "versions", "rows"}
    rows = figures["rows"]
    assert [row["program"] for row in rows[:: len(ENGINES.names())]] == PROGRAMS
    for start in range(0, len(rows), len(ENGINES.names())):
        table, *others = rows[start : start + len(ENGINES.names())]
        assert table["method"] == "table"
        assert all(table["rounds"] < other["rounds"] for other in others)
    assert all(row["right"] and row["seconds_min"] <= row["seconds_median"] for row in rows)


async def test_a_wrong_result_fails_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*_: Any) -> list[dict[str, Any]]:
        row = {"program": "max", "rounds": 5, "bytes": 8, "seconds": [0.1]}
        return [{**row, "method": "table", "right": False}]

    monkeypatch.setattr(crypten, "_run", run)
    with pytest.raises(CommandError, match="max with table is wrong"):
        await crypten.run_bench(config.load(crypten.CryptenBenchSettings, []))


@pytest.mark.timeout(60)
def test_it_gives_up_in_time(tmp_path: Path) -> None:
    done = subprocess.run(
        [*COMMAND, "--parties=2", "--seconds=0.1"],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.returncode == 1
    assert "not done after 0.1 s" in done.stderr


@pytest.mark.timeout(60)
def test_an_unknown_method_is_refused() -> None:
    done = subprocess.run(
        [*COMMAND, "--method=table,magic"], capture_output=True, text=True, timeout=50, check=False
    )
    assert done.returncode != 0
    assert "'magic' is no max_method; choose among table, pairwise" in done.stderr
