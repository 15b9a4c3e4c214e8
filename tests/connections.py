"""Real connections between two identities, for tests of who gets through TLS."""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field

import grpc
import grpc.aio
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from mpc_vote import pem
from mpc_vote.identity import (
    Credentials,
    Identity,
    channel_options,
    peer_identity,
    server_options,
)

SECONDS = 10.0

_KEY = ec.generate_private_key(ec.SECP256R1())
_DNS, _URI = 0x82, 0x86


def caller_named(*names: bytes, uris: Sequence[bytes] = ()) -> Mapping[str, list[bytes]]:
    """What gRPC says of a caller whose certificate has these DNS names and URIs, of any bytes."""
    tagged = [*((_DNS, name) for name in names), *((_URI, uri) for uri in uris)]
    content = b"".join(tlv(tag, name) for tag, name in tagged)
    alternative = x509.UnrecognizedExtension(x509.SubjectAlternativeName.oid, tlv(0x30, content))
    start = dt.datetime.now(dt.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([]))
        .issuer_name(x509.Name([]))
        .public_key(_KEY.public_key())
        .serial_number(7)
        .not_valid_before(start)
        .not_valid_after(start + dt.timedelta(days=1))
        .add_extension(alternative, critical=False)
        .sign(_KEY, hashes.SHA256())
    )
    return {
        "transport_security_type": [b"ssl"],
        "x509_pem_cert": [pem.encode_certificate(certificate)],
    }


def tlv(tag: int, content: bytes) -> bytes:
    """DER of a tag, a length and a content."""
    size = len(content).to_bytes((len(content).bit_length() + 7) // 8 or 1, "big")
    head = bytes([tag]) if len(content) < 128 else bytes([tag, 0x80 | len(size)])
    return head + size + content


@dataclass
class WhoAmI:
    """A service that answers with the caller's identity and remembers whom it answered."""

    address: str = ""
    callers: list[Identity | None] = field(default_factory=list)

    async def answer(
        self, request: bytes, context: grpc.aio.ServicerContext[bytes, bytes]
    ) -> bytes:
        caller = peer_identity(context.auth_context())
        self.callers.append(caller)
        return str(caller).encode()

    def handlers(self) -> grpc.GenericRpcHandler:
        method: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(
            self.answer
        )
        return grpc.method_handlers_generic_handler("test.WhoAmI", {"Ask": method})


async def ask(channel: grpc.aio.Channel) -> str:
    method: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary("/test.WhoAmI/Ask")
    async with channel:
        return (await method(b"", timeout=SECONDS)).decode()


def dial(service: WhoAmI, caller: Credentials, server: Identity) -> grpc.aio.Channel:
    return grpc.aio.secure_channel(
        service.address, caller.channel_credentials(), options=channel_options(server)
    )


@contextlib.asynccontextmanager
async def serving(credentials: Credentials) -> AsyncIterator[WhoAmI]:
    service = WhoAmI()
    server = grpc.aio.server(options=server_options())
    server.add_generic_rpc_handlers((service.handlers(),))
    port = server.add_secure_port("127.0.0.1:0", credentials.server_credentials())
    service.address = f"127.0.0.1:{port}"
    await server.start()
    try:
        yield service
    finally:
        await server.stop(None)
