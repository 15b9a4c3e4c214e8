"""The table engine: a secure argmax in three rounds for each level, whatever the number of parties,
or in two if there is one level (`mpc_vote.argmax.table.marks`).

Totals x_1..x_g of a vector are shared modulo 2^l, with |x| < 2^(l-2). The dealer's preprocessing is
that of `mpc_vote.argmax.table.level`.

1. Parties open x_i + r_i. For a pair i < j the public difference of two such values is d + rho,
   with d = x_i - x_j and rho = r_i - r_j. As |d| < 2^(l-1), x_i < x_j just if the top bit of d is
   1, and that bit is top(d + rho) xor y, with y = top(rho) xor [low(d + rho) < low(rho)].
2. Parties look up the digits of d + rho in their shares of flipped truth tables, which is local,
   and open the bits. y is a polynomial in these, with coefficients that the dealer has shared
   modulo a power of two (`mpc_vote.argmax.table.comparison`), so [x_i < x_j] is shared without
   another round. A contestant's wins are a sum of these.
3. Just one contestant of a vector has g - 1 wins. Parties open wins_i + s_i, and look up in their
   shares of the last tables. The sum over i is a share of the winner's label and, if another level
   follows, of its total: x_i times the hot bit is (x_i + r_i) times it minus r_i times it, and both
   are in the tables. Labels that are shared are opened in round 1 under masks q and carried alike.

Many classes are cut into groups, whose winners meet at the next level.

Who sees what in three rounds, if the dealer colludes with nobody. Every opening is a value plus a
mask of its own: r, s and q uniform in their rings, alpha and beta uniform bits, all unknown to any
P-1 parties since the missing party's share of r, s and q, and of the flipped tables, comes from a
seed that only it and the dealer know. Openings are therefore uniform and independent of the totals.
What one party sends is its share of the opening, uniform given the others' shares but for their
sum. Corrections are masked by the seeds of all other parties, and where the last party is the
missing one nobody else sees them. A table is looked up at one entry, so of the missing party's
shares only that entry becomes known, and at the tables of round 3 none. So the view of any P-1
parties can be drawn from public values alone: sizes, uniform openings, uniform shares that sum to
them. The label shares, of which the coordinator gets all, are re-randomised by a zero sharing of
the parties' own: without it, the entries that were looked up would tell the dealer, who knows the
tables, the number of wins of each class. Nothing else leaves the committee.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from mpc_vote.argmax.engine import AddedLabels, LabelCode
from mpc_vote.argmax.engine import label_bits as bits_of_label
from mpc_vote.argmax.table.comparison import MAX_BITS, MAX_GROUP, MIN_BITS, Array
from mpc_vote.argmax.table.contest import adds_constants, compete
from mpc_vote.argmax.table.level import LevelTables
from mpc_vote.argmax.table.marks import MAX_MARKED, MarkedLabels, MarkTables, mark
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

    Without groups all classes meet at one level, and `two_rounds` can be enough: then `run` yields
    what marks the winner, and not its label. `label_bits` is the ring of the labels.
    """

    def __init__(
        self,
        bits: int,
        groups: Sequence[int] = (),
        label_bits: int | None = None,
        two_rounds: bool = False,
    ) -> None:
        if not MIN_BITS <= bits <= MAX_BITS:
            raise ValueError(
                f"the table engine's ring has {MIN_BITS} to {MAX_BITS} bits, not {bits}"
            )
        if any(not 2 <= group <= MAX_GROUP for group in groups):
            raise ValueError(f"groups have 2 to {MAX_GROUP} contestants, not {tuple(groups)}")
        if label_bits is not None and not 1 <= label_bits <= ring.WORD_BITS:
            raise ValueError(f"labels have 1 to {ring.WORD_BITS} bits, not {label_bits}")
        if two_rounds and groups:
            raise ValueError("two rounds are for one level, without groups")
        self.ring_bits = bits
        self.two_rounds = two_rounds
        self.groups = tuple(groups)
        self._label_bits = label_bits

    @property
    def name(self) -> str:
        if self.two_rounds:
            return "table two rounds"
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
        if self.two_rounds and classes > MAX_MARKED:
            raise ValueError(f"two rounds are for at most {MAX_MARKED} classes, not {classes}")
        return levels

    def pairs(self, classes: int) -> int:
        """Comparisons per row."""
        return sum(count * size * (size - 1) // 2 for count, size in self.levels(classes))

    def block_rows(self, classes: int) -> int:
        """See `Engine`."""
        return max(8, _RUN_PAIRS // max(1, self.pairs(classes)) // 8 * 8)

    def plan(self, rows: int, classes: int, parties: int) -> list[Item[Any]]:
        """See `Engine`."""
        if self.two_rounds:
            return list(self._marks(rows, classes))
        return [item for level in self._items(rows, classes) for item in level]

    def _items(self, rows: int, classes: int) -> tuple[tuple[LevelTables, ...], ...]:
        """By level, the chunks of vectors."""
        levels = tuple(self.levels(classes))
        return _level_items(rows, levels, self.ring_bits, self.label_bits(classes))

    def _marks(self, rows: int, classes: int) -> tuple[MarkTables, ...]:
        """The chunks of rows, in two rounds."""
        return _mark_items(rows, tuple(self.levels(classes)), self.ring_bits)

    def label_code(self, classes: int) -> LabelCode:
        """See `Engine`."""
        return MarkedLabels(classes) if self.two_rounds else AddedLabels(classes)

    def run(
        self, totals: Words, classes: int, channel: Channel, preprocessing: Preprocessing
    ) -> Words:
        """See `Engine`."""
        if self.two_rounds:
            return self._marked(totals, classes, channel, preprocessing)
        labels = self.winners(totals, classes, channel, preprocessing)
        return (labels + zero_share(channel, labels.size)) & self._label_mask(classes)

    def _marked(
        self, totals: Words, classes: int, channel: Channel, preprocessing: Preprocessing
    ) -> Words:
        rows = totals.size // classes
        items = self._marks(rows, classes)
        if not items:
            return np.zeros(rows, np.uint64)
        values = _by_contestant(totals, classes, self.ring_bits)
        shares = mark(items, values, channel, preprocessing)
        return shares.T.reshape(-1).astype(np.uint64)

    def winners(
        self, totals: Words, classes: int, channel: Openings, preprocessing: Preprocessing
    ) -> Words:
        """Shares of the labels modulo 2^label_bits, in three rounds for each level. They are not
        re-randomised: whoever has all of them and knows the preprocessing learns the ranking. They
        must stay with the parties."""
        if self.two_rounds:
            raise ValueError("two rounds yield no shares of labels")
        rows = totals.size // classes
        values = _by_contestant(totals, classes, self.ring_bits)
        labels: Array | None = None
        constants = adds_constants(channel)
        levels = zip(self.levels(classes), self._items(rows, classes), strict=True)
        for (count, size), items in levels:
            values = _grouped(values, count, size)
            shared = None if labels is None else _grouped(labels, count, size)
            winners, chosen = compete(items, values, shared, channel, preprocessing)
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


# Of the shapes in use: what follows from an item's fields is then computed before it is needed.
@lru_cache(maxsize=32)
def _level_items(
    rows: int, levels: tuple[tuple[int, int], ...], bits: int, label_bits: int
) -> tuple[tuple[LevelTables, ...], ...]:
    return tuple(
        tuple(
            LevelTables(
                vectors=chunk,
                group=size,
                bits=bits,
                label_bits=label_bits,
                labelled=depth > 0,
                last=depth == len(levels) - 1,
            )
            for chunk in _chunks(count * rows, size)
        )
        for depth, (count, size) in enumerate(levels)
    )


@lru_cache(maxsize=32)
def _mark_items(
    rows: int, levels: tuple[tuple[int, int], ...], bits: int
) -> tuple[MarkTables, ...]:
    return tuple(
        MarkTables(vectors=chunk, group=size, bits=bits)
        for count, size in levels
        for chunk in _chunks(count * rows, size)
    )


def _chunks(vectors: int, group: int) -> list[int]:
    """Vectors of each item."""
    step = max(1, _CHUNK_PAIRS // (group * (group - 1) // 2))
    return [min(step, vectors - start) for start in range(0, vectors, step)]


def _by_contestant(totals: Words, classes: int, bits: int) -> Array:
    """Contestants first: the rows, of which there are many, lie together."""
    narrow = totals.astype(ring.dtype_for(bits)).reshape(-1, classes)
    return np.ascontiguousarray(narrow.T)


def _grouped(values: Array, count: int, size: int) -> Array:
    """From (contestants, rows) to (places, groups and rows).

    Places that are left over repeat the last contestant, and lose the tie against it:
    whatever the totals are, also where agents shared some that are out of range, no such place
    wins.
    """
    contestants, rows = values.shape
    if count == 1:
        return values
    if missing := count * size - contestants:
        values = np.concatenate([values, np.repeat(values[-1:], missing, axis=0)])
    groups = values.reshape(count, size, rows).transpose(1, 0, 2)
    return np.ascontiguousarray(groups).reshape(size, count * rows)
