"""What every demo does once a service runs: label, train, compare, and show the result."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.table import Table

from mpc_vote.app.config import Method
from mpc_vote.cli import label, train
from mpc_vote.cli.common import progress
from mpc_vote.client import AsyncLabelClient, LabelResult, Plan
from mpc_vote.data.dataset import Dataset
from mpc_vote.data.partition import Partition
from mpc_vote.privacy.rounding import round_up
from mpc_vote.voting.ballots import KNN_COUNT, ONE_HOT, BallotKind

COLLUSION = 1
_DELTA = 1e-3

Predict = Callable[[npt.NDArray[np.float32]], npt.NDArray[np.int64]]


@dataclass(frozen=True)
class DemoMethod:
    """Parameters of a method, chosen by measuring."""

    method: Method
    ballot: BallotKind
    sigma: float
    agent: dict[str, str]


RECIPES = {
    Method.KNN: DemoMethod(
        Method.KNN,
        KNN_COUNT,
        40.0,
        {"voter": "knn", "k": "50", "features": "strokes", "reach": "0.07"},
    ),
    Method.AE: DemoMethod(Method.AE, ONE_HOT, 1.5, {"voter": "network"}),
}


@dataclass(frozen=True)
class Trial:
    """One run of the demo's work."""

    recipe: DemoMethod
    data: Partition
    sigma: float
    seed: int
    agents: int
    parties: int

    def start_comparing(self) -> asyncio.Future[tuple[float, float]]:
        """Begins what the global model is compared with, beside the service's own work.

        In a thread that nobody waits for when the demo is interrupted.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[tuple[float, float]] = loop.create_future()

        def work() -> None:
            try:
                outcome = functools.partial(_settle, future, self._compare(), None)
            except Exception as error:
                outcome = functools.partial(_settle, future, None, error)
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
                loop.call_soon_threadsafe(outcome)

        threading.Thread(target=work, daemon=True).start()
        return future

    async def run(
        self, client: AsyncLabelClient, others: Awaitable[tuple[float, float]], out: Console
    ) -> tuple[dict[str, Any], LabelResult]:
        """Labels the public points, has the server train, and scores both."""
        data = self.data
        plan = Plan(
            classes=data.public.classes,
            ballot=self.recipe.ballot,
            sigma=self.sigma,
            quorum=self.agents,
            collusion=COLLUSION,
            delta=_DELTA,
            agreement=None,
        )
        result = await label.follow(client, data.public.x, plan, out)
        await train.follow(client, [result.round_id], self.seed, out)
        predicted = await client.predict(data.test.x)
        with progress(out) as bars:
            task = bars.add_task("comparisons", total=None, detail="single agents, and true labels")
            oracle, best_agent = await others
            bars.update(task, total=1, completed=1)
        cost = result.cost
        return {
            "label_accuracy": float(np.mean(result.labels == data.public.y)),
            "student_accuracy": float(np.mean(predicted == data.test.y)),
            "oracle_accuracy": oracle,
            "best_agent_accuracy": best_agent,
            "epsilon_agent": cost.epsilon_agent,
            "epsilon_instance": cost.epsilon_instance,
            "delta": cost.delta,
            "sigma": self.sigma,
            "queries": len(data.public),
            "agents": self.agents,
            "parties": self.parties,
            "mpc_rounds": cost.mpc_rounds,
            "mpc_bytes_per_party": cost.mpc_bytes_per_party,
            "mpc_seconds": cost.mpc_seconds,
            "mpc_round_trip_seconds": cost.mpc_round_trip_seconds,
            "upload_bytes_per_agent": cost.upload_bytes_per_agent,
        }, result

    def _compare(self) -> tuple[float, float]:
        """Test accuracy of the same model on true labels, and of the best agent on its own."""
        from mpc_vote.learning.students.supervised import train_student

        public, test = self.data.public, self.data.test
        oracle = train_student(public.x, public.y, public.classes, self.seed)
        alone = [
            float(np.mean(self._alone(part, number)(test.x) == test.y))
            for number, part in enumerate(self.data.private[: self.agents])
        ]
        return oracle.agreement(test.x, test.y), max(alone)

    def _alone(self, part: Dataset, number: int) -> Predict:
        """How an agent would label without the others: its model, or its five nearest points."""
        if self.recipe.method is Method.AE:
            from mpc_vote.learning.voters.local_model import ModelVoter

            return ModelVoter.train(part.x, part.y, part.classes, self.seed + number).predict
        from mpc_vote.learning.voters.knn import KnnVoter

        neighbours = KnnVoter(
            part.x, part.y, part.classes, 5, features=self.recipe.agent["features"]
        )
        return lambda queries: neighbours.counts(queries).argmax(axis=1)


def _settle(future: asyncio.Future[Any], result: Any, error: Exception | None) -> None:
    if future.cancelled():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)


def show(trial: Trial, figures: dict[str, Any], result: LabelResult) -> Table:
    """The figures for people."""
    table = Table(title="Result", show_header=False, title_justify="left")
    for name, value in [
        ("method", _method(trial.recipe)),
        ("noise", _noise(figures, result)),
        (
            "label accuracy",
            f"{_percent(figures, 'label_accuracy')} of {figures['queries']} queries",
        ),
        ("global model, test", _percent(figures, "student_accuracy")),
        ("  trained on true labels", _percent(figures, "oracle_accuracy")),
        ("  best agent alone", _percent(figures, "best_agent_accuracy")),
        (
            "epsilon, instance level",
            f"{round_up(figures['epsilon_instance'])} at delta {figures['delta']:g}",
        ),
        (
            "epsilon, agent level",
            f"{round_up(figures['epsilon_agent'])} at delta {figures['delta']:g}",
        ),
        (
            "secure argmax",
            f"{figures['mpc_rounds']} rounds, {figures['mpc_bytes_per_party']:,} bytes sent per "
            f"party, {figures['mpc_seconds']:.2f} s",
        ),
        (
            "round trip of parties",
            f"{1000 * figures['mpc_round_trip_seconds']:.1f} ms, as measured",
        ),
        ("upload per agent", f"{figures['upload_bytes_per_agent']:,} bytes"),
        ("all in all", _resources(figures)),
    ]:
        table.add_row(name, value)
    return table


def _percent(figures: dict[str, Any], key: str) -> str:
    return f"{100 * figures[key]:.1f} %"


def _method(recipe: DemoMethod) -> str:
    details: Sequence[str] = [f"{k} {v}" for k, v in recipe.agent.items() if k != "voter"]
    return ", ".join([recipe.method.value, f"{recipe.ballot.name} ballots", *details])


def _noise(figures: dict[str, Any], result: LabelResult) -> str:
    text = f"Skellam, sigma {figures['sigma']:g} votes, {result.contributors} agents counted"
    if result.spec is not None:
        text += f", quorum {result.spec.quorum}, {result.spec.collusion} may collude"
    return text


def _resources(figures: dict[str, Any]) -> str:
    text = f"{figures['seconds']:.0f} s"
    if figures["peak_memory_bytes"] is not None:
        text += f", {figures['peak_memory_bytes'] / 2**20:,.0f} MiB at most"
    return text
