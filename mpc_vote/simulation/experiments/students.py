"""The default student, as the service trains it; and beside it each single one, taught by the same
vote."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeVar

from mpc_vote.learning.students import DEFAULT
from mpc_vote.learning.students.chooser import SINGLE
from mpc_vote.simulation.experiment import Arm, PaperFigure
from mpc_vote.simulation.methods import (
    AeConfig,
    KnnConfig,
    NamedStudent,
    PateConfig,
    PrivateKnnConfig,
    ae_dpfl,
    knn_dpfl,
)

Config = TypeVar("Config", bound=AeConfig | KnnConfig | PateConfig | PrivateKnnConfig)


def with_default(config: Config) -> Config:
    """The configuration with the student that a client gets who names none."""
    return replace(config, student=_named(config, DEFAULT))


def student_arms(
    name: str,
    line: str,
    config: AeConfig | KnnConfig,
    paper: PaperFigure | None = None,
    setting: Any = None,
    panel: str = "",
) -> list[Arm]:
    """A row for the default, which the picture shows, and one for each student it chooses from."""
    method = ae_dpfl if isinstance(config, AeConfig) else knn_dpfl
    singles = {one: replace(config, student=_named(config, one)) for one in SINGLE}
    return [
        Arm(name, method, with_default(config), paper, setting, line, panel),
        *(
            Arm(f"{name}, student {one}", method, own, None, setting)
            for one, own in singles.items()
        ),
    ]


def _named(config: AeConfig | KnnConfig | PateConfig | PrivateKnnConfig, name: str) -> NamedStudent:
    """With the feature map by which the queries are chosen, as a client would name it."""
    return NamedStudent(name, config.labelling.features.map_name or "")
