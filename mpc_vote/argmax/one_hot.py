"""Preprocessing that turns shared labels into one-hot rows: a unit vector at a secret position.

Free: shares of t, uniform modulo m, the least power of two that holds all labels. Corrected: shares
modulo 2^64 of the unit vector with its one at t. Parties open label - t, which is uniform; rotating
the vector by it puts the one at the label.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from mpc_vote.argmax.engine import MAX_CLASSES, label_bits
from mpc_vote.mpc import ring
from mpc_vote.mpc.channel import Openings
from mpc_vote.mpc.preprocessing import Item, require
from mpc_vote.mpc.prg import SeedStream, Words

MAX_ROTATED = 1 << 24
"""Numbers of one item; what is larger comes in several."""


@dataclass(frozen=True)
class RotationPart:
    """One party's shares of the positions, and of the unit vectors (rows, m)."""

    position: Words
    unit: Words

    def __repr__(self) -> str:
        return "RotationPart(hidden)"


@dataclass(frozen=True)
class Rotation(Item[RotationPart]):
    """For `rows` labels of `classes` classes."""

    wire_name: ClassVar[str] = "rotation"

    rows: int
    classes: int

    def check(self) -> None:
        require(2 <= self.classes <= MAX_CLASSES, "the classes of a rotation")
        require(0 < self.rows * self.places <= MAX_ROTATED, "a rotation's size")

    @property
    def places(self) -> int:
        """Positions that the one can have."""
        return 1 << label_bits(self.classes)

    @property
    def correction_bytes(self) -> int:
        return 8 * self.rows * self.places

    @property
    def part_bytes(self) -> int:
        return self.correction_bytes + 8 * self.rows

    def expand(self, seed: bytes, index: int, correction: bytes | None) -> RotationPart:
        stream = SeedStream(seed, index)
        position = stream.words(self.rows)
        count = self.rows * self.places
        unit = stream.words(count) if correction is None else np.frombuffer(correction, "<u8")
        return RotationPart(position, unit.reshape(self.rows, self.places))

    def correct(self, seeds: Sequence[bytes], index: int) -> bytes:
        parts = [self.expand(seed, index, None) for seed in seeds]
        position = np.add.reduce([part.position for part in parts]) % np.uint64(self.places)
        unit = np.zeros((self.rows, self.places), np.uint64)
        unit[np.arange(self.rows), position.astype(np.intp)] = 1
        for part in parts[:-1]:
            unit -= part.unit
        return unit.tobytes()


def one_hot(labels: Words, item: Rotation, part: RotationPart, channel: Openings) -> Words:
    """This party's shares of the one-hot rows, modulo 2^64."""
    bits = label_bits(item.classes)
    payloads = channel.exchange(ring.pack_planes(labels - part.position, bits))
    opened = ring.add_planes(payloads, bits, item.rows)
    places = (np.arange(item.classes) - opened[:, None].astype(np.intp)) % item.places
    return np.take_along_axis(part.unit, places, axis=1)
