"""What a dry run shows, and writes as JSON under stable keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from mpc_vote.cli.against import EXPLAINED, by_labels
from mpc_vote.cli.plan.report import forecast_figures
from mpc_vote.cli.plan.words import labels, told_noise
from mpc_vote.privacy.rounding import round_up
from mpc_vote.voting.round_plan import RoundPlan

AGREEMENTS = (0.5, 0.7, 0.9, 1.0)
"""What labels are forecast for, where a user expects nothing."""


def show(
    out: Console,
    planned: RoundPlan,
    agreements: Sequence[float] = AGREEMENTS,
    noted: Sequence[str] = (),
) -> None:
    """A round as it would be; what is `noted` besides is a warning as well."""
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_row("round", _round(planned))
    table.add_row("agents", Text(f"{len(planned.agents)}: {', '.join(planned.agents)}"))
    for agent, reason in planned.left_out.items():
        table.add_row("  left out", Text(f"{agent}: {reason}"))
    table.add_row("quorum", str(planned.quorum))
    table.add_row("noise", told_noise(planned.verified, planned.sigma, planned.collusion))
    table.add_row("ballots", _ballots(planned))
    table.add_row("engine", f"{planned.engine}, ring of {planned.ring_bits} bits")
    for party in planned.unready_parties:
        table.add_row("  NOT READY", Text(party))
    table.add_row(
        "epsilon of this round",
        f"{round_up(planned.epsilon_agent)} agent level, {round_up(planned.epsilon_instance)} "
        f"instance level (delta {planned.delta:g})",
    )
    table.add_row("  by labels", by_labels(planned))
    table.add_row(
        "of all rounds with it",
        f"{round_up(planned.total_epsilon_agent)} agent level, "
        f"{round_up(planned.total_epsilon_instance)} instance level",
    )
    table.add_row("  by labels", by_labels(planned, "total_"))
    for agreement in agreements:
        found = planned.forecast(agreement)
        table.add_row(
            "right labels", f"{labels(found)} if {100 * agreement:g} % of the votes agree"
        )
    out.print(table)
    warnings = [*planned.warnings, *noted]
    if planned.over_budget:
        warnings.append(f"the service would refuse it: {planned.over_budget}")
    for warning in warnings:
        out.print(Text.assemble(("warning", "yellow"), f": {warning}"))
    out.print(EXPLAINED)
    out.print("This was a dry run: nobody was asked and nothing was spent.")


def _round(planned: RoundPlan) -> str:
    what = "attributes" if planned.ballot.attributes else "classes"
    told = f"{planned.queries} queries, {planned.classes} {what}"
    return f"{told}, task {planned.task}" if planned.task else told


def _ballots(planned: RoundPlan) -> str:
    sure = "verified" if planned.verified else "not verified"
    return f"{planned.ballot.name}, {sure}, at most {planned.votes} votes on a query"


def figures(planned: RoundPlan, agreements: Sequence[float] = AGREEMENTS) -> dict[str, Any]:
    """All of a dry run."""
    return {
        **vars(planned),
        "ballot": planned.ballot.name,
        "votes": planned.votes,
        "forecasts": [forecast_figures(planned.forecast(agreement)) for agreement in agreements],
    }
