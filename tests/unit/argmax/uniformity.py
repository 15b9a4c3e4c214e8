"""Whether what somebody sees looks as if it was drawn uniformly, and pairwise independent.

A view is a number of named things, each with as many independent samples as there are rows. If all
is uniform then each bit, and each xor of two bits, is a fair coin. Coins are judged by Hoeffding's
bound, which holds exactly, values of a few bits by chi-square. Each kind of comparison raises a
false alarm with probability FALSE_ALARM, split evenly over all that are made of a view.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy import stats

from tests.unit.argmax.dealt import Array

FALSE_ALARM = 1e-10
CELL_BITS = 4


@dataclass(frozen=True)
class Seen:
    """Something that a coalition sees or computes, as rows by positions of so many bits."""

    values: Array
    bits: int

    @cached_property
    def coins(self) -> Array:
        """Bits by rows, the rows packed in words."""
        spread = self.values.T[:, None, :] >> np.arange(self.bits, dtype=np.uint64)[:, None]
        return packed((spread & np.uint64(1)).reshape(-1, len(self.values)))

    def cells(self) -> Iterator[Array]:
        """For a few bits of the values at a time, how often each occurs: positions by values."""
        for start in range(0, self.bits, CELL_BITS):
            size = 1 << min(CELL_BITS, self.bits - start)
            cut = (self.values >> np.uint64(start)).astype(np.intp) & (size - 1)
            cut += size * np.arange(cut.shape[1])
            counts = np.bincount(cut.reshape(-1), minlength=size * cut.shape[1])
            yield counts.reshape(-1, size)


View = dict[str, Seen]


def packed(bits: Array) -> Array:
    """Rows of bits, 64 to a word."""
    return np.packbits(bits.astype(np.uint8), axis=-1).view(np.uint64)


def excess(coins: Array) -> Array:
    """Of packed rows of coins, by how much one side came up more often than the other."""
    heads = np.bitwise_count(coins).sum(axis=-1, dtype=np.int64)
    found: Array = np.abs(2 * heads - rows_of(coins))
    return found


def rows_of(coins: Array) -> int:
    """Samples of each coin."""
    return 64 * int(coins.shape[-1])


def limit(rows: int, comparisons: int) -> float:
    """Hoeffding: R fair coins have an excess of t or more with probability 2 exp(-t^2 / 2R)."""
    return math.sqrt(2 * rows * math.log(2 * comparisons / FALSE_ALARM))


def count(seen: View) -> tuple[int, int]:
    """Rows, and coins in each."""
    things = list(seen.values())
    return rows_of(things[0].coins), sum(len(thing.coins) for thing in things)


def suspicions(seen: View, secrets: Array | None = None) -> set[str]:
    """Names under which something is not uniform, or goes with a secret: "one", "one & other"."""
    found = {*odd_values(seen), *odd_pairs(seen)}
    return found if secrets is None else found.union(odd_with_secrets(seen, secrets))


def odd_values(seen: View) -> Iterator[str]:
    """Single bits that are not fair, and values that are not uniform by chi-square."""
    rows, comparisons = count(seen)
    for name, thing in seen.items():
        if excess(thing.coins).max() > limit(rows, comparisons):
            yield name
        for counts in thing.cells():
            if stats.chisquare(counts, axis=1).pvalue.min() < FALSE_ALARM / comparisons:
                yield name


def odd_pairs(seen: View) -> Iterator[str]:
    """Pairs of bits that are not independent: of all things, but of two words of tables."""
    names, things = list(seen), list(seen.values())
    starts = np.cumsum([0, *[len(thing.coins) for thing in things]])[:-1]
    everything = np.concatenate([thing.coins for thing in things])
    bound = limit(rows_of(everything), len(everything) ** 2)
    for name, thing, start in zip(names, things, starts, strict=True):
        if name.endswith("tables"):
            for word in thing.coins.reshape(-1, thing.bits, thing.coins.shape[1]):
                within = excess(word[:, None] ^ word)
                np.fill_diagonal(within, 0)
                if within.max() > bound:
                    yield pair(name, name)
            continue
        for place, coins in enumerate(thing.coins, start):
            found = excess(coins ^ everything)
            found[place] = 0
            for number in np.flatnonzero(np.maximum.reduceat(found, starts) > bound):
                yield pair(name, names[number])


def pair(one: str, other: str) -> str:
    """The name of two things together."""
    return " & ".join(sorted((one, other)))


def odd_with_secrets(seen: View, secrets: Array) -> Iterator[str]:
    """Bits that go with a secret, and xors of two opened bits that do."""
    rows, coins_seen = count(seen)
    for name, thing in seen.items():
        if excess(thing.coins[:, None] ^ secrets).max() > limit(rows, coins_seen * len(secrets)):
            yield f"{name} & secrets"
    public = np.concatenate(
        [t.coins for name, t in seen.items() if name.endswith(("opening", "differences"))]
    )
    bound = limit(rows, len(public) ** 2 * len(secrets))
    for place, coins in enumerate(public):
        found = excess((coins ^ public)[:, None] ^ secrets)
        # With itself it is the secret alone, which need not be fair.
        found[place] = 0
        if found.max() > bound:
            yield "openings & openings & secrets"


def told_apart(one: View, other: View) -> set[str]:
    """Names of what differs between two views, by the mean of a bit or by chi-square."""
    sizes = [{n: (t.values.shape, t.bits) for n, t in seen.items()} for seen in (one, other)]
    assert sizes[0] == sizes[1]
    rows, comparisons = count(one)
    # Of two sums of R coins: a sum of 2R, with the sign of half of them changed.
    bound = math.sqrt(2) * limit(rows, comparisons)
    found = set()
    for name, thing in one.items():
        heads = [
            np.bitwise_count(t.coins).sum(axis=1, dtype=np.int64) for t in (thing, other[name])
        ]
        if 2 * np.abs(heads[0] - heads[1]).max() > bound:
            found.add(name)
        for left, right in zip(thing.cells(), other[name].cells(), strict=True):
            if two_samples(left, right).min() < FALSE_ALARM / comparisons:
                found.add(name)
    return found


def two_samples(left: Array, right: Array) -> Array:
    """By position, the p-value of the chi-square test that two samples of one size are alike."""
    both = np.maximum(left + right, 1)
    statistic = ((left - right) ** 2 / both).sum(axis=1)
    return np.asarray(stats.chi2.sf(statistic, left.shape[1] - 1))
