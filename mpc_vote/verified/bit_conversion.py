"""B2A conversion: preprocessing that turns bits shared by exclusive or into numbers to add up.

Free: mask bits, shared by exclusive or. Corrected, modulo 2^ring_bits: for each *pointer* of some
bits a unit vector with its one at the pointer's mask, and for each *flag* the mask bit itself.
Parties open a value xor its mask, which is uniform. A pointer's unit vector, with its places
exchanged by the opened value, is the one-hot row of the value; a flag is the opened bit, or one
minus its mask. Both are local and linear.

Whatever was shared, a pointer gives one row with a single one in it, and a flag gives 0 or 1: there
are no other values to share.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from mpc_vote.argmax.table.level import MIN_BITS
from mpc_vote.mpc import ring
from mpc_vote.mpc.preprocessing import Item, require
from mpc_vote.mpc.prg import SeedStream

Array = npt.NDArray[Any]
Bytes = npt.NDArray[np.uint8]

MAX_POINTER_BITS = 10
# A multiple of what any pointer has places, and of 8.
_STRETCH = 1 << 17
_MASK = np.dtype("<u2")
_OCTET = np.dtype(np.uint8)
# Numbers of one item: what a party's memory holds at a time.
MAX_NUMBERS = 1 << 26


class BitConversionPart(NamedTuple):
    """One party's shares; of numbers the low ring_bits count."""

    pointer_masks: Array
    """(pointers,), by exclusive or."""
    units: Array
    """(pointers, 2^pointer_bits)"""
    flag_masks: Bytes
    """(flags,), by exclusive or; 0 or 1."""
    flags: Array
    """(flags,)"""

    def __repr__(self) -> str:
        return "BitConversionPart(hidden)"


@dataclass(frozen=True)
class BitConversion(Item[BitConversionPart]):
    """For so many pointers of `pointer_bits` bits, and so many flags."""

    wire_name: ClassVar[str] = "bit_conversion"

    pointers: int
    pointer_bits: int
    flags: int
    ring_bits: int

    def check(self) -> None:
        require(self.pointer_bits <= MAX_POINTER_BITS, "the bits of a pointer")
        require(MIN_BITS <= self.ring_bits <= ring.WORD_BITS, "the ring of a bit conversion")
        require(0 < self.numbers <= MAX_NUMBERS, "a bit conversion's size")

    @property
    def places(self) -> int:
        """Values that a pointer can have."""
        return 1 << self.pointer_bits

    @property
    def _dtype(self) -> np.dtype[Any]:
        return ring.dtype_for(self.ring_bits)

    @property
    def numbers(self) -> int:
        """Numbers that are shared."""
        return self.pointers * self.places + self.flags

    @property
    def correction_bytes(self) -> int:
        return ring.planes_size(self.numbers, self.ring_bits)

    @property
    def part_bytes(self) -> int:
        return self.numbers * self._dtype.itemsize + 2 * self.pointers + self.flags

    def expand(self, seed: bytes, index: int, correction: bytes | None) -> BitConversionPart:
        stream = SeedStream(seed, index)
        pointer_masks, flag_masks = self._masks(stream)
        numbers: Array
        if correction is None:
            numbers = self._draw(stream)
        else:
            numbers = ring.unpack_planes(correction, self.ring_bits, self.numbers)
        units = numbers[: self.pointers * self.places].reshape(self.pointers, self.places)
        return BitConversionPart(pointer_masks, units, flag_masks, numbers[units.size :])

    def correct(self, seeds: Sequence[bytes], index: int) -> bytes:
        streams = [SeedStream(seed, index) for seed in seeds]
        masks = [self._masks(stream) for stream in streams]
        pointers, flags = (np.bitwise_xor.reduce(parts) for parts in zip(*masks, strict=True))
        planes = np.empty(self.correction_bytes, np.uint8)
        # The truth, and then the shares, of so many numbers as stay in the processor's caches.
        for start in range(0, self.numbers, _STRETCH):
            numbers = self._truth(pointers, flags, start, min(start + _STRETCH, self.numbers))
            for stream in streams[:-1]:
                numbers -= stream.draw(numbers.size, self._dtype)
            ring.write_planes(planes, numbers, self.ring_bits, start, self.numbers)
        return planes.tobytes()

    def _truth(self, pointers: Array, flags: Bytes, start: int, end: int) -> Array:
        """What the shares of numbers `start` to `end` add up to."""
        numbers = np.zeros(end - start, self._dtype)
        first, last = (min(place // self.places, self.pointers) for place in (start, end))
        own = np.arange(first, last) * self.places + pointers[first:last] - start
        numbers[own] = 1
        cut = self.pointers * self.places
        if end > cut:
            numbers[max(cut - start, 0) :] = flags[max(start - cut, 0) : end - cut]
        return numbers

    def _masks(self, stream: SeedStream) -> tuple[Array, Bytes]:
        pointers = stream.draw(self.pointers, _MASK)
        flags = stream.draw((self.flags + 7) // 8, _OCTET)
        bits = np.unpackbits(flags, bitorder="little", count=self.flags)
        return pointers & np.uint16(self.places - 1), bits

    def _draw(self, stream: SeedStream) -> Array:
        return stream.draw(self.numbers, self._dtype)
