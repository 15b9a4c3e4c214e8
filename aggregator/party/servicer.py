"""A compute party: holds one share of each ballot, and computes on shares with its peers.

It sees its shares, openings masked by preprocessing that only the dealer knows, and public specs;
it never sees a ballot, a total or a label. It serves one aggregation per round, ever, of at least
the quorum that the agents agreed to, and deletes the shares with it. It trusts the coordinator for
availability only.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import time
import traceback
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

from aggregator.party.committee import Committee
from aggregator.party.dealer_mark import DealerMark
from aggregator.party.journal import RoundJournal
from aggregator.party.offline import OfflinePhase
from aggregator.party.peers import PeerChannel
from aggregator.party.preprocessing import DealtPreprocessing, PreprocessingPool
from aggregator.party.stock import Stock
from mpc_vote.errors import ErrorKind, VoteError
from mpc_vote.mpc.cut_and_choose import DealerCaught
from mpc_vote.mpc.preprocessing import Item, P
from mpc_vote.mpc.prg import SEED_BYTES
from mpc_vote.mpc.sharing import Share
from mpc_vote.pki.identity import Identity, Role
from mpc_vote.proto.mpcvote.v1 import party_pb2, party_pb2_grpc
from mpc_vote.transport import rpc
from mpc_vote.voting.aggregation import Totals
from mpc_vote.voting.limits import MAX_SHARE_BYTES, SUBMISSION_ID_BYTES
from mpc_vote.voting.spec import Spec

log = logging.getLogger(__name__)

MAX_OPEN_ROUNDS = 256
MAX_INTAKE_SECONDS = 3_600.0
# An agent sends one share per round; a few rounds may be open, and a retry may overlap.
_UPLOADS_PER_AGENT = 8
_HEADER_SECONDS = 30.0
# Beside packed shares, fields of a later version included: a message is kept until the next comes.
_MAX_HEADER_BYTES = 1_024
# How long after its deadline a round may still be aggregated.
_LINGER_SECONDS = 600.0
# How long measured round trips are good for.
_TRIPS_SECONDS = 10.0

T = TypeVar("T")


@dataclass
class _Round:
    spec: Spec
    opened_by: Identity
    # Bytes of explicit shares that there must be room for.
    held: int
    # Dealt ahead, from the moment the round is opened; and measured while agents prepare.
    preprocessing: asyncio.Task[DealtPreprocessing]
    round_trips: asyncio.Task[list[float]]
    # Whether it is the first of its id, once that is on disk.
    marked: asyncio.Task[bool]
    shares: dict[str, tuple[bytes, Share]] = field(default_factory=dict, repr=False)
    closed: str = ""
    # From the moment its shares are taken out until its preprocessing is dropped.
    counting: bool = False

    def drop_preprocessing(self) -> None:
        """Ends the dealing and the measuring; the dealer's session stays spent."""
        self.counting = False
        self.round_trips.cancel()
        self.preprocessing.cancel()
        self.preprocessing.add_done_callback(_close_preprocessing)


@dataclass
class _Session:
    """One aggregation's work on shares, and where its time goes. Runs in a thread."""

    spec: Spec
    totals: Totals
    channel: PeerChannel
    preprocessing: DealtPreprocessing
    preprocessing_seconds: float
    sum_seconds: float = 0.0

    def label_shares(self, rows: int) -> bytes:
        """This party's shares of the winners of the next rows, as they are sent."""
        spec = self.spec
        started, waited = time.monotonic(), self.preprocessing_seconds
        totals = self.totals.take(rows, self.channel, self)
        self.sum_seconds += time.monotonic() - started - (self.preprocessing_seconds - waited)
        labels = spec.engine.run(totals, spec.row_classes, self.channel, self)
        return spec.engine.label_code(spec.row_classes).pack(labels)

    def take(self, item: Item[P]) -> P:
        """The next item of preprocessing, for the engine."""
        started = time.monotonic()
        part = self.preprocessing.take(item)
        self.preprocessing_seconds += time.monotonic() - started
        return part


class PartyServicer(party_pb2_grpc.PartyServiceServicer):
    """Share intake and aggregation."""

    def __init__(
        self,
        committee: Committee,
        journal: RoundJournal,
        mark: DealerMark,
        pool_bytes: int,
        deal_copies: int,
        stock: Stock | None = None,
    ) -> None:
        """Within a running loop. Without a stock nothing is dealt ahead of its round."""
        self._committee = committee
        self._journal = journal
        self._mark = mark
        self._pool = PreprocessingPool(pool_bytes)
        self._stock = stock
        self._rounds: dict[str, _Round] = {}
        self._uploads: Counter[str] = Counter()
        # When they were measured, and what they are.
        self._trips: tuple[float, list[float]] | None = None
        # Sessions run side by side: with a queue, two parties could take two rounds in different
        # orders, and each would wait for the other.
        self._threads = ThreadPoolExecutor(MAX_OPEN_ROUNDS, thread_name_prefix="engine")
        self._loop = asyncio.get_running_loop()
        self._offline = OfflinePhase(
            committee, deal_copies, self._pool, stock, self._threads, self._caught
        )

    async def health(self) -> Mapping[str, bool]:
        """A party can work when it reaches its peers and a dealer that it has not caught."""
        ready = await self._committee.answers() and not self._mark.stands
        services = party_pb2.DESCRIPTOR.services_by_name.values()
        return {service.full_name: ready for service in services}

    @rpc.allowed(Role.COORDINATOR)
    async def OpenRound(
        self, request: party_pb2.OpenRoundRequest, context: Any
    ) -> party_pb2.OpenRoundResponse:
        spec = Spec.parse(request.spec)
        self._mark.refuse()
        await self._ready(spec)
        await self._committee.check_reach()
        # The dealer says how long that takes, and may have been caught meanwhile.
        self._mark.refuse()
        round_ = self._rounds.get(spec.round_id) or self._hold(spec)
        if round_.spec.digest != spec.digest or round_.opened_by != rpc.caller():
            raise VoteError(ErrorKind.SPEC_MISMATCH, round=spec.round_id)
        if round_.closed or not await asyncio.shield(round_.marked):
            raise VoteError(ErrorKind.ROUND_SPENT, round=spec.round_id)
        log.info("round %s opened: %d agents", spec.round_id, len(spec.roster))
        return party_pb2.OpenRoundResponse(spec_digest=spec.digest)

    def _hold(self, spec: Spec) -> _Round:
        """Makes room for a new round, begins its dealing, and has it marked as opened; without the
        mark it is gone again."""
        own = self._committee
        if spec.parties != own.parties or spec.message.dealer != own.dealer:
            what = "the committee of this round"
            raise VoteError(ErrorKind.NAME_REFUSED, who=own.name, what=what)
        if not 0 < spec.seconds_left() <= MAX_INTAKE_SECONDS:
            raise VoteError(ErrorKind.SPEC_INVALID, why="its deadline is past or too far away")
        self._forget_stale()
        # Who has paid must not find that there is no room: it is kept before anybody does.
        held = spec.held_bytes(own.rank)
        full = held + sum(one.held for one in self._rounds.values()) > MAX_SHARE_BYTES
        if full or len(self._rounds) >= MAX_OPEN_ROUNDS:
            raise VoteError(ErrorKind.SERVICE_BUSY, got=len(self._rounds), retry_after=5.0)
        preprocessing = asyncio.create_task(self._offline.prepare(spec, rpc.caller()))
        preprocessing.add_done_callback(_forget_failure)
        trips = asyncio.create_task(self._round_trips())
        marked = asyncio.create_task(asyncio.to_thread(self._journal.open, spec.round_id))
        round_ = _Round(spec, rpc.caller(), held, preprocessing, trips, marked)
        self._rounds[spec.round_id] = round_

        def check_mark(marked: asyncio.Task[bool]) -> None:
            if marked.cancelled() or marked.exception() is not None or not marked.result():
                round_.closed = "it was never opened"
                round_.shares.clear()
                round_.drop_preprocessing()
                if self._rounds.get(spec.round_id) is round_:
                    del self._rounds[spec.round_id]

        marked.add_done_callback(check_mark)
        return round_

    @rpc.allowed(Role.AGENT, upload=True)
    async def SubmitShares(
        self, request_iterator: Any, context: Any
    ) -> party_pb2.SubmitSharesResponse:
        agent = rpc.caller().name
        if self._uploads[agent] >= _UPLOADS_PER_AGENT:
            raise VoteError(ErrorKind.SERVICE_BUSY, got=_UPLOADS_PER_AGENT, retry_after=1.0)
        self._uploads[agent] += 1
        try:
            return await self._take(agent, request_iterator)
        finally:
            self._uploads[agent] -= 1
            # Names of agents are without number, where somebody makes them.
            if not self._uploads[agent]:
                del self._uploads[agent]

    async def _take(
        self, agent: str, requests: AsyncIterator[party_pb2.SubmitSharesRequest]
    ) -> party_pb2.SubmitSharesResponse:
        """One submission, read no further than it may be long, nor longer than it is awaited."""
        header: party_pb2.SubmissionHeader | None = None
        packed = bytearray()
        expected = 0
        # What has not come by then is missing.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_HEADER_SECONDS) as limit:
                async for request in requests:
                    if header is None:
                        header = request.header
                        expected = self._expected(agent, header)
                        left = self._rounds[header.round_id].spec.seconds_left()
                        limit.reschedule(asyncio.get_running_loop().time() + left)
                    packed += request.packed
                    beside = request.ByteSize() - len(request.packed)
                    if len(packed) > expected or beside > _MAX_HEADER_BYTES:
                        raise _malformed(header, "too many bytes")
        if header is None:
            raise VoteError(ErrorKind.SHARES_MALFORMED, round="?", why="nothing was sent")
        if len(packed) != expected:
            raise _malformed(header, f"{expected} bytes were expected, {len(packed)} came")
        round_ = self._intake(header.round_id)
        share = Share(seed=header.seed, packed=bytes(packed))
        held = round_.shares.setdefault(agent, (header.submission_id, share))
        if held[0] != header.submission_id:
            why = "another submission of this agent is held"
            raise VoteError(ErrorKind.ROUND_CLOSED, round=header.round_id, why=why)
        return party_pb2.SubmitSharesResponse()

    @rpc.allowed(Role.COORDINATOR)
    async def AwaitPreprocessing(
        self, request: party_pb2.AwaitPreprocessingRequest, context: Any
    ) -> party_pb2.AwaitPreprocessingResponse:
        round_ = self._owned(request.round_id)
        await self._outcome(round_, round_.preprocessing)
        return party_pb2.AwaitPreprocessingResponse()

    @rpc.allowed(Role.COORDINATOR)
    async def ListHoldings(
        self, request: party_pb2.ListHoldingsRequest, context: Any
    ) -> party_pb2.ListHoldingsResponse:
        round_ = self._owned(request.round_id)
        self._mark.refuse()
        holdings = [
            party_pb2.Holding(agent=agent, submission_id=submission)
            for agent, (submission, _) in sorted(round_.shares.items())
        ]
        return party_pb2.ListHoldingsResponse(holdings=holdings)

    @rpc.allowed(Role.COORDINATOR)
    async def AbandonRound(
        self, request: party_pb2.AbandonRoundRequest, context: Any
    ) -> party_pb2.AbandonRoundResponse:
        round_ = self._rounds.get(request.round_id)
        if round_ is not None and round_.opened_by == rpc.caller():
            round_.closed = round_.closed or "it was abandoned"
            round_.shares.clear()
            round_.drop_preprocessing()
        return party_pb2.AbandonRoundResponse()

    @rpc.allowed(Role.COORDINATOR)
    async def Aggregate(
        self, request: party_pb2.AggregateRequest, context: Any
    ) -> AsyncIterator[party_pb2.AggregateResponse]:
        round_ = self._owned(request.round_id)
        self._mark.refuse()
        shares = await self._commit(round_, request.contributors)
        spec = round_.spec
        with contextlib.ExitStack() as stack:
            stack.enter_context(self._offline.busy())
            started = time.monotonic()
            stack.callback(round_.drop_preprocessing)
            preprocessing = await self._outcome(round_, round_.preprocessing)
            waited = time.monotonic() - started
            context = count_context(spec, request.contributors, preprocessing.context)
            channel = await self._committee.join(spec.round_id, context)
            stack.callback(channel.close)
            session = _Session(
                spec, Totals(spec, shares), channel, preprocessing, preprocessing_seconds=waited
            )
            for start in range(0, spec.rows, step := spec.engine.block_rows(spec.row_classes)):
                rows = min(step, spec.rows - start)
                labels = await asyncio.get_running_loop().run_in_executor(
                    self._threads, session.label_shares, rows
                )
                # Of several lies one may not have been drawn, and be in use here.
                self._mark.refuse()
                label_shares = party_pb2.LabelShares(offset=start, shares=labels)
                yield party_pb2.AggregateResponse(shares=label_shares)
            statistics = party_pb2.AggregateStatistics(
                rounds=channel.traffic.rounds,
                bytes_sent=channel.traffic.bytes_sent,
                bytes_received=channel.traffic.bytes_received,
                dealer_bytes=preprocessing.received_bytes,
                seconds=time.monotonic() - started,
                round_trip_seconds=max(
                    await self._outcome(round_, round_.round_trips), default=0.0
                ),
                preprocessing_seconds=session.preprocessing_seconds,
                sum_seconds=session.sum_seconds,
            )
            yield party_pb2.AggregateResponse(statistics=statistics)
            await channel.finish()
        log.info("round %s aggregated: %d agents", spec.round_id, len(shares))
        self._offline.replenish(spec, round_.opened_by)

    async def _round_trips(self) -> list[float]:
        """To each peer, as measured lately: rounds that follow each other don't wait for it."""
        now = time.monotonic()
        if self._trips is None or now - self._trips[0] > _TRIPS_SECONDS:
            self._trips = (now, await self._committee.round_trips())
        return self._trips[1]

    async def _ready(self, spec: Spec) -> None:
        """Imports what the round's engine needs, before its count, or refuses what isn't there."""
        try:
            await asyncio.to_thread(spec.engine_kind.load)
        except ModuleNotFoundError as error:
            who, package = self._committee.name, error.name
            raise VoteError(ErrorKind.ENGINE_MISSING, who=who, package=package) from error

    async def _outcome(self, round_: _Round, work: asyncio.Task[T]) -> T:
        """Waits for a round's preprocessing or round trips, and says why they do not come: a caller
        whose call ends by a cancellation here would not be answered."""
        await asyncio.wait([work])
        self._mark.refuse()
        if work.cancelled():
            why = "its preprocessing was dropped"
            raise VoteError(ErrorKind.ROUND_CLOSED, round=round_.spec.round_id, why=why)
        return work.result()

    def _caught(self, error: DealerCaught) -> None:
        """To be called, in any thread, where the dealer is caught. From then on no label share
        leaves, also of rounds that are being counted; the mark is on disk when it returns, and all
        open rounds and the stock end."""
        self._mark.set(error)
        self._loop.call_soon_threadsafe(self._end_rounds)

    def _end_rounds(self) -> None:
        """Nothing that this dealer dealt is used any more."""
        if self._stock is not None:
            self._stock.clear()
        for round_ in self._rounds.values():
            round_.closed = round_.closed or "the dealer was caught"
            round_.shares.clear()
            round_.drop_preprocessing()

    async def _commit(
        self, round_: _Round, contributors: Sequence[party_pb2.Holding]
    ) -> dict[str, Share]:
        """Checks the proposed set, takes its shares out, forgets the rest, marks it for ever."""
        spec = round_.spec
        if round_.closed:
            raise VoteError(ErrorKind.ROUND_AGGREGATED, round=spec.round_id)
        # Counted before they are looked at: millions fit into a request.
        many = len(contributors) > len(spec.roster)
        names = [] if many else [holding.agent for holding in contributors]
        if many or len(set(names)) != len(names):
            raise VoteError(ErrorKind.SPEC_INVALID, why="an agent is counted twice")
        if len(names) < spec.message.quorum:
            raise VoteError(
                ErrorKind.QUORUM_MISSED,
                round=spec.round_id,
                got=len(names),
                want=spec.message.quorum,
                why="The party refuses to aggregate.",
            )
        for holding in contributors:
            held = round_.shares.get(holding.agent)
            if held is None or held[0] != holding.submission_id:
                raise VoteError(
                    ErrorKind.CONTRIBUTOR_UNKNOWN, agent=holding.agent, round=spec.round_id
                )
        shares = {name: round_.shares[name][1] for name in names}
        round_.closed, round_.shares, round_.counting = "it was aggregated", {}, True
        try:
            if not await asyncio.to_thread(self._journal.aggregate, spec.round_id):
                raise VoteError(ErrorKind.ROUND_AGGREGATED, round=spec.round_id)
        except BaseException:
            # Whoever hangs up now comes too late for another try.
            round_.drop_preprocessing()
            raise
        return shares

    def _expected(self, agent: str, header: party_pb2.SubmissionHeader) -> int:
        """Bytes of packed share that must follow this header."""
        round_ = self._intake(header.round_id)
        spec = round_.spec
        if agent not in spec.roster:
            what = f"the roster of round {spec.round_id}"
            raise VoteError(ErrorKind.NAME_REFUSED, who=agent, what=what)
        if header.spec_digest != spec.digest:
            raise VoteError(ErrorKind.SPEC_MISMATCH, round=spec.round_id)
        if len(header.submission_id) != SUBMISSION_ID_BYTES:
            raise _malformed(header, "the submission id is malformed")
        explicit = spec.explicit_rank(agent) == self._committee.rank
        if len(header.seed) != (0 if explicit else SEED_BYTES):
            raise _malformed(header, "a seed is missing, or is where an explicit share belongs")
        return spec.share_bytes(agent) if explicit else 0

    def _intake(self, round_id: str) -> _Round:
        round_ = self._rounds.get(round_id)
        if round_ is None:
            raise VoteError(ErrorKind.ROUND_UNKNOWN, round=round_id)
        if round_.closed:
            raise VoteError(ErrorKind.ROUND_CLOSED, round=round_id, why=round_.closed)
        if round_.spec.seconds_left() <= 0:
            raise VoteError(ErrorKind.ROUND_CLOSED, round=round_id, why="its deadline has passed")
        return round_

    def _owned(self, round_id: str) -> _Round:
        round_ = self._rounds.get(round_id)
        if round_ is None or round_.opened_by != rpc.caller():
            raise VoteError(ErrorKind.ROUND_UNKNOWN, round=round_id)
        return round_

    def _forget_stale(self) -> None:
        for round_id, round_ in list(self._rounds.items()):
            stale = round_.closed or round_.spec.seconds_left() < -_LINGER_SECONDS
            if stale and not round_.counting:
                round_.drop_preprocessing()
                del self._rounds[round_id]


def _forget_failure(preprocessing: asyncio.Task[DealtPreprocessing]) -> None:
    """Nobody may come to ask how it ended. The error is kept as long as the round is, and must not
    keep what was read when it was raised: a message can take much more memory than its bytes."""
    if not preprocessing.cancelled() and (error := preprocessing.exception()) is not None:
        traceback.clear_frames(error.__traceback__)


def _close_preprocessing(preprocessing: asyncio.Task[DealtPreprocessing]) -> None:
    if not preprocessing.cancelled() and preprocessing.exception() is None:
        preprocessing.result().close()


def count_context(
    spec: Spec, contributors: Sequence[party_pb2.Holding], preprocessing: bytes
) -> bytes:
    """What the parties must agree on before they count: the spec, whom, and the preprocessing."""
    digest = hashlib.sha256(spec.digest + preprocessing)
    for holding in sorted(contributors, key=lambda h: h.agent):
        digest.update(holding.agent.encode() + b"\0" + holding.submission_id)
    return digest.digest()


def _malformed(header: party_pb2.SubmissionHeader, why: str) -> VoteError:
    return VoteError(ErrorKind.SHARES_MALFORMED, round=header.round_id, why=why)
