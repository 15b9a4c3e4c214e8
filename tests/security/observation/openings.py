"""What the parties open to each other, exchange by exchange: what it means and what hides it.

Both engines open values under masks of the dealer's making: x + m modulo 2^bits, or x xor m. Each
party has its own part of m. Who knows all parts, as the dealer and the test do, takes the mask off
and sees x; whoever lacks one party's part sees what looks random.

CrypTen's engine opens with each item of preprocessing: x - a and y - b for a product, x xor a and y
xor b for a conjunction, x xor a for a bit. The table engine opens three times at each level:

1. `totals`, each under r; and from the second level on the contestants' `labels` under q;
2. `comparisons`: for each pair, of each digit of the public masked difference whether it is less
   than that of rho, under alpha, and for all but the lowest whether it is equal, under beta;
3. `wins`: each contestant's number, under s.

Before that, verified ballots are opened under masks, see `ballot_openings`.

Parts of alpha and beta are entries of the parties' tables. No digit is below the truth table's
last entry, so there it holds alpha alone; the entry next to rho's own digit holds beta alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
import numpy.typing as npt

from mpc_vote.argmax.crypten.triples import TripleKind, TriplePart, Triples
from mpc_vote.argmax.table.engine import TableArgmax
from mpc_vote.argmax.table.level import LevelPart, LevelTables, pair_indices
from mpc_vote.mpc import ring
from mpc_vote.mpc.preprocessing import Item
from mpc_vote.verified.bit_conversion import BitConversion

Array = npt.NDArray[Any]
Words = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class Opening:
    """Values of so many bits: each party's share of them, and its part of what hides them."""

    what: str
    bits: int
    by_xor: bool
    shares: Sequence[Words]
    masks: Sequence[Words]

    @property
    def opened(self) -> Words:
        """What every party sees."""
        return self._added(self.shares)

    def without(self, ranks: Iterable[int]) -> Words:
        """What is left when these parties take their masks off."""
        masks = [self.masks[rank] for rank in ranks]
        if self.by_xor:
            return self._added([self.opened, *masks])
        return self._added([self.opened, *(np.uint64(0) - mask for mask in masks)])

    def _added(self, arrays: Sequence[Words]) -> Words:
        total = reduce(np.bitwise_xor if self.by_xor else np.add, arrays)
        return total & np.uint64((1 << self.bits) - 1)


def table_openings(
    engine: TableArgmax,
    rows: int,
    classes: int,
    parts: Sequence[Sequence[LevelPart]],
    payloads: Sequence[Sequence[bytes]],
) -> Iterator[tuple[LevelTables, list[Opening]]]:
    """By level, what one run of the table engine opens.

    `parts` are by rank and item; `payloads` by exchange and rank, and all of them are used.
    """
    items = engine.plan(rows, classes, len(parts))
    if len(items) != len(engine.levels(classes)):
        raise ValueError("a level was dealt in several items")
    if len(payloads) != 3 * len(items):
        raise ValueError(f"{len(payloads)} exchanges for {len(items)} levels")
    for number, level in enumerate(items):
        if not isinstance(level, LevelTables):
            raise ValueError(f"{level} is no level")
        own = [held[number] for held in parts]
        first, second, third = payloads[3 * number : 3 * number + 3]
        yield level, list(_of_level(level, own, first, second, third))


def _of_level(
    level: LevelTables,
    parts: Sequence[LevelPart],
    first: Sequence[bytes],
    second: Sequence[bytes],
    third: Sequence[bytes],
) -> Iterator[Opening]:
    cells = (level.group, level.vectors)
    size = ring.planes_size(level.group * level.vectors, level.bits)
    masks = [_words(part.r) for part in parts]
    shares = [_planes(payload[:size], level.bits, cells) for payload in first]
    totals = Opening("totals", level.bits, False, shares, masks)
    yield totals
    if level.labelled:
        labels = [_planes(payload[size:], level.label_bits, cells) for payload in first]
        held = [_words(part.q) for part in parts if part.q is not None]
        yield Opening("labels", level.label_bits, False, labels, held)
    elif any(len(payload) != size for payload in first):
        raise ValueError("more is opened than totals")

    looked_up = [_bits(payload, (level.lookups, level.pairs, level.vectors)) for payload in second]
    rho = differences(reduce(np.add, masks), level)
    yield Opening("comparisons", 1, True, looked_up, [_flips(level, part, rho) for part in parts])

    wins = [_planes(payload, level.win_bits, cells) for payload in third]
    yield Opening("wins", level.win_bits, False, wins, [_words(part.s) for part in parts])


def differences(values: Words, level: LevelTables) -> Words:
    """Of all pairs of contestants, modulo the ring."""
    upper, lower = pair_indices(level.group)
    return (values[upper] - values[lower]) & np.uint64((1 << level.bits) - 1)


def digits(values: Words, level: LevelTables) -> list[Words]:
    """From the top, those of the bits below the highest."""
    return [
        values >> np.uint64(shift) & np.uint64((1 << width) - 1) for shift, width in level.digits
    ]


def _flips(level: LevelTables, part: LevelPart, rho: Words) -> Words:
    """A party's parts of the alphas and betas."""
    tables = np.stack([_words(table) for table in part.tables])
    widths = [width for _, width in level.digits]
    last = [np.full(rho.shape, (1 << width) - 1, dtype=np.uint64) for width in widths]
    beside = [
        (digit + np.uint64(1)) & np.uint64((1 << width) - 1)
        for digit, width in zip(digits(rho, level), widths, strict=True)
    ]
    entries = np.stack([*last, *beside[:-1]])
    return tables >> entries & np.uint64(1)


def ballot_openings(
    items: Sequence[Item[Any]],
    parts: Sequence[Sequence[Any]],
    payloads: Sequence[Sequence[bytes]],
) -> Iterator[Opening]:
    """What is opened of verified counts of neighbours; arguments are as for the table.

    In one exchange all `pointers`, which are the votes, and then all `flags`, which are the coins.
    """
    (item,), (sent,) = items, payloads
    if not isinstance(item, BitConversion):
        raise ValueError("this is another item than that of counts")
    width, size = item.pointer_bits, ring.planes_size(item.pointers, item.pointer_bits)
    pointers = [_planes(payload[:size], width, (item.pointers, 1)) for payload in sent]
    masks = [_words(held[0].pointer_masks)[:, None] for held in parts]
    yield Opening("pointers", width, True, pointers, masks)
    flags = [_bits(payload[size:], (item.flags, 1, 1)) for payload in sent]
    masks = [_words(held[0].flag_masks)[:, None, None] for held in parts]
    yield Opening("flags", 1, True, flags, masks)


def stock_openings(
    items: Sequence[Triples],
    parts: Sequence[Sequence[TriplePart]],
    payloads: Sequence[Sequence[bytes]],
) -> Iterator[Opening]:
    """What one run of CrypTen's engine opens, item by item; arguments are as for the table."""
    if len(payloads) != len(items):
        raise ValueError(f"{len(payloads)} exchanges for {len(items)} items")
    for number, item in enumerate(items):
        shares = [np.frombuffer(payload, dtype="<u8") for payload in payloads[number]]
        own = [held[number] for held in parts]
        what = item.kind.name.lower()
        if item.kind is TripleKind.BIT:
            yield Opening(what, 1, True, shares, [part.a for part in own])
            continue
        masks = [np.concatenate([part.a, part.b]) for part in own]
        by_xor = item.kind is TripleKind.CONJUNCTION
        if not by_xor:
            masks = [np.uint64(0) - mask for mask in masks]
        yield Opening(what, ring.WORD_BITS, by_xor, shares, masks)


def expanded(
    items: Iterable[Item[Any]], seeds: Sequence[bytes], corrections: bytes
) -> list[list[Any]]:
    """Every party's parts of all items, by rank and item; all corrections are used."""
    parts: list[list[Any]] = [[] for _ in seeds]
    start = 0
    for index, item in enumerate(items):
        end = start + item.correction_bytes
        for rank, seed in enumerate(seeds):
            correction = corrections[start:end] if rank == len(seeds) - 1 else None
            parts[rank].append(item.expand(seed, index, correction))
        start = end
    if start != len(corrections):
        raise ValueError(f"{len(corrections)} bytes of corrections, {start} of them used")
    return parts


def _planes(payload: bytes, bits: int, shape: tuple[int, int]) -> Words:
    return _words(ring.unpack_planes(payload, bits, shape[0] * shape[1])).reshape(shape)


def _bits(payload: bytes, shape: tuple[int, int, int]) -> Words:
    count = shape[0] * shape[1] * shape[2]
    if len(payload) != ring.packed_size(count, 1):
        raise ValueError(f"{len(payload)} bytes for {count} bits")
    bits = np.unpackbits(np.frombuffer(payload, np.uint8), bitorder="little", count=count)
    return _words(bits).reshape(shape)


def _words(values: Array) -> Words:
    return values.astype(np.uint64)
