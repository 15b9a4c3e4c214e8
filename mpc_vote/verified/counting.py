"""From shares of bits to shares of totals: what the committee does with verified ballots."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mpc_vote import ring
from mpc_vote.argmax.channel import Openings
from mpc_vote.argmax.material import Item, Material
from mpc_vote.csprng import Words
from mpc_vote.verified.layout import BitReader, Bits, Layout
from mpc_vote.verified.limits import Limits, above
from mpc_vote.verified.unmasking import Unmasking, UnmaskingPart

Array = npt.NDArray[Any]
Pointers = npt.NDArray[np.uint16]

# Numbers in one item of material: what a party's memory holds at a time.
_CHUNK_NUMBERS = 1 << 24
# The same where eight queries alone take more.
MAX_NUMBERS = 1 << 26


class Counted(NamedTuple):
    """A party's shares of totals, (queries x classes,), of which the low bits count; and who of
    the roster was left out for too many votes, by place."""

    totals: Words
    excluded: frozenset[int]


@dataclass(frozen=True)
class Count:
    """The count of one round: a layout for each agent of the roster, all with pointers or none."""

    layouts: tuple[Layout, ...]
    queries: int
    ring_bits: int

    @property
    def _limited(self) -> bool:
        """Whether votes have to be added up to see that they are not too many."""
        return self.layouts[0].most > 0

    def plan(self) -> list[Item[Any]]:
        """All material that it takes."""
        return [item for size in self._chunks() for item in self._items(size)]

    def run(
        self, readers: Sequence[BitReader | None], channel: Openings, material: Material
    ) -> Counted:
        """Adds up the ballots of all agents that have a reader."""
        chunks = [self._chunk(readers, size, channel, material) for size in self._chunks()]
        excluded = frozenset(place for chunk in chunks for place in chunk.above)
        totals = [chunk.without(excluded).reshape(-1) for chunk in chunks]
        return Counted(np.concatenate(totals).astype(np.uint64), excluded)

    def _chunks(self) -> Iterator[int]:
        """How many queries go together: as many as memory allows."""
        numbers = sum(layout.numbers for layout in self.layouts)
        step = max(8, _CHUNK_NUMBERS // numbers // 8 * 8)
        for start in range(0, self.queries, step):
            yield min(step, self.queries - start)

    def _items(self, queries: int) -> list[Item[Any]]:
        items: list[Item[Any]] = [self._unmasking(queries)]
        return [*items, self._limits(queries)] if self._limited else items

    def _unmasking(self, queries: int) -> Unmasking:
        return Unmasking(
            pointers=0 if self._limited else queries * len(self.layouts),
            pointer_bits=self.layouts[0].pointer_bits,
            flags=queries * sum(layout.flags for layout in self.layouts),
            ring_bits=self.ring_bits,
        )

    def _limits(self, queries: int) -> Limits:
        most = max(layout.classes * layout.most for layout in self.layouts)
        return Limits(queries, most, tuple(layout.limit for layout in self.layouts))

    def _chunk(
        self,
        readers: Sequence[BitReader | None],
        queries: int,
        channel: Openings,
        material: Material,
    ) -> _Chunk:
        item = self._unmasking(queries)
        part = material.take(item)
        pointers, flags = self._read(readers, queries, item)
        opened = _open(channel, item, pointers ^ part.pointer_masks, flags ^ part.flag_masks)
        chunk = _Chunk(np.zeros((queries, self.layouts[0].classes), part.flags.dtype))
        counts = np.zeros((len(self.layouts), queries), np.uint64)
        for place, (reader, layout, own) in enumerate(
            zip(readers, self.layouts, self._slices(queries), strict=True)
        ):
            if reader is not None:
                votes, noise = _add_up(layout, queries, part, opened, own, _constants(channel))
                chunk.add(place, votes * noise.dtype.type(layout.unit) + noise, self._limited)
                counts[place] = votes.sum(axis=1, dtype=votes.dtype)
        if self._limited:
            limits = self._limits(queries)
            found = above(counts.reshape(-1), limits, material.take(limits), channel)
            over = found.reshape(counts.shape)
            chunk.above = [place for place in chunk.apart if over[place].any()]
        return chunk

    def _read(
        self, readers: Sequence[BitReader | None], queries: int, item: Unmasking
    ) -> tuple[Pointers, Bits]:
        """This party's shares of all bits; of who is absent all parties take zeros."""
        pointers, flags = np.zeros(item.pointers, np.uint16), np.zeros(item.flags, np.uint8)
        places = np.uint16(1) << np.arange(item.pointer_bits, dtype=np.uint16)
        for reader, layout, (own_pointers, own_flags) in zip(
            readers, self.layouts, self._slices(queries), strict=True
        ):
            if reader is None:
                continue
            bits = reader.take(queries)
            cut = layout.pointer_bits
            if cut:
                pointers[own_pointers] = bits[:, :cut] @ places
            flags[own_flags] = bits[:, cut:].reshape(-1)
        return pointers, flags

    def _slices(self, queries: int) -> Iterator[tuple[slice, slice]]:
        """Where the pointers and the flags of each agent are."""
        pointer, flag = 0, 0
        for layout in self.layouts:
            pointer_end = pointer + (0 if layout.most else queries)
            flag_end = flag + queries * layout.flags
            yield slice(pointer, pointer_end), slice(flag, flag_end)
            pointer, flag = pointer_end, flag_end


@dataclass
class _Chunk:
    """Shares of totals of some queries; what single agents add is kept apart where one of them may
    yet be left out."""

    total: Array
    apart: dict[int, Array] = field(default_factory=dict)
    above: list[int] = field(default_factory=list)

    def add(self, place: int, cells: Array, keep: bool) -> None:
        """What one agent adds."""
        if keep:
            self.apart[place] = cells
        else:
            self.total += cells

    def without(self, excluded: frozenset[int]) -> Array:
        """The totals of all agents but these."""
        total = self.total.copy()
        for place, cells in self.apart.items():
            if place not in excluded:
                total += cells
        return total


def _constants(channel: Openings) -> bool:
    """Of public values one party's share is the value, all others' are zero."""
    return channel.rank == channel.size - 1


def _add_up(
    layout: Layout,
    queries: int,
    part: UnmaskingPart,
    opened: tuple[Pointers, Bits],
    own: tuple[slice, slice],
    constants: bool,
) -> tuple[Array, Array]:
    """Shares of an agent's votes and of its noise, (queries, classes) each."""
    own_pointers, own_flags = own
    dtype = part.flags.dtype
    # A flag is the opened bit xor its mask.
    seen, masks = opened[1][own_flags].astype(dtype), part.flags[own_flags]
    values: Array = np.where(seen, -masks, masks)
    if constants:
        values += seen
    values = values.reshape(queries, layout.flags)
    if layout.most:
        votes = _weighed(values[:, : layout.vote_flags], layout.vote_weights)
    else:
        places = opened[0][own_pointers, None] ^ np.arange(layout.classes, dtype=np.uint16)
        votes = np.take_along_axis(part.units[own_pointers], places.astype(np.intp), axis=1)
    noise = _weighed(values[:, layout.vote_flags :], layout.noise_weights)
    if constants:
        noise -= dtype.type(layout.bound)
    return votes, noise


def _weighed(flags: Array, weights: Sequence[int]) -> Array:
    """Flags of each cell, (queries, classes x weights), added up."""
    cells: Array = flags.reshape(len(flags), -1, len(weights)) @ np.array(weights, flags.dtype)
    return cells


def _open(
    channel: Openings, item: Unmasking, pointers: Pointers, flags: Bits
) -> tuple[Pointers, Bits]:
    """Opens what is shared by exclusive or, in one round."""
    packed = ring.pack_planes(pointers, item.pointer_bits) if item.pointers else b""
    payloads = channel.exchange(packed + np.packbits(flags, bitorder="little").tobytes())
    opened = np.bitwise_xor.reduce([np.frombuffer(payload, np.uint8) for payload in payloads])
    found = np.zeros(0, np.uint16)
    if item.pointers:
        planes = opened[: len(packed)].tobytes()
        found = ring.unpack_planes(planes, item.pointer_bits, item.pointers).astype(np.uint16)
    return found, np.unpackbits(opened[len(packed) :], bitorder="little", count=item.flags)
