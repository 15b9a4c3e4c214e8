"""A task from a public sample: its inputs and classes, the feature map, and how votes are cast."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from mpc_vote.data.sample import Draft, Wishes, draft_lines, draft_pictures, draft_sheet
from mpc_vote.learning.features.by_task import check_features, for_task
from mpc_vote.learning.features.draft import draft_features
from mpc_vote.tasks import TableInput, Task, Vote
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
    radius: float | None = None,
    max_contributions: int | None = None,
    planned_queries: int | None = None,
) -> DraftedTask:
    """A task as the sample, which must be public, and the wishes say; a `ValueError` or
    `FileNotFoundError` says why there is none. Neighbours that cast one vote for all of them have
    no k in the task: each agent chooses its own. With `planned_queries` radius and bound follow
    from the sample where they are not given."""
    draft = _draft(sample, wishes)
    if wishes.identifier and not isinstance(draft.input, TableInput):
        raise ValueError(
            f"only records of tables have identifiers, those of a {draft.input.kind} are known by "
            "their content: leave --identifier out"
        )
    tau = max(1, len(draft.classes) // 2) if ballot.needs_tau else 0
    drafted = Task(
        name or _name(sample),
        tuple(draft.classes),
        draft.input,
        draft_features(draft.input, feature_map, model, weights),
        Vote(ballot, k if ballot.needs_k else 0, reach, tau, radius, max_contributions),
    )
    if planned_queries is not None:
        drafted = _bounded(drafted, sample, planned_queries, weights)
        vote = drafted.vote
        draft.notes.append(
            f"a record contributes to at most {vote.max_contributions} queries, within a radius of "
            f"{vote.radius:g}: what 95 of 100 rows of the sample would, were {planned_queries:,} "
            "queries like them"
        )
    text = dump(drafted, _comments(sample.name, draft.rows))
    task = Task.parse(text)
    check_features(task)
    return DraftedTask(task, text, draft)


def _bounded(drafted: Task, sample: Path, planned_queries: int, weights: Path | None) -> Task:
    """The task with what a public rule says of a record's contributions."""
    from mpc_vote.data.readers import read_records
    from mpc_vote.learning.contribution_bound import suggest_bound

    vote = drafted.vote
    if vote.reach is None or not vote.ballot.needs_k:
        raise ValueError(
            "--planned-queries takes a kNN ballot and --reach, the share of the queries within "
            "which neighbours must lie"
        )
    check_features(drafted)
    records = read_records(sample, drafted)
    rows = np.delete(records.rows, list(records.bad), axis=0)
    found = suggest_bound(for_task(drafted, weights)(rows), vote.reach, planned_queries)
    return replace(
        drafted,
        vote=replace(
            vote,
            radius=vote.radius or found.radius,
            max_contributions=vote.max_contributions or found.max_contributions,
        ),
    )


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
