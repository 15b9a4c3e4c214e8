"""`mpc-vote features`: pictures through a backbone, as data of an agent or as public queries."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from mpc_vote.app import process
from mpc_vote.app.config import LogLevel, Settings
from mpc_vote.app.process import CommandError
from mpc_vote.cli.common import check_writable, console, progress
from mpc_vote.data.dataset import Dataset, FloatArray
from mpc_vote.data.partition import save_part

_PICTURES = {".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff"}
# The names of `mpc_vote.learning.features.backbones`, which takes a while to import.
_Name = Literal["alexnet", "mobilenet_v2", "resnet18", "resnet50", "efficientnet-lite0"]


class FeaturesSettings(Settings):
    """Maps pictures to the features of a network that was trained on public pictures.

    With an --out of .npz the pictures are in a folder for each class, and the file is for `mpc-vote
    agent --data`, best with `--features unit`. With an --out of .npy they are any pictures, and the
    file is for `mpc-vote label --queries`.
    """

    command: ClassVar[str] = "features"

    pictures: Path = Field(description="folder of pictures")
    out: Path = Field(description="file to write, .npz with classes or .npy without")
    classes: list[str] = Field(
        [], description="folders of the classes in the order that all agents use, if not by name"
    )
    backbone: _Name = Field("resnet50", description="the network")
    weights: Path | None = Field(
        None, description="file of its weights; torchvision's own if left out"
    )
    log_level: LogLevel = Field("warning", description="debug, info, warning or error")


def command(arguments: Sequence[str]) -> int:
    """`mpc-vote features`."""
    return process.run(FeaturesSettings, arguments, _main)


async def _main(settings: FeaturesSettings) -> None:
    if settings.out.suffix not in (".npz", ".npy"):
        raise CommandError(f"--out must end in .npz or .npy, not {settings.out.suffix!r}")
    check_writable(settings.out, settings.weights)
    if not settings.pictures.is_dir():
        raise CommandError(f"there is no folder {settings.pictures}")
    labelled = settings.out.suffix == ".npz"
    try:
        files, labels, classes = _find(settings.pictures, settings.classes, labelled)
        x = _map(settings, files)
        if labelled:
            data = Dataset(settings.pictures.name, x, np.array(labels, np.int64), len(classes))
            save_part(settings.out, data)
        else:
            with settings.out.open("wb") as file:
                np.save(file, x)
    except (ValueError, FileNotFoundError, ConnectionError) as error:
        raise CommandError(str(error)) from error
    out = console(None)
    out.print(f"{settings.out}: {len(x)} pictures, {x.shape[1]} features each", soft_wrap=True)
    for number, name in enumerate(classes):
        out.print(f"  class {number}: {name}, {labels.count(number)} pictures", soft_wrap=True)


def _find(
    folder: Path, classes: Sequence[str], labelled: bool
) -> tuple[list[Path], list[int], list[str]]:
    """The pictures in order, their labels, and the names of the classes."""
    if not labelled:
        if classes:
            raise ValueError("--classes are for an --out of .npz")
        files = _pictures(folder)
        if not files:
            raise ValueError(f"{folder}: there is no picture in it")
        return files, [], []
    present = sorted(path.name for path in folder.iterdir() if path.is_dir())
    names = list(classes) or present
    unknown = sorted(set(present) - set(names))
    if unknown or len(set(names)) < len(names) or len(names) < 2:
        raise ValueError(
            f"{folder}: every class needs one folder, and there must be two or more; found "
            f"{', '.join(present) or 'none'}, wanted {', '.join(names) or 'any'}"
        )
    files, labels = [], []
    for number, name in enumerate(names):
        found = _pictures(folder / name) if name in present else []
        files += found
        labels += [number] * len(found)
    if not files:
        raise ValueError(f"{folder}: there is no picture in its folders")
    return files, labels, names


def _pictures(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.suffix.lower() in _PICTURES)


def _map(settings: FeaturesSettings, files: Sequence[Path]) -> FloatArray:
    from mpc_vote.learning.features.backbones import load_backbone

    backbone = load_backbone(settings.backbone, settings.weights)
    with progress(console(None)) as bars:
        task = bars.add_task(settings.backbone, total=len(files), detail="")
        return backbone.of_files(
            files, lambda done, total: bars.update(task, completed=done, total=total)
        )
