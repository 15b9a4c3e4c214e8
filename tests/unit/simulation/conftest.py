"""A small version of the experiments on the embedded digits."""

from __future__ import annotations

import numpy as np
import pytest

from mpc_vote.data.assignment import deal_by_class
from mpc_vote.data.embedded import load_embedded
from mpc_vote.data.partition import Partition, hand_out, split_public
from mpc_vote.simulation.experiment import ArmContext
from mpc_vote.simulation.store import ResultStore

AGENTS = 12


@pytest.fixture(scope="session")
def digits() -> Partition:
    """12 agents with 200 images of 6 digits each."""
    public, rest = split_public(load_embedded(), 400, 0)
    parts = hand_out(rest, deal_by_class(rest.y, AGENTS, 200, 6, 0))
    return Partition(parts, public, rest.take(np.arange(2600, len(rest))))


@pytest.fixture(scope="session")
def context(tmp_path_factory: pytest.TempPathFactory) -> ArmContext:
    """One store for all tests, so that agents are trained once."""
    return ArmContext({}, ResultStore(tmp_path_factory.mktemp("store")), 2, lambda *_: None)
