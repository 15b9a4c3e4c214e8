"""From shares of bits to shares of noisy totals: what the committee does in a verified round.

Parties open all bits once, the agents' and their own coins, each under a one-time mask of the
dealer's, and nothing else before the argmax: what they see is uniform whatever was shared. No check
follows whose outcome could tell.

**Coins.** A coin is the exclusive or of one bit of each party, drawn from its own CSPRNG with a
fresh key: never stored, never from a seed that the dealer knows, a bit for each coin of each cell
of each query. So it is uniform, and known to nobody, while one party is honest and the dealer is.
A party that opens wrong bits of coins flips them, and a flipped uniform bit is uniform: the law of
the noise is the same whatever P-1 parties do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mpc_vote.mpc import ring
from mpc_vote.mpc.channel import Openings
from mpc_vote.mpc.preprocessing import Preprocessing
from mpc_vote.mpc.prg import SeedStream, Words, new_seed
from mpc_vote.privacy.coins import CoinLaw
from mpc_vote.verified.bit_conversion import BitConversion, BitConversionPart
from mpc_vote.verified.encoding import BitReader, Bits, Layout

Array = npt.NDArray[Any]
Pointers = npt.NDArray[np.uint16]
ByteSource = Callable[[int], bytes]

# Numbers in one item, unless eight queries alone take more.
_CHUNK_NUMBERS = 1 << 24


def fresh_bytes() -> ByteSource:
    """A party's own randomness for the coins of one count."""
    return SeedStream(new_seed()).take


@dataclass(frozen=True)
class Summation:
    """The count of one round: a layout for each agent of the roster, all of one kind, and the law
    of a cell's noise."""

    layouts: tuple[Layout, ...]
    queries: int
    ring_bits: int
    law: CoinLaw

    def plan(self) -> list[BitConversion]:
        """All preprocessing that it takes."""
        return [self._conversion(size) for size in self._chunks()]

    @property
    def numbers(self) -> int:
        """Numbers of preprocessing that a query takes."""
        return sum(layout.numbers for layout in self.layouts) + self._coins

    def run(
        self,
        readers: Sequence[BitReader | None],
        channel: Openings,
        preprocessing: Preprocessing,
        coins: ByteSource | None = None,
    ) -> Words:
        """A party's shares of the noisy totals of all agents that have a reader,
        (queries x classes,), of which the low bits count.

        Any `coins` but fresh ones are for simulation only.
        """
        source = fresh_bytes() if coins is None else coins
        chunks = [
            self._chunk(readers, source, size, channel, preprocessing) for size in self._chunks()
        ]
        return np.concatenate(chunks).reshape(-1).astype(np.uint64)

    @property
    def _coins(self) -> int:
        """Of a query."""
        return self.layouts[0].classes * self.law.coins

    def _chunks(self) -> Iterator[int]:
        """How many queries go together: as many as memory allows."""
        step = max(8, _CHUNK_NUMBERS // self.numbers // 8 * 8)
        for start in range(0, self.queries, step):
            yield min(step, self.queries - start)

    def _conversion(self, queries: int) -> BitConversion:
        return BitConversion(
            pointers=queries * sum(layout.pointers for layout in self.layouts),
            pointer_bits=self.layouts[0].pointer_bits,
            flags=queries * (sum(layout.flags for layout in self.layouts) + self._coins),
            ring_bits=self.ring_bits,
        )

    def _chunk(
        self,
        readers: Sequence[BitReader | None],
        coins: ByteSource,
        queries: int,
        channel: Openings,
        preprocessing: Preprocessing,
    ) -> Array:
        """Shares of the noisy totals of the next queries, (queries, classes)."""
        item = self._conversion(queries)
        part = preprocessing.take(item)
        pointers, flags = self._read(readers, queries, item)
        drawn = queries * self._coins
        raw = np.frombuffer(coins((drawn + 7) // 8), np.uint8)
        flags[item.flags - drawn :] = np.unpackbits(raw, bitorder="little", count=drawn)
        opened = _open(channel, item, pointers ^ part.pointer_masks, flags ^ part.flag_masks)
        # Of public values one party's share is the value, all others' are zero.
        constants = channel.rank == channel.size - 1
        values = _flags(part, opened[1], constants)
        total = _noise(self.law, values[item.flags - drawn :], constants)
        total = total.reshape(queries, self.layouts[0].classes)
        for reader, layout, own in zip(readers, self.layouts, self._slices(queries), strict=True):
            if reader is not None:
                total += _votes(layout, queries, part, opened[0], values, own)
        return total

    def _read(
        self, readers: Sequence[BitReader | None], queries: int, item: BitConversion
    ) -> tuple[Pointers, Bits]:
        """This party's shares of the agents' bits; of who is absent all parties take zeros, and so
        they do where the coins go."""
        pointers, flags = np.zeros(item.pointers, np.uint16), np.zeros(item.flags, np.uint8)
        places = np.uint16(1) << np.arange(item.pointer_bits, dtype=np.uint16)
        for reader, layout, (own_pointers, own_flags) in zip(
            readers, self.layouts, self._slices(queries), strict=True
        ):
            if reader is None:
                continue
            bits = reader.take(queries)
            if layout.attributes:
                flags[own_flags] = bits.reshape(-1)
            else:
                pointers[own_pointers] = bits.reshape(-1, item.pointer_bits) @ places
        return pointers, flags

    def _slices(self, queries: int) -> Iterator[tuple[slice, slice]]:
        """Where the pointers and the flags of each agent are."""
        pointer, flag = 0, 0
        for layout in self.layouts:
            pointer_end = pointer + queries * layout.pointers
            flag_end = flag + queries * layout.flags
            yield slice(pointer, pointer_end), slice(flag, flag_end)
            pointer, flag = pointer_end, flag_end


def _flags(part: BitConversionPart, opened: Bits, constants: bool) -> Array:
    """Shares of all flags: each is the opened bit xor its mask."""
    seen = opened.astype(part.flags.dtype)
    values: Array = np.where(seen, -part.flags, part.flags)
    if constants:
        values += seen
    return values


def _noise(law: CoinLaw, coins: Array, constants: bool) -> Array:
    """Shares of the noise of every cell, in units."""
    cells = coins.reshape(-1, law.coins)
    noise, start = np.zeros(len(cells), coins.dtype), 0
    for weight, number in law.levels:
        level = cells[:, start : start + number].sum(axis=1, dtype=coins.dtype)
        noise += level * coins.dtype.type(weight)
        start += number
    if constants:
        noise -= coins.dtype.type(law.reach)
    return noise


def _votes(
    layout: Layout,
    queries: int,
    part: BitConversionPart,
    pointers: Pointers,
    flags: Array,
    own: tuple[slice, slice],
) -> Array:
    """Shares of an agent's votes, in units, (queries, classes)."""
    own_pointers, own_flags = own
    dtype = flags.dtype
    if layout.attributes:
        votes: Array = flags[own_flags].reshape(queries, layout.classes)
    else:
        rows = _one_hot(part.units[own_pointers], pointers[own_pointers], layout.classes)
        votes = rows.reshape(queries, layout.votes, -1).sum(axis=1, dtype=dtype)
    votes = votes * dtype.type(layout.unit)
    return votes


def _one_hot(units: Array, opened: Pointers, classes: int) -> Array:
    """Shares of the one-hot rows of pointers, (pointers, classes): unit vectors whose places are
    exchanged by what was opened."""
    places = opened[:, None] ^ np.arange(classes, dtype=np.uint16)
    return np.take_along_axis(units, places.astype(np.intp), axis=1)


def _open(
    channel: Openings, item: BitConversion, pointers: Pointers, flags: Bits
) -> tuple[Pointers, Bits]:
    """Opens what is shared by exclusive or, in one round."""
    packed = ring.pack_planes(pointers, item.pointer_bits) if item.pointers else b""
    payloads = channel.exchange(packed + np.packbits(flags, bitorder="little").tobytes())
    opened = np.bitwise_xor.reduce([np.frombuffer(payload, np.uint8) for payload in payloads])
    found = np.zeros(0, np.uint16)
    if item.pointers:
        planes = opened[: len(packed)].tobytes()
        found = ring.unpack_planes(planes, item.pointer_bits, item.pointers).astype(np.uint16)
    return found, np.unpackbits(opened[len(packed) :], bitorder="little", count=item.flags)
