"""Real connections between two identities, for tests of who gets through TLS."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import grpc
import grpc.aio

from mpc_vote.pki.identity import (
    Credentials,
    Identity,
    channel_options,
    peer_identity,
    server_options,
)

SECONDS = 10.0


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
