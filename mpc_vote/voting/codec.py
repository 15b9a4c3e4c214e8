"""A session's preprocessing plan on the wire, read with every size checked."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from mpc_vote.argmax.one_hot import Rotation
from mpc_vote.argmax.registry import ENGINES
from mpc_vote.errors import ErrorKind, VoteError
from mpc_vote.mpc.preprocessing import Item, PreprocessingPlan, Run
from mpc_vote.proto.mpcvote.v1 import dealer_pb2
from mpc_vote.verified.bit_conversion import BitConversion

MAX_ITEMS = 65_536
MAX_TIMES = 65_536
MAX_REPEATED_ITEMS = 1 << 17


def to_wire(plan: PreprocessingPlan) -> list[dealer_pb2.DealRun]:
    """A plan as messages."""
    return [
        dealer_pb2.DealRun(items=[_to_item(item) for item in run.items], times=run.times)
        for run in plan.runs
    ]


def from_wire(runs: Sequence[dealer_pb2.DealRun]) -> PreprocessingPlan:
    """The plan in the messages; refused if the dealer could not make it in bounded memory."""
    # Counted before one of them is looked at: millions fit into a request, and to go through those
    # takes a minute.
    _require(len(runs) <= MAX_ITEMS, f"over {MAX_ITEMS} items")
    # A run of no items would be gone through for nothing.
    _require(all(run.items for run in runs), "a run without items")
    _require(sum(len(run.items) for run in runs) <= MAX_ITEMS, f"over {MAX_ITEMS} items")
    _require(all(0 < run.times <= MAX_TIMES for run in runs), "a run's number of times")
    # Each item is committed to, and commitments wait until all parties have read them.
    repeated = sum(len(run.items) * run.times for run in runs)
    why = f"over {MAX_REPEATED_ITEMS} items with their repetitions"
    _require(repeated <= MAX_REPEATED_ITEMS, why)
    known = _items()
    return PreprocessingPlan(
        tuple(Run(tuple(_from_item(one, known) for one in run.items), run.times) for run in runs)
    )


def _items() -> dict[str, type[Item[Any]]]:
    """All that a dealer deals, by the names of their messages."""
    of_engines: list[type[Item[Any]]] = [item for kind in ENGINES for item in kind.items]
    items: list[type[Item[Any]]] = [*of_engines, Rotation, BitConversion]
    known: dict[str, type[Item[Any]]] = {}
    for item in items:
        if known.setdefault(item.wire_name, item) is not item:
            raise ValueError(f"two kinds of items are called {item.wire_name!r} on the wire")
    return known


def _to_item(item: Item[Any]) -> dealer_pb2.DealItem:
    message = dealer_pb2.DealItem()
    fields = {field.name: getattr(item, field.name) for field in dataclasses.fields(item)}  # type: ignore[arg-type]
    shape = getattr(message, item.wire_name)
    shape.MergeFrom(type(shape)(**fields))
    shape.SetInParent()
    return message


def _from_item(message: dealer_pb2.DealItem, known: dict[str, type[Item[Any]]]) -> Item[Any]:
    name = message.WhichOneof("shape")
    kind = known.get(name) if name is not None else None
    if name is None or kind is None:
        raise VoteError(ErrorKind.DEAL_INVALID, why="an item's kind or size")
    shape = getattr(message, name)
    fields = {field.name: getattr(shape, field.name) for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    try:
        return kind.read(fields)
    except ValueError as error:
        raise VoteError(ErrorKind.DEAL_INVALID, why=str(error)) from error


def _require(condition: bool, why: str) -> None:
    if not condition:
        raise VoteError(ErrorKind.DEAL_INVALID, why=why)
