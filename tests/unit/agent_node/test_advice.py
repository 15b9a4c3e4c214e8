"""Owners are told of settings that don't suit their data, before anything is spent."""

from __future__ import annotations

import pytest

from agent_node.advice import owner_warnings


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
    found = owner_warnings(range(records), k, delta)
    assert len(found) == len(told)
    for sentence, part in zip(found, told, strict=True):
        assert part in sentence
