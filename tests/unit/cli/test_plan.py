"""`mpc-vote plan` tells labels and epsilons beforehand, and when not to ask, without a service."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mpc_vote import cli

Made = Callable[..., dict[str, Any]]
Refused = Callable[..., str]

TASK = """
format = 1
name = "wards"
classes = ["well", "ill", "unclear"]

[input]
kind = "vector"
shape = [4]

[features]
map = "raw"

[vote]
ballot = "knn_count"
k = 50
"""
COUNTS = ("--classes=10", "--ballot=knn_count", "--k=50", "--agents=8")
NAMES = ("--classes=10", "--ballot=one_hot", "--agents=8")


@pytest.fixture
def made(capsys: pytest.CaptureFixture[str]) -> Made:
    def run(*arguments: str) -> dict[str, Any]:
        assert cli.main(["plan", *arguments, "--json"]) == 0
        figures: dict[str, Any] = json.loads(capsys.readouterr().out)
        return figures

    return run


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Refused:
    def run(*arguments: str) -> str:
        assert cli.main(["plan", *arguments]) == 2
        return capsys.readouterr().err

    return run


def test_epsilons_are_those_that_account_gives(
    made: Made, capsys: pytest.CaptureFixture[str]
) -> None:
    figures = made(*COUNTS, "--sigma=40", "--queries=500")
    votes = ("--method=knn", "--ballot=knn_count", "--k=50", "--sigma=40", "--queries=500")
    assert figures["federation"]["verified"]
    agents_own = made(*COUNTS, "--sigma=40", "--queries=500", "--no-verified")
    roster = ("--agents=8", "--quorum=7", "--collusion=1")
    for found, noise in ((figures, ("--noise=coins",)), (agents_own, roster)):
        assert cli.main(["account", *votes, *noise, "--json"]) == 0
        account = json.loads(capsys.readouterr().out)
        (plan,) = found["plans"]
        assert plan["epsilon_instance"] == account["instance"]["totals"]
        assert plan["epsilon_agent"] == account["agent"]["totals"]


def test_every_sigma_is_planned_with_every_number_of_queries(made: Made) -> None:
    figures = made(*COUNTS, "--sigma=10,20", "--queries=100,500", "--agreement=0.6,0.8")
    cells = [(one["queries"], one["sigma"]) for one in figures["plans"]]
    assert cells == [(100, 10), (100, 20), (500, 10), (500, 20)]
    for one in figures["plans"]:
        assert [found["agreement"] for found in one["labels"]] == [0.6, 0.8]
        assert all(found["low"] <= found["high"] for found in one["labels"])


def test_sigma_is_found_for_an_epsilon_at_the_level_that_is_named(made: Made) -> None:
    for level, votes in (("instance", COUNTS), ("agent", NAMES)):
        figures = made(*votes, "--epsilon=2", f"--level={level}", "--queries=100,400")
        for one in figures["plans"]:
            assert 1.97 < one[f"epsilon_{level}"] <= 2
        few, many = figures["plans"]
        assert many["sigma"] == pytest.approx(2 * few["sigma"], rel=0.01)


def test_a_task_says_classes_ballot_and_k(made: Made, tmp_path: Path) -> None:
    path = tmp_path / "task.toml"
    path.write_text(TASK)
    federation = made(f"--task={path}", "--agents=6")["federation"]
    assert (federation["ballot"], federation["classes"]) == ("knn_count", 3)
    assert (federation["k"], federation["votes"]) == ([50] * 6, 300)
    assert (federation["quorum"], federation["collusion"]) == (5, 0)
    federation = made(f"--task={path}", "--agents=6", "--no-verified")["federation"]
    assert (federation["quorum"], federation["collusion"]) == (5, 1)


def test_the_plan_with_good_labels_and_the_least_epsilon_is_recommended(made: Made) -> None:
    figures = made(*COUNTS, "--sigma=10,40,400", "--queries=100,500", "--agreement=0.7")
    chosen = figures["recommended"]
    assert (chosen["queries"], chosen["sigma"]) == (100, 40)
    assert figures["advice"][0].startswith("Ask for 100 queries at sigma 40")


def test_at_one_epsilon_the_most_queries_with_good_labels_are_recommended(made: Made) -> None:
    figures = made(*COUNTS, "--epsilon=2", "--queries=50,100,10000", "--agreement=0.7")
    assert figures["recommended"]["queries"] == 100
    assert figures["plans"][2]["labels"][0]["low"] < 0.9


def test_noise_that_drowns_every_lead_is_told(made: Made) -> None:
    figures = made(*NAMES, "--sigma=1,16")
    assert any(said.startswith("Sigma 16 drowns the lead") for said in figures["advice"])
    quiet = made(*NAMES, "--sigma=1")
    assert not any("drowns" in said for said in quiet["advice"])


def test_few_agents_are_told_that_they_hide_nobody_and_how_many_would(made: Made) -> None:
    few = made(*NAMES, "--epsilon=2", "--queries=100", "--agreement=0.7")
    assert few["advice"][0].startswith("Don't ask")
    (said,) = [one for one in few["advice"] if "too few to hide one" in one]
    needed = int(said.partition("takes about ")[2].partition(" ")[0])
    many = made(
        "--classes=10",
        "--ballot=one_hot",
        f"--agents={needed}",
        f"--quorum={round(7 / 8 * needed)}",
        "--epsilon=2",
        "--queries=100",
        "--agreement=0.7",
    )
    assert not any("too few" in one for one in many["advice"])
    assert many["plans"][0]["labels"][0]["high"] >= 0.9


def test_counts_of_few_agents_protect_records_and_not_organisations(made: Made) -> None:
    advice = made(*COUNTS, "--sigma=40")["advice"]
    assert any("whole organisations are not" in said for said in advice)


def test_labels_that_cost_too_much_are_not_recommended(made: Made) -> None:
    advice = made(*COUNTS, "--sigma=5", "--level=agent")["advice"]
    assert advice[0].startswith("Don't ask like this")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--classes=40", "--ballot=multi_label", "--tau=10", "--agents=300"), "CelebA"),
        (("--classes=10", "--ballot=one_hot", "--agents=200", "--epsilon=2"), "at epsilon 2"),
        (("--classes=10", "--ballot=one_hot", "--agents=200", "--epsilon=1"), "falls behind"),
        (COUNTS, "Office-Caltech"),
    ],
)
def test_where_a_gradient_method_is_the_one_to_beat_the_evidence_is_named(
    made: Made, arguments: tuple[str, ...], told: str
) -> None:
    said = made(*arguments)["advice"][-1]
    assert told in said
    assert "docs/experiments.md" in said


def test_fewer_votes_and_fewer_agents_make_worse_labels(made: Made) -> None:
    def right(*more: str) -> float:
        figures = made(*COUNTS, "--sigma=60", "--queries=100", "--agreement=0.6", *more)
        share: float = figures["plans"][0]["labels"][0]["high"]
        return share

    assert right("--turnout=0.5") < right("--participation=0.8", "--quorum=6") < right()


def test_a_table_for_people_marks_what_is_drowned(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plan", *NAMES, "--sigma=16", "--queries=100"]) == 0
    shown = capsys.readouterr().out
    assert "8 agents, one_hot ballots" in shown
    assert "*: nearer to guesses than to the truth" in shown


@pytest.mark.parametrize("name", ["plan.svg", "plan.png"])
def test_a_plot_has_a_panel_for_each_agreement(made: Made, tmp_path: Path, name: str) -> None:
    made(*COUNTS, "--queries=100,500", "--agreement=0.6,0.8", f"--plot={tmp_path / name}")
    drawn = (tmp_path / name).read_bytes()
    assert drawn.startswith(b"<?xml" if name.endswith("svg") else b"\x89PNG")


def test_a_plot_is_drawn_where_no_noise_reaches_its_epsilons(made: Made, tmp_path: Path) -> None:
    path = tmp_path / "plan.svg"
    many = ("--classes=2", "--ballot=knn_count", "--k=100000", "--agents=3")
    made(*many, "--queries=10000", "--level=agent", f"--plot={path}")
    assert path.exists()


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("--classes=10", "--ballot=one_hot"), "--agents: is missing"),
        (("--agents=8",), "--task: is missing"),
        ((*NAMES, "--k=5"), "--k: one_hot ballots have none"),
        (("--classes=10", "--ballot=knn_count", "--agents=8"), "--k: is missing"),
        (("--classes=1", "--ballot=one_hot", "--agents=8"), "take 2 at least"),
        ((*NAMES, "--quorum=9"), "--quorum: must be above"),
        (
            (*NAMES, "--quorum=2", "--collusion=2", "--no-verified"),
            "--quorum: must be above",
        ),
        ((*NAMES, "--collusion=2"), "--collusion: agents know none"),
        ((*NAMES, "--agreement=1.5"), "--agreement: each must be"),
        ((*NAMES, "--agreement=.1,.2,.3,.4,.5"), "--agreement:"),
        ((*NAMES, "--sigma=3", "--epsilon=2"), "--sigma: is found for --epsilon"),
        ((*NAMES, "--sigma=0"), "--sigma: each must be"),
        ((*NAMES, "--sigma=1e12"), "sigma must be"),
        ((*NAMES, "--queries=0"), "--queries: each must be"),
        ((*NAMES, "--plot=plan.txt"), "--plot: must end in"),
        ((*NAMES, "--certs=certs"), "--agents: the agents that attend say it"),
        (("--task=missing.toml", "--agents=3"), "--task:"),
        (("--task=missing.toml", "--agents=3", "--k=5"), "--k: the task says it"),
    ],
)
def test_what_can_not_be_planned_is_refused_in_a_sentence(
    refused: Refused, arguments: tuple[str, ...], why: str
) -> None:
    said = refused(*arguments)
    assert why in said
    assert "Traceback" not in said
