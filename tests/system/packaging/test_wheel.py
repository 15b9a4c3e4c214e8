"""The wheel, as people install it: built, and put by plain pip into clean environments.

Marked `package`, because it needs an index; `make test-package` runs it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

pytestmark = [pytest.mark.package, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[3]
VERSION = "0.2.0"
SOURCES = ("pyproject.toml", "README.md", "LICENSE", "mpc_vote", "agent_node", "aggregator")
HEAVY = ("torch", "faiss-cpu", "crypten", "mlxtend", "scipy")


@dataclass(frozen=True)
class Environment:
    """A virtual environment that has the wheel, away from the sources."""

    folder: Path

    def run(self, *command: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """A program of the environment."""
        kept = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}
        done = subprocess.run(
            [str(self.folder / "bin" / command[0]), *command[1:]],
            cwd=self.folder,
            env={**kept, "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert not check or done.returncode == 0, done.stdout + done.stderr
        return done

    def install(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """`pip install`, with nothing that a newcomer would not write."""
        return self.run("python", "-m", "pip", "install", "--progress-bar", "off", *arguments)

    def packages(self) -> set[str]:
        """What is installed."""
        lines = self.run("python", "-m", "pip", "list", "--format", "freeze").stdout.splitlines()
        return {line.partition("==")[0].lower() for line in lines}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy: a build leaves things behind where it is done."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in SOURCES:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / "src" / name)
        else:
            (folder / "src").mkdir(exist_ok=True)
            shutil.copy(source, folder / "src" / name)
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(folder), "."]
    subprocess.run(command, cwd=folder / "src", check=True, timeout=600)
    [made] = folder.glob("*.whl")
    return made


@pytest.fixture
def environment(tmp_path: Path) -> Environment:
    """A clean one: pip, and nothing else."""
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "venv")], check=True, timeout=300)
    return Environment(tmp_path / "venv")


def test_the_wheel_has_the_types_and_every_stub(wheel: Path) -> None:
    assert wheel.name == f"mpc_vote-{VERSION}-py3-none-any.whl"
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {f"{package}/py.typed" for package in ("mpc_vote", "agent_node", "aggregator")} <= names
    stubs = (ROOT / "mpc_vote" / "proto").rglob("*.py*")
    wanted = {s.relative_to(ROOT).as_posix() for s in stubs if s.suffix in (".py", ".pyi")}
    assert len(wanted) > 20
    assert wanted <= names
    assert not any(name.startswith(("tests/", "protos/", "docs/")) for name in names)


def test_plain_pip_brings_a_client(wheel: Path, environment: Environment) -> None:
    environment.install(str(wheel))
    environment.run("python", "-m", "pip", "check")
    code = "from mpc_vote import LabelClient, Plan, VoteError; print(Plan(classes=3))"
    assert "classes=3" in environment.run("python", "-c", code).stdout
    assert "commands:" in environment.run("mpc-vote", "--help").stdout
    assert environment.run("mpc-vote", "--version").stdout == f"mpc-vote {VERSION}\n"
    environment.run("mpc-vote", "health", "--help")
    assert environment.packages() - {"pip", "setuptools", "wheel"} <= {
        "mpc-vote",
        *("cryptography", "cffi", "pycparser"),
        *("grpcio", "typing_extensions", "typing-extensions"),
        *("numpy", "protobuf"),
    }
    done = environment.run("mpc-vote", "dealer", "--help", check=False)
    assert done.returncode == 2
    assert "pip install 'mpc-vote[server]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_server_extra_brings_every_role_but_the_agent(
    wheel: Path, environment: Environment
) -> None:
    environment.install(f"{wheel}[server]")
    environment.run("python", "-m", "pip", "check")
    for command in ("dealer", "party", "coordinator", "token", "certs", "label", "status"):
        assert "usage:" in environment.run("mpc-vote", command, "--help").stdout
    assert not environment.packages() & set(HEAVY)


def test_a_client_fits_beside_an_older_protobuf(wheel: Path, environment: Environment) -> None:
    """Much of the field is bound below protobuf 7."""
    environment.install(str(wheel), "protobuf<7")
    environment.run("python", "-m", "pip", "check")
    environment.run("python", "-c", "from mpc_vote import LabelClient")


@pytest.mark.slow
@pytest.mark.parametrize("extra", ["agent", "learning", "crypten", "bench", "all"])
def test_pip_finds_versions_for_the_other_extras(
    wheel: Path, environment: Environment, extra: str
) -> None:
    said = environment.install("--dry-run", f"{wheel}[{extra}]").stdout.splitlines()[-1]
    assert f"mpc-vote-{VERSION}" in said
    assert " crypten-" not in said
