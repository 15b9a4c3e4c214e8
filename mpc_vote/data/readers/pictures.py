"""Folders of pictures: a folder for each class, or all in one where labels are asked for.

A picture is turned as its EXIF data say, made grey or coloured as the task says, scaled so that it
covers the task's size and cut at its edges to it, evenly on both sides.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mpc_vote.data.readers.records import Records
from mpc_vote.tasks import ImageInput, Task

ENDINGS = (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
"""Whatever a file is called: for others Pillow has decoders that run programs, as Ghostscript."""
MAX_PIXELS = 1 << 26
"""Of a picture, which takes some ten bytes each while it is scaled."""


def read(path: Path, task: Task | None) -> Records:
    """The pictures of a folder, in the order of their names; one that can't be read is a bad
    row."""
    if task is None or not isinstance(task.input, ImageInput):
        what = "" if task is None else f", not {task.input.kind}s as {task.name} has"
        raise ValueError(f"{path}: a folder is read for a task whose inputs are images{what}")
    if not path.is_dir():
        raise FileNotFoundError(f"{path}: there is no such folder of pictures")
    files, labels = find(path)
    if task.attributes and labels is not None:
        raise ValueError(f"{path}: attributes are read from an .npz, not from folders by class")
    rows = np.zeros((len(files), *task.input.shape), dtype=np.uint8)
    bad: dict[int, str] = {}
    for place, file in enumerate(files):
        try:
            rows[place] = load(file, task.input)
        except ValueError as error:
            bad[place] = str(error)
    lines = [str(file.relative_to(path)) for file in files]
    return Records(rows, labels, lines, bad)


def find(folder: Path) -> tuple[list[Path], list[str] | None]:
    """The pictures of a folder, and the names of the folders that they are in, if they are."""
    flat = _pictures(folder)
    classes = sorted(one for one in folder.iterdir() if one.is_dir() and _pictures(one))
    if flat and classes:
        raise ValueError(
            f"{folder}: it has pictures of its own and folders with pictures: give a folder for "
            "each class and nothing else, or no folders"
        )
    if not flat and not classes:
        raise ValueError(f"{folder}: there is no picture in it ({', '.join(ENDINGS)})")
    if flat:
        return flat, None
    pairs = [(file, one.name) for one in classes for file in _pictures(one)]
    return [file for file, _ in pairs], [name for _, name in pairs]


def load(file: Path, size: ImageInput) -> npt.NDArray[np.uint8]:
    """A picture's bytes as the task has them."""
    from PIL import Image, ImageOps

    mode = "L" if size.channels == 1 else "RGB"
    try:
        with Image.open(file, formats=FORMATS) as opened:
            _check_size(opened.width * opened.height)
            upright = ImageOps.exif_transpose(opened)
            plain = _opaque(upright).convert(mode)
            fitted = ImageOps.fit(plain, (size.width, size.height), Image.Resampling.BILINEAR)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise ValueError(f"not a picture that can be read ({error})") from error
    pixels = np.asarray(fitted, dtype=np.uint8)
    return pixels if size.channels == 1 else np.ascontiguousarray(pixels.transpose(2, 0, 1))


def _check_size(pixels: int) -> None:
    """Refuses a picture before it is unpacked, by what its head says: it has no more."""
    if pixels > MAX_PIXELS:
        raise ValueError(f"it has {pixels:,} pixels, at most {MAX_PIXELS:,} are read")


def _opaque(picture: Any) -> Any:
    """Without transparency, on white; and 16 bits of grey as 8."""
    from PIL import Image

    if picture.mode.startswith("I;16") or picture.mode == "I":
        return Image.fromarray((np.asarray(picture).astype(np.uint32) >> 8).astype(np.uint8))
    if not picture.has_transparency_data:
        return picture
    picture = picture.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture)


def _pictures(folder: Path) -> list[Path]:
    return sorted(
        path for path in folder.iterdir() if path.is_file() and path.suffix.lower() in ENDINGS
    )
