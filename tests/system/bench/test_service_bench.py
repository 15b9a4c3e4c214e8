"""`mpc-vote bench service` on a small federation: figures that add up, and no process left."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from mpc_vote.testbed.bench.service import RequestPhases

PROGRAM = [
    sys.executable,
    "-c",
    "import sys; from mpc_vote.testbed.bench.service import command; "
    "sys.exit(command(sys.argv[1:]))",
]
SMALL = ["--agents=3", "--queries=16", "--classes=3", "--features=5", "--parties=2", "--sigma=0.2"]
LONG = [*SMALL, "--repeat=1000"]
PROCESSES = 5  # dealer, two parties, coordinator, agents


def run(*options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PROGRAM, *options], capture_output=True, text=True, timeout=100, check=False
    )


@pytest.mark.parametrize("network", [(), ("--rtt=20", "--rate=50")], ids=["near", "far"])
def test_the_parts_of_a_request_add_up(tmp_path: Path, network: tuple[str, ...]) -> None:
    figures, text = tmp_path / "service.json", tmp_path / "service.txt"
    done = run(*SMALL, "--repeat=1", f"--json={figures}", f"--out={text}", *network)
    assert done.returncode == 0, done.stderr
    told = json.loads(figures.read_text())
    assert told.keys() == {"settings", "machine", "runs"}
    assert (told["settings"]["queries"], told["settings"]["agents"]) == (16, [3])
    (measured,) = told["runs"]
    assert measured.keys() == {
        "agents",
        "labels_per_second",
        "seconds",
        "parts",
        "all_seconds",
        "first_seconds",
        "right",
        "processor_seconds",
        "ring_bits",
        "upload_bytes_per_agent",
        "mpc_rounds",
        "mpc_bytes_per_party",
        "mpc_round_trip_seconds",
        "dealer_bytes",
        "peak_memory_bytes",
    }
    assert measured["agents"] == 3
    assert measured["right"] == 1.0
    assert measured["all_seconds"] == [measured["seconds"]]
    assert measured["labels_per_second"] == pytest.approx(16 / measured["seconds"])
    parts = measured["parts"]
    assert parts.keys() == RequestPhases.__dataclass_fields__.keys()
    assert all(seconds >= 0 for seconds in parts.values()), parts
    assert min(parts["preparing"], parts["intake"], parts["summing"], parts["argmax"]) > 0
    assert sum(parts.values()) == pytest.approx(measured["seconds"])
    kinds = {"agents", "coordinator", "dealer", "party"} | ({"relay"} if network else set())
    assert measured["processor_seconds"].keys() == kinds
    assert all(
        measured[key] > 0 for key in ("first_seconds", "ring_bits", "upload_bytes_per_agent")
    )
    if network:
        assert measured["mpc_round_trip_seconds"] >= 0.02
        # The queries, three exchanges of the argmax and the way there and back at the least.
        assert measured["seconds"] > 0.1
    for words in ("labels per second", "intake", "argmax"):
        assert words in done.stdout
        assert words in text.read_text()


def test_interrupting_it_leaves_no_process_behind() -> None:
    bench = subprocess.Popen(
        [*PROGRAM, *LONG], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    )
    children = _children(bench.pid)
    bench.send_signal(signal.SIGINT)
    _, error = bench.communicate(timeout=60)
    assert bench.returncode == 130
    assert "interrupted" in error
    assert "Traceback" not in error
    assert not [child for child in children if child.is_running()]


def test_a_failed_child_fails_it_with_its_reason() -> None:
    bench = subprocess.Popen(
        [*PROGRAM, *LONG], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    )
    children = _children(bench.pid)
    next(child for child in children if "bench-agents" in child.cmdline()).kill()
    _, error = bench.communicate(timeout=60)
    assert bench.returncode == 1
    assert "agents-0 ended with code -9" in error
    assert not [child for child in children if child.is_running()]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--agents=1"], "agents"),
        (["--agents=8,x"], "agents"),
        (["--parties=1"], "parties"),
        (["--repeat=0"], "repeat"),
        (["--rtt=-1"], "rtt"),
        (["--json=no/such/folder/x.json"], "no folder"),
        (["--out=no/such/folder/x.txt"], "no folder"),
    ],
)
def test_bad_options_are_refused_in_a_sentence(options: list[str], words: str) -> None:
    done = run(*options)
    assert done.returncode in (1, 2)
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def _children(pid: int) -> list[psutil.Process]:
    """The roles' processes, once all of them run."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        children = psutil.Process(pid).children()
        # A process that was just forked has its parent's command for a moment.
        if len(children) >= PROCESSES and any("bench-agents" in c.cmdline() for c in children):
            return children
        time.sleep(0.05)
    raise AssertionError("the processes did not start")
