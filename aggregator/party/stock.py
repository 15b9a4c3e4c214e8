"""Preprocessing that waits for a round: dealt, checked and collected before anybody asks for it.

The stock holds whole sessions of the dealer, each of which was drawn and checked like one that is
dealt for a round (`mpc_vote.mpc.cut_and_choose`), and serves one round of the same plan. It is in
memory alone: a party that restarts has none. Whoever takes an item takes it out, whatever becomes
of the round, and nothing else keeps it. Items belong to the coordinator whose rounds they were made
after: another can neither use them up nor push them out, as where there is no room the coordinator
that holds most makes it.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from mpc_vote.mpc.cut_and_choose import DIGEST_BYTES, Drawn
from mpc_vote.mpc.preprocessing import PreprocessingPlan
from mpc_vote.pki.identity import Identity

MAX_OF_A_SHAPE = 4
"""Items of one plan: as many rounds as a coordinator has open at a time by default."""
MAX_ITEMS = 32

NOTHING = bytes(DIGEST_BYTES)
"""Among parties that agree on an item: none."""


@dataclass(frozen=True)
class Dealt:
    """A session of the dealer whose checks have passed, before it is expanded."""

    drawn: Drawn
    corrections: Sequence[bytes] | None = field(default=None, repr=False)
    """Of the last party, as the dealer had committed to; None where they are still to collect."""


@dataclass(eq=False)
class StockItem:
    """One session, which may still be under way."""

    session_id: str
    owner: Identity
    plan: PreprocessingPlan
    making: asyncio.Task[Dealt]

    @property
    def key(self) -> bytes:
        """What parties call it."""
        return hashlib.sha256(self.session_id.encode()).digest()

    @property
    def size(self) -> int:
        """Bytes that it is counted with, alike at all parties: those of the last."""
        return footprint(self.plan)

    async def dealt(self, seconds: float) -> Dealt | None:
        """What was dealt, once it is; nothing if that failed or takes longer."""
        done, _ = await asyncio.wait([self.making], timeout=seconds)
        if not done or self.making.cancelled() or self.making.exception() is not None:
            return None
        return self.making.result()

    def end(self) -> None:
        """Leaves it, if it is still under way."""
        self.making.cancel()


def footprint(plan: PreprocessingPlan) -> int:
    """Bytes that a session takes in the stock: corrections, and a commitment to each."""
    return sum(
        run.times * sum(item.correction_bytes + DIGEST_BYTES for item in run.items)
        for run in plan.runs
    )


class Stock:
    """Items in the order in which they were begun, bounded in bytes, number and age."""

    def __init__(self, capacity: int, seconds: float) -> None:
        self._capacity = capacity
        self._seconds = seconds
        # With what ends its age: a timer that went on would keep, of an item that was used, all of
        # its corrections and the key.
        self._items: dict[StockItem, asyncio.TimerHandle] = {}

    @property
    def held(self) -> int:
        """Bytes that wait, those under way included."""
        return sum(item.size for item in self._items)

    def __len__(self) -> int:
        return len(self._items)

    def fits(self, plan: PreprocessingPlan) -> bool:
        """Whether it could hold an item of this plan at all."""
        return footprint(plan) <= self._capacity

    def count(self, owner: Identity, plan: PreprocessingPlan) -> int:
        """Items that a round of this coordinator could take."""
        return sum(_suits(item, owner, plan) for item in self._items)

    def put(self, item: StockItem) -> None:
        """Holds an item for a while; what it has no room beside is dropped."""
        loop = asyncio.get_running_loop()
        self._items[item] = loop.call_later(self._seconds, self.drop, item)
        while self.count(item.owner, item.plan) > MAX_OF_A_SHAPE:
            self.drop(next(one for one in self._items if _suits(one, item.owner, item.plan)))
        while self.held > self._capacity or len(self._items) > MAX_ITEMS:
            self.drop(self._too_much())

    def take(self, owner: Identity, plan: PreprocessingPlan) -> StockItem | None:
        """Takes the oldest item out that suits a round."""
        suiting = (item for item in self._items if _suits(item, owner, plan))
        return self._out(next(suiting, None))

    def take_named(self, key: bytes, owner: Identity, plan: PreprocessingPlan) -> StockItem | None:
        """Takes the item out that a peer names, if it is here and suits the round."""
        named = (item for item in self._items if item.key == key and _suits(item, owner, plan))
        return self._out(next(named, None))

    def clear(self) -> None:
        """Drops everything: nothing of a dealer that was caught is used."""
        for item in list(self._items):
            self.drop(item)

    def _out(self, item: StockItem | None) -> StockItem | None:
        if item is not None:
            self._items.pop(item).cancel()
        return item

    def drop(self, item: StockItem) -> None:
        """Lets an item go, if it is still here."""
        if item in self._items:
            self._out(item)
            item.end()

    def _too_much(self) -> StockItem:
        """The oldest item of the coordinator that holds most."""
        held: Counter[Identity] = Counter()
        for item in self._items:
            held[item.owner] += item.size if self.held > self._capacity else 1
        most = max(held, key=held.__getitem__)
        return next(item for item in self._items if item.owner == most)


def _suits(item: StockItem, owner: Identity, plan: PreprocessingPlan) -> bool:
    return item.owner == owner and item.plan.digest == plan.digest
