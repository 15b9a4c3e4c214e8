"""`mpc-vote features`: from pictures to data of an agent, or to queries."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from mpc_vote import cli
from mpc_vote.cli.features import _Name
from mpc_vote.compat import import_torchvision
from mpc_vote.data.partition import load_part
from mpc_vote.learning.features.backbones import BACKBONES, load_backbone

NAME = "mobilenet_v2"


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a network that was never trained."""
    path = tmp_path_factory.mktemp("weights") / "weights.safetensors"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        save_file(import_torchvision().models.get_model(NAME, weights=None).state_dict(), path)
    return path


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    folder, draws = tmp_path / "clinic", np.random.default_rng(0)
    for name, count in (("bike/a", 2), ("mug", 1)):
        (folder / name).mkdir(parents=True)
        for number in range(count):
            pixels = draws.integers(0, 256, (40, 30, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{number}.PNG")
    (folder / "mug" / "readme.txt").write_text("no picture")
    return folder


def run(pictures: Path, out: Path, weights: Path, *more: str) -> int:
    given = [f"--pictures={pictures}", f"--out={out}", f"--weights={weights}"]
    return cli.main(["features", *given, f"--backbone={NAME}", *more])


def test_folders_become_the_data_of_an_agent(
    pictures: Path, weights: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "clinic.npz"
    assert run(pictures, out, weights) == 0
    part = load_part(out)
    assert (part.shape, part.classes, part.y.tolist()) == ((1280,), 2, [0, 0, 1])
    files = sorted(pictures.rglob("*.PNG"))
    assert np.array_equal(part.x, load_backbone(NAME, weights).of_files(files))
    assert "class 1: mug, 1 pictures" in capsys.readouterr().out


def test_agents_agree_on_the_order_of_classes_that_some_do_not_have(
    pictures: Path, weights: Path, tmp_path: Path
) -> None:
    assert run(pictures, tmp_path / "a.npz", weights, "--classes=mug,chair,bike") == 0
    part = load_part(tmp_path / "a.npz")
    assert (part.classes, part.y.tolist()) == (3, [0, 2, 2])


def test_any_pictures_become_queries(pictures: Path, weights: Path, tmp_path: Path) -> None:
    assert run(pictures, tmp_path / "queries.npy", weights) == 0
    assert np.load(tmp_path / "queries.npy").shape == (3, 1280)


@pytest.mark.parametrize(
    ("out", "more", "told"),
    [
        ("a.txt", [], "must end in .npz or .npy"),
        ("a.npz", ["--classes=bike"], "found bike, mug, wanted bike"),
        ("a.npy", ["--classes=bike"], "--classes are for"),
        ("a.npz", ["--pictures=nowhere"], "there is no folder nowhere"),
        ("a.npz", ["--weights=nowhere.pth"], "there is no such file of weights"),
        ("a.npz", ["--pictures=empty"], "found none"),
        ("a.npy", ["--pictures=empty"], "there is no picture in it"),
    ],
)
def test_wrong_calls_say_what_to_do(
    pictures: Path,
    weights: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    out: str,
    more: list[str],
    told: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty").mkdir()
    assert run(pictures, Path(out), weights, *more) != 0
    assert told in capsys.readouterr().err
    assert not Path(out).exists()


def test_all_backbones_can_be_chosen() -> None:
    assert set(get_args(_Name)) == set(BACKBONES)
