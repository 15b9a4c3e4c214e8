"""`mpc-vote relay`: forwards addresses to others, with a delay and at a limited rate if told to."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Sequence
from typing import Annotated, ClassVar

from pydantic import AfterValidator, Field

from mpc_vote.app import process
from mpc_vote.app.config import Settings, check_address
from mpc_vote.transport.relay import Relay

log = logging.getLogger(__name__)

_BITS_PER_MEGABIT = 1e6


def _links(value: dict[str, str]) -> dict[str, str]:
    return {check_address(listen): check_address(target) for listen, target in value.items()}


class RelaySettings(Settings):
    """Forwards connections, of which it sees ciphertext only; delay and rate emulate a distant
    network."""

    command: ClassVar[str] = "relay"

    links: Annotated[dict[str, str], AfterValidator(_links)] = Field(
        min_length=1, description="listen=target,... each host:port or unix:/path"
    )
    delay_ms: float = Field(0.0, ge=0, le=10_000, description="one-way delay in milliseconds")
    rate_mbit: float | None = Field(None, gt=0, description="rate per direction in megabits/s")


def command(arguments: Sequence[str]) -> int:
    """`mpc-vote relay`."""
    return process.run(RelaySettings, arguments, serve_relay)


async def serve_relay(settings: RelaySettings) -> None:
    """Runs the links until told to stop."""
    rate = settings.rate_mbit * _BITS_PER_MEGABIT / 8 if settings.rate_mbit else None
    async with process.until_stopped() as stopped, contextlib.AsyncExitStack() as stack:
        for listen, target in settings.links.items():
            relay = Relay(listen, target, delay=settings.delay_ms / 1000, rate=rate)
            await stack.enter_async_context(relay.running())
            log.info("relay from %s to %s", listen, target)
        await stopped.wait()
