"""`mpc-vote plan`: how good labels will be and what they will cost, before anybody is asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console

from mpc_vote.app import process
from mpc_vote.app.config import ConfigError
from mpc_vote.cli import dry_run
from mpc_vote.cli.account.options import spelled_out
from mpc_vote.cli.account.plot import check as check_plot
from mpc_vote.cli.common import check_writable, console, write_json
from mpc_vote.cli.plan import plot, report
from mpc_vote.cli.plan.advice import advice, recommended
from mpc_vote.cli.plan.grid import Cell, Federation, cells
from mpc_vote.cli.plan.options import (
    PlanSettings,
    federation_at,
    federation_of,
    request_of,
    task_of,
)
from mpc_vote.client import AsyncLabelClient
from mpc_vote.errors import ErrorKind, VoteError
from mpc_vote.privacy.mechanisms import Level
from mpc_vote.tasks import Task
from mpc_vote.voting.costing import PlanError
from mpc_vote.voting.round_plan import RoundPlan


def command(arguments: Sequence[str]) -> int:
    """`mpc-vote plan`."""
    return process.run(PlanSettings, spelled_out(arguments), _main)


async def _main(settings: PlanSettings) -> None:
    if settings.epsilon is not None and settings.sigma:
        raise ConfigError("--sigma: is found for --epsilon: leave out one of them")
    check_plot(settings.plot)
    check_writable(settings.json_path)
    task = task_of(settings)
    out = console(settings.json_path, markup=False)
    if settings.certs is None:
        made = _reckon(settings, federation_of(settings, task))
        _show(out, settings, made)
        write_json(settings.json_path, made.document())
        return
    async with AsyncLabelClient(
        settings.coordinator, settings.certs, coordinator_name=settings.coordinator_name
    ) as client:
        await _live(client, settings, task, out)


async def _live(
    client: AsyncLabelClient, settings: PlanSettings, task: Task | None, out: Console
) -> None:
    """Plans with the agents that attend now, then makes a dry run of the best plan."""
    planned, refused = await _attending(client, settings, task)
    kept = [sigma for sigma in settings.sigma if sigma not in refused]
    settings = settings.model_copy(update={"sigma": kept})
    made = _reckon(settings, federation_at(settings, planned))
    _show(out, settings, made)
    for sigma, why in refused.items():
        out.print(f"- Sigma {sigma:g} is left out, as the service would refuse it: {why}")
    best = await client.plan(made.chosen.queries, request_of(settings, task, made.chosen.sigma))
    out.print(f"\nAsked for {best.queries} queries at sigma {best.sigma:g} now:")
    dry_run.show(out, best, settings.agreement)
    told = {"round": dry_run.figures(best, settings.agreement)}
    write_json(settings.json_path, made.document() | told)


async def _attending(
    client: AsyncLabelClient, settings: PlanSettings, task: Task | None
) -> tuple[RoundPlan, dict[float, str]]:
    """A round with the most noise that the service takes, which agents mind least; and why it
    takes no more."""
    refused: dict[float, str] = {}
    wanted: list[float | None] = [*sorted(set(settings.sigma), reverse=True)] or [None]
    for sigma in wanted:
        try:
            asked = request_of(settings, task, sigma)
            return await client.plan(settings.queries[0], asked), refused
        except VoteError as error:
            if error.kind is not ErrorKind.SPEC_INVALID or sigma is None or sigma == wanted[-1]:
                raise
            refused[sigma] = error.message
    raise AssertionError("the last one is returned or raised")


@dataclass(frozen=True)
class _Made:
    """A plan, what is best in it, and what there is to say."""

    federation: Federation
    cells: list[Cell]
    chosen: Cell
    level: Level
    advice: list[str]

    def document(self) -> dict[str, object]:
        return report.document(self.federation, self.cells, self.chosen, self.level, self.advice)


def _reckon(settings: PlanSettings, federation: Federation) -> _Made:
    level = settings.level or (Level.INSTANCE if federation.kind.needs_k else Level.AGENT)
    place = len(settings.agreement) // 2
    try:
        choices = _choices(settings, federation, level)
        found = cells(federation, choices, settings.agreement)
        chosen = recommended(found, level, place, settings.epsilon is not None)
        said = list(advice(federation, found, chosen, place, level))
    except PlanError as error:
        raise ConfigError(str(error)) from error
    return _Made(federation, found, chosen, level, said)


def _choices(
    settings: PlanSettings, federation: Federation, level: Level
) -> list[tuple[int, float]]:
    """Numbers of queries, each with its noise."""
    numbers = list(dict.fromkeys(settings.queries))
    if settings.epsilon is not None:
        target = settings.epsilon
        return [(number, federation.sigma_for(number, target, level)) for number in numbers]
    sigmas = list(dict.fromkeys(settings.sigma or federation.usual_sigmas()))
    return [(number, sigma) for number in numbers for sigma in sigmas]


def _show(out: Console, settings: PlanSettings, made: _Made) -> None:
    report.show(out, made.federation, made.cells)
    for sentence in made.advice:
        out.print(f"- {sentence}")
    if settings.plot is not None:
        plot.draw(made.federation, made.cells, settings.agreement, made.level, settings.plot)
        out.print(f"drawn to {settings.plot}", soft_wrap=True)
