"""Checks the planner: is there a grouping that would have been much quicker than its choice?

For each shape and network the planner's choice, made by the measured round trip, takes turns with
other groupings, from all classes at once to many small groups. Its ratio to the quickest is what
the choice costs: 1 is perfect, and what the noise alone does is about the width of the quartiles.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rich import box
from rich.table import Table

from mpc_vote.argmax.table.engine import TableArgmax
from mpc_vote.argmax.table.level import MAX_GROUP
from mpc_vote.argmax.table.marks import MAX_MARKED
from mpc_vote.testbed.bench.cases import BenchCase
from mpc_vote.testbed.bench.committee import BenchCommittee
from mpc_vote.testbed.bench.measure import (
    BenchRow,
    Tell,
    interleaved,
    oversized,
    planned,
    summarise,
)
from mpc_vote.testbed.bench.report import seconds

_FIRST_SIZES = (2, 3, 4, 5, 8, 10, 16, 32)
_MOST_LEVELS = 4
_MANY = 2_000_000
_TIMES = 4


@dataclass(frozen=True)
class GroupingChoice:
    """The planner's choice on one shape and network, among all groupings that were measured."""

    pick: BenchRow
    rows: Sequence[BenchRow]

    @property
    def best(self) -> BenchRow:
        """The quickest."""
        return min(self.rows, key=lambda row: row.seconds_median)

    @property
    def ratio(self) -> float:
        """Times as long as the quickest that the choice takes."""
        return self.pick.seconds_median / self.best.seconds_median

    def summary(self) -> dict[str, Any]:
        """For JSON; the figures of all groupings are elsewhere."""
        pick = self.pick
        return {
            "parties": pick.parties,
            "queries": pick.queries,
            "classes": pick.classes,
            "rtt_ms": pick.rtt_ms,
            "rtt_measured_ms": pick.rtt_measured_ms,
            "rate_mbit": pick.rate_mbit,
            "pick": pick.method,
            "best": self.best.method,
            "ratio": self.ratio,
        }


@dataclass
class GroupingCheck:
    """All choices, what was left out, and which labels are wrong."""

    choices: list[GroupingChoice]
    notes: list[str]
    mistakes: list[str]


def alternatives(classes: int) -> list[tuple[int, ...]]:
    """Groupings of so many classes: even ones of up to four levels, and small groups, then all."""
    even = [
        _complete(classes, [math.ceil(classes ** (1 / levels))] * (levels - 1))
        for levels in range(1, _MOST_LEVELS + 1)
    ]
    small = [_complete(classes, [size]) for size in _FIRST_SIZES if size < classes]
    fitting = [sizes for sizes in even + small if all(2 <= size <= MAX_GROUP for size in sizes)]
    # One level of all classes is written without groups.
    return list(dict.fromkeys(sizes if len(sizes) > 1 else () for sizes in fitting))


def _complete(classes: int, sizes: Sequence[int]) -> tuple[int, ...]:
    """The sizes, and one more level for all that are left."""
    left = classes
    for size in sizes:
        left = math.ceil(left / size)
    return (*sizes, left)


async def check(
    committee: BenchCommittee, cases: Iterable[BenchCase], repeats: int, tell: Tell
) -> GroupingCheck:
    """Measures the planner's choice for each case against the alternatives."""
    checked = GroupingCheck([], [], [])
    for case in cases:
        committee.connect(case.condition)
        (pick,) = await planned(committee, [case])
        others = [replace(case, groups=groups) for groups in alternatives(case.classes)]
        others += [replace(case, groups=(), two_rounds=True)] if case.classes <= MAX_MARKED else []
        candidates = [other for other in others if not hopeless(other, pick)]
        candidates = list(dict.fromkeys([pick, *candidates]))
        too_large = await oversized(committee, candidates)
        checked.notes += too_large.values()
        if pick in too_large:
            continue
        fitting = [one for one in candidates if one not in too_large]
        measured = await interleaved(committee, fitting, repeats, tell)
        rows = [summarise(one) for one in measured]
        checked.choices.append(GroupingChoice(rows[0], rows))
        for one in measured:
            checked.mistakes += one.mistakes
    return checked


def hopeless(other: BenchCase, pick: BenchCase) -> bool:
    """Whether a grouping has so many comparisons that it can't win, and would only take time."""
    comparisons = _comparisons(other)
    return comparisons > _MANY and comparisons > _TIMES * _comparisons(pick)


def _comparisons(case: BenchCase) -> int:
    return case.queries * TableArgmax(case.bits, case.groups or ()).pairs(case.classes)


def table(choices: Iterable[GroupingChoice]) -> Table:
    """The choices for people."""
    shown = Table(title="The planner's choices", title_justify="left", box=box.SIMPLE, padding=0)
    headings = "P rows classes rtt measured pick time best time ratio"
    for heading in headings.split():
        shown.add_column(heading, justify="right", no_wrap=True)
    for choice in choices:
        pick, best = choice.pick, choice.best
        shown.add_row(
            str(pick.parties),
            str(pick.queries),
            str(pick.classes),
            f"{pick.rtt_ms:g} ms",
            f"{pick.rtt_measured_ms:.1f} ms",
            pick.method,
            seconds(pick.seconds_median),
            best.method,
            seconds(best.seconds_median),
            f"{choice.ratio:.2f}",
        )
    return shown
