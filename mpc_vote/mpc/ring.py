"""Integers modulo 2^b, kept in unsigned 64-bit words, and their packing for the wire.

Reduction from 2^64 to 2^b is a ring homomorphism: the low b bits of additive shares are additive
shares of the low b bits. So everything is computed in 64-bit words and cut to b bits only where it
is sent.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

WORD_BITS = 64

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
    octets = flat.view(np.uint8).reshape(-1, flat.itemsize)
    whole = bits // 8
    planes = [octets[:, plane].tobytes() for plane in range(whole)]
    if bits % 8:
        rest = np.ascontiguousarray(octets[:, whole])
        planes += [
            np.packbits(rest & np.uint8(1 << bit), bitorder="little").tobytes()
            for bit in range(bits % 8)
        ]
    return b"".join(planes)


def unpack_planes(data: bytes | memoryview, bits: int, count: int) -> Unsigned:
    """The inverse of `pack_planes`."""
    _check(bits)
    if len(data) != planes_size(count, bits):
        raise ValueError(f"{count} values of {bits} bits take {planes_size(count, bits)} bytes")
    raw = np.frombuffer(data, np.uint8)
    dtype = dtype_for(bits)
    whole, stride = bits // 8, (count + 7) // 8
    octets = np.zeros((count, dtype.itemsize), np.uint8)
    for plane in range(whole):
        octets[:, plane] = raw[plane * count : (plane + 1) * count]
    if bits % 8:
        rest = np.zeros(count, np.uint8)
        for bit in range(bits % 8):
            plane_bits = raw[whole * count + bit * stride :][:stride]
            rest |= np.unpackbits(plane_bits, bitorder="little", count=count) << np.uint8(bit)
        octets[:, whole] = rest
    return octets.view(dtype).reshape(count)


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
