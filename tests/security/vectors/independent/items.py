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


Polynomial = dict[frozenset[str], int]


def times(one: Polynomial, other: Polynomial) -> Polynomial:
    found: Polynomial = {}
    for (left, x), (right, y) in product(one.items(), other.items()):
        found[left | right] = found.get(left | right, 0) + x * y
    return found


def unflipped(name: str, flip: int) -> Polynomial:
    """An opened bit xor its flip."""
    return {frozenset(): flip, frozenset([name]): 1 - 2 * flip}


class Comparison:
    """All pairs of contestants: shapes, and what is looked up."""

    def __init__(self, vectors: int, group: int, bits: int) -> None:
        self.vectors, self.group, self.bits = vectors, group, bits
        self.pairs = list(combinations(range(group), 2))
        self.cells = group * vectors
        low = bits - 1
        self.count = count = -(-low // 6)
        widths = [low // count + (k >= count - low % count) for k in range(count)]
        self.digits = [(sum(widths[k + 1 :]), width) for k, width in enumerate(widths)]
        # In bytes: less of all digits, then equal of all but the last.
        sizes = [max(1, (1 << width) // 8) for width in widths]
        self.table_bytes = sizes + sizes[:-1]
        equals = [f"e{k}" for k in range(count)]
        self.terms = [
            *(self._set(equals, chosen) for chosen in range(1 << (count - 1))),
            *(
                self._set(equals, chosen) | {f"a{k}"}
                for k in range(count)
                for chosen in range(1 << k)
            ),
        ]

    @staticmethod
    def _set(names: Sequence[str], chosen: int) -> frozenset[str]:
        return frozenset(name for place, name in enumerate(names) if chosen >> place & 1)

    @property
    def compared(self) -> int:
        return len(self.pairs) * self.vectors

    def flips(self, stream: Stream) -> list[int]:
        return stream.bits(len(self.table_bytes) * self.compared)

    def drawn_tables(self, stream: Stream) -> list[list[int]]:
        return [stream.numbers(self.compared, size) for size in self.table_bytes]

    def packed_tables(self, tables: Sequence[Sequence[int]]) -> bytes:
        sized = zip(tables, self.table_bytes, strict=True)
        return b"".join(pack(table, 8 * size) for table, size in sized)

    def secret_of_pairs(
        self, r: Sequence[int], flips: Sequence[int]
    ) -> tuple[list[list[int]], list[list[int]]]:
        """Tables and coefficients, each pair by pair and vector by vector."""
        tables: list[list[int]] = [[] for _ in self.table_bytes]
        coefficients: list[list[int]] = [[] for _ in self.terms]
        for place, ((i, j), v) in enumerate(product(self.pairs, range(self.vectors))):
            rho = (r[i * self.vectors + v] - r[j * self.vectors + v]) % (1 << self.bits)
            bits = flips[place :: self.compared]
            for table, number in zip(tables, self._tables(rho, bits), strict=True):
                table.append(number)
            y = self._polynomial(rho >> (self.bits - 1), bits)
            assert y.keys() <= set(self.terms)
            for of, term in zip(coefficients, self.terms, strict=True):
                of.append(y.get(term, 0))
        return tables, coefficients

    def _tables(self, rho: int, flips: Sequence[int]) -> Iterator[int]:
        digits = [(rho >> shift) % (1 << width) for shift, width in self.digits]
        for number, (flip, size) in enumerate(zip(flips, self.table_bytes, strict=True)):
            digit = digits[number % self.count]
            holds = [x < digit if number < self.count else x == digit for x in range(8 * size)]
            yield sum((one ^ flip) << x for x, one in enumerate(holds))

    def _polynomial(self, nu: int, flips: Sequence[int]) -> Polynomial:
        above: Polynomial = {frozenset(): 1 - 2 * nu}
        found: Polynomial = {frozenset(): nu}
        for k in range(self.count):
            for term, x in times(above, unflipped(f"a{k}", flips[k])).items():
                found[term] = found.get(term, 0) + x
            if k < self.count - 1:
                above = times(above, unflipped(f"e{k}", flips[self.count + k]))
        return found

    def by_pair(self, rows: Sequence[Sequence[int]]) -> list[Any]:
        return [nested(row, len(self.pairs), self.vectors) for row in rows]


class Level(Comparison):
    """The shapes of a level, its secrets, and what a party reads."""

    label_bits: int
    labelled: bool
    last: bool

    def __init__(self, fields: Sequence[Any]) -> None:
        vectors, group, bits, self.label_bits, self.labelled, self.last = fields
        super().__init__(vectors, group, bits)
        self.wins = int(group - 1).bit_length()
        self.widths = self._widths()

    def _widths(self) -> list[int]:
        if self.last:
            return [self.label_bits] * (2 if self.labelled else 1)
        carried = [max(self.bits, self.label_bits), self.bits]
        return carried + ([self.label_bits] if self.labelled else [])

    @property
    def entries(self) -> int:
        return self.cells << self.wins

    def free(self, stream: Stream) -> Given:
        r = stream.values(self.cells, self.bits)
        s = stream.values(self.cells, self.wins)
        q = stream.values(self.cells, self.label_bits) if self.labelled else None
        return {"r": r, "s": s, "q": q}

    def drawn(self, stream: Stream) -> Given:
        return {
            "tables": self.drawn_tables(stream),
            "coefficients": stream.values(len(self.terms) * self.compared, self.wins),
            "chosen": [stream.values(self.entries, width) for width in self.widths],
        }

    def secret(self, free: Sequence[Given], flips: Sequence[int]) -> Given:
        """What all parties' shares make, from what is free and the secret bits."""
        r = added([own["r"] for own in free], self.bits)
        s = added([own["s"] for own in free], self.wins)
        q = added([own["q"] for own in free], self.label_bits) if self.labelled else []
        tables, coefficients = self.secret_of_pairs(r, flips)
        return {
            "tables": tables,
            "coefficients": list(chain(*coefficients)),
            "chosen": [self._chosen(s, values) for values in self._values(r, q)],
        }

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
        of_others = [own["coefficients"] for own in others]
        return {
            "tables": missing_tables(secret["tables"], others),
            "coefficients": missing(secret["coefficients"], of_others, self.wins),
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
                self.packed_tables(correction["tables"]),
                pack_planes(correction["coefficients"], self.wins),
                *(pack_planes(table, width) for table, width in chosen),
            ]
        )

    def part(self, free: Given, corrected: Given) -> Given:
        """As a party keeps it."""
        size = (self.group, self.vectors)
        coefficients = nested(corrected["coefficients"], len(self.terms), self.compared)
        return {
            "r": nested(free["r"], *size),
            "s": nested(free["s"], *size),
            "q": nested(free["q"], *size) if self.labelled else None,
            "tables": self.by_pair(corrected["tables"]),
            "coefficients": self.by_pair(coefficients),
            "chosen": [nested(table, 1 << self.wins, *size) for table in corrected["chosen"]],
        }


def missing_tables(secret: Sequence[list[int]], others: Sequence[Given]) -> list[list[int]]:
    return [
        xored([table, *(own["tables"][number] for own in others)])
        for number, table in enumerate(secret)
    ]


def level(fields: Sequence[Any], keys: Sequence[bytes], index: int) -> Correction:
    shape = Level(fields)
    streams = [Stream(key, index) for key in keys]
    free = [shape.free(stream) for stream in streams]
    flips = shape.flips(Stream(joint_seed(keys), index))
    drawn = [shape.drawn(stream) for stream in streams[:-1]]
    last = shape.correction(shape.secret(free, flips), drawn)
    ranks = zip(free, [*drawn, last], strict=True)
    return shape.wire(last), [shape.part(own, rest) for own, rest in ranks]


def prime_from(least: int) -> int:
    return next(p for p in range(max(2, least), 252) if all(p % d for d in range(2, p)))


def residues(stream: Stream, modulus: int, count: int) -> list[int]:
    """Byte by byte; one that does not fit a whole number of times is skipped."""
    found: list[int] = []
    while len(found) < count:
        byte = stream.bytes(1)[0]
        if byte < 256 // modulus * modulus:
            found.append(byte % modulus)
    return found


def mark(fields: Sequence[Any], keys: Sequence[bytes], index: int) -> Correction:
    shape = Comparison(*fields)
    p = prime_from(shape.group)
    streams = [Stream(key, index) for key in keys]
    r = [stream.values(shape.cells, shape.bits) for stream in streams]
    common = Stream(joint_seed(keys), index)
    flips = shape.flips(common)
    units = [1 + x for x in residues(common, p - 1, shape.cells)]
    tables, coefficients = shape.secret_of_pairs(added(r, shape.bits), flips)
    cells = list(product(shape.pairs, range(shape.vectors)))
    numbers = [
        x * units[pair[side] * shape.vectors + v] % p
        for side in range(2)
        for of in coefficients
        for x, (pair, v) in zip(of, cells, strict=True)
    ] + units
    drawn: list[Given] = [
        {"tables": shape.drawn_tables(stream), "numbers": residues(stream, p, len(numbers))}
        for stream in streams[:-1]
    ]
    rest = [
        (x - sum(others)) % p
        for x, *others in zip(numbers, *(own["numbers"] for own in drawn), strict=True)
    ]
    last: Given = {"tables": missing_tables(tables, drawn), "numbers": rest}
    wire = shape.packed_tables(last["tables"]) + pack_planes(rest, (p - 1).bit_length())
    terms = len(shape.terms)
    parts = [
        {
            "r": nested(masks, shape.group, shape.vectors),
            "tables": shape.by_pair(own["tables"]),
            "coefficients": [
                shape.by_pair(nested(own["numbers"][half:], terms, shape.compared))
                for half in (0, terms * shape.compared)
            ],
            "units": nested(
                own["numbers"][2 * terms * shape.compared :], shape.group, shape.vectors
            ),
        }
        for masks, own in zip(r, [*drawn, last], strict=True)
    ]
    return wire, parts


ITEMS: dict[str, Callable[[Sequence[Any], Sequence[bytes], int], Correction]] = {
    "triples": triples,
    "level": level,
    "mark": mark,
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
