"""Preprocessing of the table engine: what one level of it uses up, for a chunk of vectors.

A level finds the winner among the `group` contestants of each of `vectors` vectors. Its
preprocessing, with the names of `mpc_vote.argmax.table.engine`:

free, so every party draws its own share and the secret is the sum:
  r       masks of the totals, modulo 2^bits
  s       masks of the numbers of wins, modulo the least power of two that is >= group
  q       masks of the contestants' labels, where these are shared

corrected, so the shares of all parties but the last are drawn and the dealer makes the last one's:
  tables  for each pair, the flipped truth tables of `mpc_vote.argmax.table.comparison`, shared by
          xor
  coefficients
          for each pair, those of the polynomial there, shared modulo the number of wins
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
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from mpc_vote.argmax.table.comparison import (
    DIGIT_BITS,
    MAX_BITS,
    MAX_COMPARISONS,
    MAX_GROUP,
    MIN_BITS,
    Array,
    Bytes,
    Comparisons,
    draw,
    pair_indices,
)
from mpc_vote.mpc import ring
from mpc_vote.mpc.preprocessing import require
from mpc_vote.mpc.prg import SeedStream, joint_seed

__all__ = [
    "DIGIT_BITS",
    "MAX_BITS",
    "MAX_COMPARISONS",
    "MAX_GROUP",
    "MIN_BITS",
    "LevelPart",
    "LevelTables",
    "cell_indices",
    "pair_indices",
]


@dataclass(frozen=True)
class LevelPart:
    """One party's share of a level's preprocessing, ready for use."""

    r: Array
    s: Bytes
    q: Array | None
    tables: tuple[Array, ...]
    coefficients: Bytes
    chosen: tuple[Array, ...]

    def __repr__(self) -> str:
        return "LevelPart(hidden)"


@dataclass(frozen=True)
class LevelTables(Comparisons[LevelPart]):
    """Preprocessing for `vectors` groups of `group` contestants with totals modulo 2^bits.

    `labelled` says that the contestants' labels are shared, modulo 2^label_bits, and not simply
    their positions; `last` that the winners' labels are wanted but not their totals.
    """

    wire_name: ClassVar[str] = "level"

    label_bits: int
    labelled: bool
    last: bool

    def check(self) -> None:
        super().check()
        require(0 < self.label_bits <= ring.WORD_BITS, "the labels of a level")

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
        entries = math.prod(self._entries)
        return (
            self.table_bytes
            + ring.planes_size(math.prod(self._coefficients), self.win_bits)
            + sum(ring.planes_size(entries, width) for width in self.widths)
        )

    @property
    def part_bytes(self) -> int:
        entries = math.prod(self._entries)
        labels = ring.dtype_for(self.label_bits).itemsize if self.labelled else 0
        return (
            self.table_bytes
            + math.prod(self._coefficients)
            + entries * sum(ring.dtype_for(width).itemsize for width in self.widths)
            + self.group * self.vectors * (ring.dtype_for(self.bits).itemsize + 1 + labels)
        )

    def expand(self, seed: bytes, index: int, correction: bytes | None) -> LevelPart:
        stream = SeedStream(seed, index)
        free = self._free(stream)
        corrected = self._corrected(stream) if correction is None else self._unpack(correction)
        return LevelPart(*free, *corrected)

    def correct(self, seeds: Sequence[bytes], index: int) -> bytes:
        streams = [SeedStream(seed, index) for seed in seeds]
        free = [self._free(stream) for stream in streams]
        r, s, q = (_sum(shares) for shares in zip(*free, strict=True))
        flips = self.draw_flips(SeedStream(joint_seed(seeds), index))
        rho = self.differences(r)
        tables = self.truth_tables(rho, flips)
        coefficients = self.coefficients(rho, flips)
        chosen = self._choices(r, s, q)
        for stream in streams[:-1]:
            drawn_tables, drawn_coefficients, drawn_chosen = self._corrected(stream)
            for table, share in zip(tables, drawn_tables, strict=True):
                table ^= share
            coefficients -= drawn_coefficients
            for table, share in zip(chosen, drawn_chosen, strict=True):
                table -= share
        packed: list[bytes | memoryview] = [table.data.cast("B") for table in tables]
        packed.append(ring.pack_planes(coefficients, self.win_bits))
        packed += [ring.pack_planes(t, w) for t, w in zip(chosen, self.widths, strict=True)]
        return b"".join(packed)

    def _free(self, stream: SeedStream) -> tuple[Array, Bytes, Array | None]:
        cells = (self.group, self.vectors)
        r = self.draw_masks(stream)
        s = draw(stream, np.dtype(np.uint8), cells)
        q = draw(stream, ring.dtype_for(self.label_bits), cells) if self.labelled else None
        return r, s, q

    def _corrected(self, stream: SeedStream) -> tuple[tuple[Array, ...], Bytes, tuple[Array, ...]]:
        return (
            self.draw_tables(stream),
            draw(stream, np.dtype(np.uint8), self._coefficients),
            tuple(draw(stream, ring.dtype_for(w), self._entries) for w in self.widths),
        )

    @property
    def _coefficients(self) -> tuple[int, int, int]:
        return (self.terms, self.pairs, self.vectors)

    @property
    def _entries(self) -> tuple[int, int, int]:
        return (1 << self.win_bits, self.group, self.vectors)

    def _unpack(self, correction: bytes) -> tuple[tuple[Array, ...], Bytes, tuple[Array, ...]]:
        """The last party's corrected shares."""
        if len(correction) != self.correction_bytes:
            raise ValueError(
                f"a correction of {len(correction)} bytes, not {self.correction_bytes}"
            )
        view = memoryview(correction)[self.table_bytes :]

        def take(shape: tuple[int, int, int], bits: int) -> Array:
            nonlocal view
            count = math.prod(shape)
            size = ring.planes_size(count, bits)
            head, view = view[:size], view[size:]
            return ring.unpack_planes(head, bits, count).reshape(shape)

        coefficients = take(self._coefficients, self.win_bits)
        chosen = tuple(take(self._entries, width) for width in self.widths)
        return self.unpack_tables(correction), coefficients, chosen

    def _choices(self, r: Array, s: Bytes, q: Array | None) -> tuple[Array, ...]:
        """Tables that are zero but where the masked number of wins says that all were won."""
        winning = (s + np.uint8(self.group - 1)) & np.uint8((1 << self.win_bits) - 1)
        at = cell_indices(winning)
        position = np.arange(self.group)[:, None]
        hot: Array = np.ones((1, 1), np.uint8)
        if self.last:
            values = [hot, q] if q is not None else [position]
        else:
            values = [hot, r, q] if q is not None else [hot, r]
        chosen = []
        for value, width in zip(values, self.widths, strict=True):
            table = np.zeros(self._entries, ring.dtype_for(width))
            table.reshape(-1)[at] = value.astype(table.dtype)
            chosen.append(table)
        return tuple(chosen)


def cell_indices(entries: Bytes) -> npt.NDArray[np.intp]:
    """Where the given entry of each cell's table is, in a table of all cells entry by entry."""
    found = entries.astype(np.intp)
    found *= entries.size
    found += _cells(entries.size).reshape(entries.shape)
    return found


@lru_cache(maxsize=16)
def _cells(count: int) -> npt.NDArray[np.intp]:
    return np.arange(count)


def _sum(shares: Sequence[Array | None]) -> Any:
    given = [share for share in shares if share is not None]
    return sum(given[1:], start=given[0]) if given else None
