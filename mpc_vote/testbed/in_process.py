"""Agents of this process that vote as functions say: for a model that is in memory, in a notebook.

Each is a real agent with its own certificate, ledger and connections. They share a thread and its
event loop; their functions run in threads of this process, where nothing keeps them apart from it:
an agent for others' data is a process, `mpc-vote agent`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from agent_node.agent import Agent
from agent_node.serving import Serving
from agent_node.settings import AgentSettings
from agent_node.startup import open_agent
from mpc_vote.app.config import load
from mpc_vote.app.process import CommandError, LineFormatter
from mpc_vote.learning.voters import Voter, VoterOptions, function
from mpc_vote.learning.voters.trial import try_out
from mpc_vote.pki.identity import Credentials, Role
from mpc_vote.tasks import Task, agreement

_STOP_SECONDS = 10.0
_LOGGER = logging.getLogger("agent_node")


class _Settings(AgentSettings):
    """An agent whose votes are a function's."""

    command: ClassVar[str] = "agent"

    data: Path = Field(Path(), description="not used: the function has the data")


class InProcessAgents:
    """Agents that attend from when this is made until `stop`."""

    def __init__(
        self,
        task: Task,
        functions: Mapping[str, Callable[[Any], Any]],
        settings: Mapping[str, Mapping[str, str]],
        log: Path,
    ) -> None:
        self._servings = {
            name: _serving(name, task, function) for name, function in functions.items()
        }
        self._settings = settings
        self._log = _own_log(log)
        self._loop = asyncio.new_event_loop()
        self._stopped = asyncio.Event()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._work: Future[None] = asyncio.run_coroutine_threadsafe(self._attend(), self._loop)

    def check(self) -> None:
        """Raises if they have ended by themselves."""
        if self._work.done():
            raise CommandError(f"an agent of this process ended: {self._work.exception()}")

    def stop(self) -> None:
        """Ends them; a function that does not come back is left to itself."""
        self._loop.call_soon_threadsafe(self._stopped.set)
        with contextlib.suppress(TimeoutError, Exception):
            self._work.result(_STOP_SECONDS)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_STOP_SECONDS)
        _LOGGER.removeHandler(self._log)
        self._log.close()

    async def _attend(self) -> None:
        async with contextlib.AsyncExitStack() as stack:
            agents = [await self._open(stack, name) for name in self._servings]
            attending = [asyncio.create_task(agent.attend()) for agent in agents]
            stopping = asyncio.create_task(self._stopped.wait())
            try:
                await asyncio.wait([*attending, stopping], return_when=asyncio.FIRST_COMPLETED)
            finally:
                for agent in agents:
                    agent.stop_voting()
                for one in (*attending, stopping):
                    one.cancel()
                results = await asyncio.gather(*attending, return_exceptions=True)
        for result in results:
            if isinstance(result, Exception):
                raise result

    async def _open(self, stack: contextlib.AsyncExitStack, name: str) -> Agent:
        flags = [
            part for key, value in self._settings[name].items() for part in (f"--{key}", value)
        ]
        settings = load(_Settings, flags)
        credentials = Credentials.load(settings.certs, Role.AGENT)
        serving = self._servings[name]
        return await open_agent(stack, settings, credentials, settings.data_dir, [serving])


def _own_log(path: Path) -> logging.Handler:
    """What agents log goes to a file, as that of processes does, and not among what a script
    prints."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handler = logging.FileHandler(path)
    handler.setFormatter(LineFormatter("%(asctime)s %(levelname)s %(message)s"))
    _LOGGER.addHandler(handler)
    _LOGGER.propagate = False
    return handler


def _serving(name: str, task: Task, votes: Callable[[Any], Any]) -> Serving:
    """What a function answers; it was tried once."""
    options = VoterOptions(task=task)
    voter: Voter = function.make(votes, None, options)
    if task.vote.ballot not in voter.kinds:
        known = ", ".join(kind.name for kind in voter.kinds)
        raise CommandError(
            f"agent {name}: a function casts {known} ballots, and task {task.name} takes "
            f"{task.vote.ballot.name}: write another ballot into the task"
        )
    try:
        try_out(voter, None, options)
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        raise CommandError(f"agent {name}: its function can't vote: {why}") from error
    return Serving(agreement.offer_of(task), voter, "function", task)
