"""The coordinator's side of the agents' streams, without a network."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path

import numpy as np

from aggregator.archive import Archive
from aggregator.attendance import Attendance
from tests.service.committee import ROWS, Committee


def test_what_agents_read_is_gone_when_its_round_is(tmp_path: Path) -> None:
    """Copies of the queries must not wait for the collector: rounds come faster than it does."""
    path = tmp_path / "queries.npy"
    np.save(path, np.zeros((ROWS, 2), np.float32))
    committee = Committee(dial=None, stubs={"party-0": None, "party-1": None})  # type: ignore[arg-type]
    gc.disable()
    try:
        with Attendance(Archive(tmp_path)).announce(committee.spec(), path) as ballots:
            (message,) = ballots.queries
            assert list(message.queries.shape) == [ROWS, 2]
            held = weakref.ref(ballots.queries)
        del ballots
        assert held() is None
    finally:
        gc.enable()
