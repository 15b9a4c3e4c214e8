"""What one agent with a good certificate can't do to the others, to clients and to the service."""

from __future__ import annotations

import asyncio
import contextlib
import io
import re
from pathlib import Path

import grpc.aio
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from rich.console import Console

from aggregator.coordinator.attendance import _STREAMS_PER_AGENT
from mpc_vote.cli.label import _show
from mpc_vote.client import AsyncLabelClient, LabelResult
from mpc_vote.errors import ErrorKind
from mpc_vote.pki.identity import Identity, Role
from mpc_vote.proto.mpcvote.v1 import agent_pb2, agent_pb2_grpc, common_pb2
from mpc_vote.results import Cost
from mpc_vote.voting.spec import Spec
from tests.system.service.committee import Committee
from tests.system.service.support import (
    SECONDS,
    UNKNOWN_FIELD,
    Group,
    Service,
    cancelled,
    command,
    error_of,
    ghost,
)

# Nobody else answers such queries.
CROWD = Group(shape=(2,), classes=11, ks={}, spread=1.0)
HOSTILE = "[/nothing] \x1b[2J\r\n2030-01-01 00:00:00,000 WARNING forged \u202e"


async def test_who_declines_after_all_is_not_counted_on_and_nobody_is_charged(
    service: Service,
) -> None:
    before = len(service.spends())
    async with (
        ghost(service, "ann", classes=CROWD.classes) as ann,
        ghost(service, "ben", classes=CROWD.classes) as ben,
        ghost(service, "liar", classes=CROWD.classes) as liar,
        service.client() as client,
        cancelled(error_of(client.label(CROWD.queries(1), CROWD.plan(quorum=2)))) as asked,
    ):
        round_id = (await ann.announced()).round_id
        await liar.say(prepared=agent_pb2.Prepared(round_id=round_id))
        await liar.decline(round_id)
        await liar.say(prepared=agent_pb2.Prepared(round_id=round_id))
        # So that all that the liar says has been heard.
        await asyncio.sleep(0.5)
        await ann.say(prepared=agent_pb2.Prepared(round_id=round_id))
        await asyncio.sleep(0.5)
        await ben.decline(round_id)
        error = await asyncio.wait_for(asked, SECONDS)
    assert error.kind is ErrorKind.QUORUM_MISSED
    assert "Nothing was spent" in error.message
    assert len(service.spends()) == before


async def test_who_sends_and_declines_cuts_no_slow_voter_off(service: Service) -> None:
    """A round that ends early because too many declined counts nobody: not those who declined,
    with shares that they sent all the same, in the place of one who has paid and still votes."""
    names = ("ann", "ben", "liar", "liar-2")
    parties = list(service.cluster.party_addresses)
    async with contextlib.AsyncExitStack() as stack:
        ghosts = {
            name: await stack.enter_async_context(ghost(service, name, classes=CROWD.classes))
            for name in names
        }
        committee = await stack.enter_async_context(Committee.reached(service.channel, parties))
        client = await stack.enter_async_context(service.client())
        plan = CROWD.plan(quorum=3, collusion=0, verified=False)
        asking = cancelled(error_of(client.label(CROWD.queries(1), plan)))
        asked = await stack.enter_async_context(asking)
        specs = [await one.announced() for one in ghosts.values()]
        spec = Spec.seal(specs[0])
        for one in ghosts.values():
            await one.say(prepared=agent_pb2.Prepared(round_id=spec.round_id))
        for one in ghosts.values():
            await one.started(spec.round_id)
        for name in ("ann", "liar", "liar-2"):
            await committee.submit(spec, name, np.zeros(1, np.int64))
        await ghosts["ann"].say(submitted=agent_pb2.Submitted(round_id=spec.round_id))
        for name in ("liar", "liar-2"):
            await ghosts[name].decline(spec.round_id)
        error = await asyncio.wait_for(asked, SECONDS)
    assert error.kind is ErrorKind.QUORUM_MISSED
    assert "ended with 1 of 3" in error.message and "stays charged" in error.message


async def test_no_reason_is_so_long_that_it_hides_who_did_not_deliver(service: Service) -> None:
    talkers = [f"liar-{number}" for number in range(6)]
    async with contextlib.AsyncExitStack() as stack:
        ghosts = {
            name: await stack.enter_async_context(ghost(service, name, classes=CROWD.classes))
            for name in ("ann", *talkers, "promiser")
        }
        client = await stack.enter_async_context(service.client())
        plan = CROWD.plan(quorum=2, collusion=0, answer_seconds=4)
        asking = cancelled(error_of(client.label(CROWD.queries(1), plan)))
        asked = await stack.enter_async_context(asking)
        (round_id,) = {(await one.announced()).round_id for one in ghosts.values()}
        for name in talkers:
            await ghosts[name].decline(round_id, "long " * 1_000)
        for name in ("ann", "promiser"):
            await ghosts[name].say(prepared=agent_pb2.Prepared(round_id=round_id))
        error = await asyncio.wait_for(asked, SECONDS)
    assert error.kind is ErrorKind.QUORUM_MISSED
    assert "promiser: had not answered" in error.message
    log = (service.cluster.directory / "logs" / "coordinator.log").read_text()
    assert f"round {round_id} lacks promiser: had not answered" in log


async def test_an_agent_that_changes_its_mind_for_ever_makes_no_events(service: Service) -> None:
    """They are kept as long as the round is open."""
    told = []

    async def follow(client: AsyncLabelClient) -> None:
        async for event in client.stream(CROWD.queries(1), CROWD.plan(quorum=1)):
            told.append(event)

    async with (
        ghost(service, "ann", classes=CROWD.classes) as ann,
        ghost(service, "liar", classes=CROWD.classes) as liar,
        service.client() as client,
        cancelled(follow(client)) as asked,
    ):
        round_id = (await liar.announced()).round_id
        for _ in range(500):
            await liar.say(prepared=agent_pb2.Prepared(round_id=round_id))
            await liar.decline(round_id)
            await liar.say(submitted=agent_pb2.Submitted(round_id=round_id))
        await liar.decline(round_id)
        await asyncio.sleep(0.5)
        await ann.decline(round_id)
        error = await error_of(asyncio.shield(asked))
    assert error.kind is ErrorKind.QUORUM_MISSED
    assert len(told) < 10


async def test_a_reason_is_told_on_one_line_and_steers_no_terminal(service: Service) -> None:
    async with (
        ghost(service, "liar", classes=CROWD.classes) as liar,
        service.client("reader") as client,
        cancelled(error_of(client.label(CROWD.queries(1), CROWD.plan(quorum=1)))) as asked,
    ):
        await liar.decline((await liar.announced()).round_id, HOSTILE)
        error = await asyncio.wait_for(asked, SECONDS)
    assert error.message.isprintable() and "forged" in error.message
    certs = ("--certs", service.certs(Role.CLIENT, "reader"))
    address = service.cluster.coordinator_address
    listed = await asyncio.to_thread(command, "rounds", *certs, "--coordinator", address)
    assert listed.returncode == 0, listed.stderr
    assert "[/nothing]" in listed.stdout and "\x1b" not in listed.stdout
    log = (service.cluster.directory / "logs" / "coordinator.log").read_text()
    assert "forged" in log
    assert not re.search(r"^2030", log, re.MULTILINE)


async def test_an_agent_holds_few_streams(service: Service) -> None:
    async with contextlib.AsyncExitStack() as stack:
        same = "ab" * 16
        for _ in range(_STREAMS_PER_AGENT):
            await stack.enter_async_context(
                ghost(service, "liar", classes=CROWD.classes, process_id=same)
            )
        one_more = ghost(service, "liar", classes=CROWD.classes, process_id=same)
        error = await error_of(stack.enter_async_context(one_more))
        assert error.kind is ErrorKind.SERVICE_BUSY


async def test_an_agent_says_little_at_a_time(service: Service) -> None:
    """What it said last is kept while it attends, and so is its first message."""
    async with ghost(service, "liar", classes=CROWD.classes) as liar:
        said = agent_pb2.AttendRequest(prepared=agent_pb2.Prepared(round_id="any"))
        long = agent_pb2.AttendRequest.FromString(said.SerializeToString() + UNKNOWN_FIELD)
        await liar.write(long)
        error = await error_of(liar.announced())
    assert error.kind is ErrorKind.SPEC_INVALID and "message is too long" in error.message
    coordinator = Identity(Role.COORDINATOR, "coordinator")
    async with service.channel(Identity(Role.AGENT, "liar"), coordinator) as channel:
        call = agent_pb2_grpc.AgentServiceStub(channel).Attend()
        await call.write(long)
        error = await error_of(call.read())
    assert error.kind is ErrorKind.SPEC_INVALID and "message is too long" in error.message


async def test_a_fetch_of_queries_asks_for_them_in_few_bytes(service: Service) -> None:
    """What it asked with is kept until it has read them all."""
    coordinator = Identity(Role.COORDINATOR, "coordinator")
    async with (
        ghost(service, "liar", classes=CROWD.classes) as liar,
        service.client() as client,
        cancelled(client.label(CROWD.queries(1), CROWD.plan(quorum=1, answer_seconds=2))),
        service.channel(Identity(Role.AGENT, "liar"), coordinator) as channel,
    ):
        plain = agent_pb2.FetchQueriesRequest(round_id=(await liar.announced()).round_id)
        long = agent_pb2.FetchQueriesRequest.FromString(plain.SerializeToString() + UNKNOWN_FIELD)
        stub = agent_pb2_grpc.AgentServiceStub(channel)
        assert await stub.FetchQueries(plain, timeout=SECONDS).read()
        error = await error_of(stub.FetchQueries(long, timeout=SECONDS))
        await liar.decline(plain.round_id)
    assert error.kind is ErrorKind.SPEC_INVALID and "message is too long" in error.message


async def test_health_is_not_watched_with_messages_of_any_size(service: Service) -> None:
    coordinator = Identity(Role.COORDINATOR, "coordinator")
    async with service.channel(Identity(Role.AGENT, "liar"), coordinator) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        assert (await stub.Check(health_pb2.HealthCheckRequest(), timeout=SECONDS)).status
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Watch(health_pb2.HealthCheckRequest(), timeout=SECONDS).read()
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_a_reason_is_shown_as_it_is_beside_the_labels() -> None:
    out = Console(file=io.StringIO(), width=200)
    labels = np.zeros(1, np.int64)
    absences = {"liar": "[/nothing]"}
    cost = Cost.from_message(common_pb2.Cost())
    result = LabelResult("r", labels, cost, 1, absences, ("[/warning]",), None)
    _show(out, result, Path("labels.npy"))
    assert isinstance(out.file, io.StringIO)
    shown = out.file.getvalue()
    assert "liar: [/nothing]" in shown and "warning: [/warning]" in shown
