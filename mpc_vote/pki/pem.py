"""Keys and certificates as PEM files: read with a remedy in every refusal, written whole or not at
all, keys for their owner only."""

from __future__ import annotations

import datetime as dt
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes, PublicKeyTypes

SECRET = 0o600
PUBLIC = 0o644
# What reading a certificate or request that is damaged, or none of ours, may raise.
UNREADABLE = (
    ValueError,
    TypeError,
    UnsupportedAlgorithm,
    x509.InvalidVersion,
    x509.DuplicateExtension,
    x509.UnsupportedGeneralNameType,
)


class IdentityError(Exception):
    """A certificate, key or name can't be used; the message says why and what to do."""


def encode_certificate(certificate: x509.Certificate) -> bytes:
    """A certificate as PEM."""
    return certificate.public_bytes(serialization.Encoding.PEM)


def encode_key(key: ec.EllipticCurvePrivateKey) -> bytes:
    """A private key as PEM, in the clear: for files of mode `SECRET` and for gRPC."""
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def public_bytes(key: PublicKeyTypes) -> bytes:
    """What two public keys are compared by."""
    return key.public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )


def certified_bytes(certificate: x509.Certificate, path: Path) -> bytes:
    """The public key in a certificate, which may be of a kind that nobody knows."""
    try:
        return public_bytes(certificate.public_key())
    except UNREADABLE as error:
        raise IdentityError(
            f"The key in the certificate {path} can't be read. Issue a new one with this project's "
            "authority."
        ) from error


def read(path: Path) -> bytes:
    """A file's content."""
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


def read_key_file(path: Path) -> bytes:
    """A private key's content, from a file that nobody but its owner may read."""
    content = read(path)
    if path.stat().st_mode & 0o077:
        raise IdentityError(
            f"Others than its owner may read the key {path}. Run: chmod 600 {path} (and issue a "
            "new one if others may have read it)."
        )
    return content


def parse_certificates(content: bytes, path: Path) -> list[x509.Certificate]:
    """The certificates in a file's content, one at least."""
    try:
        return x509.load_pem_x509_certificates(content)
    except UNREADABLE as error:
        raise IdentityError(
            f"The file {path} holds no readable PEM certificate. Copy it again, or issue a new one."
        ) from error


def parse_key(content: bytes, path: Path) -> PrivateKeyTypes:
    """The private key in a file's content."""
    try:
        return serialization.load_pem_private_key(content, password=None)
    except TypeError as error:
        raise IdentityError(
            f"The key {path} is encrypted with a password, which a service can't ask for. Store it "
            "without one, readable by its owner only."
        ) from error
    except (ValueError, UnsupportedAlgorithm) as error:
        raise IdentityError(
            f"The file {path} holds no readable PEM private key. Copy it again, or issue a new one."
        ) from error


def check_dates(certificate: x509.Certificate, path: Path) -> None:
    """Refuses a certificate that is not valid now."""
    now = dt.datetime.now(dt.UTC)
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


def write_all(directory: Path, files: Mapping[Path, tuple[bytes, int]], *, overwrite: bool) -> None:
    """Writes each file with its mode, in this order, in a directory only its owner writes."""
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
            "for overwriting (--renew)."
        )
    for path, (content, mode) in files.items():
        write(path, content, mode)


def write(path: Path, content: bytes, mode: int) -> None:
    """Writes one file; under its name there is the old content or the new, never a part."""
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
