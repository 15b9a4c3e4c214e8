"""The contract of layers in pyproject.toml refuses imports that go up, and those among equals."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
LINT = Path(sys.executable).with_name("lint-imports")


def lint(folder: Path, planted: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Checks the real contract on empty packages of the same names, but for what is planted."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    layers = [
        name.strip() for c in settings["contracts"] for x in c["layers"] for name in x.split("|")
    ]
    for name in {*settings["root_packages"], *layers}:
        package = folder.joinpath(*name.split("."))
        package.mkdir(parents=True, exist_ok=True)
        (package / "__init__.py").write_text(planted.get(name, ""))
    command = [str(LINT), "--no-cache", "--config", str(ROOT / "pyproject.toml")]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=100)


def test_imports_that_go_down_are_allowed(tmp_path: Path) -> None:
    done = lint(
        tmp_path, {"mpc_vote.voting": "import mpc_vote.mpc", "aggregator": "import mpc_vote.data"}
    )
    assert done.returncode == 0, done.stdout
    assert "1 kept, 0 broken" in done.stdout


@pytest.mark.parametrize(
    ("module", "imported"),
    [
        ("mpc_vote.mpc", "mpc_vote.voting"),
        ("mpc_vote.proto", "mpc_vote.errors"),
        ("mpc_vote.client", "mpc_vote.cli"),
        ("agent_node", "aggregator"),
    ],
)
def test_an_import_that_goes_up_or_sideways_fails_the_check(
    tmp_path: Path, module: str, imported: str
) -> None:
    done = lint(tmp_path, {module: f"import {imported}"})
    assert done.returncode == 1
    assert f"{module} -> {imported}" in done.stdout
