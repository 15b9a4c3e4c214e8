"""The table engine in two rounds: the coordinator finds the winner where the shares add up to zero.

Where all contestants of a row meet at once, the round that opens the numbers of wins can be saved.
Let p be the least prime that is not below the number of contestants C. The dealer draws a secret
unit u_i modulo p for each contestant of each row, and shares the coefficients of each pair's
polynomial (see `mpc_vote.argmax.table.comparison`) twice, modulo p: times u_i and times u_j. Rounds
1 and 2 are those of the engine. Then the parties have, without another round, shares of u_i times
the number of losses of i, multiply them by a unit v_i, which they all know and the dealer does not,
add a fresh sharing of zero, and send them to the coordinator. The sum is

    u_i v_i losses_i modulo p,

which is zero just for the winner, as all others have lost 1 to C-1 < p times.

Preprocessing: free are the masks r of the totals, as at a level. Corrected are the truth tables,
shared by xor, and, exactly uniform modulo p, shares of the u and of the coefficients.

Who sees what. Parties: as at a level; u adds nothing to what any P-1 of them see, as all shares of
it, and of what it multiplies, are uniform to them. The coordinator, alone or with up to P-1
parties: at every loser u_i times a unit, and u_i is uniform among the units, independent of all
else that they see, and of the other u. So it sees the position of the zero, and of each other class
a uniform unit. The coordinator with the dealer, who knows u: the same, as v_i is uniform among the
units, independent for each row and class, and shared by the parties alone, as long as no party
tells. Without v the ratio of what is seen to u_i would be the number of losses, and without the
sharing of zero the parties' shares would tell the openings to who knows the dealer's. The units v
come from seeds of all parties, told among them in round 1.

What malicious parties can do is what they can do in three rounds. They can add what they like to
what is sent, and flip opened bits: a label becomes none (no zero, or several: the coordinator
refuses the round), or another one. With the coordinator among them they see by the zeros functions
of the totals that compare others than all pairs; never more than the noisy totals.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from mpc_vote.argmax.table.comparison import Array, Bytes, Comparisons, pair_slices
from mpc_vote.argmax.table.contest import Compared, chunks_of, open_sums
from mpc_vote.mpc import ring
from mpc_vote.mpc.channel import Channel
from mpc_vote.mpc.preprocessing import Preprocessing, require
from mpc_vote.mpc.prg import SEED_BYTES, SeedStream, Words, joint_seed
from mpc_vote.mpc.residues import MAX_PRIME, Residues, prime_for, reduce, residues, units

MAX_MARKED = MAX_PRIME
"""Contestants of which the winner can be marked."""


@dataclass(frozen=True)
class MarkPart:
    """One party's share of what two rounds use up."""

    r: Array
    tables: tuple[Array, ...]
    # Of the coefficients times the unit of the first of each pair, then of the second.
    coefficients: Residues
    units: Residues

    def __repr__(self) -> str:
        return "MarkPart(hidden)"


@dataclass(frozen=True)
class MarkTables(Comparisons[MarkPart]):
    """Preprocessing for `vectors` rows of `group` contestants with totals modulo 2^bits."""

    wire_name: ClassVar[str] = "mark"

    def check(self) -> None:
        super().check()
        require(self.group <= MAX_MARKED, "the group of a level whose winner is marked")

    @cached_property
    def prime(self) -> int:
        """What the units, and all that they multiply, are shared modulo."""
        return prime_for(self.group)

    @property
    def _coefficients(self) -> tuple[int, int, int, int]:
        return (2, self.terms, self.pairs, self.vectors)

    @property
    def _residues(self) -> int:
        return math.prod(self._coefficients) + self.group * self.vectors

    @property
    def correction_bytes(self) -> int:
        return self.table_bytes + ring.planes_size(self._residues, residue_bits(self.prime))

    @property
    def part_bytes(self) -> int:
        masks = self.group * self.vectors * ring.dtype_for(self.bits).itemsize
        return masks + self.table_bytes + self._residues

    def expand(self, seed: bytes, index: int, correction: bytes | None) -> MarkPart:
        stream = SeedStream(seed, index)
        r = self.draw_masks(stream)
        if correction is None:
            tables, shares = self.draw_tables(stream), self._draw_residues(stream)
        else:
            tables, shares = self._unpack(correction)
        count = math.prod(self._coefficients)
        coefficients = shares[:count].reshape(self._coefficients)
        return MarkPart(r, tables, coefficients, shares[count:].reshape(self.group, self.vectors))

    def correct(self, seeds: Sequence[bytes], index: int) -> bytes:
        streams = [SeedStream(seed, index) for seed in seeds]
        first, *others = [self.draw_masks(stream) for stream in streams]
        rho = self.differences(sum(others, start=first))
        secret = SeedStream(joint_seed(seeds), index)
        flips = self.draw_flips(secret)
        tables = self.truth_tables(rho, flips)
        shares = self._secret_residues(self.coefficients(rho, flips), self._draw_units(secret))
        for stream in streams[:-1]:
            for table, share in zip(tables, self.draw_tables(stream), strict=True):
                table ^= share
            shares += np.uint16(self.prime)
            shares -= self._draw_residues(stream)
        packed: list[bytes | memoryview] = [table.data.cast("B") for table in tables]
        packed.append(ring.pack_planes(reduce(shares, self.prime), residue_bits(self.prime)))
        return b"".join(packed)

    def _draw_residues(self, stream: SeedStream) -> Residues:
        return residues(stream, self.prime, self._residues)

    def _draw_units(self, stream: SeedStream) -> Residues:
        return units(stream, self.prime, self.group * self.vectors).reshape(
            self.group, self.vectors
        )

    def _secret_residues(self, coefficients: Bytes, drawn: Residues) -> Array:
        """What the shares of all parties must add up to modulo the prime."""
        low = reduce(coefficients.view(np.int8).astype(np.int16), self.prime).astype(np.uint16)
        shares = np.empty(self._residues, np.uint16)
        times = shares[: math.prod(self._coefficients)].reshape(self._coefficients)
        for first, pairs in pair_slices(self.group):
            np.multiply(low[:, pairs], drawn[first], out=times[0, :, pairs])
            np.multiply(low[:, pairs], drawn[first + 1 :], out=times[1, :, pairs])
        shares[times.size :] = drawn.reshape(-1)
        return reduce(shares, self.prime).astype(np.uint16)

    def _unpack(self, correction: bytes) -> tuple[tuple[Array, ...], Residues]:
        if len(correction) != self.correction_bytes:
            raise ValueError(
                f"a correction of {len(correction)} bytes, not {self.correction_bytes}"
            )
        packed = memoryview(correction)[self.table_bytes :]
        shares = ring.unpack_planes(packed, residue_bits(self.prime), self._residues)
        return self.unpack_tables(correction), reduce(shares, self.prime)


@dataclass(frozen=True)
class MarkedLabels:
    """Shares modulo a prime of a number for each class, which is zero just for the winner."""

    classes: int

    @property
    def per_row(self) -> int:
        """See `LabelCode`."""
        return self.classes

    @cached_property
    def _prime(self) -> int:
        return prime_for(self.classes)

    def pack(self, shares: Words) -> bytes:
        """See `LabelCode`."""
        return ring.pack_planes(shares, residue_bits(self._prime))

    def unpack(self, data: bytes, rows: int) -> Words:
        """See `LabelCode`."""
        bits, count = residue_bits(self._prime), rows * self.classes
        if len(data) != ring.planes_size(count, bits):
            raise ValueError("label shares out of place")
        return ring.unpack_planes(data, bits, count).astype(np.uint64)

    def labels(self, sums: Words) -> npt.NDArray[np.uint32]:
        """See `LabelCode`."""
        won = sums.reshape(-1, self.classes) % np.uint64(self._prime) == 0
        if (won.sum(axis=1) != 1).any():
            raise ValueError("a row has not just one winner")
        found: npt.NDArray[np.uint32] = won.argmax(axis=1).astype(np.uint32)
        return found


def residue_bits(prime: int) -> int:
    """Bits that a number modulo a prime takes."""
    return (prime - 1).bit_length()


def mark(
    items: Sequence[MarkTables], values: Array, channel: Channel, preprocessing: Preprocessing
) -> Residues:
    """This party's shares, by contestant and row, of what is zero just for the winner: all shares
    are fit to leave the committee."""
    parts = [preprocessing.take(item) for item in items]
    shape, prime = items[0], items[0].prime
    masked = values + np.concatenate([part.r for part in parts], axis=1)
    own = channel.next_stream.take(SEED_BYTES)
    # What the previous rank tells; read on, so that both stay at the same place of the stream.
    channel.previous_stream.take(SEED_BYTES)
    (opened,), seeds = open_sums(channel, [(masked, shape.bits)], own)
    compared = Compared(items, [part.tables for part in parts], opened, channel)
    losses = np.empty(values.shape, np.uint8)
    for item, part, chunk, (bits, top) in zip(
        items, parts, chunks_of(items), compared.chunks(), strict=True
    ):
        losses[:, chunk] = _losses(item, part, bits, top)
    common = units(SeedStream(joint_seed(seeds)), prime, losses.size).reshape(losses.shape)
    shares = losses.astype(np.uint16)
    shares *= common
    shares = reduce(shares, prime).astype(np.uint16)
    shares += zero_residues(channel, prime, losses.size).reshape(losses.shape)
    return reduce(shares, prime)


def zero_residues(channel: Channel, prime: int, count: int) -> Residues:
    """This party's share of a fresh sharing of zero modulo a prime."""
    added = residues(channel.next_stream, prime, count).astype(np.uint16) + np.uint16(prime)
    return reduce(added - residues(channel.previous_stream, prime, count), prime)


def _losses(item: MarkTables, part: MarkPart, bits: Bytes, top: Bytes) -> Residues:
    """This party's share of each contestant's number of losses times its unit."""
    # Sums that are reduced at the end: of a residue for each term, and of these for each opponent.
    most = item.terms * (item.prime - 1)
    narrow: type[np.unsignedinteger[Any]] = np.uint8 if most < 1 << 8 else np.uint16
    wide: type[np.signedinteger[Any]] = np.int16 if most * 2 * item.group < 1 << 15 else np.int32
    # The first of a pair loses where the top bit xor y is 1, the second where it is 0.
    sign = 1 - 2 * top.astype(np.int8)
    flipped: list[Array] = [
        item.evaluate(side.astype(narrow, copy=False), bits).astype(wide) * sign
        for side in part.coefficients
    ]
    times: Array = np.repeat(np.arange(item.group, dtype=wide)[:, None], item.vectors, axis=1)
    found: Array = np.zeros((item.group, item.vectors), wide)
    for first, pairs in pair_slices(item.group):
        times[first] += np.add.reduce(top[pairs], axis=0, dtype=wide)
        times[first + 1 :] -= top[pairs]
        found[first] += np.add.reduce(flipped[0][pairs], axis=0, dtype=wide)
        found[first + 1 :] -= flipped[1][pairs]
    found += times * part.units
    return reduce(found, item.prime)
