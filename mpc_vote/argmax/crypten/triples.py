"""Preprocessing of CrypTen's engines: products, conjunctions and shared bits, over 64-bit words."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, ClassVar, Self

import numpy as np

from mpc_vote.mpc.preprocessing import Item, require
from mpc_vote.mpc.prg import SeedStream, Words

_WORD_BYTES = 8


class TripleKind(enum.IntEnum):
    """Kinds of triples; the numbers are those of the wire."""

    PRODUCT = 1
    CONJUNCTION = 2
    BIT = 3


_KINDS = frozenset(kind.value for kind in TripleKind)

MAX_TRIPLES = 1 << 24


@dataclass(frozen=True)
class TriplePart:
    """One party's part: a, b, c; of a BIT, xor share a and sum share c."""

    a: Words
    b: Words
    c: Words

    def __repr__(self) -> str:
        return "TriplePart(hidden)"


@dataclass(frozen=True)
class Triples(Item[TriplePart]):
    """`count` triples of a kind: c = a*b, c = a&b, or c = a in the other sharing."""

    wire_name: ClassVar[str] = "triples"

    kind: TripleKind
    count: int

    @classmethod
    def read(cls, fields: Mapping[str, Any]) -> Self:
        require(fields["kind"] in _KINDS, "an item's kind or size")
        return super().read({**fields, "kind": TripleKind(fields["kind"])})

    def check(self) -> None:
        require(0 < self.count <= MAX_TRIPLES, "an item's kind or size")

    @property
    def correction_bytes(self) -> int:
        return _WORD_BYTES * self.count

    @property
    def part_bytes(self) -> int:
        return 3 * _WORD_BYTES * self.count

    def expand(self, seed: bytes, index: int, correction: bytes | None) -> TriplePart:
        stream = SeedStream(seed, index)
        if self.kind is TripleKind.BIT:
            a = b = stream.bits(self.count)
        else:
            a = stream.words(self.count)
            b = stream.words(self.count)
        if correction is None:
            return TriplePart(a, b, stream.words(self.count))
        if len(correction) != self.correction_bytes:
            raise ValueError(
                f"a correction of {len(correction)} bytes, not {self.correction_bytes}"
            )
        return TriplePart(a, b, np.frombuffer(correction, dtype="<u8"))

    def correct(self, seeds: Sequence[bytes], index: int) -> bytes:
        parts = [self.expand(seed, index, None) for seed in seeds]
        free = [part.c for part in parts[:-1]]
        if self.kind is TripleKind.PRODUCT:
            words = _sum(p.a for p in parts) * _sum(p.b for p in parts) - _sum(free)
        elif self.kind is TripleKind.CONJUNCTION:
            words = (_xor(p.a for p in parts) & _xor(p.b for p in parts)) ^ _xor(free)
        else:
            words = _xor(p.a for p in parts) - _sum(free)
        return words.tobytes()


def _sum(words: Iterable[Words]) -> Words:
    return reduce(np.add, words)


def _xor(words: Iterable[Words]) -> Words:
    return reduce(np.bitwise_xor, words)
