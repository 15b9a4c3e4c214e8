"""The default student beside each single one, taught by the same vote."""

from __future__ import annotations

from dataclasses import replace

from mpc_vote.learning.students.chooser import SINGLE
from mpc_vote.simulation.experiment import Arm
from mpc_vote.simulation.methods import AeConfig, KnnConfig, NamedStudent, ae_dpfl, knn_dpfl


def student_arms(name: str, line: str, config: AeConfig | KnnConfig, panel: str = "") -> list[Arm]:
    """A row for the default, which the picture shows, and one for each student it chooses from."""
    method = ae_dpfl if isinstance(config, AeConfig) else knn_dpfl
    default = NamedStudent(features=config.labelling.features.map_name or "")
    singles = {one: replace(config, student=replace(default, name=one)) for one in SINGLE}
    return [
        Arm(name, method, replace(config, student=default), line=line, panel=panel),
        *(Arm(f"{name}, student {one}", method, own) for one, own in singles.items()),
    ]
