"""One level of the table engine, online: the three rounds of `mpc_vote.argmax.table.engine`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from mpc_vote.argmax.table.comparison import Array, Bytes, Comparisons, pair_slices
from mpc_vote.argmax.table.level import LevelPart, LevelTables, cell_indices
from mpc_vote.mpc import ring
from mpc_vote.mpc.channel import Openings
from mpc_vote.mpc.preprocessing import Preprocessing


def adds_constants(channel: Openings) -> bool:
    """Of public values one party's share is the value, all others' are zero."""
    return channel.rank == channel.size - 1


def compete(
    items: Sequence[LevelTables],
    values: Array,
    labels: Array | None,
    channel: Openings,
    preprocessing: Preprocessing,
) -> tuple[Array | None, Array]:
    """Shares of the winners' totals, if they are wanted, and of their labels, per vector.

    The items serve chunks of the vectors, which are columns of `values` and `labels`.
    """
    shape, parts = items[0], [preprocessing.take(item) for item in items]
    masked = [(values + _together([part.r for part in parts]), shape.bits)]
    if labels is not None:
        q = _together([part.q for part in parts if part.q is not None])
        masked.append((labels + q, shape.label_bits))
    opened, _ = open_sums(channel, masked)

    compared = Compared(items, [part.tables for part in parts], opened[0], channel)
    constants = adds_constants(channel)
    wins = [
        _wins(item, part, bits, top, constants)
        for item, part, (bits, top) in zip(items, parts, compared.chunks(), strict=True)
    ]

    (masked_wins,), _ = open_sums(channel, [(_together(wins), shape.win_bits)])
    results = [
        _choose(item, part, masked_wins[:, chunk], [array[:, chunk] for array in opened])
        for item, part, chunk in zip(items, parts, chunks_of(items), strict=True)
    ]
    winners = None if shape.last else _together([w for w, _ in results if w is not None])
    return winners, _together([label for _, label in results])


def _together(arrays: Sequence[Array]) -> Array:
    """Chunks of vectors side by side."""
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays, axis=-1)


def chunks_of(items: Sequence[Comparisons[Any]]) -> list[slice]:
    """The vectors that each item serves."""
    ends = accumulate(item.vectors for item in items)
    return [slice(end - item.vectors, end) for item, end in zip(items, ends, strict=True)]


def open_sums(
    channel: Openings, shares: Sequence[tuple[Array, int]], note: bytes = b""
) -> tuple[list[Array], list[bytes]]:
    """Opens arrays that are shared modulo 2^bits each, in one round; tells a note to all parties,
    and returns everybody's by rank, all of one size."""
    sent = b"".join([*(ring.pack_planes(array, bits) for array, bits in shares), note])
    payloads = channel.exchange(sent)
    views = [memoryview(payload) for payload in payloads]
    opened, start = [], 0
    for array, bits in shares:
        end = start + ring.planes_size(array.size, bits)
        total: Array = ring.add_planes([view[start:end] for view in views], bits, array.size)
        total &= total.dtype.type((1 << bits) - 1)
        opened.append(total.reshape(array.shape))
        start = end
    return opened, [bytes(payload[start:]) for payload in payloads]


class Compared:
    """Comparisons of all pairs whose masked totals are open: a round that opens what is found in
    the truth tables."""

    def __init__(
        self,
        items: Sequence[Comparisons[Any]],
        tables: Sequence[Sequence[Array]],
        masked: Array,
        channel: Openings,
    ) -> None:
        self._items = items
        self._tops: list[Bytes] = []
        sent = []
        for item, own, chunk in zip(items, tables, chunks_of(items), strict=True):
            difference = item.differences(masked[:, chunk])
            self._tops.append(item.top(difference))
            sent.append(item.look_up(own, difference))
        self._sizes = [len(bits) for bits in sent]
        payloads = channel.exchange(b"".join(sent))
        first, *others = [np.frombuffer(payload, np.uint8) for payload in payloads]
        self._bits = first.copy()
        for other in others:
            self._bits ^= other

    def chunks(self) -> Iterator[tuple[Bytes, Bytes]]:
        """Item by item the opened bits, lookup by lookup, and the top bit of each difference."""
        start = 0
        for item, size, top in zip(self._items, self._sizes, self._tops, strict=True):
            yield item.opened(self._bits[start : start + size]), top
            start += size


def _wins(item: LevelTables, part: LevelPart, bits: Bytes, top: Bytes, constants: bool) -> Bytes:
    """This party's share of each contestant's number of wins, masked."""
    # [x_i < x_j] is the top bit xor y.
    loses = item.evaluate(part.coefficients, bits)
    loses *= top * np.uint8(254) + np.uint8(1)
    wins: Bytes = part.s.copy()
    if constants:
        loses += top
        # The first of a pair wins where it does not lose, the second where the first loses.
        wins += np.arange(item.group - 1, -1, -1, dtype=np.uint8)[:, None]
    for first, pairs in pair_slices(item.group):
        wins[first + 1 :] += loses[pairs]
        wins[first] -= np.add.reduce(loses[pairs], axis=0, dtype=np.uint8)
    return wins


def _choose(
    item: LevelTables, part: LevelPart, masked_wins: Array, opened: Sequence[Array]
) -> tuple[Array | None, Array]:
    """Shares of the winner's total and label."""
    at = cell_indices(masked_wins)
    chosen = [np.take(table.reshape(-1), at) for table in part.chosen]
    if item.last and not item.labelled:
        return None, _added(chosen[0])
    hot = chosen[0]
    label_type = ring.dtype_for(item.label_bits)
    if item.labelled:
        label = opened[1] * hot.astype(label_type) - chosen[-1]
    else:
        label = hot.astype(label_type) * np.arange(item.group, dtype=label_type)[:, None]
    if item.last:
        return None, _added(label)
    totals = opened[0] * hot.astype(opened[0].dtype) - chosen[1]
    return _added(totals), _added(label)


def _added(values: Array) -> Array:
    """Over all contestants."""
    found: Array = np.add.reduce(values, axis=0, dtype=values.dtype)
    return found
