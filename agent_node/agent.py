"""The agent's life: hold a stream to the coordinator, answer rounds, come back when the stream
breaks.

What leaves this process: its public capabilities, refusals, and shares of ballots with noise
already in them, each share to one party only. What must hold for that to be safe: at least one of
the parties does not pool its shares with the others, and the noise of the agents that the spec
counts on is honest.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
from collections.abc import AsyncIterator, Mapping
from typing import Any

import grpc
import numpy as np

from agent_node.policy import Policy
from agent_node.voter import Queries, Voter
from mpc_vote import wire
from mpc_vote.errors import ErrorKind, VoteError
from mpc_vote.noise import SkellamSampler
from mpc_vote.proto.mpcvote.v1 import agent_pb2, agent_pb2_grpc, party_pb2, party_pb2_grpc
from mpc_vote.sharing import Share, split
from mpc_vote.spec import MAX_QUERY_BYTES, Spec

log = logging.getLogger(__name__)

_SUBMISSION_ID_BYTES = 16
_SUBMIT_TRIES = 3
_BACKOFF_SECONDS = (0.2, 5.0)
_MAX_ROUNDS_AT_ONCE = 8


class Agent:
    """One organisation's voice."""

    def __init__(
        self,
        name: str,
        policy: Policy,
        voter: Voter,
        capabilities: agent_pb2.Capabilities,
        coordinator: grpc.aio.Channel,
        parties: Mapping[str, grpc.aio.Channel],
    ) -> None:
        self._name = name
        self._policy = policy
        self._voter = voter
        self._capabilities = capabilities
        self._coordinator = agent_pb2_grpc.AgentServiceStub(coordinator)
        self._parties = {n: party_pb2_grpc.PartyServiceStub(c) for n, c in parties.items()}
        self._busy: set[str] = set()
        self._welcomed = False
        self._voting = asyncio.Lock()

    async def attend(self) -> None:
        """Attends for ever; a broken stream is opened again after a while."""
        low, high = _BACKOFF_SECONDS
        wait = low
        while True:
            self._welcomed = False
            try:
                await self._session()
            except grpc.RpcError as error:
                failure = VoteError.from_rpc(error, "The coordinator")
                log.warning("not attending: %s", failure.message)
            if self._welcomed:
                wait = low
            # Spread over time, so that a restarted coordinator is not met by all agents at once.
            await asyncio.sleep(wait * random.uniform(0.5, 1.0))
            wait = min(high, 2 * wait)

    async def _session(self) -> None:
        call = self._coordinator.Attend()
        rounds: set[asyncio.Task[None]] = set()
        try:
            await call.write(agent_pb2.AttendRequest(capabilities=self._capabilities))
            async for response in call:
                if response.HasField("welcome"):
                    self._welcomed = True
                    log.info("attending as %s", self._name)
                elif len(rounds) < _MAX_ROUNDS_AT_ONCE:
                    task = asyncio.create_task(self._answer(response.announcement.spec, call))
                    rounds.add(task)
                    task.add_done_callback(rounds.discard)
        finally:
            call.cancel()
            for task in rounds:
                task.cancel()
            await asyncio.gather(*rounds, return_exceptions=True)

    async def _answer(self, wire_spec: bytes, call: Any) -> None:
        """Answers one announcement, with shares or with a reason."""
        round_id = ""
        try:
            spec = Spec.parse(wire_spec)
            if spec.round_id in self._busy:
                return
            round_id = spec.round_id
            self._busy.add(round_id)
            uploaded = await self._take_part(spec)
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
            self._busy.discard(round_id)
        await call.write(reply)

    async def _take_part(self, spec: Spec) -> int:
        """Checks, fetches, votes, charges, shares, sends; returns the bytes that were sent."""
        self._policy.check(spec, self._capabilities)
        queries = await self._fetch(spec)
        async with self._voting:
            shares = await asyncio.to_thread(self._vote, spec, queries)
        submission = os.urandom(_SUBMISSION_ID_BYTES)
        sent = await asyncio.gather(
            *(
                self._submit(spec, submission, name, share)
                for name, share in zip(spec.parties, shares, strict=True)
            )
        )
        return sum(sent)

    async def _fetch(self, spec: Spec) -> Queries:
        """The round's queries, which must be those that the spec's digest names."""
        message = spec.message
        dtype, rows = wire.dtype_of(message.query_dtype), 0
        row_bytes = int(np.prod(spec.query_shape)) * dtype.itemsize
        if message.queries * row_bytes > MAX_QUERY_BYTES:
            raise VoteError(ErrorKind.QUERIES_TOO_LARGE, limit=MAX_QUERY_BYTES)
        queries = np.empty((message.queries, *spec.query_shape), dtype=dtype)
        request = agent_pb2.FetchQueriesRequest(round_id=spec.round_id)
        try:
            async for response in self._coordinator.FetchQueries(
                request, timeout=spec.seconds_left()
            ):
                part = wire.from_tensor(response.queries)
                if part.dtype != dtype or part.shape[1:] != spec.query_shape:
                    raise VoteError(ErrorKind.POLICY_REFUSED, why="its queries have another shape")
                if rows + len(part) > message.queries:
                    raise VoteError(
                        ErrorKind.POLICY_REFUSED, why="it has more queries than it says"
                    )
                queries[rows : rows + len(part)] = part
                rows += len(part)
        except grpc.RpcError as error:
            raise VoteError.from_rpc(error, "The coordinator") from error
        if rows != message.queries or wire.digest_of(queries) != message.queries_digest:
            raise VoteError(ErrorKind.POLICY_REFUSED, why="its queries do not match their digest")
        wire.check_finite(queries, "queries")
        return queries

    def _vote(self, spec: Spec, queries: Queries) -> list[Share]:
        """In a thread: ballots, noise, shares. The spend is on disk before shares exist."""
        ballot = self._voter.vote(spec, queries)
        self._policy.charge(spec)
        noisy = ballot + SkellamSampler(spec.agent_variance).sample(ballot.shape)
        explicit = spec.explicit_rank(self._name)
        return split(noisy, len(spec.parties), explicit, spec.message.ring_bits)

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
                failure = VoteError.from_rpc(error, f"Party {party}")
                unreachable = failure.kind is ErrorKind.PARTY_UNREACHABLE
                if not unreachable or attempt == _SUBMIT_TRIES or spec.seconds_left() <= 0:
                    raise failure from error
        raise AssertionError("unreachable")


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
        yield self._counted(party_pb2.SubmitSharesRequest(header=self._header))
        for piece in wire.split_bytes(self._share.packed):
            yield self._counted(party_pb2.SubmitSharesRequest(packed=piece))

    def _counted(self, message: party_pb2.SubmitSharesRequest) -> party_pb2.SubmitSharesRequest:
        self.sent += message.ByteSize()
        return message
