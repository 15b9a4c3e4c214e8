"""Pictures of the figures: time and traffic against one dimension, all engines on the same axes.

One is drawn wherever at least two values of a dimension were measured with all others equal. Points
are medians, bars reach from quartile to quartile. The table engine is one line, whatever groups the
planner chose on its way.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mpc_vote.testbed.bench.measure import BenchRow

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MISSING = "no plots: matplotlib is not installed; the figures are complete without them"

_FORMATS = ("png", "svg")
_DOTS_PER_INCH = 150
_PANEL_INCHES = (6.0, 4.2)


@dataclass(frozen=True)
class _Dimension:
    """What is varied: a key of `BenchRow`, the key to draw it by, its label and its scale."""

    key: str
    drawn: str
    label: str
    scale: str


_DIMENSIONS = (
    _Dimension("rtt_ms", "rtt_measured_ms", "round trip between parties in ms, measured", "linear"),
    _Dimension("queries", "queries", "rows", "log"),
    _Dimension("classes", "classes", "classes", "log"),
    _Dimension("parties", "parties", "parties", "linear"),
)
# How the dimensions that stay the same are written.
_UNITS = {
    "parties": "{} parties",
    "queries": "{} rows",
    "classes": "{} classes",
    "rtt_ms": "rtt {:g} ms",
    "rate_mbit": "{:g} Mbit/s",
}


@dataclass(frozen=True)
class _Sweep:
    """Rows that differ in one dimension and in the engine."""

    dimension: _Dimension
    fixed: tuple[str, ...]
    rows: Sequence[BenchRow]

    @property
    def series(self) -> dict[str, list[BenchRow]]:
        """Rows by engine, in the order of the dimension."""
        lines: dict[str, list[BenchRow]] = {}
        for row in sorted(self.rows, key=lambda row: float(getattr(row, self.dimension.key))):
            lines.setdefault(f"crypten {row.method}" if row.crypten else row.engine, []).append(row)
        return lines


def available() -> bool:
    """Whether plots can be drawn."""
    return importlib.util.find_spec("matplotlib") is not None


def draw(rows: Sequence[BenchRow], folder: Path) -> list[Path]:
    """Draws what there is to see into `folder`; returns the files."""
    from matplotlib.figure import Figure

    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for dimension in _DIMENSIONS:
        for sweep in _sweeps(rows, dimension):
            # Traffic does not depend on the distance.
            panels = 1 if dimension.key == "rtt_ms" else 2
            width, height = _PANEL_INCHES
            figure = Figure(figsize=(panels * width, height), layout="constrained")
            figure.suptitle(", ".join(sweep.fixed))
            axes = figure.subplots(1, panels, squeeze=False)[0]
            _draw_time(axes[0], sweep)
            if panels == 2:
                _draw_traffic(axes[1], sweep)
            stem = "-".join(["by", dimension.key.removesuffix("_ms"), *sweep.fixed])
            for kind in _FORMATS:
                path = folder / f"{stem.replace(' ', '-').replace('/', '-').lower()}.{kind}"
                figure.savefig(path, dpi=_DOTS_PER_INCH)
                files.append(path)
    return files


def _sweeps(rows: Sequence[BenchRow], dimension: _Dimension) -> list[_Sweep]:
    """All sets of rows along a dimension with at least two of its values."""
    fixed = [key for key in _UNITS if key != dimension.key]
    groups: dict[tuple[object, ...], list[BenchRow]] = {}
    for row in rows:
        groups.setdefault(tuple(getattr(row, key) for key in fixed), []).append(row)
    if dimension.key == "rtt_ms":
        # Loopback has no rate, and is the beginning of the line of every rate.
        for key, group in groups.items():
            if key[-1] is not None:
                group += [row for row in groups.get((*key[:-1], None), []) if row.rtt_ms == 0]
    return [
        _Sweep(dimension, tuple(_written(fixed, key)), group)
        for key, group in groups.items()
        if len({getattr(row, dimension.key) for row in group}) > 1
    ]


def _written(fixed: Iterable[str], values: Iterable[object]) -> list[str]:
    return [
        _UNITS[key].format(value)
        for key, value in zip(fixed, values, strict=True)
        if value is not None
    ]


def _draw_time(axes: Axes, sweep: _Sweep) -> None:
    for name, line in sweep.series.items():
        medians = [row.seconds_median for row in line]
        bars = [
            [row.seconds_median - row.seconds_quartiles[0] for row in line],
            [row.seconds_quartiles[1] - row.seconds_median for row in line],
        ]
        axes.errorbar(_positions(sweep, line), medians, bars, marker="o", capsize=3, label=name)
    _finish(axes, sweep, "seconds, median and quartiles")


def _draw_traffic(axes: Axes, sweep: _Sweep) -> None:
    for name, line in sweep.series.items():
        sent = [row.online_bytes_per_party for row in line]
        axes.plot(_positions(sweep, line), sent, marker="o", label=name)
    _finish(axes, sweep, "bytes that one party sends online")


def _positions(sweep: _Sweep, line: Sequence[BenchRow]) -> list[float]:
    return [getattr(row, sweep.dimension.drawn) for row in line]


def _finish(axes: Axes, sweep: _Sweep, label: str) -> None:
    axes.set_xscale(sweep.dimension.scale)
    axes.set_yscale("log")
    axes.set_xlabel(sweep.dimension.label)
    axes.set_ylabel(label)
    if sweep.dimension.key != "rtt_ms":
        values = sorted({getattr(row, sweep.dimension.key) for row in sweep.rows})
        axes.set_xticks(values, [f"{value:,}" for value in values])
        axes.set_xticks([], minor=True)
    axes.grid(alpha=0.3)
    axes.legend()
