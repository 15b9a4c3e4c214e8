"""What an agent shares in a verified round: bits that can't say more than votes and some noise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from mpc_vote.csprng import SeedStream, new_seed
from mpc_vote.sharing import Share

IntArray = npt.NDArray[np.int64]
Bits = npt.NDArray[np.uint8]

# No honest agent's noise is beyond the bound of a cell, but with this probability: it is then cut.
# That is below 12 standard deviations wherever one is at least 8 units, half a vote.
TAIL = 2.0**-90


def weights_for(most: int) -> tuple[int, ...]:
    """Weights whose subsets add up to every number from 0 to `most`, and to no other."""
    weights, reached = [], 0
    while reached < most:
        weights.append(min(reached + 1, most - reached))
        reached += weights[-1]
    return tuple(weights)


@dataclass(frozen=True)
class Layout:
    """The bits of one agent's answer to one query: the votes first, then the noise of each cell.

    Without `most` the vote is a pointer to a class. With it, flags give each class 0 to `most`
    votes, which may add up to `limit`. A vote is `unit` units of a total, and no noise is beyond
    `bound` units.
    """

    classes: int
    unit: int
    bound: int
    most: int = 0
    limit: int = 1

    @cached_property
    def noise_weights(self) -> tuple[int, ...]:
        """What the flags of a cell's noise are worth, from -bound on."""
        return weights_for(2 * self.bound)

    @cached_property
    def vote_weights(self) -> tuple[int, ...]:
        """What the flags of a cell's votes are worth."""
        return weights_for(self.most)

    @property
    def pointer_bits(self) -> int:
        """There is one value more than there are classes, for no class."""
        return 0 if self.most else self.classes.bit_length()

    @property
    def vote_flags(self) -> int:
        """Flags of a query that are votes."""
        return self.classes * len(self.vote_weights)

    @property
    def flags(self) -> int:
        """All flags of a query."""
        return self.vote_flags + self.classes * len(self.noise_weights)

    @property
    def bits(self) -> int:
        """Bits of a query."""
        return self.pointer_bits + self.flags

    @property
    def numbers(self) -> int:
        """Numbers of material that a query takes, about: truth tables count by their size."""
        counted = 1 << (self.classes * self.most).bit_length()
        return (counted // 32 if self.most else 1 << self.pointer_bits) + self.flags

    def share_bytes(self, queries: int) -> int:
        """Size of an explicit share."""
        return (queries * self.bits + 7) // 8


def encode(layout: Layout, ballot: IntArray, noise_drawn: IntArray) -> Bits:
    """A ballot in units and its noise, both (queries, classes), as bits (queries, bits).

    Noise beyond the bound, of which there is none but with probability TAIL, is cut to it.
    """
    votes, rest = np.divmod(ballot, layout.unit)
    if rest.any() or (votes < 0).any() or (votes > (layout.most or 1)).any():
        raise ValueError(f"a ballot must be made of whole votes of {layout.unit} units")
    if (votes.sum(axis=1) > layout.limit).any():
        raise ValueError(f"a query has at most {layout.limit} votes")
    if layout.most:
        cast = _flags(votes, layout.vote_weights)
    else:
        pointers = np.where(votes.any(axis=1), votes.argmax(axis=1), layout.classes)
        cast = ((pointers[:, None] >> np.arange(layout.pointer_bits)) & 1).astype(np.uint8)
    cut = np.clip(noise_drawn, -layout.bound, layout.bound) + layout.bound
    return np.concatenate([cast, _flags(cut, layout.noise_weights)], axis=1)


def _flags(values: IntArray, weights: Sequence[int]) -> Bits:
    """Numbers (queries, classes) as flags (queries, classes x weights)."""
    flags = np.empty((*values.shape, len(weights)), dtype=np.uint8)
    below = sum(weights)
    for place, weight in reversed(list(enumerate(weights))):
        below -= weight
        flags[:, :, place] = values > below
        values = values - weight * flags[:, :, place].astype(np.int64)
    return flags.reshape(len(values), -1)


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
