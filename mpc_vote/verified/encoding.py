"""What an agent shares in a verified round: bits that can't say more than its votes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mpc_vote.mpc.prg import SeedStream, new_seed
from mpc_vote.mpc.sharing import Share

IntArray = npt.NDArray[np.int64]
Bits = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Layout:
    """The bits of one agent's answer to one query.

    They are `votes` pointers, each to a class or to none; or, where classes are `attributes`, a
    flag for each, of which an honest agent sets at most `votes`. A vote is `unit` units of a total.
    """

    classes: int
    unit: int
    votes: int = 1
    attributes: bool = False

    @property
    def pointers(self) -> int:
        """Pointers of a query."""
        return 0 if self.attributes else self.votes

    @property
    def pointer_bits(self) -> int:
        """Of each pointer: there is one value more than there are classes, for no class."""
        return 0 if self.attributes else self.classes.bit_length()

    @property
    def flags(self) -> int:
        """Flags of a query."""
        return self.classes if self.attributes else 0

    @property
    def most(self) -> int:
        """The largest part of a total, in units, that any bits are worth."""
        return self.unit * (1 if self.attributes else self.votes)

    @property
    def bits(self) -> int:
        """Bits of a query."""
        return self.pointers * self.pointer_bits + self.flags

    @property
    def numbers(self) -> int:
        """Numbers of preprocessing that a query takes."""
        return (self.pointers << self.pointer_bits) + self.flags

    def share_bytes(self, queries: int) -> int:
        """Size of an explicit share."""
        return (queries * self.bits + 7) // 8


def encode(layout: Layout, ballot: IntArray) -> Bits:
    """A ballot in units, (queries, classes), as bits (queries, bits).

    What is no ballot is refused: nobody checks it later.
    """
    votes, rest = np.divmod(ballot, layout.unit)
    if rest.any() or (votes < 0).any():
        raise ValueError(f"a ballot must be made of whole votes of {layout.unit} units")
    if layout.attributes and (votes > 1).any():
        raise ValueError("an attribute has no more than one vote")
    if (votes.sum(axis=1) > layout.votes).any():
        raise ValueError(f"a query has at most {layout.votes} votes")
    return votes.astype(np.uint8) if layout.attributes else _pointers(layout, votes)


def _pointers(layout: Layout, votes: IntArray) -> Bits:
    """Votes as the bits of pointers, which are in a random order, and to no class if left over.

    The order must be uniform and fresh. Then two ballots of which one has one vote moved are, in
    the same order, pointers of which one differs, and a party that changes pointers blindly moves
    the totals of the two apart by no more than that one vote.
    """
    spare = layout.votes - votes.sum(axis=1, keepdims=True)
    values = np.tile(np.arange(layout.classes + 1, dtype=np.uint16), len(votes))
    cast = np.repeat(values, np.concatenate([votes, spare], axis=1).reshape(-1))
    shuffled = np.take_along_axis(
        cast.reshape(-1, layout.votes), random_orders(len(votes), layout.votes), axis=1
    )
    places = np.arange(layout.pointer_bits, dtype=np.uint16)
    bits = (shuffled[:, :, None] >> places & np.uint16(1)).astype(np.uint8)
    return bits.reshape(len(votes), -1)


def random_orders(rows: int, length: int) -> IntArray:
    """So many permutations of 0..length-1, uniform and independent.

    Of keys that differ every order is as likely, so rows in which two are equal are drawn again.
    """
    orders = np.empty((rows, length), np.int64)
    left = np.arange(rows)
    while left.size:
        keys = SeedStream(new_seed()).words(left.size * length).reshape(left.size, length)
        orders[left] = keys.argsort(axis=1)
        ranked = np.take_along_axis(keys, orders[left], axis=1)
        left = left[(ranked[:, 1:] == ranked[:, :-1]).any(axis=1)]
    return orders


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
