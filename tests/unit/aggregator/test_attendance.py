"""The coordinator's side of the agents' streams, without a network."""

from __future__ import annotations

import gc
import weakref
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aggregator.coordinator.archive import Archive
from aggregator.coordinator.attendance import _FETCHES_PER_AGENT, Attendance
from mpc_vote.pki.identity import Identity, Role
from mpc_vote.proto.mpcvote.v1 import agent_pb2
from tests.security.fuzz.fakes import Aborted, Context
from tests.system.service.committee import AGENTS, ROWS, Committee

NOBODY: Any = None


async def test_an_agent_that_reads_no_queries_has_few_of_them_wait(tmp_path: Path) -> None:
    """What is sent and not read takes the coordinator's memory; others are served meanwhile."""
    path = tmp_path / "queries.npy"
    np.save(path, np.zeros((ROWS, 2), np.float32))
    committee = Committee(dial=NOBODY, stubs={"party-0": NOBODY, "party-1": NOBODY})
    attendance, spec = Attendance(Archive(tmp_path)), committee.spec()
    request = agent_pb2.FetchQueriesRequest(round_id=spec.round_id)

    def fetch(agent: str) -> AsyncIterator[agent_pb2.FetchQueriesResponse]:
        context = Context(Identity(Role.AGENT, agent), ())
        return attendance.FetchQueries(request, context)

    with attendance.announce(spec, path):
        unread = [fetch(AGENTS[0]) for _ in range(_FETCHES_PER_AGENT)]
        for one in unread:
            await anext(one)
        with pytest.raises(Aborted, match="RESOURCE_EXHAUSTED"):
            await anext(fetch(AGENTS[0]))
        await anext(fetch(AGENTS[1]))
        assert [one async for one in unread[0]] == []
        await anext(fetch(AGENTS[0]))


def test_what_agents_read_is_gone_when_its_round_is(tmp_path: Path) -> None:
    """Copies of the queries must not wait for the collector: rounds come faster than it does."""
    path = tmp_path / "queries.npy"
    np.save(path, np.zeros((ROWS, 2), np.float32))
    committee = Committee(dial=NOBODY, stubs={"party-0": NOBODY, "party-1": NOBODY})
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
