"""AE-DPFL where a point has many attributes: agents' linear models name at most tau of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mpc_vote.data.partition import Partition
from mpc_vote.learning.nets.ridge import Ridge
from mpc_vote.learning.query_selection import selector
from mpc_vote.simulation.experiment import ArmContext, SeedResult
from mpc_vote.simulation.feature_pipeline import FeaturePipeline
from mpc_vote.simulation.vote import simulated_spec, upload_bytes, vote
from mpc_vote.voting.ballots import MULTI_LABEL, IntArray


@dataclass(frozen=True)
class AttributesConfig:
    """How many points are asked about, with how much noise; an agent names at most `tau`
    attributes of each. Models are linear on `features`, with these decays."""

    queries: int
    sigma: float
    tau: int
    features: FeaturePipeline
    agent_decay: float
    student_decay: float
    selection: str = "clusters"


def ae_attributes(
    context: ArmContext, partition: Partition, config: AttributesConfig, seed: int
) -> SeedResult:
    """Accuracy is the mean over attributes, as in the paper."""
    seen = config.features.partition(partition)
    public, test = seen.public, seen.test
    asked = selector(config.selection)(public.x, config.queries, seed)
    roster = {f"agent-{number}": 0 for number in range(len(seen.private))}
    spec = simulated_spec(
        MULTI_LABEL, len(asked), public.classes, roster, config.sigma, tau=config.tau
    )
    given: dict[str, IntArray] = {}
    for agent, part in zip(roster, seen.private, strict=True):
        context.tell("agents learn", len(given), len(roster))
        scores = Ridge.fit(part.x, part.y, config.agent_decay).scores(public.x[asked])
        given[agent] = spec.encode(agent, scores)
    labels = vote(spec, given, seed)
    student = Ridge.fit(public.x[asked], labels, config.student_decay)
    figures = {
        "asked": float(len(asked)),
        "labels": float(np.mean(labels == public.y[asked])),
        "tau": float(config.tau),
        "sigma": config.sigma,
        "sent": float(upload_bytes(spec)),
        "received": float(partition.public.x.nbytes),
    }
    accuracy = float(np.mean(student.attributes(test.x) == test.y))
    return SeedResult(accuracy, (spec.mechanism,), figures)
