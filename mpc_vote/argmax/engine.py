"""What all engines have in common: rows of shared totals in, shares of the winners out."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from mpc_vote.mpc.channel import Channel
from mpc_vote.mpc.preprocessing import Item, Preprocessing, PreprocessingPlan, Run
from mpc_vote.mpc.prg import Words

MAX_CLASSES = 1_000


class Engine(Protocol):
    """A secure argmax. Ties go to the lower class."""

    @property
    def name(self) -> str:
        """The engine and its method, as people call it."""
        ...

    @property
    def ring_bits(self) -> int:
        """Totals are shared modulo 2^ring_bits."""
        ...

    def largest_total(self, classes: int) -> int:
        """Totals may not exceed this in absolute value: the range for which it is proved right."""
        ...

    def block_rows(self, classes: int) -> int:
        """Rows that one run should take at most, to bound its memory."""
        ...

    def plan(self, rows: int, classes: int, parties: int) -> list[Item[Any]]:
        """The items that one run uses, in order."""
        ...

    def run(
        self, totals: Words, classes: int, channel: Channel, preprocessing: Preprocessing
    ) -> Words:
        """This party's additive share of each row's winner, re-randomised: whoever gets all shares
        learns the winners and nothing else, even with the dealer's knowledge.

        `totals` holds this party's shares, `classes` to a row, in words of which the low
        `ring_bits` count. Of the shares as many low bits count as the number of classes needs.
        """
        ...


def session_plan(engine: Engine, rows: int, classes: int, parties: int) -> PreprocessingPlan:
    """The items of all runs that it takes to do `rows` rows, block by block."""
    block = engine.block_rows(classes)
    whole, rest = divmod(rows, block)
    shapes = [(block, whole), (rest, 1 if rest else 0)]
    runs = [
        Run(tuple(engine.plan(size, classes, parties)), times) for size, times in shapes if times
    ]
    return PreprocessingPlan(tuple(runs))


def label_bits(classes: int) -> int:
    """Bits of a label, and so of its shares, that count."""
    return max(1, (classes - 1).bit_length())


def reduced(labels: Words, classes: int) -> Words:
    """Labels, or shares of them, without the bits that don't count."""
    return labels & np.uint64((1 << label_bits(classes)) - 1)
