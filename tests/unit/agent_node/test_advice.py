"""Owners are told of settings that don't suit their data, before anything is spent."""

from __future__ import annotations

import numpy as np
import pytest

from agent_node.advice import owner_warnings
from mpc_vote.data.dataset import Dataset


def labelled(*counts: int) -> Dataset:
    """So many records of each class."""
    y = np.repeat(np.arange(len(counts)), counts)
    return Dataset("mine", np.zeros((len(y), 2), np.float32), y, len(counts))


@pytest.mark.parametrize(
    ("records", "k", "delta", "told"),
    [
        (90, 30, 1e-3, []),
        (90, 31, 1e-3, ["k is 31, and there are 90 records"]),
        (2, 1, 1e-3, ["a k up to 1 would suit"]),
        (1_000, 0, 1e-3, []),
        (1_001, 0, 1e-3, ["delta is 0.001, above one over the 1001 records"]),
        (2_000, 700, 1e-3, ["k is 700", "set --delta below 0.0005"]),
    ],
)
def test_k_and_delta_are_held_against_the_number_of_records(
    records: int, k: int, delta: float, told: list[str]
) -> None:
    found = owner_warnings(labelled(records // 2, records - records // 2), k, delta)
    assert len(found) == len(told)
    for sentence, part in zip(found, told, strict=True):
        assert part in sentence


def test_an_owner_is_told_of_classes_that_neighbours_can_never_be_most_of() -> None:
    assert owner_warnings(labelled(90, 10), 20, 1e-3) == []
    (found,) = owner_warnings(labelled(90, 9), 20, 1e-3, ["no", "yes"])
    assert "fewer than 10 records, half of k, are of yes (9)" in found
    (found,) = owner_warnings(labelled(90, 0), 20, 1e-3)
    assert "are of class 1 (0)" in found
    assert owner_warnings(labelled(90, 1), 0, 1e-3) == [], "a model without neighbours"
