"""Preprocessing that is dealt before a round asks for it.

Invariants: an item of the stock serves one round, the same at all parties, and is dealt and checked
like any other; whatever the parties disagree on, the round is dealt for or ends, and nobody is
blamed for it. What a dealer that was caught has dealt is not used. Running rounds come first.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from aggregator.dealer.servicer import DealerServicer
from aggregator.party import offline
from aggregator.party.offline import OfflinePhase
from aggregator.party.preprocessing import ask
from aggregator.party.stock import MAX_OF_A_SHAPE, NOTHING, Stock, StockItem
from mpc_vote.mpc.cut_and_choose import DealerCaught, commitment
from mpc_vote.mpc.preprocessing import Item
from mpc_vote.proto.mpcvote.v1 import dealer_pb2
from mpc_vote.voting.spec import Spec
from tests.system.service.committee import Committee, labels_of
from tests.system.service.support import SECONDS, error_of, until
from tests.system.service.test_dealing import (
    MANY,
    TRIO,
    Certificates,
    Dealer,
    Parties,
    committee_of,
    serving,
    votes,
    winners,
)

CAST = votes(MANY)


class CountingDealer(DealerServicer):
    """An honest dealer that remembers what it was asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.sessions: list[str] = []

    def _begin(self, session: Any, party: str) -> Any:
        self.sessions.append(session.id)
        return super()._begin(session, party)


class Stocked:
    """A committee whose parties have stocks."""

    def __init__(self, dealer: Dealer, parties: Parties, committee: Committee, folder: Path):
        self.dealer = dealer
        self.parties = parties
        self.committee = committee
        self.folder = folder

    @property
    def sessions(self) -> list[str]:
        """What the dealer was asked for."""
        assert isinstance(self.dealer.servicer, CountingDealer)
        return self.dealer.servicer.sessions

    @property
    def marks(self) -> list[str]:
        """Who has caught the dealer."""
        return [name for name in TRIO if (self.folder / name / "dealer-caught").exists()]

    def stock(self, name: str) -> Stock:
        stock = self.parties.servicers[name]._stock
        assert stock is not None
        return stock

    async def stocked(self, items: int = 1) -> None:
        """Waits until every party has so many items, and all are dealt."""

        async def there() -> bool:
            stocks = [self.stock(name) for name in TRIO]
            return all(
                len(stock) == items and all(item.making.done() for item in stock._items)
                for stock in stocks
            )

        await until(there, f"{items} items are in stock", step=0.01)

    async def counted(self, spec: Spec | None = None) -> Spec:
        """A round, counted right."""
        spec = spec or self.spec()
        await self.count(spec, await self.committee.voted(spec, CAST))
        return spec

    async def count(self, spec: Spec, held: Mapping[str, bytes]) -> None:
        outcomes = await self.committee.aggregate(spec, [held])
        assert labels_of(outcomes, MANY).tolist() == winners(CAST).tolist()

    def spec(self) -> Spec:
        return self.committee.spec(queries=MANY)

    async def contexts(self, spec: Spec) -> set[bytes]:
        """What stands for a round's preprocessing, at all parties."""
        rounds = [self.parties.servicers[name]._rounds[spec.round_id] for name in TRIO]
        return {(await one.preprocessing).context for one in rounds}


@contextlib.asynccontextmanager
async def stocked_committee(
    certificates: Certificates,
    folder: Path,
    servicer: DealerServicer | None = None,
    seconds: float = 900.0,
    patience: float = SECONDS,
) -> AsyncIterator[Stocked]:
    stocks = {name: Stock(1 << 26, seconds) for name in TRIO}
    async with (
        serving(certificates, servicer or CountingDealer()) as dealer,
        committee_of(dealer, folder, 1 << 26, patience, stocks=stocks) as (parties, committee),
    ):
        yield Stocked(dealer, parties, committee, folder)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
async def service(certificates: Certificates, tmp_path: Path) -> AsyncIterator[Stocked]:
    async with stocked_committee(certificates, tmp_path) as one:
        yield one


async def test_a_round_takes_what_was_dealt_after_the_one_before(service: Stocked) -> None:
    first = await service.counted()
    await service.stocked()
    second = service.spec()
    held = await service.committee.voted(second, CAST)
    assert len(await service.contexts(second)) == 1, "all parties have the same copy"
    assert second.round_id not in service.sessions, "the dealer was not asked for it"
    await service.count(second, held)
    # One item is made after each round: the dealer has dealt three sessions for two rounds.
    await service.stocked()
    named = [offline.stock_session(spec) for spec in (first, second)]
    assert service.sessions == [first.round_id, *named]
    assert not service.marks


async def test_two_rounds_at_once_do_not_share_an_item(service: Stocked) -> None:
    await service.counted()
    await service.stocked()
    specs = [service.spec(), service.spec()]
    held = await asyncio.gather(*(service.committee.voted(spec, CAST) for spec in specs))
    first, second = [await service.contexts(spec) for spec in specs]
    assert len(first) == len(second) == 1 and first != second
    assert sum(spec.round_id in service.sessions for spec in specs) == 1, "one had to be dealt"
    for spec, one in zip(specs, held, strict=True):
        await service.count(spec, one)


async def test_a_party_that_names_an_item_twice_has_it_used_once(
    service: Stocked, monkeypatch: pytest.MonkeyPatch
) -> None:
    await service.counted()
    await service.stocked()
    stock = service.stock(TRIO[0])
    (item,) = stock._items
    monkeypatch.setattr(stock, "take", lambda *_: item)
    contexts = []
    for _ in range(2):
        spec = service.spec()
        held = await service.committee.voted(spec, CAST)
        contexts.append(await service.contexts(spec))
        await service.count(spec, held)
    assert all(len(one) == 1 for one in contexts) and contexts[0] != contexts[1]
    assert spec.round_id in service.sessions, "the second time it was dealt"
    assert not service.marks


@pytest.mark.parametrize("name", TRIO)
async def test_a_party_that_lost_its_stock_has_the_round_dealt_for(
    name: str, service: Stocked
) -> None:
    """As after a restart: the stock is in memory alone."""
    await service.counted()
    await service.stocked()
    kept = {path.name for path in (service.folder / name).iterdir()}
    assert {one.partition("-")[0].partition(".")[0] for one in kept} == {"party"}
    service.stock(name).clear()
    spec = await service.counted()
    assert spec.round_id in service.sessions and not service.marks
    # It is in stock again; what others hold of before is nobody's any more.
    await service.counted()
    assert not service.marks


async def test_an_item_is_gone_with_the_round_that_took_it(service: Stocked) -> None:
    """Also if the round is never counted."""
    await service.counted()
    await service.stocked()
    spec = service.spec()
    await service.committee.open(spec)
    (context,) = await service.contexts(spec)
    await service.committee.abandon(spec)
    assert [len(service.stock(name)) for name in TRIO] == [0, 0, 0]
    other = service.spec()
    await service.committee.voted(other, CAST)
    assert await service.contexts(other) != {context}


async def test_an_item_that_is_still_being_dealt_is_waited_for(
    service: Stocked, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = asyncio.Event()

    async def slowly(*given: Any) -> Any:
        await go_on.wait()
        return await ask(*given)

    await_item = Stock.take_named
    named = asyncio.Event()

    def noticed(*given: Any) -> StockItem | None:
        named.set()
        return await_item(*given)

    first = service.spec()
    held = await service.committee.voted(first, CAST)
    await service.contexts(first)
    monkeypatch.setattr(offline, "ask", slowly)
    monkeypatch.setattr(Stock, "take_named", noticed)
    await service.count(first, held)

    async def begun() -> bool:
        return all(len(service.stock(name)) == 1 for name in TRIO)

    await until(begun, "an item is being made", step=0.01)
    spec = service.spec()
    voted = asyncio.create_task(service.committee.voted(spec, CAST))
    await asyncio.wait_for(named.wait(), SECONDS)
    go_on.set()
    await service.count(spec, await voted)
    assert spec.round_id not in service.sessions


async def test_an_item_that_takes_long_is_not_waited_for_and_its_round_is_dealt_for(
    certificates: Certificates, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last party collects what the others are done with: they must not give up on it."""

    async def never(*given: Any) -> Any:
        await asyncio.Event().wait()

    async with stocked_committee(certificates, tmp_path, patience=4.0) as service:
        with monkeypatch.context() as patched:
            patched.setattr(offline, "collect", never)
            await service.counted()

            async def done_but_for_one() -> bool:
                items = [item for name in TRIO for item in service.stock(name)._items]
                return sorted(item.making.done() for item in items) == [False, True, True]

            await until(done_but_for_one, "an item is made but for its corrections", step=0.01)
            spec = await service.counted()
        assert spec.round_id in service.sessions and not service.marks


def telling(
    monkeypatch: pytest.MonkeyPatch, liar: int, lied_to: int, turn: int, lie: bytes
) -> None:
    """In one of the exchanges about stocks a party tells one of its peers something else."""
    exchange = OfflinePhase._exchange
    turns: Counter[int] = Counter()

    async def heard(phase: OfflinePhase, channel: Any, payload: bytes) -> Sequence[bytes]:
        told = list(await exchange(phase, channel, payload))
        if len(payload) == len(NOTHING) and channel.rank == lied_to:
            if turns[id(channel)] == turn:
                told[liar] = lie
            turns[id(channel)] += 1
        return told

    monkeypatch.setattr(OfflinePhase, "_exchange", heard)


@pytest.mark.parametrize("rank", [0, 1, 2])
async def test_a_party_that_says_different_things_of_its_stock_ends_the_round_and_blames_nobody(
    rank: int, service: Stocked, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some would count with an item, and others wait for the dealer."""
    await service.counted()
    await service.stocked()
    telling(monkeypatch, rank, (rank + 1) % 3, 1, NOTHING)
    spec = service.spec()
    await service.committee.open(spec)
    errors = [await error_of(service.committee.holdings(spec, name)) for name in TRIO]
    assert "COMMITTEE_DISAGREES" in {error.name for error in errors}, errors
    assert not service.marks and spec.round_id not in service.sessions
    await service.committee.abandon(spec)
    monkeypatch.undo()
    await service.counted()


async def test_an_item_that_one_party_is_told_another_name_of_is_dealt_for(
    service: Stocked, monkeypatch: pytest.MonkeyPatch
) -> None:
    await service.counted()
    await service.stocked()
    telling(monkeypatch, 0, 2, 0, bytes([1]) * 32)
    spec = await service.counted()
    assert spec.round_id in service.sessions and not service.marks


def commit_to_lies(item: Item[Any], copies: Sequence[Sequence[bytes]], index: int) -> bytes:
    return b"".join(commitment(bytes(item.correction_bytes), seeds[-1], index) for seeds in copies)


async def caught(service: Stocked) -> list[str]:
    """Waits until a party has caught the dealer and holds nothing of it; says which."""

    async def marked() -> bool:
        return bool(service.marks) and not any(len(service.stock(n)) for n in service.marks)

    await until(marked, "the dealer is caught, and the stock dropped", step=0.01)
    return service.marks


async def test_a_dealer_that_lies_in_a_stocked_copy_is_caught_before_a_round_asks_for_it(
    certificates: Certificates, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with stocked_committee(certificates, tmp_path, patience=3.0) as service:
        first = service.spec()
        held = await service.committee.voted(first, CAST)
        await service.contexts(first)
        monkeypatch.setattr("aggregator.dealer.servicer.commit", commit_to_lies)
        await service.count(first, held)
        name = (await caught(service))[0]
        error = await error_of(service.committee.open_at(name, service.spec()))
        assert error.name == "DEALER_REFUSED"


class Forger(CountingDealer):
    """Sends other corrections for the stock than it has committed to."""

    async def Collect(
        self, request: dealer_pb2.CollectRequest, context: Any
    ) -> AsyncIterator[dealer_pb2.CollectResponse]:
        async for response in super().Collect(request, context):
            if request.session_id.startswith("stock-"):
                response.data = bytes(len(response.data))
            yield response

    Collect.__allowed__ = DealerServicer.Collect.__allowed__  # type: ignore[attr-defined]


async def test_a_dealer_that_sends_other_corrections_for_the_stock_is_caught(
    certificates: Certificates, tmp_path: Path
) -> None:
    async with stocked_committee(certificates, tmp_path, Forger(), patience=3.0) as service:
        await service.counted()
        assert await caught(service) == [TRIO[-1]]


async def test_nothing_in_stock_is_used_of_a_dealer_that_was_caught(service: Stocked) -> None:
    await service.counted()
    await service.stocked()
    party = service.parties.servicers[TRIO[1]]
    await asyncio.to_thread(party._caught, DealerCaught("another", "a lie"))
    assert await caught(service) == [TRIO[1]]


async def test_an_item_that_no_round_takes_is_dropped(
    certificates: Certificates, tmp_path: Path
) -> None:
    async with stocked_committee(certificates, tmp_path, seconds=0.2) as service:
        await service.counted()

        async def dealt() -> bool:
            return len(service.sessions) == 2

        async def gone() -> bool:
            return all(not len(service.stock(name)) for name in TRIO)

        await until(dealt, "an item was asked for", step=0.01)
        await until(gone, "it is dropped", step=0.01)
        spec = await service.counted()
        assert spec.round_id in service.sessions and not service.marks


@pytest.mark.parametrize("name", TRIO)
async def test_nothing_is_dealt_ahead_while_one_party_has_another_round_to_count(
    name: str, service: Stocked
) -> None:
    with service.parties.servicers[name]._offline.busy():
        first = await service.counted()

        async def asked() -> bool:
            return all(
                not servicer._offline._replenishing
                for servicer in service.parties.servicers.values()
            )

        await until(asked, "the parties have voted", step=0.01)
        assert service.sessions == [first.round_id]
    await service.counted()
    await service.stocked()


async def test_no_more_is_dealt_ahead_than_rounds_may_be_open(service: Stocked) -> None:
    specs = [service.spec() for _ in range(MAX_OF_A_SHAPE + 1)]
    held = [await service.committee.voted(spec, CAST) for spec in specs]
    for number, (spec, one) in enumerate(zip(specs, held, strict=True)):
        await service.count(spec, one)
        await service.stocked(min(number + 1, MAX_OF_A_SHAPE))
