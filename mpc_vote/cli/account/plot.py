"""Draws epsilon against the number of queries; matplotlib is needed for that alone."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from mpc_vote.app.config import ConfigError
from mpc_vote.app.process import CommandError
from mpc_vote.cli.account.words import votes
from mpc_vote.cli.common import check_writable
from mpc_vote.privacy.mechanisms import Level
from mpc_vote.voting.costing import MAX_PLANNED_QUERIES, Accountant, CostPlan, Losses, losses

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FORMATS = (".pdf", ".png", ".svg")

_POINTS = 12
_INCHES = (10.0, 4.2)
_DOTS_PER_INCH = 150


def check(path: Path | None) -> None:
    """Refuses what can't be drawn to, before anything is computed."""
    if path is None:
        return
    if path.suffix not in FORMATS:
        raise ConfigError(f"--plot: must end in one of {', '.join(FORMATS)}, not {path.name!r}")
    if importlib.util.find_spec("matplotlib") is None:
        raise CommandError("can't draw a plot: matplotlib is not installed")
    check_writable(path)


def draw(plan: CostPlan, path: Path) -> None:
    """Epsilon against the number of queries, up to twice the plan's."""
    from matplotlib.figure import Figure

    most = min(2 * plan.queries, MAX_PLANNED_QUERIES)
    numbers = sorted({math.ceil(most * (step / _POINTS) ** 2) for step in range(1, _POINTS + 1)})
    lines = [losses(replace(plan, queries=number)) for number in numbers]
    figure = Figure(figsize=_INCHES, layout="constrained")
    figure.suptitle(f"{votes(plan)}; sigma {plan.sigma:g}")
    for axes, level in zip(figure.subplots(1, len(Level)), Level, strict=True):
        _draw_level(axes, numbers, [line[level] for line in lines])
        axes.axvline(plan.queries, color="grey", linestyle=":", label="the plan")
        axes.set_title(f"{level.value} level, delta {plan.delta:g}")
        axes.legend()
    figure.savefig(path, dpi=_DOTS_PER_INCH)


def _draw_level(axes: Axes, numbers: Sequence[int], found: Sequence[Losses]) -> None:
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
