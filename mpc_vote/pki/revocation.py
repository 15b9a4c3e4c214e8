"""Revoked certificates: lists (CRLs) signed by the roots, as in X.509.

TLS as gRPC for Python offers it checks no such lists, so servers look at the caller's certificate
themselves, on every call (`mpc_vote/transport/rpc.py`). Serial numbers have 159 random bits and
name one certificate of the whole federation, whoever issued it: so a root's list can also name
agents that the agents' authority certified, or that authority itself, and with it all that it ever
signed.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from mpc_vote.pki import pem
from mpc_vote.pki.pem import IdentityError

_LIST = re.compile(rb"-----BEGIN X509 CRL-----.+?-----END X509 CRL-----", re.DOTALL)
LEAF_PROPERTY, CHAIN_PROPERTY = "x509_pem_cert", "x509_pem_cert_chain"
_PEERS_KEPT = 4096
# What is kept of each; one of ours takes a kilobyte, and so do those above it.
_MAX_PEER_BYTES = 16 << 10


@dataclass(frozen=True)
class Revocations:
    """Serial numbers that are revoked, and the number of each root's list, which only grows."""

    serials: frozenset[int] = frozenset()
    numbers: Mapping[bytes, int] = field(default_factory=dict)

    @classmethod
    def load(cls, path: Path, roots: Sequence[x509.Certificate]) -> Revocations:
        """The lists in a file, one for each root at most; none if there is no such file."""
        if not path.exists():
            return cls()
        serials: set[int] = set()
        numbers: dict[bytes, int] = {}
        for listed in _lists(pem.read(path), path):
            root = next((root for root in roots if _signed(listed, root)), None)
            if root is None:
                raise IdentityError(
                    f"A list of revoked certificates in {path} is not signed by a root that is "
                    "trusted here. Copy the one that `mpc-vote certs --revoke` wrote."
                )
            serials |= {entry.serial_number for entry in listed}
            numbers[pem.public_bytes(root.public_key())] = _number(listed)
        return cls(frozenset(serials), numbers)

    def check_newer_than(self, old: Revocations, roots: Sequence[x509.Certificate]) -> None:
        """Refuses to forget what a root that is still trusted has revoked."""
        for root in roots:
            key = pem.public_bytes(root.public_key())
            if self.numbers.get(key, -1) < old.numbers.get(key, -1):
                raise IdentityError(
                    "The list of revoked certificates is older than the one in use. Copy the "
                    "newest."
                )


@dataclass(frozen=True)
class Peer:
    """What a caller's certificate and those above it say of their validity, and who signed it."""

    issuer: x509.Name
    serials: frozenset[int]
    not_after: dt.datetime


def peer(auth_context: Mapping[str, Iterable[bytes]]) -> Peer | None:
    """The caller by gRPC's `context.auth_context()`; None without a certificate that is readable,
    or with one that is too large to be ours.

    TLS has verified it by then.
    """
    leaf, chain = (b"".join(auth_context.get(key, ())) for key in (LEAF_PROPERTY, CHAIN_PROPERTY))
    if not leaf or len(leaf) + len(chain) > _MAX_PEER_BYTES:
        return None
    try:
        return _peer(leaf, chain)
    except ValueError:
        return None


@functools.lru_cache(_PEERS_KEPT)
def _peer(leaf: bytes, chain: bytes) -> Peer:
    """Parsed once for each certificate, as every call needs it."""
    certificates = x509.load_pem_x509_certificates(leaf + b"\n" + chain)
    return Peer(
        certificates[0].issuer,
        frozenset(certificate.serial_number for certificate in certificates),
        min(certificate.not_valid_after_utc for certificate in certificates),
    )


def revoke(
    path: Path, root: x509.Certificate, key: ec.EllipticCurvePrivateKey, serials: Iterable[int]
) -> None:
    """Adds serial numbers to the root's list in `path`, which is begun if there is none.

    The list says that it holds for as long as the root: a late copy must not stop a federation.
    """
    listed = _lists(pem.read(path), path) if path.exists() else []
    old = {entry.serial_number: entry for one in listed for entry in one}
    now = dt.datetime.now(dt.UTC)
    number = 1 + max((_number(one) for one in listed), default=0)
    builder = (
        x509.CertificateRevocationListBuilder()
        .issuer_name(root.subject)
        .last_update(now)
        .next_update(root.not_valid_after_utc)
        .add_extension(x509.CRLNumber(number), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), critical=False
        )
    )
    for serial in {*old, *serials}:
        entry = x509.RevokedCertificateBuilder().serial_number(serial)
        since = old[serial].revocation_date_utc if serial in old else now
        builder = builder.add_revoked_certificate(entry.revocation_date(since).build())
    content = builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    pem.write(path, content, pem.PUBLIC)


def _lists(content: bytes, path: Path) -> list[x509.CertificateRevocationList]:
    """The lists in a file's content, one at least."""
    with contextlib.suppress(ValueError):
        if found := _LIST.findall(content):
            return [x509.load_pem_x509_crl(one) for one in found]
    raise IdentityError(
        f"The file {path} holds no readable list of revoked certificates. Copy it again."
    )


def _signed(listed: x509.CertificateRevocationList, root: x509.Certificate) -> bool:
    key = root.public_key()
    return isinstance(key, ec.EllipticCurvePublicKey) and listed.is_signature_valid(key)


def _number(listed: x509.CertificateRevocationList) -> int:
    try:
        return listed.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number
    except x509.ExtensionNotFound:
        return 0
