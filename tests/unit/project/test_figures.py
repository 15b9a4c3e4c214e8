"""Epsilons that pages show are those that the commands print: they follow from settings alone."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from mpc_vote import cli
from mpc_vote.privacy.rounding import round_up

ROOT = Path(__file__).parents[3]


def epsilons(capsys: pytest.CaptureFixture[str], *settings: str) -> tuple[str, str]:
    """At instance and at agent level, as everything prints them."""
    assert cli.main(["plan", "--ballot=knn_count", "--json=-", *settings]) == 0
    (plan,) = json.loads(capsys.readouterr().out)["plans"]
    return round_up(plan["epsilon_instance"]), round_up(plan["epsilon_agent"])


def test_the_readme_has_the_epsilons_of_its_demo(capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "README.md").read_text()
    demo = ("--agents=8", "--k=50", "--classes=10", "--queries=500", "--sigma=40", "--delta=1e-3")
    shown = re.findall(r"epsilon, (?:instance|agent) level +│ (\S+) at delta 0.001", page)
    assert tuple(shown) == epsilons(capsys, *demo)
    by_labels = re.findall(r"^│   by labels +│ (\S+)", page, re.MULTILINE)
    assert tuple(by_labels) == epsilons(capsys, *demo, "--against=labels")


def test_the_readme_has_the_epsilon_of_its_example(capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "README.md").read_text()
    (shown,) = re.findall(r"300 queries at sigma 10 would cost epsilon (\S+) at instance", page)
    example = ("--agents=3", "--k=20", "--classes=10", "--queries=300", "--sigma=10")
    assert shown == epsilons(capsys, *example)[0]


def test_the_page_on_asking_shows_the_plan_that_is_printed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    page = (ROOT / "docs/asking.md").read_text()
    (shown,) = re.findall(r"^8 agents, knn_count .*?(?=\n```)", page, re.DOTALL | re.MULTILINE)
    given = ("--agents=8", "--sigma=10,20,40", "--queries=100,500", "--classes=3", "--k=20")
    assert cli.main(["plan", "--ballot=knn_count", *given]) == 0
    assert shown.split() == capsys.readouterr().out.split()
