"""The plug-ins that docs/extending.md shows work as they are shown, also by their entry points."""

from __future__ import annotations

import importlib
import re
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

from agent_node.settings import AgentSettings
from agent_node.voting import prepare
from aggregator.coordinator.archive import Archive
from aggregator.coordinator.model_service import ModelServicer
from aggregator.coordinator.settings import CoordinatorSettings
from mpc_vote.app import config
from mpc_vote.proto.mpcvote.v1 import common_pb2, label_pb2, model_pb2
from mpc_vote.transport import tensors
from mpc_vote.voting.ballots import ONE_HOT
from mpc_vote.voting.spec import Spec
from tests.security.fuzz.decoders import spec_message

PAGE = (Path(__file__).parents[3] / "docs" / "extending.md").read_text()
# The names that the page calls its examples by.
MODULES = {"A voter": "rules", "A student": "means", "A reader": "tables"}
CENTRES = np.array([[0, 0], [5, 0], [0, 5]], np.float32)
TASK = """
format = 1
name = "clinic"
classes = ["a", "b", "c"]
[input]
kind = "vector"
shape = [2]
[features]
map = "raw"
[vote]
ballot = "one_hot"
"""
TRIAGE = """
format = 1
name = "triage"
classes = ["low", "high"]
[input]
kind = "table"
label = "risk"
[[input.columns]]
name = "age"
kind = "number"
center = 50.0
scale = 10.0
[features]
map = "standard"
[vote]
ballot = "one_hot"
"""
REQUIRED = ("--certs=x", "--data-dir=x", "--parties=a=h:1,b=h:2")


def blocks(heading: str, language: str) -> list[str]:
    """The fenced blocks of a section."""
    (section,) = re.findall(rf"^## {heading}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    return re.findall(rf"^```{language}\n(.*?)^```", section, re.MULTILINE | re.DOTALL)


@pytest.fixture(autouse=True)
def my_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The examples as a package that is installed, with the entry points that are shown."""
    package = tmp_path / "installed" / "my_package"
    package.mkdir(parents=True)
    for heading, module in MODULES.items():
        (package / f"{module}.py").write_text("\n\n".join(blocks(heading, "python")))
    (shown,) = blocks("Entry points", "toml")
    info = package.with_name("my_package-1.0.dist-info")
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my_package\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "".join(
            f"[{group}]\n" + "".join(f"{name} = {where}\n" for name, where in points.items())
            for group, points in tomllib.loads(shown)["project"]["entry-points"].items()
        )
    )
    monkeypatch.syspath_prepend(str(package.parent))
    importlib.invalidate_caches()
    for module in ("my_package", *(f"my_package.{name}" for name in MODULES.values())):
        monkeypatch.delitem(sys.modules, module, raising=False)


def table(folder: Path, name: str) -> Path:
    """A file as the example reads it, with 30 points around each centre."""
    y = np.arange(90) % 3
    x = CENTRES[y] + np.random.default_rng(1).normal(size=(90, 2))
    lines = [
        f"{one:.4f} {other:.4f} {'abc'[label]}" for (one, other), label in zip(x, y, strict=True)
    ]
    path = folder / name
    path.write_text("\n".join(["0 here a", *lines]))
    (folder / "task.toml").write_text(TASK)
    return path


def with_task(data: Path) -> list[str]:
    return [f"--data={data}", f"--task={data.parent / 'task.toml'}", "--bad-rows=skip"]


@pytest.mark.parametrize(
    ("name", "flags"),
    [
        ("clinic.dat", []),
        ("clinic.txt", ["--reader=dat"]),
        ("x.dat", ["--voter=my_package.rules:make"]),
    ],
)
def test_the_reader_and_the_voter_make_an_agent(
    name: str, flags: list[str], tmp_path: Path
) -> None:
    flags = [*with_task(table(tmp_path, name)), *flags]
    settings = config.load(AgentSettings, [*REQUIRED, "--coordinator=h:1", *flags])
    (serving,) = prepare(settings, "ann")
    voter, offer = serving.voter, serving.offer
    assert (offer.classes, list(offer.query_shape)) == (3, [2])
    assert offer.query_dtype == common_pb2.DTYPE_FLOAT32
    if "--voter" in str(flags):
        assert voter.vote(CENTRES, ONE_HOT).tolist() == [0, 1, 0]
    else:
        assert voter.vote(CENTRES, voter.kinds[0]).argmax(axis=1).tolist() == [0, 1, 2]


def test_the_function_makes_an_agent_without_data(tmp_path: Path) -> None:
    path = tmp_path / "task.toml"
    path.write_text(TRIAGE)
    flags = [f"--task={path}", "--voter=my_package.rules:risk", "--inputs=raw"]
    settings = config.load(AgentSettings, [*REQUIRED, "--coordinator=h:1", *flags])
    (serving,) = prepare(settings, "ann")
    rows = np.array([[70, 1], [20, 1], [0, 0]], np.float32)
    assert serving.voter.vote(rows, ONE_HOT).tolist() == [1, 0, 0]


def test_the_reader_is_taken_by_its_place_too(tmp_path: Path) -> None:
    flags = [*with_task(table(tmp_path, "clinic")), "--reader=my_package.tables:read"]
    settings = config.load(AgentSettings, [*REQUIRED, "--coordinator=h:1", *flags])
    assert prepare(settings, "ann")[0].offer.classes == 3


@pytest.mark.parametrize(
    "student",
    ["nearest_mean", *(f"my_package.means:{name}" for name in ("NearestMean", "forest", "line"))],
)
def test_the_student_trains_a_model_that_is_served(student: str, tmp_path: Path) -> None:
    settings = config.load(CoordinatorSettings, [*REQUIRED, f"--student={student}"])
    archive = Archive(tmp_path / "archive")
    spec = Spec.seal(spec_message(round_id="round", classes=3, queries=30))
    labels = np.arange(30, dtype=np.uint32) % 3
    archive.open_round("client", "", b"", spec, CENTRES[labels])
    archive.complete_round(label_pb2.RoundCompleted(round_id="round"), labels)
    service = ModelServicer(archive, settings.delta, settings.student)
    request = model_pb2.TrainRequest()
    rounds = service._rounds("client", request)
    model = service._train("client", rounds, None, request, None, None)
    assert (model.version, model.student, model.labels) == (1, student, 30)
    asked = model_pb2.PredictRequest(inputs=tensors.to_tensor(CENTRES + 1))
    # Any coordinator serves it, whatever it trains with itself.
    for other in (service, ModelServicer(archive, settings.delta)):
        question = other._question("client", asked)
        assert other._predict(question, question.inputs) == [0, 1, 2]
    archive.close()
