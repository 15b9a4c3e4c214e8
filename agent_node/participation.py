"""An agent's part in one round: prepare from public things alone, then charge, vote, share and
send."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import time
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any

import grpc

from agent_node.batch import Batch
from agent_node.policy import Policy
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
from mpc_vote.voting.limits import SUBMISSION_ID_BYTES
from mpc_vote.voting.spec import Spec

log = logging.getLogger(__name__)

_SUBMIT_TRIES = 3
_TASK_SECONDS = 10.0
_WHO = "The coordinator"
# What a vote is given to end where the agent leaves the round, or stops.
_LEAVE_SECONDS = 5.0
# How long the answer of a party vouches for the connection to it.
_ANSWERED_SECONDS = 5.0


class Participant:
    """Takes part in the rounds that it is told of, one vote at a time."""

    def __init__(
        self,
        name: str,
        policy: Policy,
        servings: Sequence[Serving],
        coordinator: rpc.AuthenticatedChannel,
        parties: Mapping[str, grpc.aio.Channel],
        scratch: Path,
    ) -> None:
        self._name = name
        self._policy = policy
        self._servings = Servings(name, servings)
        self._line = coordinator
        self._coordinator = agent_pb2_grpc.AgentServiceStub(coordinator)
        self._channels = parties
        self._parties = {n: party_pb2_grpc.PartyServiceStub(c) for n, c in parties.items()}
        self._scratch = scratch
        # When each party has answered last.
        self._answered: dict[str, float] = {}
        # Rounds that this agent takes part in: True once all are prepared, False if it is over.
        self._rounds: dict[str, asyncio.Future[bool]] = {}
        # Those among them that were started, and ended before this agent came to vote.
        self._ended: set[str] = set()
        # What rounds that it is prepared for will be charged: who is prepared does not back out.
        self._promised: dict[str, Mechanism] = {}
        self._promising = asyncio.Lock()
        self._voting = asyncio.Lock()
        # The round that the voter was asked about, until it has answered.
        self._voted_on: Spec | None = None
        self._saying = asyncio.Lock()

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
        await asyncio.gather(*(self._reach(*party) for party in self._channels.items()))

    async def _reach(self, name: str, channel: grpc.aio.Channel) -> None:
        """Asks a party whether it is there, unless it has answered just now on a connection that
        stands."""
        lately = time.monotonic() - self._answered.get(name, -math.inf) < _ANSWERED_SECONDS
        if not lately or channel.get_state() is not grpc.ChannelConnectivity.READY:
            await rpc.reach(channel, f"Party {name}")
            self._answered[name] = time.monotonic()

    def _check_voter(self) -> None:
        """Makes no promise on behalf of a voter that may never return: others would pay for rounds
        that wait for it in vain."""
        asked = self._voted_on
        if asked is not None and asked.seconds_left() <= 0:
            voter = self._servings.find(asked).voter_name
            log.error("voter %s has not answered round %s", voter, asked.round_id)
            why = "it has not returned from an earlier round"
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
        not even how long a vote takes, can be learnt without a charge. What fails before costs
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
        """Shares, with this agent's part of the noise where agents add it."""
        noisy = ballot if spec.message.verified else ballot + self._noise(spec)
        return share_ballot(spec, self._name, noisy)

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
                self._answered[party] = time.monotonic()
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
