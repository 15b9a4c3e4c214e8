"""Live parties as a coordinator and its agents see them, for tests that play both."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import secrets
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

import grpc
import grpc.aio
import numpy as np

from mpc_vote.argmax.engine import label_bits
from mpc_vote.argmax.registry import TABLE
from mpc_vote.errors import VoteError
from mpc_vote.mpc import ring
from mpc_vote.mpc.sharing import Share, split
from mpc_vote.pki.identity import Identity, Role
from mpc_vote.proto.mpcvote.v1 import common_pb2, party_pb2, party_pb2_grpc
from mpc_vote.voting.spec import Spec
from tests.system.service.support import QUIET, SECONDS, Labels

AGENTS = ("ann", "ben", "cat")
CLASSES = 3
ROWS = 9
QUORUM = 2
# What three agents' votes need: the least that the engine has.
# What a spec of so many rows needs.
RING_BITS = 8
EXPLICIT_BYTES = ring.packed_size(ROWS * CLASSES, RING_BITS)

COORDINATOR = Identity(Role.COORDINATOR, "coordinator")

Holdings = list[party_pb2.Holding]
# A channel from anybody to any server.
Dial = Callable[[Identity, Identity], contextlib.AbstractAsyncContextManager[grpc.aio.Channel]]


@dataclasses.dataclass
class Outcome:
    """What one party answered to an order to aggregate."""

    released: list[party_pb2.LabelShares] = dataclasses.field(default_factory=list)
    error: VoteError | None = None


class Committee:
    """Parties, by name in rank order, and how they are reached."""

    def __init__(self, dial: Dial, stubs: Mapping[str, Any]) -> None:
        self._dial = dial
        self.stubs = stubs

    @classmethod
    @contextlib.asynccontextmanager
    async def reached(cls, dial: Dial, parties: Sequence[str]) -> AsyncIterator[Committee]:
        """All parties, for a coordinator."""
        async with contextlib.AsyncExitStack() as stack:
            stubs = {}
            for name in parties:
                channel = dial(COORDINATOR, Identity(Role.PARTY, name))
                stub = party_pb2_grpc.PartyServiceStub(await stack.enter_async_context(channel))
                stubs[name] = stub
            yield cls(dial, stubs)

    def spec(self, **changes: Any) -> Spec:
        """A round of one-hot ballots without noise."""
        message = common_pb2.RoundSpec(
            round_id=secrets.token_hex(16),
            queries_digest=bytes(32),
            queries=ROWS,
            query_dtype=common_pb2.DTYPE_FLOAT32,
            query_shape=[2],
            classes=CLASSES,
            ballot=common_pb2.BALLOT_KIND_ONE_HOT,
            fraction_bits=4,
            sigma=QUIET,
            roster=[common_pb2.RosterEntry(agent=agent) for agent in AGENTS],
            quorum=QUORUM,
            parties=self.stubs,
            dealer="dealer",
            engine=common_pb2.ENGINE_TABLE,
            deadline_unix_ms=int(1000 * (time.time() + 60)),
        )
        message.MergeFrom(common_pb2.RoundSpec(**changes))
        message.ring_bits = message.ring_bits or TABLE.ring_bits(Spec(b"", message).total_bound)
        return Spec.seal(message)

    async def open(self, spec: Spec) -> None:
        """Opens a round at every party."""
        await asyncio.gather(*(self.open_at(party, spec) for party in self.stubs))

    async def open_at(self, party: str, spec: Spec) -> None:
        request = party_pb2.OpenRoundRequest(spec=spec.wire)
        await self.stubs[party].OpenRound(request, timeout=SECONDS)

    async def abandon(self, spec: Spec) -> None:
        """Gives a round up at every party."""
        request = party_pb2.AbandonRoundRequest(round_id=spec.round_id)
        calls = [stub.AbandonRound(request, timeout=SECONDS) for stub in self.stubs.values()]
        await asyncio.gather(*calls)

    async def voted(self, spec: Spec, votes: Mapping[str, Labels]) -> dict[str, bytes]:
        """Opens the round and lets everybody vote; returns the submissions' ids by agent."""
        await self.open(spec)
        return {agent: await self.submit(spec, agent, votes[agent]) for agent in votes}

    async def submit(self, spec: Spec, agent: str, labels: Labels) -> bytes:
        """An honest agent's ballot, to every party; returns the submission's id."""
        units = spec.encode(agent, labels)
        explicit = spec.explicit_rank(agent)
        shares = split(units, len(self.stubs), explicit, spec.message.ring_bits)
        submission = os.urandom(16)
        for party, share in zip(self.stubs, shares, strict=True):
            await self.send(spec, agent, party, submission, share)
        return submission

    async def send(
        self, spec: Spec, agent: str, party: str, submission: bytes, share: Share, **header: Any
    ) -> None:
        """One share to one party, with the agent's own certificate."""
        given = {
            "round_id": spec.round_id,
            "spec_digest": spec.digest,
            "submission_id": submission,
            "seed": share.seed,
            **header,
        }
        messages = [
            party_pb2.SubmitSharesRequest(header=party_pb2.SubmissionHeader(**given)),
            party_pb2.SubmitSharesRequest(packed=share.packed),
        ]
        server = Identity(Role.PARTY, party)
        async with self._dial(Identity(Role.AGENT, agent), server) as channel:
            stub = party_pb2_grpc.PartyServiceStub(channel)
            await stub.SubmitShares(iter(messages), timeout=SECONDS)

    async def holdings(self, spec: Spec, party: str = "party-0") -> dict[str, bytes]:
        """Whose shares a party holds, once its preprocessing is there."""
        dealt = party_pb2.AwaitPreprocessingRequest(round_id=spec.round_id)
        await self.stubs[party].AwaitPreprocessing(dealt, timeout=SECONDS)
        request = party_pb2.ListHoldingsRequest(round_id=spec.round_id)
        response = await self.stubs[party].ListHoldings(request, timeout=SECONDS)
        return {holding.agent: holding.submission_id for holding in response.holdings}

    async def aggregate(self, spec: Spec, sets: Sequence[Mapping[str, bytes]]) -> list[Outcome]:
        """Orders every party to count its set; one set is for all of them."""
        each = list(sets) * len(self.stubs) if len(sets) == 1 else list(sets)
        return await asyncio.gather(
            *(
                self.aggregate_at(party, spec, chosen)
                for party, chosen in zip(self.stubs, each, strict=True)
            )
        )

    async def aggregate_at(self, party: str, spec: Spec, chosen: Mapping[str, bytes]) -> Outcome:
        """Orders one party to count a set."""
        return await self.order(party, spec, holdings_of(chosen))

    async def order(self, party: str, spec: Spec, contributors: Holdings) -> Outcome:
        request = party_pb2.AggregateRequest(round_id=spec.round_id, contributors=contributors)
        outcome = Outcome()
        try:
            async for response in self.stubs[party].Aggregate(request, timeout=SECONDS):
                if response.HasField("shares"):
                    outcome.released.append(response.shares)
        except grpc.aio.AioRpcError as error:
            outcome.error = VoteError.from_rpc(error, f"Party {party}")
        return outcome


def holdings_of(chosen: Mapping[str, bytes]) -> Holdings:
    """A set of submissions as an order names them."""
    return [party_pb2.Holding(agent=a, submission_id=s) for a, s in sorted(chosen.items())]


def labels_of(outcomes: Sequence[Outcome], rows: int = ROWS, classes: int = CLASSES) -> Labels:
    """What the released shares add up to."""
    assert [outcome.error for outcome in outcomes] == [None] * len(outcomes)
    total = np.zeros(rows, dtype=np.uint64)
    for outcome in outcomes:
        for part in outcome.released:
            words = np.frombuffer(part.shares, dtype="<u2")
            total[part.offset : part.offset + words.size] += words
    return (total & np.uint64((1 << label_bits(classes)) - 1)).astype(np.int64)
