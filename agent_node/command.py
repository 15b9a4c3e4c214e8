"""The agent as a process."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence

from agent_node.agent import Agent
from agent_node.enrolment import credentials_of
from agent_node.policy import Policy
from agent_node.settings import AgentSettings
from agent_node.voter import prepare
from mpc_vote import process, rpc
from mpc_vote.identity import Identity, Role
from mpc_vote.privacy.ledger import Budget, Ledger
from mpc_vote.process import CommandError

log = logging.getLogger(__name__)


def command(arguments: Sequence[str]) -> int:
    """`mpc-vote agent`."""
    return process.run(AgentSettings, arguments, serve_agent)


async def serve_agent(settings: AgentSettings) -> None:
    """Runs an agent until it is told to stop."""
    credentials = await credentials_of(settings)
    name = credentials.identity.name
    try:
        voter, capabilities = await asyncio.to_thread(prepare, settings, name)
    except (ValueError, OSError) as error:
        raise CommandError(f"the data of agent {name} can't be used: {error}") from error
    async with contextlib.AsyncExitStack() as stack:
        budget = Budget(settings.budget_agent, settings.budget_instance, settings.delta)
        settings.data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        ledger = stack.enter_context(
            contextlib.closing(Ledger(settings.data_dir / "ledger.db", budget))
        )
        coordinator = Identity(Role.COORDINATOR, settings.coordinator_name)
        channel = rpc.dial(credentials, settings.coordinator, coordinator)
        await stack.enter_async_context(channel)
        parties = {}
        for party, address in settings.parties.items():
            party_channel = rpc.dial(credentials, address, Identity(Role.PARTY, party))
            parties[party] = await stack.enter_async_context(party_channel)
        agent = Agent(name, Policy(name, settings, ledger), voter, capabilities, channel, parties)
        if settings.health_listen is not None:
            server = rpc.Server(credentials, settings.health_listen, [], agent.health)
            stack.push_async_callback(server.stop)
            await server.start()
        async with process.until_stopped() as stopped:
            attending = asyncio.create_task(agent.attend())
            stopping = asyncio.create_task(stopped.wait())
            try:
                await asyncio.wait({attending, stopping}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                stopping.cancel()
                attending.cancel()
                results = await asyncio.gather(attending, return_exceptions=True)
            if isinstance(results[0], Exception):
                raise results[0]
            log.info("%s stopped", credentials.identity)
