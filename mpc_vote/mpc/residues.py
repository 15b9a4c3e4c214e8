"""Exactly uniform numbers modulo a small prime, from a stream of uniform bytes.

A byte taken modulo p is not uniform unless p divides 256: some residues would come up more often.
So bytes that do not fit a whole number of times are skipped: the reader of a stream goes on until
it has enough. All who read the same stream skip the same bytes, and are left at the same place.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from mpc_vote.mpc.prg import SeedStream

Residues = npt.NDArray[np.uint8]

MAX_PRIME = 251
"""The largest that bytes hold."""


def prime_for(least: int) -> int:
    """The least prime that is not below `least`."""
    found = max(2, least)
    while any(found % divisor == 0 for divisor in range(2, int(found**0.5) + 1)):
        found += 1
    if found > MAX_PRIME:
        raise ValueError(f"primes go up to {MAX_PRIME}, {found} is too large")
    return found


def residues(stream: SeedStream, modulus: int, count: int) -> Residues:
    """The next `count` numbers from 0 to `modulus` - 1, all alike in probability."""
    limit = 256 - 256 % modulus
    found: list[Residues] = []
    missing = count
    while missing:
        drawn = np.frombuffer(stream.take(missing), np.uint8)
        kept = drawn if limit == 256 else drawn[drawn < limit]
        found.append(kept)
        missing -= kept.size
    return reduce(np.concatenate(found) if found else np.zeros(0, np.uint8), modulus)


def units(stream: SeedStream, prime: int, count: int) -> Residues:
    """The next `count` numbers from 1 to `prime` - 1, all alike in probability."""
    return residues(stream, prime - 1, count) + np.uint8(1)


def reduce(values: npt.NDArray[np.integer[Any]], modulus: int) -> Residues:
    """Whole numbers modulo a prime."""
    # Numpy divides by a constant many times as fast as it takes remainders.
    times = values // values.dtype.type(modulus)
    rest: Residues = (values - times * values.dtype.type(modulus)).astype(np.uint8, copy=False)
    return rest
