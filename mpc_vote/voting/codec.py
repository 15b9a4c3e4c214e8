"""A session's plan of material on the wire, read with every size checked."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from mpc_vote.argmax.crypten.triples import TripleKind, Triples
from mpc_vote.argmax.one_hot import Rotation
from mpc_vote.argmax.table.engine import MIN_BITS
from mpc_vote.argmax.table.level import MAX_BITS, MAX_GROUP, Level
from mpc_vote.errors import ErrorKind, VoteError
from mpc_vote.mpc import ring
from mpc_vote.mpc.preprocessing import Item, Plan, Run
from mpc_vote.proto.mpcvote.v1 import dealer_pb2
from mpc_vote.verified.bit_conversion import MAX_POINTER_BITS, Unmasking
from mpc_vote.verified.summation import MAX_NUMBERS as MAX_UNMASKED
from mpc_vote.voting.spec import MAX_CLASSES

MAX_TRIPLES = 1 << 24
# Comparisons of one level item; what is larger comes in several.
MAX_COMPARISONS = 1 << 16
MAX_LABEL_BITS = 64
MAX_ITEMS = 65_536
MAX_TIMES = 65_536
MAX_DEALT = 1 << 17

_TRIPLE_CODES = {kind.value: kind for kind in TripleKind}


def to_wire(plan: Plan) -> list[dealer_pb2.DealRun]:
    """A plan as messages."""
    return [
        dealer_pb2.DealRun(items=[_to_item(item) for item in run.items], times=run.times)
        for run in plan.runs
    ]


def from_wire(runs: Iterable[dealer_pb2.DealRun]) -> Plan:
    """The plan in the messages; refused if the dealer could not make it in bounded memory."""
    given = list(runs)
    # A run of no items would be gone through for nothing.
    _require(all(run.items for run in given), "a run without items")
    _require(sum(len(run.items) for run in given) <= MAX_ITEMS, f"over {MAX_ITEMS} items")
    _require(all(0 < run.times <= MAX_TIMES for run in given), "a run's number of times")
    # Each item is committed to, and commitments wait until all parties have read them.
    dealt = sum(len(run.items) * run.times for run in given)
    _require(dealt <= MAX_DEALT, f"over {MAX_DEALT} items with their repetitions")
    return Plan(tuple(Run(tuple(map(_from_item, run.items)), run.times) for run in given))


def _to_item(item: Item[Any]) -> dealer_pb2.DealItem:
    if isinstance(item, Triples):
        kind = dealer_pb2.TripleKind.ValueType(item.kind)
        return dealer_pb2.DealItem(triples=dealer_pb2.TripleItem(kind=kind, count=item.count))
    if isinstance(item, Level):
        level = dealer_pb2.LevelItem(
            vectors=item.vectors,
            group=item.group,
            bits=item.bits,
            label_bits=item.label_bits,
            labelled=item.labelled,
            last=item.last,
        )
        return dealer_pb2.DealItem(level=level)
    if isinstance(item, Rotation):
        rotation = dealer_pb2.RotationItem(rows=item.rows, classes=item.classes)
        return dealer_pb2.DealItem(rotation=rotation)
    if isinstance(item, Unmasking):
        unmasking = dealer_pb2.UnmaskingItem(
            pointers=item.pointers,
            pointer_bits=item.pointer_bits,
            flags=item.flags,
            ring_bits=item.ring_bits,
        )
        return dealer_pb2.DealItem(unmasking=unmasking)
    raise TypeError(f"no message for {type(item).__name__}")


def _from_item(item: dealer_pb2.DealItem) -> Item[Any]:
    if item.HasField("triples"):
        kind, count = item.triples.kind, item.triples.count
        _require(kind in _TRIPLE_CODES and 0 < count <= MAX_TRIPLES, "an item's kind or size")
        return Triples(_TRIPLE_CODES[kind], count)
    if item.HasField("rotation"):
        rotation = Rotation(item.rotation.rows, item.rotation.classes)
        _require(2 <= rotation.classes <= MAX_CLASSES, "the classes of a rotation")
        _require(0 < rotation.rows * rotation.places <= MAX_TRIPLES, "a rotation's size")
        return rotation
    if item.HasField("unmasking"):
        asked = item.unmasking
        _require(asked.pointer_bits <= MAX_POINTER_BITS, "the bits of a pointer")
        _require(MIN_BITS <= asked.ring_bits <= ring.WORD_BITS, "the ring of an unmasking")
        unmasking = Unmasking(asked.pointers, asked.pointer_bits, asked.flags, asked.ring_bits)
        _require(0 < unmasking.numbers <= MAX_UNMASKED, "an unmasking's size")
        return unmasking
    _require(item.HasField("level"), "an item's kind or size")
    level = Level(
        vectors=item.level.vectors,
        group=item.level.group,
        bits=item.level.bits,
        label_bits=item.level.label_bits,
        labelled=item.level.labelled,
        last=item.level.last,
    )
    _require(2 <= level.group <= MAX_GROUP, "the group of a level")
    _require(level.vectors > 0 and level.vectors * level.pairs <= MAX_COMPARISONS, "a level's size")
    _require(MIN_BITS <= level.bits <= MAX_BITS, "the ring of a level")
    _require(0 < level.label_bits <= MAX_LABEL_BITS, "the labels of a level")
    return level


def _require(condition: bool, why: str) -> None:
    if not condition:
        raise VoteError(ErrorKind.DEAL_INVALID, why=why)
