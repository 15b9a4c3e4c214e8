"""An agent alone, with a coordinator that the test plays."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc.aio
import pytest

from agent_node.agent import Agent
from mpc_vote.proto.mpcvote.v1 import agent_pb2
from mpc_vote.spec import MAX_ROUNDS_AT_ONCE
from tests.service.committee import Committee
from tests.service.support import SECONDS, until


class _Call:
    """A stream on which the coordinator announces rounds, and listens only when the test says."""

    def __init__(self, announcements: list[bytes]) -> None:
        self._announcements = announcements
        self._messages = self._said()
        self.announced = 0
        self.listens = asyncio.Event()
        self.heard: list[agent_pb2.AttendRequest] = []

    async def write(self, message: agent_pb2.AttendRequest) -> None:
        if not message.HasField("capabilities"):
            await self.listens.wait()
        self.heard.append(message)

    async def read(self) -> Any:
        return await anext(self._messages, grpc.aio.EOF)

    async def _said(self) -> AsyncIterator[agent_pb2.AttendResponse]:
        yield agent_pb2.AttendResponse(welcome=agent_pb2.Welcome())
        for spec in self._announcements:
            self.announced += 1
            announcement = agent_pb2.RoundAnnouncement(spec=spec)
            yield agent_pb2.AttendResponse(announcement=announcement)
            await asyncio.sleep(0)

    def cancel(self) -> None:
        pass


async def test_announcements_without_end_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond its limit an agent reads one announcement at a time, and none that it can't answer."""
    most = MAX_ROUNDS_AT_ONCE
    committee = Committee(dial=None, stubs={"party-0": None, "party-1": None})  # type: ignore[arg-type]
    specs = [committee.spec() for _ in range(most + 20)]
    call = _Call([spec.wire for spec in specs[: most + 10]] + [b"\xff"])
    call._announcements += [spec.wire for spec in specs[most + 10 :]]
    nobody: Any = None
    agent = Agent("ann", nobody, nobody, agent_pb2.Capabilities(), _Channel(), {})  # type: ignore[arg-type]
    monkeypatch.setattr(agent, "_coordinator", _Stub(call))

    async def for_ever(*_: object) -> int:
        return await asyncio.get_running_loop().create_future()

    monkeypatch.setattr(agent, "_take_part", for_ever)
    session = asyncio.create_task(agent._session())

    async def stuck() -> bool:
        return call.announced == most + 1

    await until(stuck, "the agent waits until it is heard")
    for _ in range(100):
        await asyncio.sleep(0)
    assert call.announced == most + 1
    call.listens.set()
    await asyncio.wait_for(session, SECONDS)
    declined = [message.declined for message in call.heard if message.HasField("declined")]
    (unreadable,) = (one for one in declined if not one.round_id)
    assert unreadable.error == "SPEC_INVALID"
    declined.remove(unreadable)
    assert [one.round_id for one in declined] == [spec.round_id for spec in specs[most:]]
    assert {one.error for one in declined} == {"POLICY_REFUSED"}


class _Stub:
    def __init__(self, call: _Call) -> None:
        self.Attend = lambda: call


class _Channel:
    """A channel that nobody calls on, with certificates that stay."""

    async def renewed(self) -> None:
        await asyncio.get_running_loop().create_future()

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: None
