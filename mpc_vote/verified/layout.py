"""What an agent shares in a verified round: bits, of which every string is a valid ballot."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from mpc_vote.csprng import SeedStream, new_seed
from mpc_vote.sharing import Share

IntArray = npt.NDArray[np.int64]
Bits = npt.NDArray[np.uint8]

# No honest agent's noise is beyond the bound of a cell, but with this probability: it is then cut.
# That is below 12 standard deviations wherever one is at least 8 units, half a vote.
TAIL = 2.0**-90


def weights_for(bound: int) -> tuple[int, ...]:
    """Weights whose subsets add up to every number from 0 to twice the bound, and to no other."""
    weights, reached = [], 0
    while reached < 2 * bound:
        weights.append(min(reached + 1, 2 * bound - reached))
        reached += weights[-1]
    return tuple(weights)


@dataclass(frozen=True)
class Layout:
    """The bits of one agent's answer to one query: pointers, or a flag for each attribute, and then
    the noise of each cell.

    `votes` is the number of pointers, 0 for attributes. A vote is `unit` units of a total, and no
    noise is beyond `bound` units.
    """

    classes: int
    votes: int
    unit: int
    bound: int

    @cached_property
    def weights(self) -> tuple[int, ...]:
        """What the flags of a cell's noise are worth, from -bound on."""
        return weights_for(self.bound)

    @property
    def pointer_bits(self) -> int:
        """There is one value more than there are classes, for no class."""
        return self.classes.bit_length() if self.votes else 0

    @property
    def vote_flags(self) -> int:
        """Flags of a query that are votes."""
        return 0 if self.votes else self.classes

    @property
    def flags(self) -> int:
        """All flags of a query."""
        return self.vote_flags + self.classes * len(self.weights)

    @property
    def bits(self) -> int:
        """Bits of a query."""
        return self.votes * self.pointer_bits + self.flags

    @property
    def numbers(self) -> int:
        """Numbers of material that a query takes."""
        return self.votes * (1 << self.pointer_bits) + self.flags

    def share_bytes(self, queries: int) -> int:
        """Size of an explicit share."""
        return (queries * self.bits + 7) // 8


def encode(layout: Layout, ballot: IntArray, noise_drawn: IntArray) -> Bits:
    """A ballot in units and its noise, both (queries, classes), as bits (queries, bits).

    Noise beyond the bound, of which there is none but with probability TAIL, is cut to it.
    """
    counts, rest = np.divmod(ballot, layout.unit)
    most = layout.votes or 1
    if rest.any() or (counts < 0).any() or (counts > most).any():
        raise ValueError(f"a ballot must be made of whole votes of {layout.unit} units")
    if layout.votes and (counts.sum(axis=1) > layout.votes).any():
        raise ValueError(f"a query has at most {layout.votes} votes")
    parts: list[npt.NDArray[np.integer[Any]]] = []
    if layout.votes:
        ends = np.cumsum(counts, axis=1)
        pointers = np.stack([(ends <= vote).sum(axis=1) for vote in range(layout.votes)], axis=1)
        places = np.arange(layout.pointer_bits)
        parts.append((pointers[:, :, None] >> places) & 1)
    else:
        parts.append(counts)
    left = np.clip(noise_drawn, -layout.bound, layout.bound) + layout.bound
    flags = np.empty((*left.shape, len(layout.weights)), dtype=np.uint8)
    below = sum(layout.weights)
    for place, weight in reversed(list(enumerate(layout.weights))):
        below -= weight
        flags[:, :, place] = left > below
        left = left - weight * flags[:, :, place].astype(np.int64)
    parts.append(flags)
    flat = [part.reshape(len(ballot), -1).astype(np.uint8) for part in parts]
    return np.concatenate(flat, axis=1)


def split_bits(bits: Bits, parties: int, explicit: int) -> list[Share]:
    """Shares of bits by exclusive or, by rank; rank `explicit` gets the residual."""
    if parties < 2 or not 0 <= explicit < parties:
        raise ValueError(f"no rank {explicit} among {parties} parties, of which there must be two")
    residual = np.packbits(bits, bitorder="little")
    shares: list[Share] = []
    for rank in range(parties):
        seed = b"" if rank == explicit else new_seed()
        if seed:
            residual ^= np.frombuffer(SeedStream(seed).take(residual.size), np.uint8)
        shares.append(Share(seed=seed))
    shares[explicit] = Share(packed=residual.tobytes())
    return shares


class BitReader:
    """Reads an agent's share query by query; blocks but the last are of a multiple of 8 queries."""

    def __init__(self, share: Share, layout: Layout) -> None:
        self.layout = layout
        self._stream = SeedStream(share.seed) if share.seed else None
        self._packed = memoryview(share.packed)

    def take(self, queries: int) -> Bits:
        """The share of the next queries' bits, (queries, bits)."""
        size = self.layout.share_bytes(queries)
        if self._stream is not None:
            raw = self._stream.take(size)
        else:
            raw, self._packed = bytes(self._packed[:size]), self._packed[size:]
        bits = np.unpackbits(
            np.frombuffer(raw, np.uint8), bitorder="little", count=queries * self.layout.bits
        )
        return bits.reshape(queries, self.layout.bits)
