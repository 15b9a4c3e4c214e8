"""Comparisons of masked totals: what the items of the table engine's preprocessing have in common.

For a pair i < j of contestants let d = x_i - x_j and rho = r_i - r_j, so that d + rho is public.
[x_i < x_j] is the top bit of d, which is top(d + rho) xor y, with y = top(rho) xor the borrow
[low(d + rho) < low(rho)]. Over the digits, from the top, the borrow is the sum of less_k times the
product of equal_j over the digits j above k.

The dealer shares, by xor, the truth tables of less and equal over the public digit, each flipped by
a secret bit: looking up yields a_k = less_k xor alpha_k and e_k = equal_k xor beta_k, which are
opened. As less_k = a_k + (1 - 2 a_k) alpha_k, and likewise for equal, y is a polynomial in the
opened bits with coefficients that depend on rho, alpha and beta only. The dealer shares these too:
then shares of y follow without another round.

The terms of the polynomial: by the set S of equal bits in it, as a binary number, those without an
a come first, for all S below 2^(D-1), where D is the number of digits; then for each k those with
a_k, for all S below 2^k. No other sets occur.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from mpc_vote.mpc import ring
from mpc_vote.mpc.preprocessing import Item, P, require
from mpc_vote.mpc.prg import SeedStream

# A truth table of a digit fits in one word.
DIGIT_BITS = 6
# Totals are from -1 to 1.
MIN_BITS = 3
# With six digits the coefficients would outweigh the tables.
MAX_BITS = 1 + 5 * DIGIT_BITS
# Numbers of wins are kept in bytes.
MAX_GROUP = 256
# Of one item; what is larger comes in several.
MAX_COMPARISONS = 1 << 16

Array = npt.NDArray[Any]
Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Comparisons(Item[P]):
    """Preprocessing for all pairs of each of `vectors` groups of `group` contestants, whose totals
    are shared modulo 2^bits."""

    vectors: int
    group: int
    bits: int

    def check(self) -> None:
        require(2 <= self.group <= MAX_GROUP, "the group of a level")
        comparisons = self.vectors * self.pairs
        require(self.vectors > 0 and comparisons <= MAX_COMPARISONS, "a level's size")
        require(MIN_BITS <= self.bits <= MAX_BITS, "the ring of a level")

    @cached_property
    def pairs(self) -> int:
        """Comparisons in a group."""
        return self.group * (self.group - 1) // 2

    @cached_property
    def digits(self) -> tuple[tuple[int, int], ...]:
        """Shift and width of each digit of the low bits, from the top.

        There are as few as can be, which opens the fewest bits. The wider ones are the lower: the
        lowest has no table of equal.
        """
        low = self.bits - 1
        count = -(-low // DIGIT_BITS)
        narrow, wider = divmod(low, count)
        widths = [narrow] * (count - wider) + [narrow + 1] * wider
        return tuple((sum(widths[k + 1 :]), width) for k, width in enumerate(widths))

    @cached_property
    def tables(self) -> tuple[tuple[int, np.dtype[Any]], ...]:
        """Digit and word of each truth table: less of each digit, equal of all but the lowest."""
        words = [np.dtype(f"<u{max(1, (1 << width) // 8)}") for _, width in self.digits]
        return (*enumerate(words), *enumerate(words[:-1]))

    @cached_property
    def lookups(self) -> int:
        """Bits that are opened per pair."""
        return len(self.tables)

    @cached_property
    def terms(self) -> int:
        """Coefficients per pair."""
        digits = len(self.digits)
        return (1 << (digits - 1)) + (1 << digits) - 1

    @property
    def table_bytes(self) -> int:
        """Of all pairs together."""
        return self.pairs * self.vectors * sum(word.itemsize for _, word in self.tables)

    def draw_masks(self, stream: SeedStream) -> Array:
        """A party's share of the masks r of the totals."""
        return draw(stream, ring.dtype_for(self.bits), (self.group, self.vectors))

    def draw_tables(self, stream: SeedStream) -> tuple[Array, ...]:
        """A party's share of the truth tables."""
        return tuple(draw(stream, word, (self.pairs, self.vectors)) for _, word in self.tables)

    def unpack_tables(self, words: bytes | memoryview) -> tuple[Array, ...]:
        """The last party's share of the truth tables."""
        found, start = [], 0
        for _, word in self.tables:
            count = self.pairs * self.vectors
            table = np.frombuffer(words, word, count, start).reshape(self.pairs, self.vectors)
            # Copied, as a view would keep the whole correction in memory.
            found.append(table.copy())
            start += table.nbytes
        return tuple(found)

    def draw_flips(self, stream: SeedStream) -> Bytes:
        """The secret bits alpha of each digit, then beta of all but the lowest."""
        shape = (self.lookups, self.pairs, self.vectors)
        count = math.prod(shape)
        raw = np.frombuffer(stream.take(-(-count // 8)), np.uint8)
        return np.unpackbits(raw, bitorder="little", count=count).reshape(shape)

    def truth_tables(self, rho: Array, flips: Bytes) -> list[Array]:
        """The tables as shared."""
        found: list[Array] = []
        for number, ((k, word), flip) in enumerate(zip(self.tables, flips, strict=True)):
            shift, width = self.digits[k]
            digit = ((rho >> rho.dtype.type(shift)) & rho.dtype.type((1 << width) - 1)).astype(word)
            table = np.left_shift(word.type(1), digit, out=digit)
            if number < len(self.digits):
                table -= word.type(1)
            table ^= np.negative(flip.astype(word))
            found.append(table)
        return found

    def coefficients(self, rho: Array, flips: Bytes) -> Bytes:
        """Those of y by term, modulo 256; as signed bytes they are exact."""
        count = len(self.digits)
        alphas, betas = flips[:count], flips[count:]
        nu = ((rho >> rho.dtype.type(self.bits - 1)) & 1).astype(np.uint8)
        found = np.zeros((self.terms, *rho.shape), np.uint8)
        plain = found[: 1 << (count - 1)]
        plain[0] = nu
        # By set, the coefficients of (1 - 2 nu) times the product of equal over the digits above.
        above = (1 - 2 * nu)[None]
        for k, alpha in enumerate(alphas):
            flipped = above * alpha
            plain[: 1 << k] += flipped
            found[_with_less(count, k)] = above - 2 * flipped
            if k < count - 1:
                same = above * betas[k]
                above = np.concatenate([same, above - 2 * same])
        return found

    def differences(self, values: Array) -> Array:
        """Of all pairs, the one that wins a tie first."""
        found = np.empty((self.pairs, values.shape[1]), values.dtype)
        for first, pairs in pair_slices(self.group):
            np.subtract(values[first], values[first + 1 :], out=found[pairs])
        return found

    def look_up(self, tables: Sequence[Array], difference: Array) -> bytes:
        """This party's shares of the bits to open, packed."""
        bits = np.empty((self.lookups, *difference.shape), np.uint8)
        unsigned = difference.dtype.type
        for k, (shift, width) in enumerate(self.digits):
            word = self.tables[k][1]
            digit, found = np.empty(difference.shape, word), np.empty(difference.shape, word)
            shifted = difference >> unsigned(shift) if shift else difference
            mask = unsigned((1 << width) - 1)
            np.bitwise_and(shifted, mask, out=digit, casting="unsafe")
            for number, (of, _) in enumerate(self.tables):
                if of == k:
                    bits[number] = np.right_shift(tables[number], digit, out=found)
        bits &= np.uint8(1)
        return np.packbits(bits, bitorder="little").tobytes()

    def opened(self, packed: Bytes) -> Bytes:
        """The opened bits, lookup by lookup."""
        shape = (self.lookups, self.pairs, self.vectors)
        bits = np.unpackbits(packed, bitorder="little", count=math.prod(shape))
        return bits.reshape(shape)

    def evaluate(self, coefficients: Array, bits: Bytes) -> Array:
        """Shares of y, from shares of the coefficients by term: sums that are not reduced."""
        count = len(self.digits)
        found = coefficients[: 1 << (count - 1)].copy()
        for k in range(count):
            found[: 1 << k] += coefficients[_with_less(count, k)] * bits[k]
        for k in reversed(range(count - 1)):
            found[: 1 << k] += found[1 << k : 2 << k] * bits[count + k]
        result: Array = found[0]
        return result

    def top(self, difference: Array) -> Bytes:
        """The top bit of each public difference."""
        top: Bytes = ((difference >> difference.dtype.type(self.bits - 1)) & 1).astype(np.uint8)
        return top


def _with_less(digits: int, k: int) -> slice:
    """The terms with a_k."""
    start = (1 << (digits - 1)) + (1 << k) - 1
    return slice(start, start + (1 << k))


@lru_cache(maxsize=64)
def pair_slices(group: int) -> tuple[tuple[int, slice], ...]:
    """For each contestant but the last, the pairs of it with all that come after, in order."""
    found, start = [], 0
    for first in range(group - 1):
        end = start + group - 1 - first
        found.append((first, slice(start, end)))
        start = end
    return tuple(found)


def pair_indices(group: int) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """The two positions of each pair, the one that wins a tie first."""
    upper, lower = np.triu_indices(group, 1)
    return upper, lower


def draw(stream: SeedStream, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    """The next numbers of a stream, of so many bytes each."""
    return np.frombuffer(stream.take(math.prod(shape) * dtype.itemsize), dtype).reshape(shape)
