"""The results of an experiment, for people and for programs: a table, a page, JSON."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from rich import box
from rich.table import Table

from mpc_vote.app.provenance import machine, versions
from mpc_vote.privacy.accountant import Epsilons
from mpc_vote.privacy.mechanisms import Level
from mpc_vote.privacy.rounding import round_up_places
from mpc_vote.simulation.experiment import ArmResult, Experiment

_PACKAGES = ("mpc-vote", "numpy", "torch", "torchvision", "faiss-cpu")


def _kilobytes(amount: float) -> str:
    return f"{amount / 1000:,.1f} kB"


_FIGURES: dict[str, Callable[[float], str]] = {
    "labels": lambda share: f"{100 * share:.1f}",
    "asked": lambda count: f"{count:.0f}",
    "sent": _kilobytes,
    "received": _kilobytes,
}

READING = """\
Accuracy is that of the global model on the test set, mean and standard deviation over the seeds, in
percent. Epsilon is what our accountant says of our run: exact where an exact account exists (PLD
for Skellam noise), and by the simple Renyi conversion, which is the paper's accountant. At agent
level one agent's ballots are emptied, at instance level one record is replaced (in DP-FedSGD added
or removed), which can cost more. It is against whoever sees the labels, with the noise of all
agents unknown to them: an agent that sets its own noise aside faces a little more (`mpc-vote
account --collusion`). Choosing settings is not in any epsilon. Labels is the share of right labels
among those that the vote released, asked how many that were. Sent and received is what one agent
sends and receives in the whole run, on average, where ballots are not verified. The paper's columns
are what its table says; its epsilons are by the simple conversion where they can be derived at all
(`mpc-vote account paper`)."""


def document(
    experiment: Experiment, results: Sequence[ArmResult], seeds: Sequence[int], command: str
) -> dict[str, Any]:
    """All there is to say of an experiment."""
    return {
        "experiment": experiment.name,
        "title": experiment.title,
        "command": command,
        "date": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "versions": versions(_PACKAGES),
        "seeds": list(seeds),
        "level": experiment.level.value,
        "delta": experiment.delta,
        "notes": list(experiment.notes),
        "arms": [result.to_json() for result in results],
    }


def table(experiment: Experiment, results: Sequence[ArmResult]) -> Table:
    """What matters most, for the terminal; the page has all."""
    shown = Table(box=box.SIMPLE, padding=(0, 1))
    shown.add_column("method")
    for heading in ("accuracy", "epsilon", *experiment.shown, "paper", "its epsilon"):
        shown.add_column(heading, justify="right", no_wrap=heading != "its epsilon")
    for result in results:
        cells = _cells(experiment, result, experiment.shown)
        shown.add_row(*cells[:3], *cells[5:])
    return shown


def markdown(experiment: Experiment, results: Sequence[ArmResult], figures: dict[str, Any]) -> str:
    """The figures as a page."""
    host, headings = figures["machine"], _headings(experiment)
    lines = [
        f"# {experiment.title}",
        "",
        f"`{figures['command']}`, {figures['date']}",
        "",
        f"{host['cpu']}, {host['cores']} cores, {host['kernel']}, Python {host['python']}; "
        + ", ".join(f"{name} {version}" for name, version in figures["versions"].items())
        + f". Seeds {', '.join(map(str, figures['seeds']))}.",
        "",
        _line(headings),
        _line("---" for _ in headings),
        *(_line(_cells(experiment, result, tuple(_FIGURES))) for result in results),
    ]
    if experiment.notes:
        lines += ["", *(f"- {note}" for note in experiment.notes)]
    return "\n".join([*lines, "", READING, ""])


def _headings(experiment: Experiment) -> list[str]:
    other = Level.INSTANCE if experiment.level is Level.AGENT else Level.AGENT
    return [
        "method",
        "accuracy",
        f"epsilon, {experiment.level.value}, at delta {experiment.delta:g}",
        "(simple)",
        f"epsilon, {other.value}",
        *_FIGURES,
        "paper",
        "its epsilon",
    ]


def _cells(experiment: Experiment, result: ArmResult, shown: Sequence[str]) -> list[str]:
    other = Level.INSTANCE if experiment.level is Level.AGENT else Level.AGENT
    main, paper = result.epsilons(experiment.level), result.arm.paper
    return [
        result.arm.name,
        _percent(100 * result.mean, 100 * result.deviation if len(result.outcomes) > 1 else None),
        _epsilon(main),
        "" if main is None else round_up_places(main.simple, 2),
        _epsilon(result.epsilons(other)) if experiment.both_levels else "not stated",
        *(
            _FIGURES[name](result.figure(name)) if name in result.outcomes[0].figures else ""
            for name in shown
        ),
        "" if paper is None else _percent(paper.accuracy, paper.spread),
        "" if paper is None or paper.epsilon is None else f"{paper.epsilon:g}",
    ]


def _epsilon(found: Epsilons | None) -> str:
    if found is None:
        return "none"
    if found.exact is None:
        return f"{round_up_places(found.tight, 2)} (tight)"
    return round_up_places(found.exact, 2)


def _percent(mean: float, spread: float | None) -> str:
    return f"{mean:.1f}" if spread is None else f"{mean:.1f} ± {spread:.1f}"


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"
