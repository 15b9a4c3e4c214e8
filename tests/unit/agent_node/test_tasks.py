"""What an agent's settings make of its tasks: one by flags, several by tables, none that flags
contradict."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from agent_node.settings import AgentSettings
from agent_node.voting import prepare
from mpc_vote.app import config
from mpc_vote.app.config import ConfigError
from mpc_vote.data.dataset import Dataset
from mpc_vote.data.partition import save_part
from mpc_vote.learning.voters import VoterOptions
from mpc_vote.learning.voters.bounded import BoundedVoter
from mpc_vote.tasks import Task, agreement
from mpc_vote.tasks.toml import dump
from mpc_vote.voting.ballots import ONE_HOT, BallotKind

REQUIRED = ("--certs=x", "--data-dir=x", "--coordinator=h:1", "--parties=a=h:1,b=h:2")


def task(name: str = "points", ballot: str = "knn_count") -> Task:
    return Task.parse(
        f'format = 1\nname = "{name}"\nclasses = ["a", "b", "c"]\n'
        '[input]\nkind = "vector"\nshape = [2]\n[features]\nmap = "unit"\n'
        f'[vote]\nballot = "{ballot}"\nk = 4\nreach = 0.5\n'
    )


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Two tasks, and data that fits both."""
    for one in (task(), task("others")):
        (tmp_path / f"{one.name}.toml").write_text(dump(one))
    x = np.random.default_rng(0).normal(size=(20, 2)).astype(np.float32)
    save_part(tmp_path / "part.npz", Dataset("part", x, np.arange(20) % 3, 3))
    return tmp_path


def load(*flags: str) -> AgentSettings:
    return config.load(AgentSettings, [*REQUIRED, *flags])


def test_all_that_an_agent_offers_follows_from_its_task(files: Path) -> None:
    flags = [f"--task={files / 'points.toml'}", f"--data={files / 'part.npz'}"]
    (serving,) = prepare(load(*flags), "ann")
    assert serving.task == task() and serving.offer == agreement.offer_of(task())
    assert (serving.offer.k, serving.voter.k) == (4, 4)
    # To say the same again is no contradiction.
    (again,) = prepare(load(*flags, "--k=4", "--features=unit", "--ballots=knn_count"), "ann")
    assert again.offer == serving.offer


@pytest.mark.parametrize(
    ("flag", "why"),
    [
        ("--k=5", "--k: 5 contradicts task points, which has 4: leave it out"),
        ("--features=raw", "--features: raw contradicts"),
        ("--reach=0.25", "--reach: 0.25 contradicts"),
        ("--ballots=knn_frequency", "--ballots: "),
    ],
)
def test_flags_that_contradict_the_task_are_refused(flag: str, why: str, files: Path) -> None:
    flags = [f"--task={files / 'points.toml'}", f"--data={files / 'part.npz'}", flag]
    with pytest.raises(ConfigError, match=why):
        prepare(load(*flags), "ann")


class Rule:
    """A voter that casts one vote."""

    kinds = (ONE_HOT,)
    k = 0

    def vote(self, queries: npt.NDArray[Any], kind: BallotKind) -> npt.NDArray[np.int64]:
        return np.zeros(len(queries), np.int64)


def rule(data: Dataset, options: VoterOptions) -> Rule:
    return Rule()


def test_a_voter_that_does_not_cast_the_tasks_ballots_is_refused(files: Path) -> None:
    flags = [f"--task={files / 'points.toml'}", f"--data={files / 'part.npz'}"]
    with pytest.raises(ConfigError, match=r"--voter: task points takes knn_count ballots, and"):
        prepare(load(*flags, f"--voter={__name__}:rule"), "ann")


def several(files: Path, *names: str) -> str:
    tables = [
        f'[[serves]]\ntask = "{files / name}.toml"\ndata = "{files / "part.npz"}"\n'
        for name in names
    ]
    (files / "agent.toml").write_text("".join(tables))
    return f"--config={files / 'agent.toml'}"


def test_several_tasks_and_rounds_without_one_by_one_agent(files: Path) -> None:
    found = prepare(load(several(files, "points", "others")), "ann")
    assert [one.offer.task for one in found] == ["points", "others"]
    found = prepare(load(several(files, "points"), f"--data={files / 'part.npz'}", "--k=3"), "ann")
    assert [(one.offer.task, one.offer.k) for one in found] == [("", 3), ("points", 4)]


def test_a_task_is_answered_once(files: Path) -> None:
    with pytest.raises(ConfigError, match="--task: two of the tasks are called points"):
        prepare(load(several(files, "points", "others", "points")), "ann")


def test_a_task_that_can_not_be_read_is_named(files: Path) -> None:
    with pytest.raises(ConfigError, match=r"--task: .*gone\.toml: the task can't be read"):
        prepare(load(several(files, "gone")), "ann")


def test_settings_of_a_table_are_told_by_its_place(files: Path) -> None:
    path = files / "wrong.toml"
    path.write_text('[[serves]]\ntask = "t"\ndata = "d"\n[[serves]]\ntask = 1\nk = 3\nseed = -1\n')
    with pytest.raises(ConfigError) as caught:
        load(f"--config={path}")
    told = str(caught.value).split("; ")
    assert told == [
        "serves[1].seed: must be a whole number of at least 0, not -1",
        "serves[1].task: must be a path, not 1",
        "serves[1].data: is missing",
        "serves[1].k: is not a setting of this command",
    ]


def test_an_agent_without_data_is_told_so() -> None:
    for flags in ([], ["--task=x.toml"]):
        with pytest.raises(ConfigError, match="--data: is missing: pass --data"):
            load(*flags)


def bounded(name: str = "points") -> Task:
    return Task.parse(dump(task(name)) + "radius = 9\nmax_contributions = 3\n")


def test_only_neighbours_keep_to_a_bound_on_contributions(files: Path) -> None:
    (files / "points.toml").write_text(dump(bounded()))
    flags = [f"--task={files / 'points.toml'}", f"--data={files / 'part.npz'}"]
    (serving,) = prepare(load(*flags), "ann")
    assert isinstance(serving.voter, BoundedVoter) and serving.voter.bound == 3
    assert serving.offer == agreement.offer_of(bounded())
    with pytest.raises(ConfigError, match="which knn keeps to and network does not"):
        prepare(load(*flags, "--voter=network"), "ann")
