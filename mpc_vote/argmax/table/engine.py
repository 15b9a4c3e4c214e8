"""The table engine: a secure argmax in three rounds for each level, whatever the number of parties.

Totals x_1..x_g of a vector are shared modulo 2^l, with |x| < 2^(l-2). The dealer's preprocessing is
that of `mpc_vote.argmax.table.level`.

1. Parties open x_i + r_i. For a pair i < j the public difference of two such values is d + rho,
   with d = x_i - x_j and rho = r_i - r_j. As |d| < 2^(l-1), x_i >= x_j just if the top bit of d is
   0, and that bit is top(d + rho) xor top(rho) xor [low(d + rho) < low(rho)].
2. The borrow [low(d + rho) < low(rho)] is the sum over the digits of less_k times the product of
   equal_j over the digits j above k. Parties look up the public digits in their shares of the
   flipped truth tables, which is local, and open the bits. What they find is less_k xor alpha_k and
   equal_j xor beta_j. Expanding the sum in these public bits leaves products of alphas and betas,
   which the dealer has shared modulo a power of two, so [x_i >= x_j] is shared without another
   round. A contestant's wins are a sum of these.
3. Just one contestant of a vector has g - 1 wins. Parties open wins_i + s_i, and look up in their
   shares of the last tables. The sum over i is a share of the winner's label and, if another level
   follows, of its total: x_i times the hot bit is (x_i + r_i) times it minus r_i times it, and both
   are in the tables. Labels that are shared are opened in round 1 under masks q and carried alike.

Many classes are cut into groups, whose winners meet at the next level.

Who sees what, if the dealer colludes with nobody. Every opening is a value plus a mask of its own:
r, s and q uniform in their rings, alpha and beta uniform bits, all unknown to any P-1 parties since
the missing party's share of r, s and q, and of the flipped tables, comes from a seed that only it
and the dealer know. Openings are therefore uniform and independent of the totals. What one party
sends is its share of the opening, uniform given the others' shares but for their sum. Corrections
are masked by the seeds of all other parties, and where the last party is the missing one nobody
else sees them. A table is looked up at one entry, so of the missing party's shares only that entry
becomes known, and at the tables of round 3 none. So the view of any P-1 parties can be drawn from
public values alone: sizes, uniform openings, uniform shares that sum to them. The label shares, of
which the coordinator gets all, are re-randomised by a zero sharing of the parties' own: without it,
the entries that were looked up would tell the dealer, who knows the tables, the number of wins of
each class. Nothing else leaves the committee.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mpc_vote.argmax.engine import label_bits as bits_of_label
from mpc_vote.argmax.table.level import (
    MAX_BITS,
    MAX_GROUP,
    MIN_BITS,
    Array,
    Bytes,
    LevelPart,
    LevelTables,
    pair_indices,
)
from mpc_vote.mpc import ring
from mpc_vote.mpc.channel import Channel, Openings, zero_share
from mpc_vote.mpc.preprocessing import Item, Preprocessing
from mpc_vote.mpc.prg import Words

# Comparisons of one item of preprocessing: what a processor's cache holds.
_CHUNK_PAIRS = 1 << 15
# Comparisons of one run: what a party's memory holds.
_RUN_PAIRS = 1 << 21


class TableArgmax:
    """The argmax over rows of totals shared modulo 2^bits, in groups of the given sizes by level.

    Without groups all classes meet at one level. `label_bits` is the ring of the result.
    """

    def __init__(
        self, bits: int, groups: Sequence[int] = (), label_bits: int | None = None
    ) -> None:
        if not MIN_BITS <= bits <= MAX_BITS:
            raise ValueError(
                f"the table engine's ring has {MIN_BITS} to {MAX_BITS} bits, not {bits}"
            )
        if any(not 2 <= group <= MAX_GROUP for group in groups):
            raise ValueError(f"groups have 2 to {MAX_GROUP} contestants, not {tuple(groups)}")
        if label_bits is not None and not 1 <= label_bits <= ring.WORD_BITS:
            raise ValueError(f"labels have 1 to {ring.WORD_BITS} bits, not {label_bits}")
        self.ring_bits = bits
        self.groups = tuple(groups)
        self._label_bits = label_bits

    @property
    def name(self) -> str:
        return "table " + ("x".join(map(str, self.groups)) or "all pairs")

    def largest_total(self, classes: int) -> int:
        """Differences must keep their sign."""
        return (1 << (self.ring_bits - 2)) - 1

    def label_bits(self, classes: int) -> int:
        """Label shares are modulo two to this."""
        return max(self._label_bits or 0, bits_of_label(classes))

    def levels(self, classes: int) -> list[tuple[int, int]]:
        """Groups and their size at each level."""
        sizes = list(self.groups) or ([classes] if classes > 1 else [])
        levels = []
        left = classes
        for size in sizes:
            size = min(size, left)
            if size > 1:
                left = -(-left // size)
                levels.append((left, size))
        if left != 1:
            raise ValueError(f"groups of {self.groups} leave {left} of {classes} classes")
        if any(size > MAX_GROUP for _, size in levels):
            raise ValueError(f"{classes} classes need groups: one holds at most {MAX_GROUP}")
        return levels

    def pairs(self, classes: int) -> int:
        """Comparisons per row."""
        return sum(count * size * (size - 1) // 2 for count, size in self.levels(classes))

    def block_rows(self, classes: int) -> int:
        """See `Engine`."""
        return max(8, _RUN_PAIRS // max(1, self.pairs(classes)) // 8 * 8)

    def plan(self, rows: int, classes: int, parties: int) -> list[Item[Any]]:
        """See `Engine`."""
        return [item for level in self._items(rows, classes) for item in level]

    def _items(self, rows: int, classes: int) -> list[list[LevelTables]]:
        """By level, the chunks of vectors."""
        levels = self.levels(classes)
        chunked = []
        for depth, (count, size) in enumerate(levels):
            step = max(1, _CHUNK_PAIRS // (size * (size - 1) // 2))
            vectors = count * rows
            chunks = [min(step, vectors - start) for start in range(0, vectors, step)]
            chunked.append(
                [
                    LevelTables(
                        vectors=chunk,
                        group=size,
                        bits=self.ring_bits,
                        label_bits=self.label_bits(classes),
                        labelled=depth > 0,
                        last=depth == len(levels) - 1,
                    )
                    for chunk in chunks
                ]
            )
        return chunked

    def run(
        self, totals: Words, classes: int, channel: Channel, preprocessing: Preprocessing
    ) -> Words:
        """See `Engine`; the shares are modulo 2^label_bits."""
        labels = self.winners(totals, classes, channel, preprocessing)
        return (labels + zero_share(channel, labels.size)) & self._label_mask(classes)

    def winners(
        self, totals: Words, classes: int, channel: Openings, preprocessing: Preprocessing
    ) -> Words:
        """As `run`, but the shares are not re-randomised: whoever has all of them and knows the
        preprocessing learns the ranking. They must stay with the parties."""
        rows = totals.size // classes
        # Contestants come first from here on: the rows, of which there are many, lie together.
        values: Array = totals.reshape(rows, classes).T.astype(ring.dtype_for(self.ring_bits))
        labels: Array | None = None
        constants = adds_constants(channel)
        levels = zip(self.levels(classes), self._items(rows, classes), strict=True)
        for (count, size), items in levels:
            values = _grouped(values, count, size)
            shared = None if labels is None else _grouped(labels, count, size)
            winners, chosen = _compete(_Level(items, channel, preprocessing), values, shared)
            labels = chosen.reshape(count, rows)
            if shared is None and constants:
                labels += (np.arange(count) * size).astype(labels.dtype)[:, None]
            if winners is not None:
                values = winners.reshape(count, rows)
        if labels is None:
            return np.zeros(rows, dtype=np.uint64)
        return labels.reshape(rows).astype(np.uint64) & self._label_mask(classes)

    def _label_mask(self, classes: int) -> np.uint64:
        return np.uint64((1 << self.label_bits(classes)) - 1)


def adds_constants(channel: Openings) -> bool:
    """Of public values one party's share is the value, all others' are zero."""
    return channel.rank == channel.size - 1


def _grouped(values: Array, count: int, size: int) -> Array:
    """From (contestants, rows) to (places, groups and rows).

    Places that are left over repeat the last contestant, and lose the tie against it:
    whatever the totals are, also where agents shared some that are out of range, no such place
    wins.
    """
    contestants, rows = values.shape
    if missing := count * size - contestants:
        values = np.concatenate([values, np.repeat(values[-1:], missing, axis=0)])
    groups = values.reshape(count, size, rows).transpose(1, 0, 2)
    return np.ascontiguousarray(groups).reshape(size, count * rows)


class _Level:
    """One level's items, with this party's shares of them, chunk by chunk."""

    def __init__(
        self, items: Sequence[LevelTables], channel: Openings, preprocessing: Preprocessing
    ) -> None:
        self.shape = items[0]
        self.items = items
        self.parts = [preprocessing.take(item) for item in items]
        ends = np.cumsum([item.vectors for item in items]).tolist()
        self.chunks = [
            slice(end - item.vectors, end) for item, end in zip(items, ends, strict=True)
        ]
        self.channel = channel
        self.constants = adds_constants(channel)

    def together(self, arrays: Sequence[Array]) -> Array:
        """Chunks of vectors side by side."""
        return arrays[0] if len(arrays) == 1 else np.concatenate(arrays, axis=-1)


def _compete(level: _Level, values: Array, labels: Array | None) -> tuple[Array | None, Array]:
    """Shares of the winners' totals, if they are wanted, and of their labels, per vector."""
    shape, channel = level.shape, level.channel
    masked = [(values + level.together([part.r for part in level.parts]), shape.bits)]
    if labels is not None:
        q = level.together([part.q for part in level.parts if part.q is not None])
        masked.append((labels + q, shape.label_bits))
    opened = _open_sums(channel, masked)

    looked_up = [
        _look_up(item, part.tables, opened[0][:, chunk])
        for item, part, chunk in zip(level.items, level.parts, level.chunks, strict=True)
    ]
    payloads = channel.exchange(b"".join(bits for bits, _ in looked_up))
    bits = np.bitwise_xor.reduce([np.frombuffer(payload, np.uint8) for payload in payloads])
    wins, start = [], 0
    for item, part, (mine, first) in zip(level.items, level.parts, looked_up, strict=True):
        packed = bits[start : start + len(mine)]
        start += len(mine)
        wins.append(_wins(item, part, packed, first, level.constants))

    (masked_wins,) = _open_sums(channel, [(level.together(wins), shape.win_bits)])
    results = [
        _choose(part, masked_wins[:, chunk], [array[:, chunk] for array in opened], item)
        for item, part, chunk in zip(level.items, level.parts, level.chunks, strict=True)
    ]
    winners = None if shape.last else level.together([w for w, _ in results if w is not None])
    return winners, level.together([label for _, label in results])


def _open_sums(channel: Openings, shares: Sequence[tuple[Array, int]]) -> list[Array]:
    """Opens arrays that are shared modulo 2^bits each, in one round."""
    payloads = channel.exchange(b"".join(ring.pack_planes(array, bits) for array, bits in shares))
    opened, start = [], 0
    for array, bits in shares:
        size = ring.planes_size(array.size, bits)
        received = [
            ring.unpack_planes(memoryview(payload)[start : start + size], bits, array.size)
            for payload in payloads
        ]
        start += size
        total = np.add.reduce(received, dtype=received[0].dtype)
        total &= total.dtype.type((1 << bits) - 1)
        opened.append(total.reshape(array.shape))
    return opened


def _look_up(item: LevelTables, tables: Array, masked: Array) -> tuple[bytes, Bytes]:
    """This party's shares of the bits to open, packed; and what is public of [x_i >= x_j]."""
    upper, lower = pair_indices(item.group)
    difference = masked[upper] - masked[lower]
    top = difference >> (item.bits - 1)
    first = (~top & 1).astype(np.uint8)
    bits = np.empty(tables.shape, np.uint8)
    digits = len(item.digits)
    for k, (shift, width) in enumerate(item.digits):
        digit = (difference >> shift).astype(item.word)
        digit &= item.word.type((1 << width) - 1)
        bits[k] = tables[k] >> digit
        if k < digits - 1:
            bits[digits + k] = tables[digits + k] >> digit
    bits &= 1
    return np.packbits(bits, bitorder="little").tobytes(), first


def _wins(
    item: LevelTables, part: LevelPart, packed: Bytes, first: Bytes, constants: bool
) -> Bytes:
    """This party's share of each contestant's number of wins, masked."""
    digits = len(item.digits)
    opened = np.unpackbits(packed, bitorder="little", count=part.tables.size)
    where = (-opened).reshape(part.tables.shape)

    def less(k: int) -> Bytes:
        """Shares of less_k times each product of the betas above, times (1 - 2 nu)."""
        this = slice((1 << k) - 1, (2 << k) - 1)
        shares: Bytes = part.flips[this] + (part.steps[this] & where[k])
        return shares

    borrow = less(digits - 1)
    for k in range(digits - 2, -1, -1):
        without, with_ = borrow[: 1 << k], borrow[1 << k :]
        # With equal = e + (1 - 2e) beta: beta's product, or if e is 1 the one without minus it.
        borrow = less(k) + with_ + ((without - 2 * with_) & where[digits + k])
    flipped = part.nu + borrow[0]
    # [x_i >= x_j] is `first` xor this bit.
    beats = np.where(first, -flipped, flipped)
    if constants:
        beats += first
    matrix = np.zeros((item.group, item.group, item.vectors), np.uint8)
    upper, lower = pair_indices(item.group)
    matrix[upper, lower] = beats
    matrix[lower, upper] = -beats
    wins: Bytes = matrix.sum(axis=1, dtype=np.uint8) + part.s
    if constants:
        # The second of a pair wins where the first does not: 1 - beats, once per pair it is in.
        wins += np.arange(item.group, dtype=np.uint8)[:, None]
    return wins


def _choose(
    part: LevelPart, masked_wins: Array, opened: Sequence[Array], item: LevelTables
) -> tuple[Array | None, Array]:
    """Shares of the winner's total and label."""
    index = masked_wins[None].astype(np.intp)
    chosen = [np.take_along_axis(table, index, axis=0)[0] for table in part.chosen]
    if item.last and not item.labelled:
        return None, chosen[0].sum(axis=0, dtype=chosen[0].dtype)
    hot = chosen[0]
    label_type = ring.dtype_for(item.label_bits)
    if item.labelled:
        label = opened[1] * hot.astype(label_type) - chosen[-1]
    else:
        label = hot.astype(label_type) * np.arange(item.group, dtype=label_type)[:, None]
    labels = label.sum(axis=0, dtype=label_type)
    if item.last:
        return None, labels
    total_type = ring.dtype_for(item.bits)
    totals = opened[0] * hot.astype(total_type) - chosen[1]
    return totals.sum(axis=0, dtype=total_type), labels
