"""Looks for secrets in bytes, in any form in which one plausibly gets out.

A secret is a matrix of integers or a string of random bytes. Of a matrix every row, and every
column in pieces, is looked for: as integers and floats of every width and both byte orders, as
protobuf varints, as decimal text whatever stands between the numbers, in hexadecimal and base64.
So the search finds a leak that holds at least one row of distinctive numbers; a single number by
itself is not recognisable and not looked for. Modulo a power of two it is also looked for as shares
and openings are packed: eight rows without gaps, and a column or a row plane by plane.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from mpc_vote.mpc import ring

Matrix = npt.NDArray[np.int64]

_KEY_BYTES = 8
_TABLE_BITS = 22
_MULTIPLIER = 0x9E3779B97F4A7C15
_PIECE = 12
_DISTINCT = 5
_INTEGERS = ("<i8", "<i4", "<i2", "i1", "u1", ">i8", ">i4", ">i2")
_FLOATS = ("<f8", "<f4", ">f8", ">f4")
_RECODED = ("<i8", "<i4")
_NUMERIC = b"0123456789.-"
_SPACED = bytes(c if c in _NUMERIC else ord(" ") for c in range(256))
_FOLDED = bytes(c for c in range(256)).lower().replace(b"-", b"+").replace(b"_", b"/")
_WRAPPERS = (b"np.int64(", b"np.uint64(", b"np.int32(", b"np.uint32(", b"np.float64(")


class Needles:
    """Named secrets; `find` tells which of them some bytes hold."""

    def __init__(self) -> None:
        self._raw = _Patterns()
        self._numbers = _Patterns()
        self._folded = _Patterns()
        self.names: set[str] = set()

    def add_matrix(self, name: str, matrix: npt.NDArray[np.integer]) -> None:
        """Looks for rows, and for pieces of columns, that have enough different numbers."""
        values = np.asarray(matrix, dtype=np.int64)
        columns = [column[i : i + _PIECE] for column in values.T for i in _starts(column)]
        rows = [row for row in [*values, *columns] if len(set(row.tolist())) >= _DISTINCT]
        if len(rows) < len(values):
            raise ValueError(f"{name} is too plain to be recognised")
        for row in rows:
            for form in binary_forms(row):
                self._raw.add(form, name)
            for dtype in _RECODED:
                self._add_recoded(name, row.astype(dtype).tobytes())
            for text in _texts(row):
                self._numbers.add(text, name)
        self.names.add(name)

    def add_packed(self, name: str, matrix: npt.NDArray[np.integer], bits: int) -> None:
        """Looks for the matrix modulo 2^bits as the wire has it, where that is distinctive."""
        words = np.asarray(matrix, dtype=np.int64).view(np.uint64)
        forms = [ring.pack(words[i : i + 8], bits) for i in range(0, len(words) - 7, 8)]
        for line in [*words, *words.T]:
            forms += [ring.pack(line[: len(line) // 8 * 8], bits), *_planes(line, bits)]
        long = [form for form in forms if len(form) >= _KEY_BYTES]
        distinctive = [form for form in long if len(set(form)) >= _DISTINCT]
        if len(distinctive) <= len(words) // 8:
            raise ValueError(f"{name} is too plain to be recognised")
        for form in distinctive:
            self._raw.add(form, name)
        self.names.add(name)

    def add_bytes(self, name: str, content: bytes) -> None:
        """Looks for these very bytes, also in hexadecimal, base64 and decimal, byte by byte or as
        one number, and as Python shows them."""
        self._raw.add(content, name)
        self._raw.add(repr(content)[2:-1].encode(), name)
        self._numbers.add(" ".join(map(str, content)).encode(), name)
        for order in ("little", "big"):
            self._numbers.add(str(int.from_bytes(content, order)).encode(), name)
        self._add_recoded(name, content)
        self.names.add(name)

    def find(self, hay: bytes) -> set[str]:
        """The names of all secrets that are in `hay`."""
        return self._raw.find(hay) | self._numbers.find(_spaced(hay)) | self._folded.find(fold(hay))

    def find_numbers(self, hay: bytes) -> set[str]:
        """The same in bytes that can hold no text: in a hundred million random bytes, ten digits
        with anything between them stand in a given order once in some thousand times."""
        return self._raw.find(hay) | self._folded.find(fold(hay))

    def _add_recoded(self, name: str, content: bytes) -> None:
        self._folded.add(content.hex().encode(), name)
        for shift in range(3):
            # What stands before decides how base64 falls; its edges depend on the neighbours.
            coded = base64.b64encode(bytes(shift) + content).rstrip(b"=")
            self._folded.add(fold(coded[2 * (shift > 0) + 2 : -2]), name)


class _Patterns:
    """Exact byte strings, found by eight distinctive bytes of each and then compared whole."""

    def __init__(self) -> None:
        self._by_key: dict[int, list[tuple[int, bytes, str]]] = {}
        self._table = np.zeros(1 << _TABLE_BITS, dtype=bool)

    def add(self, content: bytes, name: str) -> None:
        last = len(content) - _KEY_BYTES
        if last < 0:
            raise ValueError(f"{content!r} is too short to be looked for")
        starts = range(0, last + 1, max(1, last // 8))
        best = max(starts, key=lambda start: len(set(content[start : start + _KEY_BYTES])))
        key = int.from_bytes(content[best : best + _KEY_BYTES], "little")
        self._by_key.setdefault(key, []).append((best, content, name))
        self._table[_slot(key)] = True

    def find(self, hay: bytes) -> set[str]:
        found: set[str] = set()
        for shift in range(_KEY_BYTES):
            count = (len(hay) - shift) // _KEY_BYTES
            if count <= 0:
                break
            words = np.frombuffer(hay, dtype="<u8", count=count, offset=shift)
            for place in np.flatnonzero(self._table[_slots(words)]):
                for offset, content, name in self._by_key.get(int(words[place]), ()):
                    start = shift + _KEY_BYTES * int(place) - offset
                    if name not in found and start >= 0 and hay.startswith(content, start):
                        found.add(name)
        return found


def _slot(key: int) -> int:
    return (key * _MULTIPLIER) % (1 << 64) >> (64 - _TABLE_BITS)


def _slots(words: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """`_slot` of each word."""
    return (words * np.uint64(_MULTIPLIER)) >> np.uint64(64 - _TABLE_BITS)


def _starts(column: Matrix) -> range:
    return range(0, len(column) - _PIECE + 1, _PIECE)


def _planes(line: npt.NDArray[np.uint64], bits: int) -> Iterator[bytes]:
    """The planes of `ring.pack_planes`: of bytes, and of bits as far as they fill whole bytes."""
    packed = ring.pack_planes(line, bits)
    sizes = [len(line)] * (bits // 8) + [(len(line) + 7) // 8] * (bits % 8)
    start = 0
    for plane, size in enumerate(sizes):
        yield packed[start : start + (size if plane < bits // 8 else len(line) // 8)]
        start += size


def binary_forms(row: Matrix) -> Iterator[bytes]:
    """A row as numbers on a wire or in a file, in every width that holds them."""
    for dtype in _INTEGERS:
        info = np.iinfo(dtype)
        if info.min <= row.min() and row.max() <= info.max:
            yield row.astype(dtype).tobytes()
    for dtype in _FLOATS:
        yield row.astype(dtype).tobytes()
    yield b"".join(varint(int(value)) for value in row)
    yield b"".join(varint(2 * int(value) if value >= 0 else -2 * int(value) - 1) for value in row)


def varint(value: int) -> bytes:
    """An int64 as protobuf writes it."""
    left, out = value % (1 << 64), bytearray()
    while left > 0x7F:
        out.append(left & 0x7F | 0x80)
        left >>= 7
    return bytes([*out, left])


def _texts(row: Sequence[int] | Matrix) -> Iterator[bytes]:
    for ending in ("", ".", ".0"):
        yield " ".join(f"{value}{ending}" for value in row).encode()


def _spaced(hay: bytes) -> bytes:
    """All numbers in decimal, one space between them, whatever else there was."""
    for wrapper in _WRAPPERS:
        hay = hay.replace(wrapper, b" ")
    return b" ".join(hay.translate(_SPACED).split())


def fold(content: bytes) -> bytes:
    """One spelling of hexadecimal and of both alphabets of base64."""
    return content.translate(_FOLDED)
