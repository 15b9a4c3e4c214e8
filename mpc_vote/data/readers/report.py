"""How a file fits a task, counted: for its owner, and nobody else."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from mpc_vote.data.readers import names_of, unidentified, where_labels
from mpc_vote.data.readers.labels import match
from mpc_vote.data.readers.records import BadRow, Records
from mpc_vote.tasks import NumberColumn, TableInput, Task

_SHARE = 3
"""Of the records, one in so many may vote on a query."""


@dataclass(frozen=True)
class Fit:
    """What of a file can be used."""

    rows: int
    bad: list[BadRow]
    classes: dict[str, int]
    """Usable rows of each class, or with each attribute; empty where labels were not asked for."""
    missing: dict[str, int]
    """Missing cells by column."""
    unknown: dict[str, int]
    """Cells by column whose category the task does not list."""
    extra: tuple[str, ...]
    """Columns that the task does not know."""
    warnings: list[str]
    """What will hardly do, though it can be used."""

    def figures(self) -> dict[str, Any]:
        """Under stable keys."""
        return {
            "rows": self.rows,
            "usable": self.rows - len(self.bad),
            "classes": self.classes,
            "missing": self.missing,
            "unknown": self.unknown,
            "extra": list(self.extra),
            "warnings": self.warnings,
            "bad": [{"line": one.line, "why": one.why} for one in self.bad],
        }


def fit(records: Records, task: Task, *, labelled: bool) -> Fit:
    """Counts what a file has; labels only where they are asked for."""
    if not len(records.rows):
        raise ValueError("it has no rows")
    bad, classes, warnings = dict(records.bad), {}, []
    if labelled:
        if records.labels is None:
            where = where_labels(task)
            raise ValueError(f"it has no labels ({where}); if it holds queries, pass --queries")
        labels, unlabelled = match(records.labels, task)
        bad = unlabelled | unidentified(records, task) | bad
        kept = np.delete(labels, list(bad), axis=0)
        names_of(records, task, np.delete(np.arange(len(labels)), list(bad)))
        classes = _counted(kept, task)
        counts = {} if task.attributes else classes
        warnings = unsuited(len(kept), counts, task.vote.k) if len(kept) else []
    rows = [BadRow(records.lines[place], bad[place]) for place in sorted(bad)]
    good = np.delete(records.rows, list(bad), axis=0)
    missing = _missing(good, task.input) if isinstance(task.input, TableInput) else {}
    unknown = dict(records.unknown)
    return Fit(len(records.rows), rows, classes, missing, unknown, records.extra, warnings)


def unsuited(records: int, classes: Mapping[str, int], k: int) -> list[str]:
    """A sentence where k, which is 0 without neighbours, does not suit so many records, or those of
    a class. It follows from private data, so it is for their owner alone."""
    if _SHARE * k > records:
        return [
            f"k is {k}, and there are {records} records: with more than a third of them voting on "
            f"every query, votes say little about it; a k up to {max(1, records // _SHARE)} would "
            "suit this data"
        ]
    rare = [f"{name} ({count})" for name, count in classes.items() if 2 * count < k]
    if not rare:
        return []
    return [
        f"fewer than {math.ceil(k / 2)} records, half of k, are of {', '.join(rare)}: however near "
        "they are, they can't be most of a query's neighbours here"
    ]


def _counted(labels: Any, task: Task) -> dict[str, int]:
    if task.attributes:
        return dict(zip(task.classes, labels.sum(axis=0).tolist(), strict=True))
    counts = Counter(labels.tolist())
    return {name: counts[place] for place, name in enumerate(task.classes)}


def _missing(rows: Any, table: TableInput) -> dict[str, int]:
    found = {}
    for column, cells in zip(table.columns, table.cells(rows), strict=True):
        there = cells[:, 1] if isinstance(column, NumberColumn) else cells[:, 0]
        if count := int((there == 0).sum()):
            found[column.name] = count
    return found
