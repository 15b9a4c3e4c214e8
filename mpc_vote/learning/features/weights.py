"""Files of weights, known by their checksum: all who take part must use the same."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path


def checksum(root: Path, names: Sequence[str] = ()) -> str:
    """The sha256 of a file, or of a folder's named files: of a line `sha256  name` for each."""
    if not names:
        with root.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    lines = (f"{checksum(root / name)}  {name}\n" for name in sorted(names))
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def check_checksum(root: Path, wanted: str, names: Sequence[str] = ()) -> None:
    """Refuses weights that are not those of the task."""
    found = checksum(root, names)
    if found != wanted:
        raise ValueError(
            f"{root}: these are not the weights that the task was made with: their sha256 is "
            f"{found}, the task's features.sha256 {wanted}"
        )
