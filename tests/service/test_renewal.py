"""Certificates that are replaced and revoked under a running service.

Invariants: renewing every certificate of a federation restarts nothing and fails no round; a
revoked certificate gets no call served, and ends calls that it has open, at every role.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import shutil
import socket
import ssl
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import grpc
import grpc.aio
import pytest
from cryptography import x509
from grpc_health.v1 import health_pb2, health_pb2_grpc

from mpc_vote import rpc
from mpc_vote.errors import ErrorKind, VoteError
from mpc_vote.identity import Credentials, Identity, Role
from tests.service.support import (
    SECONDS,
    Service,
    attends,
    cancelled,
    command,
    error_of,
    ghost,
    until,
)

COORDINATOR = Identity(Role.COORDINATOR, "coordinator")
SERVERS = [
    COORDINATOR,
    Identity(Role.DEALER, "dealer"),
    Identity(Role.PARTY, "party-0"),
    Identity(Role.PARTY, "party-1"),
]


async def certs(service: Service, *arguments: str) -> None:
    out = service.cluster.directory / "certs"
    done = await asyncio.to_thread(command, "certs", "--out", out, *arguments)
    assert done.returncode == 0, done.stderr


def serial(folder: Path) -> int:
    return x509.load_pem_x509_certificate((folder / "cert.pem").read_bytes()).serial_number


def presented(service: Service, server: Identity) -> int:
    """The serial number of the certificate that a server shows now."""
    own = service.certs(Role.CLIENT, "client")
    context = ssl.create_default_context(cafile=own / "ca.pem")
    context.load_cert_chain(own / "cert.pem", own / "key.pem")
    context.set_alpn_protocols(["h2"])
    host, _, port = service.address(server).rpartition(":")
    with (
        socket.create_connection((host, int(port)), timeout=SECONDS) as plain,
        context.wrap_socket(plain, server_hostname=server.dns_name) as secure,
    ):
        shown = secure.getpeercert(binary_form=True)
    assert shown is not None
    return x509.load_der_x509_certificate(shown).serial_number


def log_of(service: Service, label: str) -> str:
    return (service.cluster.directory / "logs" / f"{label}.log").read_text()


async def told(service: Service, words: str, since: Mapping[str, int]) -> bool:
    """Whether every process has said so since."""
    return all(words in log_of(service, label)[start:] for label, start in since.items())


def lengths(service: Service) -> dict[str, int]:
    return {label: len(log_of(service, label)) for label in service.cluster.children}


async def test_all_certificates_are_renewed_while_rounds_run(fragile: Service) -> None:
    """And then the old ones are revoked: nobody misses them, so nobody uses them any more."""
    farms = fragile.groups["farms"]
    cluster = fragile.cluster
    everybody = [*SERVERS, *(Identity(Role.AGENT, name) for name in farms.ks)]
    old = {who: serial(cluster.certs(who.role, who.name)) for who in everybody}
    pids, before = cluster.pids(), lengths(fragile)
    queries = farms.queries(20)
    done = 0

    async def label() -> None:
        async with fragile.client() as client:
            result = await client.label(queries, farms.plan(quorum=len(farms.ks)))
        assert result.labels.tolist() == farms.winners(queries).tolist()

    async def ask() -> None:
        nonlocal done
        while True:
            await label()
            done += 1

    async def some_more(rounds: int) -> None:
        goal = done + rounds

        async def enough() -> bool:
            return done >= goal or asking.done()

        await until(enough, "rounds go on")

    async with cancelled(ask()) as asking:
        await some_more(1)
        await certs(fragile, "--issue", ",".join(map(str, everybody)), "--renew")
        await until(lambda: told(fragile, "new files of", before), "all take up new files")
        await some_more(2)
        agents = {name: before[name] for name in farms.ks}
        await until(lambda: told(fragile, "attending as", agents), "agents attend anew")
        for who in SERVERS:
            shown = await asyncio.to_thread(presented, fragile, who)
            assert shown == serial(cluster.certs(who.role, who.name)) != old[who]
        await certs(fragile, "--revoke", ",".join(f"{number:x}" for number in old.values()))
        words = f"{len(old)} certificates revoked"
        await until(lambda: told(fragile, words, before), "all know what is revoked")
        await some_more(2)
        if asking.done():
            asking.result()
    assert cluster.pids() == pids
    cluster.check()
    for name, start in before.items():
        assert "not attending" not in log_of(fragile, name)[start:]
        assert "CERTIFICATE" not in log_of(fragile, name)[start:]


@contextlib.asynccontextmanager
async def connected(
    service: Service, folder: Path, server: Identity
) -> AsyncIterator[health_pb2_grpc.HealthStub]:
    """A connection with the certificate in a folder, which is made by the first call."""
    async with rpc.dial(Credentials.load(folder), service.address(server), server) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        await stub.Check(health_pb2.HealthCheckRequest(), timeout=SECONDS)
        yield stub


@pytest.mark.parametrize("server", SERVERS, ids=str)
async def test_a_revoked_certificate_is_refused_on_old_and_new_connections(
    fragile: Service, server: Identity, tmp_path: Path
) -> None:
    """The leaked one of an identity that has another by now, which goes on working."""
    who = f"client/leaky-{server.name}"
    await certs(fragile, "--issue", who)
    folder = fragile.cluster.directory / "certs" / who
    leaked = shutil.copytree(folder, tmp_path / "leaked")
    async with connected(fragile, leaked, server) as stub:
        await certs(fragile, "--revoke", who, "--issue", who, "--renew")

        async def refused() -> bool:
            try:
                await stub.Check(health_pb2.HealthCheckRequest(), timeout=SECONDS)
            except grpc.aio.AioRpcError as error:
                return VoteError.from_rpc(error, "").kind is ErrorKind.CERTIFICATE_REVOKED
            return False

        await until(refused, "a revoked certificate is refused")
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        async with connected(fragile, leaked, server):
            pass
    assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
    async with connected(fragile, folder, server):
        pass


async def test_a_stream_ends_when_its_certificate_is_revoked(fragile: Service) -> None:
    """An agent attends; the moment it is revoked it is on no roster, and can't come back."""
    async with ghost(fragile, "mole", classes=3) as mole, fragile.client() as client:
        assert await attends(client, "mole")
        await certs(fragile, "--revoke", "agent/mole")
        error = await error_of(mole.announced())
        assert error.kind is ErrorKind.CERTIFICATE_REVOKED

        async def gone() -> bool:
            return not await attends(client, "mole")

        await until(gone, "its seat is free")
    with pytest.raises(grpc.aio.AioRpcError, match="has been revoked"):
        async with ghost(fragile, "mole", classes=3):
            pass


async def test_a_stream_ends_when_its_certificate_expires(fragile: Service) -> None:
    start = dt.datetime.now(dt.UTC) - dt.timedelta(days=1) + dt.timedelta(seconds=8)
    folder = fragile.cluster.certs(Role.AGENT, "brief")
    authority = fragile.cluster.authority
    authority.issue(Identity(Role.AGENT, "brief"), folder, days=1, valid_from=start)
    async with ghost(fragile, "brief", classes=9) as agent:
        error = await error_of(agent.announced())
    assert error.kind is ErrorKind.CERTIFICATE_EXPIRED
