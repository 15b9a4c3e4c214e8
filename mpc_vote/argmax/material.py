"""Correlated randomness: what the dealer makes and how a party turns it into shares.

Each party holds a seed that only it and the dealer know, and expands its part of every item from
it. The last party's part of the dependent value (the product, the conjunction, the arithmetic form
of a bit) can't be free, so the dealer sends it: the correction. Without the dealer's view, the
parts of any P-1 parties are uniform and independent of the values that they are parts of. An item
is used once: it has a stream number of its own, and streams are taken in order.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Protocol

import numpy as np

from mpc_vote.csprng import SeedStream, Words


class ItemKind(enum.IntEnum):
    """Kinds of items; the numbers are those of the wire."""

    PRODUCT = 1
    CONJUNCTION = 2
    BIT = 3


@dataclass(frozen=True)
class Item:
    """A request for `count` elements of a kind."""

    kind: ItemKind
    count: int


@dataclass(frozen=True)
class Part:
    """One party's part of an item: a, b, c; of a BIT, xor share a and sum share c."""

    a: Words
    b: Words
    c: Words

    def __repr__(self) -> str:
        return "Part(hidden)"


class Material(Protocol):
    """Where an engine gets its parts from, in the order in which it asks."""

    def announce(self, items: Sequence[Item]) -> None:
        """Says what will be asked for next, so that it can be on its way."""
        ...

    def take(self, item: Item) -> Part:
        """This party's part of the next item."""
        ...


def expand(seed: bytes, index: int, item: Item, correction: Words | None) -> Part:
    """A party's part of item number `index`; the last party passes its correction."""
    stream = SeedStream(seed, index)
    if item.kind is ItemKind.BIT:
        a = b = stream.bits(item.count)
    else:
        a = stream.words(item.count)
        b = stream.words(item.count)
    c = stream.words(item.count) if correction is None else correction
    return Part(a, b, c)


def correct(seeds: Sequence[bytes], index: int, item: Item) -> Words:
    """The last party's dependent part of item number `index`: the dealer's work."""
    parts = [expand(seed, index, item, None) for seed in seeds]
    free = [part.c for part in parts[:-1]]
    if item.kind is ItemKind.PRODUCT:
        return _sum(p.a for p in parts) * _sum(p.b for p in parts) - _sum(free)
    if item.kind is ItemKind.CONJUNCTION:
        return (_xor(p.a for p in parts) & _xor(p.b for p in parts)) ^ _xor(free)
    return _xor(p.a for p in parts) - _sum(free)


def _sum(words: Iterable[Words]) -> Words:
    return reduce(np.add, words)


def _xor(words: Iterable[Words]) -> Words:
    return reduce(np.bitwise_xor, words)
