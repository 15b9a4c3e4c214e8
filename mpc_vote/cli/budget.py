"""`mpc-vote budget`: what is spent, what is left, and how many queries that allows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import Field
from rich.console import Console
from rich.table import Column, Table

from mpc_vote.app import process
from mpc_vote.app.config import Address, Ballot, ConfigError, LogLevel, Name, Positive, Settings
from mpc_vote.app.process import CommandError
from mpc_vote.cli.against import AGAINST, DEALER
from mpc_vote.cli.common import check_writable, console, counted, write_json
from mpc_vote.client import AsyncLabelClient
from mpc_vote.privacy import charging
from mpc_vote.privacy.charging import PREFIX, Against
from mpc_vote.privacy.ledger import LedgerView, Spend
from mpc_vote.privacy.mechanisms import Level, Mechanism
from mpc_vote.privacy.rounding import round_down, round_up
from mpc_vote.voting.ballots import KNN_COUNT
from mpc_vote.voting.charge import usual_charge
from mpc_vote.voting.limits import MAX_K
from mpc_vote.voting.planning import DELTA

LEDGER = "ledger.db"


class BudgetSettings(Settings):
    """Shows what an agent or coordinator on this machine has spent, its limits, what is left of
    them, and how many more queries that allows; or, for a client, what the service has spent.

    The ledger is only read, and may be in use.
    """

    command: ClassVar[str] = "budget"

    data_dir: Path | None = Field(
        None, description="folder of an agent's or the coordinator's ledger on this machine"
    )
    certs: Path | None = Field(
        None, description="to ask the service instead: folder of the client's certificate"
    )
    coordinator: Address = Field("127.0.0.1:7000", description="host:port of the coordinator")
    coordinator_name: Name = Field(
        "coordinator", description="name in the coordinator's certificate"
    )
    sigma: list[Positive] = Field(
        [25.0], min_length=1, description="noise in votes, to see how many queries are left at it"
    )
    ballot: Ballot = Field(KNN_COUNT, description="kind of ballots")
    k: list[Annotated[int, Field(ge=1, le=MAX_K)]] = Field(
        [],
        description="knn only: public number of neighbours; several if agents differ",
    )
    tau: int | None = Field(
        None, ge=1, description="multi_label only: most attributes an agent says yes to"
    )
    spends: bool = Field(False, description="also list every spend")
    json_path: str | None = Field(
        None, alias="json", description="also write the figures as JSON to this file, - for stdout"
    )
    log_level: LogLevel = Field("warning", description="debug, info, warning or error")


def command(arguments: Sequence[str]) -> int:
    """`mpc-vote budget`."""
    return process.run(BudgetSettings, arguments, _main)


async def _main(settings: BudgetSettings) -> None:
    if (settings.data_dir is None) == (settings.certs is None):
        raise ConfigError(
            "pass one: --data-dir for a ledger on this machine, or --certs to ask the service"
        )
    check_writable(settings.json_path)
    out = console(settings.json_path)
    if settings.data_dir is not None:
        figures = _of_ledger(out, settings, settings.data_dir / LEDGER)
    else:
        figures = await _of_service(out, settings)
    write_json(settings.json_path, figures)


def _of_ledger(out: Console, settings: BudgetSettings, path: Path) -> dict[str, Any]:
    known = bool(settings.k) or not settings.ballot.needs_k
    wanted = {sigma: _one_query(settings, sigma) for sigma in settings.sigma if known}
    with LedgerView(path) as ledger:
        try:
            spends = ledger.spends()
        except ValueError as error:
            raise CommandError(f"{path} holds a spend that can't be read: {error}") from error
        delta = DELTA if ledger.budget is None else ledger.budget.delta
        limits = {} if ledger.budget is None else ledger.budget.limits()
        levels = {
            level.value: _standing(ledger.spent(level, delta), limits.get(level)) for level in Level
        }
        spent = ledger.figures(delta)
        buys = [
            {"sigma": sigma, "queries": ledger.affordable(one)} for sigma, one in wanted.items()
        ]
    figures: dict[str, Any] = {
        "ledger": str(path),
        "ledger_id": ledger.ledger_id,
        "owner": ledger.owner,
        "rounds": len(spends),
        "queries": sum(spend.mechanism.queries for spend in spends),
        "delta": delta,
        "limits_noted": ledger.budget is not None,
        "against": ledger.against.value,
        "levels": levels,
        **spent,
        "ballot": settings.ballot.name,
        "k": settings.k if settings.ballot.needs_k else [],
        "tau": settings.tau,
        "buys": buys,
    }
    _show_ledger(out, figures)
    if settings.spends:
        figures["spends"] = [_spend(spend, delta) for spend in spends]
        _show_spends(out, figures["spends"], Against(figures["against"]))
    return figures


def _one_query(settings: BudgetSettings, sigma: float) -> Mechanism:
    """What the service charges for a query with this noise."""
    kind, ks, tau = settings.ballot, settings.k, settings.tau
    try:
        return usual_charge(kind, queries=1, sigma=sigma, ks=ks, tau=tau)
    except ValueError as error:
        raise ConfigError(str(error)) from error


def _show_ledger(out: Console, figures: dict[str, Any]) -> None:
    whose = figures["owner"] or "nobody yet"
    known = f", ledger {figures['ledger_id']}" if figures["ledger_id"] else ""
    out.print(
        f"{figures['ledger']}, of {whose}{known}: "
        f"{counted(figures['rounds'], 'round')}, "
        f"{counted(figures['queries'], 'query', 'queries')}",
        soft_wrap=True,
    )
    _show_levels(out, figures)
    if not figures["limits_noted"]:
        out.print("no limit is recorded here: its role records its own when it is next started")
    elif all(row["limit"] is None for row in figures["levels"].values()):
        out.print("there is no limit: every round is recorded, and none is refused for its cost")
    votes = figures["ballot"]
    if figures["k"]:
        votes += f" of {', '.join(map(str, figures['k']))} neighbours"
    if not figures["buys"]:
        out.print("to see how many queries that allows, pass --k, the public number of neighbours")
    for row in figures["buys"]:
        more = ("more query", "more queries")
        number = f"any number of {more[1]}"
        if row["queries"] is not None:
            number = counted(row["queries"], *more)
        out.print(f"allows {number} at sigma {row['sigma']:g} ({votes})")


def _spend(spend: Spend, delta: float) -> dict[str, Any]:
    mechanism = spend.mechanism
    return {
        "round_id": spend.round_id,
        "charged_at": spend.charged_at.isoformat(),
        "queries": mechanism.queries,
        "note": spend.note,
        **charging.figures([mechanism], delta),
    }


def _show_spends(out: Console, spends: Sequence[dict[str, Any]], against: Against) -> None:
    """Each round by itself: together they cost less than the sum of their epsilons."""
    columns = ("charged (UTC)", "queries", "agent", "instance", "what")
    table = Table(Column("round", no_wrap=True), *columns, box=None)
    for row in spends:
        table.add_row(
            row["round_id"],
            row["charged_at"][:19].replace("T", " "),
            str(row["queries"]),
            *(round_up(row[f"{PREFIX[against]}epsilon_{level.value}"]) for level in Level),
            row["note"],
        )
    out.print(table)


async def _of_service(out: Console, settings: BudgetSettings) -> dict[str, Any]:
    if settings.spends:
        raise ConfigError("--spends: is for --data-dir; `mpc-vote rounds` lists a client's rounds")
    async with AsyncLabelClient(
        settings.coordinator, str(settings.certs), coordinator_name=settings.coordinator_name
    ) as client:
        service = await client.service()
    agent, instance = service.limit_epsilon_agent, service.limit_epsilon_instance
    against = Against.LABELS if service.limits_against_labels else Against.TOTALS
    spent = {
        _total(level, one): getattr(service, _total(level, one))
        for one in Against
        for level in Level
    }
    limits = {
        Level.AGENT: agent if service.HasField("limit_epsilon_agent") else None,
        Level.INSTANCE: instance if service.HasField("limit_epsilon_instance") else None,
    }
    figures: dict[str, Any] = {
        "service": settings.coordinator,
        "delta": service.delta,
        "against": against.value,
        "levels": {
            level.value: _standing(spent[_total(level, against)], limit)
            for level, limit in limits.items()
        },
        **spent,
    }
    _show_levels(out, figures)
    out.print(
        "Every agent has limits of its own besides, and says so when a round is over one.",
        soft_wrap=True,
    )
    return figures


def _total(level: Level, against: Against) -> str:
    return f"total_{PREFIX[against]}epsilon_{level.value}"


def _standing(spent: float, limit: float | None) -> dict[str, float | None]:
    left = None if limit is None else max(0.0, limit - spent)
    return {"spent": spent, "limit": limit, "remaining": left}


def _show_levels(out: Console, figures: dict[str, Any]) -> None:
    """Spends and limits against whom the limits are held, and the spends against the others."""
    against = Against(figures["against"])
    table = Table(f"epsilon at delta {figures['delta']:g}", "spent", "limit", "left")
    for level, row in figures["levels"].items():
        limited = row["limit"] is not None
        table.add_row(
            f"{level} level",
            round_up(row["spent"]),
            round_down(row["limit"]) if limited else "no limit",
            round_down(row["remaining"]) if limited else "",
        )
    out.print(table)
    out.print(f"This is {AGAINST[against]}.", soft_wrap=True)
    other = next(one for one in Against if one is not against)
    agent, instance = (round_up(figures[_total(level, other)]) for level in Level)
    out.print(
        f"Spent {AGAINST[other]}: {agent} at agent level, {instance} at instance level. {DEALER}",
        soft_wrap=True,
    )
