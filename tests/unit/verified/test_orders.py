"""In what order an agent's pointers are: uniform, fresh for every query, whatever the votes are."""

from __future__ import annotations

from collections import Counter
from itertools import permutations

import numpy as np
import pytest
from scipy import stats

from mpc_vote.mpc.prg import SeedStream
from mpc_vote.verified import encoding as layouts
from mpc_vote.verified.encoding import Layout, encode, random_orders
from tests.unit.verified.plain import pointers_of

FALSE_ALARM = 1e-7
QUERIES = 12_000
LAYOUT = Layout(classes=3, unit=16, votes=4)
BALLOTS = {
    "spare votes": [2, 1, 0],
    "no spare": [0, 3, 1],
    "all differ": [1, 1, 1],
    "none": [0] * 3,
}


def suspicion(ballot: list[int]) -> float:
    """How likely it is that uniform, independent orders give pointers like those of `encode`."""
    rows = np.array([ballot] * QUERIES) * LAYOUT.unit
    seen = pointers_of(LAYOUT, encode(LAYOUT, rows))
    cast = [*np.repeat(np.arange(3), ballot), *[3] * (4 - sum(ballot))]
    ways = sorted(set(permutations(cast)))
    assert {tuple(row) for row in seen} <= set(ways)
    if len(ways) == 1:
        return 1.0
    place = {way: number for number, way in enumerate(ways)}
    numbers = np.array([place[tuple(row)] for row in seen])
    single = np.bincount(numbers, minlength=len(ways))
    # A query beside the next one: an order that is used twice shows.
    pairs = np.bincount(numbers[::2] * len(ways) + numbers[1::2], minlength=len(ways) ** 2)
    return min(float(stats.chisquare(one).pvalue) for one in (single, pairs))


@pytest.mark.parametrize("ballot", BALLOTS.values(), ids=BALLOTS.keys())
def test_every_order_of_pointers_is_as_likely_in_every_query(ballot: list[int]) -> None:
    assert suspicion(ballot) > FALSE_ALARM


def as_they_are(rows: int, length: int) -> np.ndarray:
    return np.tile(np.arange(length), (rows, 1))


def rotated(rows: int, length: int) -> np.ndarray:
    """Every vote is in every place as often, but not every order comes up."""
    starts = np.random.default_rng(0).integers(0, length, (rows, 1))
    return (np.arange(length) + starts) % length


def one_for_two_queries(rows: int, length: int) -> np.ndarray:
    return random_orders(rows // 2, length).repeat(2, axis=0)


def with_small_keys(rows: int, length: int) -> np.ndarray:
    """Keys that are often equal, and are left in place then."""
    return np.random.default_rng(0).integers(0, 8, (rows, length)).argsort(axis=1, kind="stable")


@pytest.mark.parametrize("fault", [as_they_are, rotated, one_for_two_queries, with_small_keys])
def test_orders_that_are_not_uniform_or_not_fresh_would_be_found(
    fault: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layouts, "random_orders", fault)
    assert suspicion(BALLOTS["spare votes"]) < FALSE_ALARM


def test_orders_are_not_repeated_from_one_ballot_to_the_next() -> None:
    first, second = (random_orders(4, 30).tolist() for _ in range(2))
    assert len({tuple(order) for order in first + second}) == 8
    assert all(sorted(order) == list(range(30)) for order in first + second)


def test_rows_with_equal_keys_are_drawn_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else equal keys would stay in the order of the votes."""
    words, drawn = SeedStream.words, list[int]()

    def few(self: SeedStream, count: int) -> np.ndarray:
        drawn.append(count)
        return words(self, count) % np.uint64(6)

    monkeypatch.setattr(SeedStream, "words", few)
    orders = Counter(map(tuple, random_orders(QUERIES, 3).tolist()))
    assert len(drawn) > 1 and drawn == sorted(drawn, reverse=True)
    assert stats.chisquare(list(orders.values())).pvalue > FALSE_ALARM and len(orders) == 6
