"""The files of models."""

from __future__ import annotations

import zipfile
from pathlib import Path

from mpc_vote.learning.voters import VoterOptions


def model_file(options: VoterOptions, what: str) -> Path:
    """The file that `--model` names."""
    if not options.model:
        raise ValueError(f"--model is missing: the file of {what}")
    path = Path(options.model)
    if not path.is_file():
        raise ValueError(f"{path}: there is no such file; --model names {what}")
    return path


def check_packed(path: Path) -> None:
    """Refuses an archive whose contents are compressed: a small one could take any memory."""
    size = path.stat().st_size
    try:
        with zipfile.ZipFile(path) as archive:
            unpacked = sum(member.file_size for member in archive.infolist())
    except (zipfile.BadZipFile, OSError, ValueError):
        return  # whoever loads it says what it should be
    if unpacked > size:
        raise ValueError(
            f"{path}: it has {size:,} bytes, and {unpacked:,} unpacked: save it without compression"
        )
