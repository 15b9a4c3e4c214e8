"""What bits of verified ballots mean, from the layout's definition and not from the protocol."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

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


def noise_in(layout: Layout, bits: npt.NDArray[Any]) -> IntArray:
    """Units of noise, (queries, classes)."""
    weights = np.array(layout.noise_weights)
    flags = bits[:, layout.bits - layout.classes * len(weights) :]
    cells: IntArray = flags.reshape(len(bits), layout.classes, -1).astype(np.int64) @ weights
    return cells - layout.bound


def counted(layout: Layout, bits: npt.NDArray[Any]) -> IntArray:
    """What an agent adds to the totals, in units."""
    return layout.unit * votes_in(layout, bits) + noise_in(layout, bits)
