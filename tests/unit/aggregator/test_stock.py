"""What a party keeps in stock, and for whom."""

from __future__ import annotations

import asyncio
import gc
import weakref
from typing import Any

from aggregator.party.stock import MAX_ITEMS, MAX_OF_A_SHAPE, Dealt, Stock, StockItem, footprint
from mpc_vote.argmax.crypten.triples import TripleKind, Triples
from mpc_vote.mpc.preprocessing import PreprocessingPlan, Run
from mpc_vote.pki.identity import Identity, Role

ALICE, BOB = (Identity(Role.COORDINATOR, name) for name in ("alice", "bob"))


def plan(count: int = 500) -> PreprocessingPlan:
    return PreprocessingPlan((Run((Triples(TripleKind.PRODUCT, count),), 2),))


SIZE = footprint(plan())
AGES = 3_600.0


async def _dealt() -> Dealt:
    never: Any = None
    return Dealt(never)


def item(name: str, owner: Identity = ALICE, count: int = 500) -> StockItem:
    return StockItem(name, owner, plan(count), asyncio.create_task(_dealt()))


def names(stock: Stock) -> list[str]:
    return [one.session_id for one in stock._items]


async def test_the_oldest_is_taken_first_and_once() -> None:
    stock = Stock(10 * SIZE, AGES)
    for name in ("a", "b"):
        stock.put(item(name))
    taken = [stock.take(ALICE, plan()) for _ in range(3)]
    assert [one and one.session_id for one in taken] == ["a", "b", None]


async def test_an_item_is_for_its_plan_and_its_coordinator() -> None:
    stock = Stock(10 * SIZE, AGES)
    stock.put(one := item("a"))
    assert stock.take(ALICE, plan(499)) is None and stock.take(BOB, plan()) is None
    assert stock.take_named(one.key, BOB, plan()) is None
    assert stock.take_named(item("b").key, ALICE, plan()) is None
    assert stock.take_named(one.key, ALICE, plan()) is one
    assert stock.take_named(one.key, ALICE, plan()) is None


async def test_the_stock_is_bounded_in_bytes_and_the_oldest_goes_first() -> None:
    stock = Stock(2 * SIZE, AGES)
    for name in ("a", "b", "c"):
        stock.put(item(name))
    assert names(stock) == ["b", "c"] and stock.held == 2 * SIZE
    assert not stock.fits(plan(2_000))


async def test_the_stock_is_bounded_in_items_of_a_plan_and_in_all() -> None:
    stock = Stock(1_000 * SIZE, AGES)
    for number in range(MAX_OF_A_SHAPE + 1):
        stock.put(item(f"same-{number}"))
    assert names(stock) == [f"same-{number}" for number in range(1, MAX_OF_A_SHAPE + 1)]
    for number in range(MAX_ITEMS):
        stock.put(item(f"other-{number}", count=100 + number))
    assert names(stock) == [f"other-{number}" for number in range(MAX_ITEMS)]


async def test_a_coordinator_with_many_plans_pushes_out_its_own_items_alone() -> None:
    stock = Stock(4 * SIZE, AGES)
    stock.put(item("bob", BOB))
    for number in range(8):
        stock.put(item(f"alice-{number}", count=500 - number))
    assert "bob" in names(stock)
    assert stock.take(BOB, plan()) is not None


async def test_one_that_is_still_being_dealt_ends_when_it_is_dropped() -> None:
    stock = Stock(10 * SIZE, AGES)
    never = asyncio.create_task(asyncio.Event().wait())
    unfinished: Any = never
    stock.put(one := StockItem("a", ALICE, plan(), unfinished))
    stock.clear()
    assert not names(stock) and await one.dealt(AGES) is None and never.cancelled()


async def test_an_item_has_its_age() -> None:
    stock = Stock(10 * SIZE, 0.01)
    stock.put(item("a"))
    async with asyncio.timeout(10):
        while names(stock):
            await asyncio.sleep(0.01)


async def test_nothing_keeps_an_item_that_was_taken_or_dropped() -> None:
    """Its corrections are most of a party's memory, and its key opens what the round hid."""
    stock = Stock(2 * SIZE, AGES)
    kept = []
    for name in ("taken", "pushed out", "dropped", "held"):
        stock.put(one := item(name))
        await one.dealt(AGES)
        kept.append(weakref.ref(one.making))
        if name == "taken":
            stock.take(ALICE, plan())
        del one
    gc.collect()
    assert [ref() is not None for ref in kept] == [False, False, True, True]
    stock.clear()
    gc.collect()
    assert not any(ref() for ref in kept)
