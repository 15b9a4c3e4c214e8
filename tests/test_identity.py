"""Certificates name one role and one name, and nothing else gets through TLS."""

from __future__ import annotations

import contextlib
import datetime as dt
import stat
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import grpc.aio
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given
from hypothesis import strategies as st

from mpc_vote.identity import (
    CertificateAuthority,
    CredentialPaths,
    Credentials,
    Identity,
    IdentityError,
    Role,
    channel_options,
    peer_identity,
    server_options,
)

AGENT = Identity(Role.AGENT, "clinic-3")
PARTY_0 = Identity(Role.PARTY, "party-0")
PARTY_1 = Identity(Role.PARTY, "party-1")
SECONDS = 10.0

identities = st.builds(
    Identity,
    st.sampled_from(Role),
    st.from_regex(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", fullmatch=True),
)


def days_ago(days: float) -> dt.datetime:
    return dt.datetime.now(dt.UTC) - dt.timedelta(days=days)


@pytest.fixture
def authority(tmp_path: Path) -> CertificateAuthority:
    return CertificateAuthority.create(tmp_path / "authority")


@pytest.fixture
def issued(authority: CertificateAuthority, tmp_path: Path) -> CredentialPaths:
    return authority.issue(AGENT, tmp_path / "agent")


def credentials(authority: CertificateAuthority, identity: Identity, where: Path) -> Credentials:
    authority.issue(identity, where)
    return Credentials.load(where)


# Names


@given(identities)
def test_an_identity_survives_its_dns_name(identity: Identity) -> None:
    assert Identity.from_dns_name(identity.dns_name) == identity


@pytest.mark.parametrize("name", ["", "-a", "a-", "A", "a.b", "a_b", "*", "a\n", "é", "a" * 64])
def test_a_name_that_is_no_dns_label_is_refused(name: str) -> None:
    with pytest.raises(IdentityError, match="can't be a name"):
        Identity(Role.AGENT, name)


@pytest.mark.parametrize(
    "dns_name",
    [
        "party-0.party",
        "party-0.party.mpc-vote.",
        "party-0.party.mpc-vote.example.org",
        "party-0.PARTY.mpc-vote",
        "party-0.king.mpc-vote",
        "x.party-0.party.mpc-vote",
        "*.party.mpc-vote",
        ".party.mpc-vote",
    ],
)
def test_a_dns_name_of_another_form_is_no_identity(dns_name: str) -> None:
    with pytest.raises(IdentityError):
        Identity.from_dns_name(dns_name)


# The caller's names, as gRPC hands them over


def context(*names: bytes) -> Mapping[str, list[bytes]]:
    return {"transport_security_type": [b"ssl"], "x509_subject_alternative_name": list(names)}


def test_the_caller_is_who_its_one_name_says_it_is() -> None:
    assert peer_identity(context(b"localhost", b"party-0.party.mpc-vote", b"127.0.0.1")) == PARTY_0


@pytest.mark.parametrize(
    "names",
    [
        [],
        [b"localhost"],
        [b"party-0.party.mpc-vote", b"party-1.party.mpc-vote"],
        [b"party-0.party.mpc-vote", b"party-0.party.mpc-vote"],
        [b"party-0.party.mpc-vote", b"*.mpc-vote"],
        [b"party-0.party.mpc-vote", b"dealer.dealer.MPC-VOTE"],
        [b"party-0.party.mpc-vote", b"dealer.dealer.mpc-vote."],
        [b"*.party.mpc-vote"],
        [b"king.king.mpc-vote"],
        [b"mpc-vote"],
        [b"party-\xff.party.mpc-vote"],
    ],
)
def test_a_certificate_without_exactly_one_valid_name_is_nobody(names: list[bytes]) -> None:
    assert peer_identity(context(*names)) is None


def test_a_plaintext_context_is_nobody() -> None:
    assert peer_identity({}) is None


# The authority


def test_keys_are_their_owners_only(issued: CredentialPaths, tmp_path: Path) -> None:
    for key in [issued.key, tmp_path / "authority" / "ca-key.pem"]:
        assert stat.S_IMODE(key.stat().st_mode) == 0o600
        assert stat.S_IMODE(key.parent.stat().st_mode) == 0o700
    assert sorted(path.name for path in issued.key.parent.iterdir()) == [
        "ca.pem",
        "cert.pem",
        "key.pem",
    ]


def test_the_authority_can_sign_certificates_and_nothing_else(tmp_path: Path) -> None:
    CertificateAuthority.create(tmp_path / "authority")
    extensions = x509.load_pem_x509_certificate(
        (tmp_path / "authority" / "ca.pem").read_bytes()
    ).extensions
    constraints = extensions.get_extension_for_class(x509.BasicConstraints)
    usage = extensions.get_extension_for_class(x509.KeyUsage)
    assert constraints.critical and usage.critical
    assert (constraints.value.ca, constraints.value.path_length) == (True, 0)
    assert usage.value.key_cert_sign and not usage.value.digital_signature


def test_a_leaf_can_sign_no_certificate_and_carries_its_hosts(
    authority: CertificateAuthority, tmp_path: Path
) -> None:
    paths = authority.issue(PARTY_0, tmp_path / "party", hosts=["localhost", "::1"], days=30)
    leaf = x509.load_pem_x509_certificate(paths.certificate.read_bytes())
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == [PARTY_0.dns_name, "localhost"]
    assert [str(ip) for ip in names.get_values_for_type(x509.IPAddress)] == ["::1"]
    assert not leaf.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert leaf.not_valid_before_utc < days_ago(0) - dt.timedelta(minutes=1)
    assert leaf.not_valid_after_utc - leaf.not_valid_before_utc == dt.timedelta(days=30)


def test_the_longest_name_fits_in_a_certificate(
    authority: CertificateAuthority, tmp_path: Path
) -> None:
    identity = Identity(Role.COORDINATOR, "c" * 63)
    assert credentials(authority, identity, tmp_path / "long").identity == identity


def test_an_authority_loaded_again_issues_under_the_same_root(
    authority: CertificateAuthority, tmp_path: Path
) -> None:
    again = CertificateAuthority.load(tmp_path / "authority")
    paths = again.issue(AGENT, tmp_path / "agent", days=30_000)
    loaded = Credentials.load(paths, Role.AGENT)
    root = x509.load_pem_x509_certificate((tmp_path / "authority" / "ca.pem").read_bytes())
    assert loaded.identity == AGENT
    assert loaded.not_after == root.not_valid_after_utc


@pytest.mark.parametrize(
    "host", ["evil.party.mpc-vote", "mpc-vote", "X.Party.MPC-Vote.", "*.example.org", "a b", ""]
)
def test_a_host_that_could_pass_for_an_identity_is_not_issued(
    authority: CertificateAuthority, tmp_path: Path, host: str
) -> None:
    with pytest.raises(IdentityError):
        authority.issue(AGENT, tmp_path / "agent", hosts=[host])
    assert not (tmp_path / "agent").exists()


def test_nothing_is_overwritten_unless_asked(
    authority: CertificateAuthority, issued: CredentialPaths, tmp_path: Path
) -> None:
    before = issued.key.read_bytes()
    issued.certificate.unlink()
    with pytest.raises(IdentityError, match="would be overwritten"):
        authority.issue(AGENT, issued.key.parent)
    with pytest.raises(IdentityError, match="would be overwritten"):
        CertificateAuthority.create(tmp_path / "authority")
    assert issued.key.read_bytes() == before
    assert not issued.certificate.exists()
    authority.issue(AGENT, issued.key.parent, overwrite=True)
    assert issued.key.read_bytes() != before
    assert Credentials.load(issued).identity == AGENT


def test_a_directory_that_others_write_to_is_refused(
    authority: CertificateAuthority, tmp_path: Path
) -> None:
    open_to_all = tmp_path / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    with pytest.raises(IdentityError, match=f"chmod 700 {open_to_all}"):
        authority.issue(AGENT, open_to_all)
    assert list(open_to_all.iterdir()) == []


@pytest.mark.parametrize("days", [0, -1])
def test_a_certificate_that_is_never_valid_is_not_issued(
    authority: CertificateAuthority, tmp_path: Path, days: int
) -> None:
    with pytest.raises(IdentityError, match="never be valid"):
        authority.issue(AGENT, tmp_path / "agent", days=days)


def test_an_authority_whose_key_was_swapped_does_not_load(
    authority: CertificateAuthority, issued: CredentialPaths, tmp_path: Path
) -> None:
    (tmp_path / "authority" / "ca-key.pem").write_bytes(issued.key.read_bytes())
    with pytest.raises(IdentityError, match="is not that of the authority"):
        CertificateAuthority.load(tmp_path / "authority")


# Files that can't be used, each with its own message


def swap_key(paths: CredentialPaths, scratch: Path) -> None:
    other = CertificateAuthority.create(scratch / "other").issue(AGENT, scratch / "swap")
    paths.key.write_bytes(other.key.read_bytes())


def swap_authority(paths: CredentialPaths, scratch: Path) -> None:
    CertificateAuthority.create(scratch / "other")
    paths.ca.write_bytes((scratch / "other" / "ca.pem").read_bytes())


def encrypt_key(paths: CredentialPaths, scratch: Path) -> None:
    key = serialization.load_pem_private_key(paths.key.read_bytes(), password=None)
    paths.key.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda paths, _: paths.ca.unlink(), r"ca\.pem is missing"),
        (lambda paths, _: paths.certificate.unlink(), r"cert\.pem is missing"),
        (lambda paths, _: paths.key.unlink(), r"key\.pem is missing"),
        (lambda paths, _: paths.ca.write_text("x"), r"ca\.pem holds no readable PEM certificate"),
        (lambda paths, _: paths.certificate.write_text(""), r"cert\.pem holds no readable PEM"),
        (lambda paths, _: paths.key.write_text("x"), r"key\.pem holds no readable PEM private key"),
        (lambda paths, _: paths.key.chmod(0o640), r"chmod 600 .*key\.pem"),
        (lambda paths, _: paths.key.chmod(0o604), r"chmod 600 .*key\.pem"),
        (encrypt_key, r"key\.pem is encrypted"),
        (swap_key, r"does not belong to the certificate"),
        (swap_authority, r"was not issued by the authority"),
    ],
)
def test_a_damaged_file_is_named_with_its_remedy(
    issued: CredentialPaths,
    tmp_path: Path,
    damage: Callable[[CredentialPaths, Path], None],
    message: str,
) -> None:
    damage(issued, tmp_path)
    with pytest.raises(IdentityError, match=message):
        Credentials.load(issued)


def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(IdentityError, match=r"nowhere .* does not exist"):
        Credentials.load(tmp_path / "nowhere")


def test_a_directory_in_the_place_of_a_file_is_named(issued: CredentialPaths) -> None:
    issued.certificate.unlink()
    issued.certificate.mkdir()
    with pytest.raises(IdentityError, match=r"cert\.pem can't be read"):
        Credentials.load(issued)


def test_expiry_is_told_with_its_date(authority: CertificateAuthority, tmp_path: Path) -> None:
    start = days_ago(10)
    paths = authority.issue(AGENT, tmp_path / "old", days=3, valid_from=start)
    with pytest.raises(IdentityError, match=f"expired on {start + dt.timedelta(days=3):%Y-%m-%d}"):
        Credentials.load(paths)


def test_a_certificate_of_the_future_is_told_with_its_date(
    authority: CertificateAuthority, tmp_path: Path
) -> None:
    start = days_ago(-2)
    paths = authority.issue(AGENT, tmp_path / "new", valid_from=start)
    with pytest.raises(IdentityError, match=f"valid only from {start:%Y-%m-%d %H:%M}"):
        Credentials.load(paths)


def test_another_roles_certificate_is_refused(issued: CredentialPaths) -> None:
    with pytest.raises(IdentityError, match=r"is of agent/clinic-3, but this process is a party"):
        Credentials.load(issued, Role.PARTY)


def test_a_certificate_that_names_two_identities_is_refused(
    issued: CredentialPaths, tmp_path: Path
) -> None:
    """As a foreign tool could issue it with the authority's key; ours can't."""
    issuer = x509.load_pem_x509_certificate(issued.ca.read_bytes())
    leaf = x509.load_pem_x509_certificate(issued.certificate.read_bytes())
    key = serialization.load_pem_private_key(
        (tmp_path / "authority" / "ca-key.pem").read_bytes(), password=None
    )
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    names = [x509.DNSName(PARTY_0.dns_name), x509.DNSName(PARTY_1.dns_name)]
    forged = (
        x509.CertificateBuilder()
        .subject_name(leaf.subject)
        .issuer_name(issuer.subject)
        .public_key(leaf.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(leaf.not_valid_before_utc)
        .not_valid_after(leaf.not_valid_after_utc)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .sign(key, hashes.SHA256())
    )
    issued.certificate.write_bytes(forged.public_bytes(serialization.Encoding.PEM))
    with pytest.raises(IdentityError, match="does not name exactly one identity"):
        Credentials.load(issued)


def test_two_authorities_are_trusted_while_one_replaces_the_other(
    issued: CredentialPaths, tmp_path: Path
) -> None:
    CertificateAuthority.create(tmp_path / "next")
    with issued.ca.open("r+b") as file:
        ours = file.read()
        file.seek(0)
        file.write((tmp_path / "next" / "ca.pem").read_bytes() + ours)
    assert Credentials.load(issued).identity == AGENT


def test_a_key_is_not_printed(issued: CredentialPaths) -> None:
    assert "PRIVATE" not in repr(Credentials.load(issued))


# Real connections


@dataclass
class WhoAmI:
    """A service that answers with the caller's identity and remembers whom it answered."""

    address: str = ""
    callers: list[Identity | None] = field(default_factory=list)

    async def answer(
        self, request: bytes, context: grpc.aio.ServicerContext[bytes, bytes]
    ) -> bytes:
        caller = peer_identity(context.auth_context())
        self.callers.append(caller)
        return str(caller).encode()

    def handlers(self) -> grpc.GenericRpcHandler:
        method: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(
            self.answer
        )
        return grpc.method_handlers_generic_handler("test.WhoAmI", {"Ask": method})


async def ask(channel: grpc.aio.Channel) -> str:
    method: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary("/test.WhoAmI/Ask")
    async with channel:
        return (await method(b"", timeout=SECONDS)).decode()


def dial(service: WhoAmI, caller: Credentials, server: Identity) -> grpc.aio.Channel:
    return grpc.aio.secure_channel(
        service.address, caller.channel_credentials(), options=channel_options(server)
    )


@contextlib.asynccontextmanager
async def serving(credentials: Credentials) -> AsyncIterator[WhoAmI]:
    service = WhoAmI()
    server = grpc.aio.server(options=server_options())
    server.add_generic_rpc_handlers((service.handlers(),))
    port = server.add_secure_port("127.0.0.1:0", credentials.server_credentials())
    service.address = f"127.0.0.1:{port}"
    await server.start()
    try:
        yield service
    finally:
        await server.stop(None)


@pytest.fixture
async def party_0(authority: CertificateAuthority, tmp_path: Path) -> AsyncIterator[WhoAmI]:
    async with serving(credentials(authority, PARTY_0, tmp_path / "party-0")) as service:
        yield service


@pytest.fixture
def agent(issued: CredentialPaths) -> Credentials:
    return Credentials.load(issued, Role.AGENT)


async def refused(service: WhoAmI, channel: grpc.aio.Channel, agent: Credentials) -> str:
    """The refusal's details, having made sure that the same server answers a proper caller."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await ask(channel)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert service.callers == []
    assert await ask(dial(service, agent, PARTY_0)) == str(AGENT)
    return caught.value.details() or ""


async def test_the_server_sees_who_calls(party_0: WhoAmI, agent: Credentials) -> None:
    assert await ask(dial(party_0, agent, PARTY_0)) == "agent/clinic-3"
    assert party_0.callers == [AGENT]


async def test_plaintext_is_refused(party_0: WhoAmI, agent: Credentials) -> None:
    await refused(party_0, grpc.aio.insecure_channel(party_0.address), agent)


async def test_a_caller_without_a_certificate_is_refused(
    party_0: WhoAmI, agent: Credentials
) -> None:
    anonymous = grpc.ssl_channel_credentials(agent.ca_pem)
    channel = grpc.aio.secure_channel(party_0.address, anonymous, options=channel_options(PARTY_0))
    await refused(party_0, channel, agent)


async def test_a_caller_of_another_authority_is_refused(
    party_0: WhoAmI, agent: Credentials, tmp_path: Path
) -> None:
    other = CertificateAuthority.create(tmp_path / "other")
    stranger = credentials(other, AGENT, tmp_path / "stranger")
    trusting = grpc.ssl_channel_credentials(
        agent.ca_pem, stranger.key_pem, stranger.certificate_pem
    )
    channel = grpc.aio.secure_channel(party_0.address, trusting, options=channel_options(PARTY_0))
    await refused(party_0, channel, agent)


async def test_a_server_of_another_authority_is_refused(
    party_0: WhoAmI, agent: Credentials, tmp_path: Path
) -> None:
    other = CertificateAuthority.create(tmp_path / "other")
    stranger = credentials(other, AGENT, tmp_path / "stranger")
    details = await refused(party_0, dial(party_0, stranger, PARTY_0), agent)
    assert "CERTIFICATE_VERIFY_FAILED" in details


async def test_an_expired_caller_is_refused(
    party_0: WhoAmI, agent: Credentials, authority: CertificateAuthority, tmp_path: Path
) -> None:
    old = authority.issue(AGENT, tmp_path / "old", days=1, valid_from=days_ago(2))
    expired = grpc.ssl_channel_credentials(
        old.ca.read_bytes(), old.key.read_bytes(), old.certificate.read_bytes()
    )
    channel = grpc.aio.secure_channel(party_0.address, expired, options=channel_options(PARTY_0))
    await refused(party_0, channel, agent)


@pytest.mark.parametrize(
    "meant", [PARTY_1, Identity(Role.DEALER, "party-0"), Identity(Role.COORDINATOR, "server")]
)
async def test_a_server_with_another_role_or_name_is_refused(
    party_0: WhoAmI, agent: Credentials, meant: Identity
) -> None:
    details = await refused(party_0, dial(party_0, agent, meant), agent)
    assert "Hostname Verification Check failed" in details


async def test_a_host_name_in_a_certificate_lends_no_identity(
    authority: CertificateAuthority, agent: Credentials, tmp_path: Path
) -> None:
    """An agent that runs a server, reachable under a name of its own, is no party to anybody."""
    authority.issue(AGENT, tmp_path / "rogue", hosts=["localhost", "127.0.0.1"])
    async with serving(Credentials.load(tmp_path / "rogue")) as service:
        with pytest.raises(grpc.aio.AioRpcError, match="Hostname Verification Check failed"):
            await ask(dial(service, agent, PARTY_0))
        assert await ask(dial(service, agent, AGENT)) == str(AGENT)


async def test_a_second_server_on_the_same_port_fails(party_0: WhoAmI, agent: Credentials) -> None:
    second = grpc.aio.server(options=server_options())
    with pytest.raises(RuntimeError, match="Failed to bind"):
        second.add_secure_port(party_0.address, agent.server_credentials())
