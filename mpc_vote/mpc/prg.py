"""Expansion of short seeds into long streams of uniform words.

AES-256 in counter mode, keyed by 32 bytes of `os.urandom`. The upper half of the counter block is
the number of the stream, so that one seed gives 2^64 independent streams of up to 2^68 bytes each.
Safe as long as AES is a pseudo-random permutation and a seed serves one purpose.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

SEED_BYTES = 32

# What is encrypted, a stretch at a time: fresh memory costs several times the encryption.
_ZEROS = memoryview(bytes(1 << 18))
# Beside what is written, the cipher wants room for a block less one byte.
_SLACK = algorithms.AES.block_size // 8 - 1

Drawn = TypeVar("Drawn", bound=np.generic)
Words = npt.NDArray[np.uint64]

_OCTET = np.dtype(np.uint8)
_WORD: np.dtype[np.uint64] = np.dtype("<u8")


def new_seed() -> bytes:
    """A fresh seed from the operating system."""
    return os.urandom(SEED_BYTES)


def joint_seed(seeds: Sequence[bytes]) -> bytes:
    """A seed that only somebody who has all of these can know."""
    return hashlib.sha256(b"joint seed" + b"".join(seeds)).digest()


class SeedStream:
    """The bytes of stream number `stream` of `seed`, read in order."""

    def __init__(self, seed: bytes, stream: int = 0) -> None:
        if len(seed) != SEED_BYTES:
            raise ValueError(f"a seed has {SEED_BYTES} bytes, got {len(seed)}")
        counter = stream.to_bytes(8, "big") + bytes(8)
        self._encryptor = Cipher(algorithms.AES(seed), modes.CTR(counter)).encryptor()

    def draw(self, count: int, dtype: np.dtype[Drawn]) -> npt.NDArray[Drawn]:
        """The next `count` numbers, in memory of their own."""
        size = count * dtype.itemsize
        drawn = np.empty(size + _SLACK, np.uint8)
        room = drawn.data
        for start in range(0, size, len(_ZEROS)):
            zeros = _ZEROS[: size - start]
            self._encryptor.update_into(zeros, room[start : start + len(zeros) + _SLACK])
        return drawn[:size].view(dtype)

    def take(self, count: int) -> bytes:
        """The next `count` bytes."""
        if count <= len(_ZEROS):
            return self._encryptor.update(_ZEROS[:count])
        return self.draw(count, _OCTET).tobytes()

    def words(self, count: int) -> Words:
        """The next `count` words of 64 bits."""
        return self.draw(count, _WORD)

    def bits(self, count: int) -> Words:
        """The next `count` bits, one per word; whole bytes are used up."""
        raw = self.draw((count + 7) // 8, _OCTET)
        return np.unpackbits(raw, bitorder="little", count=count).astype(np.uint64)
