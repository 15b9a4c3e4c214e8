"""Frames of links: what is read is what was written, and no more than is expected."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpc_vote.transport.frames import (
    END,
    HEADER_BYTES,
    LAST,
    MAX_ERROR_BYTES,
    MAX_HELLO_BYTES,
    PING,
    PONG,
    FrameError,
    Header,
    Kind,
    encode,
)


def test_a_frame_is_kind_number_length_and_content() -> None:
    assert encode(Kind.PAYLOAD, b"abc", 258).hex() == "04" + "00000102" + "00000003" + "616263"
    assert [frame.hex() for frame in (PING, PONG, END, LAST)] == [
        "01" + 16 * "0",
        "02" + 16 * "0",
        "05" + 16 * "0",
        "07" + 16 * "0",
    ]


@given(number=st.integers(0, 2**32 - 1), content=st.binary(max_size=100))
def test_a_payload_is_read_where_one_of_its_length_is_expected(number: int, content: bytes) -> None:
    header = Header.parse(encode(Kind.PAYLOAD, content, number)[:HEADER_BYTES], len(content))
    assert header == Header(Kind.PAYLOAD, number, len(content))
    for expected in (-1, len(content) - 1, len(content) + 1):
        if expected != len(content):
            with pytest.raises(FrameError):
                Header.parse(bytes(header), expected)


@pytest.mark.parametrize(
    ("kind", "most"),
    [
        (Kind.PING, 0),
        (Kind.PONG, 0),
        (Kind.HELLO, MAX_HELLO_BYTES),
        (Kind.END, 0),
        (Kind.ERROR, MAX_ERROR_BYTES),
        (Kind.LAST, 0),
    ],
)
def test_every_other_kind_has_a_limit_and_no_number(kind: Kind, most: int) -> None:
    assert Header.parse(bytes(Header(kind, 0, most))).length == most
    for refused in (Header(kind, 0, most + 1), Header(kind, 0, 2**32 - 1), Header(kind, 1, 0)):
        with pytest.raises(FrameError):
            Header.parse(bytes(refused))


@given(st.binary(min_size=HEADER_BYTES, max_size=HEADER_BYTES))
def test_any_header_is_read_or_refused(packed: bytes) -> None:
    try:
        header = Header.parse(packed)
    except FrameError:
        return
    assert bytes(header) == packed and header.length <= MAX_ERROR_BYTES
