"""An ONNX file as bytes that hold all of the model.

A tensor's values may lie in another file, by a path and an offset that the model names, or even at
an address in memory: whoever wrote the model could have it read any file beside it, and vote by
what is in there. So every tensor is looked at before the runtime gets the model, and it gets bytes,
not a path. The bytes are those of protobuf's wire format; what is no part of the way to a tensor is
passed over unread.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

_MAX_BYTES = (1 << 31) - 1  # of any message of protobuf
_MAX_DEPTH = 100  # of messages in messages, as protobuf has it
_VARINT_BYTES = 10
_VARINT, _FIXED64, _MESSAGE, _FIXED32 = 0, 1, 2, 5
_FIXED = {_FIXED64: 8, _FIXED32: 4}

# The fields of onnx.proto that lead to tensors, by message, and what lies in them.
PATHS: dict[str, dict[int, str]] = {
    "ModelProto": {7: "GraphProto", 20: "TrainingInfoProto", 25: "FunctionProto"},
    "TrainingInfoProto": {1: "GraphProto", 2: "GraphProto"},
    "FunctionProto": {7: "NodeProto", 11: "AttributeProto"},
    "GraphProto": {1: "NodeProto", 5: "TensorProto", 15: "SparseTensorProto"},
    "NodeProto": {5: "AttributeProto"},
    "AttributeProto": {
        5: "TensorProto",
        6: "GraphProto",
        10: "TensorProto",
        11: "GraphProto",
        22: "SparseTensorProto",
        23: "SparseTensorProto",
    },
    "SparseTensorProto": {1: "TensorProto", 2: "TensorProto"},
    "TensorProto": {},
}
EXTERNAL_DATA, DATA_LOCATION = 13, 14
"""Fields of a tensor whose values are elsewhere."""


class _Unreadable(Exception):
    """Bytes that are no message."""


def contained(path: Path) -> bytes:
    """The model in a file; a `ValueError` says that it is none, or not all of one."""
    if path.stat().st_size > _MAX_BYTES:
        raise ValueError(f"{path}: it takes over {_MAX_BYTES:,} bytes, more than an ONNX file can")
    content = path.read_bytes()
    try:
        external = _has_external(memoryview(content), "ModelProto", 0)
    except _Unreadable as error:
        raise ValueError(f"{path}: it is no ONNX model") from error
    if external:
        raise ValueError(
            f"{path}: it has values in another file (external data), which is not read: save it "
            "as one file, with onnx.save(onnx.load(PATH), OUT, save_as_external_data=False)"
        )
    return content


def _has_external(message: memoryview, kind: str, depth: int) -> bool:
    if depth > _MAX_DEPTH:
        raise _Unreadable
    within = PATHS[kind]
    for number, value in _fields(message):
        if kind == "TensorProto" and number in (EXTERNAL_DATA, DATA_LOCATION) and value:
            return True
        inner = within.get(number)
        if inner and isinstance(value, memoryview) and _has_external(value, inner, depth + 1):
            return True
    return False


def _fields(message: memoryview) -> Iterator[tuple[int, memoryview | int]]:
    """The number and the content of each field but numbers of fixed width."""
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        tag &= 0xFFFF_FFFF  # as protobuf cuts it off
        wire = tag & 7
        if tag >> 3 == 0:
            raise _Unreadable
        if wire == _VARINT:
            value, at = _varint(message, at)
            yield tag >> 3, value
            continue
        if wire == _MESSAGE:
            size, at = _varint(message, at)
        elif wire in _FIXED:
            size = _FIXED[wire]
        else:
            raise _Unreadable
        if size > len(message) - at:
            raise _Unreadable
        if wire == _MESSAGE:
            yield tag >> 3, message[at : at + size]
        at += size


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    value = 0
    for place, byte in enumerate(message[at : at + _VARINT_BYTES]):
        value |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return value, at + place + 1
    raise _Unreadable
