"""A voter in a process of its own does whatever it likes, and its agent goes on."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest

from mpc_vote.data.dataset import Dataset
from mpc_vote.learning.voters import VoterOptions, isolated
from mpc_vote.learning.voters.frames import Deadline, FrameError, receive
from mpc_vote.learning.voters.isolated import IsolatedVoter, VoterError
from mpc_vote.voting.ballots import KNN_COUNT, ONE_HOT

PLUGINS = "tests.unit.learning.voters.plugins_on_trial"
DATA = Dataset("points", np.zeros((3, 2), np.float32), np.array([0, 1, 1]), 2)
QUERIES = np.array([[1, 1], [-1, 2]], np.float32)
Started = Callable[..., IsolatedVoter]


@pytest.fixture
def started() -> Iterator[Started]:
    voters: list[IsolatedVoter] = []

    def start(name: str, data: Dataset = DATA, **options: float) -> IsolatedVoter:
        voters.append(IsolatedVoter(f"{PLUGINS}:{name}", data, VoterOptions(k=5, **options)))  # type: ignore[arg-type]
        return voters[-1]

    yield start
    for voter in voters:
        voter.close()


def pid_of(voter: IsolatedVoter) -> int:
    assert voter._child is not None
    return voter._child.process.pid


def test_a_function_votes_in_another_process(started: Started) -> None:
    voter = started("sign")
    assert (voter.kinds, voter.k) == ((ONE_HOT,), 0)
    assert voter.vote(QUERIES, ONE_HOT).tolist() == [1, 0]
    assert pid_of(voter) != os.getpid()


def test_a_factory_gets_the_data_and_the_options(started: Started) -> None:
    voter = started("counts")
    assert (voter.kinds, voter.k) == ((KNN_COUNT,), 5)
    assert voter.vote(QUERIES, KNN_COUNT).tolist() == [[1, 2], [1, 2]]


@pytest.mark.parametrize("name", ["late", "stuck"])
def test_one_that_is_late_is_killed_and_another_takes_its_place(
    started: Started, name: str
) -> None:
    voter = started(name)
    first = pid_of(voter)
    with pytest.raises(VoterError) as caught:
        voter.vote(QUERIES, ONE_HOT, seconds=0.3)
    assert caught.value.why == "it took too long"
    assert not psutil.pid_exists(first)
    assert voter.vote(0 * QUERIES, ONE_HOT).tolist() == [0, 0]
    assert pid_of(voter) != first


@pytest.mark.parametrize("shape", [[0, 2**62, 2**62], [0, *[1] * 99]])
def test_arrays_that_numpy_can_not_have_are_no_message(shape: list[int]) -> None:
    text = json.dumps({"arrays": [{"dtype": "<i8", "shape": shape}]}).encode()
    here, there = socket.socketpair()
    with here, there:
        there.sendall(struct.pack("<QI", len(text), len(text)) + text)
        with pytest.raises(FrameError, match="arrays of no shape"):
            receive(here, 1 << 16, Deadline(5.0))


@pytest.mark.timeout(30)
def test_a_keeper_that_was_stopped_ends_too(
    started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    voter = started("sign")
    monkeypatch.setattr(isolated, "_END_SECONDS", None)  # and is not killed instead
    os.kill(pid_of(voter), signal.SIGSTOP)
    voter.close()


@pytest.mark.parametrize(("name", "how"), [("leaves", "code 7"), ("segfaults", "signal 11")])
def test_one_that_crashes_is_started_again(started: Started, name: str, how: str) -> None:
    voter = started(name)
    for _ in range(2):
        with pytest.raises(VoterError, match=how) as caught:
            voter.vote(QUERIES, ONE_HOT)
        assert caught.value.why == "its process ended"
    assert voter.vote(0 * QUERIES, ONE_HOT).tolist() == [0, 0]


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("raises", "it ended with an error"),
        ("exits", "it ended with an error"),
        ("not_a_number", "its votes hold NaN"),
        ("too_few", "its votes are not one for each query"),
        ("too_wide", "its votes are neither labels nor scores of each class"),
        ("no_such_class", "its votes name a class that does not exist"),
        ("objects", "its votes name a class that does not exist"),
    ],
)
def test_nonsense_is_no_vote_and_its_process_goes_on(started: Started, name: str, why: str) -> None:
    voter = started(name)
    first = pid_of(voter)
    with pytest.raises(VoterError) as caught:
        voter.vote(QUERIES, ONE_HOT)
    assert caught.value.why == why
    assert voter.vote(0 * QUERIES, ONE_HOT).tolist() == [0, 0]
    assert pid_of(voter) == first


def test_what_an_error_says_is_for_the_owner_alone(started: Started) -> None:
    with pytest.raises(VoterError, match="a secret") as caught:
        started("raises").vote(QUERIES, ONE_HOT)
    assert "secret" not in caught.value.why


def test_an_owner_is_shown_where_in_their_own_code_it_failed(started: Started) -> None:
    with pytest.raises(VoterError) as caught:
        started("raises").vote(QUERIES, ONE_HOT)
    told = str(caught.value)
    assert "in raises" in told and "plugins_on_trial.py" in told
    assert "worker.py" not in told and "answers.py" not in told


def test_an_answer_is_not_read_beyond_what_votes_take(started: Started) -> None:
    voter = started("huge")
    with pytest.raises(VoterError, match="400,") as caught:
        voter.vote(QUERIES, ONE_HOT)
    assert caught.value.why == "it answered with too much"


def test_what_a_voter_prints_is_no_answer(
    started: Started, capfd: pytest.CaptureFixture[str]
) -> None:
    assert started("talks").vote(QUERIES, ONE_HOT).tolist() == [1, 0]
    told = capfd.readouterr()
    assert (told.out, "spoken to nobody" in told.err) == ("", True)
    assert "written to nobody" in told.err


SECRETS = (
    *("MPC_VOTE_SECRET", "MPC_VOTE_AGENT_TOKEN", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_HOME"),
    *("AWS_SECRET_ACCESS_KEY", "GITHUB_TOKEN", "SSH_AUTH_SOCK", "XDG_RUNTIME_DIR", "https_proxy"),
    *("TORCH_TOKEN", "PGPASSWORD", "KUBECONFIG", "DATABASE_URL", "NETRC"),
)


def test_a_voter_gets_none_of_the_owners_secrets(
    started: Started, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in SECRETS:
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    started("environment").vote(QUERIES, ONE_HOT)
    names = (tmp_path / "names").read_text().split()
    assert not set(names) & set(SECRETS)
    assert {"PATH", "TMPDIR", "OMP_NUM_THREADS", "PYTHONPATH"} <= set(names)


def test_what_a_voter_started_ends_with_it(
    started: Started, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with pytest.raises(VoterError):
        started("starts_another").vote(QUERIES, ONE_HOT, seconds=3)
    child = int((tmp_path / "child").read_text())
    assert not psutil.pid_exists(child) or psutil.Process(child).status() == "zombie"


@pytest.mark.skipif(sys.platform != "linux", reason="others have no subreapers")
@pytest.mark.parametrize("name", ["starts_a_daemon", "starts_a_daemon_and_crashes"])
def test_so_does_what_left_its_session_and_lost_its_parents(
    name: str, started: Started, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    voter = started(name)
    with pytest.raises(VoterError):
        voter.vote(QUERIES, ONE_HOT, seconds=5)
    assert not psutil.pid_exists(int((tmp_path / "child").read_text()))


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("never_works", "RuntimeError: never"),
        ("dies_when_made", "its process ended: with code 9"),
        ("no_such_name", "can't be loaded"),
    ],
)
def test_what_can_not_work_is_said_when_it_is_made(started: Started, name: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        started(name)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("dies_when_made_again", "its process ended"),
        ("fickle", "it casts other ballots since it was started again"),
    ],
)
def test_one_that_does_not_start_again_is_told_of_in_words_that_say_nothing_of_its_data(
    name: str, why: str, started: Started, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    voter = started(name)
    with pytest.raises(VoterError, match="code 7"):
        voter.vote(QUERIES, voter.kinds[0])
    for _ in range(2):
        with pytest.raises(VoterError) as caught:
            voter.start(30)
        assert caught.value.why == why


def test_one_that_never_starts_is_given_up(started: Started) -> None:
    with pytest.raises(ValueError, match="did not start in time"):
        started("hangs_when_made", start_seconds=1.0)


def test_closing_ends_a_vote_that_is_asked_for(started: Started) -> None:
    voter = started("late")
    child = pid_of(voter)
    closing = threading.Timer(0.5, voter.close)
    closing.start()
    with pytest.raises(VoterError):
        voter.vote(QUERIES, ONE_HOT, seconds=100)
    closing.join()
    assert not psutil.pid_exists(child)
    with pytest.raises(VoterError, match="stops"):
        voter.vote(QUERIES, ONE_HOT)


def test_a_voter_outlives_the_thread_that_had_it_started_again(started: Started) -> None:
    voter = started("leaves")

    def ask() -> None:
        with pytest.raises(VoterError):
            voter.vote(QUERIES, ONE_HOT)

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    assert voter.vote(0 * QUERIES, ONE_HOT).tolist() == [0, 0]
    again = pid_of(voter)
    assert voter.vote(0 * QUERIES, ONE_HOT).tolist() == [0, 0]
    assert pid_of(voter) == again


@pytest.mark.parametrize("busy", [False, True])
def test_a_voter_dies_with_its_agent_however_that_ends(busy: bool) -> None:
    code = f"""
import os, threading, numpy as np
from tests.unit.learning.voters.test_isolated import DATA, PLUGINS, QUERIES
from mpc_vote.learning.voters import VoterOptions, isolated
from mpc_vote.learning.voters.frames import Deadline, FrameError, receive
from mpc_vote.learning.voters.isolated import IsolatedVoter
from mpc_vote.voting.ballots import ONE_HOT
voter = IsolatedVoter(f"{{PLUGINS}}:stuck", DATA, VoterOptions())
print(voter._child.process.pid, flush=True)
if {busy}:
    threading.Timer(1, os._exit, [0]).start()
    voter.vote(QUERIES, ONE_HOT)
os._exit(0)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    child = int(done.stdout)
    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.Process(child).wait(10)
    assert not psutil.pid_exists(child)
