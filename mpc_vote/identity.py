"""Who is who: certificates that name a role, and mutual TLS on every connection.

An identity is a role and a name; its certificate carries the DNS name `<name>.<role>.mpc-vote`. A
server reads that name from the caller's certificate. A client dials with the name of the server it
means, so that TLS itself refuses another role or name, whatever the address was.

Safe as long as the authority's key is: whoever holds it can be anyone. Keys never leave the files
of this module but into gRPC, and are readable by their owner only.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import enum
import ipaddress
import os
import re
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import grpc
from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import (
    PrivateKeyTypes,
    PublicKeyTypes,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

DOMAIN = "mpc-vote"
MAX_MESSAGE_BYTES = 16 * 2**20

_LABEL = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
NAME_PATTERN = re.compile(_LABEL)
_HOST = re.compile(rf"{_LABEL}(?:\.{_LABEL})*")
_CLOCK_SKEW = dt.timedelta(minutes=5)
_SAN_PROPERTY = "x509_subject_alternative_name"


class IdentityError(Exception):
    """A certificate, key or name can't be used; the message says why and what to do."""


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
        ca_pem, authorities = _read_certificates(paths.ca)
        certificate_pem, (certificate, *_) = _read_certificates(paths.certificate)
        key_pem, key = _read_key(paths.key)
        if _key_bytes(key.public_key()) != _key_bytes(certificate.public_key()):
            raise IdentityError(
                f"The key {paths.key} does not belong to the certificate {paths.certificate}. "
                "Put the pair that was issued together in place, or issue a new one."
            )
        issuer = _issuer(certificate, authorities)
        if issuer is None:
            raise IdentityError(
                f"The certificate {paths.certificate} was not issued by the authority {paths.ca}. "
                "Use the ca.pem of the authority that issued it, or have this one issue a new one."
            )
        _check_dates(certificate, paths.certificate)
        _check_dates(issuer, paths.ca)
        identity = _identity_of(_alternative_names(certificate))
        if identity is None:
            raise IdentityError(
                f"The certificate {paths.certificate} does not name exactly one identity "
                f"(<name>.<role>.{DOMAIN}). Issue a new one with this project's authority."
            )
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

    def channel_credentials(self) -> grpc.ChannelCredentials:
        """For a client; dial with `channel_options` of the server that is meant."""
        return grpc.ssl_channel_credentials(self.ca_pem, self.key_pem, self.certificate_pem)


class CertificateAuthority:
    """The one issuer of a federation's certificates."""

    def __init__(self, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
        self._certificate = certificate
        self._key = key

    @classmethod
    def create(
        cls, directory: Path, *, days: int = 3650, overwrite: bool = False
    ) -> CertificateAuthority:
        """A new authority in `directory`: `ca.pem` to hand out, `ca-key.pem` to guard."""
        certificate_path, key_path = _authority_paths(directory)
        key = ec.generate_private_key(ec.SECP256R1())
        subject = _distinguished_name("authority", f"{DOMAIN} authority")
        start = _now() - _CLOCK_SKEW
        builder = _builder(subject, subject, key, key, start, start + dt.timedelta(days=days))
        certificate = (
            builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_key_usage(authority=True), critical=True)
            .sign(key, hashes.SHA256())
        )
        _write_all(
            directory,
            {key_path: (_key_pem(key), 0o600), certificate_path: (_pem(certificate), 0o644)},
            overwrite=overwrite,
        )
        return cls(certificate, key)

    @classmethod
    def load(cls, directory: Path) -> CertificateAuthority:
        """The authority that `create` left in `directory`."""
        certificate_path, key_path = _authority_paths(directory)
        _, (certificate, *_) = _read_certificates(certificate_path)
        _, key = _read_key(key_path)
        if not isinstance(key, ec.EllipticCurvePrivateKey) or _key_bytes(
            key.public_key()
        ) != _key_bytes(certificate.public_key()):
            raise IdentityError(
                f"The key {key_path} is not that of the authority {certificate_path}. Restore the "
                "pair, or create a new authority and issue every certificate again."
            )
        _check_dates(certificate, certificate_path)
        return cls(certificate, key)

    def issue(
        self,
        identity: Identity,
        directory: Path,
        *,
        hosts: Iterable[str] = (),
        days: int = 365,
        valid_from: dt.datetime | None = None,
        overwrite: bool = False,
    ) -> CredentialPaths:
        """Write a new key and certificate for `identity`, and the authority's, to `directory`.

        `hosts` are further names or addresses of the machine, for tools that check those. The
        certificate ends with the authority's if that is sooner.
        """
        paths = CredentialPaths.in_directory(directory)
        key = ec.generate_private_key(ec.SECP256R1())
        start = valid_from or _now() - _CLOCK_SKEW
        end = min(start + dt.timedelta(days=days), self._certificate.not_valid_after_utc)
        if end <= start:
            raise IdentityError(
                f"A certificate from {start:%Y-%m-%d %H:%M} to {end:%Y-%m-%d %H:%M} UTC would "
                "never be valid. Ask for one day or more, within the authority's own dates."
            )
        names = [x509.DNSName(identity.dns_name), *(_host_name(host) for host in hosts)]
        subject = _distinguished_name(identity.role, identity.name)
        usages = [ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]
        certificate = (
            _builder(subject, self._certificate.subject, key, self._key, start, end)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(authority=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        _write_all(
            directory,
            {
                paths.ca: (_pem(self._certificate), 0o644),
                paths.key: (_key_pem(key), 0o600),
                paths.certificate: (_pem(certificate), 0o644),
            },
            overwrite=overwrite,
        )
        return paths


def peer_identity(auth_context: Mapping[str, Iterable[bytes]]) -> Identity | None:
    """Who calls, by gRPC's `context.auth_context()`; None when the certificate doesn't say.

    TLS has verified the certificate by then. Reads the names that gRPC extracted, parses no
    certificate, so it can run on every call.
    """
    names = auth_context.get(_SAN_PROPERTY, ())
    return _identity_of(name.decode("ascii", "replace") for name in names)


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
        ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
        *_common_options(),
    ]


def _common_options() -> list[tuple[str, str | int]]:
    return [
        ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
        ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
        ("grpc.keepalive_time_ms", 30_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
    ]


def _identity_of(names: Iterable[str]) -> Identity | None:
    """The identity among a certificate's names; None unless exactly one name is in our domain."""
    ours = [name for name in names if _in_domain(name)]
    if len(ours) != 1:
        return None
    try:
        return Identity.from_dns_name(ours[0])
    except IdentityError:
        return None


def _in_domain(name: str) -> bool:
    """Whether anybody could read `name` as one of our domain, exact or not."""
    labels = name.lower().rstrip(".").split(".")
    return labels[-1] == DOMAIN


def _host_name(host: str) -> x509.GeneralName:
    with contextlib.suppress(ValueError):
        return x509.IPAddress(ipaddress.ip_address(host))
    if _in_domain(host):
        raise IdentityError(
            f"The host {host!r} lies in {DOMAIN}, which is kept for identities. Leave it out."
        )
    if not _HOST.fullmatch(host):
        raise IdentityError(
            f"{host!r} is neither an IP address nor a lower-case host name. Correct it; wildcards "
            "are not issued."
        )
    return x509.DNSName(host)


def _now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)


def _distinguished_name(unit: str, common_name: str) -> x509.Name:
    return x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, DOMAIN),
            x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, unit),
            x509.NameAttribute(NameOID.COMMON_NAME, common_name),
        ]
    )


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    issuer_key: ec.EllipticCurvePrivateKey,
    start: dt.datetime,
    end: dt.datetime,
) -> x509.CertificateBuilder:
    issuer_identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key())
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(end)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(issuer_identifier, critical=False)
    )


def _key_usage(*, authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not authority,
        key_cert_sign=authority,
        crl_sign=authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _key_bytes(key: PublicKeyTypes) -> bytes:
    return key.public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )


def _authority_paths(directory: Path) -> tuple[Path, Path]:
    return directory / "ca.pem", directory / "ca-key.pem"


def _usual_paths(directory: Path) -> CredentialPaths:
    if not directory.is_dir():
        raise IdentityError(
            f"The directory {directory} with ca.pem, cert.pem and key.pem does not exist. Issue a "
            "certificate into it, or point to where they are."
        )
    return CredentialPaths.in_directory(directory)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise IdentityError(
            f"The file {path} is missing. Issue a certificate, or point to where it is."
        ) from None
    except OSError as error:
        raise IdentityError(
            f"The file {path} can't be read ({error.strerror}). Make it a file that this user may "
            "read."
        ) from error


def _read_certificates(path: Path) -> tuple[bytes, list[x509.Certificate]]:
    content = _read(path)
    try:
        return content, x509.load_pem_x509_certificates(content)
    except ValueError as error:
        raise IdentityError(
            f"The file {path} holds no readable PEM certificate. Copy it again, or issue a new one."
        ) from error


def _read_key(path: Path) -> tuple[bytes, PrivateKeyTypes]:
    content = _read(path)
    if path.stat().st_mode & 0o077:
        raise IdentityError(
            f"Others than its owner may read the key {path}. Run: chmod 600 {path} (and issue a "
            "new one if others may have read it)."
        )
    try:
        return content, serialization.load_pem_private_key(content, password=None)
    except TypeError as error:
        raise IdentityError(
            f"The key {path} is encrypted with a password, which a service can't ask for. Store it "
            "without one, readable by its owner only."
        ) from error
    except (ValueError, UnsupportedAlgorithm) as error:
        raise IdentityError(
            f"The file {path} holds no readable PEM private key. Copy it again, or issue a new one."
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


def _check_dates(certificate: x509.Certificate, path: Path) -> None:
    now = _now()
    start, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if now > end:
        raise IdentityError(
            f"The certificate {path} expired on {end:%Y-%m-%d %H:%M} UTC. Issue a new one."
        )
    if now < start:
        raise IdentityError(
            f"The certificate {path} is valid only from {start:%Y-%m-%d %H:%M} UTC, and it is "
            f"{now:%Y-%m-%d %H:%M} UTC. Check this machine's clock, or wait."
        )


def _alternative_names(certificate: x509.Certificate) -> list[str]:
    try:
        extension = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except x509.ExtensionNotFound:
        return []
    return extension.value.get_values_for_type(x509.DNSName)


def _write_all(
    directory: Path, files: Mapping[Path, tuple[bytes, int]], *, overwrite: bool
) -> None:
    """Write each file with its mode, whole or not at all, in a directory only its owner writes."""
    if not directory.exists():
        directory.mkdir(parents=True, mode=0o700)
    if directory.stat().st_mode & 0o022:
        raise IdentityError(
            f"Others than its owner may write to {directory}, and so replace keys and authorities. "
            f"Run: chmod 700 {directory}"
        )
    present = [str(path) for path in files if path.exists()]
    if present and not overwrite:
        raise IdentityError(
            f"Nothing was written, as {', '.join(present)} would be overwritten. Remove it, or ask "
            "for overwriting."
        )
    for path, (content, mode) in files.items():
        _write(path, content, mode)


def _write(path: Path, content: bytes, mode: int) -> None:
    descriptor, scratch = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(file.fileno(), mode)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(scratch, path)
    except BaseException:
        Path(scratch).unlink(missing_ok=True)
        raise
