"""Certificates name one role and one name, and nothing else gets through TLS."""

from __future__ import annotations

import datetime as dt
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import grpc
import grpc.aio
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given
from hypothesis import strategies as st

from mpc_vote.pki.authority import CertificateAuthority
from mpc_vote.pki.identity import (
    CredentialPaths,
    Credentials,
    Identity,
    IdentityError,
    Role,
    channel_options,
    peer_identity,
    server_options,
)
from tests.connections import WhoAmI, ask, caller_named, dial, serving

AGENT = Identity(Role.AGENT, "clinic-3")
PARTY_0 = Identity(Role.PARTY, "party-0")
PARTY_1 = Identity(Role.PARTY, "party-1")

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


# The caller's names, in its certificate


def test_the_caller_is_who_its_one_name_says_it_is() -> None:
    assert peer_identity(caller_named(b"localhost", b"party-0.party.mpc-vote")) == PARTY_0


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
        [b"party-0.party.mpc-vote\0.clinic-3.agent.mpc-vote"],
        [b"party-0.party.mpc-vote\0"],
    ],
)
def test_a_certificate_without_exactly_one_valid_name_is_nobody(names: list[bytes]) -> None:
    assert peer_identity(caller_named(*names)) is None


def test_a_name_of_another_kind_is_nobody() -> None:
    """As a URI, say, which an authority's limits on DNS names don't reach."""
    assert peer_identity(caller_named(uris=[b"party-0.party.mpc-vote"])) is None
    both = caller_named(b"clinic-3.agent.mpc-vote", uris=[b"party-0.party.mpc-vote"])
    assert peer_identity(both) is None


def test_a_plaintext_context_is_nobody() -> None:
    assert peer_identity({}) is None


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
    with pytest.raises(IdentityError, match=r"is of agent/clinic-3, but the role party is"):
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


@pytest.mark.parametrize(
    ("days", "left", "warns"), [(365, 31, False), (365, 29, True), (9, 4, False), (9, 2, True)]
)
def test_a_certificate_that_ends_soon_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, days: int, left: int, warns: bool
) -> None:
    """A month before its end, or at the last third of its life if that is less."""
    start = dt.datetime.now(dt.UTC) - dt.timedelta(days=days - left)
    authority = CertificateAuthority.create(tmp_path / "ca")
    authority.issue(Identity(Role.PARTY, "a"), tmp_path / "a", days=days, valid_from=start)
    Credentials.load(tmp_path / "a")
    assert ("renew it" in caplog.text) is warns
