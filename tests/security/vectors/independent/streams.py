"""Streams and packing, after docs/protocol.md, Encodings and test vectors."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

Given = dict[str, Any]
WORD = 64


class Refused(Exception):
    """What a reader must not accept."""


class Stream:
    """Stream `number` of a seed."""

    def __init__(self, seed: bytes, number: int = 0) -> None:
        if len(seed) != 32:
            raise Refused("a seed has 32 bytes")
        block = u64(number) + u64(0)
        self._cipher = Cipher(algorithms.AES256(seed), modes.CTR(block)).encryptor()

    def bytes(self, count: int) -> bytes:
        return self._cipher.update(bytes(count))

    def numbers(self, count: int, size: int) -> list[int]:
        """Little-endian numbers of `size` bytes."""
        return [int.from_bytes(self.bytes(size), "little") for _ in range(count)]

    def words(self, count: int) -> list[int]:
        return self.numbers(count, 8)

    def bits(self, count: int) -> list[int]:
        return unpack(self.bytes(-(-count // 8)), 1, count)

    def values(self, count: int, bits: int) -> list[int]:
        """Numbers of W(bits), cut to what counts."""
        return [number % (1 << bits) for number in self.numbers(count, width_bytes(bits))]


def u64(number: int) -> bytes:
    return number.to_bytes(8, "big")


def width_bytes(bits: int) -> int:
    """The size of W(bits)."""
    return next(size for size in (1, 2, 4, 8) if bits <= 8 * size)


def joint_seed(seeds: Sequence[bytes]) -> bytes:
    return hashlib.sha256(b"joint seed" + b"".join(seeds)).digest()


def pack(values: Sequence[int], bits: int) -> bytes:
    whole = sum((value % (1 << bits)) << (bits * place) for place, value in enumerate(values))
    return whole.to_bytes(-(-len(values) * bits // 8), "little")


def unpack(data: bytes, bits: int, count: int) -> list[int]:
    if not 1 <= bits <= WORD or len(data) != -(-count * bits // 8):
        raise Refused("another length")
    whole = int.from_bytes(data, "little")
    return [(whole >> (bits * place)) % (1 << bits) for place in range(count)]


def pack_planes(values: Sequence[int], bits: int) -> bytes:
    whole = 8 * (bits // 8)
    octets = [pack([value >> shift for value in values], 8) for shift in range(0, whole, 8)]
    singles = [pack([value >> bit for value in values], 1) for bit in range(whole, bits)]
    return b"".join(octets + singles)


def unpack_planes(data: bytes, bits: int, count: int) -> list[int]:
    whole = 8 * (bits // 8)
    planes = [(shift, 8) for shift in range(0, whole, 8)] + [(bit, 1) for bit in range(whole, bits)]
    if not planes or bits > WORD:
        raise Refused("another ring")
    values = [0] * count
    for shift, width in planes:
        size = -(-count * width // 8)
        plane, data = unpack(data[:size], width, count), data[size:]
        values = [value + (part << shift) for value, part in zip(values, plane, strict=True)]
    if data:
        raise Refused("another length")
    return values


def from_hex(texts: Sequence[str]) -> list[bytes]:
    return [bytes.fromhex(text) for text in texts]


def to_hex(parts: Sequence[bytes]) -> list[str]:
    return [part.hex() for part in parts]


def reads(given: Given) -> Given:
    stream = Stream(bytes.fromhex(given["seed"]), given["stream"])
    found: list[Any] = []
    for kind, count in given["reads"]:
        if kind == "bytes":
            found.append(stream.bytes(count).hex())
        else:
            found.append(stream.words(count) if kind == "words" else stream.bits(count))
    return {"found": found}


def joint(given: Given) -> Given:
    return {"seed": joint_seed(from_hex(given["seeds"])).hex()}


def packing(given: Given) -> Given:
    values, bits = given["values"], given["bits"]
    return {"packed": pack(values, bits).hex(), "planes": pack_planes(values, bits).hex()}


def unpacking(given: Given) -> Given:
    return {"values": unpack(bytes.fromhex(given["data"]), given["bits"], given["count"])}


def unpacking_planes(given: Given) -> Given:
    return {"values": unpack_planes(bytes.fromhex(given["data"]), given["bits"], given["count"])}
