"""What all engines have in common: rows of shared totals in, shares of the winners out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from mpc_vote.mpc.channel import Channel
from mpc_vote.mpc.preprocessing import Item, Preprocessing, PreprocessingPlan, Run
from mpc_vote.mpc.prg import Words

MAX_CLASSES = 1_000

# As shares of labels travel.
LABEL = np.dtype("<u2")


@dataclass(frozen=True)
class Schedule:
    """How an engine goes about its comparisons: the sizes of the groups in which classes meet, by
    level, empty if all meet at once; and whether it then leaves it to the coordinator to find the
    winner, which saves a round."""

    groups: tuple[int, ...] = ()
    two_rounds: bool = False


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

    def label_code(self, classes: int) -> LabelCode:
        """How the shares that `run` returns are sent and read."""
        ...

    def run(
        self, totals: Words, classes: int, channel: Channel, preprocessing: Preprocessing
    ) -> Words:
        """This party's additive shares of each row's winner, re-randomised: whoever gets all shares
        learns the winners and nothing else, even with the dealer's knowledge.

        `totals` holds this party's shares, `classes` to a row, in words of which the low
        `ring_bits` count. What is shared, and modulo what, `label_code` says.
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


@dataclass(frozen=True)
class AddedLabels:
    """Shares that add up to the labels, modulo a power of two: a word of 16 bits for each row."""

    classes: int
    per_row: ClassVar[int] = 1

    def pack(self, shares: Words) -> bytes:
        """See `LabelCode`."""
        return reduced(shares, self.classes).astype(LABEL).tobytes()

    def unpack(self, data: bytes, rows: int) -> Words:
        """See `LabelCode`."""
        if len(data) != rows * LABEL.itemsize:
            raise ValueError("label shares out of place")
        return np.frombuffer(data, LABEL).astype(np.uint64)

    def labels(self, sums: Words) -> npt.NDArray[np.uint32]:
        """See `LabelCode`."""
        found = reduced(sums, self.classes)
        if found.max(initial=0) >= self.classes:
            raise ValueError("the shares do not add up to labels")
        return found.astype(np.uint32)


class LabelCode(Protocol):
    """What leaves the committee: how a party's label shares are sent, and how the coordinator reads
    the labels from the sums over all parties, in words of 64 bits."""

    @property
    def per_row(self) -> int:
        """Numbers that a party sends for a row."""
        ...

    def pack(self, shares: Words) -> bytes:
        """A party's shares of consecutive rows."""
        ...

    def unpack(self, data: bytes, rows: int) -> Words:
        """The inverse; raises `ValueError` for shares of another number of rows."""
        ...

    def labels(self, sums: Words) -> npt.NDArray[np.uint32]:
        """A label for each row; raises `ValueError` where some row has none."""
        ...
