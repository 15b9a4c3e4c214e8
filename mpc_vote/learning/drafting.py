"""A task from a public sample: its inputs and classes, the feature map, and how votes are cast."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from mpc_vote.data.sample import Draft, Wishes, draft_lines, draft_pictures, draft_sheet
from mpc_vote.learning.features.by_task import check_features
from mpc_vote.learning.features.draft import draft_features
from mpc_vote.tasks import Task, Vote
from mpc_vote.tasks.toml import dump
from mpc_vote.voting.ballots import KNN_COUNT, BallotKind

DEFAULT_K = 20


@dataclass(frozen=True)
class DraftedTask:
    """A valid task, the text of its file, and what its author should know."""

    task: Task
    text: str
    draft: Draft


def draft_task(
    sample: Path,
    wishes: Wishes,
    *,
    name: str | None = None,
    feature_map: str | None = None,
    model: str | None = None,
    weights: Path | None = None,
    ballot: BallotKind = KNN_COUNT,
    k: int = DEFAULT_K,
    reach: float | None = None,
) -> DraftedTask:
    """A task as the sample, which must be public, and the wishes say; a `ValueError` or
    `FileNotFoundError` says why there is none. Neighbours that cast one vote for all of them have
    no k in the task: each agent chooses its own."""
    draft = _draft(sample, wishes)
    tau = max(1, len(draft.classes) // 2) if ballot.needs_tau else 0
    drafted = Task(
        name or _name(sample),
        tuple(draft.classes),
        draft.input,
        draft_features(draft.input, feature_map, model, weights),
        Vote(ballot, k if ballot.needs_k else 0, reach, tau),
    )
    text = dump(drafted, _comments(sample.name, draft.rows))
    task = Task.parse(text)
    check_features(task)
    return DraftedTask(task, text, draft)


def _draft(sample: Path, wishes: Wishes) -> Draft:
    from mpc_vote.data.readers.sheet import read_sheet

    if sample.is_dir():
        return draft_pictures(sample, wishes)
    if sample.suffix.lower() == ".txt" and sample.is_file():
        return draft_lines(sample, wishes)
    return draft_sheet(read_sheet(sample), wishes)


def _comments(sample: str, rows: int) -> tuple[str, ...]:
    """For the head of the file."""
    return (
        f"Drafted by mpc-vote task init from {sample} ({rows:,} rows), which must be public:",
        "all who take part read this file, and every vote depends on it.",
    )


def _name(sample: Path) -> str:
    """A name that tasks can have, from the sample's."""
    stem = re.sub(r"[^a-z0-9]+", "-", sample.resolve().stem.lower()).strip("-")
    return stem[:63].strip("-") or "task"
