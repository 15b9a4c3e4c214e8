"""Material that tells whether a shared count is above a public limit, and nothing else of it.

Free: a mask r modulo m, the least power of two above all counts. Corrected: for each count a truth
table over m entries, shared by exclusive or, that says of an opened c + r whether c is above its
limit. Parties open c + r, which is uniform, look it up, which is local, and open the bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mpc_vote import ring
from mpc_vote.argmax.channel import Openings
from mpc_vote.argmax.material import Item
from mpc_vote.csprng import SeedStream, Words

Bits = npt.NDArray[np.uint8]

# A table has as many entries.
MAX_COUNT = 1 << 16


class LimitsPart(NamedTuple):
    """One party's shares."""

    masks: Words
    """(counts,), of which the low bits count."""
    tables: Bits
    """(counts, m / 8): packed bits, by exclusive or."""

    def __repr__(self) -> str:
        return "LimitsPart(hidden)"


@dataclass(frozen=True)
class Limits(Item[LimitsPart]):
    """For as many counts, from 0 to `most`, as there are queries for each of the limits."""

    queries: int
    most: int
    limits: tuple[int, ...]

    @property
    def counts(self) -> int:
        """All of them, by limit and query."""
        return self.queries * len(self.limits)

    @property
    def bits(self) -> int:
        """Counts are opened modulo two to this; a table has whole bytes."""
        return max(3, self.most.bit_length())

    @property
    def _table_bytes(self) -> int:
        return (1 << self.bits) // 8

    @property
    def correction_bytes(self) -> int:
        return self.counts * self._table_bytes

    @property
    def part_bytes(self) -> int:
        return self.correction_bytes + 8 * self.counts

    def expand(self, seed: bytes, index: int, correction: bytes | None) -> LimitsPart:
        stream = SeedStream(seed, index)
        masks = stream.words(self.counts)
        raw = stream.take(self.correction_bytes) if correction is None else correction
        tables = np.frombuffer(raw, np.uint8).reshape(self.counts, self._table_bytes)
        return LimitsPart(masks, tables)

    def correct(self, seeds: Sequence[bytes], index: int) -> bytes:
        parts = [self.expand(seed, index, None) for seed in seeds]
        mask = np.add.reduce([part.masks for part in parts])
        tables = self._truth(mask)
        for part in parts[:-1]:
            tables ^= part.tables
        return tables.tobytes()

    def _truth(self, mask: Words) -> Bits:
        """All tables. Those of one limit are the same bits, begun at different places."""
        size = 1 << self.bits
        start = (-mask % np.uint64(size)).astype(np.intp)
        limits = np.repeat(self.limits, self.queries)
        tables = np.empty((self.counts, self._table_bytes), np.uint8)
        for limit in set(self.limits):
            twice = np.arange(2 * size) % size > limit
            # Packed from each of the first eight bits on, so that a table is a run of whole bytes.
            shifted = [np.packbits(twice[i : i - 8], bitorder="little") for i in range(8)]
            runs = np.lib.stride_tricks.sliding_window_view(shifted, self._table_bytes, axis=1)
            own = limits == limit
            tables[own] = runs[start[own] & 7, start[own] >> 3]
        return tables


def above(counts: Words, item: Limits, part: LimitsPart, channel: Openings) -> Bits:
    """Which of the shared counts are above their limits: public, and the same at all parties."""
    payloads = channel.exchange(ring.pack_planes(counts + part.masks, item.bits))
    opened = np.add.reduce(
        [ring.unpack_planes(data, item.bits, item.counts).astype(np.uint64) for data in payloads]
    ) % np.uint64(1 << item.bits)
    place = (opened >> np.uint64(3)).astype(np.intp)[:, None]
    octets = np.take_along_axis(part.tables, place, axis=1)[:, 0]
    own = (octets >> (opened & np.uint64(7)).astype(np.uint8)) & np.uint8(1)
    replies = channel.exchange(np.packbits(own, bitorder="little").tobytes())
    found = np.bitwise_xor.reduce([np.frombuffer(reply, np.uint8) for reply in replies])
    return np.unpackbits(found, bitorder="little", count=item.counts)
