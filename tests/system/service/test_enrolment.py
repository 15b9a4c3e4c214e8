"""A new agent gets its certificate with a one-time token, and a token gets nothing else."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime as dt
import stat
import subprocess
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.x509.oid import NameOID
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

from aggregator.coordinator.tokens import Tokens
from mpc_vote.errors import ErrorKind, VoteError
from mpc_vote.pki import pem
from mpc_vote.pki.authority import AgentAuthority
from mpc_vote.pki.identity import CredentialPaths, Credentials, Identity, Role, channel_options
from mpc_vote.proto.mpcvote.v1 import (
    agent_pb2,
    agent_pb2_grpc,
    enrolment_pb2,
    enrolment_pb2_grpc,
    label_pb2,
    label_pb2_grpc,
)
from mpc_vote.testbed.cluster import Cluster, free_ports
from mpc_vote.transport import rpc
from mpc_vote.transport.relay import Relay
from tests.system.service.support import FARMS, SECONDS, attends, command, error_of, until

COORDINATOR = Identity(Role.COORDINATOR, "coordinator")
HOUR = 3600.0

Key = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey | ed25519.Ed25519PrivateKey
Stub = Any  # the generated class for asynchronous channels exists for type checkers only


@dataclass
class Office:
    """A coordinator that agents enrol at, and all the tokens that were made for it."""

    cluster: Cluster
    address: str
    agents: Path
    tokens: Tokens
    made: list[str] = field(default_factory=list)

    @property
    def ca(self) -> Path:
        return self.cluster.directory / "certs" / "ca" / "ca.pem"

    def token(self, name: str, seconds: float = HOUR, *, renew: bool = False) -> str:
        """A token for an agent."""
        token = self.tokens.make([name], seconds, renew=renew)[name]
        self.made.append(token)
        return token

    def settings(self, name: str, **more: str) -> dict[str, str]:
        """Settings of an agent that has to enrol first."""
        data = FARMS.write(self.cluster.directory / "private")["north"]
        return {**data, "enrol": self.address, "ca": str(self.ca), "enrol-seconds": "20", **more}

    def start(self, name: str, **more: str) -> None:
        """Starts an agent's process."""
        self.cluster.agents = {**self.cluster.agents, name: self.settings(name, **more)}
        self.cluster.start_agent(name)

    def ended(self, name: str) -> tuple[int, str]:
        """How a process that ends by itself ended."""
        child = self.cluster.children.pop(name)
        code = child.process.wait(SECONDS)
        return code, child.last_words()

    async def attends(self, name: str) -> None:
        """Waits until the coordinator has seen this agent."""
        async with self.cluster.client() as client:
            await until(lambda: attends(client, name), f"{name} attends")


@pytest.fixture(scope="module")
def office(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Office]:
    directory = tmp_path_factory.mktemp("office")
    (port,) = free_ports(1)
    address, agents = f"127.0.0.1:{port}", directory / "agents"
    settings = {"enrol-listen": address, "agent-authority": str(agents)}
    cluster = Cluster(directory, 2, {}, settings)
    cluster.issue()
    cluster.authority.delegate_agents(agents)
    tokens = Tokens(directory / "data" / "coordinator" / "enrolment.db")
    office = Office(cluster, address, agents, tokens)
    try:
        cluster.start_coordinator()
        yield office
    finally:
        cluster.stop()
        tokens.close()


@pytest.fixture
async def channel(office: Office) -> AsyncIterator[grpc.aio.Channel]:
    """A channel of somebody without a certificate."""
    ca_pem = office.ca.read_bytes()
    async with rpc.dial_anonymously(ca_pem, office.address, COORDINATOR) as channel:
        await asyncio.wait_for(channel.channel_ready(), SECONDS)
        yield channel


@pytest.fixture
def stub(channel: grpc.aio.Channel) -> Stub:
    made: Stub = enrolment_pb2_grpc.EnrolmentServiceStub(channel)
    return made


def request_of(key: Key, name: str = "") -> bytes:
    """A certificate request that asks for a name, in vain."""
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)] if name else [])
    builder = x509.CertificateSigningRequestBuilder().subject_name(subject)
    if name:
        names = x509.SubjectAlternativeName([x509.DNSName(name)])
        builder = builder.add_extension(names, critical=False)
        ca = x509.BasicConstraints(ca=True, path_length=None)
        builder = builder.add_extension(ca, critical=True)
    algorithm = None if isinstance(key, ed25519.Ed25519PrivateKey) else hashes.SHA256()
    return builder.sign(key, algorithm).public_bytes(serialization.Encoding.DER)


def new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def enrol(stub: Stub, token: str, csr_der: bytes | None = None) -> Any:
    csr_der = request_of(new_key()) if csr_der is None else csr_der
    return stub.Enrol(enrolment_pb2.EnrolRequest(token=token, csr_der=csr_der), timeout=SECONDS)


# An agent that enrols by itself


async def test_an_agent_enrols_attends_and_restarts_without_a_token(
    office: Office, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text(office.token("alice") + "\n")
    (health,) = free_ports(1)
    address = f"127.0.0.1:{health}"
    office.start("alice", **{"token-file": str(token), "health-listen": address})
    await office.attends("alice")
    certs = office.cluster.certs(Role.AGENT, "alice")
    assert Credentials.load(certs, Role.AGENT).identity.name == "alice"
    assert stat.S_IMODE((certs / "key.pem").stat().st_mode) == 0o600
    assert (certs / "ca.pem").read_bytes() == office.ca.read_bytes()
    assert sorted(path.name for path in certs.iterdir()) == ["ca.pem", "cert.pem", "key.pem"]

    async def healthy() -> bool:
        asked = await asyncio.to_thread(command, "health", "--certs", certs, "--address", address)
        return asked.returncode == 0

    await until(healthy, "the agent says that it attends")
    before = (certs / "key.pem").read_bytes()
    token.unlink()
    office.cluster.stop_child("alice")
    office.cluster.start_agent("alice")
    await until(healthy, "the agent attends again")
    assert (certs / "key.pem").read_bytes() == before

    # And it says so when it doesn't.
    office.cluster.stop_child("coordinator")

    async def ill() -> bool:
        return not await healthy()

    await until(ill, "the agent says that it does not attend")
    office.cluster.start_coordinator()
    await until(healthy, "the agent has come back")
    office.cluster.stop_child("alice")


async def test_an_agent_waits_for_a_coordinator_that_comes_later(
    office: Office, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text(office.token("patient"))
    office.cluster.stop_child("coordinator")
    office.start("patient", **{"token-file": str(token)})
    log = office.cluster.children["patient"].log

    async def waits() -> bool:
        return "not enrolled yet" in log.read_text()

    await until(waits, "the agent finds nobody")
    office.cluster.start_coordinator()
    await office.attends("patient")
    office.cluster.stop_child("patient")


async def test_agents_that_share_a_pool_take_a_token_each(office: Office, tmp_path: Path) -> None:
    pool, names = tmp_path / "pool", ["pool-0", "pool-1", "pool-2"]
    data = office.cluster.directory / "data" / "coordinator"
    given = ("--data-dir", data, "--names", ",".join(names), "--out", pool)
    assert (await asyncio.to_thread(command, "token", *given)).returncode == 0
    office.made += [(pool / name).read_text().strip() for name in names]
    shared = {"token-pool": str(pool)}
    for label in ("first", "second", "third"):
        office.start(label, **shared)
    for name in names:
        await office.attends(name)
    got = {
        Credentials.load(office.cluster.certs(Role.AGENT, label)).identity.name
        for label in ("first", "second", "third")
    }
    assert got == set(names)
    assert [path for path in pool.rglob("*") if path.is_file()] == []
    office.start("late", **shared, **{"enrol-seconds": "1"})
    code, words = await asyncio.to_thread(office.ended, "late")
    assert code == 1 and "could not enrol within 1 s" in words
    for label in ("first", "second", "third"):
        office.cluster.stop_child(label)


async def test_an_agent_enrols_and_attends_through_sockets(office: Office, tmp_path: Path) -> None:
    """As in a container without a network: all that it can reach are the gateway's sockets."""
    (tmp_path / "token").write_text(office.token("inner"))
    paths = {"enrol": f"unix:{tmp_path}/e", "coordinator": f"unix:{tmp_path}/c"}
    async with (
        Relay(paths["enrol"], office.address).running(),
        Relay(paths["coordinator"], office.cluster.coordinator_address).running(),
    ):
        office.start("inner", **paths, **{"token-file": str(tmp_path / "token")})
        await office.attends("inner")
        office.cluster.stop_child("inner")


async def test_an_agent_with_a_used_token_says_so_and_ends(office: Office, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text(office.token("used"))
    assert office.tokens.redeem(token.read_text()) == "used"
    office.start("used", **{"token-file": str(token)})
    code, words = await asyncio.to_thread(office.ended, "used")
    assert code == 1
    assert "TOKEN_REFUSED: The enrolment token is not valid" in words
    assert not (office.cluster.certs(Role.AGENT, "used") / "cert.pem").exists()


async def test_an_agent_gives_its_token_to_no_other_server(office: Office, tmp_path: Path) -> None:
    """A server with the role of a party, where the coordinator is expected."""
    token = office.token("wary")
    (tmp_path / "token").write_text(token)
    (port,) = free_ports(1)
    seen: list[str] = []

    class Thief(enrolment_pb2_grpc.EnrolmentServiceServicer):
        @rpc.anybody
        async def Enrol(self, request: Any, context: Any) -> enrolment_pb2.EnrolResponse:
            seen.append(request.token)
            return enrolment_pb2.EnrolResponse()

    async def health() -> dict[str, bool]:
        return {}

    thief = Credentials.load(office.cluster.certs(Role.PARTY, "party-0"))
    service = (enrolment_pb2_grpc.add_EnrolmentServiceServicer_to_server, Thief())
    server = rpc.Server(thief, f"127.0.0.1:{port}", [service], health, open_to_anybody=True)
    await server.start()
    given = {"token-file": str(tmp_path / "token"), "enrol-seconds": "3"}
    office.start("wary", **given, enrol=f"127.0.0.1:{port}")
    code, words = await asyncio.to_thread(office.ended, "wary")
    await server.stop()
    assert code == 1 and "could not enrol within 3 s" in words
    assert seen == []
    assert office.tokens.redeem(token) == "wary", "the token is as good as before"


# The endpoint


async def test_the_key_is_certified_for_the_name_of_the_token_whatever_is_asked(
    office: Office, stub: Stub
) -> None:
    key = new_key()
    wish = request_of(key, "bob.agent.mpc-vote")
    response = await enrol(stub, office.token("anna"), wish)
    assert response.name == "anna"
    paths = CredentialPaths.in_directory(Path("anna"))
    chain = response.certificate_pem
    got = Credentials.check(office.ca.read_bytes(), chain, pem.encode_key(key), paths)
    assert got.identity == Identity(Role.AGENT, "anna")
    leaf = x509.load_pem_x509_certificate(chain)
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert list(names) == [x509.DNSName("anna.agent.mpc-vote")]
    assert not leaf.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert response.authority_pem == office.ca.read_bytes()
    assert "bob" not in leaf.subject.rfc4514_string()


async def test_unknown_used_and_expired_tokens_are_refused_alike(
    office: Office, stub: Stub
) -> None:
    used = office.token("once")
    await enrol(stub, used)
    withdrawn = office.token("twice")
    office.token("twice", renew=True)
    refused = [used, office.token("late", -1.0), withdrawn, "x" * 43, "", "x" * 5000, "é\0"]
    errors = [await error_of(enrol(stub, token)) for token in refused]
    assert {error.kind for error in errors} == {ErrorKind.TOKEN_REFUSED}
    assert len({error.to_status().SerializeToString() for error in errors}) == 1


async def test_of_many_that_use_one_token_one_enrols(office: Office, stub: Stub) -> None:
    token = office.token("popular")
    answers = await asyncio.gather(*(enrol(stub, token) for _ in range(8)), return_exceptions=True)
    won = [one for one in answers if isinstance(one, enrolment_pb2.EnrolResponse)]
    lost = [VoteError.from_rpc(one, "it").kind for one in answers if isinstance(one, grpc.RpcError)]
    assert len(won) == 1 and len(lost) == 7
    assert set(lost) <= {ErrorKind.TOKEN_REFUSED, ErrorKind.ENROLMENT_BUSY}
    assert (await error_of(enrol(stub, token))).kind is ErrorKind.TOKEN_REFUSED


def broken_signature() -> bytes:
    csr_der = bytearray(request_of(new_key()))
    csr_der[-1] ^= 1
    return bytes(csr_der)


def anothers_key() -> bytes:
    """A request whose key was replaced by another's, after it was signed."""
    signer = new_key()
    mine, theirs = (
        key.public_key().public_bytes(
            serialization.Encoding.X962, serialization.PublicFormat.UncompressedPoint
        )
        for key in (signer, new_key())
    )
    return request_of(signer).replace(mine, theirs)


@pytest.mark.parametrize(
    ("csr_der", "why"),
    [
        (b"", "it can't be read"),
        (b"nonsense", "it can't be read"),
        (request_of(new_key())[:-3], "it can't be read"),
        (request_of(rsa.generate_private_key(65537, 2048)), "not ECDSA P-256"),
        (request_of(ed25519.Ed25519PrivateKey.generate()), "not ECDSA P-256"),
        (request_of(ec.generate_private_key(ec.SECP384R1())), "not ECDSA P-256"),
        (broken_signature(), "its signature is not by its key"),
        (anothers_key(), "its signature is not by its key"),
        (request_of(new_key()) + b"\0" * 5000, "over 4096 bytes"),
    ],
    ids=["empty", "nonsense", "cut", "rsa", "ed25519", "p-384", "broken", "another's", "long"],
)
async def test_a_request_that_proves_no_key_is_refused_and_costs_no_token(
    office: Office, stub: Stub, csr_der: bytes, why: str
) -> None:
    token = office.token("careful", renew=True)
    error = await error_of(enrol(stub, token, csr_der))
    assert error.kind is ErrorKind.CSR_REFUSED and why in error.message
    unknown = await error_of(enrol(stub, "x" * 43, csr_der))
    assert unknown.to_status() == error.to_status(), "nothing is said about the token"
    assert (await enrol(stub, token)).name == "careful"


async def test_a_message_that_is_too_long_is_not_even_read(office: Office, stub: Stub) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await enrol(stub, "x", b"\0" * 2**20)
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_the_enrolment_port_offers_nothing_else(
    office: Office, channel: grpc.aio.Channel
) -> None:
    asked = label_pb2_grpc.LabelServiceStub(channel).GetService(label_pb2.GetServiceRequest())
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await asked
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await agent_pb2_grpc.AgentServiceStub(channel).Attend(iter([])).read()
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
    check = health_pb2.HealthCheckRequest(service="mpcvote.v1.EnrolmentService")
    answer = await health_pb2_grpc.HealthStub(channel).Check(check, timeout=SECONDS)
    assert answer.status == health_pb2.HealthCheckResponse.SERVING
    credentials = grpc.ssl_channel_credentials(office.ca.read_bytes())
    options = channel_options(COORDINATOR)
    with grpc.secure_channel(office.address, credentials, options=options) as blocking:
        listed = await asyncio.to_thread(
            lambda: sorted(ProtoReflectionDescriptorDatabase(blocking).get_services())
        )
    assert listed == [
        "grpc.health.v1.Health",
        "grpc.reflection.v1alpha.ServerReflection",
        "mpcvote.v1.EnrolmentService",
    ]


async def test_nobody_enrols_where_certificates_are_asked_for(office: Office, stub: Stub) -> None:
    certs = Credentials.load(office.cluster.client_certs)
    async with rpc.dial(certs, office.cluster.coordinator_address, COORDINATOR) as channel:
        other: Stub = enrolment_pb2_grpc.EnrolmentServiceStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await enrol(other, office.token("lost"))
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
    anonymous = rpc.dial_anonymously(
        office.ca.read_bytes(), office.cluster.coordinator_address, COORDINATOR
    )
    async with anonymous as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await label_pb2_grpc.LabelServiceStub(channel).GetService(
                label_pb2.GetServiceRequest(), timeout=SECONDS
            )
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_an_enrolled_agent_can_do_what_agents_can_and_no_more(
    office: Office, stub: Stub
) -> None:
    key = new_key()
    response = await enrol(stub, office.token("plain"), request_of(key))
    paths = CredentialPaths.in_directory(Path("plain"))
    ca_pem = office.ca.read_bytes()
    agent = Credentials.check(ca_pem, response.certificate_pem, pem.encode_key(key), paths)
    async with rpc.dial(agent, office.cluster.coordinator_address, COORDINATOR) as channel:
        labels = label_pb2_grpc.LabelServiceStub(channel)
        error = await error_of(labels.GetService(label_pb2.GetServiceRequest()))
        assert error.kind is ErrorKind.ROLE_REFUSED
        agents = agent_pb2_grpc.AgentServiceStub(channel)
        unknown: Any = agents.FetchQueries(agent_pb2.FetchQueriesRequest(round_id="none"))
        assert (await error_of(unknown)).kind is ErrorKind.ROUND_UNKNOWN


async def test_a_party_of_the_agents_authority_is_nobody_to_the_coordinator(
    office: Office, stub: Stub
) -> None:
    """The forgeries of all kinds are in tests/unit/pki/test_authority.py; this is the service
    itself."""
    issuer = x509.load_pem_x509_certificate((office.agents / "agents.pem").read_bytes())
    issuer_key = serialization.load_pem_private_key(
        (office.agents / "agents-key.pem").read_bytes(), password=None
    )
    assert isinstance(issuer_key, ec.EllipticCurvePrivateKey)
    for role in (Role.CLIENT, Role.PARTY, Role.COORDINATOR, Role.DEALER):
        key = new_key()
        name = x509.DNSName(Identity(role, "x").dns_name)
        leaf = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([]))
            .issuer_name(issuer.subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(issuer.not_valid_before_utc)
            .not_valid_after(issuer.not_valid_after_utc)
            .add_extension(x509.SubjectAlternativeName([name]), critical=True)
            .sign(issuer_key, hashes.SHA256())
        )
        chain = pem.encode_certificate(leaf) + pem.encode_certificate(issuer)
        forged = grpc.ssl_channel_credentials(office.ca.read_bytes(), pem.encode_key(key), chain)
        async with grpc.aio.secure_channel(
            office.cluster.coordinator_address, forged, options=channel_options(COORDINATOR)
        ) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await label_pb2_grpc.LabelServiceStub(channel).GetService(
                    label_pb2.GetServiceRequest(), timeout=SECONDS
                )
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_open_and_guarded_methods_share_no_server(office: Office) -> None:
    class Open(enrolment_pb2_grpc.EnrolmentServiceServicer):
        @rpc.anybody
        async def Enrol(self, request: Any, context: Any) -> Any:
            raise AssertionError

    class Guarded(enrolment_pb2_grpc.EnrolmentServiceServicer):
        @rpc.allowed(Role.AGENT)
        async def Enrol(self, request: Any, context: Any) -> Any:
            raise AssertionError

    async def health() -> dict[str, bool]:
        return {}

    credentials = Credentials.load(office.cluster.certs(Role.COORDINATOR, "coordinator"))
    for servicer, open_to_anybody in ((Open(), False), (Guarded(), True)):
        service = (enrolment_pb2_grpc.add_EnrolmentServiceServicer_to_server, servicer)
        with pytest.raises(TypeError, match="does not belong on this server"):
            rpc.Server(
                credentials, "127.0.0.1:0", [service], health, open_to_anybody=open_to_anybody
            )


# The coordinator's settings


def coordinator(office: Office, tmp_path: Path, *more: str) -> subprocess.CompletedProcess[str]:
    """A second coordinator, which ends at once for the mistake in its settings."""
    cluster = office.cluster
    parties = ",".join(f"{name}={address}" for name, address in cluster.party_addresses.items())
    certs = cluster.certs(Role.COORDINATOR, "coordinator")
    given = ("--certs", certs, "--data-dir", tmp_path / "data", "--parties", parties)
    return command("coordinator", *given, "--listen", "127.0.0.1:0", *more)


def test_enrolment_needs_an_authority(office: Office, tmp_path: Path) -> None:
    ended = coordinator(office, tmp_path, "--enrol-listen", "127.0.0.1:0")
    assert ended.returncode == 2
    assert "agent-authority: is missing" in ended.stderr


def test_an_agents_authority_of_another_federation_is_noticed(
    office: Office, tmp_path: Path
) -> None:
    command("certs", "--out", tmp_path / "other", "--agent-authority")
    agents = str(tmp_path / "other" / "agents")
    more = ["--enrol-listen", "127.0.0.1:0", "--agent-authority", agents]
    ended = coordinator(office, tmp_path, *more)
    assert ended.returncode == 1
    assert "is under another root" in ended.stderr


async def test_no_token_is_in_a_log_or_in_a_database(office: Office, stub: Stub) -> None:
    token = office.token("secretive")
    await enrol(stub, token)
    await error_of(enrol(stub, token))
    office.token("waiting")
    files = {path: path.read_bytes() for path in office.cluster.directory.rglob("*.*")}
    logs = [content for path, content in files.items() if path.suffix == ".log"]
    assert any(b"agent secretive enrolled" in content for content in logs)
    assert any(b"TOKEN_REFUSED" in content for content in logs)
    assert any(path.name.startswith("enrolment.db") for path in files)
    for path, content in files.items():
        assert not any(made.encode() in content for made in office.made), path


async def test_what_a_root_issued_is_not_renewed_here(office: Office, tmp_path: Path) -> None:
    """Else whoever the root's owner revokes by name goes on with what it got here before."""
    agent = Identity(Role.AGENT, "offline")
    office.cluster.authority.issue(agent, tmp_path)
    credentials = Credentials.load(tmp_path)
    address = office.cluster.coordinator_address
    async with rpc.dial(credentials, address, COORDINATOR) as channel:
        await asyncio.wait_for(channel.channel_ready(), SECONDS)
        request = enrolment_pb2.RenewRequest(csr_der=request_of(new_key()))
        stub: Stub = enrolment_pb2_grpc.RenewalServiceStub(channel)
        error = await error_of(stub.Renew(request, timeout=SECONDS))
    assert error.kind is ErrorKind.RENEWAL_ELSEWHERE


async def test_an_agent_that_enrolled_renews_its_certificate_by_itself(office: Office) -> None:
    """Its certificate has five days left when it starts; it goes on with another key."""
    directory = office.cluster.certs(Role.AGENT, "yearling")
    paths = CredentialPaths.in_directory(directory)
    key = ec.generate_private_key(ec.SECP256R1())
    start = dt.datetime.now(dt.UTC) - dt.timedelta(days=360)
    authority = AgentAuthority.load(office.agents)
    chain = authority.certify("yearling", key.public_key(), valid_from=start)
    paths.put(office.ca.read_bytes(), chain, pem.encode_key(key), overwrite=False)
    old = Credentials.load(paths)
    office.start("yearling")
    await office.attends("yearling")

    async def renewed() -> bool:
        return paths.certificate.read_bytes() != old.certificate_pem

    await until(renewed, "the certificate is another")
    new = Credentials.load(paths, Role.AGENT)
    assert new.identity == old.identity
    assert new.not_after > old.not_after
    assert new.key_pem != old.key_pem
    assert stat.S_IMODE(paths.key.stat().st_mode) == 0o600
    # With the old one revoked it still attends: it has moved.
    leaf = x509.load_pem_x509_certificate(old.certificate_pem)
    root = office.cluster.authority
    root.revoke([leaf.serial_number])
    served = CredentialPaths.in_directory(office.cluster.certs(Role.COORDINATOR, "coordinator"))
    pem.write(served.revoked, root.revoked.read_bytes(), pem.PUBLIC)

    async def refused() -> bool:
        async with rpc.dial(old_pair, office.cluster.coordinator_address, COORDINATOR) as channel:
            try:
                await rpc.reach(channel, "The coordinator")
            except VoteError as error:
                return error.values["why"].startswith("CERTIFICATE_REVOKED: ")
            return False

    old_pair = dataclasses.replace(old, files=None)
    await until(refused, "the old certificate is refused")
    await office.attends("yearling")
    office.cluster.stop_child("yearling")


async def test_what_an_authority_signed_is_refused_once_it_is_revoked(office: Office) -> None:
    """The agents' authority itself is on the list: no agent of its making gets in any more."""
    root = office.cluster.authority
    directory = office.cluster.directory
    other = root.delegate_agents(directory / "stolen")
    key = ec.generate_private_key(ec.SECP256R1())
    paths = CredentialPaths.in_directory(directory / "made-by-a-thief")
    chain = other.certify("made-by-a-thief", key.public_key())
    paths.put(office.ca.read_bytes(), chain, pem.encode_key(key), overwrite=False)
    made = Credentials.load(paths)
    async with rpc.dial(made, office.cluster.coordinator_address, COORDINATOR) as channel:
        await rpc.reach(channel, "The coordinator")
        root.revoke([x509.load_pem_x509_certificates(chain)[1].serial_number])
        served = CredentialPaths.in_directory(office.cluster.certs(Role.COORDINATOR, "coordinator"))
        pem.write(served.revoked, root.revoked.read_bytes(), pem.PUBLIC)

        async def refused() -> bool:
            try:
                await rpc.reach(channel, "The coordinator")
            except VoteError as error:
                return error.values["why"].startswith("CERTIFICATE_REVOKED: ")
            return False

        await until(refused, "what the authority signed is refused")
