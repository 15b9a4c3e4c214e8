"""An agent that is told of more rounds than it takes part in."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agent_node import agent as agents
from agent_node.agent import Agent
from mpc_vote.proto.mpcvote.v1 import agent_pb2
from tests.fuzz.decoders import at_a_fixed_time, spec_message
from tests.fuzz.fakes import Channel, Stream

SPEC = spec_message().SerializeToString()


def announced(spec: bytes) -> agent_pb2.AttendResponse:
    return agent_pb2.AttendResponse(announcement=agent_pb2.RoundAnnouncement(spec=spec))


def agent_on(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> Agent:
    """An agent that has no room for any round."""
    monkeypatch.setattr(agents, "_MAX_ROUNDS_AT_ONCE", 0)
    coordinator: Any = Channel({"Attend": lambda: stream})
    unused: Any = None
    return Agent("ann", unused, unused, agent_pb2.Capabilities(), coordinator, {})


async def test_each_is_declined_and_the_agent_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that can't be read, after which others are still heard."""
    stream = Stream([announced(SPEC), announced(b"\xff"), announced(SPEC)])
    with at_a_fixed_time():
        await agent_on(stream, monkeypatch)._session()
    said: list[Any] = [stream.written.get_nowait() for _ in range(stream.written.qsize())]
    errors = [message.declined.error for message in said[1:]]
    assert errors == ["POLICY_REFUSED", "SPEC_INVALID", "POLICY_REFUSED"]


async def test_who_does_not_listen_is_not_listened_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replies that nobody reads must not pile up here."""
    read = 0

    class Deaf(Stream):
        async def read(self) -> Any:
            nonlocal read
            read += 1
            return await super().read()

        async def write(self, message: Any) -> None:
            if message.HasField("declined"):
                await asyncio.Event().wait()

    agent = agent_on(Deaf([announced(SPEC)] * 1_000), monkeypatch)
    session = asyncio.create_task(agent._session())
    for _ in range(500):
        await asyncio.sleep(0)
    assert read == 1
    session.cancel()
    await asyncio.gather(session, return_exceptions=True)
