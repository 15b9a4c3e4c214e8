"""Arms over seeds, what is reported of them, and the command."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from mpc_vote import cli
from mpc_vote.data.dataset import Dataset
from mpc_vote.data.partition import Partition
from mpc_vote.privacy import GaussianVote, Level, gaussian_exact_epsilon
from mpc_vote.privacy.sensitivity import Sensitivity
from mpc_vote.simulation import experiments
from mpc_vote.simulation.experiment import Arm, ArmContext, Experiment, PaperFigure, SeedResult, run
from mpc_vote.simulation.store import ResultStore

DATA = {"points": Dataset("points", np.zeros((2, 1), dtype=np.float32), np.array([0, 1]), 2)}

PARTITION = Partition((DATA["points"],), DATA["points"], DATA["points"])


@dataclass(frozen=True)
class Config:
    sigma: float
    gain: float = 0.0


def vote(sigma: float) -> GaussianVote:
    return GaussianVote(100, sigma**2, Sensitivity(1, 1), Sensitivity(2, 2))


def private(context: ArmContext, partition: Partition, config: Config, seed: int) -> SeedResult:
    context.tell("asking", 1, 2)
    figures = {"labels": 0.5, "asked": 100.0}
    return SeedResult(0.9 + config.gain + 0.01 * seed, (vote(config.sigma),), figures)


def public(context: ArmContext, partition: Partition, config: Config, seed: int) -> SeedResult:
    return SeedResult(0.99)


TOY = Experiment(
    name="toy",
    title="A toy",
    load=lambda path: DATA,
    split=lambda data, setting, seed: PARTITION,
    arms=(
        Arm("AE-DPFL", private, Config(10.0), PaperFigure(95.1, 0.3, 4.3)),
        Arm("FedAvg", public, Config(0.0)),
    ),
    level=Level.AGENT,
    delta=1e-3,
    notes=("It proves nothing.",),
)


def context(tmp_path: Path) -> ArmContext:
    return ArmContext(DATA, ResultStore(tmp_path), 1, lambda *_: None)


def ignore(*_: object) -> None:
    pass


def test_an_arm_has_mean_spread_and_epsilon(tmp_path: Path) -> None:
    first, second = run(TOY, range(3), context(tmp_path), ignore)
    assert first.mean == pytest.approx(0.91)
    assert first.deviation == pytest.approx(0.01)
    assert first.agent is not None
    assert first.agent.exact == gaussian_exact_epsilon(1.0, 1e-3)
    assert first.instance is not None
    assert first.instance.exact == gaussian_exact_epsilon(2**0.5, 1e-3)
    assert second.epsilons(Level.AGENT) is None


def test_what_is_finished_is_not_done_again(tmp_path: Path) -> None:
    finished: list[tuple[str, int]] = []
    asked: list[int] = []

    def flaky(context: ArmContext, partition: Partition, config: Config, seed: int) -> SeedResult:
        asked.append(seed)
        if asked == [0, 1]:
            raise KeyboardInterrupt
        return private(context, partition, config, seed)

    toy = replace(TOY, arms=(replace(TOY.arms[0], method=flaky),))
    with pytest.raises(KeyboardInterrupt):
        run(
            toy, range(2), context(tmp_path), lambda arm, seed, _: finished.append((arm.name, seed))
        )
    assert finished == [("AE-DPFL", 0)]
    (result,) = run(toy, range(2), context(tmp_path), ignore)
    assert asked == [0, 1, 1]
    assert result.accuracies == [0.9, 0.91]
    other = replace(toy, arms=(replace(toy.arms[0], config=Config(10.0, 0.05)),))
    run(other, range(2), context(tmp_path), ignore)
    assert asked == [0, 1, 1, 0, 1]


def test_a_cost_that_depends_on_the_seed_is_refused(tmp_path: Path) -> None:
    def leaky(context: ArmContext, partition: Partition, config: Config, seed: int) -> SeedResult:
        return SeedResult(0.5, (vote(10.0 + seed),))

    toy = replace(TOY, arms=(replace(TOY.arms[0], method=leaky),))
    with pytest.raises(ValueError, match="costs differently"):
        run(toy, range(2), context(tmp_path), ignore)


Run = Callable[..., int]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    monkeypatch.setitem(experiments.EXPERIMENTS, "toy", lambda: TOY)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MPC_VOTE_DATA", raising=False)
    return lambda *arguments: cli.main(["experiment", *arguments])


def test_the_command_writes_page_json_and_plot(
    command: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command("toy", "--seeds=2", "--json=figures.json") == 0
    told = capsys.readouterr().out
    for part in ("AE-DPFL, seed 1: 91.0 %", "90.5 ± 0.7", "95.1 ± 0.3", "4.3", "proves nothing"):
        assert part in told, told
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert figures == json.loads((tmp_path / "experiment-results" / "toy.json").read_text())
    assert figures["command"] == "mpc-vote experiment toy --seeds=2 --json=figures.json"
    arm = figures["arms"][0]
    assert arm["accuracy"] == {
        "mean": pytest.approx(0.905),
        "std": pytest.approx(0.00707, abs=1e-5),
        "seeds": [0.9, 0.91],
    }
    assert arm["epsilon"]["agent"]["exact"] == gaussian_exact_epsilon(1.0, 1e-3)
    assert figures["arms"][1]["epsilon"] == {"agent": None, "instance": None}
    page = (tmp_path / "experiment-results" / "toy.md").read_text()
    assert "| AE-DPFL | 90.5 ± 0.7 |" in page
    assert "- It proves nothing." in page
    assert (tmp_path / "experiment-results" / "toy.svg").read_text().startswith("<?xml")


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        ([], 2, "usage: mpc-vote experiment NAME"),
        (["nonsense"], 2, "there is no experiment 'nonsense'; choose one of: "),
        (["toy", "--seeds=0"], 2, "--seeds"),
        (["toy", "--seeds=7,7"], 2, "different seeds"),
        (["toy", "--seeds=-1,2"], 2, "--seeds"),
        (["toy", "--seeds=many"], 2, "--seeds"),
        (["toy", "--arms=("], 2, "no regular expression"),
        (["toy", "--arms=nobody"], 2, "rows: AE-DPFL; "),
        (["toy", "--json=no/such/folder.json"], 1, "there is no folder"),
        (["--help"], 0, "experiments:"),
    ],
)
def test_wrong_calls_say_what_to_do(
    command: Run, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, told: str
) -> None:
    assert command(*arguments) == code
    caught = capsys.readouterr()
    assert told in caught.out + caught.err


def test_seeds_and_rows_can_be_chosen(command: Run, tmp_path: Path) -> None:
    assert command("toy", "--seeds=7,11", "--arms=^AE") == 0
    figures = json.loads((tmp_path / "experiment-results" / "toy.json").read_text())
    assert figures["seeds"] == [7, 11]
    assert [arm["name"] for arm in figures["arms"]] == ["AE-DPFL"]
    assert command("toy", "--seeds=7,") == 0
    figures = json.loads((tmp_path / "experiment-results" / "toy.json").read_text())
    assert figures["seeds"] == [7] and len(figures["arms"]) > 1


def test_missing_data_is_told_before_anything_is_done(
    command: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def load(path: Path | None) -> dict[str, Dataset]:
        raise FileNotFoundError(f"there is no MNIST in {path}: get it with torchvision")

    monkeypatch.setitem(experiments.EXPERIMENTS, "toy", lambda: replace(TOY, load=load))
    assert command("toy", "--data=nowhere") == 1
    assert "there is no MNIST in nowhere" in capsys.readouterr().err
