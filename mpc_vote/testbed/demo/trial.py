"""What every demo does once a service runs: label, train and compare."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.console import Console

from mpc_vote.argmax.registry import EngineKind
from mpc_vote.cli import label, train
from mpc_vote.cli.common import progress
from mpc_vote.client import AsyncLabelClient, LabelResult, Plan
from mpc_vote.privacy.contributions import BoundedRound, Neighbours, record_epsilon
from mpc_vote.testbed.demo.comparison import Comparison
from mpc_vote.testbed.demo.subject import DemoMethod, Scale, Subject
from mpc_vote.voting.spec import Spec

COLLUSION = 1
_DELTA = 1e-3


@dataclass(frozen=True)
class Trial:
    """One run of the demo's work."""

    subject: Subject
    method: DemoMethod
    scale: Scale
    sigma: float
    parties: int
    engine: EngineKind | None

    def start_comparing(self) -> Comparison:
        """Begins what the global model is compared with, beside the service's own work."""
        return Comparison(self.subject)

    async def run(
        self, client: AsyncLabelClient, others: Comparison, out: Console
    ) -> tuple[dict[str, Any], LabelResult]:
        """Labels the public points, has the server train, and scores both."""
        data, task = self.subject.data, self.subject.task
        plan = Plan(
            task=task,
            classes=data.public.classes,
            ballot=self.method.ballot,
            sigma=self.sigma,
            quorum=self.scale.agents,
            collusion=COLLUSION,
            delta=_DELTA,
            engine=self.engine,
        )
        result = await label.follow(client, data.public.x, plan, out)
        await train.follow(client, [result.round_id], self.scale.seed, out, task=task)
        predicted = await client.predict(data.test.x, task=task)
        with progress(out) as bars:
            bar = bars.add_task("comparisons", total=None, detail="single agents, and true labels")
            oracle, best_agent = await others.result
            bars.update(bar, total=1, completed=1)
        cost = result.cost
        return {
            "label_accuracy": float(np.mean(result.labels == data.public.y)),
            "student_accuracy": float(np.mean(predicted == data.test.y)),
            "oracle_accuracy": oracle,
            "best_agent_accuracy": best_agent,
            "epsilon_agent": cost.epsilon_agent,
            "epsilon_instance": cost.epsilon_instance,
            "labels_epsilon_agent": cost.labels_epsilon_agent,
            "labels_epsilon_instance": cost.labels_epsilon_instance,
            "delta": cost.delta,
            **await asyncio.to_thread(_record_figures, result),
            "sigma": self.sigma,
            "queries": len(data.public),
            "agents": self.scale.agents,
            "parties": self.parties,
            "engine": label.engine_name(result),
            "mpc_rounds": cost.mpc_rounds,
            "mpc_bytes_per_party": cost.mpc_bytes_per_party,
            "mpc_seconds": cost.mpc_seconds,
            "mpc_round_trip_seconds": cost.mpc_round_trip_seconds,
            "upload_bytes_per_agent": cost.upload_bytes_per_agent,
        }, result


def _record_figures(result: LabelResult) -> dict[str, float | int]:
    """What a single record loses in the round, by the totals, where its task bounds that."""
    bound = None if result.task is None else result.task.vote.max_contributions
    if bound is None or result.spec is None:
        return {}
    spec = Spec.parse(result.spec.SerializeToString(deterministic=True))
    rounds = [BoundedRound(spec.mechanism, bound)]
    found = {
        f"epsilon_record_{kind.name.lower()}": record_epsilon(rounds, result.cost.delta, kind)
        for kind in Neighbours
    }
    return {**found, "max_contributions": bound}
