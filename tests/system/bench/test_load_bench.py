"""`mpc-vote bench load`: requests beyond what a small service can take, and a verdict that can
fail."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mpc_vote.app.config import load
from mpc_vote.testbed.bench.load import LoadSettings, faults

pytestmark = pytest.mark.slow

PROGRAM = [sys.executable, "-m", "mpc_vote.cli", "bench", "load"]
SMALL = [
    *("--clients=8", "--agents=3", "--minutes=0.1", "--queries=16", "--classes=3"),
    *("--features=5", "--parties=2", "--sigma=5", "--k=10", "--places=2", "--growth=1"),
]
GOOD: dict[str, Any] = {
    "completed": 20,
    "failed": {},
    "failed_saying": {},
    "refused_without_hint": 0,
    "open_rounds": {"most": 2},
    "completed_per_client": {"least": 2, "most": 3},
    "memory": {"coordinator": {"first": 100.0, "last": 199.0}, "clients": {"first": 1, "last": 9}},
}


def run(*options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PROGRAM, *options], capture_output=True, text=True, timeout=120, check=False
    )


def test_a_service_that_is_asked_too_much_refuses_and_nothing_else(tmp_path: Path) -> None:
    """Everybody is served in turn, within the places, and all others are told when to come back."""
    figures, text = tmp_path / "load.json", tmp_path / "load.txt"
    done = run(*SMALL, f"--json={figures}", f"--out={text}")
    assert done.returncode == 0, done.stderr
    told = json.loads(figures.read_text())
    assert told["settings"]["clients"] == 8
    assert told["faults"] == [] and told["failed"] == {} and told["refused_without_hint"] == 0
    assert told["refused"].keys() == {"SERVICE_BUSY"} and told["refused"]["SERVICE_BUSY"] > 0
    assert told["right"] == 1.0
    assert 1 <= told["open_rounds"]["most"] <= told["open_rounds"]["allowed"] == 2
    assert 1 < told["longest_line"] <= 8
    served = told["completed_per_client"]
    assert 8 * served["least"] <= told["completed"] <= 8 * served["most"]
    for values in told["seconds"].values():
        assert 0 < values["p50"] <= values["p90"] <= values["p99"] <= values["max"]
    longest = told["seconds"]["first request to labels"]["max"]
    assert longest >= told["seconds"]["accepted request"]["max"]
    processes = {"dealer", "party-0", "party-1", "coordinator", "agents-0", "clients"}
    assert told["memory"].keys() == processes
    assert all(memory["most"] >= memory["first"] > 0 for memory in told["memory"].values())
    assert told["processor_seconds"].keys() == {
        *("dealer", "party", "coordinator", "agents", "clients")
    }
    for words in ("requests labelled", "refusals before labels", "memory in MiB"):
        assert words in done.stdout and words in text.read_text()
    assert "passed: nothing failed" in done.stdout


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda r: None, ""),
        (
            lambda r: r.update(failed={"DEADLINE": 3}, failed_saying={"DEADLINE": "too late"}),
            "3 requests failed with DEADLINE, the first saying: too late",
        ),
        (lambda r: r.update(refused_without_hint=4), "4 refusals did not say when to retry"),
        (lambda r: r["open_rounds"].update(most=3), "3 rounds were open, 2 may be"),
        (lambda r: r["completed_per_client"].update(least=0), "a client got no labels"),
        (lambda r: r["memory"]["coordinator"].update(last=201.0), "coordinator took"),
    ],
    ids=["good", "failed", "no-hint", "too-many-rounds", "starved", "memory"],
)
def test_the_verdict_can_fail(change: Callable[[dict[str, Any]], object], words: str) -> None:
    """Each thing that must hold under load is looked at, and named when it does not."""
    report = copy.deepcopy(GOOD)
    change(report)
    found = faults(report, load(LoadSettings, SMALL))
    assert len(found) == (1 if words else 0)
    assert words in "".join(found)


@pytest.mark.parametrize(
    ("option", "words"),
    [("--places=9", "places"), ("--minutes=0", "minutes"), ("--json=no/such/x.json", "no folder")],
)
def test_bad_options_are_refused_in_a_sentence(option: str, words: str) -> None:
    done = run(option)
    assert done.returncode in (1, 2)
    assert words in done.stderr
    assert "Traceback" not in done.stderr
