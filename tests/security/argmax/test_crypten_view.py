"""What two of three parties see together does not depend on the totals.

Two worlds of the same shape and very different totals are run, and everything a coalition sees is
compared between them, position by position. The rows of a run are independent repetitions: every
row holds the same totals under fresh shares, masks and preprocessing, so a run of R rows gives R
samples of each word that is seen. What is compared:

- the coalition's input shares and label shares, each and summed;
- the parts that the dealer gave it;
- the third party's payload of every round, the openings, and the openings with the coalition's own
  masks taken off, which is what it would compute to get at a value.

Every bit of every position is compared by its mean, bytes by their histogram. The bound on a
mean's deviation is Hoeffding's, so it holds whatever the distribution, and the failure probability
is split evenly over all comparisons of a test (Bonferroni).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, cast

import numpy as np
import pytest
from scipy import stats

from mpc_vote.argmax.crypten import binding as binding
from mpc_vote.argmax.crypten.engine import CryptenArgmax, MaxMethod
from mpc_vote.argmax.crypten.triples import TripleKind, TriplePart, Triples
from mpc_vote.mpc.channel import Channel
from mpc_vote.mpc.in_process import run_committee
from mpc_vote.mpc.preprocessing import Item, P, Preprocessing
from mpc_vote.mpc.prg import SeedStream, Words, new_seed

PARTIES = 3
CLASSES = 3
# A prime that no other dimension of a tensor has: it tells which axis is the rows.
ROWS = 307
FAILURE = 1e-9

LANDSLIDE_FIRST = [1_000_000, 3, -4]
LANDSLIDE_LAST = [-90, -70, 5_000]

COALITIONS = [(0, 1), (0, 2), (1, 2)]

View = dict[str, np.ndarray]


@dataclass
class World:
    """All that passed in one run, to take the views of coalitions from."""

    inputs: list[Words]
    labels: list[Words] = field(default_factory=list)
    # Of every round: the shapes of the tensors opened, and by rank the part and the payload.
    shapes: list[list[tuple[int, ...]]] = field(default_factory=list)
    items: list[Triples] = field(default_factory=list)
    parts: list[list[TriplePart]] = field(default_factory=lambda: [[] for _ in range(PARTIES)])
    payloads: list[list[Words]] = field(default_factory=list)


class Dealt:
    """Preprocessing as the dealer makes it, or with the masks of one kind left out at one party."""

    def __init__(
        self,
        seeds: Sequence[bytes],
        rank: int,
        world: World,
        unmasked: tuple[TripleKind, int] | None,
    ) -> None:
        self._seeds, self._rank, self._world, self._unmasked = seeds, rank, world, unmasked
        self._index = 0

    def take(self, item: Item[P]) -> P:
        assert isinstance(item, Triples)
        parts = [self._part(rank, item) for rank in range(PARTIES)]
        self._index += 1
        # The last dependent part makes the item valid, as the dealer's correction does.
        added = [reduce(np.add, (getattr(p, name) for p in parts)) for name in "ab"]
        xored = [reduce(np.bitwise_xor, (getattr(p, name) for p in parts)) for name in "ab"]
        free = [p.c for p in parts[:-1]]
        if item.kind is TripleKind.PRODUCT:
            last = added[0] * added[1] - reduce(np.add, free)
        elif item.kind is TripleKind.CONJUNCTION:
            last = (xored[0] & xored[1]) ^ reduce(np.bitwise_xor, free)
        else:
            last = xored[0] - reduce(np.add, free)
        parts[-1] = TriplePart(parts[-1].a, parts[-1].b, last)
        if self._rank == 0:
            self._world.items.append(item)
            for rank, part in enumerate(parts):
                self._world.parts[rank].append(part)
        return cast(P, parts[self._rank])

    def _part(self, rank: int, item: Triples) -> TriplePart:
        part = item.expand(self._seeds[rank], self._index, None)
        if self._unmasked == (item.kind, rank):
            zeros = np.zeros_like(part.a)
            return TriplePart(zeros, zeros, part.c)
        return part


def run(
    monkeypatch: pytest.MonkeyPatch,
    method: MaxMethod,
    totals: Sequence[int],
    unmasked: tuple[TripleKind, int] | None = None,
) -> World:
    """One run on ROWS rows of the same totals."""
    flat = np.tile(np.array(totals, dtype=np.int64), ROWS).view(np.uint64)
    masks = [SeedStream(new_seed()).words(flat.size) for _ in range(PARTIES - 1)]
    world = World([*masks, flat - np.add.reduce(masks)])
    seeds = [new_seed() for _ in range(PARTIES)]
    opening = binding.Communicator.all_reduce

    def noted(self: Any, input: Any, *args: Any, **kwargs: Any) -> Any:
        if self.get_rank() == 0:
            tensors = input if isinstance(input, list) else [input]
            world.shapes.append([tuple(t.shape) for t in tensors])
        return opening(self, input, *args, **kwargs)

    def program(channel: Any, _: Preprocessing) -> Words:
        exchange: Callable[[bytes], Sequence[bytes]] = channel.exchange

        def exchanged(payload: bytes) -> Sequence[bytes]:
            received = exchange(payload)
            if channel.rank == 0:
                world.payloads.append([np.frombuffer(p, np.uint64) for p in received])
            return received

        channel.exchange = exchanged
        preprocessing = Dealt(seeds, channel.rank, world, unmasked)
        bound: Channel = channel
        return CryptenArgmax(method).run(world.inputs[channel.rank], CLASSES, bound, preprocessing)

    with monkeypatch.context() as patch:
        patch.setattr(binding.Communicator, "all_reduce", noted)
        world.labels = run_committee(PARTIES, program)
    # A run that is broken on purpose is still right: what is tested is the view alone.
    assert np.add.reduce(world.labels).tolist() == [int(np.argmax(totals))] * ROWS
    assert len(world.items) == len(world.payloads) == len(world.shapes) > 0
    return world


def by_row(words: Words, shape: tuple[int, ...]) -> np.ndarray:
    """The words of an opened tensor as rows by positions."""
    (axis,) = [i for i, size in enumerate(shape) if size == ROWS]
    return np.moveaxis(words.reshape(shape), axis, 0).reshape(ROWS, -1)


def view(world: World, coalition: Collection[int]) -> View:
    """Everything that the coalition sees or computes, by name, as rows by positions."""
    seen: View = {}
    for name, shares, width in (("input", world.inputs, CLASSES), ("label", world.labels, 1)):
        known = [shares[rank].reshape(ROWS, width) for rank in coalition]
        for rank, words in zip(coalition, known, strict=True):
            seen[f"{name} of {rank}"] = words
        seen[f"{name}s together"] = np.add.reduce(known)
    others = [rank for rank in range(PARTIES) if rank not in coalition]
    for number, (item, shapes, payloads) in enumerate(
        zip(world.items, world.shapes, world.payloads, strict=True)
    ):
        arithmetic = item.kind is TripleKind.PRODUCT
        combine = np.add if arithmetic else np.bitwise_xor
        parts = [world.parts[rank][number] for rank in coalition]
        # Tensors are opened one after the other, each under the mask of its own.
        masks = [combine.reduce([p.a for p in parts]), combine.reduce([p.b for p in parts])]
        start = 0
        for tensor, shape in enumerate(shapes):
            size = math.prod(shape)
            cut = slice(start, start + size)
            start += size
            opened = combine.reduce([p[cut] for p in payloads])
            name = f"round {number}, tensor {tensor}: "
            seen[name + "opening"] = by_row(opened, shape)
            own = masks[tensor].reshape(-1)
            seen[name + "without own masks"] = by_row(combine(opened, own), shape)
            for rank in others:
                seen[name + f"payload of {rank}"] = by_row(payloads[rank][cut], shape)
        for rank, part in zip(coalition, parts, strict=True):
            for letter, words in (("a", part.a), ("b", part.b), ("c", part.c)):
                seen[f"round {number}: {letter} of {rank}"] = by_row(words, shapes[0])
    return seen


def bit_counts(words: np.ndarray) -> np.ndarray:
    """For each bit of each position, in how many rows it is set."""
    octets = np.ascontiguousarray(words).view(np.uint8).reshape(ROWS, -1)
    counts: np.ndarray = np.unpackbits(octets, axis=1).sum(axis=0, dtype=np.int64)
    return counts


def differing_bits(one: View, other: View) -> list[str]:
    """Names under which some bit's mean differs by more than chance allows."""
    assert {k: v.shape for k, v in one.items()} == {k: v.shape for k, v in other.items()}
    comparisons = sum(64 * words.shape[1] for words in one.values())
    # Hoeffding for two means of R samples: P(|difference| >= t) <= 2 exp(-R t^2).
    limit = ROWS * math.sqrt(math.log(2 * comparisons / FAILURE) / ROWS)
    return [
        name
        for name in one
        if np.abs(bit_counts(one[name]) - bit_counts(other[name])).max() > limit
    ]


def differing_bytes(one: View, other: View) -> list[str]:
    """Kinds of things seen whose histograms of bytes differ by more than chance allows."""

    def histograms(seen: View) -> dict[str, np.ndarray]:
        found: dict[str, np.ndarray] = {}
        for name, words in seen.items():
            kind = name.rpartition(": ")[2]
            octets = np.ascontiguousarray(words).view(np.uint8).reshape(-1)
            found[kind] = found.get(kind, 0) + np.bincount(octets, minlength=256)
        return found

    left, right = histograms(one), histograms(other)
    return [kind for kind in left if _two_sample(left[kind], right[kind]) < FAILURE / len(left)]


def _two_sample(left: np.ndarray, right: np.ndarray) -> float:
    used = (left + right) > 0
    if used.sum() < 2:
        return 1.0
    pvalue: float = stats.chi2_contingency(np.stack([left[used], right[used]])).pvalue
    return pvalue


@pytest.fixture(scope="module")
def worlds() -> dict[MaxMethod, tuple[World, World]]:
    return {}


@pytest.fixture(params=MaxMethod)
def pair(
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    worlds: dict[MaxMethod, tuple[World, World]],
) -> tuple[World, World]:
    """Runs in two worlds, made once per method."""
    method = request.param
    if method not in worlds:
        first = run(monkeypatch, method, LANDSLIDE_FIRST)
        worlds[method] = first, run(monkeypatch, method, LANDSLIDE_LAST)
    return worlds[method]


@pytest.mark.parametrize("coalition", COALITIONS, ids=str)
def test_two_parties_see_the_same_in_both_worlds(
    pair: tuple[World, World], coalition: tuple[int, int]
) -> None:
    first, last = (view(world, coalition) for world in pair)
    assert differing_bits(first, last) == []
    assert differing_bytes(first, last) == []


class TestTheTestCanFail:
    """The same comparison, on views that do leak."""

    def test_a_view_with_the_third_share_gives_the_totals_away(
        self, pair: tuple[World, World]
    ) -> None:
        first, last = (view(world, (0, 1, 2)) for world in pair)
        found = differing_bits(first, last)
        assert {"inputs together", "labels together"} <= set(found)
        assert any("without own masks" in name for name in found)
        assert "inputs together" in differing_bytes(first, last)

    @pytest.mark.parametrize("coalition", COALITIONS, ids=str)
    @pytest.mark.parametrize("kind", TripleKind, ids=lambda kind: kind.name)
    def test_preprocessing_without_masks_is_noticed(
        self, monkeypatch: pytest.MonkeyPatch, kind: TripleKind, coalition: tuple[int, int]
    ) -> None:
        (third,) = set(range(PARTIES)) - set(coalition)
        first, last = (
            view(run(monkeypatch, MaxMethod.PAIRWISE, totals, (kind, third)), coalition)
            for totals in (LANDSLIDE_FIRST, LANDSLIDE_LAST)
        )
        found = differing_bits(first, last)
        assert found
        assert all("without own masks" in name or "payload" in name for name in found)

    def test_one_bit_at_one_position_is_enough(self, pair: tuple[World, World]) -> None:
        first, last = (view(world, (0, 1)) for world in pair)
        name = next(name for name in first if "payload" in name)
        leaky = last[name].copy()
        leaky[:, 0] |= np.uint64(1)
        assert differing_bits(first, {**last, name: leaky}) == [name]
