"""Known answers of streams, packing, shares and zero sharing: what a share is made of."""

from __future__ import annotations

from typing import Any
from unittest import mock

import numpy as np

from mpc_vote.mpc import ring, sharing
from mpc_vote.mpc.channel import zero_share
from mpc_vote.mpc.in_process import run_committee
from mpc_vote.mpc.prg import SeedStream, joint_seed
from mpc_vote.mpc.sharing import Share, ShareReader
from mpc_vote.verified.encoding import split_bits
from tests.security.vectors.topic import Case, Topic

Given = dict[str, Any]


def seed(number: int) -> str:
    """A seed that nobody should use."""
    return bytes((number + place) % 256 for place in range(32)).hex()


def seeds(count: int, start: int = 0) -> list[str]:
    """So many that differ."""
    return [seed(start + 16 * number) for number in range(count)]


def from_hex(texts: list[str]) -> list[bytes]:
    """Bytes of a list of strings."""
    return [bytes.fromhex(text) for text in texts]


def _reads(given: Given) -> Given:
    stream = SeedStream(bytes.fromhex(given["seed"]), given["stream"])
    found: list[Any] = []
    for kind, count in given["reads"]:
        if kind == "bytes":
            found.append(stream.take(count).hex())
        else:
            found.append((stream.words if kind == "words" else stream.bits)(count).tolist())
    return {"found": found}


def _joint_seed(given: Given) -> Given:
    return {"seed": joint_seed(from_hex(given["seeds"])).hex()}


PRG = Topic(
    "The pseudorandom streams that every seed expands to, and the seed that several make together. "
    "docs/protocol.md, Encodings and test vectors: Streams.",
    {"reads": _reads, "joint_seed": _joint_seed},
    [
        Case(
            "reads",
            "the first bytes of stream 0 are AES-256-CTR from a counter of zero",
            {"seed": seed(0), "stream": 0, "reads": [["bytes", 48]]},
        ),
        Case(
            "reads",
            "the stream's number is the upper half of the counter",
            {"seed": seed(0), "stream": 1, "reads": [["bytes", 32]]},
        ),
        Case(
            "reads",
            "the last stream there is",
            {"seed": seed(0), "stream": 2**64 - 1, "reads": [["bytes", 32]]},
        ),
        Case(
            "reads",
            "words are little-endian",
            {"seed": seed(0), "stream": 0, "reads": [["words", 3]]},
        ),
        Case(
            "reads",
            "bits are read from the lowest of each byte",
            {"seed": seed(0), "stream": 0, "reads": [["bits", 17]]},
        ),
        Case(
            "reads",
            "one read goes on where the other ended, and bits use up whole bytes",
            {
                "seed": seed(99),
                "stream": 5,
                "reads": [["bits", 3], ["words", 2], ["bytes", 5], ["bits", 9], ["bytes", 2]],
            },
        ),
        Case(
            "reads",
            "a seed has 32 bytes",
            {"seed": seed(0)[2:], "stream": 0, "reads": [["bytes", 1]]},
            "ValueError",
        ),
        Case("joint_seed", "of two", {"seeds": seeds(2)}),
        Case("joint_seed", "of three", {"seeds": seeds(3)}),
        Case("joint_seed", "their order counts", {"seeds": seeds(2)[::-1]}),
    ],
)


def _pack(given: Given) -> Given:
    values, bits = np.array(given["values"], np.uint64), given["bits"]
    packed, planes = ring.pack(values, bits), ring.pack_planes(values, bits)
    assert len(packed) == ring.packed_size(values.size, bits)
    assert len(planes) == ring.planes_size(values.size, bits)
    return {"packed": packed.hex(), "planes": planes.hex()}


def _unpack(given: Given) -> Given:
    data = bytes.fromhex(given["data"])
    return {"values": ring.unpack(data, given["bits"], given["count"]).tolist()}


def _unpack_planes(given: Given) -> Given:
    data = bytes.fromhex(given["data"])
    return {"values": ring.unpack_planes(data, given["bits"], given["count"]).tolist()}


_VALUES = [1, 2, 3, 2**64 - 1, 0, 0x0123456789ABCDEF, 0xFEDCBA9876543210, 5, 6]
_WIDTHS = (1, 2, 3, 7, 8, 9, 13, 16, 19, 25, 31, 32, 33, 40, 63, 64)
_MALFORMED = [
    ("a byte is missing", {"data": "0102", "bits": 13, "count": 2}),
    ("there is a byte too many", {"data": "0102030405", "bits": 13, "count": 2}),
    ("nothing is there", {"data": "", "bits": 1, "count": 1}),
    ("values have a bit or more", {"data": "", "bits": 0, "count": 0}),
    ("values have 64 bits or fewer", {"data": "00" * 9, "bits": 65, "count": 1}),
]
_PADDED = {"data": "ff", "bits": 3, "count": 1}

PACKING = Topic(
    "Numbers of few bits side by side (packed), as shares travel, and bit plane by bit plane "
    "(planes), as openings and corrections do. "
    "docs/protocol.md, Encodings and test vectors: Packing.",
    {"pack": _pack, "unpack": _unpack, "unpack_planes": _unpack_planes},
    [
        *(Case("pack", f"{bits} bits", {"values": _VALUES, "bits": bits}) for bits in _WIDTHS),
        *(
            Case("pack", f"{count} values", {"values": _VALUES[-count:], "bits": 13})
            for count in (1, 3, 7, 8)
        ),
        Case("pack", "no values", {"values": [], "bits": 13}),
        *(
            Case(rule, name, given, "ValueError")
            for rule in ("unpack", "unpack_planes")
            for name, given in _MALFORMED
        ),
        Case("unpack", "what pads the last byte is ignored", _PADDED),
        Case(
            "unpack_planes",
            "what pads the last byte of a plane is ignored",
            {**_PADDED, "data": "fefffe"},
        ),
    ],
)


def _shares(made: list[Share]) -> list[Given]:
    return [{"seed": s.seed.hex()} if s.seed else {"packed": s.packed.hex()} for s in made]


def _split(given: Given) -> Given:
    values, bits = np.array(given["values"], np.int64), given["bits"]
    with mock.patch.object(sharing, "new_seed", side_effect=from_hex(given["seeds"])):
        made = sharing.split(values, given["parties"], given["explicit"], bits)
    read = [ShareReader(share, bits).take(values.size) for share in made]
    low = np.uint64((1 << bits) - 1)
    return {"shares": _shares(made), "numbers": [(words & low).tolist() for words in read]}


def _split_bits(given: Given) -> Given:
    bits = np.array(given["bits"], np.uint8)
    seeds = mock.patch("mpc_vote.verified.encoding.new_seed", side_effect=from_hex(given["seeds"]))
    with seeds:
        return {"shares": _shares(split_bits(bits, given["parties"], given["explicit"]))}


_BALLOT = [16, 0, -1, -300, 2047]
_BITS = [1, 0, 1, 1, 0, 0, 1, 0, 1, 1, 0]

SHARING = Topic(
    "An agent's numbers as shares modulo 2^bits (split), and its bits as shares by exclusive or "
    "(split_bits): a seed to each party but one, which gets the residual. Seeds are given in the "
    "order of the ranks that get one; `numbers` is what each share stands for, by rank. "
    "docs/protocol.md, Encodings and test vectors: Shares.",
    {"split": _split, "split_bits": _split_bits},
    [
        *(
            Case(
                "split",
                f"{parties} parties, the residual to rank {explicit}, modulo 2^{bits}",
                {
                    "values": _BALLOT,
                    "parties": parties,
                    "explicit": explicit,
                    "bits": bits,
                    "seeds": seeds(parties - 1, start=bits),
                },
            )
            for parties, bits in ((2, 13), (3, 8), (3, 16), (3, 25), (2, 31), (2, 64), (3, 64))
            for explicit in range(parties)
        ),
        Case(
            "split",
            "no such rank",
            {"values": [0], "parties": 2, "explicit": 2, "bits": 13, "seeds": seeds(1)},
            "ValueError",
        ),
        Case(
            "split",
            "one party",
            {"values": [0], "parties": 1, "explicit": 0, "bits": 13, "seeds": []},
            "ValueError",
        ),
        *(
            Case(
                "split_bits",
                f"{parties} parties, the residual to rank {explicit}",
                {
                    "bits": _BITS,
                    "parties": parties,
                    "explicit": explicit,
                    "seeds": seeds(parties - 1, start=7),
                },
            )
            for parties in (2, 3)
            for explicit in range(parties)
        ),
        Case(
            "split_bits",
            "no such rank",
            {"bits": _BITS, "parties": 2, "explicit": -1, "seeds": seeds(2)},
            "ValueError",
        ),
    ],
)


def _zero_share(given: Given) -> Given:
    own = from_hex(given["seeds"])
    # A committee draws these first, and then seeds of correlated randomness, which is not used.
    with mock.patch("mpc_vote.mpc.in_process.new_seed", side_effect=own * 2):
        shares = run_committee(
            len(own),
            lambda channel, _: [zero_share(channel, count).tolist() for count in given["counts"]],
        )
    return {"shares": shares}


ZERO_SHARING = Topic(
    "Sharings of zero modulo 2^64, from the seeds that each rank draws and sends to the next; by "
    "rank, one list for each time that such shares are taken in a session. "
    "docs/protocol.md, Encodings and test vectors: Shares.",
    {"zero_share": _zero_share},
    [
        Case(
            "zero_share",
            f"{parties} parties, {len(counts)} times in one session",
            {"seeds": seeds(parties, start=3), "counts": counts},
        )
        for parties, counts in ((2, [3]), (3, [2, 1]), (5, [1, 2, 3]))
    ],
)
