"""The agent as a process."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence

from agent_node.enrolment import credentials_of, keep_renewed
from agent_node.settings import AgentSettings
from agent_node.startup import attend, open_agent
from agent_node.voting import prepare
from mpc_vote.app import process
from mpc_vote.pki.identity import Identity, Role
from mpc_vote.transport import rpc

log = logging.getLogger(__name__)


def command(arguments: Sequence[str]) -> int:
    """`mpc-vote agent`."""
    return process.run(AgentSettings, arguments, serve_agent)


async def serve_agent(settings: AgentSettings) -> None:
    """Runs an agent until it is told to stop."""
    credentials = await credentials_of(settings)
    name = credentials.identity.name
    servings = await asyncio.to_thread(prepare, settings, name)
    async with contextlib.AsyncExitStack() as stack:
        agent = await open_agent(stack, settings, credentials, settings.data_dir, servings)
        if settings.health_listen is not None:
            server = rpc.Server(credentials, settings.health_listen, [], agent.health)
            stack.push_async_callback(server.stop)
            await server.start()
        if settings.enrol is not None:
            coordinator = Identity(Role.COORDINATOR, settings.coordinator_name)
            channel = rpc.dial(credentials, settings.coordinator, coordinator)
            await stack.enter_async_context(channel)
            renewing = asyncio.create_task(keep_renewed(credentials, settings.certs, channel))
            stack.callback(renewing.cancel)
        await attend([agent])
        log.info("%s stopped", credentials.identity)
