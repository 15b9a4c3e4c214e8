"""The paper's tables, one module each."""

from __future__ import annotations

from collections.abc import Callable

from mpc_vote.simulation.experiment import Experiment
from mpc_vote.simulation.experiments import mnist_noniid

EXPERIMENTS: dict[str, Callable[[], Experiment]] = {
    "mnist-noniid": mnist_noniid.experiment,
}


def find(name: str) -> Experiment | None:
    """The experiment of this name."""
    make = EXPERIMENTS.get(name)
    return None if make is None else make()
