"""Words modulo 2^b: packing loses nothing but the high bits, and sums survive the cut."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpc_vote.mpc import ring

bits = st.integers(1, 64)
word_lists = st.lists(st.integers(0, 2**64 - 1), max_size=40)


def words(values: list[int]) -> ring.Words:
    return np.array(values, dtype=np.uint64)


@given(word_lists, bits)
def test_packing_keeps_the_low_bits(values: list[int], b: int) -> None:
    packed = ring.pack(words(values), b)
    assert len(packed) == ring.packed_size(len(values), b)
    assert ring.unpack(packed, b, len(values)).tolist() == [v % 2**b for v in values]


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


@given(word_lists, bits, st.integers(1, 5))
def test_another_size_than_promised_is_refused(values: list[int], b: int, extra: int) -> None:
    packed = ring.pack(words(values), b)
    with pytest.raises(ValueError, match=f"{len(values)} values of {b} bits"):
        ring.unpack(packed + bytes(extra), b, len(values))
    if packed:
        with pytest.raises(ValueError, match=f"{len(values)} values of {b} bits"):
            ring.unpack(packed[:-1], b, len(values))


class TestPlanes:
    @given(word_lists, bits)
    def test_packing_keeps_the_low_bits(self, values: list[int], b: int) -> None:
        packed = ring.pack_planes(words(values), b)
        assert len(packed) == ring.planes_size(len(values), b)
        for data in (packed, memoryview(packed)):
            found = ring.unpack_planes(data, b, len(values))
            assert found.dtype == ring.dtype_for(b)
            assert found.tolist() == [v % 2**b for v in values]

    @given(word_lists, bits)
    def test_whole_bytes_come_first_and_then_single_bits(self, values: list[int], b: int) -> None:
        planes = [bytes(v >> 8 * k & 255 for v in values) for k in range(b // 8)]
        for k in range(b // 8 * 8, b):
            number = sum((v >> k & 1) << i for i, v in enumerate(values))
            planes.append(number.to_bytes(-(-len(values) // 8), "little"))
        assert ring.pack_planes(words(values), b) == b"".join(planes)

    @given(st.integers(0, 1_000), bits)
    def test_no_bytes_are_lost_but_to_fill_up_planes(self, count: int, b: int) -> None:
        lost = ring.planes_size(count, b) - ring.packed_size(count, b)
        assert 0 <= lost <= b % 8
        assert lost == 0 or count % 8

    @given(st.lists(st.integers(0, 255), max_size=20), bits)
    def test_any_unsigned_type_is_taken(self, values: list[int], b: int) -> None:
        packed = ring.pack_planes(words(values), b)
        for dtype in (np.uint8, np.uint16, np.uint32):
            assert ring.pack_planes(np.array(values, dtype=dtype), b) == packed

    def test_any_shape_and_layout_is_taken(self) -> None:
        values = np.arange(24, dtype=np.uint16).reshape(4, 6)
        for b in (5, 8, 13, 16, 24):
            flat = ring.pack_planes(values.reshape(-1), b)
            assert ring.pack_planes(values, b) == flat
            assert ring.pack_planes(np.asfortranarray(values), b) == flat
            assert ring.pack_planes(values.T, b) == ring.pack_planes(values.T.copy(), b)

    def test_the_values_are_left_alone(self) -> None:
        values = words([2**64 - 1, 2**63, 5])
        ring.pack_planes(values, 13)
        assert values.tolist() == [2**64 - 1, 2**63, 5]

    @given(word_lists, bits, st.integers(1, 5))
    def test_another_size_than_promised_is_refused(
        self, values: list[int], b: int, extra: int
    ) -> None:
        packed = ring.pack_planes(words(values), b)
        for wrong in (packed + bytes(extra), packed[:-extra] if packed else b"x"):
            with pytest.raises(ValueError, match=f"{len(values)} values of {b} bits"):
                ring.unpack_planes(wrong, b, len(values))

    @given(st.lists(st.tuples(*[st.integers(0, 2**64 - 1)] * 3), min_size=1, max_size=20), bits)
    def test_sums_survive_the_cut(self, rows: list[tuple[int, int, int]], b: int) -> None:
        columns = [words(list(column)) for column in zip(*rows, strict=True)]
        packed = [ring.pack_planes(c, b) for c in columns]
        shares = [ring.unpack_planes(p, b, len(rows)) for p in packed]
        summed = ring.pack_planes(np.add.reduce(columns), b)
        assert ring.pack_planes(np.add.reduce(shares), b) == summed
        assert ring.pack_planes(ring.add_planes(packed, b, len(rows)), b) == summed


@pytest.mark.parametrize("b", range(1, 65))
def test_the_type_for_bits_is_the_least_that_holds_them(b: int) -> None:
    dtype = ring.dtype_for(b)
    assert dtype.kind == "u"
    assert b <= 8 * dtype.itemsize
    assert dtype.itemsize == 1 or b > 4 * dtype.itemsize


@given(st.lists(st.tuples(*[st.integers(0, 2**64 - 1)] * 2), min_size=1, max_size=20), bits)
def test_reduction_to_fewer_bits_is_a_homomorphism(pairs: list[tuple[int, int]], b: int) -> None:
    left, right = words([p[0] for p in pairs]), words([p[1] for p in pairs])
    cut = ring.unpack(ring.pack(left, b), b, len(pairs)) + ring.unpack(
        ring.pack(right, b), b, len(pairs)
    )
    assert ring.pack(cut, b) == ring.pack(left + right, b)


@given(bits, st.data())
def test_signed_is_the_representative_nearest_to_zero(b: int, data: st.DataObject) -> None:
    value = data.draw(st.integers(-(2 ** (b - 1)), 2 ** (b - 1) - 1))
    noise = data.draw(st.integers(0, 2 ** (64 - b) - 1)) << b
    given_words = words([(value % 2**b) | noise])
    assert ring.signed(given_words, b).tolist() == [value]


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
        lambda: ring.dtype_for(b),
        lambda: ring.pack_planes(words([1]), b),
        lambda: ring.unpack_planes(b"", b, 0),
    ):
        with pytest.raises(ValueError, match="bits must be from 1 to 64"):
            call()
