"""The agent's life: hold a stream to the coordinator, answer rounds, come back when the stream
breaks.

What leaves this process: its public capabilities, refusals, and shares of ballots and noise, each
share to one party only; in rounds that are not verified the noise is in the ballot before it is
shared. What must hold for that to be safe: at least one of the parties does not pool its shares
with the others, and the noise of the agents that the spec counts on is honest.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
from collections.abc import AsyncIterator, Collection, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any

import grpc

from agent_node.batch import Batch
from agent_node.policy import Policy
from agent_node.repeats import Repeats
from agent_node.serving import Serving, Servings
from agent_node.voting import await_voter, cast_ballot
from mpc_vote.app import threads
from mpc_vote.errors import ErrorKind, VoteError
from mpc_vote.mpc.sharing import Share
from mpc_vote.privacy.mechanisms import Mechanism
from mpc_vote.privacy.noise import SkellamSampler
from mpc_vote.proto.mpcvote.v1 import (
    agent_pb2,
    agent_pb2_grpc,
    common_pb2,
    party_pb2,
    party_pb2_grpc,
)
from mpc_vote.tasks import Task, agreement
from mpc_vote.transport import rpc, tensors
from mpc_vote.voting.aggregation import share_ballot
from mpc_vote.voting.ballots import IntArray
from mpc_vote.voting.limits import MAX_ROUNDS_AT_ONCE, SUBMISSION_ID_BYTES
from mpc_vote.voting.spec import Spec

log = logging.getLogger(__name__)

_SUBMIT_TRIES = 3
_BACKOFF_SECONDS = (0.2, 5.0)
_TASK_SECONDS = 10.0
_WHO = "The coordinator"
# What a vote is given to end where the agent leaves the round, or stops.
_LEAVE_SECONDS = 5.0


class Agent:
    """One organisation's voice."""

    def __init__(
        self,
        name: str,
        policy: Policy,
        servings: Sequence[Serving],
        capabilities: agent_pb2.Capabilities,
        coordinator: rpc.AuthenticatedChannel,
        parties: Mapping[str, grpc.aio.Channel],
        scratch: Path,
    ) -> None:
        self._name = name
        self._policy = policy
        self._servings = Servings(name, servings)
        self._capabilities = capabilities
        self._line = coordinator
        self._coordinator = agent_pb2_grpc.AgentServiceStub(coordinator)
        self._channels = parties
        self._parties = {n: party_pb2_grpc.PartyServiceStub(c) for n, c in parties.items()}
        self._scratch = scratch
        # Rounds that this agent takes part in: True once all are prepared, False if it is over.
        self._rounds: dict[str, asyncio.Future[bool]] = {}
        # Those among them that were started, and ended before this agent came to vote.
        self._ended: set[str] = set()
        # What rounds that it is prepared for will be charged: who is prepared does not back out.
        self._promised: dict[str, Mechanism] = {}
        self._promising = asyncio.Lock()
        self._welcomed = False
        self._repeats = Repeats()
        self._attending = False
        self._voting = asyncio.Lock()
        # The round that the voter was asked about, until it has answered.
        self._voted_on: Spec | None = None
        self._saying = asyncio.Lock()

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
        if self._welcomed:
            self._repeats.forget()
        if self._repeats.due(failure.message):
            log.warning("not attending: %s", failure.message)

    async def _explained(self, refusal: VoteError) -> VoteError:
        """What the coordinator refused the agent for; of another task, in which settings it
        differs."""
        mine = self._servings.task(refusal.values.get("task", ""))
        if refusal.kind is not ErrorKind.TASK_DIFFERS or mine is None:
            return refusal
        return await self._difference(mine, common_pb2.GetTaskRequest(name=mine.name), refusal)

    async def _difference(
        self, mine: Task, request: common_pb2.GetTaskRequest, refusal: VoteError
    ) -> VoteError:
        """That the coordinator's task differs and in what, or if it doesn't say, the refusal."""
        try:
            found = await self._coordinator.GetTask(request, timeout=_TASK_SECONDS)
            other = agreement.from_wire(found.task, _WHO)
        except (grpc.RpcError, VoteError) as error:
            told = error if isinstance(error, VoteError) else self._unreached(error)
            log.info("the coordinator's task can't be compared: %s", told.message)
            return refusal
        return agreement.differs(f"agent {self._name}", mine, "the coordinator", other)

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
        """When the certificate has been replaced, and between rounds, takes the agent's seat over
        on a new connection, and then lets the old stream end."""
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

    async def _take_part(self, spec: Spec, call: Any) -> int:
        """Prepares from public things alone; when all are prepared, charges, votes and sends.

        Returns the bytes that were sent.
        """
        serving = await self._serving(spec)
        self._policy.check(spec, serving)
        await self._promise(spec)
        with Batch.opened(spec, self._scratch, serving.task) as batch:
            await self._unless_ended(spec, self._fetch(spec, batch))
            await self._check_reach()
            self._check_voter()
            await self._await_start(spec, call)
            shares = await self._vote(spec, serving, batch)
        submission = os.urandom(SUBMISSION_ID_BYTES)
        sent = await asyncio.gather(
            *(
                self._submit(spec, submission, name, share)
                for name, share in zip(spec.parties, shares, strict=True)
            )
        )
        return sum(sent)

    async def _serving(self, spec: Spec) -> Serving:
        """What answers the spec; where its task is another of the same name, the refusal says in
        which settings."""
        try:
            return self._servings.find(spec)
        except VoteError as error:
            mine = self._servings.task(spec.task)
            if error.kind is not ErrorKind.TASK_DIFFERS or mine is None:
                raise
            digest = spec.message.task_digest
            request = common_pb2.GetTaskRequest(name=spec.task, digest=digest)
            raise await self._difference(mine, request, error) from error

    async def _promise(self, spec: Spec) -> None:
        """Keeps what the round will cost apart from the budget, until the round is over."""
        async with self._promising:
            await asyncio.to_thread(self._policy.check_budget, spec, dict(self._promised))
            self._promised[spec.round_id] = self._policy.cost(spec)

    async def _unless_ended(self, spec: Spec, work: Coroutine[Any, Any, None]) -> None:
        """Work that may take long, and ends with the round: else rounds that were opened only to
        fail would keep the agent from others."""
        task = asyncio.create_task(work)
        try:
            either: list[asyncio.Future[Any]] = [task, self._rounds[spec.round_id]]
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise _over(spec, "the coordinator ended it")
            task.result()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _fetch(self, spec: Spec, batch: Batch) -> None:
        """The round's queries, which must be those that the spec's digest names."""
        request = agent_pb2.FetchQueriesRequest(round_id=spec.round_id)
        timeout = max(0.0, spec.seconds_left())
        try:
            await batch.fill(self._coordinator.FetchQueries(request, timeout=timeout))
        except grpc.RpcError as error:
            raise self._unreached(error) from error

    async def _await_start(self, spec: Spec, call: Any) -> None:
        """Says that the agent is prepared, and waits until enough are."""
        decision = self._rounds[spec.round_id]
        if decision.done():
            raise _over(spec, "the coordinator ended it")
        prepared = agent_pb2.Prepared(round_id=spec.round_id)
        await self._say(call, agent_pb2.AttendRequest(prepared=prepared))
        try:
            go = await asyncio.wait_for(decision, max(0.0, spec.seconds_left()))
        except TimeoutError as error:
            raise _over(spec, "too few agents were prepared before its deadline") from error
        if not go:
            raise _over(spec, "the coordinator ended it")

    async def _check_reach(self) -> None:
        """Finds out that a party is out of reach before the round is charged."""
        await asyncio.gather(
            *(rpc.reach(channel, f"Party {name}") for name, channel in self._channels.items())
        )

    def _check_voter(self) -> None:
        """Makes no promise on behalf of a voter that may never come back: others would pay for
        rounds that wait for it in vain."""
        asked = self._voted_on
        if asked is not None and asked.seconds_left() <= 0:
            voter = self._servings.find(asked).voter_name
            log.error("voter %s has not answered round %s", voter, asked.round_id)
            why = "it has not come back from an earlier round"
            raise VoteError(ErrorKind.VOTER_FAILED, voter=voter, why=why)

    async def _vote(self, spec: Spec, serving: Serving, batch: Batch) -> list[Share]:
        """Charges, votes, shares, in a thread. One batch, and the ballots on it, are in memory at a
        time: the thread keeps its turn to its end, also where nobody waits for it any more."""
        try:
            async with asyncio.timeout(max(0.0, spec.seconds_left())):
                await self._voting.acquire()
        except TimeoutError as error:
            raise _over(spec, "its deadline passed before this agent could vote") from error
        if spec.round_id in self._ended:
            self._voting.release()
            # Nothing would count any more: no charge, and no vote that others wait for.
            raise _over(spec, "the coordinator ended it")
        self._voted_on = spec
        work = threads.start(self._cast, spec, serving, batch)
        work.add_done_callback(self._voted)
        try:
            async with asyncio.timeout(max(0.0, spec.seconds_left())):
                return await asyncio.shield(work)
        except TimeoutError as error:
            raise _over(spec, "its deadline passed while this agent voted") from error
        finally:
            await asyncio.wait([work], timeout=_LEAVE_SECONDS)

    def _voted(self, _: asyncio.Future[list[Share]]) -> None:
        self._voted_on = None
        self._voting.release()

    def _cast(self, spec: Spec, serving: Serving, batch: Batch) -> list[Share]:
        """In a thread: charges, votes, shares.

        The spend is on disk before private data is looked at, so that nothing which depends on it,
        not even how long a vote takes, is to be had without a charge. What fails before costs
        nothing; what fails after is charged.
        """
        queries = batch.read()
        if spec.seconds_left() <= 0:
            raise _over(spec, "its deadline passed before this agent could vote")
        await_voter(serving.voter, serving.voter_name, spec)
        self._policy.charge(spec)
        ballot = cast_ballot(serving.voter, serving.voter_name, self._name, spec, queries)
        return self._share(spec, ballot)

    def _share(self, spec: Spec, ballot: IntArray) -> list[Share]:
        """Noise and shares."""
        return share_ballot(spec, self._name, ballot, self._noise(spec))

    def _noise(self, spec: Spec) -> IntArray:
        """This agent's part of the noise, fresh for every round."""
        shape = (spec.message.queries, spec.message.classes)
        return SkellamSampler(spec.agent_variance).sample(shape)

    async def _submit(self, spec: Spec, submission: bytes, party: str, share: Share) -> int:
        """Sends one party its share; repeating is harmless, so a lost answer is tried again."""
        for attempt in range(1, _SUBMIT_TRIES + 1):
            messages = _Upload(spec, submission, share)
            try:
                await self._parties[party].SubmitShares(
                    messages.stream(), timeout=max(0.1, spec.seconds_left())
                )
                return messages.sent
            except grpc.RpcError as error:
                failure = VoteError.quoted(error, f"Party {party}")
                unreachable = failure.kind is ErrorKind.PARTY_UNREACHABLE
                if not unreachable or attempt == _SUBMIT_TRIES or spec.seconds_left() <= 0:
                    raise failure from error
        raise AssertionError("unreachable")

    async def _say(self, call: Any, message: agent_pb2.AttendRequest) -> None:
        """Tells the coordinator, if it still listens; if not, the session ends and starts anew.

        One at a time: a stream that two rounds write to at once is stuck for ever.
        """
        with contextlib.suppress(grpc.RpcError, asyncio.InvalidStateError):
            async with self._saying:
                await call.write(message)

    def _unreached(self, error: grpc.RpcError) -> VoteError:
        """What the coordinator said, or that it says nothing at the address that was tried."""
        who = f"{_WHO} at {self._line.address}"
        return VoteError.from_rpc(error, who, ErrorKind.COORDINATOR_UNREACHABLE)


def _over(spec: Spec, why: str) -> VoteError:
    return VoteError(ErrorKind.ROUND_CLOSED, round=spec.round_id, why=why)


class _Upload:
    """A share as the messages of one call, counting what is sent."""

    def __init__(self, spec: Spec, submission: bytes, share: Share) -> None:
        self._header = party_pb2.SubmissionHeader(
            round_id=spec.round_id,
            spec_digest=spec.digest,
            submission_id=submission,
            seed=share.seed,
        )
        self._share = share
        self.sent = 0

    async def stream(self) -> AsyncIterator[party_pb2.SubmitSharesRequest]:
        header: party_pb2.SubmissionHeader | None = self._header
        for piece in list(tensors.split_bytes(self._share.packed)) or [b""]:
            yield self._counted(party_pb2.SubmitSharesRequest(header=header, packed=piece))
            header = None

    def _counted(self, message: party_pb2.SubmitSharesRequest) -> party_pb2.SubmitSharesRequest:
        self.sent += message.ByteSize()
        return message
