"""The dealer, and preprocessing that waits before it is used.

Invariants: preprocessing is dealt once, for the parties and the plan it was made for, and to each
party its own part; it is used in the plan's order. A party holds no more ahead than its pool has
room for, but never waits for room that another round holds. Whatever ends a round gives its room
back.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import math
import resource
import sqlite3
import threading
import traceback
import types
import weakref
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggregator.dealer import servicer as dealer_module
from aggregator.dealer.servicer import DealerServicer
from aggregator.party.committee import Committee as OwnCommittee
from aggregator.party.dealer_mark import DealerMark
from aggregator.party.journal import RoundJournal
from aggregator.party.links import LinkPool, LinkServer, parse_hello
from aggregator.party.preprocessing import DealtPreprocessing, PreprocessingPool, ask
from aggregator.party.servicer import PartyServicer, _Session
from aggregator.party.settings import PartySettings
from aggregator.party.stock import Stock
from mpc_vote.argmax.crypten.triples import MAX_TRIPLES, TripleKind, Triples
from mpc_vote.argmax.engine import Engine, label_bits, session_plan
from mpc_vote.argmax.one_hot import MAX_ROTATED, Rotation
from mpc_vote.argmax.registry import ENGINES, LOG_REDUCTION, TABLE, EngineKind
from mpc_vote.argmax.table.grouping import choose_groups
from mpc_vote.argmax.table.level import MAX_BITS, MAX_COMPARISONS, MAX_GROUP, MIN_BITS, LevelTables
from mpc_vote.errors import ErrorKind, VoteError
from mpc_vote.mpc import ring
from mpc_vote.mpc.channel import Channel
from mpc_vote.mpc.cut_and_choose import (
    DIGEST_BYTES,
    MADE_AT_ONCE,
    DealerCaught,
    Drawn,
    Grant,
    Session,
    commitment,
    stream_key,
)
from mpc_vote.mpc.in_process import run_committee
from mpc_vote.mpc.preprocessing import Item, Preprocessing, PreprocessingPlan, Run
from mpc_vote.mpc.prg import SEED_BYTES, Words, new_seed
from mpc_vote.pki.authority import CertificateAuthority
from mpc_vote.pki.identity import Credentials, Identity, Role
from mpc_vote.proto.mpcvote.v1 import dealer_pb2, dealer_pb2_grpc, party_pb2, party_pb2_grpc
from mpc_vote.testbed.cluster import Cluster, free_ports
from mpc_vote.transport import frames, rpc, tensors
from mpc_vote.transport.frames import Kind
from mpc_vote.transport.link import Frame, Link
from mpc_vote.transport.relay import Relay
from mpc_vote.voting import codec
from mpc_vote.voting.limits import MAX_CLASSES, MAX_PARTIES, MAX_QUERIES
from mpc_vote.voting.spec import Spec
from tests.security.fuzz.fakes import Channel as FakeChannel
from tests.security.fuzz.fakes import Stream
from tests.system.service.committee import AGENTS, ROWS, Committee, holdings_of, labels_of
from tests.system.service.support import SECONDS, Group, Labels, error_of, refused, until

DEALER = Identity(Role.DEALER, "dealer")
PAIR = ["party-0", "party-1"]
TRIO = ["party-0", "party-1", "party-2"]
COPIES = 3
KEY = b"k" * 32
"""Not zeros: of those HMAC makes the same as of no key at all."""
SOON = 0.3
"""A party's patience where the test is about its end."""

SMALL = Triples(TripleKind.PRODUCT, 500)
LEVEL = LevelTables(vectors=40, group=5, bits=16, label_bits=3, labelled=False, last=True)
SMALL_PLAN = PreprocessingPlan((Run((SMALL,), 8),))
MIXED_PLAN = PreprocessingPlan((Run((SMALL, LEVEL), 2), Run((Triples(TripleKind.BIT, 7),), 1)))


# What the tests have to do with


class Certificates:
    """Identities of one authority, made when they are first asked for."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._authority = CertificateAuthority.create(directory / "ca")

    def credentials(self, identity: Identity) -> Credentials:
        directory = self._directory / identity.role / identity.name
        if not directory.exists():
            self._authority.issue(identity, directory, hosts=["localhost"])
        return Credentials.load(directory)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@dataclass
class Dealer:
    """A dealer that serves, and who may call it."""

    certificates: Certificates
    address: str
    servicer: dealer_pb2_grpc.DealerServiceServicer

    def channel(self, party: str, address: str = "") -> grpc.aio.Channel:
        caller = self.certificates.credentials(Identity(Role.PARTY, party))
        return rpc.dial(caller, address or self.address, DEALER)

    @contextlib.asynccontextmanager
    async def dealt(
        self,
        party: str,
        session: str,
        parties: Sequence[str],
        plan: PreprocessingPlan = SMALL_PLAN,
        **more: Any,
    ) -> AsyncIterator[Any]:
        """A raw call to the dealer."""
        given = {"copies": COPIES, "seeds": [new_seed() for _ in range(COPIES)], **more}
        async with self.channel(party) as channel:
            request = dealer_pb2.DealRequest(
                session_id=session, parties=parties, plan=codec.to_wire(plan), **given
            )
            yield dealer_pb2_grpc.DealerServiceStub(channel).Deal(request, timeout=SECONDS)

    async def read(self, *given: Any, **more: Any) -> list[dealer_pb2.DealResponse]:
        """All that the dealer says to such a call."""
        async with self.dealt(*given, **more) as call:
            return [response async for response in call]

    @contextlib.asynccontextmanager
    async def waiting(
        self, party: str, session: str, *given: Any, **more: Any
    ) -> AsyncIterator[None]:
        """Meanwhile one party has asked, and waits for the others."""
        async with self.dealt(party, session, *given, **more) as call:
            reading = asyncio.create_task(call.read())
            await self.asked(session)
            try:
                yield
            finally:
                call.cancel()
                await asyncio.gather(reading, return_exceptions=True)

    async def asked(self, session: str, by: int = 1) -> None:
        """Waits until so many parties, and not all, have asked for the session."""
        servicer = self.servicer
        assert isinstance(servicer, DealerServicer)

        async def begun() -> bool:
            return session in servicer._deals and len(servicer._deals[session]._seeds) == by

        await until(begun, f"{by} parties have asked", step=0.005)

    async def collected(self, party: str, session: str, copy: int) -> bytes:
        """All corrections of a copy."""
        async with self.channel(party) as channel:
            request = dealer_pb2.CollectRequest(session_id=session, copy=copy)
            call = dealer_pb2_grpc.DealerServiceStub(channel).Collect(request, timeout=SECONDS)
            return b"".join([response.data async for response in call])

    async def grants(
        self,
        session: str,
        parties: Sequence[str],
        plan: PreprocessingPlan = SMALL_PLAN,
        copies: int = COPIES,
    ) -> list[Grant]:
        """What all parties of a session are granted."""
        asked = Session(session, tuple(parties), plan, copies)

        async def one(rank: int) -> Grant:
            async with self.channel(parties[rank]) as channel:
                return await ask(channel, asked, rank, SECONDS)

        return await asyncio.gather(*map(one, range(len(parties))))

    async def drawn(
        self, session: Session, rank: int, channel: grpc.aio.Channel, timeout: float
    ) -> Drawn:
        """The first copy as one party has it; all others have asked as well."""
        if not isinstance(self.servicer, DealerServicer):
            # It answers a party without waiting for others, and commits for this key.
            grant = await ask(channel, session, rank, timeout)
            return Drawn(session.id, 0, KEY, grant.digests, b"", 0)
        return first_copy((await self.grants(session.id, session.parties, session.plan, 1))[rank])

    @contextlib.asynccontextmanager
    async def preprocessing(
        self,
        session: str,
        pool: PreprocessingPool,
        plan: PreprocessingPlan = SMALL_PLAN,
        parties: Sequence[str] = PAIR,
        rank: int = 1,
        timeout: float = SECONDS,
        address: str = "",
    ) -> AsyncIterator[DealtPreprocessing]:
        """A party's side, as a round has it once the parties have drawn a copy."""
        async with self.channel(parties[rank], address) as channel:
            asked = Session(session, tuple(parties), plan, copies=1)
            drawn = await self.drawn(asked, rank, channel, timeout)
            last = rank == len(parties) - 1
            preprocessing = DealtPreprocessing(channel, drawn, plan, last, pool, timeout)
            try:
                yield preprocessing
            finally:
                preprocessing.close()


def first_copy(grant: Grant) -> Drawn:
    """What a party has when the lot has fallen on the first copy."""
    key = stream_key(grant.seeds[0], grant.transcript(), grant.rank, 0)
    digests = tuple(digests[:DIGEST_BYTES] for digests in grant.digests)
    return Drawn(grant.session.id, 0, key, digests, b"", 0)


@contextlib.asynccontextmanager
async def serving(
    certificates: Certificates, servicer: dealer_pb2_grpc.DealerServiceServicer
) -> AsyncIterator[Dealer]:
    """A dealer with this behaviour."""

    async def nothing_to_check() -> dict[str, bool]:
        return {}

    services = [(dealer_pb2_grpc.add_DealerServiceServicer_to_server, servicer)]
    credentials = certificates.credentials(DEALER)
    server = rpc.Server(credentials, "127.0.0.1:0", services, nothing_to_check)
    await server.start()
    try:
        yield Dealer(certificates, f"127.0.0.1:{server.port}", servicer)
    finally:
        await server.stop()


@pytest.fixture
async def dealer(certificates: Certificates) -> AsyncIterator[Dealer]:
    async with serving(certificates, DealerServicer()) as one:
        yield one


class WatchedPool(PreprocessingPool):
    """A pool that remembers the most it ever held."""

    peak = 0

    async def reserve(self, size: int, wanted: asyncio.Event) -> None:
        await super().reserve(size, wanted)
        self.peak = max(self.peak, self.held)


async def taken(preprocessing: DealtPreprocessing, item: Item[Any]) -> Any:
    """What the engine's thread gets."""
    return await asyncio.wait_for(asyncio.to_thread(preprocessing.take, item), SECONDS)


async def holds(pool: PreprocessingPool, size: int) -> None:
    """Waits until the pool holds just this much."""

    async def test() -> bool:
        return pool.held == size

    await until(test, f"{size} bytes wait", step=0.005)


async def ready(preprocessing: DealtPreprocessing, items: int) -> None:
    """Waits until so many items are there to be taken."""

    async def test() -> bool:
        return preprocessing._ready.qsize() >= items

    await until(test, f"{items} items are ready", step=0.005)


async def settled() -> None:
    """Lets everything run that can run without anybody else."""
    for _ in range(100):
        await asyncio.sleep(0)


def part_bytes(plan: PreprocessingPlan) -> int:
    return sum(item.part_bytes for item in plan)


# Preprocessing is dealt once, to whom and for what it was made


async def test_all_parties_are_told_the_same_of_everybodys_seeds(dealer: Dealer) -> None:
    first, second = await dealer.grants("session", PAIR)
    assert first.seed_hashes == second.seed_hashes and first.digests == second.digests
    assert first.transcript() == second.transcript()
    for grant in (first, second):
        assert grant.seed_hashes[grant.rank] == grant.session.seed_hashes(grant.rank, grant.seeds)


async def test_no_seed_serves_two_requests(dealer: Dealer) -> None:
    """Twice the same masks on different values would tell their difference."""
    grants = []
    for name in ("one", "one", "two"):
        grants += await dealer.grants(name, PAIR)
        await dealer.collected("party-1", name, 0)
    seeds = [seed for grant in grants for seed in grant.seeds]
    assert len(set(seeds)) == len(seeds) == 6 * COPIES
    assert len({grant.transcript() for grant in grants}) == 3


async def test_a_party_asks_once_while_a_session_lasts(dealer: Dealer) -> None:
    async with dealer.waiting("party-0", "session", PAIR):
        error = await error_of(dealer.read("party-0", "session", PAIR))
        assert error.name == "DEAL_SPENT", error.message
        assert "party-0" in error.message and "session" in error.message
    await dealer.grants("whole", PAIR)
    for party in PAIR:
        error = await error_of(dealer.read(party, "whole", PAIR))
        assert error.name == "DEAL_SPENT", error.message


async def test_corrections_are_collected_once(dealer: Dealer) -> None:
    await dealer.grants("session", PAIR)
    await dealer.collected("party-1", "session", 2)
    for copy in range(COPIES):
        error = await error_of(dealer.collected("party-1", "session", copy))
        assert error.name == "DEAL_ENDED", error.message


async def test_no_correction_leaves_before_all_parties_have_their_commitments(
    dealer: Dealer,
) -> None:
    async with dealer.waiting("party-1", "session", PAIR):
        error = await error_of(dealer.collected("party-1", "session", 0))
        assert error.name == "DEAL_INVALID" and "not all parties" in error.message


async def test_a_session_keeps_its_number_of_copies(dealer: Dealer) -> None:
    async with dealer.waiting("party-0", "session", PAIR):
        more = {"copies": COPIES + 1, "seeds": [new_seed()] * (COPIES + 1)}
        error = await error_of(dealer.read("party-1", "session", PAIR, **more))
        assert error.name == "DEAL_INVALID" and "--deal-copies" in error.message


@pytest.mark.parametrize(
    "seeds",
    [[], [bytes(32)], [bytes(32)] * 4, [bytes(32), bytes(32), bytes(31)]],
    ids=["none", "too few", "too many", "a short one"],
)
async def test_there_must_be_a_seed_for_each_copy(dealer: Dealer, seeds: list[bytes]) -> None:
    error = await error_of(dealer.read("party-0", "session", PAIR, seeds=seeds))
    assert error.name == "DEAL_INVALID" and "seed of 32 bytes" in error.message


async def test_a_party_that_hangs_up_ends_the_session_for_all(dealer: Dealer) -> None:
    """Its peers are told at once, and need not wait for what can't come."""
    async with dealer.waiting("party-0", "session", TRIO):
        reading = asyncio.create_task(error_of(dealer.read("party-1", "session", TRIO)))
        await dealer.asked("session", by=2)
    error = await asyncio.wait_for(reading, SECONDS)
    assert error.name == "DEAL_ENDED" and "party-0" in error.message
    ended = await error_of(dealer.collected("party-2", "session", 0))
    assert ended.name == "DEAL_ENDED", ended.message


async def test_a_party_that_never_asks_is_named(
    dealer: Dealer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aggregator.dealer.servicer._GATHER_SECONDS", SOON)
    error = await error_of(dealer.read("party-0", "session", TRIO))
    assert error.name == "DEADLINE", error.message
    assert "party-1 and party-2" in error.message


async def test_a_party_gets_nothing_of_a_session_it_is_not_in(dealer: Dealer) -> None:
    error = await error_of(dealer.read("party-2", "session", PAIR))
    assert error.name == "NAME_REFUSED", error.message
    # Nor can it put itself into one that was opened without it.
    async with dealer.waiting("party-0", "session", PAIR):
        error = await error_of(dealer.read("party-2", "session", ["party-0", "party-2"]))
        assert error.name == "DEAL_INVALID", error.message


async def test_the_dealer_ends_the_oldest_sessions_before_plans_fill_its_memory(
    dealer: Dealer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No party can make it hold more, however many sessions it opens."""
    servicer = dealer.servicer
    assert isinstance(servicer, DealerServicer)

    async def begin(session: str) -> None:
        first = asyncio.create_task(dealer.read("party-0", session, PAIR, MIXED_PLAN))
        await dealer.asked(session)
        await asyncio.gather(first, dealer.read("party-1", session, PAIR, MIXED_PLAN))

    await begin("first")
    monkeypatch.setattr("aggregator.dealer.servicer.MAX_COMMITMENTS", 3 * servicer._weight)
    for session in ("second", "third", "fourth"):
        await begin(session)
    error = await error_of(dealer.collected("party-1", "first", 0))
    assert error.name == "DEAL_ENDED"
    for session in ("second", "third", "fourth"):
        await dealer.collected("party-1", session, 0)


async def test_long_plans_count_though_nothing_is_dealt_for_them_yet(
    dealer: Dealer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An item takes more memory than a commitment: sessions of one copy, that a single party opens
    and nobody joins, would else fill gigabytes with plans."""
    plan = PreprocessingPlan((Run((SMALL,) * 1_000, 1),))
    monkeypatch.setattr("aggregator.dealer.servicer.MAX_COMMITMENTS", 20 * plan.items)
    one = {"copies": 1, "seeds": [new_seed()]}
    async with contextlib.AsyncExitStack() as stack:
        for number in range(6):
            session = f"session-{number}"
            await stack.enter_async_context(
                dealer.waiting("party-0", session, PAIR, plan=plan, **one)
            )
        servicer = dealer.servicer
        assert isinstance(servicer, DealerServicer)
        assert list(servicer._deals) == ["session-4", "session-5"]


@pytest.mark.parametrize("limit", ["MAX_COMMITMENTS", "MAX_SESSIONS"])
async def test_a_party_that_begins_much_ends_its_own_sessions_and_nobody_elses(
    dealer: Dealer, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    """Any party may ask, of whichever committee: with one word for more than there is room for it
    would end the rounds of all."""
    servicer = dealer.servicer
    assert isinstance(servicer, DealerServicer)
    small = PreprocessingPlan((Run((SMALL,), 1),))
    monkeypatch.setattr("aggregator.dealer.servicer.MAX_COMMITMENTS", 100 * COPIES)
    if limit == "MAX_SESSIONS":
        monkeypatch.setattr("aggregator.dealer.servicer.MAX_SESSIONS", 3)
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(dealer.waiting("party-0", "honest", PAIR, plan=small))
        if limit == "MAX_COMMITMENTS":
            huge = PreprocessingPlan((Run((SMALL,), 95),))
            error = await error_of(dealer.read("party-9", "huge", ["party-9", "x"], plan=huge))
            assert error.name == "DEAL_ENDED" and "too many" in error.message, error.message
        else:
            for number in range(5):
                begun = dealer.waiting(
                    "party-9", f"many-{number}", ["party-9", "party-8"], plan=small
                )
                await stack.enter_async_context(begun)
            assert list(servicer._deals) == ["honest", "many-3", "many-4"]
        # The one who joins finds it as it was.
        assert await dealer.read("party-1", "honest", PAIR, plan=small)


class Millions(Sequence[Any]):
    """As many messages as fit into a request: whoever goes through them does nothing else for a
    minute."""

    def __len__(self) -> int:
        return 8_000_000

    def __getitem__(self, index: Any) -> Any:
        raise AssertionError("it was looked at")


@pytest.mark.parametrize("field", ["plan", "parties", "seeds"])
def test_what_a_request_repeats_is_counted_before_it_is_looked_at(field: str) -> None:
    given: dict[str, Any] = {"plan": codec.to_wire(SMALL_PLAN), "parties": PAIR, "seeds": []}
    request: Any = types.SimpleNamespace(session_id="session", copies=COPIES, **given)
    setattr(request, field, Millions())
    with refused(ErrorKind.DEAL_INVALID):
        DealerServicer()._admit(request, "party-0")


OTHER_PARTIES = {
    "one more": TRIO,
    "another order": PAIR[::-1],
    "another party": ["party-2", "party-1"],
}


@pytest.mark.parametrize("case", OTHER_PARTIES)
async def test_a_session_keeps_its_parties(dealer: Dealer, case: str) -> None:
    async with dealer.dealt("party-0", "session", PAIR) as call:
        reading = asyncio.create_task(call.read())
        await dealer.asked("session")
        error = await error_of(dealer.read("party-1", "session", OTHER_PARTIES[case]))
        assert error.name == "DEAL_INVALID" and "other parties" in error.message
        # The refusal has spent nothing.
        await dealer.read("party-1", "session", PAIR)
        assert (await reading).HasField("grant")


OTHER_PLANS = {
    "fewer times": PreprocessingPlan((Run(MIXED_PLAN.runs[0].items, 1), MIXED_PLAN.runs[1])),
    "less": PreprocessingPlan(MIXED_PLAN.runs[:1]),
    "nothing": PreprocessingPlan(()),
    "another order": PreprocessingPlan(MIXED_PLAN.runs[::-1]),
    "another size": PreprocessingPlan(
        (Run((SMALL, LEVEL), 2), Run((Triples(TripleKind.BIT, 8),), 1))
    ),
    "another kind": PreprocessingPlan(
        (Run((SMALL, LEVEL), 2), Run((Triples(TripleKind.PRODUCT, 7),), 1))
    ),
}


@pytest.mark.parametrize("case", OTHER_PLANS)
async def test_a_session_keeps_its_plan(dealer: Dealer, case: str) -> None:
    """Parts that were expanded by different plans would not fit, and masks might meet twice."""
    assert OTHER_PLANS[case].digest != MIXED_PLAN.digest
    async with dealer.waiting("party-0", "session", PAIR, MIXED_PLAN):
        error = await error_of(dealer.read("party-1", "session", PAIR, OTHER_PLANS[case]))
        assert error.name == "DEAL_INVALID" and "another plan" in error.message


@pytest.mark.parametrize("parties", [PAIR, TRIO], ids=["two parties", "three parties"])
async def test_only_the_last_party_gets_corrections(dealer: Dealer, parties: list[str]) -> None:
    want = sum(item.correction_bytes for item in MIXED_PLAN)
    heard = await asyncio.gather(
        *(dealer.read(party, "session", parties, MIXED_PLAN) for party in parties)
    )
    assert heard[:-1] == heard[1:], "all parties are told the same"
    assert heard[0][0].HasField("grant")
    sizes = [len(response.commitments.digests) for response in heard[0][1:]]
    assert sizes == [COPIES * DIGEST_BYTES] * 5
    for party in parties[:-1]:
        error = await error_of(dealer.collected(party, "session", 0))
        assert error.name == "NAME_REFUSED", error.message
    error = await error_of(dealer.collected(parties[-1], "session", COPIES))
    assert error.name == "DEAL_INVALID", error.message
    error = await error_of(dealer.collected(parties[-1], "another", 0))
    assert error.name == "DEAL_ENDED", error.message
    assert len(await dealer.collected(parties[-1], "session", 1)) == want


# What the dealer keeps


def reachable(start: Any) -> Iterator[Any]:
    """All objects that are held, directly or not, but for modules, types and functions."""
    seen: set[int] = set()
    left = [start]
    while left:
        one = left.pop()
        if id(one) in seen or isinstance(one, types.ModuleType | type | types.FunctionType):
            continue
        seen.add(id(one))
        yield one
        left += gc.get_referents(one)


def keeps(servicer: DealerServicer, secrets: Collection[bytes]) -> bool:
    """Whether the dealer still has one of these."""
    wanted = set(secrets)
    return any(isinstance(one, bytes) and one in wanted for one in reachable(servicer))


def secrets_of(grants: Sequence[Grant]) -> set[bytes]:
    """All seeds of a session, and all that they expand from."""
    transcript = grants[0].transcript()
    found = set()
    for grant in grants:
        for copy, seed in enumerate(grant.seeds):
            found |= {seed, stream_key(seed, transcript, grant.rank, copy)}
    return found


async def test_the_dealer_forgets_a_session_with_its_end(certificates: Certificates) -> None:
    servicer = DealerServicer()
    async with serving(certificates, servicer) as dealer:
        grants = await dealer.grants("session", PAIR)
        secrets = secrets_of(grants)
        assert keeps(servicer, secrets), "until the corrections are collected"
        await dealer.collected("party-1", "session", 0)
        assert not keeps(servicer, secrets)
        assert not servicer._deals and servicer._weight == 0


async def test_the_dealer_forgets_a_session_that_nobody_comes_for(
    certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aggregator.dealer.servicer._CHECK_SECONDS", SOON)
    servicer = DealerServicer()
    async with serving(certificates, servicer) as dealer:
        secrets = secrets_of(await dealer.grants("session", PAIR))

        async def forgotten() -> bool:
            return not keeps(servicer, secrets)

        await until(forgotten, "the session is forgotten")
        assert not servicer._deals and servicer._weight == 0


async def test_the_dealer_forgets_a_session_that_a_party_leaves(certificates: Certificates) -> None:
    servicer = DealerServicer()
    async with serving(certificates, servicer) as dealer:
        seeds = [new_seed() for _ in range(COPIES)]
        async with dealer.waiting("party-0", "session", PAIR, seeds=seeds):

            async def taken_in() -> bool:
                return keeps(servicer, seeds)

            await until(taken_in, "the seeds have come")

        async def forgotten() -> bool:
            return not keeps(servicer, seeds)

        await until(forgotten, "the session is forgotten")


async def test_the_dealer_keeps_nothing_of_a_session_that_has_ended(dealer: Dealer) -> None:
    """Plans can be long, and of sessions that have ended there can be any number: thousands within
    the time after which one that nobody collects would expire."""
    servicer = dealer.servicer
    assert isinstance(servicer, DealerServicer)
    await dealer.grants("session", PAIR)
    deal = servicer._deals["session"]
    kept: list[weakref.ref[Any]] = [weakref.ref(deal), weakref.ref(deal.session.plan)]
    del deal
    await dealer.collected("party-1", "session", 0)

    async def forgotten() -> bool:
        gc.collect()
        return all(one() is None for one in kept)

    await until(forgotten, "the session and its plan are forgotten")


async def test_plans_of_collections_that_parties_do_not_read_take_bounded_memory(
    dealer: Dealer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A collection lasts for as long as its party likes, and there could be any number: those of
    whoever has most are ended, and nobody else's."""
    servicer = dealer.servicer
    assert isinstance(servicer, DealerServicer)
    # More than is ever sent to who does not read: windows of 16 MiB were seen.
    plan = PreprocessingPlan((Run((Triples(TripleKind.PRODUCT, 1 << 19),) * 12, 1),))
    monkeypatch.setattr("aggregator.dealer.servicer.MAX_SESSIONS", 3)
    async with contextlib.AsyncExitStack() as stack:

        async def unread(session: str, pair: Sequence[str]) -> tuple[Any, Any]:
            first = asyncio.create_task(dealer.read(pair[0], session, pair, plan))
            await dealer.asked(session)
            await asyncio.gather(first, dealer.read(pair[1], session, pair, plan))
            kept = weakref.ref(servicer._deals[session].session.plan)
            channel = await stack.enter_async_context(dealer.channel(pair[1]))
            request = dealer_pb2.CollectRequest(session_id=session, copy=0)
            call = dealer_pb2_grpc.DealerServiceStub(channel).Collect(request, timeout=SECONDS)
            assert (await anext(aiter(call))).data
            return call, kept

        honest, plan_in_use = await unread("honest", PAIR)
        others = [await unread(f"other-{number}", ["party-8", "party-9"]) for number in range(4)]

        async def forgotten() -> bool:
            gc.collect()
            return [kept() is None for _, kept in others] == [True, True, False, False]

        await until(forgotten, "the plans of the oldest are forgotten")
        error = await error_of(others[0][0])
        assert error.name == "DEAL_ENDED" and "too many" in error.message, error.message
        assert plan_in_use() is not None
        rest = [response.data async for response in honest]
        corrections = sum(item.correction_bytes for item in plan)
        assert sum(map(len, rest)) == corrections - tensors.CHUNK_BYTES


async def test_a_collection_may_take_longer_than_it_is_waited_for(
    dealer: Dealer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A party reads on when it has room."""
    monkeypatch.setattr("aggregator.dealer.servicer._CHECK_SECONDS", SOON)
    plan = PreprocessingPlan((Run((Triples(TripleKind.PRODUCT, 1 << 19),), 3),))
    await dealer.grants("session", PAIR, plan)
    async with dealer.channel("party-1") as channel:
        request = dealer_pb2.CollectRequest(session_id="session", copy=0)
        call = dealer_pb2_grpc.DealerServiceStub(channel).Collect(request, timeout=SECONDS)
        first = await anext(aiter(call))
        await asyncio.sleep(2 * SOON)
        rest = [response.data async for response in call]
    corrections = sum(item.correction_bytes for item in plan)
    assert len(first.data) + sum(map(len, rest)) == corrections


class Counted(bytes):
    """Bytes of which one knows how many there are."""

    alive = 0

    def __new__(cls, data: bytes) -> Counted:
        cls.alive += 1
        return super().__new__(cls, data)

    def __del__(self) -> None:
        Counted.alive -= 1


async def test_corrections_that_parties_do_not_read_take_bounded_memory(
    dealer: Dealer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that are let go are made again, and are the same, when their party goes on."""
    item = Triples(TripleKind.PRODUCT, 1 << 19)
    plan, sessions, room = PreprocessingPlan((Run((item,), 3),)), 5, 3
    correct = Triples.correct
    monkeypatch.setattr(Triples, "correct", lambda *given: Counted(correct(*given)))
    monkeypatch.setattr("aggregator.dealer.servicer.MAX_UNSENT_BYTES", room * item.correction_bytes)
    async with contextlib.AsyncExitStack() as stack:
        materials = [
            await stack.enter_async_context(
                dealer.preprocessing(f"session-{number}", PreprocessingPool(item.part_bytes), plan)
            )
            for number in range(sessions)
        ]
        for preprocessing in materials:
            await ready(preprocessing, 1)
        # The next of each is on its way and the one after that is made; nobody has room for them.
        await asyncio.sleep(SOON)
        assert 0 < Counted.alive <= room
        for _ in plan:
            for preprocessing in materials:
                await taken(preprocessing, item)

    async def gone() -> bool:
        return Counted.alive == 0

    await until(gone, "nothing is held for calls that have ended")


async def test_no_more_is_made_at_once_for_parties_that_ask_and_hang_up(
    dealer: Dealer, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = [], threading.Event()
    correct = Triples.correct

    def slowly(item: Triples, seeds: Sequence[bytes], index: int) -> bytes:
        begun.append(index)
        go_on.wait(SECONDS)
        return correct(item, seeds, index)

    monkeypatch.setattr(Triples, "correct", slowly)
    try:
        for number in range(4):
            asked = [dealer.dealt(name, f"session-{number}", PAIR) for name in PAIR]
            async with asked[0] as first, asked[1] as second:
                await asyncio.gather(first.read(), second.read())
                await asyncio.sleep(SOON)
        assert len(begun) == MADE_AT_ONCE
    finally:
        go_on.set()
    # The places are given back.
    await dealer.grants("after", PAIR)


async def test_few_of_the_largest_items_are_made_at_once(
    dealer: Dealer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many processors there are: each takes a gigabyte."""
    changed = threading.Condition()
    at_once = peak = 0
    correct = Triples.correct

    def counted(item: Triples, seeds: Sequence[bytes], index: int) -> bytes:
        nonlocal at_once, peak
        with changed:
            at_once += 1
            peak = max(peak, at_once)
            changed.notify_all()
            changed.wait_for(lambda: peak > 1, timeout=0.1)
            at_once -= 1
        return correct(item, seeds, index)

    monkeypatch.setattr(Triples, "correct", counted)
    monkeypatch.setattr("aggregator.dealer.servicer.LARGE_BYTES", 0)
    monkeypatch.setattr(dealer.servicer._workshop, "_large", asyncio.Semaphore(1))  # type: ignore[attr-defined]
    await dealer.grants("session", PAIR)
    assert peak == 1
    monkeypatch.setattr("aggregator.dealer.servicer.LARGE_BYTES", 1 << 26)
    await dealer.grants("another", PAIR)
    assert peak == 2, "others are made side by side"


async def test_what_nobody_waits_for_any_more_is_not_made_in_every_copy(
    dealer: Dealer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the largest items each copy takes seconds, in which others wait for a place."""
    begun, go_on = threading.Event(), threading.Event()
    made = []
    correct = Triples.correct

    def slowly(item: Triples, seeds: Sequence[bytes], index: int) -> bytes:
        begun.set()
        go_on.wait(SECONDS)
        made.append(index)
        return correct(item, seeds, index)

    monkeypatch.setattr(Triples, "correct", slowly)
    monkeypatch.setattr("aggregator.dealer.servicer._AT_A_STRETCH", 1)
    monkeypatch.setattr(dealer.servicer._workshop, "_places", asyncio.Semaphore(1))  # type: ignore[attr-defined]
    asked = [dealer.dealt(name, "session", PAIR) for name in PAIR]
    async with asked[0] as first, asked[1] as second:
        await asyncio.gather(first.read(), second.read())
        assert await asyncio.to_thread(begun.wait, SECONDS)
    servicer = dealer.servicer
    assert isinstance(servicer, DealerServicer)

    async def ended() -> bool:
        return not servicer._deals

    await until(ended, "the session ends with its calls")
    go_on.set()
    await dealer.grants("after", PAIR, PreprocessingPlan((Run((LEVEL,), 1),)))
    assert len(made) == 1 < COPIES


def _level(**changes: Any) -> dealer_pb2.DealItem:
    given = {"vectors": 8, "group": 4, "bits": 16, "label_bits": 2, "last": True, **changes}
    return dealer_pb2.DealItem(level=dealer_pb2.LevelItem(**given))


def _triples(kind: Any, count: int) -> dealer_pb2.DealItem:
    return dealer_pb2.DealItem(triples=dealer_pb2.TripleItem(kind=kind, count=count))


def _rotation(rows: int, classes: int) -> dealer_pb2.DealItem:
    return dealer_pb2.DealItem(rotation=dealer_pb2.RotationItem(rows=rows, classes=classes))


def _run(*items: dealer_pb2.DealItem, times: int = 1) -> dealer_pb2.DealRun:
    return dealer_pb2.DealRun(items=items, times=times)


BAD_PLANS: dict[str, list[dealer_pb2.DealRun]] = {
    "an item of no kind": [_run(dealer_pb2.DealItem())],
    "triples of no kind": [_run(_triples(0, 1))],
    "triples of an unknown kind": [_run(_triples(99, 1))],
    "no triples": [_run(_triples(1, 0))],
    "too many triples": [_run(_triples(1, MAX_TRIPLES + 1))],
    "more triples than memory": [_run(_triples(1, 2**32 - 1))],
    "too many items": [_run(*[_triples(1, 1)] * (codec.MAX_ITEMS + 1))],
    "too many items in all": [_run(*[_triples(1, 1)] * (codec.MAX_ITEMS // 2 + 1))] * 2,
    "too many items by their times": [_run(*[_triples(1, 1)] * 3, times=codec.MAX_TIMES)],
    "no times": [_run(_triples(1, 1), times=0)],
    "too many times": [_run(_triples(1, 1), times=codec.MAX_TIMES + 1)],
    "no vectors": [_run(_level(vectors=0))],
    "too many vectors": [_run(_level(vectors=MAX_COMPARISONS // 6 + 1))],
    "more vectors than memory": [_run(_level(vectors=2**32 - 1, group=2))],
    "no group": [_run(_level(group=0))],
    "a group of one": [_run(_level(group=1))],
    "too large a group": [_run(_level(vectors=1, group=MAX_GROUP + 1))],
    "too large a group for all": [_run(_level(vectors=3, group=MAX_GROUP))],
    "too small a ring": [_run(_level(bits=MIN_BITS - 1))],
    "too large a ring": [_run(_level(bits=MAX_BITS + 1))],
    "no label bits": [_run(_level(label_bits=0))],
    "too many label bits": [_run(_level(label_bits=ring.WORD_BITS + 1))],
    "no rows": [_run(_rotation(0, 10))],
    "too many rows": [_run(_rotation(MAX_ROTATED // 16 + 1, 10))],
    "one class": [_run(_rotation(1, 1))],
    "no class": [_run(_rotation(1, 0))],
    "too many classes": [_run(_rotation(1, MAX_CLASSES + 1))],
    "a bad item after a good one": [_run(_level(), _triples(1, 0))],
    "a bad run after a good one": [_run(_level()), _run(_level(), times=0)],
}


@pytest.mark.parametrize("case", BAD_PLANS)
async def test_the_dealer_refuses_plans_it_could_not_make(dealer: Dealer, case: str) -> None:
    async with dealer.channel("party-0") as channel:
        stub = dealer_pb2_grpc.DealerServiceStub(channel)
        request = dealer_pb2.DealRequest(
            session_id="s",
            parties=PAIR,
            plan=BAD_PLANS[case],
            copies=COPIES,
            seeds=[new_seed() for _ in range(COPIES)],
        )
        error = await error_of(stub.Deal(request, timeout=SECONDS))
    assert error.name == "DEAL_INVALID", error.message
    # Nothing was kept of it: the session is still free.
    await dealer.grants("s", PAIR)


@pytest.mark.parametrize(
    ("session", "parties"),
    [
        ("", PAIR),
        ("No Name", PAIR),
        ("session", []),
        ("session", ["party-0"]),
        ("session", ["party-0", "party-0"]),
        ("session", [f"party-{rank}" for rank in range(MAX_PARTIES + 1)]),
    ],
)
async def test_the_dealer_refuses_malformed_requests(
    dealer: Dealer, session: str, parties: list[str]
) -> None:
    error = await error_of(dealer.read("party-0", session, parties))
    assert error.name == "DEAL_INVALID", error.message


# Plans on the wire


LARGEST: dict[str, LevelTables | Triples | Rotation] = {
    "triples": Triples(TripleKind.CONJUNCTION, MAX_TRIPLES),
    "one pair": LevelTables(MAX_COMPARISONS, 2, MAX_BITS, ring.WORD_BITS, True, False),
    "one vector": LevelTables(1, MAX_GROUP, MIN_BITS, 1, False, True),
    "a rotation": Rotation(MAX_ROTATED // 1_024, MAX_CLASSES),
}


@pytest.mark.parametrize("case", LARGEST)
def test_items_at_the_edge_of_what_is_allowed_are_allowed(case: str) -> None:
    plan = PreprocessingPlan((Run((LARGEST[case],), codec.MAX_TIMES),))
    assert codec.from_wire(codec.to_wire(plan)) == plan


def test_as_many_items_as_are_allowed_are_allowed() -> None:
    plan = PreprocessingPlan((Run((SMALL,) * codec.MAX_ITEMS, 1),))
    assert codec.from_wire(codec.to_wire(plan)) == plan


def test_a_bad_plan_is_refused_wherever_it_is_read() -> None:
    for case, runs in BAD_PLANS.items():
        with pytest.raises(VoteError) as caught:
            codec.from_wire(runs)
        assert caught.value.kind is ErrorKind.DEAL_INVALID, case


levels = st.builds(
    LevelTables,
    vectors=st.integers(1, 100),
    group=st.integers(2, 30),
    bits=st.integers(MIN_BITS, MAX_BITS),
    label_bits=st.integers(1, ring.WORD_BITS),
    labelled=st.booleans(),
    last=st.booleans(),
)
triples = st.builds(Triples, kind=st.sampled_from(TripleKind), count=st.integers(1, MAX_TRIPLES))
rotations = st.builds(Rotation, rows=st.integers(1, 100), classes=st.integers(2, MAX_CLASSES))
runs = st.builds(
    Run,
    items=st.lists(levels | triples | rotations, min_size=1, max_size=8).map(tuple),
    times=st.integers(1, codec.MAX_REPEATED_ITEMS // 40),
)


@given(st.lists(runs, max_size=5))
def test_plans_come_through_the_wire_as_they_are(given_runs: list[Run]) -> None:
    plan = PreprocessingPlan(tuple(given_runs))
    sent = [run.SerializeToString() for run in codec.to_wire(plan)]
    assert codec.from_wire(list(map(dealer_pb2.DealRun.FromString, sent))) == plan


SHAPES = {
    "many rows of few classes": (MAX_QUERIES * MAX_CLASSES, 2),
    "many rows of ten classes": (MAX_QUERIES, 10),
    "many rows of many classes": (MAX_QUERIES, MAX_CLASSES),
    "one row": (1, 2),
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("round_trip", [0.0, 0.1])
@pytest.mark.parametrize("bits", [MIN_BITS, MAX_BITS])
def test_the_dealer_takes_the_table_engines_plan_for_every_round_that_can_be_asked_for(
    shape: str, round_trip: float, bits: int
) -> None:
    rows, classes = SHAPES[shape]
    groups = choose_groups(rows, classes, MAX_PARTIES, round_trip)
    plan = session_plan(TABLE.make(bits, groups), rows, classes, MAX_PARTIES)
    assert codec.from_wire(codec.to_wire(plan)) == plan


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", [name for name in ENGINES if name is not TABLE])
def test_the_dealer_takes_crypten_plans_for_every_round_that_can_be_asked_for(
    shape: str, name: EngineKind
) -> None:
    rows, classes = SHAPES[shape]
    plan = session_plan(name.make(64), rows, classes, 2)
    assert codec.from_wire(codec.to_wire(plan)) == plan


# Parts that are dealt over the wire fit together


ENGINES_DEALT_TO = [
    TABLE.make(14),
    TABLE.make(20, (3, 2)),
    LOG_REDUCTION.make(64),
]


@pytest.mark.parametrize("engine", ENGINES_DEALT_TO, ids=lambda engine: engine.name)
@pytest.mark.parametrize("parties", [PAIR, TRIO], ids=["two parties", "three parties"])
async def test_parties_find_the_winners_with_what_they_are_dealt(
    dealer: Dealer, engine: Engine, parties: list[str]
) -> None:
    rows, classes = 30, 6
    rng = np.random.default_rng(11)
    totals = rng.integers(-4, 5, (rows, classes))
    shares = rng.integers(0, 2**64, (len(parties), rows * classes), dtype=np.uint64)
    shares[0] = totals.reshape(-1).view(np.uint64) - np.sum(shares[1:], axis=0)
    plan = session_plan(engine, rows, classes, len(parties))
    pool = PreprocessingPool(1 << 26)
    async with contextlib.AsyncExitStack() as stack:
        grants = await dealer.grants("session", parties, plan, copies=1)
        materials = []
        for name, grant in zip(parties, grants, strict=True):
            channel = await stack.enter_async_context(dealer.channel(name))
            last = name == parties[-1]
            preprocessing = DealtPreprocessing(
                channel, first_copy(grant), plan, last, pool, SECONDS
            )
            stack.callback(preprocessing.close)
            materials.append(preprocessing)

        def party(channel: Channel, _: Preprocessing) -> Words:
            return engine.run(shares[channel.rank], classes, channel, materials[channel.rank])

        found = await asyncio.to_thread(run_committee, len(parties), party)
        await holds(pool, 0)
    labels = np.sum(found, axis=0) & np.uint64((1 << label_bits(classes)) - 1)
    assert labels.tolist() == totals.argmax(axis=1).tolist()


@pytest.mark.parametrize("rank", [0, 1])
async def test_an_item_that_is_not_the_planned_one_is_not_handed_out(
    dealer: Dealer, rank: int
) -> None:
    """An engine that left its plan would unmask with what its peers hold other parts of."""
    pool = PreprocessingPool(1 << 26)
    async with dealer.preprocessing("session", pool, MIXED_PLAN, rank=rank) as preprocessing:
        assert (await taken(preprocessing, SMALL)).a.size == SMALL.count
        with refused(ErrorKind.DEAL_INVALID, "left its plan"):
            await taken(preprocessing, SMALL)
        # It does not find its way back either: what it left out is gone.
        with refused(ErrorKind.DEAL_INVALID, "left its plan"):
            await taken(preprocessing, LEVEL)


async def test_nothing_is_handed_out_after_the_plans_end(dealer: Dealer) -> None:
    async with dealer.preprocessing("session", PreprocessingPool(1 << 26)) as preprocessing:
        for item in SMALL_PLAN:
            await taken(preprocessing, item)
        with refused(ErrorKind.DEAL_INVALID, "left its plan"):
            await taken(preprocessing, SMALL)


# Dealing ahead


@pytest.mark.parametrize("rank", [0, 1])
async def test_preprocessing_comes_without_being_asked_for(dealer: Dealer, rank: int) -> None:
    pool = PreprocessingPool(1 << 26)
    async with dealer.preprocessing("session", pool, MIXED_PLAN, rank=rank) as preprocessing:
        await holds(pool, part_bytes(MIXED_PLAN))
        await asyncio.wait_for(preprocessing.ready(), SECONDS)
        left = part_bytes(MIXED_PLAN)
        for item in MIXED_PLAN:
            await taken(preprocessing, item)
            left -= item.part_bytes
            await holds(pool, left)
    assert pool.held == 0


@pytest.mark.parametrize("rank", [0, 1])
async def test_no_more_waits_than_the_pool_has_room_for(dealer: Dealer, rank: int) -> None:
    room = 3 * SMALL.part_bytes + SMALL.part_bytes // 2
    pool = WatchedPool(room)
    async with dealer.preprocessing("session", pool, rank=rank) as preprocessing:
        await ready(preprocessing, 3)
        await settled()
        assert pool.held == 3 * SMALL.part_bytes
        assert preprocessing._ready.qsize() == 3
        # As one is used, one more comes.
        for left in range(len(list(SMALL_PLAN)), 0, -1):
            await ready(preprocessing, min(3, left))
            await taken(preprocessing, SMALL)
    assert pool.peak == 3 * SMALL.part_bytes
    assert pool.held == 0


async def test_the_pool_is_shared_by_all_rounds(dealer: Dealer) -> None:
    pool = WatchedPool(5 * SMALL.part_bytes)
    async with (
        dealer.preprocessing("first", pool) as first,
        dealer.preprocessing("second", pool) as second,
    ):
        await holds(pool, 5 * SMALL.part_bytes)
        await settled()
        assert first._held + second._held == pool.held == pool.peak == 5 * SMALL.part_bytes
        # Room that the first gives back is the second's too.
        first.close()
        await ready(second, 5)
        assert pool.peak == 5 * SMALL.part_bytes
    assert pool.held == 0


async def test_rounds_do_not_wait_for_each_others_room(dealer: Dealer) -> None:
    """The first holds all room and is in no hurry; the second still gets on, and then the first."""
    pool = WatchedPool(4 * SMALL.part_bytes)
    async with dealer.preprocessing("first", pool) as first:
        await ready(first, 4)
        async with dealer.preprocessing("second", pool) as second:
            await settled()
            assert second._held == 0
            for item in SMALL_PLAN:
                await taken(second, item)
            assert first._ready.qsize() == 4
        for item in SMALL_PLAN:
            await taken(first, item)
    # One item at a time goes past the limit, and one more that was asked for as it came.
    assert pool.peak <= 6 * SMALL.part_bytes
    assert pool.held == 0


async def test_two_rounds_at_once_get_through_a_pool_without_room(dealer: Dealer) -> None:
    """Two parties take two rounds in turns; whichever waits, waits for the dealer alone."""
    pool = WatchedPool(0)
    async with contextlib.AsyncExitStack() as stack:
        rounds = [
            await stack.enter_async_context(
                dealer.preprocessing(f"{session}-{rank}", pool, rank=rank)
            )
            for session in ("first", "second")
            for rank in (0, 1)
        ]
        await settled()
        assert pool.held == 0, "there is no room to deal ahead"

        async def use(preprocessing: DealtPreprocessing) -> None:
            for item in SMALL_PLAN:
                await taken(preprocessing, item)

        await asyncio.gather(*map(use, rounds))
        await holds(pool, 0)
    assert pool.peak <= 2 * len(rounds) * SMALL.part_bytes


async def test_an_item_larger_than_the_pool_still_comes(dealer: Dealer) -> None:
    large = Triples(TripleKind.PRODUCT, 200_000)
    plan = PreprocessingPlan((Run((SMALL, large, SMALL), 1),))
    pool = WatchedPool(2 * SMALL.part_bytes)
    async with dealer.preprocessing("session", pool, plan) as preprocessing:
        for item in plan:
            assert isinstance(item, Triples)
            assert (await taken(preprocessing, item)).c.size == item.count
    assert pool.held == 0


# Dealers that fail


Sent = dealer_pb2.DealResponse | dealer_pb2.CollectResponse


class FaultyDealer(dealer_pb2_grpc.DealerServiceServicer):
    """Sends what it is told to, then waits until it is hung up on, or ends."""

    def __init__(self, *responses: Sent, ends: bool = False) -> None:
        self._responses = responses
        self._ends = ends
        self.left = asyncio.Event()

    @rpc.allowed(Role.PARTY)
    async def Deal(
        self, request: dealer_pb2.DealRequest, context: Any
    ) -> AsyncIterator[dealer_pb2.DealResponse]:
        async for response in self._send(dealer_pb2.DealResponse):
            yield response

    @rpc.allowed(Role.PARTY)
    async def Collect(
        self, request: dealer_pb2.CollectRequest, context: Any
    ) -> AsyncIterator[dealer_pb2.CollectResponse]:
        async for response in self._send(dealer_pb2.CollectResponse):
            yield response

    async def _send(self, kind: type[Sent]) -> AsyncIterator[Any]:
        responses = [response for response in self._responses if isinstance(response, kind)]
        try:
            for response in responses:
                yield response
            if not self._ends and tuple(responses) != GRANT:
                await asyncio.Event().wait()
        finally:
            self.left.set()


def granted(*hashes: bytes) -> dealer_pb2.DealResponse:
    return dealer_pb2.DealResponse(grant=dealer_pb2.DealGrant(seed_hashes=hashes))


def committed(size: int, index: int = 0) -> dealer_pb2.DealResponse:
    digests = commitment(bytes(size), KEY, index)
    said = dealer_pb2.DealCommitments(digests=digests, item=index)
    return dealer_pb2.DealResponse(commitments=said)


GRANT = (
    granted(bytes(32), bytes(32)),
    *(committed(SMALL.correction_bytes, index) for index in range(8)),
)
"""A grant of corrections that are zero, for the small plan."""


def correction(size: int, offset: int = 0) -> dealer_pb2.CollectResponse:
    return dealer_pb2.CollectResponse(data=bytes(size), offset=offset)


async def test_a_dealer_that_never_answers_is_late(certificates: Certificates) -> None:
    pool = PreprocessingPool(1 << 20)
    async with serving(certificates, FaultyDealer()) as dealer:
        with refused(ErrorKind.PREPROCESSING_LATE, "within 0.3 s", "exchange_seconds"):
            async with dealer.preprocessing("session", pool, timeout=SOON):
                pass
    assert pool.held == 0


@pytest.mark.parametrize(
    "sent",
    [[], [correction(100)], [correction(SMALL.correction_bytes - 1)]],
    ids=["nothing", "some of it", "all but a byte"],
)
async def test_a_dealer_that_stalls_is_late(
    certificates: Certificates, sent: list[dealer_pb2.CollectResponse]
) -> None:
    pool = PreprocessingPool(1 << 20)
    async with (
        serving(certificates, FaultyDealer(*GRANT, *sent)) as dealer,
        dealer.preprocessing("session", pool, timeout=SOON) as preprocessing,
    ):
        with refused(ErrorKind.PREPROCESSING_LATE, "within 0.3 s"):
            await taken(preprocessing, SMALL)
    assert pool.held == 0


async def test_what_a_dealer_sent_before_it_stalled_is_still_used(
    certificates: Certificates,
) -> None:
    size = SMALL.correction_bytes
    sent: list[Sent] = [*GRANT, correction(size), correction(size, size)]
    async with (
        serving(certificates, FaultyDealer(*sent)) as dealer,
        dealer.preprocessing("session", PreprocessingPool(1 << 20), timeout=SOON) as preprocessing,
    ):
        for _ in range(2):
            assert (await taken(preprocessing, SMALL)).c.size == SMALL.count
        with refused(ErrorKind.PREPROCESSING_LATE):
            await taken(preprocessing, SMALL)


async def test_parties_that_need_no_correction_need_no_dealer_after_the_grant(
    certificates: Certificates,
) -> None:
    async with serving(certificates, FaultyDealer(*GRANT)) as dealer:
        pool = PreprocessingPool(1 << 26)
        async with dealer.preprocessing("session", pool, rank=0, timeout=SOON) as preprocessing:
            for item in SMALL_PLAN:
                await taken(preprocessing, item)


async def test_a_dealer_that_ends_too_early_is_named(certificates: Certificates) -> None:
    size = SMALL.correction_bytes
    sent: list[Sent] = [*GRANT, correction(size), correction(8, size)]
    async with (
        serving(certificates, FaultyDealer(*sent, ends=True)) as dealer,
        dealer.preprocessing("session", PreprocessingPool(1 << 20)) as preprocessing,
    ):
        await taken(preprocessing, SMALL)
        with refused(ErrorKind.PARTY_UNREACHABLE, "The dealer", "ended the stream"):
            await taken(preprocessing, SMALL)


@pytest.mark.parametrize(
    "first",
    [
        committed(8),
        dealer_pb2.DealResponse(),
        granted(bytes(32), bytes(31)),
        granted(bytes(32)),
        granted(bytes(64), bytes(64)),
    ],
    ids=["a commitment", "nothing", "a short hash", "too few parties", "too many copies"],
)
async def test_a_dealer_that_grants_nothing_is_refused(
    certificates: Certificates, first: dealer_pb2.DealResponse
) -> None:
    servicer = FaultyDealer(first)
    async with serving(certificates, servicer) as dealer:
        with refused(ErrorKind.ANSWER_MALFORMED, "The dealer", "grants nothing"):
            async with dealer.preprocessing("session", PreprocessingPool(1 << 20)):
                pass
        await asyncio.wait_for(servicer.left.wait(), SECONDS)


async def test_a_dealer_that_says_more_than_was_asked_for_is_refused(
    certificates: Certificates,
) -> None:
    async with serving(certificates, FaultyDealer(*GRANT, GRANT[-1])) as dealer:
        with refused(ErrorKind.ANSWER_MALFORMED, "The dealer", "more than was asked for"):
            async with dealer.preprocessing("session", PreprocessingPool(1 << 20)):
                pass


async def test_a_dealer_that_commits_to_nothing_is_refused(certificates: Certificates) -> None:
    async with serving(
        certificates, FaultyDealer(*GRANT[:3], granted(bytes(32), bytes(32)))
    ) as dealer:
        with refused(ErrorKind.ANSWER_MALFORMED, "The dealer", "commits to nothing"):
            async with dealer.preprocessing("session", PreprocessingPool(1 << 20)):
                pass


async def test_a_correction_that_was_not_committed_to_is_not_used(
    certificates: Certificates,
) -> None:
    """The lot was drawn by what the dealer said before: it can't say something else after."""
    size = SMALL.correction_bytes
    wrong = dealer_pb2.CollectResponse(data=bytes(size - 1) + b"\1", offset=size)
    sent = (correction(SMALL.correction_bytes), wrong)
    async with (
        serving(certificates, FaultyDealer(*GRANT, *sent)) as dealer,
        dealer.preprocessing("session", PreprocessingPool(1 << 20)) as preprocessing,
    ):
        await taken(preprocessing, SMALL)
        with refused(ErrorKind.DEALER_CAUGHT, "item 1 is not what it committed to"):
            await taken(preprocessing, SMALL)


@pytest.mark.parametrize(
    ("size", "offset"),
    [(8, 0), (8, 8), (8, SMALL.correction_bytes + 1), (0, SMALL.correction_bytes)],
    ids=["twice", "backwards", "with a gap", "empty"],
)
async def test_corrections_that_come_twice_or_out_of_order_or_empty_blame_nobody(
    certificates: Certificates, size: int, offset: int
) -> None:
    sent = (correction(SMALL.correction_bytes), correction(size, offset))
    async with (
        serving(certificates, FaultyDealer(*GRANT, *sent)) as dealer,
        dealer.preprocessing("session", PreprocessingPool(1 << 20)) as preprocessing,
    ):
        await taken(preprocessing, SMALL)
        with refused(ErrorKind.ANSWER_MALFORMED, "The dealer", "gaps"):
            await taken(preprocessing, SMALL)


async def test_no_piece_of_corrections_is_more_than_the_pool_has_room_for(
    certificates: Certificates,
) -> None:
    """Else 16 MiB of what comes later could wait in each round."""
    sent = (correction(SMALL.correction_bytes), correction(1 << 20, SMALL.correction_bytes))
    async with (
        serving(certificates, FaultyDealer(*GRANT, *sent)) as dealer,
        dealer.preprocessing("session", PreprocessingPool(1 << 20)) as preprocessing,
    ):
        await taken(preprocessing, SMALL)
        with refused(ErrorKind.ANSWER_MALFORMED, "The dealer", "two items"):
            await taken(preprocessing, SMALL)


async def test_an_error_that_waits_to_be_taken_keeps_nothing_of_what_the_dealer_sent(
    certificates: Certificates,
) -> None:
    async with (
        serving(certificates, FaultyDealer(*GRANT, correction(1 << 20, 1))) as dealer,
        dealer.preprocessing("session", PreprocessingPool(1 << 20)) as preprocessing,
    ):
        with pytest.raises(VoteError) as caught:
            await taken(preprocessing, SMALL)
    frames = [frame for frame, _ in traceback.walk_tb(caught.value.__traceback__)]
    (reading,) = [frame for frame in frames if frame.f_code.co_name == "next"]
    assert not reading.f_locals


async def test_a_dealer_that_dies_is_named(certificates: Certificates) -> None:
    """Its connection breaks in the middle of the stream: nobody waits for what will not come."""
    size = SMALL.correction_bytes
    sent: list[Sent] = [*GRANT, correction(size), correction(8, size)]
    pool = PreprocessingPool(1 << 20)
    async with serving(certificates, FaultyDealer(*sent)) as dealer:
        (port,) = free_ports(1)
        address = f"127.0.0.1:{port}"
        async with contextlib.AsyncExitStack() as stack:
            line = contextlib.AsyncExitStack()
            await line.enter_async_context(Relay(address, dealer.address).running())
            preprocessing = await stack.enter_async_context(
                dealer.preprocessing("session", pool, address=address)
            )
            await ready(preprocessing, 1)
            await line.aclose()
            await taken(preprocessing, SMALL)
            with refused(ErrorKind.PARTY_UNREACHABLE, "The dealer does not answer"):
                await taken(preprocessing, SMALL)
    assert pool.held == 0


async def test_a_dealer_that_is_stopped_is_named(certificates: Certificates) -> None:
    """It is told to stop in the middle of a stream."""
    pool = PreprocessingPool(1 << 20)
    async with contextlib.AsyncExitStack() as stack:
        line = contextlib.AsyncExitStack()
        dealer = await line.enter_async_context(serving(certificates, FaultyDealer(*GRANT)))
        preprocessing = await stack.enter_async_context(dealer.preprocessing("session", pool))
        await line.aclose()
        with refused(ErrorKind.PARTY_UNREACHABLE, "The dealer"):
            await taken(preprocessing, SMALL)
    assert pool.held == 0


# Closing gives everything back


async def _while_the_pool_is_full(
    preprocessing: DealtPreprocessing, pool: PreprocessingPool
) -> None:
    await ready(preprocessing, 3)


async def _before_anything_came(preprocessing: DealtPreprocessing, pool: PreprocessingPool) -> None:
    assert pool.held == 0


async def _after_some_were_used(preprocessing: DealtPreprocessing, pool: PreprocessingPool) -> None:
    for _ in range(4):
        await taken(preprocessing, SMALL)


async def _after_a_failure(preprocessing: DealtPreprocessing, pool: PreprocessingPool) -> None:
    with refused(ErrorKind.DEAL_INVALID):
        await taken(preprocessing, LEVEL)


@pytest.mark.parametrize(
    "when",
    [_before_anything_came, _while_the_pool_is_full, _after_some_were_used, _after_a_failure],
    ids=lambda when: when.__name__.strip("_").replace("_", " "),
)
@pytest.mark.parametrize("rank", [0, 1])
async def test_closing_gives_all_room_back(
    dealer: Dealer, rank: int, when: Callable[[DealtPreprocessing, PreprocessingPool], Any]
) -> None:
    pool = PreprocessingPool(3 * SMALL.part_bytes)
    async with dealer.preprocessing("session", pool, rank=rank) as preprocessing:
        await when(preprocessing, pool)
        preprocessing.close()
        assert pool.held == 0
        # Nor does anything come later, or go twice.
        await settled()
        preprocessing.close()
        assert pool.held == 0
    async with dealer.preprocessing("another", pool, rank=rank) as preprocessing:
        await ready(preprocessing, 3)
        assert pool.held == 3 * SMALL.part_bytes
    assert pool.held == 0


async def test_closing_hangs_up_on_the_dealer(certificates: Certificates) -> None:
    servicer = FaultyDealer(*GRANT)
    pool = PreprocessingPool(1 << 20)
    async with (
        serving(certificates, servicer) as dealer,
        dealer.preprocessing("session", pool) as preprocessing,
    ):
        await holds(pool, SMALL.part_bytes)
        preprocessing.close()
        await asyncio.wait_for(servicer.left.wait(), SECONDS)
        assert pool.held == 0


async def test_an_engine_that_waits_when_its_preprocessing_is_closed_is_let_go(
    certificates: Certificates,
) -> None:
    """A count that is given up must not keep a thread until the patience for the dealer ends."""
    pool = PreprocessingPool(1 << 20)
    async with (
        serving(certificates, FaultyDealer(*GRANT)) as dealer,
        dealer.preprocessing("session", pool, timeout=10 * SECONDS) as preprocessing,
    ):
        waiting = asyncio.create_task(asyncio.to_thread(preprocessing.take, SMALL))
        await asyncio.wait_for(preprocessing._wanted.wait(), SECONDS)
        preprocessing.close()
        with pytest.raises(VoteError):
            await asyncio.wait_for(waiting, SECONDS)
        with pytest.raises(VoteError):
            await taken(preprocessing, SMALL)
    assert pool.held == 0


async def test_closing_before_a_correction_is_compared_blames_nobody(
    certificates: Certificates,
) -> None:
    """Whoever gives a round up while a thread is about to compare must not frame the dealer."""
    blamed: list[VoteError] = []
    held = threading.Event()
    asked = Session("session", tuple(PAIR), SMALL_PLAN, copies=1)
    with ThreadPoolExecutor(1) as threads:
        asyncio.get_running_loop().set_default_executor(threads)
        async with (
            serving(certificates, FaultyDealer(*GRANT, correction(SMALL.correction_bytes))) as one,
            one.channel(PAIR[1]) as channel,
        ):
            drawn = await one.drawn(asked, 1, channel, SECONDS)
            busy = threads.submit(held.wait, SECONDS)
            preprocessing = DealtPreprocessing(
                channel, drawn, SMALL_PLAN, True, PreprocessingPool(1 << 20), SECONDS, blamed.append
            )

            async def waits() -> bool:
                return threads._work_queue.qsize() == 1

            await until(waits, "a correction waits to be compared", step=0.005)
            preprocessing.close()
            held.set()
            assert busy.result(SECONDS)
            await asyncio.to_thread(int)
    assert blamed == []


@pytest.mark.parametrize("turns", range(10))
async def test_closing_as_a_correction_comes_blames_nobody_and_keeps_no_room(turns: int) -> None:
    """At every turn of the loop while the first correction is on its way."""
    blamed: list[VoteError] = []
    pool = PreprocessingPool(1 << 20)
    digests = tuple(commitment(bytes(SMALL.correction_bytes), KEY, index) for index in range(8))
    stream = Stream([correction(SMALL.correction_bytes)], asyncio.get_running_loop().create_future)
    channel: Any = FakeChannel({"Collect": lambda _: stream})
    preprocessing = DealtPreprocessing(
        channel,
        Drawn("session", 0, KEY, digests, b"", 0),
        SMALL_PLAN,
        True,
        pool,
        SECONDS,
        blamed.append,
    )
    for _ in range(turns):
        await asyncio.sleep(0)
    preprocessing.close()
    await asyncio.gather(preprocessing._fetching, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_default_executor()
    assert blamed == [] and pool.held == 0


async def test_seeds_are_forgotten_and_never_shown(dealer: Dealer) -> None:
    async with dealer.preprocessing("session", PreprocessingPool(1 << 20)) as preprocessing:
        key = preprocessing._key
        assert len(key) == 32
        assert repr(key) not in repr(preprocessing)
        preprocessing.close()
        assert preprocessing._key == b"" and preprocessing._drawn.key == b""


# Rounds at parties


class Parties:
    """A whole committee in this process, each party with a server of its own."""

    def __init__(self, certificates: Certificates, servicers: dict[str, PartyServicer]) -> None:
        self._certificates = certificates
        self.servicers = servicers
        self.addresses: dict[str, str] = {}

    @contextlib.asynccontextmanager
    async def dial(self, caller: Identity, server: Identity) -> AsyncIterator[grpc.aio.Channel]:
        credentials = self._certificates.credentials(caller)
        async with rpc.dial(credentials, self.addresses[server.name], server) as channel:
            yield channel

    @property
    def pools(self) -> list[PreprocessingPool]:
        return [servicer._pool for servicer in self.servicers.values()]

    async def hold(self, size: int) -> None:
        """Waits until every party holds just this much."""
        for pool in self.pools:
            await holds(pool, size)


@contextlib.asynccontextmanager
async def committee_of(
    dealer: Dealer,
    directory: Path,
    pool_bytes: int,
    seconds: float = SECONDS,
    last: Callable[[Credentials, str, Sequence[str]], LinkServer] = LinkServer,
    stocks: Mapping[str, Stock] | None = None,
) -> AsyncIterator[tuple[Parties, Committee]]:
    """Three parties, the last of which may treat its peers in a way of its own, and a coordinator's
    way to them; without stocks all is dealt for its round."""
    addresses = [f"127.0.0.1:{port}" for port in free_ports(6)]
    parties = Parties(dealer.certificates, {})
    parties.addresses = dict(zip(TRIO, addresses, strict=False))
    peer_addresses = dict(zip(TRIO, addresses[3:], strict=True))
    async with contextlib.AsyncExitStack() as stack:
        for rank, name in enumerate(TRIO):
            own = Identity(Role.PARTY, name)
            credentials = dealer.certificates.credentials(own)
            pools = {
                peer: await stack.enter_async_context(
                    LinkPool(credentials, peer_addresses[peer], peer)
                )
                for peer in TRIO[rank + 1 :]
            }
            make = last if name == TRIO[-1] else LinkServer
            link_server = await stack.enter_async_context(
                make(credentials, peer_addresses[name], TRIO[:rank])
            )
            to_dealer = await stack.enter_async_context(dealer.channel(name))
            journal = stack.enter_context(
                contextlib.closing(RoundJournal(directory / name / "party.db"))
            )
            own_committee = OwnCommittee(
                name, tuple(TRIO), "dealer", pools, link_server, to_dealer, seconds
            )
            mark = DealerMark(directory / name / "dealer-caught", name)
            stock = stocks[name] if stocks is not None else None
            servicer = PartyServicer(own_committee, journal, mark, pool_bytes, COPIES, stock)
            parties.servicers[name] = servicer
            services = [(party_pb2_grpc.add_PartyServiceServicer_to_server, servicer)]
            server = rpc.Server(credentials, parties.addresses[name], services, servicer.health)
            await server.start()
            stack.push_async_callback(server.stop)
        reached = Committee.reached(parties.dial, TRIO)
        yield parties, await stack.enter_async_context(reached)


@pytest.mark.parametrize("fault", ["the disk", "its id was used"])
async def test_a_round_is_open_once_its_mark_is_written_whoever_asks(
    fault: str, dealer: Dealer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who is told that it is open has agents pay for it, and it could never be counted."""
    begun, go_on = threading.Event(), threading.Event()
    mark = RoundJournal.open

    def slowly(journal: RoundJournal, round_id: str) -> bool:
        begun.set()
        assert go_on.wait(SECONDS)
        if fault == "the disk":
            raise sqlite3.OperationalError("database or disk is full")
        return mark(journal, round_id)

    async with committee_of(dealer, tmp_path, 1 << 26) as (parties, committee):
        spec = committee.spec()
        if fault == "its id was used":
            assert parties.servicers[TRIO[0]]._journal.open(spec.round_id)
        monkeypatch.setattr(RoundJournal, "open", slowly)
        first = asyncio.create_task(error_of(committee.open_at(TRIO[0], spec)))
        assert await asyncio.to_thread(begun.wait, SECONDS)
        second = asyncio.create_task(error_of(committee.open_at(TRIO[0], spec)))
        await asyncio.sleep(SOON)
        go_on.set()
        named = {(await one).name for one in (first, second)}
        assert named == {"INTERNAL" if fault == "the disk" else "ROUND_SPENT"}
        assert not parties.servicers[TRIO[0]]._rounds, "nothing is left of it"


async def test_who_is_to_be_counted_is_counted_before_it_is_looked_at(
    dealer: Dealer, tmp_path: Path
) -> None:
    async with committee_of(dealer, tmp_path, 1 << 26) as (parties, committee):
        spec = committee.spec()
        await committee.open(spec)
        await parties.hold(needed(spec))
        servicer = parties.servicers[TRIO[0]]
        with refused(ErrorKind.SPEC_INVALID, "twice"):
            await servicer._commit(servicer._rounds[spec.round_id], Millions())


MANY = 600


def votes(rows: int) -> dict[str, Labels]:
    rng = np.random.default_rng(rows)
    return {agent: rng.integers(0, 3, rows) for agent in AGENTS}


def winners(cast: dict[str, Labels]) -> Labels:
    counts = np.sum([np.eye(3, dtype=np.int64)[labels] for labels in cast.values()], axis=0)
    best: Labels = np.argmax(counts, axis=1)
    return best


def needed(spec: Spec) -> int:
    """Bytes of a party's part of all preprocessing of a round."""
    return part_bytes(session_plan(spec.engine, spec.rows, spec.row_classes, len(TRIO)))


async def test_a_rounds_preprocessing_waits_before_anybody_has_voted(
    dealer: Dealer, tmp_path: Path
) -> None:
    async with committee_of(dealer, tmp_path, 1 << 26) as (parties, committee):
        spec = committee.spec(queries=MANY)
        await committee.open(spec)
        await parties.hold(needed(spec))
        cast = votes(MANY)
        held = {agent: await committee.submit(spec, agent, cast[agent]) for agent in cast}
        # Nothing is kept of who has uploaded once.
        assert [len(servicer._uploads) for servicer in parties.servicers.values()] == [0, 0, 0]
        outcomes = await committee.aggregate(spec, [held])
        assert labels_of(outcomes, MANY).tolist() == winners(cast).tolist()
        await parties.hold(0)


async def test_a_dealer_is_not_missed_once_all_is_dealt(
    certificates: Certificates, tmp_path: Path
) -> None:
    async with contextlib.AsyncExitStack() as stack:
        line = contextlib.AsyncExitStack()
        dealer = await line.enter_async_context(serving(certificates, DealerServicer()))
        parties, committee = await stack.enter_async_context(
            committee_of(dealer, tmp_path, 1 << 26)
        )
        spec = committee.spec(queries=MANY)
        cast = votes(MANY)
        held = await committee.voted(spec, cast)
        await parties.hold(needed(spec))
        await line.aclose()
        outcomes = await committee.aggregate(spec, [held])
        assert labels_of(outcomes, MANY).tolist() == winners(cast).tolist()


async def test_an_abandoned_round_gives_its_room_back(dealer: Dealer, tmp_path: Path) -> None:
    async with committee_of(dealer, tmp_path, 1 << 26) as (parties, committee):
        early, late = committee.spec(queries=MANY), committee.spec(queries=MANY)
        # One is abandoned at once, while its preprocessing is on the way; one when all of it waits.
        await committee.open(early)
        await committee.abandon(early)
        await parties.hold(0)
        await committee.open(late)
        await parties.hold(needed(late))
        await committee.abandon(late)
        await parties.hold(0)


async def test_a_party_opens_no_round_whose_shares_it_has_no_room_for(
    dealer: Dealer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody has paid by then. Whoever makes agents could else have it hold 50 GiB in one round."""
    async with committee_of(dealer, tmp_path, 1 << 26) as (_, committee):
        specs = [committee.spec(queries=MANY) for _ in range(3)]
        # There are three agents: each party gets the explicit share of one.
        room = 2 * specs[0].share_bytes(AGENTS[0])
        monkeypatch.setattr("aggregator.party.servicer.MAX_SHARE_BYTES", room)
        await committee.open(specs[0])
        held = await committee.voted(specs[1], votes(MANY))
        error = await error_of(committee.open(specs[2]))
        assert error.name == "SERVICE_BUSY"
        await committee.abandon(specs[0])
        await committee.open(specs[2])
        labels_of(await committee.aggregate(specs[1], [held]), MANY)


async def test_a_count_that_is_cancelled_gives_its_room_back(
    dealer: Dealer, tmp_path: Path
) -> None:
    """One party is told to count and waits for the others, until the coordinator hangs up."""
    async with committee_of(dealer, tmp_path, 1 << 26) as (parties, committee):
        spec = committee.spec(queries=MANY)
        held = await committee.voted(spec, votes(MANY))
        await parties.hold(needed(spec))
        order = party_pb2.AggregateRequest(round_id=spec.round_id, contributors=holdings_of(held))
        call = committee.stubs["party-0"].Aggregate(order, timeout=SECONDS)

        async def counting() -> bool:
            return bool(await committee.holdings(spec, "party-0") == {})

        reading = asyncio.create_task(call.read())
        await until(counting, "the party has taken the shares")
        call.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        await holds(parties.pools[0], 0)
        await committee.abandon(spec)
        await parties.hold(0)


async def test_a_count_that_is_cancelled_as_it_is_marked_gives_its_room_back(
    dealer: Dealer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The party has taken the shares out, and its disk is slow."""
    marking, marked = threading.Event(), threading.Event()

    def mark_slowly(round_id: str) -> bool:
        marking.set()
        return marked.wait(SECONDS)

    async with committee_of(dealer, tmp_path, 1 << 26) as (parties, committee):
        spec = committee.spec(queries=MANY)
        held = await committee.voted(spec, votes(MANY))
        await parties.hold(needed(spec))
        monkeypatch.setattr(parties.servicers["party-0"]._journal, "aggregate", mark_slowly)
        order = party_pb2.AggregateRequest(round_id=spec.round_id, contributors=holdings_of(held))
        call = committee.stubs["party-0"].Aggregate(order, timeout=SECONDS)
        reading = asyncio.create_task(call.read())
        assert await asyncio.to_thread(marking.wait, SECONDS)
        call.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        await holds(parties.pools[0], 0)
        marked.set()


async def test_parties_that_disagree_give_their_room_back(dealer: Dealer, tmp_path: Path) -> None:
    async with committee_of(dealer, tmp_path, 1 << 26) as (parties, committee):
        spec = committee.spec(queries=MANY)
        held = await committee.voted(spec, votes(MANY))
        fewer = {agent: held[agent] for agent in ("ann", "ben")}
        outcomes = await committee.aggregate(spec, [held, fewer, held])
        assert not any(outcome.released for outcome in outcomes)
        await parties.hold(0)


async def test_a_round_that_is_not_opened_holds_nothing(dealer: Dealer, tmp_path: Path) -> None:
    """A party that remembers the round from before it was restarted."""
    async with committee_of(dealer, tmp_path, 1 << 26) as (parties, committee):
        spec = committee.spec(queries=MANY)
        parties.servicers["party-2"]._journal.open(spec.round_id)
        error = await error_of(committee.open_at("party-2", spec))
        assert error.name == "ROUND_SPENT", error.message
        await holds(parties.servicers["party-2"]._pool, 0)


class StallingDealer(DealerServicer):
    """Commits to everything and then sends nothing."""

    @rpc.allowed(Role.PARTY)
    async def Collect(
        self, request: dealer_pb2.CollectRequest, context: Any
    ) -> AsyncIterator[dealer_pb2.CollectResponse]:
        await asyncio.Event().wait()
        yield dealer_pb2.CollectResponse()


async def test_a_dealer_that_stalls_fails_the_count_and_nothing_stays(
    certificates: Certificates, tmp_path: Path
) -> None:
    async with (
        serving(certificates, StallingDealer()) as dealer,
        committee_of(dealer, tmp_path, 1 << 26, seconds=2.0) as (parties, committee),
    ):
        spec = committee.spec(queries=MANY)
        held = await committee.voted(spec, votes(MANY))
        outcomes = await committee.aggregate(spec, [held])
        assert not any(outcome.released for outcome in outcomes)
        last = outcomes[-1].error
        assert last is not None and last.name == "PREPROCESSING_LATE", last
        await parties.hold(0)


async def test_no_label_comes_of_a_dealer_that_lies_and_it_is_not_asked_again(
    dealer: Dealer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def commit_to_lies(item: Item[Any], copies: Sequence[Sequence[bytes]], index: int) -> bytes:
        return b"".join(
            commitment(bytes(item.correction_bytes), seeds[-1], index) for seeds in copies
        )

    # A party that has not caught it waits for those that have, and no longer count, so long.
    async with committee_of(dealer, tmp_path, 1 << 26, seconds=3.0) as (parties, committee):
        cast = votes(MANY)
        other = committee.spec(queries=MANY)
        held_before = await committee.voted(other, cast)
        await parties.hold(needed(other))
        with monkeypatch.context() as patch:
            patch.setattr("aggregator.dealer.servicer.commit", commit_to_lies)
            spec = committee.spec(queries=MANY)
            await committee.open(spec)
            # Before anybody has voted, and so before anybody is charged.
            listed = [error_of(committee.holdings(spec, name)) for name in TRIO]
            errors = {error.name for error in await asyncio.gather(*listed)}
        assert "DEALER_REFUSED" in errors, errors
        await committee.abandon(spec)

        # Whoever caught it says so from then on, before anything is spent, also to the coordinator.
        marks = [mark for name in TRIO if (mark := tmp_path / name / "dealer-caught").exists()]
        assert marks and all("wrong preprocessing" in mark.read_text() for mark in marks)
        # Another round that was open is not counted either: its lie may be the one in the copy
        # that was drawn.
        outcomes = await committee.aggregate(other, [held_before])
        assert not any(outcome.released for outcome in outcomes)
        name = marks[0].parent.name
        assert not any((await parties.servicers[name].health()).values())
        error = await error_of(committee.open_at(name, committee.spec(queries=MANY)))
        assert error.name == "DEALER_REFUSED" and "dealer-caught" in error.message

        for mark in marks:
            mark.unlink()
        spec = committee.spec(queries=MANY)
        held = await committee.voted(spec, cast)
        outcomes = await committee.aggregate(spec, [held])
        assert labels_of(outcomes, MANY).tolist() == winners(cast).tolist()


async def test_no_label_share_leaves_a_party_that_catches_the_dealer_while_it_counts(
    dealer: Dealer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is missing any more for the count when the lie in another round is found."""
    label_shares = _Session.label_shares

    def caught_meanwhile(session: _Session, rows: int) -> bytes:
        shares = label_shares(session, rows)
        if session.channel.rank == 1:
            catch(DealerCaught("another", "a lie"))
        return shares

    monkeypatch.setattr(_Session, "label_shares", caught_meanwhile)
    async with committee_of(dealer, tmp_path, 1 << 26, seconds=3.0) as (parties, committee):
        catch = parties.servicers["party-1"]._caught
        spec = committee.spec()
        held = await committee.voted(spec, votes(ROWS))
        outcome = (await committee.aggregate(spec, [held]))[1]
    assert not outcome.released
    assert outcome.error is not None and outcome.error.name == "DEALER_REFUSED", outcome.error


class SilentDealer(DealerServicer):
    """Takes seeds and says nothing."""

    @rpc.allowed(Role.PARTY)
    async def Deal(
        self, request: dealer_pb2.DealRequest, context: Any
    ) -> AsyncIterator[dealer_pb2.DealResponse]:
        await asyncio.Event().wait()
        yield dealer_pb2.DealResponse()


@pytest.mark.parametrize("ends", ["caught", "abandoned"])
async def test_a_count_that_waits_for_preprocessing_is_told_that_none_will_come(
    certificates: Certificates, tmp_path: Path, ends: str
) -> None:
    async with (
        serving(certificates, SilentDealer()) as dealer,
        committee_of(dealer, tmp_path, 1 << 26) as (parties, committee),
    ):
        party = parties.servicers["party-1"]
        spec = committee.spec()
        held = await committee.voted(spec, votes(ROWS))
        counting = asyncio.create_task(committee.aggregate_at("party-1", spec, held))

        async def begun() -> bool:
            return party._rounds[spec.round_id].counting

        await until(begun, "the party counts")
        if ends == "caught":
            party._caught(DealerCaught("another", "a lie"))
        else:
            await committee.abandon(spec)
        error = (await counting).error
    name = {"caught": "DEALER_REFUSED", "abandoned": "ROUND_CLOSED"}[ends]
    assert error is not None and error.name == name, error


async def test_a_count_that_waits_for_a_slow_peers_round_trip_is_told_that_it_is_over(
    dealer: Dealer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has given its label shares by then, and is left waiting by a peer that answers late."""

    async def never(_: OwnCommittee) -> list[float]:
        await asyncio.Event().wait()
        return []

    monkeypatch.setattr(OwnCommittee, "round_trips", never)
    async with committee_of(dealer, tmp_path, 1 << 26) as (_, committee):
        spec = committee.spec()
        held = await committee.voted(spec, votes(ROWS))
        order = party_pb2.AggregateRequest(round_id=spec.round_id, contributors=holdings_of(held))
        calls = [stub.Aggregate(order, timeout=SECONDS) for stub in committee.stubs.values()]
        for response in await asyncio.gather(*(call.read() for call in calls)):
            assert response.HasField("shares")
        await committee.abandon(spec)
        for error in await asyncio.gather(*(error_of(call.read()) for call in calls)):
            assert error.name == "ROUND_CLOSED", error.message


async def test_a_dealer_is_not_asked_again_where_the_mark_can_not_be_written(
    dealer: Dealer, tmp_path: Path
) -> None:
    async with committee_of(dealer, tmp_path, 1 << 26) as (parties, committee):
        party = parties.servicers["party-1"]
        party._mark._path = tmp_path / "missing" / "dealer-caught"
        before = committee.spec()
        await committee.open(before)
        party._caught(DealerCaught("another", "a lie"))
        error = await error_of(committee.open_at("party-1", committee.spec()))
        assert error.name == "DEALER_REFUSED", error.message

        async def ended() -> bool:
            return party._rounds[before.round_id].closed == "the dealer was caught"

        await until(ended, "the open round ends")
        assert not any((await party.health()).values())


async def test_the_mark_is_written_where_no_file_can_be_opened(
    dealer: Dealer, tmp_path: Path
) -> None:
    """A dealer can use up all descriptors of a party, by connections, and would else be asked again
    after a restart."""
    async with committee_of(dealer, tmp_path, 1 << 26) as (parties, committee):
        party = parties.servicers["party-1"]
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
        try:
            party._caught(DealerCaught("another", "a lie"))
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        mark = tmp_path / "party-1" / "dealer-caught"
        assert mark.exists()
        error = await error_of(committee.open_at("party-1", committee.spec()))
        assert error.name == "DEALER_REFUSED", error.message

        mark.unlink()
        await committee.open_at("party-1", committee.spec())


async def test_no_round_is_opened_where_the_dealer_is_caught_while_it_is_looked_for(
    dealer: Dealer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says itself how long that takes. The round would be counted once the mark is removed."""
    reach = rpc.reach

    async def caught_meanwhile(channel: grpc.aio.Channel, who: str) -> None:
        await reach(channel, who)
        if who == "The dealer":
            party._caught(DealerCaught("another", "a lie"))

    async with committee_of(dealer, tmp_path, 1 << 26) as (parties, committee):
        party = parties.servicers["party-1"]
        monkeypatch.setattr(rpc, "reach", caught_meanwhile)
        error = await error_of(committee.open_at("party-1", committee.spec()))
        assert error.name == "DEALER_REFUSED", error.message
        assert not party._rounds


class Babbler(DealerServicer):
    """Grants what was not asked for."""

    @rpc.allowed(Role.PARTY)
    async def Deal(
        self, request: dealer_pb2.DealRequest, context: Any
    ) -> AsyncIterator[dealer_pb2.DealResponse]:
        yield granted(*[b""] * 1_000)


async def test_a_round_that_failed_keeps_nothing_of_what_the_dealer_sent(
    certificates: Certificates, tmp_path: Path
) -> None:
    """By millions of empty hashes, a message of 16 MiB takes 256 MiB; and the round may stay open
    for an hour."""
    async with (
        serving(certificates, Babbler()) as dealer,
        committee_of(dealer, tmp_path, 1 << 26) as (parties, committee),
    ):
        spec = committee.spec()
        await committee.open_at("party-0", spec)
        error = await error_of(committee.holdings(spec, "party-0"))
        assert error.name == "ANSWER_MALFORMED" and "The dealer" in error.message
        kept = parties.servicers["party-0"]._rounds[spec.round_id].preprocessing.exception()
        assert kept is not None
        frames = [frame for frame, _ in traceback.walk_tb(kept.__traceback__)]
        assert "ask" in {frame.f_code.co_name for frame in frames}
        for frame in frames:
            assert not any("dealer_pb2" in type(v).__module__ for v in frame.f_locals.values())


class Whisperer(DealerServicer):
    """Fails in the words in which a party blames another."""

    @rpc.allowed(Role.PARTY)
    async def Deal(
        self, request: dealer_pb2.DealRequest, context: Any
    ) -> AsyncIterator[dealer_pb2.DealResponse]:
        why = "party party-1 opened a seed that it had not committed to"
        raise VoteError(ErrorKind.COMMITTEE_DISAGREES, round=request.session_id, why=why)
        yield dealer_pb2.DealResponse()


async def test_a_dealer_that_blames_a_party_is_quoted(
    certificates: Certificates, tmp_path: Path
) -> None:
    async with (
        serving(certificates, Whisperer()) as dealer,
        committee_of(dealer, tmp_path, 1 << 26) as (_, committee),
    ):
        spec = committee.spec()
        await committee.open(spec)
        error = await error_of(committee.holdings(spec, "party-0"))
    assert error.name == "ENDED_BY" and error.message.startswith("The dealer ended the session")


class Accuser(LinkServer):
    """Agrees to whatever its peers are about to do, and then ends their links with an error that
    they would raise themselves."""

    def __init__(
        self, error: VoteError, credentials: Credentials, listen: str, peers: Sequence[str]
    ) -> None:
        super().__init__(credentials, listen, peers)
        self._error = error

    async def _lend(self, taken: Link, peer: str, frame: Frame) -> None:
        hello = parse_hello(frame)
        hello.zero_seed = bytes(SEED_BYTES)
        await taken.send(frames.encode(Kind.HELLO, hello.SerializeToString()))
        # By now they wait for a payload.
        await taken._read(1)
        raise self._error


@pytest.mark.parametrize(
    "error",
    [
        VoteError(ErrorKind.DEALER_CAUGHT, session="s", why="item 0 is wrong"),
        VoteError(ErrorKind.DEALER_REFUSED, who="party-0", path="dealer-caught"),
        VoteError(ErrorKind.COMMITTEE_DISAGREES, round="r", why="party party-1 opened a seed"),
        VoteError(ErrorKind.PARTY_UNREACHABLE, who="Party party-1", why="it is down"),
        VoteError(ErrorKind.SERVICE_BUSY, got=1, retry_after=0.0),
    ],
    ids=lambda error: error.name,
)
async def test_what_a_peer_says_of_others_is_blamed_on_nobody_but_that_peer(
    dealer: Dealer, tmp_path: Path, error: VoteError
) -> None:
    """Else one party puts an honest dealer out of use at all others, with a word."""
    accuser = functools.partial(Accuser, error)
    async with committee_of(dealer, tmp_path, 1 << 26, 2.0, accuser) as (parties, committee):
        spec = committee.spec(queries=MANY)
        await committee.open(spec)
        told = [await error_of(committee.holdings(spec, name)) for name in TRIO[:-1]]
        # One of them may first see that the other has left.
        assert {one.name for one in told} <= {"ENDED_BY", "PARTY_UNREACHABLE"}, told
        assert any(one.message.startswith("Party party-2 ended the session") for one in told), told
        assert all(one.retry_after is None for one in told)
        for name in TRIO[:-1]:
            assert not (tmp_path / name / "dealer-caught").exists()
            assert all((await parties.servicers[name].health()).values())
        await committee.abandon(spec)


async def test_a_party_that_does_not_ask_the_dealer_is_named_by_its_peers(
    dealer: Dealer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else its silence would look like the dealer's."""
    assert PartySettings.model_fields["exchange_seconds"].default > dealer_module._GATHER_SECONDS
    monkeypatch.setattr(dealer_module, "_GATHER_SECONDS", SOON)
    async with committee_of(dealer, tmp_path, 1 << 26, 4 * SOON) as (_, committee):
        spec = committee.spec()
        for name in TRIO[:-1]:
            await committee.open_at(name, spec)
        for name in TRIO[:-1]:
            error = await error_of(committee.holdings(spec, name))
            assert error.name == "ENDED_BY" and "party-2" in error.message, error.message
        await committee.abandon(spec)


async def test_rounds_side_by_side_are_counted_right_in_a_small_pool(
    dealer: Dealer, tmp_path: Path
) -> None:
    rows, rounds = 300, 3
    async with committee_of(dealer, tmp_path, 4_096) as (parties, committee):
        specs = [committee.spec(queries=rows) for _ in range(rounds)]
        assert needed(specs[0]) > 4_096
        cast = votes(rows)
        helds = [await committee.voted(spec, cast) for spec in specs]
        counts = [committee.aggregate(spec, [h]) for spec, h in zip(specs, helds, strict=True)]
        for outcomes in await asyncio.gather(*counts):
            assert labels_of(outcomes, rows).tolist() == winners(cast).tolist()
        await parties.hold(0)


FIELDS = Group(shape=(6,), classes=12, ks={"field-0": 5, "field-1": 7}, spread=3.0, settings={})


async def test_a_batch_far_larger_than_the_pool_is_counted_right(tmp_path: Path) -> None:
    """The service as it is deployed, with as small a pool as can be set."""
    rows = 10_000
    queries = FIELDS.queries(rows)
    agents = FIELDS.write(tmp_path / "private")
    cluster = Cluster(tmp_path, 3, agents, party_settings={"pool-mib": "1"})
    cluster.issue()
    try:
        cluster.start()
        await cluster.ready(2 * SECONDS)
        async with cluster.client() as client:
            result = await client.label(queries, FIELDS.plan())
    finally:
        cluster.stop()
    assert result.spec is not None
    assert needed(Spec.parse(result.spec.SerializeToString())) > 4 << 20
    assert (result.labels == FIELDS.winners(queries)).all()
    assert math.isfinite(result.cost.mpc_seconds)
