"""Pictures show each arm at its epsilon, or at what the experiment varies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mpc_vote.privacy.mechanisms import Level
from mpc_vote.simulation.experiment import Arm, Experiment, PaperFigure
from mpc_vote.simulation.plots import PlotPoint, draw, plot_points

pytest.importorskip("matplotlib")


def nothing(*_: Any) -> Any:
    raise AssertionError("a picture is drawn without running anything")


def experiment(*arms: Arm, axis: str = "") -> Experiment:
    return Experiment("toy", "Toy", nothing, nothing, arms, Level.AGENT, 1e-3, axis=axis)


def figures(name: str, epsilon: float | None, **further: float) -> dict[str, Any]:
    account = None if epsilon is None else {"exact": epsilon, "tight": 9.0, "simple": 9.9}
    return {
        "name": name,
        "accuracy": {"mean": 0.99, "std": 0.03, "seeds": [0.96, 1.0]},
        "epsilon": {"agent": account, "instance": None},
        "figures": further,
    }


def test_points_are_at_their_epsilon_with_the_papers_beside(tmp_path: Path) -> None:
    shown = experiment(
        Arm("votes", nothing, None, PaperFigure(95.0, 0.1, 4.3), line="AE-DPFL", panel="MNIST"),
        Arm("free", nothing, None, line="FedAvg", panel="MNIST"),
        Arm("aside", nothing, None),
    )
    written = {"arms": [figures("votes", 2.0), figures("free", None), figures("aside", 1.0)]}
    assert plot_points(shown, written) == [
        PlotPoint("AE-DPFL", "MNIST", 2.0, 99.0, 3.0, 95.0, 4.3),
        PlotPoint("FedAvg", "MNIST", None, 99.0, 3.0),
    ]
    draw(shown, written, tmp_path / "lines.svg")
    text = (tmp_path / "lines.svg").read_text()
    assert "AE-DPFL" in text and "the paper" in text and "aside" not in text


def test_points_are_at_what_the_experiment_varies() -> None:
    shown = experiment(
        Arm("sweep", nothing, None, line="one", value=50.0),
        Arm("bytes", nothing, None, line="two", counted=("sent", "received")),
        axis="amount",
    )
    written = {"arms": [figures("sweep", 2.0), figures("bytes", 2.0, sent=3.0, received=4.0)]}
    assert [point.x for point in plot_points(shown, written)] == [50.0, 7.0]


def test_no_bar_passes_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from matplotlib.axes import Axes

    bars: list[Any] = []

    def errorbar(self: Axes, x: Any, y: Any, **options: Any) -> None:
        bars.append((x, y, options.get("yerr"), options.get("xerr")))

    monkeypatch.setattr(Axes, "errorbar", errorbar)
    lines = experiment(Arm("votes", nothing, None, line="AE-DPFL"))
    rows = experiment(Arm("votes", nothing, None))
    for one in (lines, rows):
        draw(one, {"arms": [figures("votes", 2.0)]}, tmp_path / "bars.svg")
    assert bars[0] == ([2.0], [99.0], [[3.0], [1.0]], None)
    assert bars[1][3] == [[3.0], [1.0]]
