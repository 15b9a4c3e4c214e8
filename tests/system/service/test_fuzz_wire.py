"""Every method over real connections, with messages that are almost right or no messages at all."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import psutil
import pytest
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2

from aggregator.coordinator.enrolment import EnrolmentServicer
from aggregator.coordinator.tokens import Tokens
from mpc_vote.errors import ErrorKind, VoteError
from mpc_vote.pki.identity import Identity, Role
from mpc_vote.proto.mpcvote.v1 import (
    agent_pb2,
    dealer_pb2,
    enrolment_pb2,
    enrolment_pb2_grpc,
    label_pb2,
    model_pb2,
    party_pb2,
)
from mpc_vote.transport import rpc
from tests.security.fuzz import decoders, services
from tests.security.fuzz.mutate import Call, Script, of_scripts
from tests.system.service.support import Service, until

_SCRIPTS = 60
_AT_ONCE = 16
_CALL_SECONDS = 1.0
_GROWTH_BYTES = 256 << 20

HEALTH = services.methods(health_pb2)
Caller = Callable[[MethodDescriptor, int], Identity]


def scripts(
    seeds: Sequence[bytes], known: Sequence[MethodDescriptor], seed: int
) -> list[tuple[MethodDescriptor, Call]]:
    """Calls of scripts that were changed, and some to the health service."""
    mutate = of_scripts(*map(services.type_of, known))
    rng = random.Random(seed)
    calls: list[tuple[MethodDescriptor, Call]] = []
    for _ in range(_SCRIPTS):
        changed = mutate(rng.choice(seeds), rng.choice(seeds), rng)
        made = Script.decode(changed).calls
        calls += [
            (known[one.method], replace(one, messages=tuple(map(_brief, one.messages))))
            for one in made
            if one.method < len(known)
        ]
        calls.append((rng.choice(HEALTH), Call(0, 0, (rng.randbytes(rng.choice((0, 2, 99))),))))
    return calls


def _brief(message: bytes) -> bytes:
    """A plan that opens a round does not keep its place for longer than the test."""
    with contextlib.suppress(DecodeError):
        request = label_pb2.RequestLabelsRequest.FromString(message)
        if request.HasField("plan") and request.HasField("queries"):
            request.plan.answer_seconds = 1
            return request.SerializeToString()
    return message


async def send(channel: grpc.aio.Channel, method: MethodDescriptor, call: Call) -> str:
    """Sends bytes as they are; returns what the other end said, which is never that it failed."""
    path = f"/{method.containing_service.full_name}/{method.name}"
    messages = call.messages or (b"",)
    try:
        if method.client_streaming:
            many: grpc.aio.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(path)
            answer: Any = many(iter(messages), timeout=_CALL_SECONDS)
        else:
            one: grpc.aio.UnaryStreamMultiCallable[bytes, bytes] = channel.unary_stream(path)
            answer = one(messages[0], timeout=_CALL_SECONDS)
        async for _ in answer:
            pass
    except grpc.aio.AioRpcError as error:
        told = VoteError.from_rpc(error, "The server")
        assert told.name != "INTERNAL", f"{method.name}: {told.message}"
        return told.name
    return "accepted"


async def flood(
    dial: Callable[[Identity], contextlib.AbstractAsyncContextManager[grpc.aio.Channel]],
    calls: Sequence[tuple[MethodDescriptor, Call]],
    caller: Caller,
) -> set[str]:
    """Sends all calls, some at a time, each by the role that may make it."""
    async with contextlib.AsyncExitStack() as stack:
        channels: dict[Identity, grpc.aio.Channel] = {}
        gate, outcomes = asyncio.Semaphore(_AT_ONCE), set()

        async def one(method: MethodDescriptor, call: Call) -> None:
            identity = caller(method, call.caller)
            if identity not in channels:
                channels[identity] = await stack.enter_async_context(dial(identity))
            async with gate:
                outcomes.add(await send(channels[identity], method, call))

        for identity in {caller(method, call.caller) for method, call in calls}:
            channels[identity] = await stack.enter_async_context(dial(identity))
        await asyncio.gather(*(one(method, call) for method, call in calls))
    return outcomes


def _dealer_caller(_: MethodDescriptor, number: int) -> Identity:
    return Identity(Role.PARTY, f"party-{number % 2}")


SERVERS: dict[str, tuple[Identity, list[MethodDescriptor], Any, Caller]] = {
    "dealer": (
        Identity(Role.DEALER, "dealer"),
        services.methods(dealer_pb2),
        services.dealer_seeds,
        _dealer_caller,
    ),
    "party": (
        Identity(Role.PARTY, "party-1"),
        services.methods(party_pb2),
        services.party_seeds,
        services.party_caller,
    ),
    "coordinator": (
        Identity(Role.COORDINATOR, "coordinator"),
        services.methods(label_pb2, agent_pb2, model_pb2),
        services.coordinator_seeds,
        services.coordinator_caller,
    ),
}


@pytest.mark.parametrize("name", SERVERS)
async def test_processes_survive_what_anybody_sends(
    fragile: Service, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No message ends a process, makes it grow, or is answered with a failure of its own."""
    monkeypatch.setattr(decoders, "NOW", time.time())
    server, known, seeds, caller = SERVERS[name]
    before = resident(fragile)
    calls = scripts(seeds(), known, seed=3)
    outcomes = await flood(lambda identity: fragile.channel(identity, server), calls, caller)
    assert len(outcomes) > 3, outcomes
    assert all(child.process.poll() is None for child in fragile.cluster.children.values())
    for process, held in resident(fragile).items():
        assert held - before[process] < _GROWTH_BYTES, process


async def test_a_round_is_served_after_all_that(fragile: Service) -> None:
    """Whatever was sent, the next good request needs no restart of anything."""
    farms = fragile.groups["farms"]
    queries = farms.queries(4)
    async with fragile.client() as client:

        async def served() -> bool:
            try:
                result = await client.label(queries, farms.plan())
            except VoteError as error:
                # Rounds that were opened above end by themselves.
                assert error.kind is ErrorKind.SERVICE_BUSY, error.message
                return False
            assert (result.labels == farms.winners(queries)).all()
            return True

        await until(served, "a round is served")


@contextlib.asynccontextmanager
async def enrolment_server(service: Service, folder: Path) -> AsyncIterator[str]:
    """Enrolment in this process, on a port that asks for no certificate."""
    tokens = Tokens(folder / "enrolment.db")
    servicer = EnrolmentServicer(tokens, service.cluster.authority.delegate_agents(folder / "ca"))
    credentials = service.credentials(Role.COORDINATOR, "coordinator")
    register = enrolment_pb2_grpc.add_EnrolmentServiceServicer_to_server
    server = rpc.Server(
        credentials,
        "127.0.0.1:0",
        [(register, servicer)],
        servicer.health,
        open_to_anybody=True,
    )
    await server.start()
    try:
        yield f"127.0.0.1:{server.port}"
    finally:
        await server.stop()
        tokens.close()


async def test_strangers_get_nothing_but_refusals(fragile: Service, tmp_path: Path) -> None:
    """Who has no token gets no certificate, and no failure either, whatever it sends."""
    ca = (fragile.certs(Role.CLIENT, "client") / "ca.pem").read_bytes()
    known = services.methods(enrolment_pb2)
    calls = scripts(services.enrolment_seeds(), known, seed=4)
    coordinator = SERVERS["coordinator"][0]
    nobody = Identity(Role.AGENT, "nobody")
    async with enrolment_server(fragile, tmp_path) as address:
        outcomes = await flood(
            lambda _: rpc.dial_anonymously(ca, address, coordinator),
            [one for one in calls if one[0] in known],
            lambda *_: nobody,
        )
    assert "accepted" not in outcomes
    assert "CSR_REFUSED" in outcomes


def resident(service: Service) -> dict[str, int]:
    """What each process holds."""
    return {
        name: psutil.Process(child.process.pid).memory_info().rss
        for name, child in service.cluster.children.items()
    }
