"""Expansion of short seeds into long streams of uniform words.

AES-256 in counter mode, keyed by 32 bytes of `os.urandom`. The upper half of the counter block is
the number of the stream, so that one seed gives 2^64 independent streams of up to 2^68 bytes each.
Safe as long as AES is a pseudo-random permutation and a seed serves one purpose.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

SEED_BYTES = 32

Words = npt.NDArray[np.uint64]


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

    def take(self, count: int) -> bytes:
        """The next `count` bytes."""
        return self._encryptor.update(bytes(count))

    def words(self, count: int) -> Words:
        """The next `count` words of 64 bits."""
        return np.frombuffer(self.take(8 * count), dtype="<u8")

    def bits(self, count: int) -> Words:
        """The next `count` bits, one per word; whole bytes are used up."""
        raw = np.frombuffer(self.take((count + 7) // 8), dtype=np.uint8)
        return np.unpackbits(raw, bitorder="little", count=count).astype(np.uint64)
