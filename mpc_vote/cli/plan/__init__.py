"""`mpc-vote plan`: how good labels will be and what they will cost, before anybody is asked."""

from __future__ import annotations

from collections.abc import Sequence

from mpc_vote.app import process
from mpc_vote.app.config import ConfigError
from mpc_vote.cli.account.options import spelled_out
from mpc_vote.cli.account.plot import check as check_plot
from mpc_vote.cli.common import check_writable, console, write_json
from mpc_vote.cli.plan import plot, report
from mpc_vote.cli.plan.advice import advice, recommended
from mpc_vote.cli.plan.grid import Federation, cells
from mpc_vote.cli.plan.options import PlanSettings, federation_of, task_of
from mpc_vote.privacy.mechanisms import Level
from mpc_vote.voting.costing import PlanError


def command(arguments: Sequence[str]) -> int:
    """`mpc-vote plan`."""
    return process.run(PlanSettings, spelled_out(arguments), _main)


async def _main(settings: PlanSettings) -> None:
    if settings.epsilon is not None and settings.sigma:
        raise ConfigError("--sigma: is found for --epsilon: leave out one of them")
    check_plot(settings.plot)
    check_writable(settings.json_path)
    federation = federation_of(settings, task_of(settings))
    level = settings.level or (Level.INSTANCE if federation.kind.needs_k else Level.AGENT)
    try:
        choices = _choices(settings, federation, level)
        found = cells(federation, choices, settings.agreement)
        place = len(settings.agreement) // 2
        chosen = recommended(found, level, place, settings.epsilon is not None)
        said = list(advice(federation, found, chosen, place, level))
        out = console(settings.json_path, markup=False)
        report.show(out, federation, found)
        for sentence in said:
            out.print(f"- {sentence}")
        if settings.plot is not None:
            queries = list(dict.fromkeys(settings.queries))
            plot.draw(federation, queries, settings.agreement, found, level, settings.plot)
            out.print(f"drawn to {settings.plot}", soft_wrap=True)
    except PlanError as error:
        raise ConfigError(str(error)) from error
    write_json(settings.json_path, report.document(federation, found, chosen, level, said))


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
