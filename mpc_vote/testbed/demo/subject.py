"""What a demo is about: data that is split here, methods to vote on it, and agents that do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy.typing as npt

from mpc_vote.data.dataset import Dataset
from mpc_vote.data.partition import Partition
from mpc_vote.tasks import Task
from mpc_vote.voting.ballots import BallotKind

OnProgress = Callable[[int, int, float], None]
Predict = Callable[[npt.NDArray[Any]], npt.NDArray[Any]]


@dataclass(frozen=True)
class DemoMethod:
    """Parameters of a method, chosen by measuring: settings of agents, in turn."""

    name: str
    ballot: BallotKind
    sigma: float
    agents: tuple[Mapping[str, str], ...]

    def settings(self, number: int) -> Mapping[str, str]:
        """Of this agent."""
        return self.agents[number % len(self.agents)]


@dataclass(frozen=True)
class Scale:
    """How large a demo is."""

    agents: int
    queries: int
    seed: int
    bounded: bool = False
    """Whether a task bounds what a record contributes."""


@dataclass(frozen=True)
class Subject:
    """Data that is in agents' files, and what it is compared with."""

    data: Partition
    told: tuple[str, ...]
    """Sentences about the data."""
    agents: Mapping[str, Mapping[str, str]]
    """Settings of the agents."""
    alone: Callable[[Dataset, int], Predict]
    """How an agent, by its data and number, would label without the others."""
    oracle: Callable[[OnProgress], float]
    """Test accuracy of the same model on true labels; what it is given is called at each step, and
    may raise."""
    task: Task | None = None
    tasks: tuple[Path, ...] = ()
    student: str | None = None
    """What learns at the coordinator, if not its default."""
