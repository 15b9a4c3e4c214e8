"""What the parties of a table engine's run see: of a real run, and of a simulated one.

The simulator knows the shape and nothing else. It lets the coalition run the engine on uniform
shares and a uniform correction, draws uniform openings, and sends in the missing party's name what
makes the coalition's payloads add up to these. Label shares are as the parties have them, before
they are re-randomised for the coordinator.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from math import prod
from typing import cast

import numpy as np

from mpc_vote.argmax.table.engine import TableArgmax
from mpc_vote.argmax.table.level import LevelPart, LevelTables
from mpc_vote.mpc import ring
from mpc_vote.mpc.channel import Channel, Traffic
from mpc_vote.mpc.in_process import run_committee
from mpc_vote.mpc.preprocessing import Item, P, Preprocessing
from mpc_vote.mpc.prg import SeedStream, Words, new_seed
from tests.unit.argmax.committee import Totals, share
from tests.unit.argmax.dealt import Array, added, deal

Dealer = Callable[[LevelTables, int], list[LevelPart]]


@dataclass(frozen=True)
class Opening:
    """A part of a round's payload, which is shared modulo 2^bits; by xor where bits is 1."""

    what: str
    bits: int
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        return ring.planes_size(prod(self.shape), self.bits)


@dataclass(frozen=True)
class Shape:
    """All that is public about a run."""

    engine: TableArgmax
    rows: int
    classes: int
    parties: int

    @property
    def items(self) -> list[LevelTables]:
        return cast(list[LevelTables], self.engine.plan(self.rows, self.classes, self.parties))

    @property
    def rounds(self) -> list[list[Opening]]:
        """What is opened in each round; a level is one item here."""
        rounds = []
        for level in self.items:
            cells = (level.group, level.vectors)
            first = [Opening("totals", level.bits, cells)]
            if level.labelled:
                first.append(Opening("labels", level.label_bits, cells))
            bits = Opening("bits", 1, (level.lookups, level.pairs, level.vectors))
            rounds += [first, [bits], [Opening("wins", level.win_bits, cells)]]
        return rounds


@dataclass
class Transcript:
    """Inputs, parts, payloads and label shares by rank; of a simulated run the missing one's are
    empty but for its payloads."""

    shape: Shape
    inputs: list[Words]
    parts: list[list[LevelPart]] = field(default_factory=list)
    # By round and rank.
    payloads: list[list[bytes]] = field(default_factory=list)
    labels: list[Words] = field(default_factory=list)

    def shares(self, number: int) -> list[list[Array]]:
        """By what is opened in a round and by rank, the shares."""
        return [unpack(self.shape.rounds[number], payload) for payload in self.payloads[number]]

    def opened(self, number: int) -> list[Array]:
        """What a round opens."""
        openings = self.shape.rounds[number]
        columns = zip(*self.shares(number), strict=True)
        return [added(column, o.bits) for o, column in zip(openings, columns, strict=True)]


def unpack(openings: Sequence[Opening], payload: bytes) -> list[Array]:
    """The shares in a payload."""
    found, start = [], 0
    for opening in openings:
        piece = payload[start : start + opening.size]
        values = ring.unpack_planes(piece, opening.bits, prod(opening.shape))
        found.append(values.reshape(opening.shape).astype(np.uint64))
        start += opening.size
    assert start == len(payload)
    return found


def pack(openings: Sequence[Opening], shares: Sequence[Array]) -> bytes:
    """The inverse of `unpack`."""
    return b"".join(
        ring.pack_planes(array, opening.bits)
        for opening, array in zip(openings, shares, strict=True)
    )


class Handed:
    """Preprocessing that was made beforehand."""

    def __init__(self, items: Sequence[LevelTables], parts: Sequence[LevelPart]) -> None:
        self._left = list(zip(items, parts, strict=True))

    def take(self, item: Item[P]) -> P:
        planned, part = self._left.pop(0)
        assert planned == item
        return cast(P, part)


class Line:
    """A channel on a function that exchanges."""

    def __init__(self, rank: int, size: int, answer: Callable[[bytes], Sequence[bytes]]) -> None:
        self.rank, self.size, self.exchange = rank, size, answer
        self.traffic = Traffic()


def honest_dealer() -> Dealer:
    """Deals as the service does, item after item of one session."""
    seeds: list[bytes] = []
    index = -1

    def dealer(level: LevelTables, parties: int) -> list[LevelPart]:
        nonlocal index
        seeds.extend(new_seed() for _ in range(parties - len(seeds)))
        index += 1
        return deal(level, seeds, index)

    return dealer


def run(shape: Shape, totals: Totals, dealer: Dealer | None = None) -> Transcript:
    """A real run, on preprocessing of an honest dealer if no other is given."""
    deals = dealer or honest_dealer()
    seen = Transcript(shape, share(totals, shape.parties, shape.engine.ring_bits))
    by_level = [deals(level, shape.parties) for level in shape.items]
    seen.parts = [[parts[rank] for parts in by_level] for rank in range(shape.parties)]

    def program(channel: Channel, _: Preprocessing) -> Words:
        def exchange(payload: bytes) -> Sequence[bytes]:
            received = list(channel.exchange(payload))
            if channel.rank == 0:
                seen.payloads.append(received)
            return received

        line = Line(channel.rank, channel.size, exchange)
        preprocessing = Handed(shape.items, seen.parts[channel.rank])
        return shape.engine.winners(seen.inputs[channel.rank], shape.classes, line, preprocessing)

    seen.labels = run_committee(shape.parties, program)
    together = added(seen.labels, shape.engine.label_bits(shape.classes))
    assert together.tolist() == totals.argmax(axis=1).tolist()
    return seen


def simulate(shape: Shape, honest: int) -> Transcript:
    """A run without totals, in which one party is only made up."""
    size, cells = shape.parties, shape.rows * shape.classes
    coalition = [rank for rank in range(size) if rank != honest]
    nothing = np.zeros(0, np.uint64)
    seen = Transcript(
        shape,
        [
            nothing if rank == honest else SeedStream(new_seed()).words(cells)
            for rank in range(size)
        ],
        [[] if rank == honest else _made_up_parts(shape, rank) for rank in range(size)],
    )
    board = [b""] * size

    def make_up() -> None:
        """Once the coalition's payloads are there: the missing one, for uniform openings."""
        openings = shape.rounds[len(seen.payloads)]
        theirs = zip(*[unpack(openings, board[rank]) for rank in coalition], strict=True)
        made_up = []
        for opening, shares in zip(openings, theirs, strict=True):
            uniform = SeedStream(new_seed()).words(prod(opening.shape)).reshape(opening.shape)
            made_up.append(uniform - added(shares, opening.bits))
        board[honest] = pack(openings, made_up)
        seen.payloads.append(list(board))

    sent = threading.Barrier(len(coalition), action=make_up, timeout=60)
    received = threading.Barrier(len(coalition), timeout=60)

    def party(rank: int) -> Words:
        def exchange(payload: bytes) -> Sequence[bytes]:
            board[rank] = payload
            sent.wait()
            payloads = seen.payloads[-1]
            received.wait()
            return payloads

        preprocessing = Handed(shape.items, seen.parts[rank])
        line = Line(rank, size, exchange)
        try:
            return shape.engine.winners(seen.inputs[rank], shape.classes, line, preprocessing)
        except BaseException:
            sent.abort()
            received.abort()
            raise

    with ThreadPoolExecutor(len(coalition)) as pool:
        labels = dict(zip(coalition, pool.map(party, coalition), strict=True))
    seen.labels = [labels.get(rank, nothing) for rank in range(size)]
    return seen


def _made_up_parts(shape: Shape, rank: int) -> list[LevelPart]:
    """A party's parts from a seed and, if it is the last, from a uniform correction."""
    seed, last = new_seed(), rank == shape.parties - 1
    return [
        level.expand(
            seed, index, SeedStream(new_seed()).take(level.correction_bytes) if last else None
        )
        for index, level in enumerate(shape.items)
    ]


def replay(
    real: Transcript, rank: int, inputs: Words, parts: Sequence[LevelPart]
) -> tuple[list[bytes], Words]:
    """What one party sends, and its label shares, if all that is opened is as it was."""
    sent: list[bytes] = []

    def exchange(payload: bytes) -> Sequence[bytes]:
        sent.append(payload)
        return real.payloads[len(sent) - 1]

    shape = real.shape
    line = Line(rank, shape.parties, exchange)
    labels = shape.engine.winners(inputs, shape.classes, line, Handed(shape.items, parts))
    return sent, labels
