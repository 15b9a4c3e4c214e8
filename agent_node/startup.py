"""An agent with its ledger and its connections, and how agents attend until told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Sequence
from pathlib import Path

from agent_node.agent import Agent
from agent_node.contributions import counted
from agent_node.policy import Policy, announced
from agent_node.record_loss import RecordLoss
from agent_node.serving import Serving
from agent_node.settings import AgentSettings
from mpc_vote.app import folder, process
from mpc_vote.pki.identity import Credentials, Identity, Role
from mpc_vote.privacy.ledger import Budget, Ledger
from mpc_vote.transport import rpc

log = logging.getLogger(__name__)

_PROCESS_ID_BYTES = 16


async def open_agent(
    stack: contextlib.AsyncExitStack,
    settings: AgentSettings,
    credentials: Credentials,
    data_dir: Path,
    servings: Sequence[Serving],
    kind: type[Agent] = Agent,
) -> Agent:
    """An agent whose ledger, counters and connections last as long as the stack; whatever it serves
    is charged to the one ledger."""
    name = credentials.identity.name
    stack.enter_context(folder.held(data_dir))
    budget = Budget(
        settings.budget_agent, settings.budget_instance, settings.delta, settings.budget_against
    )
    ledger = stack.enter_context(
        contextlib.closing(Ledger(data_dir / "ledger.db", budget, str(credentials.identity)))
    )
    log.info("%s spends from ledger %s", credentials.identity, ledger.ledger_id)
    servings, kept = stack.enter_context(counted(servings, data_dir, ledger.ledger_id))
    record_loss = None if kept is None else RecordLoss(ledger, kept, settings.delta)
    capabilities = announced(settings)
    capabilities.offers.extend(one.offer for one in servings)
    capabilities.ledger_id = ledger.ledger_id
    capabilities.process_id = secrets.token_hex(_PROCESS_ID_BYTES)
    coordinator = Identity(Role.COORDINATOR, settings.coordinator_name)
    channel = rpc.dial(credentials, settings.coordinator, coordinator)
    await stack.enter_async_context(channel)
    parties = {}
    for party, address in settings.parties.items():
        party_channel = rpc.dial(credentials, address, Identity(Role.PARTY, party))
        parties[party] = await stack.enter_async_context(party_channel)
    return kind(
        name,
        Policy(name, settings, ledger),
        servings,
        capabilities,
        channel,
        parties,
        data_dir,
        record_loss,
    )


async def attend(agents: Sequence[Agent]) -> None:
    """Lets agents attend until told to stop; they would for ever, so one that ends has failed."""
    async with process.until_stopped() as stopped:
        attending = [asyncio.create_task(agent.attend()) for agent in agents]
        stopping = asyncio.create_task(stopped.wait())
        try:
            await asyncio.wait([*attending, stopping], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for agent in agents:
                agent.stop_voting()
            for task in (*attending, stopping):
                task.cancel()
            results = await asyncio.gather(*attending, return_exceptions=True)
        for result in results:
            if isinstance(result, Exception):
                raise result
