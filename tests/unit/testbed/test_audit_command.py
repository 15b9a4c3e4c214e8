"""`mpc-vote audit` as a user runs it, in one process and on a cluster.

Confidence is such that claims that hold are called violated with probability below 1e-6 in all
tests here together.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import psutil
import pytest

from agent_node.agent import Agent
from mpc_vote import cli
from mpc_vote.app.config import Method
from mpc_vote.app.process import PARENT_VARIABLE
from mpc_vote.mpc import ring
from mpc_vote.mpc.sharing import ShareReader, sum_blocks
from mpc_vote.privacy.mechanisms import Level
from mpc_vote.testbed.audit import voters
from mpc_vote.testbed.audit.agents import _Colluder
from mpc_vote.testbed.audit.labels import AttackScenario, AuditedRounds
from mpc_vote.voting.ballots import BALLOTS, KNN_FREQUENCY, IntArray

SURE = ["--confidence", "0.99999999"]
SMALL = ["--agents", "4", "--parties", "2", "--votes", "60000", *SURE]
# Every way to vote is attacked: half a minute of work, and more where others work, too.
WHOLE = pytest.mark.timeout(300)


@WHOLE
def test_a_claim_that_holds_is_not_refuted_and_the_limits_of_that_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "audit.json"
    assert cli.main(["audit", *SMALL, "--quorum", "3", "--json", str(path)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    for words in ("1 stay away", "not refuted", "lower bound", "claimed", "nothing is proved"):
        assert words in said
    assert "VIOLATED" not in said
    figures = json.loads(path.read_text())
    assert not figures["violated"]
    assert figures["settings"]["quorum"] == 3
    attacks = figures["attacks"]
    assert [(attack["queries"], attack["statistic"]) for attack in attacks] == [
        (queries, by) for queries in (1, 20) for by in ("(epsilon, delta)", "f-DP")
    ]
    for attack in attacks:
        assert attack["lower"] <= attack["upper"]
        assert not attack["violated"]
        assert all(0 <= hits <= attack["runs"] for hits in attack["hits"])
        assert attack["runs"] in ((15_000, 30_000) if attack["queries"] == 1 else (1_500,))
    moves = figures["sensitivities"]
    assert {move["level"] for move in moves} == {"agent", "instance"}
    assert {move["ballot"] for move in moves} == set(BALLOTS.names())
    assert {move["verified"] for move in moves} == {False, True}
    for move in moves:
        assert not move["exceeded"]
        assert 0 < move["move"]["l2_squared"] <= move["claimed"]["l2_squared"]
    assert "EXCEEDED" not in said


@pytest.mark.slow
@WHOLE
def test_a_voter_that_moves_too_far_ends_with_code_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def own_share(counts: IntArray, fraction_bits: int, **_: int) -> IntArray:
        shares: IntArray = (counts << fraction_bits) // np.maximum(counts.sum(axis=1), 1)[:, None]
        return shares

    monkeypatch.setattr(KNN_FREQUENCY, "encode", own_share)
    assert cli.main(["audit", *SMALL, "--json", "-"]) == 1
    said = capsys.readouterr()
    figures = json.loads(said.out)
    assert figures["violated"] and not any(attack["violated"] for attack in figures["attacks"])
    exceeded = [move for move in figures["sensitivities"] if move["exceeded"]]
    assert {(move["ballot"], move["level"]) for move in exceeded} == {("knn_frequency", "instance")}
    assert "EXCEEDED" in said.err
    assert "at instance level neighbours raw moved a knn_frequency ballot" in said.err


@pytest.fixture
def one_voter(monkeypatch: pytest.MonkeyPatch) -> None:
    """One way to vote is attacked, where it is not about these."""
    first = voters.styles()[:1]
    monkeypatch.setattr(voters, "styles", lambda: first)


@pytest.mark.usefixtures("one_voter")
def test_a_violated_claim_ends_with_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--sigma", "1", "--claimed-sigma", "5", "--json", "-"]
    assert cli.main(["audit", *SMALL, *options]) == 1
    said = capsys.readouterr()
    assert json.loads(said.out)["violated"]
    assert "VIOLATED" in said.err
    assert "the claim is violated" in said.err.splitlines()[-1]


@pytest.mark.usefixtures("one_voter")
@pytest.mark.parametrize("options", [["--level", "agent"], ["--method", "knn", "--queries", "1"]])
def test_other_plans_can_be_audited(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["audit", *SMALL, *options]) == 0
    assert "not refuted" in capsys.readouterr().out


@WHOLE
@pytest.mark.parametrize(
    ("options", "code"),
    [
        # The agent that is not counted stays away.
        pytest.param(
            ["--level", "agent", "--method", "knn", "--k", "5", "--quorum", "3"],
            0,
            marks=pytest.mark.slow,
        ),
        (["--sigma", "1", "--claimed-sigma", "5", "--collusion", "2"], 1),
    ],
)
def test_a_live_cluster_is_audited(options: list[str], code: int) -> None:
    live = ["--live", "--agents", "4", "--parties", "2", "--votes", "10000", "--json", "-", *SURE]
    audit = subprocess.Popen(
        [sys.executable, "-m", "mpc_vote.cli", "audit", *live, *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    out, error = audit.communicate(timeout=280)
    assert audit.returncode == code, error
    figures = json.loads(out)
    assert figures["violated"] == (code == 1)
    assert figures["settings"]["live"]
    pid = str(audit.pid)
    environments = psutil.process_iter(["environ"])
    left = [p for p in environments if (p.info["environ"] or {}).get(PARENT_VARIABLE) == pid]
    assert not left


def test_a_colluder_sends_its_ballot_as_it_is() -> None:
    assert hasattr(Agent, "_noise")  # what the colluder puts its own in place of
    case = AuditedRounds(
        AttackScenario.of(Level.AGENT, Method.AE, 1, 2, 3, 1), 3, 2, 5, 4.0, 4.0, 1e-3
    )
    spec = case.spec(5, 4.0)
    colluder = _Colluder.__new__(_Colluder)
    colluder._name = "agent-1"
    ballot = np.arange(10, dtype=np.int64).reshape(5, 2)
    bits = spec.message.ring_bits
    shares = colluder._share(spec, ballot)
    total = sum_blocks([ShareReader(share, bits) for share in shares], ballot.size)
    assert ring.signed(total, bits).tolist() == list(range(10))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--quorum", "9"], "within the roster (8 agents)"),
        (["--collusion", "8"], "must lie above the collusion bound (8)"),
        (["--votes", "100"], "ask for more votes, or for fewer queries"),
        (["--sigma", "-1"], "sigma"),
        (["--sigma", "1e30"], "sigma"),
        (["--sigma", "1e6"], "lower sigma"),
        (["--level", "planet"], "level"),
        (["--method", "magic"], "method"),
        (["--delta", "0"], "delta"),
        (["--confidence", "1"], "confidence"),
        (["--classes", "1"], "classes"),
        (["--json", "no/such/folder/x.json"], "no folder"),
    ],
)
def test_bad_options_are_refused_in_a_sentence(
    options: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["audit", *options]) in (1, 2)
    error = capsys.readouterr().err
    assert words in error
    assert error.startswith("mpc-vote audit: error: ")
    assert len(error.splitlines()) == 1
