"""`mpc-vote status`: who attends, and what has been spent."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, ClassVar

from pydantic import Field
from rich.table import Table

from mpc_vote.app import process
from mpc_vote.app.process import CommandError
from mpc_vote.cli.against import EXPLAINED, by_labels
from mpc_vote.cli.common import ClientSettings, connect, console, counted, kind_name, write_json
from mpc_vote.client import AsyncLabelClient
from mpc_vote.errors import VoteError
from mpc_vote.privacy.rounding import round_up
from mpc_vote.proto.mpcvote.v1 import common_pb2, label_pb2
from mpc_vote.transport import tensors

_POLL_SECONDS = 0.2
_ROUNDS = {
    common_pb2.ROUNDS_UNSPECIFIED: "any",
    common_pb2.ROUNDS_VERIFIED: "verified",
    common_pb2.ROUNDS_UNVERIFIED: "unverified",
}


class StatusSettings(ClientSettings):
    """Shows which agents attend, what they answer, and what the service has spent."""

    command: ClassVar[str] = "status"

    agents: int = Field(
        0, ge=0, description="first wait until at least so many agents attend and parties are ready"
    )
    patience: float = Field(60.0, ge=0, description="seconds to wait for them at most")


def command(arguments: Sequence[str]) -> int:
    """`mpc-vote status`."""
    return process.run(StatusSettings, arguments, _main)


async def _main(settings: StatusSettings) -> None:
    async with connect(settings) as client:
        service = await _awaited(client, settings.agents, settings.patience)
    out = console(settings.json_path, markup=False)
    table = Table("agent", "answers", "policy")
    for agent in service.agents:
        row = _agent(agent)
        table.add_row(row["agent"], _answers(row), _wants(row))
    out.print(table)
    for task in _tasks(service):
        many = counted(len(task["agents"]), "agent")
        out.print(f"task {task['name']}: {many}, digest {task['digest'][:12]}")
    for party in service.parties:
        unready = party in service.unready_parties
        state = "NOT READY: it is down, or waits for another that is" if unready else "ready"
        out.print(f"{party}: {state}")
    out.print(
        f"spent: epsilon {round_up(service.total_epsilon_agent)} at agent level, "
        f"{round_up(service.total_epsilon_instance)} at instance level (delta {service.delta:g}); "
        f"by labels {by_labels(service, 'total_')}",
        soft_wrap=True,
    )
    out.print(EXPLAINED)
    figures = {
        "agents": [_agent(agent) for agent in service.agents],
        "tasks": _tasks(service),
        "parties": list(service.parties),
        "unready_parties": list(service.unready_parties),
        "delta": service.delta,
        "total_epsilon_agent": service.total_epsilon_agent,
        "total_epsilon_instance": service.total_epsilon_instance,
        "total_labels_epsilon_agent": service.total_labels_epsilon_agent,
        "total_labels_epsilon_instance": service.total_labels_epsilon_instance,
        "max_queries": service.max_queries,
    }
    write_json(settings.json_path, figures)


async def _awaited(
    client: AsyncLabelClient, agents: int, seconds: float
) -> label_pb2.GetServiceResponse:
    """The service, once so many agents attend and it can label; at once if none are waited for."""
    if not agents:
        return await client.service()
    seen = "the coordinator does not answer"
    try:
        async with asyncio.timeout(seconds):
            while True:
                try:
                    service = await client.service()
                    seen = f"{counted(len(service.agents), 'agent')} of {agents} attend"
                    if len(service.agents) >= agents and await client.is_ready():
                        return service
                except VoteError as error:
                    seen = error.message
                await asyncio.sleep(_POLL_SECONDS)
    except TimeoutError as error:
        raise CommandError(f"not ready after {seconds:g} s: {seen}") from error


def _tasks(service: label_pb2.GetServiceResponse) -> list[dict[str, Any]]:
    """The tasks that are served, each with who answers it."""
    return [
        {
            "name": task.name,
            "digest": task.digest.hex(),
            "agents": [agent.agent for agent in service.agents if task.name in agent.tasks],
        }
        for task in service.tasks
    ]


def _answers(row: dict[str, Any]) -> str:
    """What an agent answers, in a line: its tasks, and rounds without one."""
    told = list(row["tasks"])
    if (offer := row["offer"]) is not None:
        query = f"{offer['query_dtype']} {tuple(offer['query_shape'])}"
        ballots = ", ".join(offer["ballots"])
        k = f", k {offer['k']}" if offer["k"] else ""
        told.append(f"{offer['classes']} classes of {query}: {ballots}{k}")
    return "; ".join(told)


def _wants(row: dict[str, Any]) -> str:
    """An agent's policy in a line."""
    told = (
        f"sigma {row['min_sigma']:g}, quorum {row['min_quorum']}, "
        f"{row['min_collusion']} colluding or more"
    )
    if row["max_honest"]:
        told += f", {row['max_honest']} honest or fewer"
    return told if row["rounds"] == "any" else f"{told}; {row['rounds']} rounds"


def _agent(agent: label_pb2.AgentPresence) -> dict[str, Any]:
    return {
        "agent": agent.agent,
        "tasks": list(agent.tasks),
        "offer": _offer(agent.offer) if agent.HasField("offer") else None,
        "min_sigma": agent.min_sigma,
        "min_quorum": agent.min_quorum,
        "min_collusion": agent.min_collusion,
        "max_honest": agent.max_honest,
        "rounds": _ROUNDS.get(agent.rounds, "unknown"),
    }


def _offer(offer: common_pb2.Offer) -> dict[str, Any]:
    """What an agent answers without a task."""
    return {
        "classes": offer.classes,
        "query_dtype": str(tensors.dtype_of(offer.query_dtype)),
        "query_shape": list(offer.query_shape),
        "ballots": [kind_name(ballot) for ballot in offer.ballots],
        "k": offer.k,
    }
