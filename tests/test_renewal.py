"""Files of an identity that are replaced while it is in use.

Invariants: what is whole and fits is taken up, and nothing else is; what was in use stays in use
until then; what has been revoked stays so.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import resource
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from agent_node import enrolment
from mpc_vote import cli, identity, pem, revocation, rpc
from mpc_vote.authority import CertificateAuthority
from mpc_vote.errors import ErrorKind, VoteError
from mpc_vote.identity import CredentialPaths, Credentials, Identity, IdentityError, Role
from mpc_vote.proto.mpcvote.v1 import enrolment_pb2
from mpc_vote.revocation import Revocations
from tests.connections import caller_named
from tests.fuzz.fakes import Channel

PARTY = Identity(Role.PARTY, "a")


@pytest.fixture(autouse=True)
def at_every_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identity, "_LOOK_SECONDS", 0.0)


@pytest.fixture
def authority(tmp_path: Path) -> CertificateAuthority:
    return CertificateAuthority.create(tmp_path / "ca")


@pytest.fixture
def paths(authority: CertificateAuthority, tmp_path: Path) -> CredentialPaths:
    return authority.issue(PARTY, tmp_path / "a")


def serial(credentials: Credentials) -> int:
    return x509.load_pem_x509_certificate(credentials.certificate_pem).serial_number


def roots(paths: CredentialPaths) -> list[x509.Certificate]:
    return pem.parse_certificates(paths.ca.read_bytes(), paths.ca)


def test_a_renewed_pair_is_taken_up(
    authority: CertificateAuthority, paths: CredentialPaths
) -> None:
    old = Credentials.load(paths)
    assert old.newest() is old
    authority.issue(PARTY, paths.ca.parent, overwrite=True)
    new = old.newest()
    assert new.certificate_pem == paths.certificate.read_bytes() != old.certificate_pem
    assert new.key_pem == paths.key.read_bytes() != old.key_pem
    assert new.newest() is new
    assert not paths.next_key.exists()


@pytest.mark.parametrize(
    "make", [Credentials.server_credentials, Credentials.open_server_credentials]
)
def test_a_server_is_told_of_a_pair_once(
    authority: CertificateAuthority,
    paths: CredentialPaths,
    monkeypatch: pytest.MonkeyPatch,
    make: Callable[[Credentials], object],
) -> None:
    """gRPC crashes, now and then, where each handshake replaces what others in flight use."""
    asked = []

    def dynamic(_: object, news: Callable[[], object], *__: object) -> None:
        asked.append(news)

    monkeypatch.setattr(grpc, "dynamic_ssl_server_credentials", dynamic)
    make(Credentials.load(paths))
    (news,) = asked
    assert [news() for _ in range(5)] == [None] * 5
    authority.issue(PARTY, paths.ca.parent, overwrite=True)
    assert news() is not None
    assert [news() for _ in range(5)] == [None] * 5


def test_at_every_step_of_a_renewal_there_is_a_whole_pair(
    authority: CertificateAuthority, paths: CredentialPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever starts, or looks, in the middle of it, or after a crash there, can work."""
    steps = []
    write = pem.write

    def step(path: Path, content: bytes, mode: int) -> None:
        write(path, content, mode)
        if path.parent == paths.ca.parent:
            steps.append((path.name, serial(Credentials.load(paths))))

    monkeypatch.setattr(pem, "write", step)
    before = serial(Credentials.load(paths))
    authority.issue(PARTY, paths.ca.parent, overwrite=True)
    after = serial(Credentials.load(paths))
    assert steps == [("ca.pem", before), ("next-key.pem", before), ("cert.pem", after)]
    assert before != after


def stranger(tmp_path: Path, authority: CertificateAuthority) -> CredentialPaths:
    return CertificateAuthority.create(tmp_path / "other").issue(PARTY, tmp_path / "stranger")


def half(tmp_path: Path, authority: CertificateAuthority) -> CredentialPaths:
    new = authority.issue(PARTY, tmp_path / "new")
    new.key.write_bytes((tmp_path / "a" / "key.pem").read_bytes())
    return new


def expired(tmp_path: Path, authority: CertificateAuthority) -> CredentialPaths:
    start = dt.datetime.now(dt.UTC) - dt.timedelta(days=20)
    return authority.issue(PARTY, tmp_path / "expired", days=10, valid_from=start)


def somebody_else(tmp_path: Path, authority: CertificateAuthority) -> CredentialPaths:
    return authority.issue(Identity(Role.PARTY, "b"), tmp_path / "b")


def readable(tmp_path: Path, authority: CertificateAuthority) -> CredentialPaths:
    new = authority.issue(PARTY, tmp_path / "readable")
    new.key.chmod(0o640)
    return new


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (stranger, "not issued by the authority"),
        (half, "does not belong to the certificate"),
        (expired, "expired"),
        (somebody_else, "party/b"),
        (readable, "Others than its owner may read"),
    ],
)
def test_what_does_not_fit_is_left_and_the_old_pair_stays(
    tmp_path: Path,
    authority: CertificateAuthority,
    paths: CredentialPaths,
    caplog: pytest.LogCaptureFixture,
    make: Callable[[Path, CertificateAuthority], CredentialPaths],
    why: str,
) -> None:
    old = Credentials.load(paths)
    new = make(tmp_path, authority)
    for source, target in ((new.certificate, paths.certificate), (new.key, paths.key)):
        shutil.copy2(source, target)
    assert old.newest() is old
    assert old.newest() is old
    (record,) = caplog.records
    assert "the old ones stay" in record.message
    assert why in record.message
    authority.issue(PARTY, paths.ca.parent, overwrite=True)
    assert old.newest().certificate_pem == paths.certificate.read_bytes()


def test_roots_change_one_after_the_other(
    tmp_path: Path, authority: CertificateAuthority, paths: CredentialPaths
) -> None:
    """Both are trusted, then the new certificate comes, then the old root goes."""
    live = Credentials.load(paths)
    fresh = CertificateAuthority.create(tmp_path / "fresh")
    old_root, new_root = paths.ca.read_bytes(), (tmp_path / "fresh" / "ca.pem").read_bytes()
    pem.write(paths.ca, old_root + new_root, pem.PUBLIC)
    both = live.newest()
    assert both.ca_pem == old_root + new_root
    assert not both.connects_like(live)
    fresh.issue(PARTY, paths.ca.parent, overwrite=True)
    assert live.newest().ca_pem == new_root
    assert serial(live.newest()) != serial(live)


@pytest.fixture
async def stack() -> AsyncIterator[contextlib.AsyncExitStack]:
    async with contextlib.AsyncExitStack() as stack:
        yield stack


async def nothing_to_check() -> dict[str, bool]:
    return {}


async def test_a_connection_survives_the_change_of_the_root(
    tmp_path: Path,
    authority: CertificateAuthority,
    paths: CredentialPaths,
    stack: contextlib.AsyncExitStack,
) -> None:
    """Step by step, with one server and one channel for all of it; then the old root is nothing."""
    dealer = Identity(Role.DEALER, "dealer")
    served = authority.issue(dealer, tmp_path / "dealer")
    late = authority.issue(PARTY, tmp_path / "late")
    fresh = CertificateAuthority.create(tmp_path / "fresh")
    new_root = (tmp_path / "fresh" / "ca.pem").read_bytes()
    both = paths.ca.read_bytes() + new_root
    server = rpc.Server(Credentials.load(served), "127.0.0.1:0", [], nothing_to_check)
    stack.push_async_callback(server.stop)
    await server.start()
    address = f"127.0.0.1:{server.port}"

    async def reach(credentials: Credentials) -> None:
        async with rpc.dial(credentials, address, dealer) as one:
            await rpc.reach(one, "The dealer")

    live = Credentials.load(paths)
    async with rpc.dial(live, address, dealer) as channel:
        await rpc.reach(channel, "The dealer")
        for one in (served, paths, late):
            pem.write(one.ca, both, pem.PUBLIC)
            await rpc.reach(channel, "The dealer")
        for one, who in ((served, dealer), (paths, PARTY)):
            issued = fresh.issue(who, tmp_path / "scratch", overwrite=True)
            one.put(both, issued.certificate.read_bytes(), issued.key.read_bytes(), overwrite=True)
            await rpc.reach(channel, "The dealer")
            await reach(Credentials.load(late))
        for one in (served, paths):
            pem.write(one.ca, new_root, pem.PUBLIC)
            await rpc.reach(channel, "The dealer")
        with pytest.raises(VoteError, match="does not answer"):
            await reach(Credentials.load(late))


def test_a_revocation_is_taken_up_and_never_forgotten(
    authority: CertificateAuthority, paths: CredentialPaths, caplog: pytest.LogCaptureFixture
) -> None:
    live = Credentials.load(paths)
    authority.revoke([1])
    first = authority.revoked.read_bytes()
    authority.revoke([2])
    second = authority.revoked.read_bytes()
    pem.write(paths.revoked, first, pem.PUBLIC)
    assert live.newest().revoked.serials == {1}
    pem.write(paths.revoked, second, pem.PUBLIC)
    assert live.newest().revoked.serials == {1, 2}
    assert live.newest().connects_like(live), "connections need not be made anew for it"
    assert not caplog.records
    pem.write(paths.revoked, first, pem.PUBLIC)
    assert live.newest().revoked.serials == {1, 2}
    assert "older than the one in use" in caplog.text
    paths.revoked.unlink()
    assert live.newest().revoked.serials == {1, 2}


def test_a_list_that_can_not_be_read_at_first_is_read_later(
    authority: CertificateAuthority, paths: CredentialPaths, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever is revoked can have used up all descriptors, by connections, when the list comes."""
    live = Credentials.load(paths)
    authority.revoke([1])
    pem.write(paths.revoked, authority.revoked.read_bytes(), pem.PUBLIC)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        for _ in range(3):
            assert not live.newest().revoked.serials
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert live.newest().revoked.serials == {1}
    (record,) = [one for one in caplog.records if one.levelname == "WARNING"]
    assert "Too many open files" in record.message


def test_a_certificate_that_is_too_large_to_be_ours_is_not_kept() -> None:
    """Thousands are, in every server, and the agents' authority could make each 100 kB."""
    assert revocation.peer(caller_named(b"a.agent.mpc-vote")) is not None
    assert revocation.peer(caller_named(b"a.agent.mpc-vote", uris=[bytes(16_000)])) is None


def test_only_a_root_revokes(
    tmp_path: Path, paths: CredentialPaths, caplog: pytest.LogCaptureFixture
) -> None:
    live = Credentials.load(paths)
    other = CertificateAuthority.create(tmp_path / "other")
    other.revoke([1])
    pem.write(paths.revoked, other.revoked.read_bytes(), pem.PUBLIC)
    assert live.newest() is live
    with pytest.raises(IdentityError, match="not signed by a root that is trusted"):
        Credentials.load(paths)
    pem.write(paths.revoked, b"nothing", pem.PUBLIC)
    with pytest.raises(IdentityError, match="no readable list"):
        Credentials.load(paths)


def test_each_root_has_a_list_while_one_replaces_the_other(
    tmp_path: Path, authority: CertificateAuthority, paths: CredentialPaths
) -> None:
    fresh = CertificateAuthority.create(tmp_path / "fresh")
    authority.revoke([1])
    fresh.revoke([2])
    new_root = (tmp_path / "fresh" / "ca.pem").read_bytes()
    pem.write(paths.ca, paths.ca.read_bytes() + new_root, pem.PUBLIC)
    lists = authority.revoked.read_bytes() + fresh.revoked.read_bytes()
    pem.write(paths.revoked, lists, pem.PUBLIC)
    assert Revocations.load(paths.revoked, roots(paths)).serials == {1, 2}


def test_the_command_revokes_by_name_by_file_and_by_serial(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "pki"

    def certs(*arguments: str) -> int:
        return cli.main(["certs", "--out", str(out), *arguments])

    def of(folder: str, file: str = "cert.pem") -> int:
        content = (out / folder / file).read_bytes()
        return x509.load_pem_x509_certificate(content).serial_number

    def revoked(folder: str) -> frozenset[int]:
        there = CredentialPaths.in_directory(out / folder)
        return Revocations.load(there.revoked, roots(there)).serials

    assert certs("--issue", "party/a,party/b,client/c,dealer/d", "--agent-authority") == 0
    first = of("party/a")
    # Whoever is revoked can be issued for again, by the same command.
    assert certs("--revoke", "party/a", "--issue", "party/a", "--renew") == 0
    assert revoked("party/a") == revoked("dealer/d") == revoked("ca") == {first}
    assert of("party/a") != first
    second = of("party/a")
    what = f"party/a,{out / 'client' / 'c' / 'cert.pem'},{of('dealer/d'):x},authority/agents"
    assert certs("--revoke", what) == 0
    assert revoked("public") == {
        *(first, second, of("client/c"), of("dealer/d")),
        of("agents", "agents.pem"),
    }
    capsys.readouterr()
    assert certs("--revoke", "party/nobody") == 1
    assert "No certificate of 'party/nobody' is on record" in capsys.readouterr().err
    listed = x509.load_pem_x509_crl((out / "ca" / "crl.pem").read_bytes())
    root = x509.load_pem_x509_certificate((out / "ca" / "ca.pem").read_bytes())
    assert listed.issuer == root.subject


async def test_an_answer_to_an_agents_renewal_that_can_not_be_read_is_refused(
    authority: CertificateAuthority, tmp_path: Path
) -> None:
    """As what keeps the agent asking: gRPC gives None in the place of such an answer."""
    authority.issue(Identity(Role.AGENT, "alice"), tmp_path / "alice")
    credentials = Credentials.load(tmp_path / "alice")

    async def unreadable(*_: object, **__: object) -> None:
        return None

    coordinator: Any = Channel({"Renew": unreadable})
    with pytest.raises(VoteError) as refusal:
        await enrolment._renew(credentials, tmp_path / "alice", coordinator)
    assert refusal.value.kind is ErrorKind.MESSAGE_UNREADABLE
    assert credentials.newest() is credentials


class Renewing:
    """An agent that has enrolled, and a coordinator that answers its renewals as it is told to."""

    def __init__(self, root: CertificateAuthority, folder: Path) -> None:
        self.root, self.certs = root, folder / "alice"
        self._agents = root.delegate_agents(folder / "agents")
        key = ec.generate_private_key(ec.SECP256R1())
        paths = CredentialPaths.in_directory(self.certs)
        ca_pem = pem.encode_certificate(self._agents.root)
        paths.put(ca_pem, self.certify(key.public_key(), 20), pem.encode_key(key), overwrite=False)
        self.credentials = Credentials.load(self.certs)

    def certify(self, key: Any, days: int) -> bytes:
        start = dt.datetime.now(dt.UTC) - dt.timedelta(days=1)
        return self._agents.certify("alice", key, days=days, valid_from=start)

    async def renew(self, answer: Callable[[Any], bytes]) -> Credentials:
        """What the agent goes on with."""

        async def renewed(request: enrolment_pb2.RenewRequest, **_: object) -> Any:
            key = x509.load_der_x509_csr(request.csr_der).public_key()
            return enrolment_pb2.RenewResponse(certificate_pem=answer(key))

        coordinator: Any = Channel({"Renew": renewed})
        await enrolment._renew(self.credentials, self.certs, coordinator)
        return self.credentials.newest()


async def test_an_agent_does_not_give_its_certificate_up_for_one_that_ends_sooner(
    authority: CertificateAuthority, tmp_path: Path
) -> None:
    """It would be left without any, and could not even ask for another."""
    agent = Renewing(authority, tmp_path)

    def revoked(key: Any) -> bytes:
        chain = agent.certify(key, 30)
        authority.revoke([x509.load_pem_x509_certificate(chain).serial_number])
        shutil.copy(authority.revoked, agent.certs / "crl.pem")
        return chain

    for answer in (lambda key: agent.certify(key, 2), revoked):
        with pytest.raises(IdentityError, match="revoked or ends before"):
            await agent.renew(answer)
        assert agent.credentials.newest().certificate_pem == agent.credentials.certificate_pem


async def test_a_certificate_that_is_no_part_of_the_chain_is_shown_to_nobody(
    authority: CertificateAuthority, tmp_path: Path
) -> None:
    """Peers would go by its dates, and by whether its serial number is revoked."""
    agent = Renewing(authority, tmp_path)
    early = CertificateAuthority.create(tmp_path / "early", days=1)._certificate
    stray = pem.encode_certificate(early)
    renewed = await agent.renew(lambda key: agent.certify(key, 30) + stray)
    assert serial(renewed) != serial(agent.credentials)
    assert len(x509.load_pem_x509_certificates(renewed.certificate_pem)) == 2
