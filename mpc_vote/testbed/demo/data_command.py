"""`mpc-vote demo data`: the demo's data as files, to try the commands on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from mpc_vote.app import process
from mpc_vote.app.config import LogLevel, Settings
from mpc_vote.app.process import CommandError
from mpc_vote.cli.common import console
from mpc_vote.data.dataset import Dataset
from mpc_vote.testbed.demo import digits, table
from mpc_vote.testbed.demo.subject import Scale

_QUERIES = {"digits": 300, "table": table.QUERIES}


class DataSettings(Settings):
    """Writes real data, split as organisations would hold it: to try the commands on.

    table: 569 biopsies as CSV files, with labels as names. digits: handwritten digits as PNG files,
    in a folder for each class.
    """

    command: ClassVar[str] = "demo data"

    task: Literal["digits", "table"] = Field(
        "table", description="a clinical table, or handwritten digits as pictures"
    )
    out: Path = Field(description="folder to make and write to")
    agents: int = Field(5, ge=2, le=64, description="organisations with private data")
    queries: int | None = Field(
        None, ge=1, le=3_000, description="public points to label; default: the task's"
    )
    seed: int = Field(0, ge=0, description="seed of the split")
    log_level: LogLevel = Field("warning", description="debug, info, warning or error")


def command(arguments: Sequence[str]) -> int:
    """`mpc-vote demo data`."""
    return process.run(DataSettings, arguments, _main)


async def _main(settings: DataSettings) -> None:
    folder = settings.out
    if folder.exists() and any(folder.iterdir()):
        raise CommandError(f"{folder} is not empty: name a folder that is not there yet")
    folder.mkdir(parents=True, exist_ok=True)
    queries = settings.queries or _QUERIES[settings.task]
    scale = Scale(settings.agents, queries, settings.seed)
    out = console(None, markup=False)
    write = _write_table if settings.task == "table" else _write_digits
    for path, rows, what in write(scale, folder):
        out.print(f"{path}: {rows} {what}", soft_wrap=True)


def _write_table(scale: Scale, folder: Path) -> list[tuple[Path, int, str]]:
    files = table.write(scale, folder)
    return [
        (files.sample, _lines(files.sample), "public rows without labels, to be asked about"),
        (files.answers, _lines(files.answers), "the same with labels, to score the answers"),
        (files.test, _lines(files.test), "rows with labels, to test models"),
        *((path, _lines(path), "private rows with labels") for path in files.private),
    ]


def _lines(path: Path) -> int:
    return len(path.read_text().splitlines()) - 1


def _write_digits(scale: Scale, folder: Path) -> list[tuple[Path, int, str]]:
    data = digits.split(scale)
    written = [
        (folder / "public", data.public, "public pictures, to be asked about"),
        (folder / "answers", data.public, "the same in folders by class, to score the answers"),
        (folder / "test", data.test, "pictures in folders by class, to test models"),
    ]
    for number, part in enumerate(data.private):
        written.append(
            (folder / f"hospital-{number}", part, "private pictures in folders by class")
        )
    for path, part, _ in written:
        _write_pictures(path, part, labelled=path.name != "public")
    return [(path, len(part), what) for path, part, what in written]


def _write_pictures(folder: Path, part: Dataset, *, labelled: bool) -> None:
    from PIL import Image

    for number, (pixels, label) in enumerate(zip(part.x, part.y, strict=True)):
        path = folder / str(label) if labelled else folder
        path.mkdir(parents=True, exist_ok=True)
        picture = Image.fromarray(np.round(255 * pixels).astype(np.uint8))
        picture.save(path / f"{number:04}.png")
