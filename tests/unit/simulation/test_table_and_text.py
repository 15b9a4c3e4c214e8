"""Who holds what in the experiments on a table and on texts, and what their scales follow from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from mpc_vote.data.dataset import Dataset
from mpc_vote.data.partition import Partition
from mpc_vote.simulation.experiments import clinical_table, messages
from mpc_vote.simulation.experiments.clinical_table import SCHEMA, TableSetting
from mpc_vote.simulation.experiments.messages import TEXTS, MessageSetting
from mpc_vote.simulation.store import ResultStore
from mpc_vote.tasks import CategoryColumn

TABLE = TableSetting(hospitals=3, public=60, test=50)
TEXT = MessageSetting(agents=4, size=20, public=60, test=50)


def patients(count: int = 300) -> Dataset:
    draws = np.random.default_rng(0)
    columns: dict[str, Any] = {
        column.name: [column.values[one] for one in draws.integers(len(column.values), size=count)]
        if isinstance(column, CategoryColumn)
        else draws.normal(50, 10, count).tolist()
        for column in SCHEMA.columns
    }
    # Which patient a row is stands in a column that no scale is known of.
    return Dataset("rhc", SCHEMA.encode(columns), draws.integers(2, size=count), 2)


def texts(count: int = 300) -> Dataset:
    x = np.arange(count, dtype=np.float32)[:, None]
    return Dataset("sms", x, np.arange(count) % 2, 2)


def held(partition: Partition) -> list[set[bytes]]:
    parts = (partition.test, partition.public, *partition.private)
    return [{row.tobytes() for row in part.x} for part in parts]


def test_those_that_test_are_the_same_with_all_seeds_and_nobody_holds_them() -> None:
    data = {"messages": texts()}
    splits = [messages.split(data, TEXT, seed) for seed in (0, 1)]
    for split in splits:
        parts = held(split)
        assert sum(map(len, parts)) == len(set().union(*parts)) == 50 + 60 + 4 * 20
    assert np.array_equal(splits[0].test.x, splits[1].test.x)
    assert not np.array_equal(splits[0].public.x, splits[1].public.x)


def test_settings_are_compared_on_others_than_those_that_test() -> None:
    data = {"messages": texts()}
    setting = MessageSetting(agents=4, size=20, public=60, test=50, validation=True)
    tried = held(messages.split(data, setting, 0))
    (tested, *_) = held(messages.split(data, TEXT, 0))
    assert sum(map(len, tried)) == len(set().union(*tried))
    assert not tested & set().union(*tried)
    rows = patients()
    rows = Dataset(rows.name, rows.x, np.arange(len(rows)) % 2, 2)
    validation = TableSetting(hospitals=3, public=60, test=50, validation=True)
    assert len(clinical_table.split({"patients": rows}, validation, 0).test) == 50
    real = clinical_table.split({"patients": rows}, TABLE, 0)
    assert [len(part) for part in real.private] == [64, 63, 63]


def test_scales_follow_from_public_records_alone() -> None:
    rows = patients()
    before = clinical_table.split({"patients": rows}, TABLE, 0)
    # All that is not public, moved far away.
    moved = rows.x.copy()
    public = _public_rows(rows, TABLE)
    private = np.setdiff1d(np.arange(len(rows)), public)
    moved[private, 0] += 1000.0
    after = clinical_table.split({"patients": Dataset("rhc", moved, rows.y, 2)}, TABLE, 0)
    assert np.array_equal(before.public.x, after.public.x)
    assert not np.array_equal(before.test.x, after.test.x)


def _public_rows(rows: Dataset, setting: TableSetting) -> npt.NDArray[np.int64]:
    """Found by labels that are numbers of their own."""
    numbered = Dataset(rows.name, rows.x, np.arange(len(rows)), len(rows))
    return clinical_table.split({"patients": numbered}, setting, 0).public.y


def test_features_of_texts_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mpc_vote.tasks import Features

    asked: list[int] = []

    def see(rows: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        asked.append(len(rows))
        return rows[:, :2].astype(np.float32)

    monkeypatch.setattr(messages, "draft_features", lambda schema: Features("sentence"))
    monkeypatch.setattr(messages, "for_task", lambda task: see)
    raw = Dataset("sms", TEXTS.encode(["free prize"] * 150), np.arange(150) % 2, 2)
    for _ in range(2):
        found = messages.prepare({"messages": raw}, ResultStore(tmp_path), lambda *told: None)[
            "messages"
        ]
        assert found.x.tolist()[0] == [ord("f"), ord("r")]
    assert asked == [100, 50]
