"""Finished work is found again by all it depends on, and never half-written."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest

from mpc_vote.data.dataset import Dataset
from mpc_vote.simulation import store as store_module
from mpc_vote.simulation.store import Arrays, ResultStore, fingerprint


@pytest.fixture
def store(tmp_path: Path) -> ResultStore:
    return ResultStore(tmp_path / "cache")


def never() -> Arrays:
    raise AssertionError("it is stored already")


def test_arrays_are_made_once(store: ResultStore) -> None:
    made = store.arrays("votes", {"seed": 1}, lambda: {"x": np.arange(5), "y": np.eye(2)})
    found = store.arrays("votes", {"seed": 1}, never)
    assert found.keys() == made.keys()
    assert all(np.array_equal(found[key], made[key]) for key in made)


def test_another_name_configuration_or_code_is_another_result(
    store: ResultStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def count(name: str, config: dict[str, int]) -> int:
        made = store.figures(name, config, lambda: {"made": len(calls)})
        return int(made["made"])

    calls: list[int] = []
    keys = [("a", {"seed": 1}), ("a", {"seed": 2}), ("b", {"seed": 1})]
    for name, config in keys:
        calls.append(count(name, config))
    assert calls == [0, 1, 2]
    assert [count(name, config) for name, config in keys] == [0, 1, 2]
    monkeypatch.setattr(store_module, "_code", lambda: "changed")
    assert count("a", {"seed": 1}) == 3


def test_the_digest_of_the_code_covers_what_results_follow_from() -> None:
    names = {path.name for path in store_module._sources()}
    assert {"networks.py", "knn.py", "partition.py", "vote.py", "noise.py", "spec.py"} <= names


def test_an_interrupted_write_leaves_nothing(store: ResultStore, tmp_path: Path) -> None:
    def interrupted() -> Arrays:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.arrays("votes", {}, interrupted)
    assert not list(tmp_path.rglob("*.npz"))
    with pytest.raises(TypeError):
        store.figures("votes", {}, lambda: {"x": object()})
    assert not list(tmp_path.rglob("*.json"))


@pytest.mark.parametrize("ending", ["npz", "json"])
def test_a_spoilt_file_is_made_again_and_said_so(
    store: ResultStore, tmp_path: Path, ending: str, caplog: pytest.LogCaptureFixture
) -> None:
    def get(value: int) -> int:
        if ending == "npz":
            return int(store.arrays("n", {}, lambda: {"v": np.array(value)})["v"])
        return int(store.figures("n", {}, lambda: {"v": value})["v"])

    get(1)
    (path,) = tmp_path.rglob(f"*.{ending}")
    path.write_bytes(path.read_bytes()[:10])
    with caplog.at_level(logging.WARNING):
        assert get(2) == 2
    assert "made again" in caplog.text
    assert get(3) == 2


def test_a_fingerprint_follows_points_labels_and_classes() -> None:
    x, y = np.zeros((3, 2), dtype=np.float32), np.array([0, 1, 1])
    moved = x.copy()
    moved[2, 1] = 1e-6
    sets = [
        Dataset("a", x, y, 2),
        Dataset("a", moved, y, 2),
        Dataset("a", x, np.array([0, 1, 0]), 2),
        Dataset("a", x, y, 3),
    ]
    assert len({fingerprint(one) for one in sets}) == 4
    assert fingerprint(sets[0]) == fingerprint(Dataset("b", x.copy(), y.copy(), 2))
