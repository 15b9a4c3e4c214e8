"""What commands and roles import, each in a process of its own, and what they say if it is missing.

A client is installed with four packages. Roles of a federation that counts with the table engine
need neither torch nor CrypTen: that is a tenth of the memory, and of the download.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from mpc_vote import cli

ROOT = Path(__file__).parents[3]
HEAVY = (
    *("crypten", "faiss", "matplotlib", "mlxtend", "onnx", "PIL", "pyarrow", "scipy"),
    *("torch", "torchvision", "transformers"),
)
# Beside the packages that a plain `pip install mpc-vote` brings; grpc looks for some by itself.
CLI = ("pydantic", "pydantic_settings", "rich")
SERVER = ("google.rpc", "grpc_health.v1.health_pb2", "grpc_reflection.v1alpha.reflection", "psutil")

TASK = """
format = 1
name = "t"
classes = ["no", "yes"]
[input]
kind = "table"
label = "died"
columns = [{name = "age", kind = "number", center = 60.0, scale = 10.0}]
[features]
map = "standard"
[vote]
ballot = "one_hot"
"""
RUN = """
import contextlib, io, json, sys
from mpc_vote.cli import main
with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
    main({arguments})
print(json.dumps([name for name in {names} if name in sys.modules]))
"""
BLOCK = """
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {names}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Block())
"""


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)


def without(package: str, code: str) -> subprocess.CompletedProcess[str]:
    """Runs code where a package is not installed."""
    return python(BLOCK.format(names=(package,)) + code)


def imported(code: str, names: tuple[str, ...]) -> list[str]:
    """Which of the names the code leaves imported."""
    tell = f"print(json.dumps([name for name in {names} if name in sys.modules]))"
    done = python(f"import json, sys\n{code}\n{tell}")
    assert done.returncode == 0, done.stderr
    found: list[str] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize(
    "code",
    [
        "import mpc_vote",
        "from mpc_vote import LabelClient, Plan, VoteError",
        "import mpc_vote.client",
    ],
)
def test_a_client_takes_no_more_than_the_plain_installation(code: str) -> None:
    assert imported(code, (*HEAVY, *CLI, *SERVER)) == []


@pytest.mark.parametrize(
    ("arguments", "allowed"),
    [
        (["--help"], ()),
        (["--version"], ()),
        (["health", "--help"], ()),
        *(([name, "--help"], CLI) for name in ("label", "status", "rounds", "budget", "certs")),
        *(
            ([name, "--help"], CLI)
            for name in ("train", "model", "account", "plan", "relay", "token")
        ),
        *((["task", word, "--help"], CLI) for word in ("init", "check", "show")),
        *(([name, "--help"], CLI) for name in ("dealer", "party", "coordinator", "agent")),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_commands_import_what_their_extra_brings_at_most(
    arguments: list[str], allowed: tuple[str, ...]
) -> None:
    names = tuple(name for name in (*HEAVY, *CLI, *SERVER) if name not in allowed)
    done = python(RUN.format(arguments=arguments, names=names))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == []


# Modules that a role's process has imported when it serves, up to its first round.
ROLES = {
    "dealer": "aggregator.dealer.command",
    "party": "aggregator.party.command, mpc_vote.argmax.table.engine",
    "coordinator": "aggregator.coordinator.command",
    "agent": "agent_node.command",
}


@pytest.mark.parametrize("role", ROLES)
def test_no_role_imports_torch_before_it_is_asked_for_what_needs_it(role: str) -> None:
    assert imported(f"import {ROLES[role]}", HEAVY) == []


def test_a_neighbour_agent_imports_faiss_and_no_torch() -> None:
    found = imported("import agent_node.command, mpc_vote.learning.voters.knn", HEAVY)
    assert found == ["faiss"]


@pytest.mark.parametrize(
    ("arguments", "missing", "install"),
    [
        (["label", "--help"], "rich", "pip install 'mpc-vote[cli]'"),
        (["dealer", "--help"], "pydantic_settings", "pip install 'mpc-vote[server]'"),
        (["agent", "--help"], "pydantic", "pip install 'mpc-vote[agent]'"),
        (["experiment", "--help"], "torch", "pip install 'mpc-vote[learning]'"),
        (["demo", "--help"], "psutil", "pip install 'mpc-vote[bench]'"),
        (["bench-party", "--help"], "pydantic", "pip install 'mpc-vote[bench]'"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_a_command_whose_extra_is_missing_says_what_to_install(
    arguments: list[str], missing: str, install: str
) -> None:
    done = without(missing, f"from mpc_vote.cli import main\nsys.exit(main({arguments}))")
    assert done.returncode == 2
    said = f"it needs the package {missing}, which is not installed; run: {install}"
    assert done.stderr.splitlines() == [f"mpc-vote {arguments[0]}: error: {said}"]


def test_a_table_without_arrow_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "task.toml").write_text(TASK)
    (tmp_path / "mine.csv").write_text("age,died\n1,no\n")
    for arguments in (
        ["task", "init", f"--sample={tmp_path / 'mine.csv'}", "--label=died", "--out=x.toml"],
        ["task", "check", str(tmp_path / "task.toml"), f"--data={tmp_path / 'mine.csv'}"],
    ):
        done = without("pyarrow", f"from mpc_vote.cli import main\nsys.exit(main({arguments}))")
        assert "it needs the package pyarrow" in done.stderr, done.stderr
        assert "pip install 'mpc-vote[cli,data]'" in done.stderr
        assert done.returncode == 2


@pytest.mark.parametrize("package", ["crypten", "torch", "mlxtend"])
def test_what_an_option_needs_is_named_with_what_the_command_does(package: str) -> None:
    """It is found missing late, in the middle of the command's work."""
    code = f"""
import mpc_vote.cli as cli, types
async def late(_): import {package}
module = types.SimpleNamespace(command=lambda arguments: __import__("asyncio").run(late(None)))
cli.import_module = lambda name: module
sys.exit(cli.main(["agent"]))
"""
    done = without(package, code)
    assert done.returncode == 2
    extra = {"crypten": "agent,crypten", "torch": "agent,learning", "mlxtend": "agent,bench"}
    assert f"pip install 'mpc-vote[{extra[package]}]'" in done.stderr
    assert ("pip install --no-deps crypten==0.4.1" in done.stderr) is (package == "crypten")
    assert "Traceback" not in done.stderr


def test_a_mistake_of_our_own_is_no_missing_package() -> None:
    code = "import mpc_vote.cli as cli\ncli._COMMANDS['label'] = ('mpc_vote.cli.no', '')\n"
    done = python(f"{code}cli.main(['label'])")
    assert done.returncode == 1
    assert "No module named 'mpc_vote.cli.no'" in done.stderr


def test_an_interrupt_while_a_command_is_loaded_is_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(_: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "_find", interrupted)
    assert cli.main(["label"]) == 130
    assert capsys.readouterr().err == "mpc-vote label: error: interrupted\n"


def test_every_extra_that_is_advised_exists() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = set(project["optional-dependencies"])
    assert {cli._CLI, *cli._EXTRAS.values(), *cli._FURTHER.values()} <= extras
    assert set(cli._EXTRAS) <= {*cli._COMMANDS, *cli._WORKERS}
