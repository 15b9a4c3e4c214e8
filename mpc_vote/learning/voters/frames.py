"""Messages between an agent and the process of its voter: a header and arrays of numbers.

A message is the length of what follows, the length of the header, the header as JSON, and the
arrays' bytes one after the other; the header says of each what it is. Nothing is pickled. Who
receives says how long a message may be: a longer one is refused before it is read.
"""

from __future__ import annotations

import json
import math
import socket
import struct
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

_LENGTHS = struct.Struct("<QI")
_NUMBERS = "biuf"
_ARRAYS = "arrays"
MAX_HEADER = 16 << 20
"""A task takes a megabyte at most."""


class FrameError(Exception):
    """What came is no message."""


class Deadline:
    """The end of a wait; None is never."""

    def __init__(self, seconds: float | None) -> None:
        self._end = None if seconds is None else time.monotonic() + seconds

    def apply(self, line: socket.socket) -> None:
        """Lets the next operation of a socket take what is left."""
        if self._end is None:
            line.settimeout(None)
            return
        left = self._end - time.monotonic()
        if left <= 0:
            raise TimeoutError
        line.settimeout(left)


def send(
    line: socket.socket, header: Mapping[str, Any], arrays: Sequence[Array], deadline: Deadline
) -> None:
    """Sends a message; a `TimeoutError` leaves the line in no state of use."""
    rows = [np.ascontiguousarray(array) for array in arrays]
    for array in rows:
        if array.dtype.kind not in _NUMBERS:
            raise ValueError(f"numbers were expected, not {array.dtype}")
    about = [{"dtype": array.dtype.str, "shape": array.shape} for array in rows]
    text = json.dumps({**header, _ARRAYS: about}).encode()
    size = len(text) + sum(array.nbytes for array in rows)
    deadline.apply(line)
    line.sendall(_LENGTHS.pack(size, len(text)) + text)
    for array in rows:
        deadline.apply(line)
        line.sendall(_bytes(array))


def receive(
    line: socket.socket, limit: int, deadline: Deadline
) -> tuple[dict[str, Any], list[Array]]:
    """The next message; an `EOFError` says that the other side is gone."""
    size, text = _LENGTHS.unpack(_exactly(line, _LENGTHS.size, deadline))
    if size > limit or text > min(size, MAX_HEADER):
        raise FrameError(f"a message of {size:,} bytes came where {limit:,} are allowed")
    try:
        header = json.loads(bytes(_exactly(line, text, deadline)))
        dtypes = [np.dtype(str(one["dtype"])) for one in header[_ARRAYS]]
        shapes = [tuple(int(side) for side in one["shape"]) for one in header.pop(_ARRAYS)]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise FrameError("a message came with a header that can't be read") from error
    sizes = [d.itemsize * math.prod(s) for d, s in zip(dtypes, shapes, strict=True)]
    if (
        any(dtype.kind not in _NUMBERS for dtype in dtypes)
        or any(side < 0 for shape in shapes for side in shape)
        or sum(sizes) != size - text
    ):
        raise FrameError("a message came with arrays of another size than it says")
    contents = [_exactly(line, length, deadline) for length in sizes]
    try:
        return header, [
            np.frombuffer(content, dtype).reshape(shape)
            for content, dtype, shape in zip(contents, dtypes, shapes, strict=True)
        ]
    except ValueError as error:  # of sides or dimensions that numpy can't have
        raise FrameError("a message came with arrays of no shape") from error


def _bytes(array: Array) -> memoryview:
    """An array's bytes, without a copy."""
    flat: Any = array.reshape(-1).view(np.uint8)
    return memoryview(flat)


def _exactly(line: socket.socket, size: int, deadline: Deadline) -> bytearray:
    data = bytearray(size)
    view, done = memoryview(data), 0
    while done < size:
        deadline.apply(line)
        got = line.recv_into(view[done:])
        if got == 0:
            raise EOFError("the other side is gone")
        done += got
    return data
