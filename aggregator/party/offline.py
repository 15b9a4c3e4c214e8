"""A party's offline phase: how a round comes by its preprocessing, with all its peers.

It is dealt for the round, or taken from the stock, in which case the parties first agree, in a
session of the round, on one item that all of them hold: rank 0 names one, everybody says what
stands for the copy that was drawn then, and everybody echoes what it has heard. An item that is
named is out of the stock of whoever hears its name, whatever comes of it. Where one party lacks it,
or is not done with it in half the time that peers wait, all have preprocessing dealt for the round.
Where echoes differ the round ends, and nobody is blamed.

After each round that was counted the parties make an item of the same plan, unless one of them has
other rounds to deal for or to count: running rounds come first. What an item rests on is what every
session rests on (`mpc_vote.mpc.cut_and_choose`): seeds of its own, the lot after the commitments.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from aggregator.party.committee import Committee
from aggregator.party.peers import PeerChannel
from aggregator.party.preprocessing import DealtPreprocessing, PreprocessingPool, ask, collect
from aggregator.party.stock import MAX_OF_A_SHAPE, NOTHING, Dealt, Stock, StockItem
from mpc_vote.errors import ErrorKind, VoteError
from mpc_vote.mpc.cut_and_choose import DealerCaught, Drawn, Grant, Session, choose
from mpc_vote.mpc.preprocessing import PreprocessingPlan
from mpc_vote.pki.identity import Identity
from mpc_vote.voting.spec import Spec

log = logging.getLogger(__name__)

_YES, _NO = b"\x01", b"\x00"


class OfflinePhase:
    """Deals for rounds, and ahead of them; `on_caught` is called in any thread."""

    def __init__(
        self,
        committee: Committee,
        copies: int,
        pool: PreprocessingPool,
        stock: Stock | None,
        threads: ThreadPoolExecutor,
        on_caught: Callable[[DealerCaught], None],
    ) -> None:
        """Without a stock everything is dealt for its round."""
        self._committee = committee
        self._copies = copies
        self._pool = pool
        self._stock = stock
        self._threads = threads
        self._on_caught = on_caught
        self._busy = 0
        self._making = False
        self._replenishing: set[asyncio.Task[None]] = set()

    @contextlib.contextmanager
    def busy(self) -> Iterator[None]:
        """While a round is dealt for or counted, nothing is begun for the stock."""
        self._busy += 1
        try:
            yield
        finally:
            self._busy -= 1

    async def prepare(self, spec: Spec, owner: Identity) -> DealtPreprocessing:
        """A round's preprocessing: of the stock, or dealt for it."""
        with self.busy():
            plan = await asyncio.to_thread(spec.plan)
            dealt = await self._agree(spec, owner, plan) or await self._deal(spec, plan)
        own = self._committee
        return DealtPreprocessing(
            own.dealer_channel,
            dealt.drawn,
            plan,
            own.is_last,
            self._pool,
            own.exchange_seconds,
            self._on_caught,
            dealt.corrections,
        )

    async def _deal(self, spec: Spec, plan: PreprocessingPlan) -> Dealt:
        """Dealt for a round; its corrections are collected as they are used."""
        own = self._committee
        session = Session(spec.round_id, own.parties, plan, self._copies)
        grant = await ask(own.dealer_channel, session, own.rank, own.exchange_seconds)
        context = deal_context(spec, grant.transcript())
        async with self._joined(f"{spec.round_id}.deal", context) as channel:
            return Dealt(await self._choose(grant, channel))

    async def _agree(self, spec: Spec, owner: Identity, plan: PreprocessingPlan) -> Dealt | None:
        """What all parties take out of their stocks; nothing if one of them lacks it."""
        stock, rank = self._stock, self._committee.rank
        if stock is None:
            return None
        item = stock.take(owner, plan) if rank == 0 else None
        # Whoever has its part sooner waits for the others' answers: that must not end its patience.
        patience = self._committee.exchange_seconds / 2
        try:
            async with self._joined(f"{spec.round_id}.stock", stock_context(spec)) as channel:
                named = await self._exchange(channel, NOTHING if item is None else item.key)
                if rank > 0:
                    item = stock.take_named(named[0], owner, plan)
                dealt = None if item is None else await item.dealt(patience)
                mine = NOTHING if dealt is None else dealt.drawn.context
                told = await self._exchange(channel, mine)
                heard = hashlib.sha256(b"".join(told)).digest()
                if any(echo != heard for echo in await self._exchange(channel, heard)):
                    why = "a party told its peers different things of its stock"
                    raise VoteError(ErrorKind.COMMITTEE_DISAGREES, round=spec.round_id, why=why)
        finally:
            # For good, whatever comes of it: of one that is dealt this ends nothing.
            if item is not None:
                item.end()
        return dealt if all(one == mine for one in told) else None

    def replenish(self, spec: Spec, owner: Identity) -> None:
        """Begins, after a round was counted, to make what the next of its kind will take."""
        if self._stock is not None:
            task = asyncio.create_task(self._replenish(self._stock, spec, owner))
            self._replenishing.add(task)
            task.add_done_callback(self._replenished)

    def _replenished(self, task: asyncio.Task[None]) -> None:
        """The next round has it dealt, where this failed; a dealer that was caught is marked."""
        self._replenishing.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.info("nothing was put in stock: %s", error)

    async def _replenish(self, stock: Stock, spec: Spec, owner: Identity) -> None:
        plan = await asyncio.to_thread(spec.plan)
        if not stock.fits(plan):
            return
        session = Session(stock_session(spec), self._committee.parties, plan, self._copies)
        async with self._joined(f"{session.id}.deal", stock_context(spec)) as channel:
            idle = not self._busy and not self._making
            # Rank 0 names items, so its stock is the one that counts.
            enough = channel.rank == 0 and stock.count(owner, plan) >= MAX_OF_A_SHAPE
            votes = await self._exchange(channel, _YES if idle and not enough else _NO)
            if any(vote != _YES for vote in votes):
                return
            making = asyncio.create_task(self._make(session, channel))
            item = StockItem(session.id, owner, plan, making)
            self._making = True
            try:
                stock.put(item)
                await making
            except BaseException:
                stock.drop(item)
                raise
            finally:
                self._making = False

    async def _make(self, session: Session, channel: PeerChannel) -> Dealt:
        """A session of the dealer, drawn and checked; of the last party with all corrections."""
        own = self._committee
        dealer, seconds = own.dealer_channel, own.exchange_seconds
        drawn = await self._choose(await ask(dealer, session, own.rank, seconds), channel)
        if not own.is_last:
            return Dealt(drawn)
        return Dealt(drawn, await collect(dealer, drawn, session.plan, seconds, self._on_caught))

    async def _choose(self, grant: Grant, channel: PeerChannel) -> Drawn:
        """Draws a copy with the peers and checks the others."""

        def checked() -> Drawn:
            try:
                return choose(grant, channel)
            except DealerCaught as error:
                # Here: whoever waits for the outcome may have given up.
                self._on_caught(error)
                raise

        return await asyncio.get_running_loop().run_in_executor(self._threads, checked)

    async def _exchange(self, channel: PeerChannel, payload: bytes) -> Sequence[bytes]:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, channel.exchange, payload)

    @contextlib.asynccontextmanager
    async def _joined(self, session_id: str, context: bytes) -> AsyncIterator[PeerChannel]:
        """A channel to all peers, once they agree on the context."""
        channel = await self._committee.join(session_id, context)
        try:
            yield channel
            await channel.finish()
        finally:
            channel.close()


def deal_context(spec: Spec, transcript: bytes) -> bytes:
    """What the parties must agree on before they draw a copy: the spec, and whose seeds."""
    return hashlib.sha256(spec.digest + transcript).digest()


def stock_context(spec: Spec) -> bytes:
    """What the parties must agree on before they look into their stocks for a round, and before
    they add to them after it."""
    return hashlib.sha256(b"mpc-vote stock" + spec.digest).digest()


def stock_session(spec: Spec) -> str:
    """The dealer's session that is made after a round: no round has this name but by intent, and
    then the dealer refuses one of the two."""
    return f"stock-{hashlib.sha256(spec.round_id.encode()).hexdigest()[:48]}"
