"""The paper's tables, one module each."""

from __future__ import annotations

from collections.abc import Callable

from mpc_vote.simulation.experiment import Experiment
from mpc_vote.simulation.experiments import (
    ablations,
    celeba,
    clinical_table,
    communication,
    digits,
    messages,
    mnist_noniid,
    office_caltech,
    searches,
)

EXPERIMENTS: dict[str, Callable[[], Experiment]] = {
    "mnist-noniid": mnist_noniid.experiment,
    "digits": digits.experiment,
    "celeba": celeba.experiment,
    "office-caltech": office_caltech.experiment,
    "table": clinical_table.experiment,
    "text": messages.experiment,
    "table-search": searches.table,
    "text-search": searches.text,
    "ablation-data": ablations.data,
    "ablation-agents": ablations.agents,
    "ablation-parts": ablations.parts,
    "communication": communication.experiment,
}


def find(name: str) -> Experiment | None:
    """The experiment of this name."""
    make = EXPERIMENTS.get(name)
    return None if make is None else make()
