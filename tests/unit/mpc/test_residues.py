"""Numbers modulo a prime: exactly uniform, and the same for all who read a stream."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from mpc_vote.mpc.prg import SeedStream, new_seed
from mpc_vote.mpc.residues import MAX_PRIME, prime_for, reduce, residues, units

PRIMES = [2, 3, 5, 7, 11, 13, 17, 101, 127, 131, 251]


class EveryByte:
    """A stream in which every byte comes up as often as any other."""

    def __init__(self) -> None:
        self.left = bytes(range(256)) * 4

    def take(self, count: int) -> bytes:
        taken, self.left = self.left[:count], self.left[count:]
        return taken


@pytest.mark.parametrize("modulus", [1, *PRIMES, 10, 250])
def test_every_residue_comes_from_as_many_bytes(modulus: int) -> None:
    stream: Any = EveryByte()
    found = Counter(residues(stream, modulus, 4 * (256 // modulus) * modulus).tolist())
    assert set(found) == set(range(modulus))
    assert len(set(found.values())) == 1


def test_bytes_modulo_a_prime_would_not() -> None:
    assert len(set(Counter(byte % 11 for byte in range(256)).values())) == 2


@pytest.mark.parametrize("prime", PRIMES)
def test_units_are_all_but_zero(prime: int) -> None:
    stream: Any = EveryByte()
    found = Counter(units(stream, prime, 256 // (prime - 1) * (prime - 1)).tolist())
    assert set(found) == set(range(1, prime))
    assert len(set(found.values())) == 1


@pytest.mark.parametrize("prime", PRIMES)
def test_who_reads_a_stream_in_pieces_reads_the_same(prime: int) -> None:
    """Also in what follows: the bytes that are skipped are the same."""
    seed = new_seed()
    whole, pieces = SeedStream(seed), SeedStream(seed)
    together = residues(whole, prime, 1_000)
    apart = [residues(pieces, prime, count) for count in (1, 0, 399, 600)]
    assert np.array_equal(together, np.concatenate(apart))
    assert whole.take(32) == pieces.take(32)


@pytest.mark.parametrize("kind", [np.uint8, np.uint16, np.int16, np.int32])
def test_whole_numbers_are_reduced(kind: Any) -> None:
    values = np.arange(np.iinfo(kind).min, np.iinfo(kind).max, max(1, np.iinfo(kind).max // 500))
    for prime in PRIMES:
        assert np.array_equal(reduce(values.astype(kind), prime), values % prime)


def test_the_prime_is_the_least_that_is_large_enough() -> None:
    assert [prime_for(least) for least in (1, 2, 3, 4, 8, 10, 11, 12, 250)] == [
        *(2, 2, 3, 5, 11, 11, 11, 13, 251)
    ]
    with pytest.raises(ValueError, match=f"primes go up to {MAX_PRIME}"):
        prime_for(MAX_PRIME + 1)
