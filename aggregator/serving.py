"""What the server-side roles have in common as processes: to serve, and to dial parties."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence

import grpc

from mpc_vote.app import process
from mpc_vote.pki.identity import Credentials, Identity, Role
from mpc_vote.transport import rpc

log = logging.getLogger(__name__)


async def _nothing() -> None:
    """Most roles have nothing to end before their server."""


async def serve(
    credentials: Credentials,
    servers: Sequence[rpc.Server],
    close: Callable[[], Awaitable[None]] = _nothing,
) -> None:
    """Serves until the process is told to stop; `close` is called before the servers end."""
    # What is imported stays: a collection that looks through all of it would hold calls up.
    gc.freeze()
    async with process.until_stopped() as stopped:
        for server in servers:
            await server.start()
        log.info("%s serves on port %d", credentials.identity, servers[0].port)
        try:
            await stopped.wait()
        finally:
            await close()
            await asyncio.gather(*(server.stop() for server in servers))
            log.info("%s stopped", credentials.identity)


async def dial_parties(
    stack: contextlib.AsyncExitStack, credentials: Credentials, parties: Mapping[str, str]
) -> dict[str, grpc.aio.Channel]:
    """A channel to each party, open as long as the stack."""
    channels: dict[str, grpc.aio.Channel] = {}
    for name, address in parties.items():
        channel = rpc.dial(credentials, address, Identity(Role.PARTY, name))
        channels[name] = await stack.enter_async_context(channel)
    return channels
