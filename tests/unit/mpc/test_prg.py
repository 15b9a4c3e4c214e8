"""Seed streams are AES-256 in counter mode, and no two of them have anything in common."""

from __future__ import annotations

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given
from hypothesis import strategies as st

from mpc_vote.mpc.prg import SEED_BYTES, SeedStream, new_seed

seeds = st.binary(min_size=SEED_BYTES, max_size=SEED_BYTES)
streams = st.integers(0, 2**64 - 1)


def test_the_zero_key_gives_the_published_blocks() -> None:
    # AES-256 of the counters 0, 1, 2 under the zero key: in the GCM specification these are the
    # hash key of test case 13, its tag, and the ciphertext of test case 14.
    assert SeedStream(bytes(SEED_BYTES)).take(48).hex() == (
        "dc95c078a2408989ad48a21492842087"
        "530f8afbc74536b9a963b4f1c4cb738b"
        "cea7403d4d606b6e074ec5d3baf39d18"
    )


def test_the_stream_number_is_the_upper_half_of_the_counter() -> None:
    # NIST's AESAVS, variable plaintext, 256 bits: the block 80 00 .. 00 under the zero key.
    first = SeedStream(bytes(SEED_BYTES), stream=1 << 63).take(16)
    assert first.hex() == "ddc6bf790c15760d8d9aeb6f9a75fd4e"


@given(seeds, streams, st.integers(0, 200))
def test_a_stream_is_the_cipher_of_its_counters(seed: bytes, stream: int, count: int) -> None:
    cipher = Cipher(algorithms.AES(seed), modes.ECB()).encryptor()
    counters = [stream.to_bytes(8, "big") + i.to_bytes(8, "big") for i in range(13)]
    assert SeedStream(seed, stream).take(count) == cipher.update(b"".join(counters))[:count]


@given(seeds, st.lists(st.integers(0, 50), max_size=10))
def test_reading_on_equals_reading_at_once(seed: bytes, counts: list[int]) -> None:
    stream = SeedStream(seed)
    read = b"".join(stream.take(count) for count in counts)
    assert read == SeedStream(seed).take(sum(counts))


@given(seeds, st.integers(0, 70))
def test_words_are_the_bytes_in_little_endian_order(seed: bytes, count: int) -> None:
    raw = SeedStream(seed).take(8 * count)
    expected = [int.from_bytes(raw[i : i + 8], "little") for i in range(0, len(raw), 8)]
    assert SeedStream(seed).words(count).tolist() == expected


@given(seeds, st.integers(0, 70))
def test_bits_are_those_of_the_bytes_and_use_up_whole_ones(seed: bytes, count: int) -> None:
    stream, raw = SeedStream(seed), SeedStream(seed)
    number = int.from_bytes(raw.take((count + 7) // 8), "little")
    assert stream.bits(count).tolist() == [number >> i & 1 for i in range(count)]
    assert stream.take(16) == raw.take(16)


@given(seeds, st.lists(streams, min_size=2, max_size=6, unique=True))
def test_streams_of_one_seed_differ_in_every_block(seed: bytes, numbers: list[int]) -> None:
    blocks = []
    for number in numbers:
        data = SeedStream(seed, number).take(160)
        blocks += [data[i : i + 16] for i in range(0, 160, 16)]
    assert len(set(blocks)) == len(blocks)


def test_fresh_seeds_give_streams_without_a_common_word() -> None:
    # 10 000 words of 64 bits collide with probability below 3e-12.
    words = np.concatenate([SeedStream(new_seed()).words(100) for _ in range(100)])
    assert len(np.unique(words)) == words.size


@pytest.mark.parametrize("size", [0, 16, 31, 33])
def test_a_seed_of_another_size_is_refused(size: int) -> None:
    with pytest.raises(ValueError, match=f"32 bytes, got {size}"):
        SeedStream(bytes(size))


@pytest.mark.parametrize("number", [-1, 2**64])
def test_a_stream_number_beyond_its_half_of_the_counter_is_refused(number: int) -> None:
    with pytest.raises(OverflowError):
        SeedStream(bytes(SEED_BYTES), number)
