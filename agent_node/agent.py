"""The agent's life: hold a stream to the coordinator, answer rounds, come back when the stream
breaks.

What leaves this process: its public capabilities, refusals, and shares of ballots, each share to
one party only. In rounds that are not verified the agent's noise is in the ballot before it is
shared; in verified ones the committee adds all noise. What must hold for that to be safe: at least
one of the parties does not pool its shares with the others, and the noise of the agents that the
spec counts on is honest; in verified rounds at least one party is honest, and the dealer is.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import grpc

from agent_node.participation import Participant
from agent_node.policy import Policy
from agent_node.record_loss import RecordLoss
from agent_node.repeats import Repeats
from agent_node.serving import Serving
from mpc_vote.errors import ErrorKind, VoteError
from mpc_vote.proto.mpcvote.v1 import agent_pb2, common_pb2
from mpc_vote.transport import rpc
from mpc_vote.voting.limits import MAX_ROUNDS_AT_ONCE
from mpc_vote.voting.spec import Spec

log = logging.getLogger(__name__)

_BACKOFF_SECONDS = (0.2, 5.0)


class Agent(Participant):
    """One organisation's agent."""

    def __init__(
        self,
        name: str,
        policy: Policy,
        servings: Sequence[Serving],
        capabilities: agent_pb2.Capabilities,
        coordinator: rpc.AuthenticatedChannel,
        parties: Mapping[str, grpc.aio.Channel],
        scratch: Path,
        record_loss: RecordLoss | None = None,
    ) -> None:
        super().__init__(name, policy, servings, coordinator, parties, scratch)
        self._record_loss = record_loss
        self._capabilities = capabilities
        self._welcomed = False
        self._repeats = Repeats()
        self._attending = False

    async def health(self) -> Mapping[str, bool]:
        """Whether the coordinator has welcomed the agent on a stream that is still open."""
        return {"mpcvote.v1.AgentService": self._attending}

    async def attend(self) -> None:
        """Attends for ever; a broken stream is opened again after a while."""
        low, high = _BACKOFF_SECONDS
        wait = low
        while True:
            self._welcomed = False
            try:
                await self._session()
            except grpc.RpcError as error:
                self._complain(await self._explained(self._unreached(error)))
            except VoteError as error:
                self._complain(error)
            if self._welcomed:
                wait = low
            # Spread over time, so that a restarted coordinator is not met by all agents at once.
            await asyncio.sleep(wait * random.uniform(0.5, 1.0))
            wait = min(high, 2 * wait)

    def _complain(self, failure: VoteError) -> None:
        """Logs why the agent does not attend; it tries every few seconds, perhaps for days."""
        if self._repeats.due(failure.message):
            log.warning("not attending: %s", failure.message)

    async def _explained(self, refusal: VoteError) -> VoteError:
        """What the coordinator refused the agent for; of another task, in which settings it
        differs."""
        mine = self._servings.task(refusal.values.get("task", ""))
        if refusal.kind is not ErrorKind.TASK_DIFFERS or mine is None:
            return refusal
        return await self._difference(mine, common_pb2.GetTaskRequest(name=mine.name), refusal)

    def stop_voting(self) -> None:
        """Ends voters that run in processes of their own: nobody waits for their votes any more."""
        self._servings.close()

    async def _session(self) -> None:
        """One stream, or one after the other while the agent's certificate is replaced."""
        try:
            call: Any = await self._join()
            while call is not None:
                call = await self._follow(call)
        finally:
            self._attending = False

    async def _join(self) -> Any:
        """A stream on which the coordinator has welcomed the agent."""
        call = self._coordinator.Attend()
        try:
            await call.write(agent_pb2.AttendRequest(capabilities=self._capabilities))
            if await call.read() is not grpc.aio.EOF:
                self._welcomed = self._attending = True
                self._repeats.forget()
                log.info("attending as %s", self._name)
        except BaseException:
            call.cancel()
            raise
        return call

    async def _follow(self, call: Any) -> Any:
        """Answers what comes on a stream until it ends; returns the stream that replaces it."""
        rounds: set[asyncio.Task[None]] = set()
        successor = asyncio.create_task(self._move(call, rounds))
        try:
            while (response := rpc.readable(await call.read(), "Attend")) is not grpc.aio.EOF:
                if response.HasField("go"):
                    self._decide(response.go.round_id, True)
                elif response.HasField("closed"):
                    self._decide(response.closed.round_id, False)
                elif len(rounds) < MAX_ROUNDS_AT_ONCE:
                    task = asyncio.create_task(self._answer(response.announcement.spec, call))
                    rounds.add(task)
                    task.add_done_callback(rounds.discard)
                else:
                    # Here and now: who announces without reading the answers has to wait.
                    await self._overload(response.announcement.spec, call)
            return successor.result() if successor.done() else None
        finally:
            # Rounds may take a while to end.
            self._attending = successor.done()
            successor.cancel()
            call.cancel()
            for task in rounds:
                task.cancel()
            await asyncio.gather(*rounds, successor, return_exceptions=True)

    async def _move(self, call: Any, rounds: Collection[asyncio.Task[None]]) -> Any:
        """When the certificate has been replaced, and between rounds, attends on a new connection,
        and then lets the old stream end."""
        await self._line.renewed()
        while rounds:
            await asyncio.wait(rounds)
        while True:
            try:
                successor = await self._join()
                await call.done_writing()
                return successor
            except grpc.RpcError as error:
                failure = self._unreached(error)
                log.warning("still on the old certificate: %s", failure.message)
                await asyncio.sleep(_BACKOFF_SECONDS[1])

    def _decide(self, round_id: str, go: bool) -> None:
        """The first word counts, but that a round which still waits for its vote may end."""
        decision = self._rounds.get(round_id)
        if decision is not None and not decision.done():
            decision.set_result(go)
        elif decision is not None and not go:
            self._ended.add(round_id)

    async def _answer(self, wire_spec: bytes, call: Any) -> None:
        """Answers one announcement, with shares or with a reason."""
        round_id = ""
        try:
            spec = Spec.parse(wire_spec)
            if spec.round_id in self._rounds:
                return
            round_id = spec.round_id
            self._rounds[round_id] = asyncio.get_running_loop().create_future()
            uploaded = await self._take_part(spec, call)
            submitted = agent_pb2.Submitted(round_id=round_id, upload_bytes=uploaded)
            reply = agent_pb2.AttendRequest(submitted=submitted)
            log.info("round %s: voted on %d queries", round_id, spec.message.queries)
        except VoteError as error:
            log.warning("round %s: declined: %s", round_id, error.message)
            declined = agent_pb2.Declined(round_id=round_id, error=error.name, reason=error.message)
            reply = agent_pb2.AttendRequest(declined=declined)
        except Exception as error:
            log.exception("round %s: failed", round_id)
            failure = VoteError(ErrorKind.INTERNAL, who="The agent", why=type(error).__name__)
            declined = agent_pb2.Declined(
                round_id=round_id, error=failure.name, reason=failure.message
            )
            reply = agent_pb2.AttendRequest(declined=declined)
        finally:
            self._rounds.pop(round_id, None)
            self._promised.pop(round_id, None)
            self._ended.discard(round_id)
        await self._say(call, reply)
        if self._record_loss is not None and reply.HasField("submitted"):
            log.info("round %s: %s", round_id, await asyncio.to_thread(str, self._record_loss))

    async def _overload(self, wire_spec: bytes, call: Any) -> None:
        """Declines a round that comes while too many are open."""
        why = f"{MAX_ROUNDS_AT_ONCE} rounds are open here"
        busy, round_id = VoteError(ErrorKind.POLICY_REFUSED, why=why), ""
        try:
            round_id = Spec.parse(wire_spec).round_id
        except VoteError as error:
            busy = error
        declined = agent_pb2.Declined(round_id=round_id, error=busy.name, reason=busy.message)
        await self._say(call, agent_pb2.AttendRequest(declined=declined))
