"""Who is who: certificates that name a role, and mutual TLS on every connection.

An identity is a role and a name; its certificate carries the DNS name `<name>.<role>.mpc-vote`. A
server reads that name from the caller's certificate. A client dials with the name of the server it
means, so that TLS itself refuses another role or name, whatever the address was.

Safe as long as the root authority's key is: whoever holds it can be anyone. Keys never leave their
files but into gRPC, and are readable by their owner only.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import enum
import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import grpc
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError

from mpc_vote import pem
from mpc_vote.pem import IdentityError as IdentityError

log = logging.getLogger(__name__)

_RENEW_IN_TIME = dt.timedelta(days=30)
DOMAIN = "mpc-vote"
MAX_MESSAGE_BYTES = 16 * 2**20
MAX_OPEN_MESSAGE_BYTES = 64 * 2**10
# Errors travel in metadata, with the names of whoever was missing, say.
MAX_METADATA_BYTES = 64 * 2**10

NAME_PATTERN = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_SAN_PROPERTY = "x509_subject_alternative_name"
_DNS_PROPERTY = "peer_dns"


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
    """The three files that make a process who it is."""

    ca: Path
    certificate: Path
    key: Path

    @classmethod
    def in_directory(cls, directory: Path) -> CredentialPaths:
        """The files under their usual names."""
        return cls(directory / "ca.pem", directory / "cert.pem", directory / "key.pem")


@dataclass(frozen=True)
class Credentials:
    """An identity's checked certificate and key, and the authority it trusts.

    A value, not a view of the files: to take up renewed files, load again.
    """

    identity: Identity
    not_after: dt.datetime
    ca_pem: bytes = field(repr=False)
    certificate_pem: bytes = field(repr=False)
    key_pem: bytes = field(repr=False)

    @classmethod
    def load(cls, source: Path | CredentialPaths, expected_role: Role | None = None) -> Credentials:
        """Read and check the files; `expected_role` refuses another role's certificate."""
        paths = source if isinstance(source, CredentialPaths) else _usual_paths(source)
        ca_pem, certificate_pem = pem.read(paths.ca), pem.read(paths.certificate)
        loaded = cls.check(
            ca_pem, certificate_pem, pem.read_key_file(paths.key), paths, expected_role
        )
        if loaded.not_after - dt.datetime.now(dt.UTC) < _RENEW_IN_TIME:
            ends = f"{loaded.not_after:%Y-%m-%d %H:%M} UTC"
            log.warning("the certificate of %s ends on %s: renew it", loaded.identity, ends)
        return loaded

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
        key = pem.parse_key(key_pem, paths.key)
        if pem.public_bytes(key.public_key()) != pem.certified_bytes(
            certificate, paths.certificate
        ):
            raise IdentityError(
                f"The key {paths.key} does not belong to the certificate {paths.certificate}. "
                "Put the pair that was issued together in place, or issue a new one."
            )
        _check_roots(authorities, paths.ca)
        _check_issued(certificate, others, authorities, paths)
        identity = _identity_of(_alternative_names(certificate))
        if identity is None:
            raise IdentityError(
                f"The certificate {paths.certificate} does not name exactly one identity "
                f"(<name>.<role>.{DOMAIN}). Issue a new one with this project's authority."
            )
        _check_constraints(certificate, others, authorities, paths)
        if expected_role is not None and identity.role is not expected_role:
            raise IdentityError(
                f"The certificate {paths.certificate} is of {identity}, but this process is a "
                f"{expected_role}. Point it to a certificate with the role {expected_role}."
            )
        return cls(identity, certificate.not_valid_after_utc, ca_pem, certificate_pem, key_pem)

    def server_credentials(self) -> grpc.ServerCredentials:
        """For a server that refuses callers without a certificate of the same authority."""
        return grpc.ssl_server_credentials(
            [(self.key_pem, self.certificate_pem)],
            root_certificates=self.ca_pem,
            require_client_auth=True,
        )

    def open_server_credentials(self) -> grpc.ServerCredentials:
        """For a server of callers that have no certificate yet: they know it, it doesn't know them.

        Only for services that need no identity, on an address of their own.
        """
        return grpc.ssl_server_credentials([(self.key_pem, self.certificate_pem)])

    def channel_credentials(self) -> grpc.ChannelCredentials:
        """For a client; dial with `channel_options` of the server that is meant."""
        return grpc.ssl_channel_credentials(self.ca_pem, self.key_pem, self.certificate_pem)


def peer_identity(auth_context: Mapping[str, Iterable[bytes]]) -> Identity | None:
    """Who calls, by gRPC's `context.auth_context()`; None when the certificate doesn't say.

    TLS has verified the certificate by then, its authority's limits included. gRPC mixes names of
    all kinds in one list, so the one that counts must also be among the DNS names: a URI or an
    e-mail address may look the same. Parses no certificate, so it can run on every call.
    """
    names = auth_context.get(_SAN_PROPERTY, ())
    identity = _identity_of(name.decode("ascii", "replace") for name in names)
    if identity is None or identity.dns_name.encode() not in auth_context.get(_DNS_PROPERTY, ()):
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
        ("grpc.keepalive_timeout_ms", 10_000),
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
    """Refuses to trust anything but roots: gRPC takes whatever it is given for an end of the chain,
    and then some of the limits in it count for nothing."""
    for authority in authorities:
        if _issuer(authority, [authority]) is None:
            raise IdentityError(
                f"The file {path} holds a certificate that another authority signed. Only roots "
                "belong there: remove it."
            )


def _check_issued(
    certificate: x509.Certificate,
    others: Sequence[x509.Certificate],
    authorities: Sequence[x509.Certificate],
    paths: CredentialPaths,
) -> None:
    """Follows signatures and dates from a certificate up to an authority that is trusted."""
    pem.check_dates(certificate, paths.certificate)
    rest = list(others)
    while (root := _issuer(certificate, authorities)) is None:
        issuer = _issuer(certificate, rest)
        if issuer is None:
            raise IdentityError(
                f"The certificate {paths.certificate} was not issued by the authority {paths.ca}. "
                "Use the ca.pem of the authority that issued it, or have this one issue a new one."
            )
        pem.check_dates(issuer, paths.certificate)
        rest.remove(issuer)
        certificate = issuer
    pem.check_dates(root, paths.ca)


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
