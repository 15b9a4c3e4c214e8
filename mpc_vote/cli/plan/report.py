"""What `mpc-vote plan` shows, and writes as JSON under stable keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from mpc_vote.cli.against import AGAINST
from mpc_vote.cli.plan.grid import Cell, Federation
from mpc_vote.cli.plan.words import labels, rounded
from mpc_vote.privacy.mechanisms import Level
from mpc_vote.voting.forecast import Forecast

_LEVELS = (Level.INSTANCE, Level.AGENT)
_MARK = " *"


def show(out: Console, federation: Federation, cells: Sequence[Cell]) -> None:
    """The federation and the table."""
    out.print(_federation(federation))
    table = Table("queries", "sigma", *(f"epsilon,\n{level.value}" for level in _LEVELS))
    for found in cells[0].forecasts:
        table.add_column(f"right if\n{100 * found.agreement:g} % agree")
    queries = cells[0].queries
    for cell in cells:
        if cell.queries != queries:
            table.add_section()
            queries = cell.queries
        table.add_row(
            str(cell.queries),
            f"{cell.sigma:g}",
            *(rounded(cell.epsilons[level]) for level in _LEVELS),
            *(_labels(found) for found in cell.forecasts),
        )
    out.print(table)
    told = f"epsilon at delta {federation.delta:g}, {AGAINST[federation.against]}"
    if any(found.drowned for cell in cells for found in cell.forecasts):
        told += "; *: nearer to guesses than to the truth, wherever the other votes go"
    out.print(told)


def _federation(federation: Federation) -> str:
    f = federation
    parts = [f"{f.agents} agents", f"{f.kind.name} ballots"]
    if f.kind.needs_k:
        low, high = min(f.ks), max(f.ks)
        parts.append(f"k {low}" if low == high else f"k {low} to {high}")
    if f.tau is not None:
        parts.append(f"tau {f.tau}")
    what = "attributes" if f.kind.attributes else "classes"
    parts += [f"{f.classes} {what}", f"at most {f.votes} votes on a query"]
    parts.append(f"quorum {f.quorum}")
    if f.verified:
        parts.append("verified: noise of the committee")
    else:
        parts.append(f"not verified: noise of the agents, {f.collusion} may collude")
    if f.participation < 1:
        parts.append(f"{100 * f.participation:g} % answer")
    if f.turnout < 1:
        parts.append(f"{100 * f.turnout:g} % of the votes are cast")
    return ", ".join(parts)


def _labels(found: Forecast) -> str:
    return labels(found) + (_MARK if found.drowned else "")


def document(
    federation: Federation, cells: Sequence[Cell], chosen: Cell, level: Level, said: Sequence[str]
) -> dict[str, Any]:
    """All of a plan."""
    f = federation
    return {
        "federation": {
            "agents": f.agents,
            "ballot": f.kind.name,
            "classes": f.classes,
            "k": list(f.ks) if f.kind.needs_k else None,
            "tau": f.tau,
            "votes": f.votes,
            "quorum": f.quorum,
            "collusion": f.collusion,
            "verified": f.verified,
            "participation": f.participation,
            "turnout": f.turnout,
        },
        "delta": f.delta,
        "against": f.against.value,
        "level": level.value,
        "plans": [_cell(cell) for cell in cells],
        "recommended": _cell(chosen),
        "advice": list(said),
    }


def _cell(cell: Cell) -> dict[str, Any]:
    return {
        "queries": cell.queries,
        "sigma": cell.sigma,
        **{f"epsilon_{level.value}": cell.epsilons[level] for level in _LEVELS},
        "labels": [forecast_figures(found) for found in cell.forecasts],
    }


def forecast_figures(found: Forecast) -> dict[str, Any]:
    """A forecast, under stable keys."""
    return {
        "agreement": found.agreement,
        "low": found.low,
        "high": found.high,
        "chance": found.chance,
        "drowned": found.drowned,
    }
