"""The demo's result for people."""

from __future__ import annotations

from collections import Counter
from typing import Any

from rich.table import Table

from mpc_vote.cli.against import EXPLAINED
from mpc_vote.cli.plan.advice import HIDDEN
from mpc_vote.client import LabelResult
from mpc_vote.privacy.contributions import Neighbours
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
        ("  by labels", _by_labels(figures, "instance")),
        *_record(figures),
        (
            "epsilon, agent level",
            f"{round_up(figures['epsilon_agent'])} at delta {figures['delta']:g}",
        ),
        ("  by labels", _by_labels(figures, "agent")),
        (
            "secure argmax",
            f"{figures['engine']}, {figures['mpc_rounds']} rounds, "
            f"{figures['mpc_bytes_per_party']:,} bytes sent per party, "
            f"{figures['mpc_seconds']:.2f} s",
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


def _record(figures: dict[str, Any]) -> list[tuple[str, str]]:
    """What a single record loses, where the task bounds what it contributes."""
    bound = figures.get("max_contributions")
    if bound is None:
        return []
    added, replaced = (
        round_up(figures[f"epsilon_record_{kind.name.lower()}"]) for kind in Neighbours
    )
    told = f"{added} added or removed, {replaced} replaced, of {bound} contributions at most"
    return [("epsilon of a record", told)]


def remarks(trial: Trial, figures: dict[str, Any]) -> list[str]:
    """How to read figures that say that a vote was of little use, or protected little."""
    found = [EXPLAINED]
    best, model = figures["best_agent_accuracy"], figures["student_accuracy"]
    if best >= model:
        found.append(
            "An agent alone does as well as the global model: its own records are enough for this "
            "task. The vote is of use where agents lack records or classes, as in the demo on "
            "digits, and to whoever has no data."
        )
    if figures["epsilon_instance"] > HIDDEN:
        found.append(
            f"An epsilon of {round_up(figures['epsilon_instance'])} protects next to nothing. "
            f"{_why(trial)}; `mpc-vote plan` tells what a federation can afford."
        )
    return found


def _by_labels(figures: dict[str, Any], level: str) -> str:
    return round_up(figures[f"labels_epsilon_{level}"])


def _why(trial: Trial) -> str:
    agents = f"{trial.scale.agents} agents are too few to hide one's ballot in noise"
    if trial.method.ballot.needs_k:
        return f"{agents} this small"
    return (
        f"{agents}, and with {trial.method.ballot.name} ballots one record can change all of it. "
        "With --method knn a record changes one neighbour's vote only"
    )


def _percent(figures: dict[str, Any], key: str) -> str:
    return f"{100 * figures[key]:.1f} %"


def _method(trial: Trial) -> str:
    method = trial.method
    parts = [method.name, f"{method.ballot.name} ballots"]
    if trial.subject.task is not None:
        parts += [f"{key} {value}" for key, value in trial.subject.task.vote.settings().items()][1:]
    if trial.scale.bounded:
        parts.append(f"features {method.settings(0)['features']}")
    elif len(method.agents) == 1:
        parts += [f"{key} {value}" for key, value in method.agents[0].items() if key != "voter"]
    else:
        kinds = Counter(method.settings(number)["voter"] for number in range(trial.scale.agents))
        parts += [f"{count} {voter}" for voter, count in kinds.items()]
    return ", ".join(parts)


def _noise(figures: dict[str, Any], result: LabelResult) -> str:
    spec = result.spec
    if spec is None:
        return f"sigma {figures['sigma']:g} votes, {result.contributors} agents counted"
    whose = "coins of the committee" if spec.verified else "Skellam of the agents"
    counted = f"{result.contributors} agents counted, quorum {spec.quorum}"
    told = f"{whose}, sigma {figures['sigma']:g} votes; {counted}"
    return told if spec.verified else f"{told}, {spec.collusion} may collude"


def _resources(figures: dict[str, Any]) -> str:
    text = f"{figures['seconds']:.0f} s"
    if figures["peak_memory_bytes"] is not None:
        text += f", {figures['peak_memory_bytes'] / 2**20:,.0f} MiB at most"
    return text
