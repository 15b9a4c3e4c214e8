"""Who issues certificates: the federation's root, and an authority that can make agents only.

The root's key can certify anybody: it stays offline. The agents' authority may be where new agents
enrol. Its certificate limits it for every peer that verifies a chain, whatever it signs:

- only DNS names under `agent.mpc-vote` are permitted, and neither addresses nor URIs nor e-mail
  addresses (`_NOWHERE` is a host that nothing has), since TLS stacks read names from those too;
- only clients are: TLS falls back to the subject's common name for a server whose certificate has
  no DNS name, and names in the subject are not constrained. So nobody takes its certificates for a
  server's, of any name.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import ipaddress
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Self

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from mpc_vote.pki import pem, revocation
from mpc_vote.pki.identity import DOMAIN, CredentialPaths, Identity, Role, in_domain
from mpc_vote.pki.pem import IdentityError

_LABEL = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
_HOST = re.compile(rf"{_LABEL}(?:\.{_LABEL})*")
_CLOCK_SKEW = dt.timedelta(minutes=5)
_NOWHERE = "nowhere.invalid"
# What the record of issued certificates calls the agents' authority.
_AGENTS_AUTHORITY = "authority/agents"
_ALL_ADDRESSES = ("0.0.0.0/0", "::/0")


class CertificateAuthority:
    """The root of a federation's certificates."""

    def __init__(
        self, directory: Path, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey
    ) -> None:
        self._certificate = certificate
        self._key = key
        self._issued = directory / "issued"
        self.revoked = directory / "crl.pem"

    @classmethod
    def create(
        cls, directory: Path, *, days: int = 3650, overwrite: bool = False
    ) -> CertificateAuthority:
        """A new authority in `directory`: `ca.pem` to hand out, `ca-key.pem` to guard."""
        certificate_path, key_path = _root_paths(directory)
        key = ec.generate_private_key(ec.SECP256R1())
        subject = _distinguished_name("authority", f"{DOMAIN} authority")
        start = _now() - _CLOCK_SKEW
        builder = _builder(
            subject, subject, key.public_key(), key, start, start + dt.timedelta(days=days)
        )
        certificate = (
            builder.add_extension(x509.BasicConstraints(ca=True, path_length=1), critical=True)
            .add_extension(_key_usage(authority=True), critical=True)
            .sign(key, hashes.SHA256())
        )
        pem.write_all(
            directory,
            {
                key_path: (pem.encode_key(key), pem.SECRET),
                certificate_path: (pem.encode_certificate(certificate), pem.PUBLIC),
            },
            overwrite=overwrite,
        )
        return cls(directory, certificate, key)

    @classmethod
    def load(cls, directory: Path) -> CertificateAuthority:
        """The authority that `create` left in `directory`."""
        certificate_path, key_path = _root_paths(directory)
        (certificate, *_), key = _load_pair(certificate_path, key_path)
        return cls(directory, certificate, key)

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
        names = [_host_name(host) for host in hosts]
        start, end = _validity(self._certificate, days, valid_from)
        certificate = _leaf(
            self._certificate, self._key, identity, key.public_key(), names, start, end
        )
        paths.put(
            pem.encode_certificate(self._certificate),
            pem.encode_certificate(certificate),
            pem.encode_key(key),
            overwrite=overwrite,
        )
        self._record(str(identity), certificate)
        if self.revoked.exists():
            pem.write(paths.revoked, self.revoked.read_bytes(), pem.PUBLIC)
        return paths

    def revoke(self, serials: Iterable[int]) -> None:
        """Adds certificates to the list in `revoked`, which every process needs a copy of."""
        revocation.revoke(self.revoked, self._certificate, self._key, serials)

    def issued_to(self, whom: str) -> list[int]:
        """The serial numbers of all certificates that were issued to a role/name."""
        return [int(path.stem, 16) for path in (self._issued / whom).glob("*.pem")]

    def _record(self, whom: str, certificate: x509.Certificate) -> None:
        """Keeps a copy of what is issued, so that it can be revoked by name."""
        path = self._issued / whom / f"{certificate.serial_number:x}.pem"
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        pem.write(path, pem.encode_certificate(certificate), pem.PUBLIC)

    def delegate_agents(
        self,
        directory: Path,
        *,
        days: int = 730,
        valid_from: dt.datetime | None = None,
        overwrite: bool = False,
    ) -> AgentAuthority:
        """An authority for agents in `directory`: `agents.pem` with `agents-key.pem` to guard, and
        the root's `ca.pem`."""
        constraints = self._certificate.extensions.get_extension_for_class(x509.BasicConstraints)
        if constraints.value.path_length == 0:
            raise IdentityError(
                "This authority may not have others under it: it was made by an older version. "
                "Create a new one, and issue every certificate again."
            )
        root_path, certificate_path, key_path = _agents_paths(directory)
        key = ec.generate_private_key(ec.SECP256R1())
        subject = _distinguished_name("authority", f"{DOMAIN} agents' authority")
        start, end = _validity(self._certificate, days, valid_from)
        certificate = (
            _builder(subject, self._certificate.subject, key.public_key(), self._key, start, end)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_key_usage(authority=True), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
            .add_extension(_agents_only(), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        pem.write_all(
            directory,
            {
                root_path: (pem.encode_certificate(self._certificate), pem.PUBLIC),
                key_path: (pem.encode_key(key), pem.SECRET),
                certificate_path: (pem.encode_certificate(certificate), pem.PUBLIC),
            },
            overwrite=overwrite,
        )
        self._record(_AGENTS_AUTHORITY, certificate)
        return AgentAuthority(self._certificate, certificate, key)


class AgentAuthority:
    """An authority under the root that peers believe about agents, as clients, and nobody else."""

    def __init__(
        self,
        root: x509.Certificate,
        certificate: x509.Certificate,
        key: ec.EllipticCurvePrivateKey,
    ) -> None:
        self.root = root
        self._certificate = certificate
        self._key = key

    @classmethod
    def load(cls, directory: Path) -> Self:
        """The authority that `delegate_agents` left in `directory`."""
        root_path, certificate_path, key_path = _agents_paths(directory)
        (certificate, *_), key = _load_pair(certificate_path, key_path)
        root, *_ = pem.parse_certificates(pem.read(root_path), root_path)
        try:
            certificate.verify_directly_issued_by(root)
        except (ValueError, TypeError, InvalidSignature) as error:
            raise IdentityError(
                f"The agents' authority {certificate_path} is not under the root {root_path}. "
                "Restore the files that were made together, or delegate again."
            ) from error
        return cls(root, certificate, key)

    @property
    def name(self) -> x509.Name:
        """What the agents' authorities of a federation, one after the other, are called."""
        return self._certificate.subject

    def check(self) -> None:
        """Refuses to go on when the authority itself is not valid now."""
        pem.check_dates(self._certificate, Path("agents.pem"))

    def certify(
        self,
        name: str,
        public_key: ec.EllipticCurvePublicKey,
        *,
        days: int = 365,
        valid_from: dt.datetime | None = None,
    ) -> bytes:
        """A certificate for agent `name` with this key, followed by this authority's, as PEM.

        Whoever asks must have shown that it holds the private key.
        """
        identity = Identity(Role.AGENT, name)
        start, end = _validity(self._certificate, days, valid_from)
        leaf = _leaf(self._certificate, self._key, identity, public_key, [], start, end)
        return pem.encode_certificate(leaf) + pem.encode_certificate(self._certificate)


def _root_paths(directory: Path) -> tuple[Path, Path]:
    return directory / "ca.pem", directory / "ca-key.pem"


def _agents_paths(directory: Path) -> tuple[Path, Path, Path]:
    return directory / "ca.pem", directory / "agents.pem", directory / "agents-key.pem"


def _load_pair(
    certificate_path: Path, key_path: Path
) -> tuple[list[x509.Certificate], ec.EllipticCurvePrivateKey]:
    certificates = pem.parse_certificates(pem.read(certificate_path), certificate_path)
    key = pem.parse_key(pem.read_key_file(key_path), key_path)
    if not isinstance(key, ec.EllipticCurvePrivateKey) or pem.public_bytes(
        key.public_key()
    ) != pem.public_bytes(certificates[0].public_key()):
        raise IdentityError(
            f"The key {key_path} is not that of the authority {certificate_path}. Restore the "
            "pair, or create a new authority and issue every certificate again."
        )
    pem.check_dates(certificates[0], certificate_path)
    return certificates, key


def _validity(
    issuer: x509.Certificate, days: int, valid_from: dt.datetime | None
) -> tuple[dt.datetime, dt.datetime]:
    """From when to when, never longer than the issuer's own."""
    start = valid_from or _now() - _CLOCK_SKEW
    end = min(start + dt.timedelta(days=days), issuer.not_valid_after_utc)
    if end <= start:
        raise IdentityError(
            f"A certificate from {start:%Y-%m-%d %H:%M} to {end:%Y-%m-%d %H:%M} UTC would "
            "never be valid. Ask for one day or more, within the authority's own dates."
        )
    return start, end


def _leaf(
    issuer: x509.Certificate,
    issuer_key: ec.EllipticCurvePrivateKey,
    identity: Identity,
    public_key: ec.EllipticCurvePublicKey,
    hosts: Iterable[x509.GeneralName],
    start: dt.datetime,
    end: dt.datetime,
) -> x509.Certificate:
    subject = _distinguished_name(identity.role, identity.name)
    names = [x509.DNSName(identity.dns_name), *hosts]
    usages = [ExtendedKeyUsageOID.CLIENT_AUTH]
    if identity.role is not Role.CLIENT:
        usages.append(ExtendedKeyUsageOID.SERVER_AUTH)
    return (
        _builder(subject, issuer.subject, public_key, issuer_key, start, end)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(authority=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .sign(issuer_key, hashes.SHA256())
    )


def _agents_only() -> x509.NameConstraints:
    return x509.NameConstraints(
        permitted_subtrees=[
            x509.DNSName(f"{Role.AGENT}.{DOMAIN}"),
            x509.RFC822Name(_NOWHERE),
            x509.UniformResourceIdentifier(_NOWHERE),
        ],
        excluded_subtrees=[
            x509.IPAddress(ipaddress.ip_network(network)) for network in _ALL_ADDRESSES
        ],
    )


def _host_name(host: str) -> x509.GeneralName:
    with contextlib.suppress(ValueError):
        return x509.IPAddress(ipaddress.ip_address(host))
    if in_domain(host):
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
    key: ec.EllipticCurvePublicKey,
    issuer_key: ec.EllipticCurvePrivateKey,
    start: dt.datetime,
    end: dt.datetime,
) -> x509.CertificateBuilder:
    issuer_identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key())
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(end)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
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
