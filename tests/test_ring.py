"""Words modulo 2^b: packing loses nothing but the high bits, and sums survive the cut."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpc_vote import ring

bits = st.integers(1, 64)
word_lists = st.lists(st.integers(0, 2**64 - 1), max_size=40)


def words(values: list[int]) -> ring.Words:
    return np.array(values, dtype=np.uint64)


@settings(deadline=None)
@given(word_lists, bits)
def test_packing_keeps_the_low_bits(values: list[int], b: int) -> None:
    packed = ring.pack(words(values), b)
    assert len(packed) == ring.packed_size(len(values), b)
    assert ring.unpack(packed, b, len(values)).tolist() == [v % 2**b for v in values]


@settings(deadline=None)
@given(word_lists, bits)
def test_packing_is_one_long_little_endian_number(values: list[int], b: int) -> None:
    number = sum((v % 2**b) << (b * i) for i, v in enumerate(values))
    assert ring.pack(words(values), b) == number.to_bytes(
        ring.packed_size(len(values), b), "little"
    )


def test_packing_takes_any_shape_and_layout() -> None:
    values = np.arange(24, dtype=np.uint64).reshape(4, 6)
    assert ring.pack(values, 5) == ring.pack(values.reshape(-1), 5)
    assert ring.pack(values.T, 5) == ring.pack(np.ascontiguousarray(values.T), 5)


@settings(deadline=None)
@given(word_lists, bits, st.integers(1, 5))
def test_another_size_than_promised_is_refused(values: list[int], b: int, extra: int) -> None:
    packed = ring.pack(words(values), b)
    with pytest.raises(ValueError, match=f"{len(values)} values of {b} bits"):
        ring.unpack(packed + bytes(extra), b, len(values))
    if packed:
        with pytest.raises(ValueError, match=f"{len(values)} values of {b} bits"):
            ring.unpack(packed[:-1], b, len(values))


@settings(deadline=None)
@given(st.lists(st.tuples(*[st.integers(0, 2**64 - 1)] * 2), min_size=1, max_size=20), bits)
def test_reduction_to_fewer_bits_is_a_homomorphism(pairs: list[tuple[int, int]], b: int) -> None:
    left, right = words([p[0] for p in pairs]), words([p[1] for p in pairs])
    cut = ring.unpack(ring.pack(left, b), b, len(pairs)) + ring.unpack(
        ring.pack(right, b), b, len(pairs)
    )
    assert ring.pack(cut, b) == ring.pack(left + right, b)


@settings(deadline=None)
@given(bits, st.data())
def test_signed_is_the_representative_nearest_to_zero(b: int, data: st.DataObject) -> None:
    value = data.draw(st.integers(-(2 ** (b - 1)), 2 ** (b - 1) - 1))
    noise = data.draw(st.integers(0, 2 ** (64 - b) - 1)) << b
    given_words = words([(value % 2**b) | noise])
    assert ring.signed(given_words, b).tolist() == [value]


@settings(deadline=None)
@given(st.integers(1, 2**62 - 1))
def test_bits_for_is_the_least_ring_in_which_differences_keep_their_sign(bound: int) -> None:
    b = ring.bits_for(bound)
    assert bound < 2 ** (b - 2)
    assert bound >= 2 ** (b - 3)
    assert ring.signed(words([(2 * bound) % 2**64, (-2 * bound) % 2**64]), min(b, 64)).tolist() == [
        2 * bound,
        -2 * bound,
    ]


@pytest.mark.parametrize("b", [0, -1, 65])
def test_a_ring_outside_of_a_word_is_refused(b: int) -> None:
    for call in (
        lambda: ring.pack(words([1]), b),
        lambda: ring.unpack(b"", b, 0),
        lambda: ring.signed(words([1]), b),
    ):
        with pytest.raises(ValueError, match="bits must be from 1 to 64"):
            call()
