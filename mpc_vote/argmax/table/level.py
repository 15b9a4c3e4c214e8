"""Preprocessing of the table engine: what one level of it uses up, for a chunk of vectors.

A level finds the winner among the `group` contestants of each of `vectors` vectors. Its
preprocessing, with the names of `mpc_vote.argmax.table.engine`:

free, so every party draws its own share and the secret is the sum:
  r       masks of the totals, modulo 2^bits
  s       masks of the numbers of wins, modulo the least power of two that is >= group
  q       masks of the contestants' labels, where these are shared

corrected, so the shares of all parties but the last are drawn and the dealer makes the last one's:
  less    for each pair and digit, the truth table of [x < digit of rho] over the public digit x,
          all of it flipped by a secret bit alpha; shared by xor
  equal   the same of [x = digit of rho], flipped by beta; for all digits but the lowest
  nu      the top bit of rho, shared modulo the number of wins, and
  masks   (1 - 2 nu) times the products of alphas and betas that undo the flips
  chosen  for each contestant, over the public masked number of wins: [it is the winner], and the
          same times r and times q, or at a level without need of these times its position

rho is the difference of a pair's r. Whoever lacks one party's seed sees uniform values: see the
security argument in `mpc_vote.argmax.table.engine`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from mpc_vote.mpc import ring
from mpc_vote.mpc.preprocessing import Item, require
from mpc_vote.mpc.prg import SeedStream, joint_seed

# A truth table of a digit fits in one word.
DIGIT_BITS = 6
MIN_BITS = 13
# With six digits the products of masks would outweigh the tables.
MAX_BITS = 1 + 5 * DIGIT_BITS
# Numbers of wins are kept in bytes.
MAX_GROUP = 256
# Of one item; what is larger comes in several.
MAX_COMPARISONS = 1 << 16

Array = npt.NDArray[Any]
Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class LevelPart:
    """One party's share of a level's preprocessing, ready for use."""

    r: Array
    s: Bytes
    q: Array | None
    tables: Array
    nu: Bytes
    # Per digit, by the betas in the product: shares of alpha times the product, and what has to be
    # added to them if the opened bit is 1.
    flips: Bytes
    steps: Bytes
    chosen: tuple[Array, ...]

    def __repr__(self) -> str:
        return "LevelPart(hidden)"


@dataclass(frozen=True)
class _Dependent:
    """The corrected arrays, as shared."""

    tables: Array
    masks: Bytes
    chosen: tuple[Array, ...]


@dataclass(frozen=True)
class LevelTables(Item[LevelPart]):
    """Preprocessing for `vectors` groups of `group` contestants with totals modulo 2^bits.

    `labelled` says that the contestants' labels are shared, modulo 2^label_bits, and not simply
    their positions; `last` that the winners' labels are wanted but not their totals.
    """

    wire_name: ClassVar[str] = "level"

    vectors: int
    group: int
    bits: int
    label_bits: int
    labelled: bool
    last: bool

    def check(self) -> None:
        require(2 <= self.group <= MAX_GROUP, "the group of a level")
        comparisons = self.vectors * self.pairs
        require(self.vectors > 0 and comparisons <= MAX_COMPARISONS, "a level's size")
        require(MIN_BITS <= self.bits <= MAX_BITS, "the ring of a level")
        require(0 < self.label_bits <= ring.WORD_BITS, "the labels of a level")

    @cached_property
    def pairs(self) -> int:
        """Comparisons in a group."""
        return self.group * (self.group - 1) // 2

    @cached_property
    def digits(self) -> tuple[tuple[int, int], ...]:
        """Shift and width of each digit of the low bits, from the top."""
        low = self.bits - 1
        count = -(-low // DIGIT_BITS)
        ends = [low * (count - k) // count for k in range(count + 1)]
        return tuple((below, above - below) for above, below in pairwise(ends))

    @cached_property
    def word(self) -> np.dtype[Any]:
        """Holds the truth table of a digit."""
        width = max(width for _, width in self.digits)
        return np.dtype(f"<u{max(1, (1 << width) // 8)}")

    @cached_property
    def lookups(self) -> int:
        """Bits that are opened per pair: less of each digit, equal of all but the lowest."""
        return 2 * len(self.digits) - 1

    @cached_property
    def products(self) -> int:
        """Products of masks: of betas alone, and of an alpha with betas of higher digits."""
        d = len(self.digits)
        return (1 << (d - 1)) - 1 + (1 << d) - 1

    @cached_property
    def win_bits(self) -> int:
        """Numbers of wins are shared modulo 2^win_bits."""
        return (self.group - 1).bit_length()

    @cached_property
    def widths(self) -> tuple[int, ...]:
        """Bits of the entries of each table in `chosen`."""
        if self.last:
            return (self.label_bits,) * (2 if self.labelled else 1)
        hot = max(self.bits, self.label_bits)
        return (hot, self.bits, self.label_bits) if self.labelled else (hot, self.bits)

    @property
    def correction_bytes(self) -> int:
        pairs = self.pairs * self.vectors
        entries = (1 << self.win_bits) * self.group * self.vectors
        return (
            self.lookups * pairs * self.word.itemsize
            + ring.planes_size((1 + self.products) * pairs, self.win_bits)
            + sum(ring.planes_size(entries, width) for width in self.widths)
        )

    @property
    def part_bytes(self) -> int:
        pairs = self.pairs * self.vectors
        entries = (1 << self.win_bits) * self.group * self.vectors
        alphas = (1 << len(self.digits)) - 1
        labels = ring.dtype_for(self.label_bits).itemsize if self.labelled else 0
        return (
            pairs * (self.lookups * self.word.itemsize + 1 + 2 * alphas)
            + entries * sum(ring.dtype_for(width).itemsize for width in self.widths)
            + self.group * self.vectors * (ring.dtype_for(self.bits).itemsize + 1 + labels)
        )

    def expand(self, seed: bytes, index: int, correction: bytes | None) -> LevelPart:
        stream = SeedStream(seed, index)
        r, s, q = self._free(stream)
        dependent = self._dependent(stream) if correction is None else self._unpack(correction)
        # The last party, and only it, adds public constants.
        flips, steps = self._prepare(dependent.masks, constant=0 if correction is None else 1)
        nu = dependent.masks[0].copy()
        return LevelPart(r, s, q, dependent.tables, nu, flips, steps, dependent.chosen)

    def correct(self, seeds: Sequence[bytes], index: int) -> bytes:
        streams = [SeedStream(seed, index) for seed in seeds]
        free = [self._free(stream) for stream in streams]
        flips = SeedStream(joint_seed(seeds), index)
        truth = self._truth(flips, *(_sum(shares) for shares in zip(*free, strict=True)))
        tables, masks, chosen = truth.tables, truth.masks, truth.chosen
        for stream in streams[:-1]:
            drawn = self._dependent(stream)
            tables ^= drawn.tables
            masks -= drawn.masks
            for table, share in zip(chosen, drawn.chosen, strict=True):
                table -= share
        packed = [tables.tobytes(), ring.pack_planes(masks, self.win_bits)]
        packed += [ring.pack_planes(t, w) for t, w in zip(chosen, self.widths, strict=True)]
        return b"".join(packed)

    def _free(self, stream: SeedStream) -> tuple[Array, Bytes, Array | None]:
        cells = (self.group, self.vectors)
        r = _draw(stream, ring.dtype_for(self.bits), cells)
        s = _draw(stream, np.dtype(np.uint8), cells)
        q = _draw(stream, ring.dtype_for(self.label_bits), cells) if self.labelled else None
        return r, s, q

    def _dependent(self, stream: SeedStream) -> _Dependent:
        pairs = (self.pairs, self.vectors)
        return _Dependent(
            _draw(stream, self.word, (self.lookups, *pairs)),
            _draw(stream, np.dtype(np.uint8), (1 + self.products, *pairs)),
            tuple(_draw(stream, ring.dtype_for(w), self._entries) for w in self.widths),
        )

    @property
    def _entries(self) -> tuple[int, int, int]:
        return (1 << self.win_bits, self.group, self.vectors)

    def _unpack(self, correction: bytes) -> _Dependent:
        """The last party's dependent shares."""
        if len(correction) != self.correction_bytes:
            raise ValueError(
                f"a correction of {len(correction)} bytes, not {self.correction_bytes}"
            )
        view = memoryview(correction)

        def take(size: int) -> memoryview:
            nonlocal view
            head, view = view[:size], view[size:]
            return head

        pairs = (self.pairs, self.vectors)
        shape = (self.lookups, *pairs)
        words = take(math.prod(shape) * self.word.itemsize)
        # Copied, as a view would keep the whole correction in memory.
        tables = np.frombuffer(words, dtype=self.word).reshape(shape).copy()
        count = (1 + self.products) * math.prod(pairs)
        masks = ring.unpack_planes(
            take(ring.planes_size(count, self.win_bits)), self.win_bits, count
        )
        chosen = []
        for width in self.widths:
            count = math.prod(self._entries)
            entries = ring.unpack_planes(take(ring.planes_size(count, width)), width, count)
            chosen.append(entries.reshape(self._entries))
        return _Dependent(tables, masks.reshape(1 + self.products, *pairs), tuple(chosen))

    def _prepare(self, masks: Bytes, constant: int) -> tuple[Bytes, Bytes]:
        """`flips` and `steps`: with an opened bit a, less = a + (1 - 2a) alpha, so a product that
        has it as a factor is alpha's product, or where a is 1 the product without it minus that."""
        d = len(self.digits)
        flips = masks[1 << (d - 1) :].copy()
        # By the set of betas: one's share of (1 - 2 nu) times their product.
        betas = masks[: 1 << (d - 1)].copy()
        betas[0] *= np.uint8(254)
        betas[0] += np.uint8(constant)
        steps = flips * np.uint8(254)
        for k in range(d):
            steps[(1 << k) - 1 : (2 << k) - 1] += betas[: 1 << k]
        return flips, steps

    def _truth(self, flips: SeedStream, r: Array, s: Bytes, q: Array | None) -> _Dependent:
        """What the shares of all parties must add up to."""
        d, pairs = len(self.digits), (self.pairs, self.vectors)
        upper, lower = pair_indices(self.group)
        rho = r[upper] - r[lower]
        bits = np.frombuffer(flips.take(self.lookups * math.prod(pairs)), np.uint8) & 1
        secret = bits.reshape(self.lookups, *pairs)
        tables = np.empty((self.lookups, *pairs), self.word)
        one = np.ones((), self.word)
        for k, (shift, width) in enumerate(self.digits):
            digit = ((rho >> shift) & ((1 << width) - 1)).astype(self.word)
            equal = one << digit
            tables[k] = equal - one
            if k < d - 1:
                tables[d + k] = equal
        tables ^= -secret.astype(self.word)
        masks = np.empty((1 + self.products, *pairs), np.uint8)
        betas = np.empty((1 << (d - 1), *pairs), np.uint8)
        masks[0] = (rho >> (self.bits - 1)) & 1
        betas[0] = 1 - 2 * masks[0]
        for k in range(d - 1):
            betas[1 << k : 2 << k] = betas[: 1 << k] * secret[d + k]
        masks[1 : 1 << (d - 1)] = betas[1:]
        for k in range(d):
            start = (1 << (d - 1)) + (1 << k) - 1
            masks[start : start + (1 << k)] = betas[: 1 << k] * secret[k]
        return _Dependent(tables, masks, self._choices(r, s, q))

    def _choices(self, r: Array, s: Bytes, q: Array | None) -> tuple[Array, ...]:
        """Tables that are zero but where the masked number of wins says that all were won."""
        winning = ((s + np.uint8(self.group - 1)) & np.uint8((1 << self.win_bits) - 1))[None]
        position = np.arange(self.group)[:, None]
        hot: Array = np.broadcast_to(np.ones((), np.int64), r.shape)
        if self.last:
            values = [hot, q] if q is not None else [position]
        else:
            values = [hot, r, q] if q is not None else [hot, r]
        chosen = []
        for value, width in zip(values, self.widths, strict=True):
            table = np.zeros(self._entries, ring.dtype_for(width))
            entry = np.broadcast_to(value, r.shape).astype(table.dtype)
            np.put_along_axis(table, winning.astype(np.intp), entry[None], axis=0)
            chosen.append(table)
        return tuple(chosen)


@lru_cache(maxsize=64)
def pair_indices(group: int) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """The two positions of each pair, the one that wins a tie first."""
    upper, lower = np.triu_indices(group, 1)
    return upper, lower


def _draw(stream: SeedStream, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    return np.frombuffer(stream.take(math.prod(shape) * dtype.itemsize), dtype).reshape(shape)


def _sum(shares: Sequence[Array | None]) -> Any:
    if shares[0] is None:
        return None
    return np.add.reduce([share for share in shares if share is not None])
