"""Pictures of any kind and size become what a task compares, by folders of classes or flat."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from mpc_vote.data.readers import BadRowsError, read_inputs, read_labelled
from mpc_vote.tasks import Task

HEAD = 'format = 1\nname = "t"\nclasses = ["mug", "bike"]\n[input]\nkind = "image"\n'
TAIL = 'height = 4\nwidth = 6\n[features]\nmap = "raw"\n[vote]\nballot = "one_hot"\n'
GREY = Task.parse(f"{HEAD}channels = 1\n{TAIL}")
COLOUR = Task.parse(f"{HEAD}channels = 3\n{TAIL}")
RED, BLUE = (255, 0, 0), (0, 0, 255)


def picture(path: Path, size: tuple[int, int] = (6, 4), colour: object = RED) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(path)  # type: ignore[arg-type]
    return path


def test_a_folder_is_a_class(tmp_path: Path) -> None:
    picture(tmp_path / "bike" / "b.png", (60, 40))
    picture(tmp_path / "bike" / "a.PNG", (5, 50), BLUE)
    picture(tmp_path / "mug" / "c.bmp")
    (tmp_path / "mug" / "notes.txt").write_text("no picture")
    (tmp_path / "empty").mkdir()
    data = read_labelled(tmp_path, COLOUR)
    assert data.x.shape == (3, 3, 4, 6) and data.x.dtype == np.uint8
    assert data.y.tolist() == [1, 1, 0]
    assert data.x[:, :, 2, 3].tolist() == [[*BLUE], [*RED], [*RED]]
    assert read_labelled(tmp_path, GREY).x.shape == (3, 4, 6)


def test_a_flat_folder_has_queries(tmp_path: Path) -> None:
    picture(tmp_path / "b.png")
    picture(tmp_path / "a.jpg")
    found = read_inputs(tmp_path, COLOUR)
    assert (list(found.lines), found.label) == (["a.jpg", "b.png"], "label")
    with pytest.raises(ValueError, match=r"no labels \(a folder for each class\)"):
        read_labelled(tmp_path, COLOUR)


def test_a_picture_is_turned_as_its_camera_said(tmp_path: Path) -> None:
    lying = Image.new("RGB", (6, 4), RED)
    lying.paste(BLUE, (0, 0, 3, 4))
    exif = Image.Exif()
    exif[0x0112] = 3  # upside down
    lying.save(tmp_path / "a.png", exif=exif)
    upright = read_inputs(tmp_path, COLOUR).rows[0]
    assert upright[:, 0, 0].tolist() == [*RED] and upright[:, 0, 5].tolist() == [*BLUE]


@pytest.mark.parametrize(
    ("mode", "colour", "grey"),
    [
        ("1", 1, 255),
        ("L", 77, 77),
        ("I;16", 77 << 8, 77),
        ("RGBA", (0, 0, 0, 0), 255),
        ("LA", (0, 0), 255),
        ("P", 0, 0),
        ("CMYK", (0, 0, 0, 0), 255),
    ],
)
def test_every_mode_of_a_picture_is_understood(
    mode: str, colour: object, grey: int, tmp_path: Path
) -> None:
    Image.new(mode, (9, 6), colour).save(tmp_path / "a.tif")  # type: ignore[arg-type]
    assert (read_inputs(tmp_path, GREY).rows == grey).all()
    assert (read_inputs(tmp_path, COLOUR).rows == grey).all()


def test_the_middle_of_a_long_picture_is_kept(tmp_path: Path) -> None:
    long = Image.new("RGB", (60, 4), RED)
    long.paste(BLUE, (27, 0, 33, 4))
    long.save(tmp_path / "a.png")
    assert (read_inputs(tmp_path, COLOUR).rows[0, 2] == 255).all()


def test_a_broken_picture_is_a_bad_row_by_its_name(tmp_path: Path) -> None:
    whole = picture(tmp_path / "mug" / "a.png").read_bytes()
    (tmp_path / "mug" / "b.png").write_bytes(whole[:40])
    (tmp_path / "mug" / "c.png").write_bytes(b"no picture")
    with pytest.raises(BadRowsError, match=r"2 of 3 rows.*mug/b\.png: not a picture") as told:
        read_labelled(tmp_path, COLOUR)
    assert [one.line for one in told.value.bad] == ["mug/b.png", "mug/c.png"]
    assert len(read_labelled(tmp_path, COLOUR, bad_rows="skip")) == 1


def test_no_program_is_run_for_what_is_called_a_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ghostscript = tmp_path / "bin" / "gs"
    ghostscript.parent.mkdir()
    ghostscript.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    ghostscript.chmod(0o755)
    monkeypatch.setenv("PATH", str(ghostscript.parent), prepend=":")
    monkeypatch.setattr("PIL.EpsImagePlugin.gs_binary", None)
    script = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n%%EOF\n"
    (tmp_path / "queries").mkdir()
    (tmp_path / "queries" / "a.png").write_bytes(script)
    with pytest.raises(BadRowsError, match=r"a\.png: not a picture that can be read"):
        read_inputs(tmp_path / "queries", COLOUR)
    assert not (tmp_path / "ran").exists()


def test_a_folder_of_an_unknown_class_makes_bad_rows(tmp_path: Path) -> None:
    picture(tmp_path / "car" / "a.png")
    picture(tmp_path / "mug" / "a.png")
    with pytest.raises(BadRowsError, match=r"car/a.png: its label 'car' is none of"):
        read_labelled(tmp_path, COLOUR)


def test_folders_that_are_neither_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there is no picture in it"):
        read_inputs(tmp_path, COLOUR)
    picture(tmp_path / "a.png")
    picture(tmp_path / "mug" / "a.png")
    with pytest.raises(ValueError, match="pictures of its own and folders with pictures"):
        read_inputs(tmp_path, COLOUR)
    with pytest.raises(FileNotFoundError, match="no such folder"):
        read_inputs(tmp_path / "none", COLOUR, reader="pictures")


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_a_picture_of_too_many_pixels_is_not_unpacked(tmp_path: Path) -> None:
    """Its head alone says 169 megapixels: whoever unpacked it would say that it is cut short."""
    content = bytearray(picture(tmp_path / "a.png").read_bytes())
    content[16:24] = struct.pack(">II", 13_000, 13_000)
    content[29:33] = struct.pack(">I", zlib.crc32(content[12:29]))
    (tmp_path / "a.png").write_bytes(content)
    with pytest.raises(BadRowsError, match="it has 169,000,000 pixels, at most 67,108,864"):
        read_inputs(tmp_path, COLOUR)
