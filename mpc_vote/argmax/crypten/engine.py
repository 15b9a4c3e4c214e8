"""The reference engine: CrypTen's own argmax, with each of its four methods.

Who sees what: a party sees its shares of totals and of dealt items, and openings, each masked by a
value that is uniform given the views of any P-1 parties; the number and the sizes of the openings
depend on the shape alone. The result is a fresh sharing of the winners' indices, uniform but for
its sum.

Ties: CrypTen picks a random one of the tied classes. Here totals are first mapped, locally, to C*x
+ (C-1-i), which orders equal totals by class, so that the lower class wins and no tie is left.
"""

from __future__ import annotations

import enum
import threading
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, cast

import numpy as np

from mpc_vote.argmax.crypten.triples import TriplePart, Triples
from mpc_vote.argmax.engine import AddedLabels, LabelCode
from mpc_vote.mpc import ring
from mpc_vote.mpc.channel import Channel, Traffic
from mpc_vote.mpc.preprocessing import Item, P, Preprocessing
from mpc_vote.mpc.prg import SEED_BYTES, SeedStream, Words

# Words that one opening of a run may have; a run holds a dozen arrays of that size.
_BLOCK_WORDS = 1 << 21
_REHEARSING = threading.Lock()


class MaxMethod(enum.StrEnum):
    """CrypTen's `max_method`s."""

    PAIRWISE = "pairwise"
    LOG_REDUCTION = "log_reduction"
    DOUBLE_LOG_REDUCTION = "double_log_reduction"
    ACCELERATED_CASCADE = "accelerated_cascade"


class CryptenArgmax:
    """CrypTen's argmax over rows of totals shared modulo 2^64."""

    ring_bits = ring.WORD_BITS

    def __init__(self, method: MaxMethod) -> None:
        self.method = method

    @property
    def name(self) -> str:
        return f"crypten {self.method}"

    def largest_total(self, classes: int) -> int:
        """Totals may not exceed this in absolute value, or a comparison could wrap."""
        return (1 << 62) // (2 * max(classes, 1))

    def block_rows(self, classes: int) -> int:
        """See `Engine`."""
        pairwise = self.method is MaxMethod.PAIRWISE
        words = classes * (classes - 1) if pairwise else 4 * classes
        return max(8, _BLOCK_WORDS // max(1, words) // 8 * 8)

    def label_code(self, classes: int) -> LabelCode:
        """See `Engine`."""
        return AddedLabels(classes)

    def plan(self, rows: int, classes: int, parties: int) -> list[Item[Any]]:
        """See `Engine`."""
        if classes == 1:
            return []
        one_row = _plan_of_one_row(self.method, classes, parties)
        return [Triples(item.kind, item.count * rows) for item in one_row]

    def run(
        self, totals: Words, classes: int, channel: Channel, preprocessing: Preprocessing
    ) -> Words:
        """See `Engine`; the shares are modulo 2^64."""
        from mpc_vote.argmax.crypten import binding as binding

        rows = totals.size // classes
        with binding.bound(channel, preprocessing):
            fresh = binding.zero_share(rows)
            if classes == 1:
                return fresh
            ordered = np.multiply(totals.reshape(rows, classes), classes, dtype=np.uint64)
            if channel.rank == 0:
                ordered += np.arange(classes - 1, -1, -1, dtype=np.uint64)
            tensor = binding.shared(ordered, (rows, classes))
            share = binding.one_hot_argmax(tensor, self.method.value)
            index = np.arange(classes, dtype=np.uint64)
            labels: Words = np.einsum("rc,c->r", share, index)
            return fresh + labels


class _Rehearsal:
    """A channel and a source of preprocessing that remember what a run asks for."""

    rank = 0

    def __init__(self, size: int) -> None:
        self.size = size
        self.previous_stream = self.next_stream = SeedStream(bytes(SEED_BYTES))
        self.traffic = Traffic()
        self.items: list[Triples] = []

    def exchange(self, payload: bytes) -> Sequence[bytes]:
        return [payload] + [bytes(len(payload))] * (self.size - 1)

    def take(self, item: Item[P]) -> P:
        assert isinstance(item, Triples)
        self.items.append(item)
        zeros = np.zeros(item.count, dtype=np.uint64)
        return cast(P, TriplePart(zeros, zeros, zeros))


def _plan_of_one_row(method: MaxMethod, classes: int, parties: int) -> tuple[Triples, ...]:
    """Items depend on the shape alone, and their sizes are linear in the rows.

    One rehearsal at a time: with a thousand classes it takes half a gigabyte and some seconds.
    """
    with _REHEARSING:
        return _rehearsed(method, classes, parties)


@lru_cache(maxsize=256)
def _rehearsed(method: MaxMethod, classes: int, parties: int) -> tuple[Triples, ...]:
    rehearsal = _Rehearsal(parties)
    CryptenArgmax(method).run(np.zeros(classes, dtype=np.uint64), classes, rehearsal, rehearsal)
    return tuple(rehearsal.items)
