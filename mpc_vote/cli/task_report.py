"""What `mpc-vote task` prints."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from mpc_vote.tasks import CategoryColumn, ImageInput, NumberColumn, TableInput, Task, TextInput

if TYPE_CHECKING:
    from mpc_vote.data.readers.report import Fit
    from mpc_vote.data.sample import Draft

_SHOWN = 8


def show_digest(out: Console, task: Task) -> None:
    """What members compare."""
    out.print(f"digest: {task.digest.hex()}", soft_wrap=True)


def show_loaded(out: Console, task: Task) -> None:
    """What was found of a feature map that was loaded."""
    weights = "sha256" in task.features.parameters
    found = "loaded, its weights have the task's checksum" if weights else "it has no weights"
    out.print(f"feature map {task.features.map}: {found}")


def show_task(out: Console, task: Task) -> None:
    """A task for people."""
    out.print(f"task {task.name}: {len(task.classes)} {_noun(task)}: {_few(task.classes)}")
    out.print(f"inputs: {_inputs(task)}")
    if isinstance(task.input, TableInput):
        out.print(_columns(task.input))
        if task.input.identifier:
            out.print(f"a record is known by: {task.input.identifier}, which is never sent")
        if task.input.ignored:
            out.print(f"no inputs: {', '.join(task.input.ignored)}")
    features = ", ".join(f"{key} {value}" for key, value in task.features.parameters.items())
    out.print(f"compared by: {task.features.map}{features and f' ({features})'}", soft_wrap=True)
    vote = ", ".join(f"{key} {value}" for key, value in task.vote.settings().items())
    out.print(f"vote: {vote}")
    if task.vote.max_contributions is not None:
        out.print(
            f"a record contributes to at most {task.vote.max_contributions:,} queries in all tasks "
            f"and rounds together: those within {task.vote.radius:g} of it",
            soft_wrap=True,
        )
    show_digest(out, task)


def show_draft(out: Console, draft: Draft, sample: Path, path: Path) -> None:
    """What to know about a new task."""
    for note in draft.notes:
        out.print(f"note: {note}", soft_wrap=True)
    if draft.rows < 100 and isinstance(draft.input, TableInput):
        out.print(f"note: {draft.rows} rows are few to take scales and categories from")
    out.print(
        f"\nAll of this was taken from the {draft.rows:,} rows of {sample} and is now in {path}, "
        "for everybody who takes part to read. The sample must be public: if it holds private "
        f"records, remove {path} and draft it from data that may be published.\n"
        f"Next: read {path}, change what you know better, give it to all members, and let each "
        f"try: mpc-vote task check {path} --data THEIRS",
        soft_wrap=True,
    )


def show_fit(out: Console, data: Path, task: Task, found: Fit, most: int) -> None:
    """How one's own data fits."""
    usable = found.rows - len(found.bad)
    out.print(f"{data}: {usable:,} of {found.rows:,} rows can be used", soft_wrap=True)
    for name, count in found.classes.items():
        out.print(f"  {_noun(task, 1)} {name}: {count:,}", soft_wrap=True)
    for warning in found.warnings:
        out.print(f"warning: {warning}", soft_wrap=True)
    if found.missing or found.unknown:
        table = Table("column", "missing", "unknown category")
        for name in dict.fromkeys([*found.missing, *found.unknown]):
            counts = (found.missing.get(name, 0), found.unknown.get(name, 0))
            table.add_row(name, *(f"{count:,}" if count else "" for count in counts))
        out.print(table)
    if found.extra:
        out.print(f"columns that the task does not know, left out: {', '.join(found.extra)}")
    for one in found.bad[:most]:
        out.print(f"  {one}", soft_wrap=True)
    if len(found.bad) > most:
        out.print(f"  and {len(found.bad) - most:,} more")


def _noun(task: Task, count: int = 2) -> str:
    words = ("attribute", "attributes") if task.attributes else ("class", "classes")
    return words[count != 1]


def _few(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def _inputs(task: Task) -> str:
    match task.input:
        case TableInput(columns=columns, label=label):
            return f"a table of {len(columns)} columns, labels in {label!r}"
        case TextInput(max_bytes=size, text=text, label=label):
            return f"texts of up to {size:,} bytes in {text!r}, labels in {label!r}"
        case ImageInput(height=height, width=width, channels=channels):
            return f"{'grey' if channels == 1 else 'colour'} pictures of {height}x{width}"
    return f"{task.input.kind}s of shape {'x'.join(map(str, task.input.shape))}"


def _columns(table: TableInput) -> Table:
    shown = Table("column", "kind", "center", "scale", "categories")
    for column in table.columns:
        if isinstance(column, NumberColumn):
            shown.add_row(column.name, "number", f"{column.center:g}", f"{column.scale:g}", "")
        elif isinstance(column, CategoryColumn):
            shown.add_row(column.name, "category", "", "", _few(column.values))
    return shown
