"""`mpc-vote account`: what a plan costs before it is run, and the noise or queries for a budget.

`mpc-vote account paper` sets the published epsilons beside what their settings cost.
"""

from __future__ import annotations

import enum
import importlib.util
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from pydantic import Field
from rich.console import Console
from rich.table import Table

from mpc_vote import process
from mpc_vote.ballots import BallotKind
from mpc_vote.cli.common import check_writable, console, write_json
from mpc_vote.config import ConfigError, LogLevel, Method, Settings
from mpc_vote.privacy import paper_table
from mpc_vote.privacy.accountant import Epsilons
from mpc_vote.privacy.mechanisms import Level
from mpc_vote.privacy.plan import (
    LEAST_SIGMA,
    MAX_QUERIES,
    Accountant,
    Coalition,
    Noise,
    Plan,
    PlanError,
    Roster,
    Solved,
    coalition,
    losses,
    solve_queries,
    solve_sigma,
)
from mpc_vote.process import CommandError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

N = TypeVar("N", int, float)

COALITIONS = (0, 10, 50)
"""Parts of all agents, in percent."""

MAX_EPSILON = 1000.0

_FORMATS = (".pdf", ".png", ".svg")
_POINTS = 12
_INCHES = (10.0, 4.2)
_DOTS_PER_INCH = 150
_MEANINGS = {
    Accountant.SIMPLE: "Renyi bound, converted as most papers do: valid, loosest",
    Accountant.TIGHT: "Renyi bound, best conversion: what budgets are charged",
    Accountant.EXACT: "all that the noisy totals lose; labels lose no more",
}
_VOTES = {
    BallotKind.ONE_HOT: "AE-DPFL, a vote of each agent's model",
    BallotKind.MULTI_LABEL: "AE-DPFL, a yes of each agent's model for some attributes",
    BallotKind.KNN_FREQUENCY: "kNN-DPFL, a vote shared by each agent's neighbours",
    BallotKind.KNN_COUNT: "kNN-DPFL, a vote of each neighbour",
}
_NOTHING = {
    "simple": None,
    "tight": None,
    "exact": None,
    "how": "all noise that the quorum guarantees is known: nothing is hidden",
}
_HOWS = {
    "exact": "the formula for Gaussian noise",
    "PLD": "by privacy loss distributions, on a fine grid, rounded up",
}
_LEVELS = [level.value for level in Level]


class Neighbours(enum.StrEnum):
    """How neighbours vote: their labels share one vote, or have one each."""

    FREQUENCY = "frequency"
    COUNT = "count"


class Solve(enum.StrEnum):
    """What is looked for."""

    SIGMA = "sigma"
    QUERIES = "queries"


class _FiguresSettings(Settings):
    """What both forms of the command have."""

    json_path: str | None = Field(
        None,
        alias="json",
        description="also write the figures as JSON to this file; alone or with -: to stdout",
    )
    log_level: LogLevel = Field("warning", description="debug, info, warning or error")


class AccountSettings(_FiguresSettings):
    """Says what epsilon a plan costs, at agent and at instance level, and what colluding agents
    leave of it; or finds the noise or the number of queries for an epsilon.

    Nothing is asked of any service. See also: mpc-vote account paper, which sets the epsilons
    published for AE-DPFL and kNN-DPFL beside what their settings cost.
    """

    command: ClassVar[str] = "account"

    method: Method = Field(
        Method.AE, description="ae: local models vote; knn: nearest neighbours do"
    )
    ballot: Neighbours | None = Field(
        None,
        description="knn only: frequency (neighbours share a vote, the default), count (one each)",
    )
    noise: Noise = Field(
        Noise.SKELLAM,
        description="skellam: as the service adds it; gaussian: ideal, on votes without rounding",
    )
    sigma: float | None = Field(None, description="noise that counts in one total, in votes")
    queries: int | None = Field(None, description="number of labels to release, over all rounds")
    k: list[int] = Field(
        [], description="knn only: public number of neighbours; several if agents differ"
    )
    tau: int | None = Field(
        None, description="ae only: most attributes an agent says yes to; makes it multi-label"
    )
    agents: int | None = Field(None, description="agents in the roster; needed for coalitions")
    quorum: int | None = Field(
        None, description="least number of agents a round completes with; default: all"
    )
    collusion: int = Field(
        0, description="agents assumed to pool their noise, which the others make up for"
    )
    delta: float = Field(1e-3, description="delta at which epsilon is given")
    epsilon: float | None = Field(None, description="with --solve: the most epsilon to lose")
    solve: Solve | None = Field(
        None, description="find for --epsilon: sigma (the least) or queries (the most)"
    )
    level: Level | None = Field(None, description="with --solve: agent (default) or instance")
    accountant: Accountant | None = Field(
        None, description="with --solve: simple, tight (default) or exact"
    )
    plot: Path | None = Field(
        None, description=f"draw epsilon against the number of queries: {', '.join(_FORMATS)}"
    )


class PaperSettings(_FiguresSettings):
    """Sets every epsilon of "Voting-based Approaches for Differentially Private Federated Learning"
    beside what its settings cost, and says which follow from its own formula.
    """

    command: ClassVar[str] = "account paper"


def command(arguments: Sequence[str]) -> int:
    """`mpc-vote account`."""
    given = _spelled_out(arguments)
    if given[:1] == ["paper"]:
        return process.run(PaperSettings, given[1:], _paper)
    return process.run(AccountSettings, given, _main)


def _spelled_out(arguments: Sequence[str]) -> list[str]:
    """A `--json` that names no file means standard output; `--k` is the flag `-k`."""
    given: list[str] = []
    for place, argument in enumerate(arguments):
        given.append(argument[1:] if argument == "--k" or argument.startswith("--k=") else argument)
        last = place + 1 == len(arguments)
        if argument == "--json" and (last or arguments[place + 1].startswith("--")):
            given.append("-")
    return given


async def _main(settings: AccountSettings) -> None:
    plan = _plan(settings)
    goal = _goal(settings)
    _check_plot(settings.plot)
    check_writable(settings.json_path)
    out = console(settings.json_path)
    solved: Solved | None = None
    if goal is not None:
        solved = _solve(plan, goal)
        plan = solved.plan
        _show_solved(out, goal, solved)
    found = losses(plan)
    coalitions = (
        [] if plan.roster is None else [coalition(plan, plan.roster, part) for part in COALITIONS]
    )
    _show(out, plan, found)
    if plan.roster is not None:
        _show_coalitions(out, plan.roster, coalitions)
    _show_assumptions(out, plan)
    if settings.plot is not None:
        _draw(plan, settings.plot)
        out.print(f"drawn to {settings.plot}", soft_wrap=True)
    write_json(settings.json_path, _figures(plan, found, coalitions, solved))


def _plan(settings: AccountSettings) -> Plan:
    """The plan as given; what is to be found has a place holder."""
    if settings.method is Method.AE:
        if settings.ballot is not None:
            raise ConfigError("ballot: is for --method knn; models cast one vote each")
        if settings.k:
            raise ConfigError("k: is for --method knn")
        ballot = BallotKind.ONE_HOT if settings.tau is None else BallotKind.MULTI_LABEL
    else:
        if settings.tau is not None:
            raise ConfigError("tau: is for --method ae; neighbours vote for one class each")
        if not settings.k:
            raise ConfigError("k: is missing: pass --k, the public number of neighbours")
        count = settings.ballot is Neighbours.COUNT
        ballot = BallotKind.KNN_COUNT if count else BallotKind.KNN_FREQUENCY
    roster = None
    try:
        if settings.agents is not None:
            quorum = settings.agents if settings.quorum is None else settings.quorum
            roster = Roster(settings.agents, quorum, settings.collusion)
        elif settings.quorum is not None or settings.collusion:
            raise ConfigError("agents: is missing: a quorum or a collusion bound needs --agents")
        return Plan(
            ballot=ballot,
            noise=settings.noise,
            sigma=_given(settings, Solve.SIGMA, settings.sigma, LEAST_SIGMA),
            queries=_given(settings, Solve.QUERIES, settings.queries, 1),
            delta=settings.delta,
            ks=tuple(settings.k),
            tau=settings.tau,
            roster=roster,
        )
    except PlanError as error:
        raise ConfigError(str(error)) from error


def _given(settings: AccountSettings, name: Solve, value: N | None, place_holder: N) -> N:
    if settings.solve is name:
        if value is not None:
            raise ConfigError(f"{name}: is both given and to be found: drop it or --solve {name}")
        return place_holder
    if value is None:
        raise ConfigError(f"{name}: is missing: pass --{name}, or find it with --solve {name}")
    return value


@dataclass(frozen=True)
class _Goal:
    """What is looked for."""

    solve: Solve
    epsilon: float
    level: Level
    accountant: Accountant


def _goal(settings: AccountSettings) -> _Goal | None:
    if settings.solve is None:
        for name in ("epsilon", "level", "accountant"):
            if getattr(settings, name) is not None:
                raise ConfigError(f"{name}: is for --solve sigma or --solve queries only")
        return None
    if settings.epsilon is None:
        raise ConfigError(f"epsilon: is missing: --solve {settings.solve} needs --epsilon")
    if not 0 < settings.epsilon <= MAX_EPSILON:
        raise ConfigError(f"epsilon: must be above 0 and at most {MAX_EPSILON:g}")
    return _Goal(
        settings.solve,
        settings.epsilon,
        settings.level or Level.AGENT,
        settings.accountant or Accountant.TIGHT,
    )


def _solve(plan: Plan, goal: _Goal) -> Solved:
    solver = solve_sigma if goal.solve is Solve.SIGMA else solve_queries
    try:
        return solver(plan, goal.epsilon, goal.level, goal.accountant)
    except PlanError as error:
        raise CommandError(str(error)) from error


def _check_plot(path: Path | None) -> None:
    if path is None:
        return
    if path.suffix not in _FORMATS:
        raise ConfigError(f"plot: must end in one of {', '.join(_FORMATS)}, not {path.name!r}")
    if importlib.util.find_spec("matplotlib") is None:
        raise CommandError("can't draw a plot: matplotlib is not installed")
    check_writable(path)


def _show_solved(out: Console, goal: _Goal, solved: Solved) -> None:
    name = goal.solve.value
    value, beyond = getattr(solved.plan, name), getattr(solved.beyond, name)
    what = "the least sigma" if goal.solve is Solve.SIGMA else "the most queries"
    out.print(
        f"[bold]{what} for epsilon {goal.epsilon:g}[/bold] at {goal.level.value} level by the "
        f"{goal.accountant} account: [bold]{value}[/bold] (epsilon {solved.epsilon:.6g}; "
        f"{beyond} would cost {solved.epsilon_beyond:.6g})",
        soft_wrap=True,
    )


def _show(out: Console, plan: Plan, found: Mapping[Level, Epsilons]) -> None:
    head = Table(show_header=False, box=None, pad_edge=False)
    head.add_row("votes", _VOTES[plan.ballot] + _numbers(plan))
    head.add_row("labels", f"{plan.queries} queries, delta {plan.delta:g}")
    head.add_row("noise", _noise(plan))
    if plan.roster is not None:
        roster = plan.roster
        head.add_row(
            "agents",
            f"{roster.agents}; a round completes with {roster.quorum} or more; "
            f"{roster.collusion or 'none'} assumed to pool their noise",
        )
    out.print(head)
    for why in plan.objections:
        out.print(f"[yellow]warning[/yellow]: the service would refuse this: {why}")
    table = Table("", "agent level", "instance level", "what it is")
    table.add_row("D2^2 of a query", *(_moved(plan, level) for level in Level), "in votes^2")
    for accountant in Accountant:
        figures = (_epsilon(getattr(found[level], accountant)) for level in Level)
        table.add_row(f"epsilon, {accountant}", *figures, _MEANINGS[accountant])
    out.print(table)
    for how, levels in _hows(found).items():
        told = _HOWS.get(how, f"none: {how}")
        out.print(f"exact at {' and '.join(levels)} level: {told}", markup=False)


def _numbers(plan: Plan) -> str:
    if plan.ks:
        return f", k {', '.join(str(k) for k in plan.ks)}"
    return "" if plan.tau is None else f", tau {plan.tau}"


def _noise(plan: Plan) -> str:
    if plan.noise is Noise.GAUSSIAN:
        return f"ideal Gaussian, sigma {plan.sigma:g} votes, nothing rounded"
    return f"Skellam, sigma {plan.sigma:g} votes, a vote being {plan.unit} units"


def _moved(plan: Plan, level: Level) -> str:
    text = f"{float(plan.moved(level)):.4g}"
    if level is Level.INSTANCE and plan.ballot is BallotKind.KNN_FREQUENCY:
        text += f" (the paper's 2/k: {2 / min(plan.ks):.4g})"
    return text


def _epsilon(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.5f}" if value < 1000 else f"{value:.6g}"


def _hows(found: Mapping[Level, Epsilons]) -> dict[str, list[str]]:
    hows: dict[str, list[str]] = {}
    for level, epsilons in found.items():
        hows.setdefault(epsilons.how, []).append(level.value)
    return hows


def _show_coalitions(out: Console, roster: Roster, coalitions: Sequence[Coalition]) -> None:
    table = Table(
        "agents who pool",
        "sigma left",
        "agent: tight",
        "exact",
        "instance: tight",
        "exact",
        title="what a coalition leaves of a round with just the quorum",
        title_justify="left",
    )
    for row in coalitions:
        who = f"{row.percent} %: {row.agents}"
        if row.losses is None:
            table.add_row(who, "0", *["everything"] * 4)
            continue
        figures = [
            _epsilon(value)
            for level in Level
            for value in (row.losses[level].tight, row.losses[level].exact)
        ]
        table.add_row(who, f"{row.sigma:.4g}", *figures)
    out.print(table)
    out.print(
        f"the noise of {roster.collusion} is made up for by the others; what more agents know is "
        "missing"
        if roster.collusion
        else "noise that a coalition knows is missing: --collusion makes the others add more"
    )


def _show_assumptions(out: Console, plan: Plan) -> None:
    out.print("assumed:")
    for line in (
        f"(epsilon, delta) at delta {plan.delta:g}, whatever the votes are",
        "agent level: an agent is added or removed, its ballot being zero then, while its noise "
        "stays: a fixed noise roster",
        "instance level: one record of one agent is added, removed or replaced"
        + (", and the feature map does not depend on it" if plan.ks else ""),
        "sigma is noise that nobody who attacks knows: each agent adds its part of sigma^2 / "
        "(quorum - collusion), so agents above the quorum may drop out",
    ):
        out.print(f"- {line}")


def _figures(
    plan: Plan,
    found: Mapping[Level, Epsilons],
    coalitions: Sequence[Coalition],
    solved: Solved | None,
) -> dict[str, Any]:
    """All of it under keys that stay."""
    return {
        "plan": {
            "ballot": plan.ballot.value,
            "noise": plan.noise.value,
            "sigma": plan.sigma,
            "queries": plan.queries,
            "delta": plan.delta,
            "k": list(plan.ks),
            "tau": plan.tau,
            "agents": plan.roster.agents if plan.roster else None,
            "quorum": plan.roster.quorum if plan.roster else None,
            "collusion": plan.roster.collusion if plan.roster else None,
            "units_per_vote": plan.unit,
            "l2_squared_votes": {level.value: float(plan.moved(level)) for level in Level},
            "objections": plan.objections,
        },
        **_by_level(found),
        "coalitions": [
            {
                "percent": row.percent,
                "agents": row.agents,
                "sigma": row.sigma,
                **(
                    dict.fromkeys(_LEVELS, _NOTHING)
                    if row.losses is None
                    else _by_level(row.losses)
                ),
            }
            for row in coalitions
        ],
        "solved": None
        if solved is None
        else {
            "epsilon": solved.epsilon,
            "sigma": solved.plan.sigma,
            "queries": solved.plan.queries,
            "beyond": {
                "epsilon": solved.epsilon_beyond,
                "sigma": solved.beyond.sigma,
                "queries": solved.beyond.queries,
            },
        },
    }


def _by_level(found: Mapping[Level, Epsilons]) -> dict[str, Any]:
    return {level.value: _accounts(epsilons) for level, epsilons in found.items()}


def _accounts(found: Epsilons) -> dict[str, Any]:
    return {
        **{accountant.value: _finite(getattr(found, accountant)) for accountant in Accountant},
        "how": found.how,
    }


def _finite(value: float | None) -> float | None:
    """JSON has no infinity."""
    return value if value is not None and math.isfinite(value) else None


def _draw(plan: Plan, path: Path) -> None:
    """Epsilon against the number of queries, up to twice the plan's."""
    from matplotlib.figure import Figure

    most = min(2 * plan.queries, MAX_QUERIES)
    numbers = sorted({math.ceil(most * (step / _POINTS) ** 2) for step in range(1, _POINTS + 1)})
    lines = [losses(replace(plan, queries=number)) for number in numbers]
    figure = Figure(figsize=_INCHES, layout="constrained")
    figure.suptitle(f"{_VOTES[plan.ballot]}{_numbers(plan)}; sigma {plan.sigma:g}")
    for axes, level in zip(figure.subplots(1, len(Level)), Level, strict=True):
        _draw_level(axes, numbers, [line[level] for line in lines])
        axes.axvline(plan.queries, color="grey", linestyle=":", label="the plan")
        axes.set_title(f"{level.value} level, delta {plan.delta:g}")
        axes.legend()
    figure.savefig(path, dpi=_DOTS_PER_INCH)


def _draw_level(axes: Axes, numbers: Sequence[int], found: Sequence[Epsilons]) -> None:
    for accountant in Accountant:
        points = [
            (number, value)
            for number, epsilons in zip(numbers, found, strict=True)
            if (value := getattr(epsilons, accountant)) is not None
        ]
        if points:
            axes.plot(*zip(*points, strict=True), label=accountant.value)
    axes.set_xlabel("queries")
    axes.set_ylabel("epsilon")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)


async def _paper(settings: PaperSettings) -> None:
    check_writable(settings.json_path)
    out = console(settings.json_path)
    checked = [paper_table.check(row) for row in paper_table.VOTES]
    for section in paper_table.SECTIONS:
        _show_section(out, section, [found for found in checked if found.row.section is section])
    _show_others(out)
    derived = sum(found.derived for found in checked)
    total = len(checked) + sum(len(row.reported) for row in paper_table.OTHERS)
    out.print(
        f"{derived} of {total} reported numbers can be derived from the paper's own formula at "
        "the settings it states. A match with another reading may be chance: several are tried."
    )
    figures = {
        "votes": [_checked(found) for found in checked],
        "others": [_other(row) for row in paper_table.OTHERS],
    }
    write_json(settings.json_path, figures)


def _show_section(
    out: Console, section: paper_table.Section, rows: Sequence[paper_table.Checked]
) -> None:
    delta = (
        f"delta not stated, {paper_table.ASSUMED_DELTA:g} assumed"
        if section.delta is None
        else f"delta {section.delta:g}"
    )
    table = Table(
        "vote",
        "sigma",
        "Q",
        "paper",
        "its formula",
        "simple",
        "tight",
        "exact",
        title=f"{section.name}: {section.about}, {delta}",
        title_justify="left",
    )
    for found in rows:
        row, ours = found.row, found.ours
        figures = (None,) * 3 if ours is None else (ours.simple, ours.tight, ours.exact)
        table.add_row(
            row.name,
            "?" if row.sigma is None else f"{row.sigma:g}",
            str(row.queries),
            f"{row.reported:.1f}",
            *(("-" if value is None else f"{value:.3g}") for value in (found.stated, *figures)),
        )
    out.print(table)
    for found in rows:
        out.print(f"- {found.row.name}: {found.verdict}{_claim(found.holds)}")


def _claim(holds: bool | None) -> str:
    if holds is None:
        return ""
    if holds:
        return "; the claim is true all the same, the settings cost less"
    return "; the claim is FALSE, the settings cost more"


def _show_others(out: Console) -> None:
    table = Table(
        "row", "paper", "", title="data-dependent bounds, and baselines", title_justify="left"
    )
    for row in paper_table.OTHERS:
        reported = ", ".join(f"{value:.1f}" for value in row.reported)
        table.add_row(f"{row.section.name}: {row.name}", reported, row.verdict)
    out.print(table)


def _checked(found: paper_table.Checked) -> dict[str, Any]:
    row = found.row
    return {
        "table": row.section.name,
        "row": row.name,
        "level": row.section.level.value,
        "sigma": row.sigma,
        "queries": row.queries,
        "k": min(row.ks, default=None),
        "delta": row.delta,
        "delta_stated": row.section.delta is not None,
        "paper": row.reported,
        "formula": found.stated,
        "ours": None if found.ours is None else _accounts(found.ours),
        "derived": found.derived,
        "match": found.match,
        "holds": found.holds,
        "verdict": found.verdict,
    }


def _other(row: paper_table.OtherRow) -> dict[str, Any]:
    return {
        "table": row.section.name,
        "row": row.name,
        "level": row.section.level.value,
        "paper": list(row.reported),
        "derived": False,
        "verdict": row.verdict,
    }
