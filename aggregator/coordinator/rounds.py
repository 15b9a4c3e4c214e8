"""A round from its spec to its labels, on the coordinator's side.

Order, and why: the parties open the round first, which reveals nothing. Then agents prepare: they
check the spec, their budget, the queries and their way to the parties, but spend nothing and look
at no private data, so a round that can't reach its quorum costs nobody anything. Then the ledger is
charged, durably, and only then do agents charge theirs, vote and send. After a charge nothing is
refunded: the coordinator can't prove to anybody that no label was opened.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import grpc
import numpy as np

from aggregator.coordinator.archive import Archive, Labels
from aggregator.coordinator.attendance import Attendance, Responses
from aggregator.coordinator.spending import tell_charged, tell_free, with_figures
from mpc_vote.errors import ErrorKind, VoteError
from mpc_vote.privacy import charging
from mpc_vote.privacy.ledger import BudgetExhausted, Ledger
from mpc_vote.proto.mpcvote.v1 import common_pb2, label_pb2, party_pb2, party_pb2_grpc
from mpc_vote.transport import rpc
from mpc_vote.voting import forecast
from mpc_vote.voting.spec import Spec

log = logging.getLogger(__name__)

_CALL_SECONDS = 10.0
# Part of the answering time in which agents must be prepared; the rest is for votes and shares. It
# takes a fetch of the queries and no vote, and meanwhile agents keep budget apart and others wait.
_PREPARE_PART = 0.5
_PREPARE_SECONDS = 300.0
# No round takes so long or sends so much.
_MOST_SECONDS = 1e6
_MOST_BYTES = 1 << 50
# Of an error, for who is missing and why; and for each of them, a name at least.
_TOLD_CHARACTERS = 1_800
_LEAST_TOLD = 64
# Of agents that prepare, and then that vote.
_STEPS_TOLD = 20

T = TypeVar("T")
Event = label_pb2.RequestLabelsResponse


@dataclass
class Round:
    """An open round and what may be told of it; followers read the events from the start."""

    spec: Spec
    delta: float
    started: float = field(default_factory=time.monotonic)
    events: list[Event] = field(default_factory=list)
    labels: Labels | None = None
    error: VoteError | None = None
    done: bool = False
    # From just before the ledger is charged; and from when every party has given its label shares.
    charged: bool = False
    counted: bool = False
    cancelled: bool = False
    _news: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def tell(self, event: Event) -> None:
        """Adds an event for all followers."""
        async with self._news:
            self.events.append(event)
            self._news.notify_all()

    async def progress(
        self, stage: label_pb2.Stage.ValueType, done: int, total: int, detail: str
    ) -> None:
        """Adds a progress event."""
        seconds = time.monotonic() - self.started
        progress = label_pb2.Progress(
            stage=stage, done=done, total=total, detail=detail, seconds=seconds
        )
        await self.tell(Event(progress=progress))

    async def finish(self, error: VoteError | None) -> None:
        """Ends the round for all followers."""
        async with self._news:
            self.error, self.done = error, True
            self._news.notify_all()

    def cancel(self) -> bool:
        """Marks the round as cancelled by its client, unless it is charged: whoever runs it must
        not charge it any more."""
        self.cancelled = self.cancelled or not (self.charged or self.done)
        return self.cancelled

    async def follow(self) -> AsyncGenerator[Event, None]:
        """All events from the first to the last; raises if the round failed."""
        position = 0
        while True:
            async with self._news:
                while not self.done and position == len(self.events):
                    await self._news.wait()
                fresh, done = self.events[position:], self.done
            position += len(fresh)
            for event in fresh:
                yield event
            if done:
                break
        if self.error is not None:
            raise self.error


class RoundRunner:
    """Takes rounds through their stages."""

    def __init__(
        self,
        archive: Archive,
        ledger: Ledger,
        attendance: Attendance,
        parties: Mapping[str, grpc.aio.Channel],
        aggregate_seconds: float,
    ) -> None:
        self._archive = archive
        self._ledger = ledger
        self._attendance = attendance
        self._stubs = {
            name: party_pb2_grpc.PartyServiceStub(channel) for name, channel in parties.items()
        }
        self._aggregate_seconds = aggregate_seconds
        self._parties = parties
        self._round_trip: float | None = None

    async def round_trip(self) -> float:
        """Between parties, as they measured it last; before that, from here to the farthest."""
        if self._round_trip is not None:
            return self._round_trip
        trips = [rpc.round_trip(channel) for channel in self._parties.values()]
        return max(await asyncio.gather(*trips))

    async def run(self, round_: Round) -> None:
        """Runs a round to its end; never raises, the round says how it ended."""
        error: VoteError | None = None
        try:
            await self._run(round_)
        except VoteError as failure:
            error = failure
        except asyncio.CancelledError:
            error = (
                VoteError(ErrorKind.ROUND_CANCELLED, round=round_.spec.round_id)
                if round_.cancelled
                else VoteError(ErrorKind.SHUTTING_DOWN, who="The coordinator")
            )
            raise
        except Exception as failure:
            log.exception("round %s failed", round_.spec.round_id)
            why = type(failure).__name__
            error = VoteError(ErrorKind.INTERNAL, who="The coordinator", why=why)
        finally:
            if error is not None:
                if round_.charged:
                    tell_charged(error, round_.spec.mechanism, round_.delta)
                else:
                    tell_free(error)
                log.info("round %s failed: %s", round_.spec.round_id, error.message)
                self._archive.fail_round(round_.spec.round_id, f"{error.name}: {error.message}")
                await round_.finish(error)
                # Parties that have counted hold nothing any more. Nor are they to know whether
                # labels were out of range: one that shifts its shares would read labels by it.
                if not round_.counted:
                    await self._abandon(round_.spec)
            else:
                await round_.finish(None)

    async def _run(self, round_: Round) -> None:
        spec = round_.spec
        opened = label_pb2.RoundOpened(
            spec=spec.message, spec_digest=spec.digest, warnings=forecast.warnings(spec)
        )
        await round_.tell(Event(opened=opened))
        request = party_pb2.OpenRoundRequest(spec=spec.wire)
        # A party's first round of CrypTen's engines waits until CrypTen is imported.
        loading = spec.seconds_left() if spec.engine_kind.slow_to_load else 0.0
        patience = max(_CALL_SECONDS, loading)
        await self._all(lambda stub: stub.OpenRound(request, timeout=patience))
        queries = self._archive.queries_path(spec.round_id)
        with self._attendance.announce(spec, queries) as responses:
            # A party that can't count, or would count with wrong preprocessing, says so before
            # anybody is charged.
            seconds = max(_CALL_SECONDS, spec.seconds_left())
            dealt = party_pb2.AwaitPreprocessingRequest(round_id=spec.round_id)
            ready = asyncio.create_task(
                self._all(lambda stub: stub.AwaitPreprocessing(dealt, timeout=seconds))
            )
            try:
                prepare = min(_PREPARE_PART * spec.seconds_left(), _PREPARE_SECONDS)
                await self._collect(round_, responses, prepare)
                await ready
            finally:
                ready.cancel()
            if len(responses.prepared) < spec.message.quorum:
                raise _missed(spec, responses.prepared, responses)
            if round_.cancelled:
                raise VoteError(ErrorKind.ROUND_CANCELLED, round=spec.round_id)
            round_.charged = True
            try:
                await asyncio.to_thread(self._charge, spec)
            except VoteError:
                # The ledger refused it, and has written nothing.
                round_.charged = False
                raise
            self._attendance.start(responses)
            await self._collect(round_, responses, spec.seconds_left())
        contributors = await self._contributors(spec, responses)
        labels, statistics = await self._aggregate(round_, contributors)
        completed = await asyncio.to_thread(
            self._completed, round_, contributors, responses, statistics
        )
        for absence in completed.absences:
            log.info("round %s went without %s: %s", spec.round_id, absence.agent, absence.reason)
        await asyncio.to_thread(self._archive.complete_round, completed, labels)
        round_.labels = labels
        await round_.tell(Event(completed=completed))
        log.info("round %s complete: %d labels", spec.round_id, labels.size)

    def _charge(self, spec: Spec) -> None:
        try:
            self._ledger.charge(spec.round_id, spec.mechanism, spec.note)
        except BudgetExhausted as error:
            raise VoteError(
                ErrorKind.BUDGET_EXHAUSTED,
                level=error.over.level.value,
                who="the service",
                why=error.why,
                **error.figures,
            ) from error

    async def _collect(self, round_: Round, responses: Responses, seconds: float) -> None:
        """Waits until every agent has answered in this phase or left, or the time is over."""
        spec, told = round_.spec, -1
        stage = label_pb2.STAGE_VOTING if responses.started else label_pb2.STAGE_PREPARING
        what = "have voted" if responses.started else "are prepared"
        until = time.monotonic() + seconds
        over = False
        while True:
            responses.changed.clear()
            answered = responses.done()
            over = over or not self._awaits(spec, responses) or _out_of_reach(spec, responses)
            # A bounded number of events, however many agents there are, and however often one
            # changes its mind; the last says how many there were.
            step = 1 if over else max(1, len(spec.roster) // _STEPS_TOLD)
            if told < 0 or answered >= told + step:
                told = answered
                detail = f"{answered} of {len(spec.roster)} agents {what}"
                await round_.progress(stage, answered, len(spec.roster), detail)
            if over:
                return
            try:
                await asyncio.wait_for(responses.changed.wait(), max(0.0, until - time.monotonic()))
            except TimeoutError:
                over = True

    def _awaits(self, spec: Spec, responses: Responses) -> bool:
        """Whether there is an agent that the round should wait for; asked after each answer, so the
        first that is found will do."""
        attends = self._attendance.attends
        if responses.done() >= spec.message.quorum:
            # An agent that left may come back, but nobody waits for it once there are enough.
            return any(map(attends, responses.silent()))
        if any(True for _ in responses.silent()):
            return True
        if not responses.started:
            return False
        # One that came back prepares anew. It is needed: others have spent by now.
        return any(
            agent not in responses.submitted and agent not in responses.declined and attends(agent)
            for agent in spec.roster
        )

    async def _contributors(self, spec: Spec, responses: Responses) -> list[party_pb2.Holding]:
        """Agents whose shares, of one and the same submission, every party holds."""
        request = party_pb2.ListHoldingsRequest(round_id=spec.round_id)
        answers = await self._all(lambda stub: stub.ListHoldings(request, timeout=_CALL_SECONDS))
        for rank, answer in enumerate(answers):
            # Looked at before they take many times the memory that they came in.
            if len(answer.holdings) > len(spec.roster):
                raise _bad_answer(spec, rank, "it holds more shares than there are agents")
        held = [{(h.agent, h.submission_id) for h in answer.holdings} for answer in answers]
        common = sorted(set.intersection(*held))
        # A round that too many have declined was ended early. If those who declined and had sent
        # shares all the same were counted, others would have paid for it and been cut off.
        if len(common) < spec.message.quorum or _out_of_reach(spec, responses):
            raise _missed(
                spec, {agent for agent, _ in common} - responses.declined.keys(), responses
            )
        return [party_pb2.Holding(agent=a, submission_id=s) for a, s in common]

    async def _aggregate(
        self, round_: Round, contributors: Sequence[party_pb2.Holding]
    ) -> tuple[Labels, list[party_pb2.AggregateStatistics]]:
        """All parties compute; their label shares are added up here, and only here."""
        spec = round_.spec
        request = party_pb2.AggregateRequest(round_id=spec.round_id, contributors=contributors)
        code = spec.engine.label_code(spec.row_classes)
        sums = np.zeros(spec.rows * code.per_row, dtype=np.uint64)
        step = spec.engine.block_rows(spec.row_classes)
        # By rank, the rows that have come: block by block, as the parties compute them.
        got = [0] * len(spec.parties)
        await round_.progress(label_pb2.STAGE_COUNTING, 0, spec.rows, "the committee counts")

        async def one(rank: int, stub: Any) -> party_pb2.AggregateStatistics:
            statistics: party_pb2.AggregateStatistics | None = None
            async for response in stub.Aggregate(request, timeout=self._aggregate_seconds):
                if statistics is not None:
                    raise _bad_answer(spec, rank, "it sent more than was asked for")
                if response.HasField("statistics"):
                    statistics = response.statistics
                    if not _plausible(statistics):
                        raise _bad_answer(spec, rank, "its statistics are not plausible")
                    continue
                start, before = got[rank], min(got)
                expected = min(step, spec.rows - start)
                if not expected or response.shares.offset != start:
                    raise _bad_answer(spec, rank, "label shares out of place")
                try:
                    shares = code.unpack(response.shares.shares, expected)
                except ValueError as error:
                    raise _bad_answer(spec, rank, str(error)) from error
                sums[start * code.per_row :][: shares.size] += shares
                got[rank] += expected
                if (done := min(got)) > before:
                    detail = f"{done} of {spec.rows} labels"
                    await round_.progress(label_pb2.STAGE_COUNTING, done, spec.rows, detail)
            if statistics is None or got[rank] < spec.rows:
                raise _bad_answer(spec, rank, "label shares are missing")
            return statistics

        statistics = await _together(
            [
                _translated(one(rank, self._stubs[name]), f"Party {name}")
                for rank, name in enumerate(spec.parties)
            ]
        )
        round_.counted = True
        # Before it is known whether there are labels: parties see by the groups of later rounds
        # what is taken over.
        self._round_trip = max(one.round_trip_seconds for one in statistics)
        try:
            return code.labels(sums), statistics
        except ValueError as error:
            why = f"{error}; a party or the dealer is faulty."
            raise VoteError(ErrorKind.ROUND_FAILED, round=spec.round_id, why=why) from error

    def _completed(
        self,
        round_: Round,
        contributors: Sequence[party_pb2.Holding],
        responses: Responses,
        statistics: Sequence[party_pb2.AggregateStatistics],
    ) -> label_pb2.RoundCompleted:
        """In a thread: what all rounds have cost takes a while where there are many plans."""
        spec, delta = round_.spec, round_.delta
        names = {holding.agent for holding in contributors}
        # Where its time goes is said of one party: parts of several don't add up.
        slowest = max(statistics, key=lambda s: s.seconds)
        cost = common_pb2.Cost(
            delta=delta,
            mpc_rounds=max(s.rounds for s in statistics),
            mpc_bytes_per_party=max(s.bytes_sent for s in statistics),
            mpc_seconds=slowest.seconds,
            mpc_round_trip_seconds=max(s.round_trip_seconds for s in statistics),
            mpc_preprocessing_seconds=slowest.preprocessing_seconds,
            mpc_sum_seconds=slowest.sum_seconds,
            dealer_bytes=sum(s.dealer_bytes for s in statistics),
            upload_bytes_per_agent=max(responses.submitted.values(), default=0),
            seconds=time.monotonic() - round_.started,
        )
        with_figures(cost, charging.figures([spec.mechanism], delta), self._ledger.figures(delta))
        return label_pb2.RoundCompleted(
            round_id=spec.round_id,
            cost=cost,
            contributors=len(names),
            absences=_absences(spec, names, responses),
        )

    async def _all(self, call: Any) -> list[Any]:
        return await _together(
            [_translated(call(stub), f"Party {name}") for name, stub in self._stubs.items()]
        )

    async def _abandon(self, spec: Spec) -> None:
        """Best effort: a party that can't be told forgets the round by itself."""
        request = party_pb2.AbandonRoundRequest(round_id=spec.round_id)
        calls = [stub.AbandonRound(request, timeout=2.0) for stub in self._stubs.values()]
        for result in await asyncio.gather(*calls, return_exceptions=True):
            if isinstance(result, grpc.RpcError):
                log.info("a party could not be told to abandon round %s", spec.round_id)


async def _translated(work: Awaitable[T], who: str) -> T:
    try:
        answer = await work
    except grpc.RpcError as error:
        raise VoteError.relayed(error, who) from error
    if answer is None:
        # What gRPC gives where a call ends well without an answer.
        raise VoteError(ErrorKind.ANSWER_MALFORMED, who=who, why="it is empty")
    return answer


async def _together(work: Sequence[Awaitable[T]]) -> list[T]:
    """All results, or the most telling of the errors; nothing is left running."""
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        await asyncio.wait(tasks)
    finally:
        for task in tasks:
            task.cancel()
    errors = [error for task in tasks if (error := task.exception()) is not None]
    if errors:
        # A dead party makes its peers fail too: what names it is said first.
        raise sorted(errors, key=_vagueness)[0]
    return [task.result() for task in tasks]


def _vagueness(error: BaseException) -> int:
    """How little an error tells of the cause: what names it, what others said of it, who was waited
    for in vain, and last who was seen to leave, as that may have been for a reason of its own."""
    if not isinstance(error, VoteError):
        return 0
    if error.kind is ErrorKind.ENDED_BY:
        # What a party says it tells the coordinator itself; what the dealer says, parties alone.
        return 2 if error.values.get("who") == "The dealer" else 3
    late = error.kind in (ErrorKind.DEADLINE, ErrorKind.ANSWER_LATE)
    if "A peer" in error.message or "Party of rank" in error.message:
        return 6 if late else 5
    return 4 if late else 1


def _absences(spec: Spec, contributors: set[str], responses: Responses) -> list[label_pb2.Absence]:
    absences = []
    early = spec.seconds_left() > 0
    silent = f"had not answered {'when the round ended' if early else 'by the deadline'}"
    for agent in spec.roster:
        if agent in contributors:
            continue
        reason = responses.declined.get(agent, silent)
        if agent in responses.submitted:
            reason = "its shares did not reach every party"
        absences.append(label_pb2.Absence(agent=agent, reason=reason))
    return absences


def _out_of_reach(spec: Spec, responses: Responses) -> bool:
    """Whether too many agents have declined for a quorum."""
    return len(spec.roster) - len(responses.declined) < spec.message.quorum


def _missed(spec: Spec, present: set[str], responses: Responses) -> VoteError:
    absences = _absences(spec, present, responses)
    for absence in absences:
        log.info("round %s lacks %s: %s", spec.round_id, absence.agent, absence.reason)
    exhausted = f"{ErrorKind.BUDGET_EXHAUSTED.name}:"
    poor = [one for one in absences if one.reason.startswith(exhausted)]
    willing = len(spec.roster) - len(responses.declined)
    want = spec.message.quorum
    if willing < want <= willing + len(poor):
        # But for spent budgets there would have been enough.
        return VoteError(
            ErrorKind.QUORUM_UNAFFORDABLE,
            round=spec.round_id,
            got=willing,
            want=want,
            why=_over_budget(poor, absences, responses),
        )
    # Long reasons hide nobody's name: where not everything fits, all have the same room.
    room = max(_LEAST_TOLD, _TOLD_CHARACTERS // max(1, len(absences)))
    told = "; ".join(f"{one.agent}: {one.reason}"[:room] for one in absences)
    why = f"Missing: {told.rstrip('.')}."
    return VoteError(
        ErrorKind.QUORUM_MISSED, round=spec.round_id, got=len(present), want=want, why=why
    )


def _over_budget(
    poor: Sequence[label_pb2.Absence], absences: Sequence[label_pb2.Absence], responses: Responses
) -> str:
    """The figures of the first that can't pay, and who else is missing; the log says more.

    The round ends with the answer that puts a quorum out of reach: whoever had not answered by then
    may be as poor.
    """
    first, *further = poor
    known = {one.agent for one in poor}
    others = [one.agent for one in absences if one.agent not in known]
    groups = {
        "nor can": [one.agent for one in further],
        "no answer yet": [agent for agent in others if agent not in responses.declined],
        "also missing": [agent for agent in others if agent in responses.declined],
    }
    why = first.reason.partition(". ")[0].rstrip(".")
    told = f"{first.agent}: {why.replace(f' of agent {first.agent}', '')}"
    room = _TOLD_CHARACTERS // len(groups)
    for words, names in groups.items():
        if names:
            told += f"; {words}: {', '.join(names)[:room]}"
    return told


def _plausible(statistics: party_pb2.AggregateStatistics) -> bool:
    """Whether figures can be reported, and the next round's groups chosen by them."""
    s = statistics
    seconds = (s.seconds, s.round_trip_seconds, s.preprocessing_seconds, s.sum_seconds)
    counted = (s.bytes_sent, s.bytes_received, s.dealer_bytes)
    return all(0 <= x <= _MOST_SECONDS for x in seconds) and max(counted) <= _MOST_BYTES


def _bad_answer(spec: Spec, rank: int, why: str) -> VoteError:
    who = f"party {spec.parties[rank]}: {why}."
    return VoteError(ErrorKind.ROUND_FAILED, round=spec.round_id, why=who)
