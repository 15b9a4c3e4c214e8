"""A round at the coordinator, whose agents have all voted and whose parties say what they like.

Invariants: a party that says nonsense fails the round, and takes no more of the coordinator's
memory than one that doesn't; nobody is told to ask again, and so to pay again, once a round was
charged.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import numpy as np
import pytest

from aggregator.coordinator import rounds
from aggregator.coordinator.archive import Archive
from aggregator.coordinator.attendance import Attendance, Responses
from aggregator.coordinator.rounds import Round, RoundRunner
from mpc_vote.argmax.registry import TABLE
from mpc_vote.errors import ErrorKind, VoteError
from mpc_vote.privacy.ledger import Ledger
from mpc_vote.privacy.mechanisms import Level
from mpc_vote.proto.mpcvote.v1 import common_pb2, party_pb2
from mpc_vote.voting.spec import Spec
from tests.security.fuzz.fakes import Channel, Stream

PARTIES = ("party-0", "party-1", "party-2")
AGENTS = ("ann", "ben", "cat")

Answers = Callable[[Spec], Sequence[party_pb2.AggregateResponse]]


def spec_of(**changes: Any) -> Spec:
    message = common_pb2.RoundSpec(
        round_id="round",
        queries_digest=bytes(32),
        queries=5,
        query_dtype=common_pb2.DTYPE_FLOAT32,
        query_shape=[2],
        classes=3,
        ballot=common_pb2.BALLOT_KIND_ONE_HOT,
        fraction_bits=4,
        sigma=1.0,
        roster=[common_pb2.RosterEntry(agent=agent) for agent in AGENTS],
        quorum=2,
        parties=PARTIES,
        dealer="dealer",
        engine=common_pb2.ENGINE_TABLE,
        deadline_unix_ms=int(1000 * (time.time() + 60)),
    )
    message.MergeFrom(common_pb2.RoundSpec(**changes))
    message.ring_bits = message.ring_bits or TABLE.ring_bits(Spec(b"", message).total_bound)
    return Spec.seal(message)


def shares(offset: int, rows: int) -> party_pb2.AggregateResponse:
    given = party_pb2.LabelShares(offset=offset, shares=bytes(2 * rows))
    return party_pb2.AggregateResponse(shares=given)


STATISTICS = party_pb2.AggregateResponse(
    statistics=party_pb2.AggregateStatistics(rounds=3, seconds=0.1)
)


def honest(spec: Spec) -> list[party_pb2.AggregateResponse]:
    step = spec.engine.block_rows(spec.row_classes)
    starts = range(0, spec.rows, step)
    return [*(shares(start, min(step, spec.rows - start)) for start in starts), STATISTICS]


class Voted(Attendance):
    """All agents have answered as soon as they are asked."""

    @contextlib.contextmanager
    def announce(self, spec: Spec, queries: Path) -> Iterator[Responses]:
        with super().announce(spec, queries) as ballots:
            ballots.prepared.update(spec.roster)
            ballots.submitted.update(dict.fromkeys(spec.roster, 1))
            yield ballots


def party(spec: Spec, **answers: Callable[..., Any]) -> Any:
    """A party that is honest but for these answers."""

    async def opened(*_: Any, **__: Any) -> Any:
        return party_pb2.OpenRoundResponse(spec_digest=spec.digest)

    async def held(*_: Any, **__: Any) -> Any:
        holdings = [party_pb2.Holding(agent=agent, submission_id=b"1") for agent in AGENTS]
        return party_pb2.ListHoldingsResponse(holdings=holdings)

    async def dealt(*_: Any, **__: Any) -> Any:
        return party_pb2.AwaitPreprocessingResponse()

    async def abandoned(*_: Any, **__: Any) -> Any:
        return party_pb2.AbandonRoundResponse()

    def counted(*_: Any, **__: Any) -> Any:
        return Stream(honest(spec))

    own = {"OpenRound": opened, "AwaitPreprocessing": dealt, "ListHoldings": held}
    return Channel({**own, "Aggregate": counted, "AbandonRound": abandoned, **answers})


async def run(spec: Spec, last: Any, directory: Path, others: Any = None) -> tuple[Round, int]:
    """A round with this last party, and how often it was charged; all others are honest, unless
    they are given."""
    round_, charges, _ = await run_and_measure(spec, last, directory, others)
    return round_, charges


async def run_and_measure(
    spec: Spec, last: Any, directory: Path, others: Any = None
) -> tuple[Round, int, float]:
    """As `run`, with the round trip that later rounds are planned by."""
    with (
        contextlib.closing(Archive(directory)) as archive,
        contextlib.closing(Ledger(directory / "ledger.db", None)) as ledger,
    ):
        archive.open_round("client", "", b"", spec, np.zeros((spec.message.queries, 2), np.float32))
        parties: Any = dict.fromkeys(PARTIES, others or party(spec)) | {PARTIES[-1]: last}
        round_ = Round(spec, 1e-3)
        runner = RoundRunner(archive, ledger, Voted(archive), parties, 30.0)
        await runner.run(round_)
        return round_, len(ledger.spends()), await runner.round_trip()


async def test_nobody_waits_while_it_is_computed_what_rounds_have_cost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes a while after rounds of many plans."""
    spent, threads = Ledger.spent, set()

    def slow(self: Ledger, level: Level, delta: float, **more: Any) -> float:
        threads.add(threading.current_thread())
        return spent(self, level, delta, **more)

    monkeypatch.setattr(Ledger, "spent", slow)
    spec = spec_of()
    round_, _ = await run(spec, party(spec), tmp_path)
    assert round_.error is None
    assert threads and threading.current_thread() not in threads


async def test_progress_is_told_in_few_events_however_many_agents_answer(tmp_path: Path) -> None:
    more = [common_pb2.RosterEntry(agent=f"agent-{number}") for number in range(497)]
    spec = spec_of(roster=more, quorum=500)
    with (
        contextlib.closing(Archive(tmp_path)) as archive,
        contextlib.closing(Ledger(tmp_path / "ledger.db", None)) as ledger,
    ):
        archive.open_round("client", "", b"", spec, np.zeros((5, 2), np.float32))
        attendance, round_ = Attendance(archive), Round(spec, 1e-3)
        runner = RoundRunner(archive, ledger, attendance, {}, 30.0)
        with attendance.announce(spec, archive.queries_path(spec.round_id)) as responses:
            collecting = asyncio.create_task(runner._collect(round_, responses, 30.0))
            for name in spec.roster:
                responses.prepared.add(name)
                responses.changed.set()
                for _ in range(5):
                    await asyncio.sleep(0)
            await collecting
    told = [event.progress.done for event in round_.events]
    assert told == sorted(told) and told[-1] == 500
    assert 10 < len(told) <= 22


def counting(answers: Answers) -> Callable[[Spec], Any]:
    """A party that gives these label shares and statistics."""
    return lambda spec: party(spec, Aggregate=lambda *_, **__: Stream(answers(spec)))


@pytest.mark.parametrize(("queries", "classes", "blocks"), [(5, 3, 1), (4_000, 50, 3)])
async def test_a_round_with_honest_parties_completes(
    queries: int, classes: int, blocks: int, tmp_path: Path
) -> None:
    spec = spec_of(queries=queries, classes=classes)
    assert len(honest(spec)) == blocks + 1
    round_, charges = await run(spec, party(spec), tmp_path)
    assert round_.error is None and round_.labels is not None, round_.error
    assert round_.labels.size == spec.rows and charges == 1


@pytest.mark.parametrize(
    ("answers", "why"),
    [
        (lambda spec: [shares(0, 0)] * 5_000 + honest(spec), "out of place"),
        (lambda spec: [*honest(spec)[:-1], *[shares(5, 0)] * 5_000, STATISTICS], "out of place"),
        (lambda spec: [*(shares(row, 1) for row in range(5)), STATISTICS], "out of place"),
        (lambda spec: [shares(0, 5), shares(0, 5), STATISTICS], "out of place"),
        (lambda spec: [shares(0, 6), STATISTICS], "out of place"),
        (lambda spec: [shares(1, 4), shares(0, 1), STATISTICS], "out of place"),
        (lambda spec: [*honest(spec), *[STATISTICS] * 5_000], "sent more"),
        (lambda spec: [STATISTICS], "missing"),
        (lambda spec: honest(spec)[:-1], "missing"),
    ],
    ids=[
        "empty before",
        "empty after",
        "row by row",
        "twice",
        "too many",
        "out of order",
        "statistics again and again",
        "none",
        "no statistics",
    ],
)
async def test_label_shares_come_once_and_in_the_blocks_that_they_are_computed_in(
    answers: Answers, why: str, tmp_path: Path
) -> None:
    """Each message makes news that is kept for the round's clients: a party must not send as many
    as it likes."""
    spec = spec_of()
    round_, _ = await run(spec, counting(answers)(spec), tmp_path)
    assert round_.error is not None and round_.error.name == "ROUND_FAILED"
    assert "party party-2: " in round_.error.message and why in round_.error.message
    assert ". Ask for a new round." in round_.error.message
    assert len(round_.events) < 20


async def test_a_party_holds_no_more_shares_than_there_are_agents(tmp_path: Path) -> None:
    async def held(*_: Any, **__: Any) -> Any:
        ids = [bytes([number]) for number in range(4)]
        holdings = [party_pb2.Holding(agent=AGENTS[0], submission_id=one) for one in ids]
        return party_pb2.ListHoldingsResponse(holdings=holdings)

    spec = spec_of()
    round_, _ = await run(spec, party(spec, ListHoldings=held), tmp_path)
    assert round_.error is not None and "party party-2: it holds more" in round_.error.message


def busy(*_: Any, **__: Any) -> Any:
    """A party that says it has no room, and to come again at once."""
    error = VoteError(ErrorKind.SERVICE_BUSY, got=1, retry_after=0.0)
    metadata = grpc.aio.Metadata(*error.trailing_metadata())
    raise grpc.aio.AioRpcError(error.kind.status, grpc.aio.Metadata(), metadata, error.message)


@pytest.mark.parametrize(("call", "charged"), [("OpenRound", False), ("Aggregate", True)])
async def test_nobody_is_told_to_ask_again_once_a_round_is_charged(
    call: str, charged: bool, tmp_path: Path
) -> None:
    """Clients do so by themselves, and each time would cost an epsilon."""

    async def refused(*_: Any, **__: Any) -> Any:
        busy()

    answer = {"OpenRound": refused, "Aggregate": lambda *_, **__: Stream([], busy)}[call]
    spec = spec_of()
    round_, charges = await run(spec, party(spec, **{call: answer}), tmp_path)
    assert round_.error is not None and round_.error.name == "SERVICE_BUSY", round_.error
    assert charges == charged
    assert round_.error.retry_after == (None if charged else 0.0)
    # Else a failure would look as if it were free.
    told = "The round was charged, and stays charged: epsilon " if charged else "Nothing was spent."
    assert told in str(round_.error)
    assert ("Nothing was spent" in str(round_.error)) != charged
    assert round_.error.message.startswith("Party party-2 says: ")


_LEFT = VoteError(ErrorKind.PARTY_UNREACHABLE, who="A peer, party-2,", why="it left the session")
_LATE = VoteError(ErrorKind.DEADLINE, what="Party party-2", seconds=30.0)
_OWN = VoteError(ErrorKind.PREPROCESSING_LATE, seconds=30.0)


def _quoted(who: str, why: str) -> VoteError:
    return VoteError(ErrorKind.ENDED_BY, who=who, why=why)


@pytest.mark.parametrize(
    ("others", "last"),
    [
        (_LEFT, _quoted("The dealer", "DEAL_ENDED: no")),
        (_LEFT, _quoted("The dealer", "PARTY_UNREACHABLE: A peer left")),
        (_LATE, _quoted("The dealer", "DEAL_ENDED: no")),
        (_LEFT, _OWN),
        (_quoted("The dealer", "DEAL_ENDED: party party-2 was not served"), _OWN),
        (_quoted("Party party-2", "PREPROCESSING_LATE: no"), _OWN),
        (_LATE, _quoted("Party party-1", "INTERNAL: no")),
    ],
)
async def test_of_what_the_parties_say_that_is_told_which_says_why(
    others: VoteError, last: VoteError, tmp_path: Path
) -> None:
    """A party that the dealer turned away leaves, and has done nothing wrong: that it left is not
    what clients are to hear."""

    def failing(error: VoteError) -> Any:
        metadata = grpc.aio.Metadata(*error.trailing_metadata())

        def fail(*_: Any) -> Any:
            raise grpc.aio.AioRpcError(error.kind.status, grpc.aio.Metadata(), metadata)

        return party(spec, Aggregate=lambda *_, **__: Stream([], fail))

    spec = spec_of()
    round_, _ = await run(spec, failing(last), tmp_path, others=failing(others))
    assert round_.error is not None and round_.error.name == last.name, round_.error
    assert round_.error.message.startswith(f"Party party-2 says: {last.message}")


@pytest.mark.parametrize(
    ("shift", "told"), [(0, []), (3, []), (None, ["abandoned"])], ids=["right", "range", "missing"]
)
async def test_parties_do_not_hear_whether_labels_were_out_of_range(
    shift: int | None, told: list[str], tmp_path: Path
) -> None:
    """A party alone would else read a label of another's round: it adds to its share, and learns
    whether the sum is still a class."""
    heard: list[str] = []

    async def abandoned(*_: Any, **__: Any) -> Any:
        heard.append("abandoned")
        return party_pb2.AbandonRoundResponse()

    def counted(*_: Any, **__: Any) -> Any:
        words = np.full(5, shift or 0, "<u2").tobytes()
        given = party_pb2.AggregateResponse(shares=party_pb2.LabelShares(shares=words))
        return Stream([STATISTICS] if shift is None else [given, STATISTICS])

    spec = spec_of()
    last = party(spec, Aggregate=counted, AbandonRound=abandoned)
    round_, _ = await run(spec, last, tmp_path)
    assert (round_.error is None) == (shift == 0), round_.error
    assert heard == told


@pytest.mark.parametrize("winners", [0, 1, 2, 3])
async def test_in_two_rounds_each_row_must_have_just_one_winner(
    winners: int, tmp_path: Path
) -> None:
    """Also a party that adds to its shares does not hear of it."""
    heard: list[str] = []

    async def abandoned(*_: Any, **__: Any) -> Any:
        heard.append("abandoned")
        return party_pb2.AbandonRoundResponse()

    spec = spec_of(two_rounds=True)
    code = spec.engine.label_code(3)

    def counted(*marks: int) -> Any:
        packed = code.pack(np.array(marks * 5, np.uint64))
        given = party_pb2.AggregateResponse(shares=party_pb2.LabelShares(shares=packed))
        return lambda *_, **__: Stream([given, STATISTICS])

    marked = counted(*[0] * winners, *[1] * (3 - winners))
    last = party(spec, Aggregate=marked, AbandonRound=abandoned)
    others = party(spec, Aggregate=counted(0, 0, 0))
    round_, _ = await run(spec, last, tmp_path, others)
    assert (round_.error is None) == (winners == 1), round_.error
    if round_.error is not None:
        assert "a row has not just one winner" in round_.error.message
    assert heard == []


@pytest.mark.parametrize("shift", [0, 3], ids=["right", "range"])
async def test_parties_do_not_see_by_later_rounds_whether_labels_were_out_of_range(
    shift: int, tmp_path: Path
) -> None:
    """The groups of the next round, which parties read in its spec, follow from what they say of
    the last one: that must be taken over either way."""
    words = np.full(5, shift, "<u2").tobytes()
    said = party_pb2.AggregateStatistics(rounds=3, seconds=0.1, round_trip_seconds=1e4)
    given = [
        party_pb2.AggregateResponse(shares=party_pb2.LabelShares(shares=words)),
        party_pb2.AggregateResponse(statistics=said),
    ]
    spec = spec_of()
    round_, _, round_trip = await run_and_measure(spec, counting(lambda _: given)(spec), tmp_path)
    assert (round_.error is None) == (shift == 0), round_.error
    assert round_trip == said.round_trip_seconds


@pytest.mark.parametrize("turned", [False, True])
async def test_who_waited_in_vain_is_believed_before_who_saw_it_leave(turned: bool) -> None:
    """Else a party that does not come to one of its peers has that peer named in its place."""
    waited = VoteError(ErrorKind.DEADLINE, what="Party party-1", seconds=30.0)
    left = VoteError(ErrorKind.PARTY_UNREACHABLE, who="Party of rank 2", why="it left the session")
    vague = VoteError(ErrorKind.DEADLINE, what="A peer", seconds=30.0)

    async def fails(error: VoteError) -> None:
        raise error

    errors = [left, vague, waited]
    with pytest.raises(VoteError) as caught:
        await rounds._together([fails(one) for one in (errors[::-1] if turned else errors)])
    assert caught.value is waited


def test_who_can_not_pay_and_who_was_not_heard_are_told_apart(tmp_path: Path) -> None:
    """A round ends with the refusal that puts a quorum out of reach: of the others nobody knows
    whether they could pay, so no smaller quorum is advised."""
    spec = spec_of(quorum=3)
    responses = Responses(spec, tmp_path)  # type: ignore[arg-type]
    responses.declined["ben"] = "BUDGET_EXHAUSTED: 3 is over what is left, 2. Ask for less."
    error = rounds._missed(spec, set(), responses)
    assert error.kind is ErrorKind.QUORUM_UNAFFORDABLE
    assert "no more than 2 can pay for it: ben: BUDGET_EXHAUSTED: 3 is over" in error.message
    assert "no answer yet: ann, cat" in error.message
    responses.declined["cat"] = "BUDGET_EXHAUSTED: 3 is over what is left, 1. Ask for less."
    responses.declined["ann"] = "QUERIES_MANY: 5 are over the limit of 4."
    told = rounds._missed(spec_of(quorum=2), set(), responses).message
    assert "nor can: cat; also missing: ann." in told
    assert "Fewer queries or a larger sigma" in told and "quorum may" not in error.message + told
