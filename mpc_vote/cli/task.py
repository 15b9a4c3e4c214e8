"""`mpc-vote task`: drafts a task from a public sample, checks one, and shows one."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field

from mpc_vote.app import process
from mpc_vote.app.config import Ballot, LogLevel, Name, Settings
from mpc_vote.app.process import CommandError
from mpc_vote.cli import task_report
from mpc_vote.cli.common import check_writable, console, write_json
from mpc_vote.learning.drafting import DEFAULT_K
from mpc_vote.tasks import Task, TaskError
from mpc_vote.voting.ballots import KNN_COUNT
from mpc_vote.voting.limits import MAX_K

_USAGE = """usage: mpc-vote task init --sample PUBLIC --label COLUMN --out task.toml
       mpc-vote task check FILE [--data MINE]
       mpc-vote task show FILE

A task is the one public file that all members of a federation agree on. `mpc-vote task init --help`
and the like say more."""

_SIZE = re.compile(r"(\d{1,4})x(\d{1,4})")


class InitSettings(Settings):
    """Drafts a task from a PUBLIC sample of the inputs that will be voted on.

    Classes, columns, scales and categories are taken from the sample, written to the task and shown
    to everybody who takes part. So never give private records: use published data, a synthetic
    table, or a few rows that somebody wrote by hand. The sample is a .csv, .tsv or .parquet
    file with a column of labels, a folder that has a folder of pictures for each class, or a .txt
    file with a text to a line.
    """

    command: ClassVar[str] = "task init"

    sample: Path = Field(description="public file or folder that is like the data to come")
    out: Path = Field(Path("task.toml"), description="file to write the task to")
    label: str | None = Field(None, description="column of a table that has the labels")
    text: str | None = Field(
        None, description="column that has the texts, where texts are voted on and not a table"
    )
    ignore: list[str] = Field([], description="columns that are no inputs, such as identifiers")
    category: list[str] = Field([], description="columns of numbers that are codes of categories")
    classes: list[str] = Field([], description="the classes in order, if not those of the sample")
    max_categories: int = Field(
        50, ge=1, le=10_000, description="categories of a column before the rarer become one"
    )
    size: str | None = Field(None, description="HEIGHTxWIDTH that pictures are brought to")
    name: Name | None = Field(None, description="name of the task; that of the sample if left out")
    map: Literal["raw", "unit", "strokes", "standard", "backbone", "sentence"] | None = Field(
        None, description="feature map, if not the usual one of such inputs"
    )
    model: str | None = Field(None, description="network of the maps backbone and sentence")
    weights: Path | None = Field(
        None, description="its file or folder of weights, if no package brings them"
    )
    ballot: Ballot = Field(KNN_COUNT, description="kind of ballot")
    k: int = Field(DEFAULT_K, ge=1, le=MAX_K, description="neighbours that vote, for kNN ballots")
    reach: float | None = Field(
        None, gt=0, lt=1, description="share of the queries within which neighbours must lie"
    )
    radius: float | None = Field(
        None, gt=0, description="distance in the feature map within which neighbours must lie"
    )
    max_contributions: int | None = Field(
        None, ge=1, description="queries that one record contributes to at most; takes a radius"
    )
    planned_queries: int | None = Field(
        None,
        ge=1,
        description="queries to come in all: radius and max_contributions then follow from the "
        "sample, where they are not given",
    )
    identifier: str | None = Field(
        None, description="column by which members know a record of a table again; never sent"
    )
    overwrite: bool = Field(False, description="replace a task that is there")
    log_level: LogLevel = Field("warning", description="debug, info, warning or error")


class CheckSettings(Settings):
    """Checks a task, and with --data how one's own data fits it.

    Everything is done on this machine: nothing about the data is sent or written anywhere. The
    command fails if the task is not valid, or if there are rows that can't be used.
    """

    command: ClassVar[str] = "task check"

    task: Path = Field(description="the task's file")
    data: Path | None = Field(None, description="file or folder to read as the task says")
    queries: bool = Field(False, description="the data are queries, which need no labels")
    reader: str | None = Field(None, description="reader of the data, if not that of its ending")
    show: int = Field(10, ge=0, description="bad rows to show")
    load: bool = Field(False, description="load the feature map, too, and check its weights")
    weights: Path | None = Field(
        None, description="its file or folder of weights, if no package brings them"
    )
    json_path: str | None = Field(
        None, alias="json", description="also write the figures as JSON to this file, - for stdout"
    )
    log_level: LogLevel = Field("error", description="debug, info, warning or error")


class ShowSettings(Settings):
    """Shows a task, with the digest that all who take part must have."""

    command: ClassVar[str] = "task show"

    task: Path = Field(description="the task's file")
    json_path: str | None = Field(
        None, alias="json", description="also write the task as JSON to this file, - for stdout"
    )
    log_level: LogLevel = Field("warning", description="debug, info, warning or error")


def command(arguments: Sequence[str]) -> int:
    """`mpc-vote task`."""
    from mpc_vote.cli.common import dispatch

    subcommands = {"init": _init, "check": _check, "show": _show}
    return dispatch("task", arguments, _usage, subcommands)


def _usage(arguments: Sequence[str]) -> int:
    print(_USAGE)
    return 0 if "--help" in arguments or "-h" in arguments else 2


def _init(arguments: Sequence[str]) -> int:
    return process.run(InitSettings, arguments, _init_main)


def _check(arguments: Sequence[str]) -> int:
    # Elsewhere --queries takes a file, or their number.
    file = _file_of_queries(arguments)
    if file is not None:
        why = f"--queries is a switch here: pass --data {file} --queries"
        print(f"mpc-vote task check: error: {why}", file=sys.stderr)
        return 2
    return process.run(CheckSettings, _named(arguments), _check_main)


def _file_of_queries(arguments: Sequence[str]) -> str | None:
    """What is given to --queries as if it took a file."""
    for word, after in zip(arguments, [*arguments[1:], "--"], strict=True):
        given = after if word == "--queries" else word.partition("--queries=")[2]
        if given and not given.startswith("--") and given.lower() not in ("true", "false"):
            return given
    return None


def _show(arguments: Sequence[str]) -> int:
    return process.run(ShowSettings, _named(arguments), _show_main)


def _named(arguments: Sequence[str]) -> list[str]:
    """The first word is the task's file."""
    if arguments and not arguments[0].startswith("-"):
        return [f"--task={arguments[0]}", *arguments[1:]]
    return list(arguments)


async def _init_main(settings: InitSettings) -> None:
    from mpc_vote.data.sample import Wishes
    from mpc_vote.learning.drafting import draft_task

    if settings.out.exists() and not settings.overwrite:
        raise CommandError(f"{settings.out} is there already: pass --overwrite to replace it")
    check_writable(settings.out, settings.sample, settings.weights)
    wishes = Wishes(
        settings.label,
        settings.text,
        tuple(settings.classes),
        tuple(settings.ignore),
        tuple(settings.category),
        settings.max_categories,
        _size(settings.size),
        settings.ballot.attributes,
        settings.identifier or "",
    )
    try:
        drafted = draft_task(
            settings.sample,
            wishes,
            name=settings.name,
            feature_map=settings.map,
            model=settings.model,
            weights=settings.weights,
            ballot=settings.ballot,
            k=settings.k,
            reach=settings.reach,
            radius=settings.radius,
            max_contributions=settings.max_contributions,
            planned_queries=settings.planned_queries,
        )
    except (ValueError, FileNotFoundError, ConnectionError) as error:
        raise CommandError(str(error)) from error
    settings.out.write_text(drafted.text, encoding="utf-8")
    out = console(None, markup=False)
    task_report.show_task(out, drafted.task)
    task_report.show_draft(out, drafted.draft, settings.sample, settings.out)


def _size(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    found = _SIZE.fullmatch(text)
    if found is None:
        raise CommandError(f"--size must be HEIGHTxWIDTH, such as 224x224, not {text!r}")
    return int(found[1]), int(found[2])


async def _check_main(settings: CheckSettings) -> None:
    from mpc_vote.data.readers import read_records
    from mpc_vote.data.readers.report import fit
    from mpc_vote.learning.features.by_task import check_features, for_task

    check_writable(settings.json_path, settings.task, settings.data, settings.weights)
    out = console(settings.json_path, markup=False)
    task = _load(settings.task)
    try:
        check_features(task)
        if settings.load or settings.weights is not None:
            for_task(task, settings.weights)
        out.print(f"{settings.task}: a valid task", soft_wrap=True)
        task_report.show_digest(out, task)
        if settings.load or settings.weights is not None:
            task_report.show_loaded(out, task)
        if settings.data is None:
            write_json(settings.json_path, {"digest": task.digest.hex()})
            return
        records = read_records(settings.data, task, reader=settings.reader)
    except (ValueError, FileNotFoundError, ConnectionError) as error:
        raise CommandError(str(error)) from error
    try:
        found = fit(records, task, labelled=not settings.queries)
    except ValueError as error:
        raise CommandError(f"{settings.data}: {error}") from error
    task_report.show_fit(out, settings.data, task, found, settings.show)
    write_json(settings.json_path, {"digest": task.digest.hex(), **found.figures()})
    if len(found.bad) == found.rows:
        raise CommandError(
            f"{settings.data}: none of its {found.rows} rows can be used: correct them, or the task"
        )
    if found.bad:
        raise CommandError(
            f"{settings.data}: {len(found.bad)} of {found.rows} rows can't be used: correct them, "
            "or let them be skipped with --bad-rows skip where the data is used"
        )


async def _show_main(settings: ShowSettings) -> None:
    check_writable(settings.json_path, settings.task)
    task = _load(settings.task)
    out = console(settings.json_path, markup=False)
    task_report.show_task(out, task)
    write_json(settings.json_path, {"digest": task.digest.hex(), "task": task.settings()})


def _load(path: Path) -> Task:
    try:
        return Task.load(path)
    except TaskError as error:
        raise CommandError(str(error)) from error
