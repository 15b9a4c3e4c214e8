"""Arrays cross the wire unchanged, lie about nothing, and have one digest each."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as nps

from mpc_vote.errors import ErrorKind, VoteError
from mpc_vote.proto.mpcvote.v1 import common_pb2
from mpc_vote.transport import tensors

DTYPES = ["f4", "f8", "u1", "i4", "i8"]

arrays = st.sampled_from(DTYPES).flatmap(
    lambda name: nps.arrays(
        st.sampled_from([f"<{name}", f">{name}"]), nps.array_shapes(max_dims=8, max_side=3)
    )
)


def refusal(tensor: common_pb2.Tensor) -> ErrorKind:
    with pytest.raises(VoteError) as caught:
        tensors.from_tensor(tensor)
    return caught.value.kind


@given(arrays)
def test_an_array_comes_back_as_it_was(array: np.ndarray) -> None:
    sent = tensors.to_tensor(array)
    back = tensors.from_tensor(common_pb2.Tensor.FromString(sent.SerializeToString()))
    assert back.shape == array.shape
    assert back.dtype == array.dtype.newbyteorder("<")
    np.testing.assert_array_equal(back, array)


def test_every_dtype_has_its_own_code() -> None:
    codes = {tensors.dtype_code(np.dtype(name)) for name in DTYPES}
    assert codes == set(common_pb2.DType.values()) - {common_pb2.DTYPE_UNSPECIFIED}
    for code in codes:
        assert tensors.dtype_code(tensors.dtype_of(code)) == code


def test_bytes_are_little_endian_in_c_order_whatever_was_given() -> None:
    array = np.array([[1, 2], [3, 4]], dtype=">i4").T
    assert tensors.to_tensor(array).data == np.array([1, 3, 2, 4], dtype="<i4").tobytes()


def test_what_is_received_cannot_be_written_to() -> None:
    assert not tensors.from_tensor(tensors.to_tensor(np.zeros(3))).flags.writeable


@pytest.mark.parametrize("name", ["f2", "i2", "u4", "u8", "?", "c8", "O", "U3", "M8[s]"])
def test_other_dtypes_are_refused_by_name(name: str) -> None:
    with pytest.raises(VoteError) as caught:
        tensors.to_tensor(np.zeros(2, dtype=name))
    assert caught.value.kind is ErrorKind.METHOD_UNKNOWN
    assert "float32, float64, uint8, int32, int64" in caught.value.message


@pytest.mark.parametrize("code", [0, 6, 99])
def test_unknown_codes_are_refused(code: Any) -> None:
    assert refusal(common_pb2.Tensor(dtype=code, shape=[1], data=b"1")) is ErrorKind.METHOD_UNKNOWN


@given(arrays, st.integers(-9, 9).filter(bool))
def test_data_of_another_size_than_the_shape_is_refused(array: np.ndarray, off: int) -> None:
    tensor = tensors.to_tensor(array)
    tensor.data = (tensor.data + bytes(9))[: max(0, len(tensor.data) + off)]
    assert refusal(tensor) is ErrorKind.TENSOR_MALFORMED


@pytest.mark.parametrize(
    "shape",
    [(), (1,) * 9, (2**32 - 1,) * 8, (0,) + (2**32 - 1,) * 3, (2**31, 0, 2**31)],
    ids=str,
)
def test_shapes_that_no_array_has_are_refused(shape: tuple[int, ...]) -> None:
    data = bytes(8) if 0 not in shape and max(shape, default=1) == 1 else b""
    tensor = common_pb2.Tensor(dtype=common_pb2.DTYPE_INT64, shape=shape, data=data)
    assert refusal(tensor) is ErrorKind.TENSOR_MALFORMED


@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0), (0, 0, 2)])
def test_empty_arrays_are_arrays(shape: tuple[int, ...]) -> None:
    assert tensors.from_tensor(tensors.to_tensor(np.zeros(shape, dtype="f4"))).shape == shape


def test_the_refusal_says_what_was_expected() -> None:
    tensor = common_pb2.Tensor(dtype=common_pb2.DTYPE_FLOAT32, shape=[2, 3], data=bytes(23))
    with pytest.raises(VoteError, match=r"shape \(2, 3\) needs 24 bytes, got 23"):
        tensors.from_tensor(tensor)


class TestChunks:
    @settings(max_examples=25)
    @given(st.integers(0, 40), st.integers(1, 400_000))
    def test_chunks_are_the_rows_in_order_and_no_larger_than_a_message(
        self, rows: int, columns: int
    ) -> None:
        array = np.arange(rows, dtype=np.uint8)[:, None].repeat(columns, axis=1)
        parts = [tensors.from_tensor(chunk) for chunk in tensors.chunks(array)]
        assert [row for part in parts for row in part[:, -1].tolist()] == list(range(rows))
        for part in parts:
            assert 0 < part.nbytes <= tensors.CHUNK_BYTES

    def test_a_row_larger_than_a_message_goes_alone(self) -> None:
        array = np.zeros((3, tensors.CHUNK_BYTES + 1), dtype=np.uint8)
        assert [tuple(c.shape) for c in tensors.chunks(array)] == [(1, tensors.CHUNK_BYTES + 1)] * 3

    def test_messages_are_filled(self) -> None:
        array = np.zeros((2_000, 1_000), dtype=np.uint8)
        assert [c.shape[0] for c in tensors.chunks(array)] == [tensors.CHUNK_BYTES // 1_000, 952]

    @pytest.mark.parametrize("extra", [-1, 0, 1])
    def test_bytes_are_split_without_loss(self, extra: int) -> None:
        data = (
            np.arange(2 * tensors.CHUNK_BYTES + extra, dtype=np.uint32).astype(np.uint8).tobytes()
        )
        pieces = list(tensors.split_bytes(data))
        assert b"".join(pieces) == data
        assert [len(p) for p in pieces] == [
            tensors.CHUNK_BYTES,
            tensors.CHUNK_BYTES + min(extra, 0),
            *([1] if extra == 1 else []),
        ]

    def test_no_bytes_are_no_pieces(self) -> None:
        assert list(tensors.split_bytes(b"")) == []


class TestDigest:
    base = np.arange(12, dtype="<i4").reshape(3, 4)

    def test_chunks_have_the_digest_of_the_whole(self) -> None:
        digest = tensors.QueryDigest(self.base.dtype, (4,))
        for row in self.base:
            digest.update(row)
        assert digest.digest() == tensors.digest_of(self.base)
        assert len(digest.digest()) == 32

    @pytest.mark.parametrize(
        "other",
        [
            base.view("<f4"),
            base.reshape(3, 2, 2),
            base.reshape(4, 3),
            base.reshape(6, 2),
            base[::-1],
            base[:2],
            base + np.eye(3, 4, dtype="<i4"),
            base.astype("<i8"),
        ],
        ids=["dtype", "shape", "rows", "columns", "order", "prefix", "value", "width"],
    )
    def test_it_changes_with_anything_that_a_query_is_made_of(self, other: np.ndarray) -> None:
        assert tensors.digest_of(other) != tensors.digest_of(self.base)

    def test_it_does_not_change_with_the_layout_in_memory(self) -> None:
        for same in (self.base.astype(">i4"), np.asfortranarray(self.base)):
            np.testing.assert_array_equal(same, self.base)
            assert tensors.digest_of(same) == tensors.digest_of(self.base)

    @given(arrays)
    def test_both_ends_agree_on_it(self, array: np.ndarray) -> None:
        assert tensors.digest_of(
            tensors.from_tensor(tensors.to_tensor(array))
        ) == tensors.digest_of(array)


class TestFinite:
    @pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
    @pytest.mark.parametrize("dtype", ["f4", "f8", ">f4"])
    def test_the_first_row_that_is_not_is_named(self, bad: float, dtype: str) -> None:
        rows = np.zeros((5, 2, 2), dtype=dtype)
        rows[2, 1, 0] = rows[4, 0, 0] = bad
        with pytest.raises(VoteError, match="Query 2 holds NaN or infinity") as caught:
            tensors.check_finite(rows, "queries")
        assert caught.value.field == "queries"

    @pytest.mark.parametrize("bad", [1.1e12, -1e19, 3e38])
    def test_what_a_squared_distance_has_no_room_for_is_refused(self, bad: float) -> None:
        rows = np.full((4, 2), -tensors.MAX_SIZE, dtype="f4")
        tensors.check_finite(rows, "queries")
        rows[1, 1] = bad
        with pytest.raises(VoteError, match=r"Query 1 holds a number larger than 1e\+12") as caught:
            tensors.check_finite(rows, "queries")
        assert caught.value.kind is ErrorKind.QUERIES_RANGE
        longest = np.float32(tensors.MAX_ROW_BYTES // 4) * np.float32(2 * tensors.MAX_SIZE) ** 2
        assert longest < np.finfo(np.float32).max / 2**20

    @pytest.mark.parametrize(
        "rows", [np.ones((3, 2)), np.ones((3, 2), dtype="u1"), np.ones((0, 2)), np.ones((2, 0))]
    )
    def test_everything_else_passes(self, rows: np.ndarray) -> None:
        tensors.check_finite(rows, "queries")


def test_a_row_that_no_message_can_carry_is_refused() -> None:
    row = np.zeros((1, tensors.MAX_ROW_BYTES + 1), dtype=np.uint8)
    with pytest.raises(VoteError) as caught:
        list(tensors.chunks(row))
    assert caught.value.kind is ErrorKind.ROW_TOO_LARGE
