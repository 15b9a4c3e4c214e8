"""The demo's result for people."""

from __future__ import annotations

from collections import Counter
from typing import Any

from rich.table import Table

from mpc_vote.client import LabelResult
from mpc_vote.privacy.rounding import round_up
from mpc_vote.testbed.demo.trial import Trial


def show(trial: Trial, figures: dict[str, Any], result: LabelResult) -> Table:
    """The figures for people."""
    table = Table(title="Result", show_header=False, title_justify="left")
    for name, value in [
        ("method", _method(trial)),
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


def _method(trial: Trial) -> str:
    method = trial.method
    parts = [method.name, f"{method.ballot.name} ballots"]
    if trial.subject.task is not None:
        parts += [f"{key} {value}" for key, value in trial.subject.task.vote.settings().items()][1:]
    if len(method.agents) == 1:
        parts += [f"{key} {value}" for key, value in method.agents[0].items() if key != "voter"]
    else:
        kinds = Counter(method.settings(number)["voter"] for number in range(trial.scale.agents))
        parts += [f"{count} {voter}" for voter, count in kinds.items()]
    return ", ".join(parts)


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
