"""Who is who: certificates that name a role, and mutual TLS on every connection.

An identity is a role and a name; its certificate carries the DNS name `<name>.<role>.mpc-vote`. A
server reads that name from the caller's certificate. A client dials with the name of the server it
means, so that TLS itself refuses another role or name, whatever the address was.

Safe as long as the root authority's key is: whoever holds it can impersonate anyone. Keys leave
their files for gRPC only, and are readable by their owner only.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import enum
import functools
import logging
import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import grpc
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError

from mpc_vote.pki import pem
from mpc_vote.pki.pem import IdentityError as IdentityError
from mpc_vote.pki.revocation import LEAF_PROPERTY, Revocations

log = logging.getLogger(__name__)

_RENEW_IN_TIME = dt.timedelta(days=30)
_REMIND = dt.timedelta(days=1)
_LOOK_SECONDS = 1.0
DOMAIN = "mpc-vote"
MAX_MESSAGE_BYTES = 16 * 2**20
MAX_OPEN_MESSAGE_BYTES = 64 * 2**10
# Errors travel in metadata, with the names of whoever was missing, say.
MAX_METADATA_BYTES = 64 * 2**10

NAME_PATTERN = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_PEERS_KEPT = 4096


class Role(enum.StrEnum):
    """What a process may be; every call checks it."""

    COORDINATOR = "coordinator"
    PARTY = "party"
    DEALER = "dealer"
    AGENT = "agent"
    CLIENT = "client"


_ROLES: Mapping[str, Role] = {role.value: role for role in Role}


@dataclass(frozen=True, order=True)
class Identity:
    """A role and a name that is unique within it."""

    role: Role
    name: str

    def __post_init__(self) -> None:
        if not NAME_PATTERN.fullmatch(self.name):
            raise IdentityError(
                f"{self.name!r} can't be a name: use up to 63 lower-case letters, digits and "
                "dashes, with no dash at either end."
            )

    def __str__(self) -> str:
        return f"{self.role}/{self.name}"

    @property
    def dns_name(self) -> str:
        """The name in the certificate, checked by both ends of a connection."""
        return f"{self.name}.{self.role}.{DOMAIN}"

    @classmethod
    def from_dns_name(cls, dns_name: str) -> Identity:
        """The identity that a certificate's name stands for."""
        name, _, rest = dns_name.partition(".")
        role, _, domain = rest.partition(".")
        if domain != DOMAIN or role not in _ROLES:
            raise IdentityError(
                f"{dns_name!r} names no identity: expected <name>.<role>.{DOMAIN} with a role "
                f"among {', '.join(Role)}."
            )
        return cls(_ROLES[role], name)


@dataclass(frozen=True)
class CredentialPaths:
    """The three files that make a process who it is, and one that is there if any are revoked."""

    ca: Path
    certificate: Path
    key: Path

    @classmethod
    def in_directory(cls, directory: Path) -> CredentialPaths:
        """The files under their usual names."""
        return cls(directory / "ca.pem", directory / "cert.pem", directory / "key.pem")

    @property
    def revoked(self) -> Path:
        """The roots' lists of revoked certificates."""
        return self.ca.with_name("crl.pem")

    @property
    def next_key(self) -> Path:
        """A key whose certificate is about to be, or has just been, put in place."""
        return self.key.with_name(f"next-{self.key.name}")

    def put(
        self, ca_pem: bytes, certificate_pem: bytes, key_pem: bytes, *, overwrite: bool
    ) -> None:
        """Writes all three. While a pair replaces another, one of them is whole at any time: the
        new key waits beside the old one until its certificate is there."""
        key = self.next_key if overwrite and self.key.exists() else self.key
        files = {
            self.ca: (ca_pem, pem.PUBLIC),
            key: (key_pem, pem.SECRET),
            self.certificate: (certificate_pem, pem.PUBLIC),
        }
        pem.write_all(self.key.parent, files, overwrite=overwrite)
        os.replace(key, self.key)


@dataclass(frozen=True)
class Credentials:
    """An identity's checked certificate and key, the authority it trusts, and what that revoked.

    A value; `newest` is the one that its files hold by now.
    """

    identity: Identity
    not_before: dt.datetime
    not_after: dt.datetime
    ca_pem: bytes = field(repr=False)
    certificate_pem: bytes = field(repr=False)
    key_pem: bytes = field(repr=False)
    revoked: Revocations = field(default_factory=Revocations, repr=False)
    files: _Files | None = field(default=None, repr=False, compare=False)

    @classmethod
    def load(cls, source: Path | CredentialPaths, expected_role: Role | None = None) -> Credentials:
        """Read and check the files; `expected_role` refuses another role's certificate."""
        paths = source if isinstance(source, CredentialPaths) else _usual_paths(source)
        return _Files(paths, expected_role).newest()

    def newest(self) -> Credentials:
        """What the files hold by now, if it can be used; else what they held before."""
        return self if self.files is None else self.files.newest()

    def connects_like(self, other: Credentials) -> bool:
        """Whether a connection made with these is as good as one made with the others."""
        return (self.ca_pem, self.certificate_pem) == (other.ca_pem, other.certificate_pem)

    @property
    def is_revoked(self) -> bool:
        """Whether these files themselves say that nobody should believe the certificate."""
        chain = x509.load_pem_x509_certificates(self.certificate_pem)
        return any(one.serial_number in self.revoked.serials for one in chain)

    @property
    def renew_from(self) -> dt.datetime:
        """When it is time for another certificate: a month before the end, or a third of its life
        if that is less."""
        return self.not_after - min(_RENEW_IN_TIME, (self.not_after - self.not_before) / 3)

    @classmethod
    def check(
        cls,
        ca_pem: bytes,
        certificate_pem: bytes,
        key_pem: bytes,
        paths: CredentialPaths,
        expected_role: Role | None = None,
    ) -> Credentials:
        """Credentials of these contents, once they fit each other; `paths` is what errors name."""
        authorities = pem.parse_certificates(ca_pem, paths.ca)
        certificate, *others = pem.parse_certificates(certificate_pem, paths.certificate)
        if not _fit(certificate_pem, key_pem, paths):
            raise IdentityError(
                f"The key {paths.key} does not belong to the certificate {paths.certificate}. "
                "Put the pair that was issued together in place, or issue a new one."
            )
        _check_roots(authorities, paths.ca)
        path = _issued_path(certificate, others, authorities, paths)
        identity = _identity_of(_alternative_names(certificate))
        if identity is None:
            raise IdentityError(
                f"The certificate {paths.certificate} does not name exactly one identity "
                f"(<name>.<role>.{DOMAIN}). Issue a new one with this project's authority."
            )
        _check_constraints(certificate, others, authorities, paths)
        if expected_role is not None and identity.role is not expected_role:
            raise IdentityError(
                f"The certificate {paths.certificate} is of {identity}, but the role "
                f"{expected_role} is needed here. Point it to a certificate with that role."
            )
        return cls(
            identity,
            certificate.not_valid_before_utc,
            min(one.not_valid_after_utc for one in path),
            ca_pem,
            # Peers look at all that they are sent: what has no part in it could only do harm.
            b"".join(map(pem.encode_certificate, path)),
            key_pem,
            Revocations.load(paths.revoked, authorities),
        )

    def server_credentials(self) -> grpc.ServerCredentials:
        """For a server that refuses callers without a certificate of the same authority.

        Each handshake is made with the newest certificate, and for the newest authorities.
        """

        def configured(now: Credentials) -> grpc.ServerCertificateConfiguration:
            pair = (now.key_pem, now.certificate_pem)
            return grpc.ssl_server_certificate_configuration([pair], now.ca_pem)

        return self._followed(configured, require_client_authentication=True)

    def open_server_credentials(self) -> grpc.ServerCredentials:
        """For a server whose callers have no certificate yet: they authenticate it, it doesn't
        authenticate them.

        Only for services that need no identity, on an address of their own.
        """

        def configured(now: Credentials) -> grpc.ServerCertificateConfiguration:
            return grpc.ssl_server_certificate_configuration([(now.key_pem, now.certificate_pem)])

        return self._followed(configured, require_client_authentication=False)

    def _followed(
        self,
        configured: Callable[[Credentials], grpc.ServerCertificateConfiguration],
        require_client_authentication: bool,
    ) -> grpc.ServerCredentials:
        """Credentials that gRPC asks for again at each handshake.

        None means that there are none. A configuration is passed on once only: gRPC replaces its
        configuration by each that it is given, without regard to handshakes in other threads, and
        many replacements among many handshakes crash it.
        """
        told = self.newest()

        def news() -> grpc.ServerCertificateConfiguration | None:
            nonlocal told
            before, told = told, self.newest()
            return None if told is before else configured(told)

        return grpc.dynamic_ssl_server_credentials(
            configured(told),
            news,  # type: ignore[arg-type]  # types-grpcio knows nothing of None
            require_client_authentication,
        )

    def channel_credentials(self) -> grpc.ChannelCredentials:
        """For a client; dial with `channel_options` of the server that is meant."""
        return grpc.ssl_channel_credentials(self.ca_pem, self.key_pem, self.certificate_pem)


class _Files:
    """Follows an identity's files: takes up what replaces them, once it is whole and fits."""

    def __init__(self, paths: CredentialPaths, role: Role | None) -> None:
        self._paths = paths
        self._role = role
        self._lock = threading.Lock()
        self._seen = self._look()
        # Whether what was seen could not be read, which may pass: for want of descriptors, say.
        self._unread = False
        self._next_look = time.monotonic() + _LOOK_SECONDS
        self._next_reminder = dt.datetime.min.replace(tzinfo=dt.UTC)
        self._loaded = self._read()
        self._remind()

    def newest(self) -> Credentials:
        """Cheap enough for every call: the files are looked at once in a second at most."""
        with self._lock:
            if time.monotonic() >= self._next_look:
                self._refresh()
                self._next_look = time.monotonic() + _LOOK_SECONDS
            return self._loaded

    def _refresh(self) -> None:
        self._remind()
        seen = self._look()
        changed = seen != self._seen
        if not changed and not self._unread:
            return
        self._seen = seen
        old = self._loaded
        try:
            new = self._read()
            if new.identity != old.identity:
                raise IdentityError(f"They are of {new.identity}: restart to become somebody else.")
            roots = pem.parse_certificates(new.ca_pem, self._paths.ca)
            new.revoked.check_newer_than(old.revoked, roots)
        except (IdentityError, OSError, ValueError) as error:
            # Whatever is wrong with them, the process goes on as it was.
            self._unread = isinstance(error, OSError) or isinstance(error.__cause__, OSError)
            if changed:
                log.warning(
                    "new files of %s are not used, the old ones stay: %s", old.identity, error
                )
            return
        self._loaded, self._unread = new, False
        self._next_reminder = new.renew_from
        log.info(
            "new files of %s are in use: valid until %s UTC, %d certificates revoked",
            new.identity,
            f"{new.not_after:%Y-%m-%d %H:%M}",
            len(new.revoked.serials),
        )

    def _read(self) -> Credentials:
        paths = self._paths
        ca_pem, certificate_pem = pem.read(paths.ca), pem.read(paths.certificate)
        key_pem = pem.read_key_file(paths.key)
        if paths.next_key.exists():
            next_pem = pem.read_key_file(paths.next_key)
            if _fit(certificate_pem, next_pem, paths):
                key_pem = next_pem
        loaded = Credentials.check(ca_pem, certificate_pem, key_pem, paths, self._role)
        return dataclasses.replace(loaded, files=self)

    def _look(self) -> tuple[tuple[int, ...] | None, ...]:
        """Changes whenever one of the files does."""
        paths = self._paths
        return tuple(
            map(_state, (paths.ca, paths.certificate, paths.key, paths.next_key, paths.revoked))
        )

    def _remind(self) -> None:
        """Warns once a day of a certificate whose end is near."""
        now, loaded = dt.datetime.now(dt.UTC), self._loaded
        if now >= max(self._next_reminder, loaded.renew_from):
            ends = f"{loaded.not_after:%Y-%m-%d %H:%M} UTC"
            log.warning("the certificate of %s ends on %s: renew it", loaded.identity, ends)
            self._next_reminder = now + _REMIND


def _state(path: Path) -> tuple[int, ...] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size, found.st_mode


def _fit(certificate_pem: bytes, key_pem: bytes, paths: CredentialPaths) -> bool:
    """Whether a key is that of a certificate."""
    certificate, *_ = pem.parse_certificates(certificate_pem, paths.certificate)
    key = pem.parse_key(key_pem, paths.key)
    known = pem.certified_bytes(certificate, paths.certificate)
    return pem.public_bytes(key.public_key()) == known


def peer_identity(auth_context: Mapping[str, Iterable[bytes]]) -> Identity | None:
    """Who calls, by gRPC's `context.auth_context()`; None when the certificate doesn't say.

    TLS has verified the certificate by then, its authority's limits included. The names are read
    from the certificate itself: in gRPC's own list a name ends at its first zero byte, so that of
    a name within an authority's limits only a beginning may be left, which is beyond them.
    """
    leaf = b"".join(auth_context.get(LEAF_PROPERTY, ()))
    return _certified(leaf) if leaf else None


@functools.lru_cache(_PEERS_KEPT)
def _certified(leaf: bytes) -> Identity | None:
    """Whom a certificate names; parsed once for each, as every call needs it.

    The one name that counts must be a DNS name: a URI or an e-mail address may look the same.
    """
    try:
        certificate = x509.load_pem_x509_certificate(leaf)
        extension = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except (x509.ExtensionNotFound, *pem.UNREADABLE):
        return None
    names = [name.value for name in extension.value if isinstance(name.value, str)]
    identity = _identity_of(names)
    if identity is None or x509.DNSName(identity.dns_name) not in extension.value:
        return None
    return identity


def channel_options(server: Identity) -> list[tuple[str, str | int]]:
    """Options for a channel to `server`: TLS accepts its certificate and no other."""
    return [
        ("grpc.ssl_target_name_override", server.dns_name),
        ("grpc.initial_reconnect_backoff_ms", 250),
        ("grpc.max_reconnect_backoff_ms", 5_000),
        *_common_options(),
    ]


def server_options() -> list[tuple[str, str | int]]:
    """Options for a server that fit `channel_options`: it bears the clients' keepalive pings.

    Address reuse is off, so that a second process on the same port fails instead of sharing it.
    """
    return [
        ("grpc.so_reuseport", 0),
        ("grpc.max_concurrent_streams", 1_000),
        ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
        *_common_options(),
    ]


def open_server_options() -> list[tuple[str, str | int]]:
    """Options for a server that anybody can reach: small messages, short handshakes, no idling."""
    return [
        *(option for option in server_options() if option[0] not in _OPEN),
        *_OPEN.items(),
    ]


_OPEN: Mapping[str, str | int] = {
    "grpc.max_send_message_length": MAX_OPEN_MESSAGE_BYTES,
    "grpc.max_receive_message_length": MAX_OPEN_MESSAGE_BYTES,
    "grpc.max_concurrent_streams": 8,
    "grpc.server_handshake_timeout_ms": 10_000,
    "grpc.max_connection_idle_ms": 30_000,
    "grpc.max_connection_age_ms": 300_000,
    "grpc.max_connection_age_grace_ms": 10_000,
}


def _common_options() -> list[tuple[str, str | int]]:
    return [
        ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
        ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
        ("grpc.max_metadata_size", MAX_METADATA_BYTES),
        ("grpc.absolute_max_metadata_size", 2 * MAX_METADATA_BYTES),
        ("grpc.keepalive_time_ms", 30_000),
        ("grpc.keepalive_timeout_ms", 20_000),
        # gRPC measures connections with pings of its own, and while one of them is unanswered only
        # this says when a silent connection is given up; by default after a minute.
        ("grpc.http2.ping_timeout_ms", 20_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
    ]


def _identity_of(names: Iterable[str]) -> Identity | None:
    """The identity among a certificate's names; None unless exactly one name is in our domain."""
    ours = [name for name in names if in_domain(name)]
    if len(ours) != 1:
        return None
    try:
        return Identity.from_dns_name(ours[0])
    except IdentityError:
        return None


def in_domain(name: str) -> bool:
    """Whether anybody could read `name` as one of our domain, exact or not."""
    labels = name.lower().rstrip(".").split(".")
    return labels[-1] == DOMAIN


def _usual_paths(directory: Path) -> CredentialPaths:
    if not directory.is_dir():
        raise IdentityError(
            f"The directory {directory} with ca.pem, cert.pem and key.pem does not exist. Issue a "
            "certificate into it, or point to where they are."
        )
    return CredentialPaths.in_directory(directory)


def _check_roots(authorities: Iterable[x509.Certificate], path: Path) -> None:
    """Refuses to trust anything but roots: gRPC accepts any given certificate as the end of a
    chain, and then ignores some of the constraints in it."""
    for authority in authorities:
        if _issuer(authority, [authority]) is None:
            raise IdentityError(
                f"The file {path} holds a certificate that another authority signed. Only roots "
                "belong there: remove it."
            )


def _issued_path(
    certificate: x509.Certificate,
    others: Sequence[x509.Certificate],
    authorities: Sequence[x509.Certificate],
    paths: CredentialPaths,
) -> list[x509.Certificate]:
    """Follows signatures and dates from a certificate up to an authority that is trusted; the
    certificates on the way, without that authority's."""
    pem.check_dates(certificate, paths.certificate)
    path, rest = [certificate], list(others)
    while (root := _issuer(certificate, authorities)) is None:
        issuer = _issuer(certificate, rest)
        if issuer is None:
            raise IdentityError(
                f"The certificate {paths.certificate} was not issued by the authority {paths.ca}. "
                "Use the ca.pem of the authority that issued it, or have this one issue a new one."
            )
        pem.check_dates(issuer, paths.certificate)
        rest.remove(issuer)
        path.append(issuer)
        certificate = issuer
    pem.check_dates(root, paths.ca)
    return path


def _check_constraints(
    certificate: x509.Certificate,
    others: Sequence[x509.Certificate],
    authorities: Sequence[x509.Certificate],
    paths: CredentialPaths,
) -> None:
    """Refuses what an authority had no right to issue, as every peer would."""
    verifier = PolicyBuilder().store(Store(list(authorities))).build_client_verifier()
    try:
        verifier.verify(certificate, list(others))
    except (VerificationError, *pem.UNREADABLE) as error:
        raise IdentityError(
            f"The certificate {paths.certificate} goes beyond what its authority may issue, and no "
            "peer would accept it. Issue a new one with this project's authority."
        ) from error


def _issuer(
    certificate: x509.Certificate, authorities: Iterable[x509.Certificate]
) -> x509.Certificate | None:
    """The authority that signed `certificate`; several are held while one replaces another."""
    for authority in authorities:
        with contextlib.suppress(ValueError, TypeError, InvalidSignature):
            certificate.verify_directly_issued_by(authority)
            return authority
    return None


def _alternative_names(certificate: x509.Certificate) -> list[str]:
    try:
        extension = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except (x509.ExtensionNotFound, *pem.UNREADABLE):
        return []
    return extension.value.get_values_for_type(x509.DNSName)
