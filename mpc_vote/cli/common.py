"""What commands share: settings, subcommands, progress, JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import Field
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from mpc_vote.cli import Command, meant
from mpc_vote.client import AsyncLabelClient
from mpc_vote.config import Address, LogLevel, Name, Settings
from mpc_vote.process import CommandError


class ClientSettings(Settings):
    """What every command that calls the service has."""

    coordinator: Address = Field("127.0.0.1:7000", description="host:port of the coordinator")
    coordinator_name: Name = Field(
        "coordinator", description="name in the coordinator's certificate"
    )
    certs: Path = Field(description="folder with the client's ca.pem, cert.pem and key.pem")
    json_path: str | None = Field(
        None, alias="json", description="also write the figures as JSON to this file, - for stdout"
    )
    log_level: LogLevel = Field("warning", description="debug, info, warning or error")


def connect(settings: ClientSettings) -> AsyncLabelClient:
    """A client as the settings say."""
    return AsyncLabelClient(
        settings.coordinator, settings.certs, coordinator_name=settings.coordinator_name
    )


def dispatch(
    name: str, arguments: Sequence[str], alone: Command, subcommands: Mapping[str, Command]
) -> int:
    """Runs the subcommand that the first word names, or without a word the command alone."""
    if not arguments or arguments[0].startswith("-"):
        return alone(arguments)
    word, *rest = arguments
    if word in subcommands:
        return subcommands[word](rest)
    hint = meant(word, subcommands) or "; options begin with --"
    why = f"there is no subcommand {word!r}, only {' and '.join(subcommands)}{hint}"
    print(f"mpc-vote {name}: error: {why}", file=sys.stderr)
    return 2


def counted(number: float, one: str, many: str | None = None) -> str:
    """So many of a thing, in the singular if it is one."""
    text = f"{number:g}" if isinstance(number, float) else str(number)
    return f"{text} {one if number == 1 else many or one + 's'}"


def console(json_path: str | None) -> Console:
    """Where people read; standard error if standard output carries the JSON."""
    return Console(stderr=json_path == "-", highlight=False)


def progress(on: Console) -> Progress:
    """Live bars."""
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=30),
        TextColumn("{task.fields[detail]}", markup=False),
        TimeElapsedColumn(),
        console=on,
    )


def write_json(path: str | None, figures: Mapping[str, Any]) -> None:
    """Writes figures where `--json` says."""
    if path is None:
        return
    text = json.dumps(figures, indent=2) + "\n"
    if path == "-":
        sys.stdout.write(text)
        sys.stdout.flush()
        return
    try:
        Path(path).write_text(text)
    except OSError as error:
        raise CommandError(f"can't write the JSON to {path}: {error.strerror}") from error


def check_writable(path: Path | str | None) -> None:
    """Refuses a path that can't be written, before any work is done for it."""
    if path is None or path == "-":
        return
    parent = Path(path).parent
    if not parent.is_dir():
        raise CommandError(f"can't write {path}: there is no folder {parent}")
    if Path(path).is_dir():
        raise CommandError(f"can't write {path}: it is a folder")
    existed = Path(path).exists()
    try:
        with Path(path).open("ab"):
            pass
        if not existed:
            Path(path).unlink()
    except OSError as error:
        raise CommandError(f"can't write {path}: {error.strerror}") from error


def read_array(path: Path) -> npt.NDArray[Any]:
    """An array from an .npy file."""
    try:
        array = np.load(path, allow_pickle=False)
    except OSError as error:
        raise CommandError(f"can't read {path}: {error.strerror or error}") from error
    except Exception as error:
        # numpy has no one error for a damaged file, and its words advise to load it unsafely.
        raise CommandError(
            f"{path} is not a whole .npy file of numbers; make one with numpy.save"
        ) from error
    if not isinstance(array, np.ndarray):
        raise CommandError(f"{path} holds several arrays; save the one you mean with numpy.save")
    return array
