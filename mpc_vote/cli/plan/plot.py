"""Draws right labels against epsilon; matplotlib is needed for that alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mpc_vote.cli.plan.grid import Cell, Federation, cells
from mpc_vote.privacy.mechanisms import Level
from mpc_vote.voting.costing import PlanError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_POINTS = 96
_HEIGHT = 3.4
_PANEL = 2.9
_DOTS_PER_INCH = 150
_EPSILONS = (0.1, 16.0)
_RIVAL: dict[str, Any] = {"linestyle": "--", "linewidth": 0.8}
_GUESSES: dict[str, Any] = {"linestyle": ":", "linewidth": 1.0, "color": "grey"}
_TICKS = (0.125, 0.25, 0.5, 1, 2, 4, 8, 16)


def draw(
    federation: Federation,
    marked: Sequence[Cell],
    agreements: Sequence[float],
    level: Level,
    path: Path,
) -> None:
    """A panel for each agreement with a line for each number of queries; the plans are marked."""
    from matplotlib.figure import Figure

    size = (1.1 + _PANEL * len(agreements), _HEIGHT)
    figure = Figure(figsize=size, layout="constrained")
    panels = figure.subplots(1, len(agreements), sharey=True, squeeze=False)[0]
    numbers = dict.fromkeys(cell.queries for cell in marked)
    lines = {number: _line(federation, number, agreements, level) for number in numbers}
    for place, (axes, agreement) in enumerate(zip(panels, agreements, strict=True)):
        for colour, (number, line) in enumerate(lines.items()):
            points = [cell for cell in marked if cell.queries == number]
            _draw_line(axes, line, points, place, level, f"C{colour}", f"{number} queries")
        axes.axhline(100 * federation.poll(1.0).chance, label="guesses", **_GUESSES)
        axes.set_title(f"agreement {100 * agreement:g} %", fontsize=10)
        axes.set_xscale("log", base=2)
        axes.set_xlim(*_EPSILONS)
        axes.set_xticks(_TICKS, [f"{tick:g}".removeprefix("0") for tick in _TICKS])
        axes.set_xlabel(f"epsilon, {level.value} level, delta {federation.delta:g}")
        axes.grid(alpha=0.3)
    panels[0].set_ylim(0, 101)
    panels[0].set_ylabel("right labels, %")
    panels[-1].plot([], [], label="other votes on one rival", **_RIVAL, color="black")
    panels[-1].legend(loc="best", fontsize=8)
    figure.savefig(path, dpi=_DOTS_PER_INCH)


def _line(
    federation: Federation, queries: int, agreements: Sequence[float], level: Level
) -> list[Cell]:
    """From the noise of the least epsilon shown to that of the largest."""
    most, least = (_sigma(federation, queries, epsilon, level) for epsilon in _EPSILONS)
    sigmas = np.clip(np.geomspace(least, most, _POINTS), least, most)
    points = [(queries, float(sigma)) for sigma in sigmas]
    return cells(federation, points, agreements, (level,))


def _sigma(federation: Federation, queries: int, epsilon: float, level: Level) -> float:
    """The noise for an epsilon, or the nearest that there is."""
    try:
        return federation.sigma_for(queries, epsilon, level)
    except PlanError:
        least = federation.least_sigma
        enough = federation.epsilon(least, queries, level) <= epsilon
        return least if enough else federation.cost(least, queries).largest_sigma


def _draw_line(
    axes: Axes,
    line: Sequence[Cell],
    marked: Sequence[Cell],
    place: int,
    level: Level,
    colour: str,
    name: str,
) -> None:
    """The range as a band: its upper edge is where other votes are spread evenly."""
    epsilons = [cell.epsilons[level] for cell in line]
    low, high = (
        [100 * getattr(cell.forecasts[place], end) for cell in line] for end in ("low", "high")
    )
    axes.fill_between(epsilons, low, high, color=colour, alpha=0.12, linewidth=0)
    axes.plot(epsilons, high, color=colour, label=name, linewidth=1.6)
    axes.plot(epsilons, low, color=colour, **_RIVAL)
    axes.plot(
        [cell.epsilons[level] for cell in marked],
        [100 * cell.forecasts[place].high for cell in marked],
        color=colour,
        linestyle="",
        marker="o",
        markersize=4,
    )
