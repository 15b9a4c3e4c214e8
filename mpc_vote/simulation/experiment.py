"""Experiments: the rows of a table, each a pure function of data, configuration and seed.

An arm is one method with its settings. What it gives for one seed is stored, so that an interrupted
experiment goes on where it stopped, and another engine could run the arms anywhere else.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from mpc_vote.data.dataset import Dataset
from mpc_vote.data.partition import Partition
from mpc_vote.privacy.accountant import Epsilons, epsilons
from mpc_vote.privacy.mechanisms import Level, Mechanism, mechanism_from_json
from mpc_vote.simulation.store import ResultStore, fingerprint, plain

Data: TypeAlias = Mapping[str, Dataset]
Figures: TypeAlias = dict[str, Any]
Tell: TypeAlias = Callable[[str, int, int], None]
"""Called with (what is done, parts done, parts in all) while an arm runs."""


DATA_VARIABLE = "MPC_VOTE_DATA"


def data_folder(given: Path | None) -> Path:
    """The folder of the data sets; a ValueError says how to name one."""
    if given is None:
        raise ValueError(
            f"the data sets are missing: name their folder with --data, or in {DATA_VARIABLE}"
        )
    if not given.is_dir():
        raise FileNotFoundError(f"there is no folder {given} with data sets")
    return given


@dataclass(frozen=True)
class PaperFigure:
    """What the paper's table says; accuracies in percent, epsilon as claimed there."""

    accuracy: float
    spread: float
    epsilon: float | None = None


@dataclass(frozen=True)
class SeedResult:
    """The result of one arm with one seed; a method without privacy has no mechanisms."""

    accuracy: float
    mechanisms: tuple[Mechanism, ...] = ()
    figures: Mapping[str, float] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {
            "accuracy": self.accuracy,
            "mechanisms": [json.loads(one.to_json()) for one in self.mechanisms],
            "figures": dict(self.figures),
        }

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> SeedResult:
        mechanisms = (mechanism_from_json(json.dumps(one)) for one in stored["mechanisms"])
        return cls(stored["accuracy"], tuple(mechanisms), stored["figures"])


@dataclass(frozen=True)
class ArmContext:
    """What an arm works with: the data, a store for parts of its work, whom to tell."""

    data: Data
    store: ResultStore
    workers: int
    tell: Tell


Method: TypeAlias = Callable[[ArmContext, Partition, Any, int], SeedResult]
"""From (context, who holds what, configuration, seed)."""
Split: TypeAlias = Callable[[Data, Any, int], Partition]
"""From (data, an arm's setting, seed)."""


@dataclass(frozen=True)
class Arm:
    """One row of a table.

    `config`, and `setting` where the arm's data is divided otherwise than the experiment's, are
    frozen dataclasses: with the data and the seed, they are all that comes into a result.
    """

    name: str
    method: Method
    config: Any
    paper: PaperFigure | None = None
    setting: Any = None
    # Where the arm is in the picture: the method's line, in none if empty, and the task's panel.
    line: str = ""
    panel: str = ""
    # Of what the experiment varies: a value, or figures whose sum it is. Else epsilon is.
    value: float | None = None
    counted: tuple[str, ...] = ()


@dataclass(frozen=True)
class Experiment:
    """A table: its arms, the data they share, the level and delta of its epsilons."""

    name: str
    title: str
    load: Callable[[Path | None], Data]
    split: Split
    arms: tuple[Arm, ...]
    level: Level
    delta: float
    # How the data is divided, where an arm does not say so.
    setting: Any = None
    # What is made of the data before it is divided, where that takes long; the store keeps it.
    prepare: Callable[[Data, ResultStore, Tell], Data] | None = None
    notes: tuple[str, ...] = ()
    # Whether epsilons hold at the other level too: not where a record is held by several agents.
    both_levels: bool = True
    # What the arms have values of, where accuracy is not drawn against epsilon.
    axis: str = ""
    # The figures that the terminal shows beside the accuracies; the page has all.
    shown: tuple[str, ...] = ("labels", "asked")

    def setting_of(self, arm: Arm) -> Any:
        """How an arm's data is divided."""
        return self.setting if arm.setting is None else arm.setting


@dataclass(frozen=True)
class ArmResult:
    """One arm over all seeds."""

    arm: Arm
    setting: Any
    outcomes: tuple[SeedResult, ...]
    agent: Epsilons | None
    instance: Epsilons | None

    @property
    def accuracies(self) -> list[float]:
        return [outcome.accuracy for outcome in self.outcomes]

    @property
    def mean(self) -> float:
        return statistics.fmean(self.accuracies)

    @property
    def deviation(self) -> float:
        """The sample's; zero with one seed."""
        return statistics.stdev(self.accuracies) if len(self.outcomes) > 1 else 0.0

    def figure(self, name: str) -> float:
        """The mean of one of the outcomes' figures."""
        return statistics.fmean(outcome.figures[name] for outcome in self.outcomes)

    def epsilons(self, level: Level) -> Epsilons | None:
        """None without privacy."""
        return self.agent if level is Level.AGENT else self.instance

    def to_json(self) -> dict[str, Any]:
        names = self.outcomes[0].figures
        return {
            "name": self.arm.name,
            "config": plain(self.arm.config),
            "setting": plain(self.setting),
            "accuracy": {"mean": self.mean, "std": self.deviation, "seeds": self.accuracies},
            "figures": {name: self.figure(name) for name in names},
            "epsilon": {
                level.value: None if found is None else dataclasses.asdict(found)
                for level in Level
                for found in [self.epsilons(level)]
            },
            "paper": None if self.arm.paper is None else dataclasses.asdict(self.arm.paper),
        }


Done: TypeAlias = Callable[[Arm, int, SeedResult], None]
"""Called with each outcome and its seed."""


def run(
    experiment: Experiment, seeds: Sequence[int], context: ArmContext, done: Done
) -> list[ArmResult]:
    """Runs all arms with all seeds, or takes what is stored of them."""
    outcomes: list[list[SeedResult]] = [[] for _ in experiment.arms]
    for seed in seeds:
        divided: tuple[Any, Partition, str] | None = None
        for number, (arm, found) in enumerate(zip(experiment.arms, outcomes, strict=True)):
            context.tell(f"{arm.name}, seed {seed}", number, len(experiment.arms))
            setting = experiment.setting_of(arm)
            if divided is None or divided[0] != setting:
                partition = experiment.split(context.data, setting, seed)
                divided = setting, partition, _digest(partition)
            _, partition, digest = divided

            def make(arm: Arm = arm, partition: Partition = partition, seed: int = seed) -> Figures:
                return arm.method(context, partition, arm.config, seed).to_json()

            config = {"config": plain(arm.config), "seed": seed, "data": digest}
            name = f"outcomes/{arm.method.__name__}"
            found.append(SeedResult.from_json(context.store.figures(name, config, make)))
            done(arm, seed, found[-1])
    return [
        _result(experiment, arm, found)
        for arm, found in zip(experiment.arms, outcomes, strict=True)
    ]


def _digest(partition: Partition) -> str:
    parts = (*partition.private, partition.public, partition.test)
    return hashlib.sha256("".join(map(fingerprint, parts)).encode()).hexdigest()


def _result(experiment: Experiment, arm: Arm, outcomes: Sequence[SeedResult]) -> ArmResult:
    """The cost must not depend on the seed: it would say something about the data."""
    costs = {outcome.mechanisms for outcome in outcomes}
    if len(costs) != 1:
        raise ValueError(f"{arm.name} costs differently with different seeds: {costs}")
    (mechanisms,) = costs
    if not mechanisms:
        return ArmResult(arm, experiment.setting_of(arm), tuple(outcomes), None, None)
    agent, instance = (
        epsilons(mechanisms, level, experiment.delta)
        if experiment.both_levels or level is experiment.level
        else None
        for level in Level
    )
    return ArmResult(arm, experiment.setting_of(arm), tuple(outcomes), agent, instance)
