"""`mpc-vote account` gives the known epsilons, solves both ways and says no in a sentence."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mpc_vote import cli
from mpc_vote.privacy.mechanisms import GaussianVote, SkellamVote

Account = Callable[..., dict[str, Any]]
Refused = Callable[..., str]

PLAN = ("--sigma", "25", "--queries", "500")
IDEAL = ("--noise", "gaussian")

VECTORS = {
    "one vote": (("--sigma=25", "--queries=500"), "agent", (3.72452, 3.08932, 2.73541)),
    "a vote moved": (("--sigma=25", "--queries=500"), "instance", (5.50158, 4.71796, 4.20775)),
    "four attributes": (
        ("--sigma=50", "--queries=600", "--tau=4"),
        "agent",
        (4.12183, 3.44991, 3.06047),
    ),
    "a neighbour": (
        ("--method=knn", "--sigma=35", "--queries=657", "--k=65", "--delta=1e-4"),
        "instance",
        (0.06851, 0.03972, 0.03373),
    ),
    "a neighbour's own vote": (
        ("--method=knn", "--ballot=knn_count", "--sigma=25", "--queries=500", "--k=65"),
        "instance",
        (5.50158, 4.71796, 4.20775),
    ),
    "all neighbours of an agent": (
        ("--method=knn", "--ballot=knn_count", "--sigma=1625", "--queries=500", "--k=9,65"),
        "agent",
        (3.72452, 3.08932, 2.73541),
    ),
}


@pytest.fixture
def account(capsys: pytest.CaptureFixture[str]) -> Account:
    def run(*arguments: str) -> dict[str, Any]:
        delta = () if "paper" in arguments else ("--delta=1e-3",)
        assert cli.main(["account", *delta, *arguments, "--json"]) == 0
        figures: dict[str, Any] = json.loads(capsys.readouterr().out)
        return figures

    return run


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Refused:
    def run(*arguments: str, code: int = 2) -> str:
        assert cli.main(["account", *arguments]) == code
        told = capsys.readouterr()
        assert not told.out
        return told.err

    return run


@pytest.mark.parametrize(("arguments", "level", "expected"), VECTORS.values(), ids=VECTORS.keys())
def test_known_epsilons(
    account: Account, arguments: tuple[str, ...], level: str, expected: tuple[float, ...]
) -> None:
    found = account(*IDEAL, *arguments)[level]
    assert (found["simple"], found["tight"], found["exact"]) == pytest.approx(expected, abs=6e-6)
    assert found["how"]


def test_integer_noise_costs_next_to_nothing(account: Account) -> None:
    ideal, real = account(*PLAN, *IDEAL), account(*PLAN)
    assert real["plan"]["units_per_vote"] == 16
    for level in ("agent", "instance"):
        assert 0 <= real[level]["exact"] - ideal[level]["exact"] < 1e-4
        for name in ("simple", "tight"):
            assert 0 <= real[level][name] - ideal[level][name] < 5e-2


def test_encoding_adds_to_what_a_neighbour_moves(account: Account) -> None:
    plan = ("--method=knn", "--sigma=35", "--queries=657", "--k=65", "--delta=1e-4")
    ideal, real = account(*plan, *IDEAL), account(*plan)
    assert real["plan"]["units_per_vote"] == 2048
    assert ideal["plan"]["l2_squared_votes"]["instance"] == pytest.approx(2 / 65**2)
    assert real["plan"]["l2_squared_votes"]["instance"] == 2 * (32 / 2048) ** 2
    assert 1 < real["instance"]["tight"] / ideal["instance"]["tight"] < 1.05


def test_what_coalitions_leave(account: Account) -> None:
    none, tenth, half = account(*PLAN, *IDEAL, "--agents=200")["coalitions"]
    assert [row["agents"] for row in (none, tenth, half)] == [0, 20, 100]
    assert none["agent"]["exact"] == pytest.approx(2.73541, abs=6e-6)
    assert half["agent"]["exact"] == pytest.approx(4.20775, abs=6e-6)
    compensated = account(*PLAN, *IDEAL, "--agents=200", "--collusion=100")
    assert compensated["agent"]["exact"] == pytest.approx(2.73541, abs=6e-6)
    assert compensated["coalitions"][2]["agent"]["exact"] == pytest.approx(2.73541, abs=6e-6)
    assert compensated["coalitions"][0]["agent"]["exact"] < 2


def test_a_coalition_of_the_quorum_knows_everything(
    account: Account, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = (*PLAN, *IDEAL, "--agents=20", "--quorum=10")
    half = account(*plan)["coalitions"][2]
    assert half["sigma"] == 0
    assert half["agent"]["exact"] is None
    assert "nothing is hidden" in half["instance"]["how"]
    assert cli.main(["account", *plan]) == 0
    assert "everything" in capsys.readouterr().out


def test_the_least_sigma_for_an_epsilon(account: Account) -> None:
    goal = ("--epsilon=2", "--solve=sigma", "--queries=500", *IDEAL)
    found = account(*goal, "--accountant=exact", "--level=instance")
    sigma, beyond = found["solved"]["sigma"], found["solved"]["beyond"]["sigma"]
    assert found["plan"]["sigma"] == sigma > beyond
    assert found["instance"]["exact"] == found["solved"]["epsilon"] <= 2
    assert account(*IDEAL, "--queries=500", f"--sigma={sigma}")["instance"]["exact"] <= 2
    assert account(*IDEAL, "--queries=500", f"--sigma={beyond}")["instance"]["exact"] > 2
    assert account(*goal)["agent"]["totals"] <= 2


def test_the_most_queries_for_an_epsilon(account: Account) -> None:
    found = account("--epsilon=2", "--solve=queries", "--sigma=25")
    queries = found["solved"]["queries"]
    assert found["solved"]["beyond"]["queries"] == queries + 1
    assert account("--sigma=25", f"--queries={queries}")["agent"]["totals"] <= 2
    assert account("--sigma=25", f"--queries={queries + 1}")["agent"]["totals"] > 2


def test_people_read_what_is_assumed(capsys: pytest.CaptureFixture[str]) -> None:
    plan = ("--method=knn", "--k=65", *PLAN, "--agents=5", "--quorum=4", "--collusion=1")
    assert cli.main(["account", *plan]) == 0
    told = " ".join(capsys.readouterr().out.split())
    for part in (
        "left out of the sum",
        "added, removed",
        "delta 1e-05",
        "against whoever may see noisy totals",
        "those who see labels only",
        "paper's 2/k",
        "the service would refuse this",
        "4 or more",
    ):
        assert part in told


def test_figures_go_to_a_file_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "figures.json"
    assert cli.main(["account", "--delta=1e-3", *PLAN, *IDEAL, "--json", str(path)]) == 0
    assert json.loads(path.read_text())["agent"]["exact"] == pytest.approx(2.73541, abs=6e-6)
    assert "2.736" in capsys.readouterr().out


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_a_plot_is_drawn(tmp_path: Path, suffix: str) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / f"epsilon.{suffix}"
    assert cli.main(["account", *PLAN, *IDEAL, "--plot", str(path)]) == 0
    assert path.stat().st_size > 5_000


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ((), "--sigma: is missing"),
        (("--sigma=25",), "--queries: is missing: pass --queries, or find it"),
        ((*PLAN, "--agents=5", "--quorum=6"), "the quorum must be 1 to the number of agents, 5"),
        ((*PLAN, "--agents=5", "--quorum=0"), "the quorum must be 1 to"),
        ((*PLAN, "--agents=0"), "agents must be at least 1"),
        ((*PLAN, "--agents=5", "--quorum=3", "--collusion=3"), "below the quorum, 3"),
        ((*PLAN, "--quorum=3"), "needs --agents"),
        ((*PLAN, "--method=knn"), "--k: is missing"),
        ((*PLAN, "--method=knn", "--k=0"), "k must be 1 to"),
        ((*PLAN, "--method=knn", "--k=1,2,3", "--agents=2"), "3 k for 2 agents"),
        ((*PLAN, "--k=4"), "--k: is for --method knn"),
        ((*PLAN, "--ballot=knn_count"), "--ballot: --method ae casts one_hot, not knn_count"),
        (
            (*PLAN, "--method=knn", "--k=4", "--ballot=one_hot"),
            "casts knn_frequency or knn_count",
        ),
        ((*PLAN, "--method=knn", "--k=4", "--tau=2"), "--tau: with attributes --k does not matter"),
        ((*PLAN, "--tau=0"), "--tau: must be a whole number of at least 1, not 0"),
        ((*PLAN, "--delta=1e-13"), "delta must be at least 1e-12 and below 1"),
        ((*PLAN, "--delta=1"), "delta must be at least 1e-12 and below 1"),
        (("--sigma=nan", "--queries=5"), "sigma must be"),
        (("--sigma=0", "--queries=5"), "sigma must be"),
        (("--sigma=5", "--queries=0"), "queries must be 1 to"),
        ((*PLAN, "--method=vote"), "--method: choose one of ae, knn (not 'vote')"),
        ((*PLAN, "--level=agent"), "--level: is for --solve"),
        ((*PLAN, "--epsilon=2", "--solve=queries"), "--queries: is both given and to be found"),
        ((*PLAN, "--epsilon=2", "--solve=sigma"), "--sigma: is both given and to be found"),
        (("--sigma=25", "--solve=queries"), "--epsilon: is missing"),
        (("--sigma=25", "--solve=queries", "--epsilon=0"), "--epsilon: must be above 0"),
        ((*PLAN, "--plot=epsilon.doc"), "--plot: must end in one of .pdf, .png, .svg"),
    ],
)
def test_what_makes_no_plan_is_refused_before_anything_is_computed(
    refused: Refused, arguments: tuple[str, ...], why: str
) -> None:
    assert why in refused(*arguments)


@pytest.mark.parametrize("given", [(), PLAN, ("--queries=500",)])
def test_an_epsilon_alone_asks_what_to_solve(refused: Refused, given: tuple[str, ...]) -> None:
    told = refused(*given, "--epsilon=2")
    assert "--epsilon says what to solve for: add --solve sigma" in told
    assert "or --solve queries" in told


def test_k_has_one_dash_or_two(account: Account) -> None:
    plan = (*PLAN, *IDEAL, "--method=knn")
    assert account(*plan, "-k", "4,5") == account(*plan, "--k", "4,5") == account(*plan, "--k=4,5")


@pytest.mark.parametrize("ballot", ["knn_frequency", "knn_count"])
@pytest.mark.parametrize("noise", ["skellam", "gaussian"])
def test_reasons_do_not_name_mechanisms_as_ledgers_do(
    noise: str, ballot: str, account: Account, refused: Refused, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = ("--method=knn", "--k=4", f"--ballot={ballot}", f"--noise={noise}", *PLAN)
    figures = account(*plan, "--agents=5")
    assert cli.main(["account", *plan, "--agents=5"]) == 0
    told = json.dumps(figures) + capsys.readouterr().out
    if noise == "skellam":
        assert "not known for Skellam noise at agent level" in figures["agent"]["how"]
        assert "not known for Skellam noise" in " ".join(told.split())
        goal = ("--epsilon=2", "--solve=sigma", "--accountant=exact", "--queries=5")
        told += refused(*plan[: -len(PLAN)], *goal, code=1)
    for kind in (SkellamVote.kind, GaussianVote.kind):
        assert kind not in told


def test_neighbours_share_a_vote_unless_told_and_help_says_that_the_service_counts(
    account: Account, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = ("--method=knn", "--k=4", *PLAN, *IDEAL)
    assert account(*plan)["plan"]["ballot"] == "knn_frequency"
    assert account(*plan, "--ballot=knn_count")["plan"]["ballot"] == "knn_count"
    with pytest.raises(SystemExit):
        cli.main(["account", "--help"])
    told = " ".join(capsys.readouterr().out.split())
    assert "For kNN, --ballot is knn_frequency by default, as in the paper" in told
    assert "The service's default is knn_count" in told
    assert "pass --ballot knn_count" in told


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        (
            ("--sigma=1", "--queries=1", "--agents=3", "--collusion=1"),
            ("1 query,", "sigma 1 vote,", "1 assumed to pool its noise"),
        ),
        (
            ("--sigma=1.5", "--queries=2", "--agents=3", "--collusion=2"),
            ("2 queries,", "sigma 1.5 votes,", "2 assumed to pool their noise"),
        ),
    ],
)
def test_one_is_singular(
    plan: tuple[str, ...], words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    for noise in ((), IDEAL):
        assert cli.main(["account", *plan, *noise]) == 0
        told = " ".join(capsys.readouterr().out.split())
        for part in words:
            assert part in told


def test_a_wrong_subcommand_is_told_of_the_right_one(refused: Refused) -> None:
    assert "no subcommand 'papers', only paper; did you mean paper?" in refused("papers")
    assert "no subcommand '25', only paper; options begin with --" in refused("25")


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ((*PLAN, "--plot=/no/such/folder/epsilon.png"), "there is no folder"),
        ((*PLAN, "--json=/no/such/folder/epsilon.json"), "there is no folder"),
        (("--sigma=0.02", "--solve=queries", "--epsilon=0.1"), "a single query costs"),
    ],
)
def test_what_can_not_be_done_says_why(
    refused: Refused, arguments: tuple[str, ...], why: str
) -> None:
    assert why in refused(*arguments, code=1)


def test_the_papers_numbers_stand_beside_ours(
    account: Account, capsys: pytest.CaptureFixture[str]
) -> None:
    figures = account("paper")
    rows = {row["row"]: row for row in figures["votes"]}
    digits = rows["AE-DPFL, digits"]
    assert (digits["paper"], digits["sigma"], digits["queries"]) == (3.6, 25, 500)
    assert digits["formula"] == pytest.approx(3.72452, abs=6e-6)
    assert digits["ours"]["exact"] == pytest.approx(2.73541, abs=6e-6)
    assert not digits["derived"] and digits["holds"]
    assert rows["kNN-DPFL, ResNet50, DSLR"]["match"].startswith("the agent-level formula over all")
    assert all("derived" in row["verdict"] or row["match"] for row in figures["votes"])
    fedavg = next(row for row in figures["others"] if row["row"] == "DP-FedAvg, digits")
    assert "one round alone, as stated, costs 169" in fedavg["verdict"]
    assert cli.main(["account", "paper"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    for table in ("Table 1", "Table 2", "Table 3"):
        assert table in told
    assert "can't be derived" in told
    assert "0 of 33 reported numbers can be derived" in told
