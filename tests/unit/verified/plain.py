"""What bits of verified ballots mean, from the layout's definition and not from the protocol."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from mpc_vote.mpc.prg import SeedStream, new_seed
from mpc_vote.privacy.coins import CoinLaw
from mpc_vote.verified.encoding import IntArray, Layout


def pointers_of(layout: Layout, bits: npt.NDArray[Any]) -> IntArray:
    """The pointers of each query, (queries, votes)."""
    cut = layout.pointers * layout.pointer_bits
    split = bits[:, :cut].reshape(len(bits), layout.pointers, layout.pointer_bits)
    return split.astype(np.int64) @ (1 << np.arange(layout.pointer_bits))


def votes_in(layout: Layout, bits: npt.NDArray[Any]) -> IntArray:
    """Whole votes, (queries, classes)."""
    if layout.attributes:
        return bits[:, : layout.classes].astype(np.int64)
    pointers = pointers_of(layout, bits)
    found: npt.NDArray[np.int64] = (pointers[:, :, None] == np.arange(layout.classes)).sum(axis=1)
    return found


def counted(layout: Layout, bits: npt.NDArray[Any]) -> IntArray:
    """What an agent adds to the totals, in units."""
    return layout.unit * votes_in(layout, bits)


def noise_of(law: CoinLaw, coins: npt.NDArray[Any], classes: int) -> IntArray:
    """The noise that coins make, (queries, classes) in units; they lie cell by cell."""
    cells: IntArray = coins.reshape(-1, classes, law.coins).astype(np.int64) @ np.array(law.weights)
    return cells - law.reach


class Tosses:
    """A party's coins as it draws them, kept for comparison."""

    def __init__(self) -> None:
        self._stream = SeedStream(new_seed())
        self.drawn = b""

    def __call__(self, size: int) -> bytes:
        fresh = self._stream.take(size)
        self.drawn += fresh
        return fresh


def tossed(tosses: Sequence[Tosses], coins: int) -> npt.NDArray[np.uint8]:
    """The coins of all parties together, of one draw."""
    every = np.bitwise_xor.reduce([np.frombuffer(one.drawn, np.uint8) for one in tosses])
    return np.unpackbits(every, bitorder="little", count=coins)
