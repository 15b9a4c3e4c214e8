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

from mpc_vote.app.config import Address, ConfigError, LogLevel, Name, Settings
from mpc_vote.app.process import CommandError
from mpc_vote.cli import Command, meant
from mpc_vote.client import AsyncLabelClient
from mpc_vote.data.readers import (
    BadRows,
    Inputs,
    label_column,
    label_names,
    read_inputs,
    write_labelled,
)
from mpc_vote.data.readers.output import TABLES, check_output
from mpc_vote.tasks import Task, TaskError
from mpc_vote.voting.ballots import BALLOTS

LABELS = (".npy", *TABLES)
"""Endings of files that labels are written to."""


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


def kind_name(code: int) -> str:
    """The kind of ballot with this code on the wire, as people call it."""
    kind = BALLOTS.by_code(code)
    return f"kind {code}" if kind is None else kind.name


def counted(number: float, one: str, many: str | None = None) -> str:
    """So many of a thing, in the singular if it is one."""
    text = f"{number:g}" if isinstance(number, float) else f"{number:,}"
    return f"{text} {one if number == 1 else many or one + 's'}"


def console(json_path: str | None, *, markup: bool = True) -> Console:
    """Where people read; standard error if standard output carries the JSON.

    Without `markup` where others' words are shown, which are then shown as they are.
    """
    return Console(stderr=json_path == "-", highlight=False, markup=markup)


def progress(on: Console) -> Progress:
    """Live bars."""
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
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


def check_writable(path: Path | str | None, *others: Path | str | None) -> None:
    """Refuses a path that can't be written, or is one of the `others` that the command reads or
    writes, before any work is done for it."""
    if path is None or path == "-":
        return
    for other in others:
        if other is not None and Path(other).resolve() == Path(path).resolve():
            why = f"the command is given {other} for something else, too: name another file"
            raise CommandError(f"can't write {path}: {why}")
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


def check_ending(path: Path | None, known: Sequence[str]) -> None:
    """Refuses a name that does not say which of the known formats is meant."""
    if path is not None and path.suffix.lower() not in known:
        *others, last = known
        endings = f"{', '.join(others)} or {last}" if others else last
        raise CommandError(f"{path}: such a file is not written here: name it {endings}")


def load_task(path: Path | None) -> Task | None:
    """The task of a file, if one is named."""
    try:
        return None if path is None else Task.load(path)
    except TaskError as error:
        raise ConfigError(f"--task: {error}") from error


def read_rows(path: Path, task: Task | None, bad_rows: BadRows = "refuse") -> Inputs:
    """Public rows of a file: as the task says, or without one an array of an .npy file."""
    if task is None:
        if path.is_dir() or path.suffix.lower() in (*TABLES, ".txt"):
            raise CommandError(
                f"{path} is read as a task says: pass --task, or an .npy file made by numpy.save"
            )
        rows = read_array(path)
        return Inputs(path, rows, range(1, len(rows) + 1) if rows.ndim else [], [])
    try:
        return read_inputs(path, task, bad_rows=bad_rows)
    except OSError as error:
        raise CommandError(f"can't read {path}: {error.strerror or error}") from error
    except (ValueError, ImportError) as error:
        raise CommandError(str(error)) from error


def check_labels_file(path: Path | None, task: Task | None, *others: Path | str | None) -> None:
    """Refuses a file that labels can't be written to, or that the command has another use for,
    before anything is spent for them."""
    check_ending(path, LABELS)
    check_writable(path, *others)
    if path is None or path.suffix.lower() not in TABLES:
        return
    if task is None:
        raise CommandError(f"{path}: a table takes the names of classes: pass --task, or use .npy")
    try:
        check_output(path)
    except (ValueError, ImportError) as error:
        raise CommandError(str(error)) from error


def write_labels(
    path: Path,
    labels: npt.NDArray[np.int64],
    task: Task | None,
    inputs: Inputs | None = None,
    asked: npt.NDArray[np.int64] | None = None,
) -> None:
    """Labels as an .npy file of numbers, or in a table by name beside what they belong to.

    Where only the rows in these places were `asked` about, the others have an empty label, -1 in an
    .npy file.
    """
    if path.suffix.lower() in TABLES and task is not None:
        if inputs is None:
            inputs = _in_order(labels, task)
        names: list[str | None] = [None] * len(inputs)
        places = range(len(inputs)) if asked is None else asked.tolist()
        for place, name in zip(places, label_names(labels, task), strict=True):
            names[place] = name
        write_labelled(path, inputs, names)
        return
    if asked is not None and inputs is not None:
        some, labels = labels, np.full((len(inputs), *labels.shape[1:]), -1, dtype=np.int64)
        labels[asked] = some
    with path.open("wb") as file:
        np.save(file, labels)


def _in_order(labels: npt.NDArray[np.int64], task: Task) -> Inputs:
    """Queries that nothing but their order is known of."""
    import pyarrow as pa

    from mpc_vote.data.readers.sheet import Sheet

    places = range(1, len(labels) + 1)
    sheet = Sheet(Path(), pa.table({"query": pa.array(places)}), places)
    return Inputs(Path(), labels, places, [], label_column(task), sheet)


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
