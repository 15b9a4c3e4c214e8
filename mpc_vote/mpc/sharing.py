"""Additive secret sharing of a ballot among the parties.

Every party but one gets a 32-byte seed; the remaining one, which rotates over the roster, gets the
explicit residual. An agent therefore uploads about one plain ballot, whatever the number of
parties. A seed expands to whole words, which takes no unpacking: of a share, and of a sum of
shares, only as many low bits count as the ring has. Any P-1 shares are uniform and independent of
the ballot: either all of them are seeds, or one is the residual, masked by the expansion of the
seed that the missing party holds.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mpc_vote.mpc import ring
from mpc_vote.mpc.prg import SeedStream, Words, new_seed


@dataclass(frozen=True)
class Share:
    """One party's share: a seed, or the packed residual. Secret: never shown."""

    seed: bytes = b""
    packed: bytes = b""

    def __repr__(self) -> str:
        return "Share(hidden)"

    @property
    def upload_bytes(self) -> int:
        """Bytes of payload that carry this share."""
        return len(self.seed) + len(self.packed)


def split(values: npt.NDArray[np.int64], parties: int, explicit: int, bits: int) -> list[Share]:
    """Shares of `values` mod 2^bits, by rank; rank `explicit` gets the residual."""
    if parties < 2:
        raise ValueError("sharing needs at least two parties")
    if not 0 <= explicit < parties:
        raise ValueError(f"no rank {explicit} among {parties} parties")
    residual = np.ascontiguousarray(values, dtype=np.int64).reshape(-1).view(np.uint64).copy()
    shares: list[Share] = []
    for rank in range(parties):
        seed = b"" if rank == explicit else new_seed()
        if seed:
            residual -= expand(SeedStream(seed), residual.size, bits)
        shares.append(Share(seed=seed))
    shares[explicit] = Share(packed=ring.pack(residual, bits))
    return shares


def expand(stream: SeedStream, count: int, bits: int) -> Words:
    """The next `count` values of a seed's share: words of which the low `bits` bits count."""
    dtype = ring.dtype_for(bits)
    return stream.draw(count, dtype).astype(np.uint64, copy=False)


class ShareReader:
    """Reads a share block by block, so that a party never holds all expansions at once."""

    def __init__(self, share: Share, bits: int) -> None:
        self._bits = bits
        self._stream = SeedStream(share.seed) if share.seed else None
        self._packed = memoryview(share.packed)
        self._position = 0

    def take(self, count: int) -> Words:
        """The next `count` values, of which the low bits count.

        Blocks but the last must end on a whole byte.
        """
        if self._stream is not None:
            return expand(self._stream, count, self._bits)
        size = ring.packed_size(count, self._bits)
        block = self._packed[self._position : self._position + size]
        self._position += size
        return ring.unpack(bytes(block), self._bits, count)


def sum_blocks(readers: Iterable[ShareReader], count: int) -> Words:
    """This party's share of the sum of all ballots, for the next `count` cells."""
    total = np.zeros(count, dtype=np.uint64)
    for reader in readers:
        total += reader.take(count)
    return total
