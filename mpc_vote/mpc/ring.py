"""Integers modulo 2^b, kept in unsigned 64-bit words, and their packing for the wire.

Reduction from 2^64 to 2^b is a ring homomorphism: the low b bits of additive shares are additive
shares of the low b bits. So everything is computed in 64-bit words and cut to b bits only where it
is sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

WORD_BITS = 64

_SINGLE_BITS = (1 << np.arange(8)).astype(np.uint8)[:, None]

Words = npt.NDArray[np.uint64]
Unsigned = npt.NDArray[np.unsignedinteger[Any]]


def packed_size(count: int, bits: int) -> int:
    """Bytes that `count` values of `bits` bits take."""
    return (count * bits + 7) // 8


def pack(values: Words, bits: int) -> bytes:
    """The low `bits` bits of each value, one after the other, least significant bit first."""
    _check(bits)
    flat = np.ascontiguousarray(values, dtype="<u8").reshape(-1)
    octets = flat.view(np.uint8).reshape(-1, 8)
    if bits % 8 == 0:
        return octets[:, : bits // 8].tobytes()
    rows = np.unpackbits(octets, axis=1, bitorder="little", count=bits)
    return np.packbits(rows, bitorder="little").tobytes()


def unpack(data: bytes, bits: int, count: int) -> Words:
    """The inverse of `pack`."""
    _check(bits)
    if len(data) != packed_size(count, bits):
        raise ValueError(f"{count} values of {bits} bits take {packed_size(count, bits)} bytes")
    dtype = dtype_for(bits)
    if bits == 8 * dtype.itemsize:
        return np.frombuffer(data, dtype).astype(np.uint64)
    # Eight values take as many bytes as one has bits: each place among them has its own shift.
    eights = -(-count // 8)
    padded = np.zeros((eights + 1) * bits + 8, np.uint8)
    padded[: len(data)] = np.frombuffer(data, np.uint8)
    values = np.empty((eights, 8), np.uint64)
    for place in range(8):
        start, shift = divmod(place * bits, 8)
        window = np.ndarray(eights, "<u8", padded, offset=start, strides=(bits,))
        values[:, place] = window >> np.uint64(shift)
        if shift + bits > WORD_BITS:
            beyond = padded[start + 8 :: bits][:eights].astype(np.uint64)
            values[:, place] |= beyond << np.uint64(WORD_BITS - shift)
    values &= np.uint64((1 << bits) - 1)
    return values.reshape(-1)[:count]


@lru_cache(maxsize=WORD_BITS)
def dtype_for(bits: int) -> np.dtype[np.unsignedinteger[Any]]:
    """The least unsigned type that holds `bits` bits."""
    _check(bits)
    return np.dtype(f"<u{next(size for size in (1, 2, 4, 8) if bits <= 8 * size)}")


def planes_size(count: int, bits: int) -> int:
    """Bytes that `pack_planes` takes."""
    return count * (bits // 8) + bits % 8 * ((count + 7) // 8)


def pack_planes(values: Unsigned, bits: int) -> bytes:
    """The low `bits` bits of each value, plane by plane: whole bytes first, then single bits.

    Quicker than `pack`, but only a whole array can be unpacked.
    """
    _check(bits)
    flat = np.ascontiguousarray(values, dtype_for(bits)).reshape(-1)
    whole, single = divmod(bits, 8)
    planes = [_octet(flat, plane).data for plane in range(whole)]
    if single:
        chosen = _octet(flat, whole) & _SINGLE_BITS[:single]
        planes.append(np.packbits(chosen, axis=1, bitorder="little").data)
    return b"".join(planes)


def write_planes(
    planes: npt.NDArray[np.uint8], values: Unsigned, bits: int, start: int, count: int
) -> None:
    """Writes values into what `pack_planes` makes of `count`, from number `start` on, which must be
    a multiple of 8: for arrays that are never in memory as a whole."""
    whole, size = bits // 8, values.size
    for plane in range(whole + (bits % 8 > 0)):
        octets = _octet(values, plane)
        if plane < whole:
            planes[plane * count + start :][:size] = octets
            continue
        for bit in range(bits % 8):
            packed = np.packbits(octets & np.uint8(1 << bit), bitorder="little")
            place = whole * count + bit * ((count + 7) // 8) + start // 8
            planes[place : place + packed.size] = packed


def _octet(values: Unsigned, place: int) -> npt.NDArray[np.uint8]:
    """One byte of each value."""
    shifted = values >> values.dtype.type(8 * place) if place else values
    return shifted.astype(np.uint8, copy=False)


def unpack_planes(data: bytes | memoryview, bits: int, count: int) -> Unsigned:
    """The inverse of `pack_planes`."""
    return add_planes([data], bits, count)


def add_planes(packed: Sequence[bytes | memoryview], bits: int, count: int) -> Unsigned:
    """The sum of arrays that `pack_planes` made, one at least: only its low `bits` bits count.

    Planes are added first and then put together, once for all arrays.
    """
    _check(bits)
    if any(len(data) != planes_size(count, bits) for data in packed):
        raise ValueError(f"{count} values of {bits} bits take {planes_size(count, bits)} bytes")
    raw = [np.frombuffer(data, np.uint8) for data in packed]
    dtype = dtype_for(bits)
    whole, single = divmod(bits, 8)
    values: Unsigned | None = None
    for plane in range(whole):
        octets = [one[plane * count : (plane + 1) * count] for one in raw]
        added = octets[0].astype(dtype)
        for other in octets[1:]:
            added += other
        values = _placed(values, added, plane)
    if single:
        first, *others = [_single_planes(one[whole * count :], single, count) for one in raw]
        for other in others:
            first += other
        rest = first[-1]
        for bit in first[-2::-1]:
            # Numpy adds bytes several times as fast as it shifts them.
            rest += rest
            rest += bit
        # Copied, as a view would keep all planes in memory.
        values = _placed(values, rest.astype(dtype), whole)
    assert values is not None
    return values


def _single_planes(raw: npt.NDArray[np.uint8], single: int, count: int) -> npt.NDArray[np.uint8]:
    return np.unpackbits(raw.reshape(single, -1), axis=1, count=count, bitorder="little")


def _placed(values: Unsigned | None, added: Unsigned, place: int) -> Unsigned:
    """Values with what is added at one of their bytes."""
    if values is None:
        return added
    added <<= added.dtype.type(8 * place)
    values += added
    return values


def signed(values: Words, bits: int) -> npt.NDArray[np.int64]:
    """Representatives in [-2^(bits-1), 2^(bits-1))."""
    _check(bits)
    shift = np.uint64(WORD_BITS - bits)
    return (values << shift).view(np.int64) >> np.int64(WORD_BITS - bits)


def bits_for(bound: int) -> int:
    """The least b such that |x| <= bound means |x| < 2^(b-2): differences keep their sign."""
    return max(bound, 1).bit_length() + 2


def _check(bits: int) -> None:
    if not 1 <= bits <= WORD_BITS:
        raise ValueError(f"ring of 2^{bits}: bits must be from 1 to {WORD_BITS}")
