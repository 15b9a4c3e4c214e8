"""What `mpc-vote account` shows of a plan: its cost, what coalitions leave, what is assumed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table

from mpc_vote.cli.account.options import Goal, Solve
from mpc_vote.cli.account.words import votes
from mpc_vote.cli.against import AGAINST
from mpc_vote.cli.common import counted
from mpc_vote.privacy.charging import Against
from mpc_vote.privacy.mechanisms import CoinVote, Level
from mpc_vote.privacy.rounding import round_up
from mpc_vote.voting.ballots import KNN_FREQUENCY
from mpc_vote.voting.costing import (
    Accountant,
    Coalition,
    CostPlan,
    Losses,
    Noise,
    Roster,
    Solved,
)

_MEANINGS = {
    Accountant.SIMPLE: "Renyi bound, converted as most papers do: valid, loosest",
    Accountant.TIGHT: "Renyi bound, best conversion",
    Accountant.TOTALS: "what budgets are charged, against whoever may see noisy totals",
    Accountant.LABELS: "the same against those who see labels only",
    Accountant.EXACT: "all that the noisy totals lose, asked at once",
}
_HOWS = {
    "exact": "the formula for Gaussian noise",
    "PLD": "by privacy loss distributions, on a fine grid, rounded up",
}


def show_solved(out: Console, goal: Goal, solved: Solved) -> None:
    """What was looked for, and what the next number would cost."""
    name = goal.solve.value
    value, beyond = getattr(solved.plan, name), getattr(solved.beyond, name)
    what = "the least sigma" if goal.solve is Solve.SIGMA else "the most queries"
    out.print(
        f"[bold]{what} for epsilon {goal.epsilon:g}[/bold] at {goal.level.value} level by the "
        f"{goal.accountant} account: [bold]{value}[/bold] (epsilon {round_up(solved.epsilon)}; "
        f"{beyond} would cost {round_up(solved.epsilon_beyond)})",
        soft_wrap=True,
    )


def show(out: Console, plan: CostPlan, found: Mapping[Level, Losses]) -> None:
    """The plan and its cost."""
    head = Table(show_header=False, box=None, pad_edge=False)
    head.add_row("votes", votes(plan))
    head.add_row("labels", f"{counted(plan.queries, 'query', 'queries')}, delta {plan.delta:g}")
    head.add_row("noise", _noise(plan))
    if plan.roster is not None:
        head.add_row("agents", _agents(plan))
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


def _noise(plan: CostPlan) -> str:
    sigma = f"sigma {counted(plan.sigma, 'vote')}"
    if plan.noise is Noise.GAUSSIAN:
        return f"ideal Gaussian, {sigma}, nothing rounded"
    if isinstance(plan.mechanism, CoinVote):
        law = plan.mechanism.law
        levels = ", ".join(f"{number} x {weight}" for weight, number in law.levels)
        return f"{law.coins} coins of the committee, {sigma}, a vote being {plan.unit}: {levels}"
    return f"Skellam, {sigma}, a vote being {plan.unit} units"


def _agents(plan: CostPlan) -> str:
    roster = plan.roster
    assert roster is not None
    told = f"{roster.agents}; a round completes with {roster.quorum} or more; "
    if plan.noise is Noise.COINS:
        return f"{told}none of them knows of the noise"
    their = "its" if roster.collusion == 1 else "their"
    return f"{told}{roster.collusion or 'none'} assumed to pool {their} noise"


def _moved(plan: CostPlan, level: Level) -> str:
    text = f"{float(plan.moved(level)):.4g}"
    if level is Level.INSTANCE and plan.ballot is KNN_FREQUENCY:
        text += f" (the paper's 2/k: {2 / min(plan.ks):.4g})"
    return text


def _epsilon(value: float | None) -> str:
    return "-" if value is None else round_up(value)


def _hows(found: Mapping[Level, Losses]) -> dict[str, list[str]]:
    hows: dict[str, list[str]] = {}
    for level, epsilons in found.items():
        hows.setdefault(epsilons.how, []).append(level.value)
    return hows


def show_coalitions(out: Console, roster: Roster, coalitions: Sequence[Coalition]) -> None:
    """What agents who pool their noise leave."""
    table = Table(
        "agents who pool",
        "sigma left",
        "agent: totals",
        "exact",
        "instance: totals",
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
            for value in (row.losses[level].totals, row.losses[level].exact)
        ]
        table.add_row(who, f"{row.sigma:.4g}", *figures)
    out.print(table)
    out.print(
        f"the noise of {roster.collusion} is made up for by the others; what more agents know is "
        "missing"
        if roster.collusion
        else "noise that a coalition knows is missing: --collusion makes the others add more"
    )


def show_assumptions(out: Console, plan: CostPlan) -> None:
    """What the numbers rest on."""
    out.print("assumed:")
    for line in (
        f"(epsilon, delta) at delta {plan.delta:g}, whatever the votes are",
        f"totals: {AGAINST[Against.TOTALS]}",
        f"labels: {AGAINST[Against.LABELS]}",
        "agent level: an agent's ballot is left out of the sum, while the noise of the total stays",
        "instance level: one record of one agent is added, removed or replaced"
        + (", and the feature map does not depend on it" if plan.ks else ""),
        _known(plan),
    ):
        out.print(f"- {line}")


def _known(plan: CostPlan) -> str:
    if plan.noise is Noise.COINS:
        return (
            "nobody who attacks knows of the noise: one party at least is honest, and the dealer "
            "is; with a dealer that shows what it deals to a party nothing is guaranteed"
        )
    return (
        "sigma is noise that nobody who attacks knows: each agent adds noise of variance sigma^2 / "
        "(quorum - collusion), so agents above the quorum may drop out"
    )
