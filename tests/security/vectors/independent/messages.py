"""Bytes that are compared or sent, after docs/protocol.md and the messages in protos/."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from itertools import chain
from math import prod
from typing import Any

from tests.security.vectors.independent.items import nested
from tests.security.vectors.independent.streams import Given, Refused

DTYPES = {
    "float32": (1, "f"),
    "float64": (2, "d"),
    "uint8": (3, "B"),
    "int32": (4, "i"),
    "int64": (5, "q"),
}


def spec_digest(wire: str) -> bytes:
    return hashlib.sha256(bytes.fromhex(wire)).digest()


def deal_context(given: Given) -> Given:
    joined = spec_digest(given["spec"]) + bytes.fromhex(given["transcript"])
    return {"context": hashlib.sha256(joined).hexdigest()}


def stock_context(given: Given) -> Given:
    joined = b"mpc-vote stock" + spec_digest(given["spec"])
    # The first field of a spec, of less than 128 bytes.
    wire = bytes.fromhex(given["spec"])
    assert wire[0] == 0x0A
    round_id = wire[2 : 2 + wire[1]]
    session = "stock-" + hashlib.sha256(round_id).hexdigest()[:48]
    return {"context": hashlib.sha256(joined).hexdigest(), "session": session}


def count_context(given: Given) -> Given:
    joined = spec_digest(given["spec"]) + bytes.fromhex(given["drawn"])
    for agent, submission in sorted(given["contributors"]):
        joined += agent.encode() + b"\0" + bytes.fromhex(submission)
    return {"context": hashlib.sha256(joined).hexdigest()}


def task(given: Given) -> Given:
    if len(given["classes"]) < 2:
        raise Refused("too few classes")
    return {"digest": hashlib.sha256(canonical(given).encode()).hexdigest()}


def canonical(value: Any) -> str:
    """JSON without spaces, keys in order, and everything beyond ASCII as an escape."""
    if isinstance(value, dict):
        pairs = (f"{canonical(key)}:{canonical(value[key])}" for key in sorted(value))
        return "{" + ",".join(pairs) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(canonical, value)) + "]"
    if isinstance(value, str):
        assert not set(value) & set('"\\')
        return '"' + "".join(c if c < "\x7f" else f"\\u{ord(c):04x}" for c in value) + '"'
    return repr(value)


def queries(given: Given) -> Given:
    if given["dtype"] not in DTYPES:
        raise Refused("no such dtype")
    number, code = DTYPES[given["dtype"]]
    flat, shape = given["rows"], []
    while isinstance(flat[0], list):
        shape.append(len(flat[0]))
        flat = list(chain(*flat))
    text = f"{number}:{tuple(shape)}"
    data = struct.pack(f"<{len(flat)}{code}", *flat)
    return {"digest": hashlib.sha256(text.encode() + data).hexdigest()}


def labels(given: Given) -> Given:
    return {"wire": b"".join(label.to_bytes(2, "little") for label in given["labels"]).hex()}


def tensor(given: Given) -> Given:
    """Rows of one number each."""
    codes = {f"DTYPE_{name.upper()}": code for name, (_, code) in DTYPES.items()}
    if given["dtype"] not in codes:
        raise Refused("no such dtype")
    layout = f"<{prod(given['shape'])}{codes[given['dtype']]}"
    data = bytes.fromhex(given["data"])
    if not given["shape"] or len(data) != struct.calcsize(layout):
        raise Refused("another length")
    return {"rows": nested(struct.unpack(layout, data), *given["shape"])}


def varint(number: int) -> bytes:
    """Protobuf's integers."""
    low, rest = number & 127, number >> 7
    return bytes([low | 128]) + varint(rest) if rest else bytes([low])


def field(number: int, value: int | bytes | float) -> bytes:
    """A protobuf field; a number that is zero is left out, as is `false`."""
    if isinstance(value, float):
        return varint(number << 3 | 1) + struct.pack("<d", value)
    if isinstance(value, int):
        return varint(number << 3) + varint(value) if value else b""
    return varint(number << 3 | 2) + varint(len(value)) + value


def deal_request(runs: Sequence[Any]) -> bytes:
    """A `DealRequest` with nothing but a plan."""
    return b"".join(field(3, run_message(run)) for run in runs)


def run_message(run: Sequence[Any]) -> bytes:
    """A `DealRun`."""
    times, *items = run
    places = {"triples": 1, "level": 2, "rotation": 3, "bit_conversion": 4, "mark": 8}
    message = b""
    for kind, *fields in items:
        shape = b"".join(field(place, int(value)) for place, value in enumerate(fields, start=1))
        message += field(1, field(places[kind], shape))
    return message + field(2, times)


# The fields of a `RoundSpec` by number, and the numbers that its names stand for.
SPEC_FIELDS = [
    *("round_id", "queries_digest", "queries", "query_dtype", "query_shape", "classes", "ballot"),
    *("tau", "fraction_bits", "sigma", "roster", "quorum", "collusion", "parties", "dealer"),
    *("engine", "ring_bits", "deadline_unix_ms", "groups", "verified"),
    *("task", "task_digest", "", "", "", "", "", "two_rounds"),
]
SPEC_NAMES = {
    "DTYPE_FLOAT32": 1,
    "BALLOT_KIND_ONE_HOT": 1,
    "BALLOT_KIND_KNN_FREQUENCY": 2,
    "BALLOT_KIND_KNN_COUNT": 3,
    "BALLOT_KIND_MULTI_LABEL": 4,
    "ENGINE_CRYPTEN_PAIRWISE": 1,
    "ENGINE_CRYPTEN_LOG_REDUCTION": 2,
    "ENGINE_CRYPTEN_DOUBLE_LOG_REDUCTION": 3,
    "ENGINE_CRYPTEN_ACCELERATED_CASCADE": 4,
    "ENGINE_TABLE": 5,
}


def spec_field(number: int, name: str, value: Any) -> bytes:
    if name in ("queries_digest", "task_digest"):
        return field(number, bytes.fromhex(value))
    if name in ("query_shape", "groups"):
        return field(number, b"".join(map(varint, value)))
    if name == "parties":
        return b"".join(field(number, party.encode()) for party in value)
    if name == "roster":
        entries = [field(1, e["agent"].encode()) + field(2, e.get("k", 0)) for e in value]
        return b"".join(field(number, entry) for entry in entries)
    if isinstance(value, str):
        return field(number, SPEC_NAMES.get(value) or value.encode())
    return field(number, value)


def parse(given: Given) -> Given:
    return {"digest": spec_digest(given["wire"]).hex()}


def seal(given: Given) -> Given:
    """Of a spec that is valid, the bytes; and what follows from it without the noise."""
    wire = b"".join(
        spec_field(number, name, given[name])
        for number, name in enumerate(SPEC_FIELDS, start=1)
        if name in given
    )
    attributes = given["ballot"] == "BALLOT_KIND_MULTI_LABEL"
    ranks = range(len(given["roster"]))
    return {
        "wire": wire.hex(),
        "digest": hashlib.sha256(wire).hexdigest(),
        "rows": given["queries"] * (given["classes"] if attributes else 1),
        "row_classes": 2 if attributes else given["classes"],
        "explicit_rank": {
            given["roster"][place]["agent"]: place % len(given["parties"]) for place in ranks
        },
    }
