"""`mpc-vote account`: what a plan costs before it is run, and the noise or queries for a budget.

`mpc-vote account paper` compares the published epsilons with what their settings cost.
"""

from __future__ import annotations

from collections.abc import Sequence

from mpc_vote.app import process
from mpc_vote.app.process import CommandError
from mpc_vote.cli.account import figures, paper, plot, tables
from mpc_vote.cli.account.options import (
    AccountSettings,
    Goal,
    PaperSettings,
    Solve,
    goal_of,
    plan_of,
    spelled_out,
)
from mpc_vote.cli.common import check_writable, console, dispatch, write_json
from mpc_vote.voting.costing import (
    CostPlan,
    Noise,
    PlanError,
    Solved,
    coalition,
    losses,
    solve_queries,
    solve_sigma,
)

COALITIONS = (0, 10, 50)
"""Parts of all agents, in percent."""


def command(arguments: Sequence[str]) -> int:
    """`mpc-vote account`."""
    return dispatch("account", spelled_out(arguments), _account, {"paper": _paper})


def _account(arguments: Sequence[str]) -> int:
    return process.run(AccountSettings, arguments, _main)


def _paper(arguments: Sequence[str]) -> int:
    return process.run(PaperSettings, arguments, paper.main)


async def _main(settings: AccountSettings) -> None:
    goal = goal_of(settings)
    plan = plan_of(settings)
    plot.check(settings.plot)
    check_writable(settings.json_path)
    out = console(settings.json_path)
    solved: Solved | None = None
    if goal is not None:
        solved = _solve(plan, goal)
        plan = solved.plan
        tables.show_solved(out, goal, solved)
    found = losses(plan)
    roster = None if plan.noise is Noise.COINS else plan.roster
    coalitions = [] if roster is None else [coalition(plan, roster, part) for part in COALITIONS]
    tables.show(out, plan, found)
    if roster is not None:
        tables.show_coalitions(out, roster, coalitions)
    tables.show_assumptions(out, plan)
    if settings.plot is not None:
        plot.draw(plan, settings.plot)
        out.print(f"drawn to {settings.plot}", soft_wrap=True)
    write_json(settings.json_path, figures.document(plan, found, coalitions, solved))


def _solve(plan: CostPlan, goal: Goal) -> Solved:
    solver = solve_sigma if goal.solve is Solve.SIGMA else solve_queries
    try:
        return solver(plan, goal.epsilon, goal.level, goal.accountant)
    except PlanError as error:
        raise CommandError(str(error)) from error
