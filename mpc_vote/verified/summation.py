"""From shares of bits to shares of totals: what the committee does with verified ballots.

Parties open all bits once, each under a one-time mask of the dealer's, and nothing else before the
argmax: what they see is uniform whatever was shared. No check follows whose outcome could tell.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mpc_vote.mpc import ring
from mpc_vote.mpc.channel import Openings
from mpc_vote.mpc.preprocessing import Preprocessing
from mpc_vote.mpc.prg import Words
from mpc_vote.verified.bit_conversion import BitConversion, BitConversionPart
from mpc_vote.verified.encoding import BitReader, Bits, Layout

Array = npt.NDArray[Any]
Pointers = npt.NDArray[np.uint16]

# Numbers in one item, unless eight queries alone take more.
_CHUNK_NUMBERS = 1 << 24


@dataclass(frozen=True)
class Summation:
    """The count of one round: a layout for each agent of the roster, all of one kind."""

    layouts: tuple[Layout, ...]
    queries: int
    ring_bits: int

    def plan(self) -> list[BitConversion]:
        """All preprocessing that it takes."""
        return [self._conversion(size) for size in self._chunks()]

    def run(
        self, readers: Sequence[BitReader | None], channel: Openings, preprocessing: Preprocessing
    ) -> Words:
        """A party's shares of the totals of all agents that have a reader, (queries x classes,), of
        which the low bits count."""
        chunks = [self._chunk(readers, size, channel, preprocessing) for size in self._chunks()]
        return np.concatenate(chunks).reshape(-1).astype(np.uint64)

    def _chunks(self) -> Iterator[int]:
        """How many queries go together: as many as memory allows."""
        numbers = sum(layout.numbers for layout in self.layouts)
        step = max(8, _CHUNK_NUMBERS // numbers // 8 * 8)
        for start in range(0, self.queries, step):
            yield min(step, self.queries - start)

    def _conversion(self, queries: int) -> BitConversion:
        return BitConversion(
            pointers=queries * sum(layout.pointers for layout in self.layouts),
            pointer_bits=self.layouts[0].pointer_bits,
            flags=queries * sum(layout.flags for layout in self.layouts),
            ring_bits=self.ring_bits,
        )

    def _chunk(
        self,
        readers: Sequence[BitReader | None],
        queries: int,
        channel: Openings,
        preprocessing: Preprocessing,
    ) -> Array:
        """Shares of the totals of the next queries, (queries, classes)."""
        item = self._conversion(queries)
        part = preprocessing.take(item)
        pointers, flags = self._read(readers, queries, item)
        opened = _open(channel, item, pointers ^ part.pointer_masks, flags ^ part.flag_masks)
        total = np.zeros((queries, self.layouts[0].classes), part.flags.dtype)
        # Of public values one party's share is the value, all others' are zero.
        constants = channel.rank == channel.size - 1
        for reader, layout, own in zip(readers, self.layouts, self._slices(queries), strict=True):
            if reader is not None:
                total += _add_up(layout, queries, part, opened, own, constants)
        return total

    def _read(
        self, readers: Sequence[BitReader | None], queries: int, item: BitConversion
    ) -> tuple[Pointers, Bits]:
        """This party's shares of all bits; of who is absent all parties take zeros."""
        pointers, flags = np.zeros(item.pointers, np.uint16), np.zeros(item.flags, np.uint8)
        places = np.uint16(1) << np.arange(item.pointer_bits, dtype=np.uint16)
        for reader, layout, (own_pointers, own_flags) in zip(
            readers, self.layouts, self._slices(queries), strict=True
        ):
            if reader is None:
                continue
            bits = reader.take(queries)
            cut = layout.bits - layout.flags
            if cut:
                pointers[own_pointers] = bits[:, :cut].reshape(-1, item.pointer_bits) @ places
            flags[own_flags] = bits[:, cut:].reshape(-1)
        return pointers, flags

    def _slices(self, queries: int) -> Iterator[tuple[slice, slice]]:
        """Where the pointers and the flags of each agent are."""
        pointer, flag = 0, 0
        for layout in self.layouts:
            pointer_end = pointer + queries * layout.pointers
            flag_end = flag + queries * layout.flags
            yield slice(pointer, pointer_end), slice(flag, flag_end)
            pointer, flag = pointer_end, flag_end


def _add_up(
    layout: Layout,
    queries: int,
    part: BitConversionPart,
    opened: tuple[Pointers, Bits],
    own: tuple[slice, slice],
    constants: bool,
) -> Array:
    """Shares of an agent's votes with its noise, in units, (queries, classes)."""
    own_pointers, own_flags = own
    dtype = part.flags.dtype
    # A flag is the opened bit xor its mask.
    seen, masks = opened[1][own_flags].astype(dtype), part.flags[own_flags]
    values: Array = np.where(seen, -masks, masks)
    if constants:
        values += seen
    values = values.reshape(queries, layout.flags)
    if layout.attributes:
        votes: Array = values[:, : layout.vote_flags]
    else:
        rows = _one_hot(part.units[own_pointers], opened[0][own_pointers], layout.classes)
        votes = rows.reshape(queries, layout.votes, -1).sum(axis=1, dtype=dtype)
    noise = _weighed(values[:, layout.vote_flags :], layout.classes, layout.noise_weights)
    if constants:
        noise -= dtype.type(layout.bound)
    noise += votes * dtype.type(layout.unit)
    return noise


def _one_hot(units: Array, opened: Pointers, classes: int) -> Array:
    """Shares of the one-hot rows of pointers, (pointers, classes): unit vectors whose places are
    exchanged by what was opened."""
    places = opened[:, None] ^ np.arange(classes, dtype=np.uint16)
    return np.take_along_axis(units, places.astype(np.intp), axis=1)


def _weighed(flags: Array, classes: int, weights: Sequence[int]) -> Array:
    """Flags of each cell, (queries, classes x weights), added up; there may be no weights."""
    shape = (len(flags), classes, len(weights))
    cells: Array = flags.reshape(shape) @ np.array(weights, flags.dtype)
    return cells


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
