"""Who may call what: every call by every role, and every certificate that must not get through.

Invariants: a caller is who its certificate says, never who its message says; a role reaches only
the calls that are meant for it; a server that can't do its work says so.
"""

from __future__ import annotations

import datetime as dt
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import grpc
import grpc.aio
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

from aggregator.coordinator.command import serve_coordinator
from aggregator.coordinator.settings import CoordinatorSettings
from mpc_vote.app import config
from mpc_vote.errors import ErrorKind, VoteError
from mpc_vote.pki.authority import CertificateAuthority
from mpc_vote.pki.identity import Credentials, Identity, Role, channel_options
from mpc_vote.proto.mpcvote.v1 import (
    agent_pb2,
    agent_pb2_grpc,
    dealer_pb2,
    enrolment_pb2,
    enrolment_pb2_grpc,
    label_pb2,
    model_pb2,
    party_pb2,
    party_pb2_grpc,
)
from mpc_vote.testbed.cluster import free_ports
from mpc_vote.transport import rpc
from tests.system.service.support import (
    SECONDS,
    Group,
    Service,
    cancelled,
    error_of,
    expired,
    ghost,
    refused,
    until,
)

COORDINATOR = Identity(Role.COORDINATOR, "coordinator")
DEALER = Identity(Role.DEALER, "dealer")
PARTIES = [Identity(Role.PARTY, f"party-{rank}") for rank in range(3)]
SERVERS = [COORDINATOR, DEALER, PARTIES[0]]

ALLOWED = {
    "LabelService/RequestLabels": Role.CLIENT,
    "LabelService/PlanRound": Role.CLIENT,
    "LabelService/GetRound": Role.CLIENT,
    "LabelService/CancelRound": Role.CLIENT,
    "LabelService/ListRounds": Role.CLIENT,
    "LabelService/GetService": Role.CLIENT,
    "LabelService/GetTask": Role.CLIENT,
    "ModelService/Train": Role.CLIENT,
    "ModelService/ListModels": Role.CLIENT,
    "ModelService/GetModel": Role.CLIENT,
    "ModelService/Predict": Role.CLIENT,
    "AgentService/Attend": Role.AGENT,
    "AgentService/FetchQueries": Role.AGENT,
    "AgentService/GetTask": Role.AGENT,
    "PartyService/OpenRound": Role.COORDINATOR,
    "PartyService/SubmitShares": Role.AGENT,
    "PartyService/AwaitPreprocessing": Role.COORDINATOR,
    "PartyService/ListHoldings": Role.COORDINATOR,
    "PartyService/Aggregate": Role.COORDINATOR,
    "PartyService/AbandonRound": Role.COORDINATOR,
    "DealerService/Deal": Role.PARTY,
    "DealerService/Collect": Role.PARTY,
    "RenewalService/Renew": Role.AGENT,
}
# For those who have no certificate yet; tests/system/service/test_enrolment.py has its tests.
ANYBODY = {"EnrolmentService/Enrol"}
SERVED_BY = {
    "LabelService": COORDINATOR,
    "ModelService": COORDINATOR,
    "AgentService": COORDINATOR,
    "PartyService": PARTIES[0],
    "DealerService": DEALER,
    "RenewalService": COORDINATOR,
}
METHODS = {
    f"{service.name}/{method.name}": method
    for module in (label_pb2, model_pb2, agent_pb2, party_pb2, dealer_pb2, enrolment_pb2)
    for service in module.DESCRIPTOR.services_by_name.values()
    for method in service.methods
}


def test_the_table_of_roles_covers_every_call_of_the_wire() -> None:
    assert ALLOWED.keys() | ANYBODY == METHODS.keys()


async def call(channel: grpc.aio.Channel, method: str) -> VoteError | None:
    """How a call with an empty request ends: None if it is answered."""

    async def requests() -> AsyncIterator[bytes]:
        if not METHODS[method].client_streaming:
            yield b""

    try:
        raw: grpc.aio.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(
            f"/mpcvote.v1.{method}"
        )
        async for _ in raw(requests(), timeout=SECONDS):
            pass
    except grpc.aio.AioRpcError as error:
        return VoteError.from_rpc(error, "The server")
    return None


@pytest.mark.parametrize("role", list(Role))
@pytest.mark.parametrize("method", ALLOWED)
async def test_only_the_role_a_call_is_for_gets_past_the_door(
    service: Service, method: str, role: Role
) -> None:
    server = SERVED_BY[method.partition("/")[0]]
    async with service.channel(Identity(role, "somebody"), server) as channel:
        error = await call(channel, method)
    if role is ALLOWED[method]:
        # An empty request has its own faults, which the catalogue knows.
        if error is not None:
            assert error.kind.status is not grpc.StatusCode.PERMISSION_DENIED
            assert error.kind is not ErrorKind.INTERNAL
    else:
        assert error is not None
        assert error.name == "ROLE_REFUSED", error.message
        assert error.kind.status is grpc.StatusCode.PERMISSION_DENIED
        assert f"{role}/somebody may not call" in error.message


# Certificates that TLS itself must refuse


def stranger(service: Service, scratch: Path) -> grpc.ChannelCredentials:
    """The right role and name, signed by nobody we know."""
    mine = CertificateAuthority.create(scratch / "ca").issue(
        Identity(Role.CLIENT, "client"), scratch / "client"
    )
    ours = service.credentials(Role.CLIENT, "client")
    return grpc.ssl_channel_credentials(
        ours.ca_pem, mine.key.read_bytes(), mine.certificate.read_bytes()
    )


def late(service: Service, scratch: Path) -> grpc.ChannelCredentials:
    """Signed by our authority, and out of date."""
    where = expired(service, Identity(Role.CLIENT, "client"), scratch / "client")
    files = [(where / name).read_bytes() for name in ("ca.pem", "key.pem", "cert.pem")]
    return grpc.ssl_channel_credentials(*files)


def early(service: Service, scratch: Path) -> grpc.ChannelCredentials:
    """Signed by our authority, and good from tomorrow on."""
    start = dt.datetime.now(dt.UTC) + dt.timedelta(days=1)
    where = scratch / "client"
    service.cluster.authority.issue(Identity(Role.CLIENT, "client"), where, valid_from=start)
    files = [(where / name).read_bytes() for name in ("ca.pem", "key.pem", "cert.pem")]
    return grpc.ssl_channel_credentials(*files)


def self_signed(service: Service, scratch: Path) -> grpc.ChannelCredentials:
    """An authority of its own, which shows its root for its certificate."""
    CertificateAuthority.create(scratch / "ca")
    ours = service.credentials(Role.CLIENT, "client")
    mine = [(scratch / "ca" / name).read_bytes() for name in ("ca-key.pem", "ca.pem")]
    return grpc.ssl_channel_credentials(ours.ca_pem, *mine)


def nobody(service: Service, scratch: Path) -> grpc.ChannelCredentials:
    """No certificate at all."""
    return grpc.ssl_channel_credentials(service.credentials(Role.CLIENT, "client").ca_pem)


def valid(service: Service, scratch: Path) -> grpc.ChannelCredentials:
    return service.credentials(Role.CLIENT, "client").channel_credentials()


async def check_health(channel: grpc.aio.Channel) -> grpc.StatusCode:
    """Health is open to every role, so only the connection can be what fails."""
    stub = health_pb2_grpc.HealthStub(channel)
    try:
        await stub.Check(health_pb2.HealthCheckRequest(), timeout=SECONDS)
    except grpc.aio.AioRpcError as error:
        return error.code()
    return grpc.StatusCode.OK


@pytest.mark.parametrize("server", SERVERS, ids=str)
@pytest.mark.parametrize(
    ("present", "outcome"),
    [
        (valid, grpc.StatusCode.OK),
        (stranger, grpc.StatusCode.UNAVAILABLE),
        (late, grpc.StatusCode.UNAVAILABLE),
        (early, grpc.StatusCode.UNAVAILABLE),
        (self_signed, grpc.StatusCode.UNAVAILABLE),
        (nobody, grpc.StatusCode.UNAVAILABLE),
    ],
    ids=["valid", "unknown-authority", "expired", "not-yet-valid", "self-signed", "no-certificate"],
)
async def test_a_connection_needs_a_valid_certificate_of_our_authority(
    service: Service,
    tmp_path: Path,
    server: Identity,
    present: Callable[[Service, Path], grpc.ChannelCredentials],
    outcome: grpc.StatusCode,
) -> None:
    credentials = present(service, tmp_path)
    async with grpc.aio.secure_channel(
        service.address(server), credentials, options=channel_options(server)
    ) as channel:
        assert await check_health(channel) is outcome


@pytest.mark.parametrize("server", SERVERS, ids=str)
async def test_plaintext_is_refused(service: Service, server: Identity) -> None:
    async with grpc.aio.insecure_channel(service.address(server)) as channel:
        assert await check_health(channel) is grpc.StatusCode.UNAVAILABLE


@pytest.mark.parametrize("server", SERVERS, ids=str)
def test_only_tls_1_3_is_spoken(service: Service, server: Identity) -> None:
    certs = service.certs(Role.CLIENT, "client")
    host, _, port = service.address(server).rpartition(":")
    spoken = {}
    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        context = ssl.create_default_context(cafile=certs / "ca.pem")
        context.load_cert_chain(certs / "cert.pem", certs / "key.pem")
        context.set_alpn_protocols(["h2"])
        context.minimum_version = context.maximum_version = version
        with socket.create_connection((host, int(port)), timeout=10) as plain:
            try:
                with context.wrap_socket(plain, server_hostname=server.dns_name) as secure:
                    spoken[version] = secure.version()
            except (ssl.SSLError, ConnectionError):
                spoken[version] = None
    assert spoken == {ssl.TLSVersion.TLSv1_2: None, ssl.TLSVersion.TLSv1_3: "TLSv1.3"}


async def test_a_server_with_another_name_is_not_talked_to(service: Service) -> None:
    credentials = service.credentials(Role.AGENT, "clinic-0")
    address = service.address(PARTIES[1])
    async with rpc.dial(credentials, address, PARTIES[1]) as channel:
        assert await check_health(channel) is grpc.StatusCode.OK
    async with rpc.dial(credentials, address, PARTIES[0]) as channel:
        assert await check_health(channel) is grpc.StatusCode.UNAVAILABLE


async def nothing_to_check() -> dict[str, bool]:
    return {}


@pytest.mark.parametrize("role", [Role.CLIENT, Role.AGENT, Role.DEALER])
async def test_no_other_certificate_passes_for_a_servers(service: Service, role: Role) -> None:
    """A server with the certificate of anybody else is not talked to, by its name or any other.

    A client's is not even one for servers: where it is what is asked for, TLS refuses it as well.
    """
    own = Identity(role, "poser")
    server = rpc.Server(service.credentials(role, "poser"), "127.0.0.1:0", [], nothing_to_check)
    await server.start()
    try:
        for meant in (PARTIES[0], own):
            caller = service.credentials(Role.COORDINATOR, "coordinator")
            async with rpc.dial(caller, f"127.0.0.1:{server.port}", meant) as channel:
                passes = meant is own and role is not Role.CLIENT
                want = grpc.StatusCode.OK if passes else grpc.StatusCode.UNAVAILABLE
                assert await check_health(channel) is want
    finally:
        await server.stop()


async def test_an_agent_sends_no_share_to_a_party_with_another_partys_certificate(
    service: Service,
) -> None:
    """The addresses of two parties are swapped: each answers, but as somebody else."""
    lost = Group(shape=(3,), classes=6, ks={"lost": 5}, spread=1.0)
    addresses = list(service.cluster.party_addresses.values())
    swapped = [addresses[1], addresses[0], *addresses[2:]]
    parties = ",".join(
        f"{name}={address}"
        for name, address in zip(service.cluster.party_addresses, swapped, strict=True)
    )
    async with service.extra_agent("lost", lost, parties=parties), service.client() as client:
        plan = lost.plan(quorum=1, collusion=0, request_id="lost")
        with refused(ErrorKind.QUORUM_MISSED, "lost: PARTY_UNREACHABLE", "TLS handshake failed"):
            await client.label(lost.queries(4), plan)


async def test_a_revoked_agent_may_not_attend(service: Service) -> None:
    """Its certificate is good; its name is on the coordinator's list."""
    credentials = service.credentials(Role.AGENT, "outcast")
    address = service.cluster.coordinator_address
    coordinator = Identity(Role.COORDINATOR, "coordinator")
    async with rpc.dial(credentials, address, coordinator) as channel:
        # Nothing is sent: a message on its way as the call is refused may hide the reason.
        error = await error_of(agent_pb2_grpc.AgentServiceStub(channel).Attend().read())
    assert error.kind is ErrorKind.AGENT_REVOKED


async def test_a_revoked_agent_gets_no_new_certificate(service: Service) -> None:
    for name, kind in (
        ("outcast", ErrorKind.AGENT_REVOKED),
        ("somebody", ErrorKind.RENEWAL_ELSEWHERE),
    ):
        async with service.channel(Identity(Role.AGENT, name), COORDINATOR) as channel:
            stub = enrolment_pb2_grpc.RenewalServiceStub(channel)
            error = await error_of(stub.Renew(enrolment_pb2.RenewRequest(), timeout=SECONDS))
        assert error.kind is kind


# Names come from certificates


async def test_an_agent_fetches_only_queries_of_rounds_it_is_on(service: Service) -> None:
    """The outsider knows the round's id, and still gets nothing."""
    plan = Group(shape=(2,), classes=9, ks={}, spread=1.0).plan(quorum=1, collusion=0)
    queries = np.zeros((1, 2), np.float32)
    async with (
        ghost(service, "insider", classes=9) as insider,
        service.client() as client,
        cancelled(client.label(queries, plan)),
    ):
        spec = await insider.announced()
        request = agent_pb2.FetchQueriesRequest(round_id=spec.round_id)
        async with service.channel(Identity(Role.AGENT, "insider"), COORDINATOR) as channel:
            stub = agent_pb2_grpc.AgentServiceStub(channel)
            assert [part async for part in stub.FetchQueries(request, timeout=SECONDS)]
        async with service.channel(Identity(Role.AGENT, "outsider"), COORDINATOR) as channel:
            stub = agent_pb2_grpc.AgentServiceStub(channel)
            error = await error_of(stub.FetchQueries(request, timeout=SECONDS))
            assert error.name == "NAME_REFUSED", error.message
        await insider.decline(spec.round_id)


# Health


async def serving(channel: grpc.aio.Channel, name: str) -> bool:
    return await rpc.is_serving(channel, f"mpcvote.v1.{name}" if name else "")


@pytest.mark.parametrize(("name", "server"), SERVED_BY.items())
async def test_every_service_of_a_whole_cluster_says_serving(
    service: Service, name: str, server: Identity
) -> None:
    async with service.channel(Identity(Role.CLIENT, "client"), server) as channel:
        assert await serving(channel, name)
        assert await serving(channel, "")


async def test_labels_are_not_served_without_an_agent(service: Service, tmp_path: Path) -> None:
    """A coordinator of its own, on the live parties: an agent's coming and going is all that
    differs."""
    (port,) = free_ports(1)
    address = f"127.0.0.1:{port}"
    parties = ",".join(f"{n}={a}" for n, a in service.cluster.party_addresses.items())
    settings = config.load(
        CoordinatorSettings,
        [
            f"--certs={service.certs(Role.COORDINATOR, 'coordinator')}",
            f"--listen={address}",
            f"--data-dir={tmp_path / 'data'}",
            f"--parties={parties}",
        ],
    )
    credentials = service.credentials(Role.CLIENT, "client")
    async with (
        cancelled(serve_coordinator(settings)),
        rpc.dial(credentials, address, COORDINATOR) as channel,
    ):
        await until(lambda: serving(channel, "AgentService"), "agents are served")
        assert await serving(channel, "ModelService")
        assert not await serving(channel, "LabelService")
        assert not await serving(channel, ""), "the whole serves only while every part does"
        async with ghost(service, "only", classes=5, address=address):
            await until(lambda: serving(channel, "LabelService"), "labels are served")

        async def gone() -> bool:
            return not await serving(channel, "LabelService")

        await until(gone, "labels are not served after the agent has left")


# Reflection


@pytest.mark.parametrize("server", SERVERS, ids=str)
def test_reflection_lists_and_describes_every_service(service: Service, server: Identity) -> None:
    credentials = Credentials.load(service.certs(Role.CLIENT, "client"))
    with grpc.secure_channel(
        service.address(server), credentials.channel_credentials(), channel_options(server)
    ) as channel:
        database = ProtoReflectionDescriptorDatabase(channel)
        ours = {f"mpcvote.v1.{name}" for name, host in SERVED_BY.items() if host == server}
        assert ours | {"grpc.health.v1.Health"} <= set(database.get_services())
        for name in ours:
            file = database.FindFileContainingSymbol(name)
            (described,) = [s for s in file.service if f"mpcvote.v1.{s.name}" == name]
            methods = {f"{described.name}/{method.name}" for method in described.method}
            assert methods == {m for m in ALLOWED if m.startswith(f"{described.name}/")}


# Calls of the right role, for a round that is somebody else's


async def test_a_client_can_not_reach_a_party(service: Service) -> None:
    async with service.channel(Identity(Role.CLIENT, "client"), PARTIES[0]) as channel:
        stub = party_pb2_grpc.PartyServiceStub(channel)
        request = party_pb2.ListHoldingsRequest(round_id="any")
        error = await error_of(stub.ListHoldings(request, timeout=SECONDS))
    assert error.name == "ROLE_REFUSED"
    assert "It is for: coordinator" in error.message
