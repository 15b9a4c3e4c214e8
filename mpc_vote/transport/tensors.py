"""Arrays on the wire: encoding, decoding with every size checked before use, chunking and
digests."""

from __future__ import annotations

import hashlib
import math
import sys
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from mpc_vote.errors import ErrorKind, VoteError
from mpc_vote.proto.mpcvote.v1 import common_pb2

CHUNK_BYTES = 1 << 20
MAX_ROW_BYTES = 8 << 20
MAX_DIMENSIONS = 8
MAX_SIZE = 1e12
"""No number of a query or a private point is larger: squared distances then stay far from what a
float32 holds, even between the longest rows (4 * 2^21 * 10^24 < 10^31)."""

Array = npt.NDArray[Any]
DTypeCode: TypeAlias = common_pb2.DType.ValueType

_DTYPES: dict[DTypeCode, np.dtype[Any]] = {
    common_pb2.DTYPE_FLOAT32: np.dtype("<f4"),
    common_pb2.DTYPE_FLOAT64: np.dtype("<f8"),
    common_pb2.DTYPE_UINT8: np.dtype("u1"),
    common_pb2.DTYPE_INT32: np.dtype("<i4"),
    common_pb2.DTYPE_INT64: np.dtype("<i8"),
}
_CODES = {dtype: code for code, dtype in _DTYPES.items()}


def dtype_code(dtype: np.dtype[Any]) -> DTypeCode:
    """The wire's code for a numpy dtype."""
    code = _CODES.get(dtype.newbyteorder("<"))
    if code is None:
        want = ", ".join(str(known) for known in _CODES)
        raise VoteError(ErrorKind.METHOD_UNKNOWN, field="dtype", got=str(dtype), want=want)
    return code


def dtype_of(code: DTypeCode) -> np.dtype[Any]:
    """The numpy dtype for a code of the wire."""
    if code not in _DTYPES:
        want = ", ".join(common_pb2.DType.Name(known) for known in _DTYPES)
        raise VoteError(ErrorKind.METHOD_UNKNOWN, field="dtype", got=code, want=want)
    return _DTYPES[code]


def to_tensor(array: Array) -> common_pb2.Tensor:
    """An array as a message."""
    code = dtype_code(array.dtype)
    data = np.ascontiguousarray(array, dtype=_DTYPES[code]).tobytes()
    return common_pb2.Tensor(dtype=code, shape=array.shape, data=data)


def from_tensor(tensor: common_pb2.Tensor, field: str = "queries") -> Array:
    """The array in a message; read-only, and refused unless its size is what it says."""
    dtype = dtype_of(tensor.dtype)
    # Sizes beyond these would take long to multiply, and longer to print.
    shape = tuple(tensor.shape[: MAX_DIMENSIONS + 1])
    want = math.prod(shape) * dtype.itemsize
    # numpy counts an empty array's other dimensions too, and fails on those that no memory holds.
    span = math.prod(max(1, n) for n in shape) * dtype.itemsize
    fits = 1 <= len(shape) <= MAX_DIMENSIONS and span <= sys.maxsize
    # Every look at the field is a copy of it.
    data = tensor.data
    if not fits or want != len(data):
        raise VoteError(
            ErrorKind.TENSOR_MALFORMED,
            field=field,
            dtype=str(dtype),
            shape=shape,
            want=want,
            got=len(data),
        )
    return np.frombuffer(data, dtype=dtype).reshape(shape)


def rows_per_chunk(row_bytes: int, field: str = "queries") -> int:
    """How many rows go into one message; a row that no message can carry is refused."""
    if row_bytes > MAX_ROW_BYTES:
        raise VoteError(ErrorKind.ROW_TOO_LARGE, field=field, got=row_bytes, limit=MAX_ROW_BYTES)
    return max(1, CHUNK_BYTES // max(1, row_bytes))


def chunks(array: Array) -> Iterator[common_pb2.Tensor]:
    """An array as messages of about a megabyte, cut between rows."""
    step = rows_per_chunk(array.nbytes // max(1, len(array)))
    for start in range(0, len(array), step):
        yield to_tensor(array[start : start + step])


def split_bytes(data: bytes) -> Iterator[bytes]:
    """Bytes as pieces of about a megabyte."""
    for start in range(0, len(data), CHUNK_BYTES):
        yield data[start : start + CHUNK_BYTES]


class QueryDigest:
    """SHA-256 over the dtype, the shape of a query, and the rows in order."""

    def __init__(self, dtype: np.dtype[Any], shape: Sequence[int]) -> None:
        self._hash = hashlib.sha256(f"{dtype_code(dtype)}:{tuple(shape)}".encode())

    def update(self, rows: Array) -> None:
        """Takes in the next rows."""
        # As on the wire: little-endian, however the caller's machine or file keeps them.
        dtype = rows.dtype.newbyteorder("<")
        self._hash.update(np.ascontiguousarray(rows, dtype=dtype).reshape(-1).data)

    def digest(self) -> bytes:
        """The digest of all rows so far."""
        return self._hash.digest()


def digest_of(queries: Array) -> bytes:
    """The digest of a whole batch."""
    digest = QueryDigest(queries.dtype, queries.shape[1:])
    digest.update(queries)
    return digest.digest()


def check_finite(rows: Array, field: str, before: int = 0) -> None:
    """Refuses NaN, infinity and numbers over MAX_SIZE, naming the first row that has one; others
    may come `before`."""
    if rows.dtype.kind == "f" and rows.size:
        # Of NaN neither holds.
        if rows.min() >= -MAX_SIZE and rows.max() <= MAX_SIZE:
            return
        flat = rows.reshape(len(rows), -1)
        sound = (np.abs(flat) <= MAX_SIZE).all(axis=1)
        if not sound.all():
            first = int(np.flatnonzero(~sound)[0])
            row = before + first
            if np.isfinite(flat[first]).all():
                raise VoteError(ErrorKind.QUERIES_RANGE, field=field, row=row, limit=MAX_SIZE)
            raise VoteError(ErrorKind.QUERIES_NOT_FINITE, field=field, row=row)
