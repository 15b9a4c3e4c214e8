"""Pictures of an experiment: accuracy against epsilon, or against what an experiment varies.

They are drawn from the figures as they are written, so a picture can be drawn again without running
anything.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mpc_vote.simulation.experiment import Arm, Experiment

MISSING = "no plot: matplotlib is not installed; the figures are complete without it"

_WIDTH = 7.0  # inches, of a page
_PANEL_HEIGHT, _ROW_HEIGHT, _LEGEND_HEIGHT = 2.9, 0.3, 0.26
_COLUMNS = 2
_MARKERS = "os^Dvp*h"
_MARGIN = 1.2


@dataclass(frozen=True)
class PlotPoint:
    """One arm in a picture; `x` is None for a method without privacy, drawn as a level line."""

    line: str
    panel: str
    x: float | None
    mean: float
    spread: float
    paper: float | None = None
    paper_x: float | None = None


def can_draw() -> bool:
    """Whether pictures can be drawn."""
    return importlib.util.find_spec("matplotlib") is not None


def draw(experiment: Experiment, figures: Mapping[str, Any], path: Path) -> None:
    """A picture of what `report.document` wrote."""
    points = plot_points(experiment, figures)
    if points:
        _draw_lines(points, experiment.axis or _epsilon_axis(experiment), path)
    else:
        _draw_rows(figures["arms"], path)


def plot_points(experiment: Experiment, figures: Mapping[str, Any]) -> list[PlotPoint]:
    """What of the figures is in the picture, in the order of the arms."""
    arms = {arm.name: arm for arm in experiment.arms}
    found = []
    for one in figures["arms"]:
        arm = arms.get(one["name"])
        if arm is not None and arm.line:
            found.append(_point(experiment, arm, one))
    return found


def _point(experiment: Experiment, arm: Arm, figures: Mapping[str, Any]) -> PlotPoint:
    accuracy, paper = figures["accuracy"], arm.paper
    if experiment.axis:
        x = arm.value if arm.value is not None else sum(figures["figures"][n] for n in arm.counted)
    else:
        x = _epsilon(figures["epsilon"][experiment.level.value])
    return PlotPoint(
        arm.line,
        arm.panel,
        x,
        100 * accuracy["mean"],
        100 * accuracy["std"],
        None if paper is None else paper.accuracy,
        None if paper is None else paper.epsilon,
    )


def _epsilon(found: Mapping[str, Any] | None) -> float | None:
    if found is None:
        return None
    exact: float | None = found["exact"]
    tight: float = found["tight"]
    return tight if exact is None else exact


def _epsilon_axis(experiment: Experiment) -> str:
    return f"epsilon, {experiment.level.value} level, at delta {experiment.delta:g}"


def _draw_lines(points: Sequence[PlotPoint], axis: str, path: Path) -> None:
    """A panel for each task, a line for each method with its spread, the paper's points as
    crosses."""
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    panels = list(dict.fromkeys(point.panel for point in points))
    lines = list(dict.fromkeys(point.line for point in points))
    columns = min(_COLUMNS, len(panels))
    rows = math.ceil(len(panels) / columns)
    in_legend = len(lines) + any(point.paper is not None for point in points)
    legend = _LEGEND_HEIGHT * math.ceil(in_legend / 2) + 0.2
    height = rows * (_PANEL_HEIGHT if columns > 1 else 3.4) + legend
    figure = Figure(figsize=(_WIDTH, height), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False).flatten()
    looks = {name: (f"C{n % 10}", _MARKERS[n % len(_MARKERS)]) for n, name in enumerate(lines)}
    for axes, panel in zip(grid, panels, strict=False):
        _draw_panel(axes, [point for point in points if point.panel == panel], looks)
        axes.set_title(panel, fontsize="medium")
        axes.set_xlabel(axis, fontsize="small")
    for axes in grid[len(panels) :]:
        axes.set_visible(False)
    for axes in grid[::columns]:
        axes.set_ylabel("accuracy in percent", fontsize="small")
    flat = {name: all(p.x is None for p in points if p.line == name) for name in lines}
    handles = [
        Line2D([], [], color=color, marker="" if flat[name] else marker,
               linestyle="--" if flat[name] else "-", label=name)
        for name, (color, marker) in looks.items()
    ]  # fmt: skip
    if any(point.paper is not None for point in points):
        handles.append(
            Line2D([], [], color="grey", marker="x", linestyle="", label="the paper, as it claims")
        )
    figure.legend(handles=handles, loc="outside lower center", ncols=2, fontsize="small")
    figure.savefig(path)


def _draw_panel(axes: Any, points: Sequence[PlotPoint], looks: Mapping[str, Any]) -> None:
    """One task's methods on one pair of axes."""
    placed = sorted({point.x for point in points if point.x is not None})
    for name, (color, marker) in looks.items():
        own = [point for point in points if point.line == name]
        there = sorted((point.x, point) for point in own if point.x is not None)
        if there:
            axes.errorbar(
                [x for x, _ in there],
                [point.mean for _, point in there],
                yerr=_spreads([point for _, point in there]),
                color=color,
                marker=marker,
                markersize=4,
                capsize=2,
                linewidth=1.2,
            )
        for point in own:
            if point.x is None:
                axes.axhline(point.mean, color=color, linestyle="--", linewidth=1)
            if point.paper is not None and (point.paper_x is not None or point.x is None):
                at = point.paper_x if point.paper_x is not None else placed[-1]
                axes.plot([at], [point.paper], color=color, marker="x", linestyle="")
    _mark_axis(axes, [*placed, *(p.paper_x for p in points if p.paper_x is not None)])
    axes.tick_params(labelsize="small")
    low, high = axes.get_ylim()
    axes.set_ylim(low, min(high, 100.5))
    axes.grid(alpha=0.3)


def _mark_axis(axes: Any, values: Sequence[float]) -> None:
    """A logarithmic axis with room on both sides, and few round labels."""
    from matplotlib.ticker import EngFormatter, NullFormatter

    low, high = min(values) / _MARGIN, max(values) * _MARGIN
    axes.set_xscale("log")
    axes.set_xlim(low, high)
    steps = [10.0**power * step for power in range(-3, 12) for step in (1, 2, 3, 5)]
    axes.set_xticks([step for step in steps if low <= step <= high])
    large = EngFormatter(sep="")
    axes.xaxis.set_major_formatter(lambda x, _: large(x) if x >= 1000 else f"{x:g}")
    axes.xaxis.set_minor_formatter(NullFormatter())


def _spreads(points: Sequence[PlotPoint]) -> list[list[float]]:
    """Down and up; nothing is more than 100 % right."""
    return [
        [point.spread for point in points],
        [min(point.spread, 100 - point.mean) for point in points],
    ]


def _draw_rows(arms: Sequence[Mapping[str, Any]], path: Path) -> None:
    """A row for each arm, for experiments whose arms are steps of one method."""
    import textwrap

    from matplotlib.figure import Figure

    names = [textwrap.fill(arm["name"], 44) for arm in arms]
    lines = sum(1 + name.count("\n") for name in names)
    figure = Figure(figsize=(_WIDTH, 0.9 + _ROW_HEIGHT * lines), layout="constrained")
    axes = figure.subplots()
    means = [100 * arm["accuracy"]["mean"] for arm in arms]
    spreads = [100 * arm["accuracy"]["std"] for arm in arms]
    up = [min(spread, 100 - mean) for mean, spread in zip(means, spreads, strict=True)]
    axes.errorbar(means, range(len(arms)), xerr=[spreads, up], fmt="o", markersize=4, capsize=2)
    axes.set_yticks(range(len(arms)), names, fontsize="small")
    axes.invert_yaxis()
    axes.set_xlim(right=min(axes.get_xlim()[1], 100.5))
    axes.set_xlabel("accuracy in percent", fontsize="small")
    axes.grid(alpha=0.3)
    figure.savefig(path)
