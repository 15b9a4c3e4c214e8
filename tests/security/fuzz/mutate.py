"""Inputs that are almost right: messages changed field by field, and bytes changed anyhow.

Everything is drawn from the `random.Random` that is passed, so a seed gives the same inputs again.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message

MAX_BYTES = 1 << 20
"""No input is longer; what is large is large by what it says, and by many small parts."""

_MAX_CALLS = 24
_MAX_MESSAGES = 40
_INTEGERS = (0, 1, 2, 3, 7, 8, 13, 16, 31, 32, 63, 64, 65, 127, 128, 255, 256, 1000, 1001, 4096)
_EDGES = (15, 16, 20, 24, 30, 31, 32, 33, 53, 62, 63, 64)
_DOUBLES = (0.0, -0.0, 1.0, -1.0, 0.5, 1e-9, 5e-324, 2.2e-308, 1e-160, 1e9, 2.0**40, 1e20, 1e160)
_ODD_DOUBLES = (1.7e308, -1.7e308, math.inf, -math.inf, math.nan)
_TEXTS = ("", "a", "A", "-", "a-", "0", "\0", "a\0b", "é", "\U0001f600" * 9, "../../x", "a.b", " ")
_LENGTHS = (1, 16, 31, 32, 33, 63, 64, 128, 129, 1000, 5000, 70_000)
_RANGES = {
    FieldDescriptor.CPPTYPE_INT32: (-(1 << 31), (1 << 31) - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(1 << 63), (1 << 63) - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, (1 << 32) - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, (1 << 64) - 1),
    FieldDescriptor.CPPTYPE_ENUM: (-(1 << 31), (1 << 31) - 1),
}


def mutate_bytes(data: bytes, rng: random.Random, words: Sequence[bytes] = ()) -> bytes:
    """Bytes with a few flips, cuts, insertions and repetitions."""
    raw = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
        at = rng.randrange(len(raw) + 1)
        end = min(len(raw), at + rng.choice((1, 2, 4, 8, 32)))
        match rng.randrange(9):
            case 0 if raw:
                raw[at % len(raw)] ^= 1 << rng.randrange(8)
            case 1 if raw:
                raw[at % len(raw)] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
            case 2:
                del raw[at:]
            case 3:
                del raw[at:end]
            case 4:
                raw[at:at] = rng.randbytes(rng.choice((1, 2, 4, 8, 64)))
            case 5:
                raw[at:at] = _varint(_integer(rng) & ((1 << 64) - 1))
            case 6:
                raw[at:at] = raw[at:end] * rng.choice((2, 8, 200))
            case 7 if raw:
                start = rng.randrange(len(raw))
                raw[at:end] = raw[start : start + rng.choice((1, 4, 16, 64))]
            case 8 if words:
                raw[at : rng.choice((at, end))] = rng.choice(words)
    return bytes(raw[:MAX_BYTES])


def mutate_message(message: Message, rng: random.Random) -> None:
    """Changes one field of a message, or of a message inside it."""
    declared = cast(Sequence[FieldDescriptor], message.DESCRIPTOR.fields)
    if not declared:
        return
    # What is set leads deeper than what is not.
    present = [descriptor for descriptor, _ in message.ListFields()]
    chosen = rng.choice(present if present and rng.random() < 0.7 else declared)
    if chosen.message_type is not None and chosen.message_type.GetOptions().map_entry:
        message.ClearField(chosen.name)
    elif chosen.is_repeated:
        _mutate_repeated(message, chosen, rng)
    elif chosen.message_type is not None:
        if rng.random() < 0.1:
            message.ClearField(chosen.name)
        else:
            inner = getattr(message, chosen.name)
            inner.SetInParent()
            mutate_message(inner, rng)
    else:
        setattr(message, chosen.name, _value(chosen, getattr(message, chosen.name), rng))


def _mutate_repeated(message: Any, chosen: FieldDescriptor, rng: random.Random) -> None:
    items = getattr(message, chosen.name)
    composite = chosen.message_type is not None
    match rng.randrange(6):
        case 0:
            message.ClearField(chosen.name)
        case 1 if items:
            del items[rng.randrange(len(items))]
        case 2 if items:
            kept = list(items)[:256]
            times = rng.choice((2, 3, 10, 100, 5000)) // len(kept) + 1
            items.extend(kept * min(times, MAX_BYTES // (message.ByteSize() + 1)))
        case 3 if composite:
            mutate_message(items.add(), rng)
        case 3:
            items.append(_value(chosen, _zero(chosen), rng))
        case _ if items:
            place = rng.randrange(len(items))
            if composite:
                mutate_message(items[place], rng)
            else:
                items[place] = _value(chosen, items[place], rng)


def _zero(chosen: FieldDescriptor) -> Any:
    if chosen.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        return b"" if chosen.type == FieldDescriptor.TYPE_BYTES else ""
    return 0


def _value(chosen: FieldDescriptor, old: Any, rng: random.Random) -> Any:
    kind = chosen.cpp_type
    if kind == FieldDescriptor.CPPTYPE_BOOL:
        return not old
    if kind in (FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT):
        scaled = old * rng.choice((-1, 0.5, 2, 1e3, 1e-3))
        return rng.choice((*_DOUBLES, *_ODD_DOUBLES, scaled))
    if kind == FieldDescriptor.CPPTYPE_STRING:
        if chosen.type == FieldDescriptor.TYPE_BYTES:
            return _octets(old, rng)
        return _text(old, rng)
    low, high = _RANGES[kind]
    if chosen.enum_type is not None and rng.random() < 0.7:
        return rng.choice(chosen.enum_type.values).number
    near = (old + rng.choice((-1, 1, -8, 8)), old * 2, old // 2)
    return min(high, max(low, rng.choice((*near, _integer(rng), _integer(rng)))))


def _integer(rng: random.Random) -> int:
    edge = (1 << rng.choice(_EDGES)) + rng.choice((-1, 0, 1))
    return rng.choice((edge, -edge, rng.choice(_INTEGERS), rng.randrange(1 << rng.choice(_EDGES))))


def _octets(old: bytes, rng: random.Random) -> bytes:
    length = rng.choice(_LENGTHS)
    resized = (old * (length // max(1, len(old)) + 1))[:length]
    return rng.choice((b"", old[:-1], old + b"\0", resized, mutate_bytes(old, rng)))


def _text(old: str, rng: random.Random) -> str:
    changed = mutate_bytes(old.encode(), rng).decode(errors="replace")
    return rng.choice((*_TEXTS, old + "x", old[:-1], changed, "a" * rng.choice(_LENGTHS)))


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


@dataclass(frozen=True)
class Call:
    """One call: which method, by whom, and the messages that are sent."""

    method: int
    caller: int = 0
    messages: tuple[bytes, ...] = ()


@dataclass(frozen=True)
class Script:
    """Calls in order, and a byte that chooses how the target is set up."""

    setup: int = 0
    calls: tuple[Call, ...] = field(default=())

    def encode(self) -> bytes:
        """The script as it is kept in a file."""
        out = bytearray([self.setup])
        for call in self.calls:
            out += bytes([call.method, call.caller, len(call.messages)])
            for message in call.messages:
                out += len(message).to_bytes(4, "little") + message
        return bytes(out)

    @classmethod
    def decode(cls, data: bytes) -> Script:
        """Reads any bytes: what is cut short ends early."""
        calls: list[Call] = []
        at = 1
        while at + 3 <= len(data) and len(calls) < _MAX_CALLS:
            method, caller, count = data[at : at + 3]
            at += 3
            messages = []
            for _ in range(min(count, _MAX_MESSAGES)):
                size = int.from_bytes(data[at : at + 4], "little")
                messages.append(data[at + 4 : at + 4 + size])
                at = min(len(data), at + 4 + size)
            calls.append(Call(method, caller, tuple(messages)))
        return cls(data[0] if data else 0, tuple(calls))


def mutate_script(
    script: Script, other: Script, types: Sequence[type[Message]], rng: random.Random
) -> Script:
    """Changes a message of a script, or the order, number and callers of its calls."""
    calls = list(script.calls)
    if not calls or rng.random() < 0.02:
        return replace(script, setup=rng.randrange(256), calls=other.calls)
    place = rng.randrange(len(calls))
    call = calls[place]
    match rng.randrange(20):
        case 0:
            calls.insert(rng.randrange(len(calls) + 1), call)
        case 1:
            del calls[place]
        case 2 if other.calls:
            calls.insert(rng.randrange(len(calls) + 1), rng.choice(other.calls))
        case 3:
            calls[place] = replace(call, caller=rng.randrange(16))
        case 4:
            rng.shuffle(calls)
        case 5:
            messages = list(call.messages)
            if messages and rng.random() < 0.5:
                del messages[rng.randrange(len(messages))]
            else:
                again = rng.choice(messages) if messages else b""
                messages.insert(rng.randrange(len(messages) + 1), again)
            calls[place] = replace(call, messages=tuple(messages[:_MAX_MESSAGES]))
        case _:
            messages = list(call.messages) or [b""]
            at = rng.randrange(len(messages))
            messages[at] = _changed(messages[at], types[call.method % len(types)], rng)
            calls[place] = replace(call, messages=tuple(messages))
    return replace(script, calls=tuple(calls[:_MAX_CALLS]))


def _changed(data: bytes, kind: type[Message], rng: random.Random) -> bytes:
    if rng.random() < 0.15:
        return mutate_bytes(data, rng)
    try:
        message = kind.FromString(data)
    except DecodeError:
        return mutate_bytes(data, rng)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        mutate_message(message, rng)
    return message.SerializeToString()[:MAX_BYTES]


Mutator = Callable[[bytes, bytes, random.Random], bytes]


def of_bytes(words: Sequence[bytes] = ()) -> Mutator:
    """For inputs without a structure of ours; `words` are what its syntax is made of."""

    def mutate(data: bytes, other: bytes, rng: random.Random) -> bytes:
        if rng.random() < 0.05:
            return data[: rng.randrange(len(data) + 1)] + other[rng.randrange(len(other) + 1) :]
        return mutate_bytes(data, rng, words)

    return mutate


def of_scripts(*types: type[Message]) -> Mutator:
    """For calls whose messages are of the type at their method's place."""

    def mutate(data: bytes, other: bytes, rng: random.Random) -> bytes:
        script = Script.decode(data)
        for _ in range(rng.choice((1, 1, 2, 3))):
            script = mutate_script(script, Script.decode(other), types, rng)
        return script.encode()[:MAX_BYTES]

    return mutate
