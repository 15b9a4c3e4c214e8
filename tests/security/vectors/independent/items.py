"""Correlated randomness, item by item, after docs/protocol.md, Encodings and test vectors.

Arrays are flat here, and nested where they are shown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from itertools import chain, combinations, product
from math import prod
from operator import xor
from typing import Any

from tests.security.vectors.independent.streams import (
    WORD,
    Given,
    Refused,
    Stream,
    from_hex,
    joint_seed,
    pack,
    pack_planes,
)


def nested(flat: Sequence[int], *shape: int) -> list[Any]:
    if len(shape) == 1:
        return list(flat)
    size = prod(shape[1:])
    return [nested(flat[size * place :][:size], *shape[1:]) for place in range(shape[0])]


def added(shares: Sequence[Sequence[int]], bits: int) -> list[int]:
    return [sum(column) % (1 << bits) for column in zip(*shares, strict=True)]


def xored(shares: Sequence[Sequence[int]]) -> list[int]:
    return [reduce(xor, column) for column in zip(*shares, strict=True)]


def missing(secret: Sequence[int], others: Sequence[Sequence[int]], bits: int) -> list[int]:
    """What the last party must have for the sum to be the secret."""
    return [
        (value - sum(drawn)) % (1 << bits) for value, *drawn in zip(secret, *others, strict=True)
    ]


Correction = tuple[bytes, list[Given]]


def triples(fields: Sequence[int], keys: Sequence[bytes], index: int) -> Correction:
    kind, count = fields
    streams = [Stream(key, index) for key in keys]
    if kind == 3:
        free = [[stream.bits(count)] for stream in streams]
    else:
        free = [[stream.words(count), stream.words(count)] for stream in streams]
    drawn = [stream.words(count) for stream in streams[:-1]]
    shares = list(zip(*free, strict=True))
    if kind == 1:
        a, b = (added(of, WORD) for of in shares)
        last = missing([x * y for x, y in zip(a, b, strict=True)], drawn, WORD)
    elif kind == 2:
        a, b = (xored(of) for of in shares)
        last = xored([[x & y for x, y in zip(a, b, strict=True)], *drawn])
    else:
        last = missing(xored(shares[0]), drawn, WORD)
    names = ("a", "c") if kind == 3 else ("a", "b", "c")
    parts = [
        dict(zip(names, (*own, c), strict=True))
        for own, c in zip(free, [*drawn, last], strict=True)
    ]
    return pack(last, WORD), parts


def rotation(fields: Sequence[int], keys: Sequence[bytes], index: int) -> Correction:
    rows, classes = fields
    bits = max(1, (classes - 1).bit_length())
    places = 1 << bits
    streams = [Stream(key, index) for key in keys]
    positions = [[word % places for word in stream.words(rows)] for stream in streams]
    drawn = [stream.words(rows * places) for stream in streams[:-1]]
    unit = [int(place == t) for t in added(positions, bits) for place in range(places)]
    last = missing(unit, drawn, WORD)
    parts = [
        {"position": own, "unit": nested(units, rows, places)}
        for own, units in zip(positions, [*drawn, last], strict=True)
    ]
    return pack(last, WORD), parts


def unmasking(fields: Sequence[int], keys: Sequence[bytes], index: int) -> Correction:
    pointers, pointer_bits, flags, bits = fields
    places = 1 << pointer_bits
    streams = [Stream(key, index) for key in keys]
    pointed, flagged, drawn = [], [], []
    for stream in streams:
        pointed.append([mask % places for mask in stream.numbers(pointers, 2)])
        flagged.append(stream.bits(flags))
    for stream in streams[:-1]:
        drawn.append(stream.values(pointers * places + flags, bits))
    units = [int(place == t) for t in xored(pointed) for place in range(places)]
    last = missing(units + xored(flagged), drawn, bits)
    parts = [
        {
            "pointer_masks": masks,
            "units": nested(numbers, pointers, places),
            "flag_masks": mask_bits,
            "flags": numbers[pointers * places :],
        }
        for masks, mask_bits, numbers in zip(pointed, flagged, [*drawn, last], strict=True)
    ]
    return pack_planes(last, bits), parts


class Level:
    """The shapes of a level, its secrets, and what a party reads."""

    vectors: int
    group: int
    bits: int
    label_bits: int
    labelled: bool
    last: bool

    def __init__(self, fields: Sequence[Any]) -> None:
        self.vectors, self.group, self.bits, self.label_bits, self.labelled, self.last = fields
        self.pairs = list(combinations(range(self.group), 2))
        self.cells = self.group * self.vectors
        self.wins = (self.group - 1).bit_length()
        low = self.bits - 1
        self.count = count = -(-low // 6)
        ends = [low * (count - k) // count for k in range(count + 1)]
        self.digits = [(ends[k + 1], ends[k] - ends[k + 1]) for k in range(count)]
        self.table_bytes = (1 << max(width for _, width in self.digits)) // 8
        self.masks = (1 << (count - 1)) + (1 << count) - 1
        self.widths = self._widths()

    def _widths(self) -> list[int]:
        if self.last:
            return [self.label_bits] * (2 if self.labelled else 1)
        carried = [max(self.bits, self.label_bits), self.bits]
        return carried + ([self.label_bits] if self.labelled else [])

    @property
    def compared(self) -> int:
        return len(self.pairs) * self.vectors

    @property
    def looked_up(self) -> int:
        return 2 * self.count - 1

    @property
    def entries(self) -> int:
        return (1 << self.wins) * self.cells

    def free(self, stream: Stream) -> Given:
        r = stream.values(self.cells, self.bits)
        s = stream.values(self.cells, self.wins)
        q = stream.values(self.cells, self.label_bits) if self.labelled else None
        return {"r": r, "s": s, "q": q}

    def drawn(self, stream: Stream) -> Given:
        return {
            "tables": stream.numbers(self.looked_up * self.compared, self.table_bytes),
            "masks": stream.values(self.masks * self.compared, self.wins),
            "chosen": [stream.values(self.entries, width) for width in self.widths],
        }

    def secret(self, free: Sequence[Given], flips: Sequence[int]) -> Given:
        """What all parties' shares make, from what is free and the secret bits."""
        r = added([own["r"] for own in free], self.bits)
        s = added([own["s"] for own in free], self.wins)
        q = added([own["q"] for own in free], self.label_bits) if self.labelled else []
        tables: list[list[int]] = [[] for _ in range(self.looked_up)]
        masks: list[list[int]] = [[] for _ in range(self.masks)]
        # Pair by pair and vector by vector, which is the order of each table and mask.
        for place, ((i, j), v) in enumerate(product(self.pairs, range(self.vectors))):
            rho = (r[i * self.vectors + v] - r[j * self.vectors + v]) % (1 << self.bits)
            bits = flips[place :: self.compared]
            for table, number in zip(tables, self._tables(rho, bits), strict=True):
                table.append(number)
            for mask, number in zip(masks, self._masks(rho, bits), strict=True):
                mask.append(number)
        return {
            "tables": list(chain(*tables)),
            "masks": list(chain(*masks)),
            "chosen": [self._chosen(s, values) for values in self._values(r, q)],
        }

    def _tables(self, rho: int, flips: Sequence[int]) -> Iterator[int]:
        digits = [(rho >> shift) % (1 << width) for shift, width in self.digits]
        every = range(8 * self.table_bytes)
        for digit, alpha in zip(digits, flips, strict=False):
            yield sum((int(x < digit) ^ alpha) << x for x in every)
        for digit, beta in zip(digits, flips[self.count :], strict=False):
            yield sum((int(x == digit) ^ beta) << x for x in every)

    def _masks(self, rho: int, flips: Sequence[int]) -> Iterator[int]:
        nu = rho >> (self.bits - 1)
        alphas, betas = flips[: self.count], flips[self.count :]

        def signed(chosen: int) -> int:
            return (1 - 2 * nu) * prod(b for j, b in enumerate(betas) if chosen >> j & 1)

        yield nu
        for chosen in range(1, 1 << (self.count - 1)):
            yield signed(chosen)
        for k, alpha in enumerate(alphas):
            for chosen in range(1 << k):
                yield signed(chosen) * alpha

    def _values(self, r: list[int], q: list[int]) -> list[list[int]]:
        """What is looked up at the end, for each contestant and vector."""
        if self.last and not self.labelled:
            return [[i for i in range(self.group) for _ in range(self.vectors)]]
        carried = [[1] * self.cells] if self.last else [[1] * self.cells, r]
        return carried + ([q] if self.labelled else [])

    def _chosen(self, s: Sequence[int], values: Sequence[int]) -> list[int]:
        size = 1 << self.wins
        won = [(mask + self.group - 1) % size for mask in s]
        return [
            value if at == place else 0
            for place in range(size)
            for at, value in zip(won, values, strict=True)
        ]

    def correction(self, secret: Given, others: Sequence[Given]) -> Given:
        """The last party's values."""
        return {
            "tables": xored([secret["tables"], *(own["tables"] for own in others)]),
            "masks": missing(secret["masks"], [own["masks"] for own in others], self.wins),
            "chosen": [
                missing(table, [own["chosen"][number] for own in others], width)
                for number, (table, width) in enumerate(
                    zip(secret["chosen"], self.widths, strict=True)
                )
            ],
        }

    def wire(self, correction: Given) -> bytes:
        chosen = zip(correction["chosen"], self.widths, strict=True)
        return b"".join(
            [
                pack(correction["tables"], 8 * self.table_bytes),
                pack_planes(correction["masks"], self.wins),
                *(pack_planes(table, width) for table, width in chosen),
            ]
        )

    def part(self, free: Given, corrected: Given, last: bool) -> Given:
        """As a party keeps it."""
        pairs = len(self.pairs)
        masks = nested(corrected["masks"], self.masks, self.compared)
        ring = 1 << self.wins
        products = masks[: 1 << (self.count - 1)]
        flips = masks[1 << (self.count - 1) :]
        sign = [(int(last) - 2 * nu) % ring for nu in masks[0]]
        steps: list[list[int]] = []
        for k in range(self.count):
            for chosen in range(1 << k):
                of = sign if chosen == 0 else products[chosen]
                flip = flips[len(steps)]
                steps.append([(b - 2 * f) % ring for b, f in zip(of, flip, strict=True)])
        size = (self.group, self.vectors)

        def by_pair(rows: Sequence[Sequence[int]]) -> list[Any]:
            return [nested(row, pairs, self.vectors) for row in rows]

        return {
            "r": nested(free["r"], *size),
            "s": nested(free["s"], *size),
            "q": nested(free["q"], *size) if self.labelled else None,
            "tables": nested(corrected["tables"], self.looked_up, pairs, self.vectors),
            "nu": by_pair(masks[:1])[0],
            "flips": by_pair(flips),
            "steps": by_pair(steps),
            "chosen": [nested(table, ring, *size) for table in corrected["chosen"]],
        }


def level(fields: Sequence[Any], keys: Sequence[bytes], index: int) -> Correction:
    shape = Level(fields)
    streams = [Stream(key, index) for key in keys]
    free = [shape.free(stream) for stream in streams]
    flips = Stream(joint_seed(keys), index).bytes(shape.looked_up * shape.compared)
    drawn = [shape.drawn(stream) for stream in streams[:-1]]
    last = shape.correction(shape.secret(free, [byte & 1 for byte in flips]), drawn)
    ranks = zip(free, [*drawn, last], strict=True)
    parts = [shape.part(own, rest, rank == len(keys) - 1) for rank, (own, rest) in enumerate(ranks)]
    return shape.wire(last), parts


ITEMS: dict[str, Callable[[Sequence[Any], Sequence[bytes], int], Correction]] = {
    "triples": triples,
    "level": level,
    "rotation": rotation,
    "bit_conversion": unmasking,
}


def correct(item: Sequence[Any], keys: Sequence[bytes], index: int) -> Correction:
    """The correction of an item, and all parties' parts."""
    kind, *fields = item
    return ITEMS[kind](fields, keys, index)


def expand_last(given: Given) -> Given:
    """Corrections have one length, whatever the keys are."""
    correction, parts = correct(given["item"], [bytes(32), bytes.fromhex(given["key"])], 0)
    if len(given["correction"]) != 2 * len(correction):
        raise Refused("another length")
    return parts[-1]


def corrected(given: Given) -> Given:
    correction, parts = correct(given["item"], from_hex(given["keys"]), given["index"])
    return {"correction": correction.hex(), "parts": parts}
