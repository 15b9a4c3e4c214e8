"""What an authority issues, and what nobody accepts from the one that may make agents only."""

from __future__ import annotations

import datetime as dt
import ipaddress
import stat
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import grpc.aio
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from mpc_vote import pem
from mpc_vote.authority import AgentAuthority, CertificateAuthority
from mpc_vote.identity import CredentialPaths, Credentials, Identity, IdentityError, Role
from tests.connections import WhoAmI, ask, dial, serving

AGENT = Identity(Role.AGENT, "clinic-3")
PARTY_0 = Identity(Role.PARTY, "party-0")


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


# The root


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
    assert (constraints.value.ca, constraints.value.path_length) == (True, 1)
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


# The agents' authority


@dataclass
class Agents:
    """An agents' authority, whose key is at hand to sign with it what it should not."""

    directory: Path
    authority: AgentAuthority

    def certify(self, name: str) -> Credentials:
        """An agent as it should be."""
        key = ec.generate_private_key(ec.SECP256R1())
        return self._credentials(self.authority.certify(name, key.public_key()), key)

    def forge(
        self,
        names: Sequence[x509.GeneralName],
        common_name: str = "x",
        *,
        authority: bool = False,
        start: dt.datetime | None = None,
        days: int = 1,
    ) -> Credentials:
        """A certificate with any names at all, unchecked."""
        issuer = x509.load_pem_x509_certificate((self.directory / "agents.pem").read_bytes())
        issuer_key = serialization.load_pem_private_key(
            (self.directory / "agents-key.pem").read_bytes(), password=None
        )
        assert isinstance(issuer_key, ec.EllipticCurvePrivateKey)
        key = ec.generate_private_key(ec.SECP256R1())
        start = start or days_ago(0.5)
        usages = [ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]
        builder = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)]))
            .issuer_name(issuer.subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(start)
            .not_valid_after(start + dt.timedelta(days=days))
            .add_extension(x509.BasicConstraints(authority, None), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()),
                critical=False,
            )
        )
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        leaf = builder.sign(issuer_key, hashes.SHA256())
        chain = pem.encode_certificate(leaf) + pem.encode_certificate(issuer)
        return self._credentials(chain, key)

    def _credentials(self, chain: bytes, key: ec.EllipticCurvePrivateKey) -> Credentials:
        ca_pem = (self.directory / "ca.pem").read_bytes()
        return Credentials(AGENT, days_ago(1), days_ago(-1), ca_pem, chain, pem.encode_key(key))


def checked(given: Credentials) -> Credentials:
    """What `Credentials.load` makes of these contents."""
    paths = CredentialPaths.in_directory(Path("somewhere"))
    return Credentials.check(given.ca_pem, given.certificate_pem, given.key_pem, paths)


@pytest.fixture
def agents(authority: CertificateAuthority, tmp_path: Path) -> Agents:
    return Agents(tmp_path / "agents", authority.delegate_agents(tmp_path / "agents"))


@pytest.fixture
async def party_0(authority: CertificateAuthority, tmp_path: Path) -> AsyncIterator[WhoAmI]:
    async with serving(credentials(authority, PARTY_0, tmp_path / "party-0")) as service:
        yield service


def email(address: str) -> x509.RFC822Name:
    return x509.RFC822Name(address)


DNS, URI = x509.DNSName, x509.UniformResourceIdentifier
PARTY_NAME = PARTY_0.dns_name
AGENT_NAME = AGENT.dns_name
NOBODY = x509.RegisteredID(x509.ObjectIdentifier("1.2.3.4"))
SOMEBODY = x509.DirectoryName(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, PARTY_NAME)]))

# What the holder of the agents' authority could sign to be a party, as a client or a server.
FORGERIES: dict[str, tuple[list[x509.GeneralName], str]] = {
    "dns": ([DNS(PARTY_NAME)], "x"),
    "dns beside an agent's": ([DNS(AGENT_NAME), DNS(PARTY_NAME)], "x"),
    "wildcard": ([DNS("*.party.mpc-vote")], "x"),
    "a parent's wildcard": ([DNS("*.mpc-vote")], "x"),
    "upper case": ([DNS("PARTY-0.PARTY.MPC-VOTE")], "x"),
    "uri": ([URI(PARTY_NAME)], "x"),
    "uri with a scheme": ([URI(f"spiffe://{PARTY_NAME}")], "x"),
    "uri beside an agent's name": ([DNS(AGENT_NAME), URI(PARTY_NAME)], "x"),
    "e-mail": ([email(PARTY_NAME)], "x"),
    "e-mail with an at": ([email(f"a@{PARTY_NAME}")], "x"),
    "address": ([DNS(AGENT_NAME), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))], "x"),
    "a zero before an agent's": ([DNS(f"{PARTY_NAME}\0.{AGENT_NAME}")], "x"),
    "a zero before all agents'": ([DNS(f"{PARTY_NAME}\0.agent.mpc-vote")], "x"),
    "common name alone": ([], PARTY_NAME),
    "common name and an odd name": ([NOBODY], PARTY_NAME),
    "common name and a directory name": ([SOMEBODY], PARTY_NAME),
    "common name and an agent's name": ([DNS(AGENT_NAME)], PARTY_NAME),
}


def test_the_agents_authority_is_limited_by_its_certificate(agents: Agents) -> None:
    certificate = x509.load_pem_x509_certificate((agents.directory / "agents.pem").read_bytes())
    extensions = certificate.extensions
    basic = extensions.get_extension_for_class(x509.BasicConstraints)
    names = extensions.get_extension_for_class(x509.NameConstraints)
    usage = extensions.get_extension_for_class(x509.ExtendedKeyUsage)
    assert basic.critical and names.critical
    assert (basic.value.ca, basic.value.path_length) == (True, 0)
    assert DNS("agent.mpc-vote") in (names.value.permitted_subtrees or [])
    assert list(usage.value) == [ExtendedKeyUsageOID.CLIENT_AUTH]
    assert stat.S_IMODE((agents.directory / "agents-key.pem").stat().st_mode) == 0o600


def test_an_agent_of_the_agents_authority_loads(agents: Agents, tmp_path: Path) -> None:
    given = agents.certify("clinic-9")
    files = {"ca.pem": given.ca_pem, "cert.pem": given.certificate_pem, "key.pem": given.key_pem}
    folder = tmp_path / "clinic-9"
    folder.mkdir()
    for name, content in files.items():
        pem.write(folder / name, content, pem.SECRET)
    assert Credentials.load(folder, Role.AGENT).identity == Identity(Role.AGENT, "clinic-9")


def test_the_agents_authority_loaded_again_certifies(agents: Agents) -> None:
    again = Agents(agents.directory, AgentAuthority.load(agents.directory))
    assert checked(again.certify("clinic-9")).identity.name == "clinic-9"


@pytest.mark.parametrize("name", ["a.party", "party-0.party.mpc-vote", "", "*", "A"])
def test_the_agents_authority_certifies_no_odd_name(agents: Agents, name: str) -> None:
    with pytest.raises(IdentityError, match="can't be a name"):
        agents.certify(name)


def test_an_agents_authority_of_another_root_does_not_load(agents: Agents, tmp_path: Path) -> None:
    CertificateAuthority.create(tmp_path / "other")
    (agents.directory / "ca.pem").write_bytes((tmp_path / "other" / "ca.pem").read_bytes())
    with pytest.raises(IdentityError, match="is not under the root"):
        AgentAuthority.load(agents.directory)


def test_the_agents_authority_is_not_overwritten_unless_asked(
    agents: Agents, authority: CertificateAuthority
) -> None:
    before = (agents.directory / "agents-key.pem").read_bytes()
    with pytest.raises(IdentityError, match="would be overwritten"):
        authority.delegate_agents(agents.directory)
    assert (agents.directory / "agents-key.pem").read_bytes() == before
    old = agents.certify("clinic-9")
    authority.delegate_agents(agents.directory, overwrite=True)
    assert checked(old).identity.name == "clinic-9", "what the old one issued stays valid"


@pytest.mark.parametrize("names", FORGERIES.values(), ids=FORGERIES)
def test_what_goes_beyond_agents_does_not_load(
    agents: Agents, names: tuple[list[x509.GeneralName], str]
) -> None:
    forged = agents.forge(*names)
    try:
        loaded = checked(forged)
    except IdentityError:
        return
    assert loaded.identity == AGENT and names[0] == [DNS(AGENT_NAME)]


def test_an_agent_without_its_authoritys_certificate_does_not_load(agents: Agents) -> None:
    whole = agents.certify("clinic-9")
    leaf, *_ = x509.load_pem_x509_certificates(whole.certificate_pem)
    alone = replace(whole, certificate_pem=pem.encode_certificate(leaf))
    with pytest.raises(IdentityError, match="was not issued by the authority"):
        checked(alone)


def test_an_agent_of_an_expired_agents_authority_does_not_load(
    authority: CertificateAuthority, tmp_path: Path
) -> None:
    where = tmp_path / "agents"
    old = Agents(where, authority.delegate_agents(where, days=2, valid_from=days_ago(3)))
    forged = old.forge([DNS(AGENT_NAME)], days=30)
    with pytest.raises(IdentityError, match="expired on"):
        checked(forged)
    with pytest.raises(IdentityError, match="expired on"):
        AgentAuthority.load(where)
    with pytest.raises(IdentityError, match="expired on"):
        old.authority.check()


def test_an_expired_agent_does_not_load(agents: Agents) -> None:
    with pytest.raises(IdentityError, match="expired on"):
        checked(agents.forge([DNS(AGENT_NAME)], start=days_ago(3)))


def test_an_agents_authority_is_no_root_to_trust(agents: Agents) -> None:
    """gRPC would take it for the end of the chain, without its limits."""
    given = agents.certify("clinic-9")
    widened = given.ca_pem + (agents.directory / "agents.pem").read_bytes()
    with pytest.raises(IdentityError, match="Only roots belong there"):
        checked(replace(given, ca_pem=widened))


# The same over TLS


async def test_a_server_knows_an_agent_of_the_agents_authority(
    party_0: WhoAmI, agents: Agents
) -> None:
    assert await ask(dial(party_0, agents.certify("clinic-9"), PARTY_0)) == "agent/clinic-9"


@pytest.mark.parametrize("names", FORGERIES.values(), ids=FORGERIES)
async def test_a_server_takes_no_forged_caller_for_a_party(
    party_0: WhoAmI, agents: Agents, names: tuple[list[x509.GeneralName], str]
) -> None:
    try:
        answer = await ask(dial(party_0, agents.forge(*names), PARTY_0))
    except grpc.aio.AioRpcError as error:
        assert error.code() is grpc.StatusCode.UNAVAILABLE
        answer = "None"
    assert answer in (str(AGENT), "None")
    assert {str(caller) for caller in party_0.callers} <= {str(AGENT), "None"}
    assert await ask(dial(party_0, agents.certify("clinic-9"), PARTY_0)) == "agent/clinic-9"


@pytest.mark.parametrize("name", ["dns", "dns beside an agent's", "uri", "e-mail", "address"])
async def test_a_server_ends_the_handshake_of_a_forged_caller(
    party_0: WhoAmI, agents: Agents, name: str
) -> None:
    with pytest.raises(grpc.aio.AioRpcError):
        await ask(dial(party_0, agents.forge(*FORGERIES[name]), PARTY_0))
    assert party_0.callers == []


@pytest.mark.parametrize("meant", [PARTY_0, AGENT], ids=str)
@pytest.mark.parametrize("names", FORGERIES.values(), ids=FORGERIES)
async def test_a_client_takes_nothing_of_the_agents_authority_for_a_server(
    issued: CredentialPaths,
    agents: Agents,
    names: tuple[list[x509.GeneralName], str],
    meant: Identity,
) -> None:
    async with serving(agents.forge(*names)) as service:
        with pytest.raises(grpc.aio.AioRpcError, match=r"VERIFY_FAILED|Hostname"):
            await ask(dial(service, Credentials.load(issued), meant))
        assert service.callers == []


async def test_an_agent_is_no_authority(party_0: WhoAmI, agents: Agents) -> None:
    """A certificate below an agent's, or below an authority that the agents' authority made."""
    for middle in (
        agents.certify("clinic-9"),
        agents.forge([DNS("x.agent.mpc-vote")], authority=True),
    ):
        issuer, *above = x509.load_pem_x509_certificates(middle.certificate_pem)
        issuer_key = serialization.load_pem_private_key(middle.key_pem, password=None)
        assert isinstance(issuer_key, ec.EllipticCurvePrivateKey)
        key = ec.generate_private_key(ec.SECP256R1())
        leaf = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([]))
            .issuer_name(issuer.subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(days_ago(0.1))
            .not_valid_after(days_ago(-0.1))
            .add_extension(x509.SubjectAlternativeName([DNS(AGENT_NAME)]), critical=True)
            .sign(issuer_key, hashes.SHA256())
        )
        chain = b"".join(pem.encode_certificate(one) for one in (leaf, issuer, *above))
        forged = replace(middle, certificate_pem=chain, key_pem=pem.encode_key(key))
        with pytest.raises(grpc.aio.AioRpcError):
            await ask(dial(party_0, forged, PARTY_0))
        with pytest.raises(IdentityError):
            checked(forged)
    assert party_0.callers == []
