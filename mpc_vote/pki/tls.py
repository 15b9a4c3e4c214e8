"""TLS 1.3 for connections that are not gRPC's: the same certificates, checked by both ends.

Each end needs a certificate that its peer's authority signed, and is told the peer's: `presented`
has it in the form in which gRPC tells a server its caller's, so that names and revocation are read
by the same code. A dialled end also has TLS compare the name.
"""

from __future__ import annotations

import contextlib
import os
import ssl
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mpc_vote.pki.identity import Credentials
from mpc_vote.pki.revocation import CHAIN_PROPERTY, LEAF_PROPERTY


def answering_context(credentials: Credentials, protocol: str) -> ssl.SSLContext:
    """For the end that is dialled; who has no certificate does not get in."""
    context = _context(ssl.PROTOCOL_TLS_SERVER, credentials, protocol)
    context.verify_mode = ssl.CERT_REQUIRED
    # Nobody resumes a session: each connection is authenticated by itself, and lasts.
    context.num_tickets = 0
    return context


def dialling_context(credentials: Credentials, protocol: str) -> ssl.SSLContext:
    """For the end that dials; to be given the name that the other's certificate must have."""
    return _context(ssl.PROTOCOL_TLS_CLIENT, credentials, protocol)


def presented(tls: ssl.SSLObject) -> Mapping[str, Sequence[bytes]]:
    """The peer's certificate and those above it, once TLS has verified them, under the names of
    gRPC's `auth_context()`."""
    # Public from Python 3.13 on.
    inner: Any = tls._sslobj  # type: ignore[attr-defined]
    leaf, *chain = [one.public_bytes().encode() for one in inner.get_verified_chain()]
    return {LEAF_PROPERTY: [leaf], CHAIN_PROPERTY: chain}


def _context(side: int, credentials: Credentials, protocol: str) -> ssl.SSLContext:
    context = ssl.SSLContext(side)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.set_alpn_protocols([protocol])
    context.load_verify_locations(cadata=credentials.ca_pem.decode())
    with _piped(credentials.certificate_pem) as certificate, _piped(credentials.key_pem) as key:
        context.load_cert_chain(certificate, key)
    return context


@contextlib.contextmanager
def _piped(content: bytes) -> Iterator[str]:
    """A name under which a content can be read once: Python's TLS reads files only, and a key is
    not to be written into another."""
    reader, writer = os.pipe()
    try:
        try:
            os.set_blocking(writer, False)
            if os.write(writer, content) != len(content):
                raise ValueError("a certificate or key is too long")
        finally:
            os.close(writer)
        yield f"/dev/fd/{reader}"
    finally:
        os.close(reader)
