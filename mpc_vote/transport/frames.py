"""What goes over a link between two parties: frames with a kind, a number and a bounded length.

    kind (1 byte) | number (4 bytes) | length (4 bytes) | content

Integers are big-endian. No reader makes room for more than it expects: payloads are as long as the
reader's own, and all other kinds have a limit.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Mapping
from dataclasses import dataclass

_HEADER = struct.Struct(">BII")
HEADER_BYTES = _HEADER.size
MAX_CONTENT_BYTES = (1 << 32) - 1


class Kind(enum.IntEnum):
    """What a frame is for."""

    PING = 1
    PONG = 2
    # Begins a session: a serialised SessionHello.
    HELLO = 3
    # One party's part of an exchange; numbered from 0 within the session.
    PAYLOAD = 4
    # Nothing of the session follows: after both ends have sent it, the link is free for another.
    END = 5
    # Nothing follows on this link at all: a serialised Status says why.
    ERROR = 6
    # Whoever sends it has a new certificate: the next session should have a new link. One that has
    # begun meanwhile goes on.
    LAST = 7


# An error names causes in words; a hello has names and digests only.
MAX_ERROR_BYTES = 1 << 17
MAX_HELLO_BYTES = 512
_LIMITS: Mapping[Kind, int] = {
    Kind.PING: 0,
    Kind.PONG: 0,
    Kind.HELLO: MAX_HELLO_BYTES,
    Kind.END: 0,
    Kind.ERROR: MAX_ERROR_BYTES,
    Kind.LAST: 0,
}


class FrameError(Exception):
    """Bytes that are no frame, or none that may come here."""


@dataclass(frozen=True)
class Header:
    """The beginning of a frame."""

    kind: Kind
    number: int
    length: int

    def __bytes__(self) -> bytes:
        return _HEADER.pack(self.kind, self.number, self.length)

    @classmethod
    def parse(cls, packed: bytes | bytearray, payload: int = -1) -> Header:
        """Of a frame that may come: a payload only if one of this length is expected."""
        kind, number, length = _HEADER.unpack(packed)
        try:
            header = cls(Kind(kind), number, length)
        except ValueError as error:
            raise FrameError(f"{kind} is no kind of frame") from error
        if header.kind is Kind.PAYLOAD:
            fits = length == payload
        else:
            fits = number == 0 and length <= _LIMITS[header.kind]
        if not fits:
            raise FrameError(f"a frame {header.kind.name} of {length} bytes is not expected")
        return header


def encode(kind: Kind, content: bytes = b"", number: int = 0) -> bytes:
    """A whole frame."""
    return bytes(Header(kind, number, len(content))) + content


PING, PONG, END, LAST = map(encode, (Kind.PING, Kind.PONG, Kind.END, Kind.LAST))
