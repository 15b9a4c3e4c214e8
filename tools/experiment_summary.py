"""Writes the summary of docs/experiments.md from the experiments' figures, so that none is typed.

python tools/experiment_summary.py           # after an experiment was run anew
python tools/experiment_summary.py --check   # fails where page and figures differ
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/experiments.md"
FIGURES = ROOT / "docs/experiments"
BEGIN, END = "<!-- summary: tools/experiment_summary.py -->\n", "<!-- end of summary -->\n"

# By task: the experiment, the rows of the vote and of the gradient methods; {} is an epsilon.
TASKS = {
    "MNIST, 6 digits an agent": (
        *("mnist-noniid", "AE-DPFL, epsilon {}", "DP-FedAvg, linear on our features, epsilon {}"),
        "DP-FedSGD, linear on our features, instance-level epsilon {}",
    ),
    "SVHN-like and MNIST to USPS": (
        *("digits", "AE-DPFL+DA, epsilon {}", "DP-FedAvg, linear on our features, epsilon {}"),
        "DP-FedSGD, linear on our features, instance-level epsilon {}",
    ),
    **{
        f"Office-Caltech, {domain}": (
            "office-caltech",
            f"{domain}, ResNet-50: kNN-DPFL, epsilon {{}}",
            f"{domain}, ResNet-50: DP-FedAvg, linear, agent-level epsilon {{}}",
            f"{domain}, ResNet-50: DP-FedSGD, linear, epsilon {{}}",
        )
        for domain in ("amazon", "caltech10", "dslr", "webcam")
    },
    "Table: deaths of patients": (
        *("table", "kNN-DPFL, epsilon {}", "DP-FedAvg, linear, epsilon {}"),
        "DP-FedSGD, linear, epsilon {}",
    ),
    "Text: spam": (
        *("text", "AE-DPFL, epsilon {}", "DP-FedAvg, linear, epsilon {}"),
        "DP-FedSGD, linear, instance-level epsilon {}",
    ),
    "CelebA, 40 attributes": ("celeba", "AE-DPFL, epsilon {}", "DP-FedAvg, epsilon {}", ""),
}
STUDENTS = ("linear", "prototypes", "propagation", "network")
HEAD = (
    "| accuracy in % | epsilon, level | the vote | its labels | best single student | "
    "plain student | DP-FedAvg, linear | DP-FedSGD, linear |\n|---|---|---|---|---|---|---|---|\n"
)


def main() -> int:
    text = PAGE.read_text()
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    made = before + BEGIN + HEAD + "".join(rows()) + END + after
    if "--check" in sys.argv[1:]:
        if made != text:
            print(f"{PAGE.name} differs from its figures: run python tools/experiment_summary.py")
            return 1
        return 0
    PAGE.write_text(made)
    return 0


def rows() -> Iterator[str]:
    """A row of the summary for each task and epsilon."""
    for task, (experiment, vote, averaging, descent) in TASKS.items():
        figures = json.loads((FIGURES / f"{experiment}.json").read_text())
        arms = {arm["name"]: arm for arm in figures["arms"]}
        level = figures["level"]
        for epsilon in (2, 1):
            name = vote.format(epsilon)
            if name not in arms:
                continue
            singles = {one: arms.get(f"{name}, student {one}") for one in STUDENTS}
            tried = {one: arm for one, arm in singles.items() if arm is not None}
            best = max(tried, key=lambda one: _mean(tried[one]), default="")
            cells = (
                task,
                f"{epsilon}, {level}",
                f"**{_accuracy(arms[name])}**",
                f"{100 * arms[name]['figures']['labels']:.1f}",
                f"{_accuracy(tried[best])} ({best})" if best else "",
                _accuracy(tried.get("linear")),
                _accuracy(arms.get(averaging.format(epsilon))),
                _accuracy(arms.get(descent.format(epsilon))),
            )
            yield f"| {' | '.join(cells)} |\n"


def _mean(arm: dict[str, Any]) -> float:
    mean: float = arm["accuracy"]["mean"]
    return mean


def _accuracy(arm: dict[str, Any] | None) -> str:
    if arm is None:
        return ""
    return f"{100 * _mean(arm):.1f} ± {100 * arm['accuracy']['std']:.1f}"


if __name__ == "__main__":
    sys.exit(main())
