"""The demo as a user runs it: a subprocess, its table, its JSON, its end."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest

from mpc_vote.app.config import Method
from mpc_vote.cli.against import EXPLAINED
from mpc_vote.learning.voters.bounded import BoundedVoter
from mpc_vote.learning.voters.knn import KnnVoter
from mpc_vote.testbed.demo import digits, table
from mpc_vote.testbed.demo.result import remarks
from mpc_vote.testbed.demo.subject import DemoMethod, Scale
from mpc_vote.voting.ballots import KNN_COUNT

COMMAND = [sys.executable, "-m", "mpc_vote.cli", "demo"]
KEYS = {
    "label_accuracy",
    "student_accuracy",
    "oracle_accuracy",
    "best_agent_accuracy",
    "epsilon_agent",
    "epsilon_instance",
    "labels_epsilon_agent",
    "labels_epsilon_instance",
    "delta",
    "sigma",
    "queries",
    "agents",
    "parties",
    "engine",
    "mpc_rounds",
    "mpc_bytes_per_party",
    "mpc_seconds",
    "mpc_round_trip_seconds",
    "upload_bytes_per_agent",
    "seconds",
    "peak_memory_bytes",
}


@pytest.mark.timeout(300)
def test_the_demo_labels_well_privately_and_says_so(tmp_path: Path) -> None:
    path = tmp_path / "demo.json"
    done = subprocess.run(
        [*COMMAND, "--json", str(path)], capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stderr
    figures = json.loads(path.read_text())
    assert set(figures) == KEYS
    assert (figures["agents"], figures["parties"], figures["queries"]) == (8, 3, 500)
    assert figures["epsilon_instance"] < 4
    assert figures["delta"] == 1e-3
    assert figures["label_accuracy"] > 0.88  # 0.9 but for the noise of one draw
    assert figures["student_accuracy"] > figures["best_agent_accuracy"]
    assert figures["oracle_accuracy"] >= figures["student_accuracy"] - 0.02
    assert figures["mpc_rounds"] > 0
    assert figures["peak_memory_bytes"] < 3 * 2**30
    for words in ("label accuracy", "epsilon, instance level", "best agent alone", "sigma 40"):
        assert words in done.stdout


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_bound_on_contributions_takes_no_labels_and_most_of_a_records_loss(
    tmp_path: Path,
) -> None:
    path = tmp_path / "demo.json"
    done = subprocess.run(
        [*COMMAND, "--bounded", "--json", str(path)],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    figures = json.loads(path.read_text())
    record = {"epsilon_record_add_remove", "epsilon_record_replace", "max_contributions"}
    assert set(figures) == KEYS | record
    assert figures["max_contributions"] == 60
    assert figures["label_accuracy"] > 0.88  # 0.93 but for the noise of one draw
    assert figures["epsilon_record_add_remove"] < 0.67
    assert figures["epsilon_record_replace"] < 1.01 < 2.3 < figures["epsilon_instance"]
    assert "0.6656 added or removed, 1.003 replaced, of 60" in " ".join(done.stdout.split())


def test_the_bound_of_the_demo_follows_from_public_points_and_costs_few_votes() -> None:
    """One label in a hundred is allowed; over simulated noise it was a tenth of that."""
    method = digits.METHODS[Method.KNN]
    data = digits.split(Scale(8, 500, 0))
    task = digits.bounded_task(method, data.public)
    vote = task.vote
    assert (vote.k, vote.reach, vote.max_contributions) == (50, 0.07, 60)
    assert vote.radius is not None and vote.max_contributions is not None
    free, bounded = np.zeros((2, 500, 10))
    for part in data.private:
        free += KnnVoter(part.x, part.y, 10, 50, features="strokes", reach=0.07).counts(
            data.public.x
        )
        bounded += BoundedVoter(
            part, 50, vote.radius, vote.max_contributions, features="strokes", reach=0.07
        ).vote(data.public.x, KNN_COUNT)
    noise = np.random.default_rng(0).normal(size=(20, 500, 10)) * method.sigma
    right = [((votes + noise).argmax(axis=2) == data.public.y).mean() for votes in (free, bounded)]
    assert right[1] > right[0] - 0.01


@pytest.mark.parametrize(
    "flags", [["--task", "table"], ["--method", "ae"], ["--service", "localhost:1", "--certs", "x"]]
)
def test_a_bound_is_for_neighbours_of_the_digits(flags: list[str]) -> None:
    done = subprocess.run(
        [*COMMAND, "--bounded", *flags], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1 and "bounded" in done.stderr


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_demo_on_a_table_has_agents_of_four_kinds_in_one_round(tmp_path: Path) -> None:
    path = tmp_path / "demo.json"
    done = subprocess.run(
        [*COMMAND, "--task", "table", "--json", str(path)],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    figures = json.loads(path.read_text())
    assert set(figures) == KEYS
    assert (figures["agents"], figures["parties"], figures["queries"]) == (8, 3, 150)
    assert figures["label_accuracy"] > 0.85  # 0.93 but for the noise of one draw
    assert figures["student_accuracy"] > 0.85
    shown = " ".join(done.stdout.replace("│", " ").split())
    assert "mixed, one_hot ballots, 2 knn, 2 network, 2 sklearn, 2 onnx" in shown
    assert "classes malignant and benign" in shown
    assert "protects next to nothing. 8 agents are too few to hide one's ballot" in shown


@pytest.mark.parametrize(
    ("method", "figures", "told"),
    [
        (table.METHODS["mixed"], (0.94, 0.97, 139.1), ["An agent alone does", "epsilon of 139.1"]),
        (table.METHODS["mixed"], (0.97, 0.94, 139.1), ["With --method knn a record changes"]),
        (table.METHODS["knn"], (0.97, 0.94, 9.0), ["in noise this small"]),
        (table.METHODS["knn"], (0.96, 0.78, 2.358), []),
    ],
)
def test_figures_that_speak_against_the_vote_are_explained(
    method: DemoMethod, figures: tuple[float, float, float], told: list[str]
) -> None:
    keys = ("student_accuracy", "best_agent_accuracy", "epsilon_instance")
    trial: Any = SimpleNamespace(method=method, scale=Scale(8, 150, 0))
    against, *found = remarks(trial, dict(zip(keys, figures, strict=True)))
    assert against == EXPLAINED
    assert len(found) == len(told)
    for sentence, words in zip(found, told, strict=True):
        assert words in sentence


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_neighbours_alone_protect_records_of_the_table(tmp_path: Path) -> None:
    path = tmp_path / "demo.json"
    done = subprocess.run(
        [*COMMAND, "--task=table", "--method=knn", "--agents=4", "--parties=2", "--json", path],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(path.read_text())["epsilon_instance"] < 8
    assert "knn_count ballots" in done.stdout


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_demo_counts_with_the_engine_that_it_is_told(tmp_path: Path) -> None:
    path = tmp_path / "demo.json"
    small = ["--agents=3", "--parties=2", "--queries=40", "--task=table", "--method=knn"]
    done = subprocess.run(
        [*COMMAND, *small, "--engine=log_reduction", "--json", path],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(path.read_text())["engine"] == "log_reduction"
    assert "log_reduction, " in done.stdout


def test_the_data_of_the_demo_is_written_once(tmp_path: Path) -> None:
    write = [*COMMAND, "data", "--task", "table", "--agents", "2", "--out", str(tmp_path / "new")]
    done = subprocess.run(write, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    rows = {path.stem: path.read_text().splitlines() for path in (tmp_path / "new").iterdir()}
    assert set(rows) == {"public", "answers", "test", "hospital-0", "hospital-1"}
    assert "diagnosis" not in rows["public"][0]
    labelled = [line for name, lines in rows.items() if name != "public" for line in lines[1:]]
    assert len(set(labelled)) == 569
    again = subprocess.run(write, capture_output=True, text=True, timeout=60, check=False)
    assert again.returncode == 1 and "not empty" in again.stderr


@pytest.mark.timeout(120)
def test_interrupting_the_demo_leaves_no_process_behind() -> None:
    demo = subprocess.Popen(COMMAND, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    children = _wait_for_children(demo.pid, 13)
    demo.send_signal(signal.SIGINT)
    _, error = demo.communicate(timeout=60)
    assert demo.returncode == 130
    assert "interrupted" in error
    assert "Traceback" not in error
    assert not [child for child in children if child.is_running()]


@pytest.mark.timeout(120)
def test_killing_the_demo_outright_takes_its_children_along() -> None:
    demo = subprocess.Popen(COMMAND, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    children = _wait_for_children(demo.pid, 13)
    demo.kill()
    demo.wait(10)
    _, alive = psutil.wait_procs(children, timeout=30)
    assert not alive


@pytest.mark.timeout(120)
def test_a_failed_child_fails_the_demo_with_its_reason() -> None:
    demo = subprocess.Popen(COMMAND, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    children = _wait_for_children(demo.pid, 13)
    victim = next(child for child in children if "dealer" in child.cmdline())
    victim.kill()
    _, error = demo.communicate(timeout=60)
    assert demo.returncode == 1
    assert "dealer ended with code -9" in error
    assert not [child for child in children if child.is_running()]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--agents", "1"], "agents"),
        (["--parties", "1"], "parties"),
        (["--queries", "4900"], "queries"),
        (["--sigma", "-1"], "sigma"),
        (["--method", "magic"], "method"),
        (["--method", "mixed"], "--task table"),
        (["--task", "table", "--queries", "500"], "split"),
        (["--task", "table", "--service", "x:1", "--certs", "."], "leave --task out"),
        (["--json", "no/such/folder/x.json"], "no folder"),
    ],
)
def test_bad_options_are_refused_in_a_sentence(options: list[str], words: str) -> None:
    done = subprocess.run(
        [*COMMAND, *options], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode in (1, 2)
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def _wait_for_children(pid: int, count: int) -> list[psutil.Process]:
    """The demo's role processes, once all of them run."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        children = [c for c in psutil.Process(pid).children() if c.pid != os.getpid()]
        if len(children) >= count:
            return children
        time.sleep(0.05)
    raise AssertionError("the demo's processes did not start")
