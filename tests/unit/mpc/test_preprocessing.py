"""Dealt triples combine to what they stand for, only with the correction, and never come twice."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from mpc_vote.argmax.crypten.triples import TripleKind, TriplePart, Triples
from mpc_vote.mpc.in_process import LocalPreprocessing
from mpc_vote.mpc.preprocessing import PreprocessingPlan, Run
from mpc_vote.mpc.prg import new_seed

every_kind = pytest.mark.parametrize("kind", TripleKind, ids=lambda kind: kind.name)
every_committee = pytest.mark.parametrize("parties", [2, 3, 4, 5])

counts = st.integers(1, 40)
indices = st.integers(0, 2**40)


def deal(
    seeds: Sequence[bytes], index: int, item: Triples, *, corrected: bool = True
) -> list[TriplePart]:
    """All parties' parts; the last one's without its correction if asked."""
    correction = item.correct(seeds, index) if corrected else None
    free = [item.expand(seed, index, None) for seed in seeds[:-1]]
    return [*free, item.expand(seeds[-1], index, correction)]


def is_valid(kind: TripleKind, parts: Sequence[TriplePart]) -> np.ndarray:
    """For every element, whether the parts combine to what the kind promises."""
    added = {name: np.add.reduce([getattr(p, name) for p in parts]) for name in "abc"}
    xored = {name: np.bitwise_xor.reduce([getattr(p, name) for p in parts]) for name in "abc"}
    if kind is TripleKind.PRODUCT:
        valid: np.ndarray = added["c"] == added["a"] * added["b"]
    elif kind is TripleKind.CONJUNCTION:
        valid = xored["c"] == xored["a"] & xored["b"]
    else:
        valid = (added["c"] == xored["a"]) & (xored["a"] <= 1)
    return valid


def seeds_for(parties: int) -> list[bytes]:
    return [new_seed() for _ in range(parties)]


@every_kind
@every_committee
class TestParts:
    @settings(max_examples=20)
    @given(count=counts, index=indices)
    def test_they_combine_to_valid_items(
        self, kind: TripleKind, parties: int, count: int, index: int
    ) -> None:
        parts = deal(seeds_for(parties), index, Triples(kind, count))
        assert all(p.a.shape == p.b.shape == p.c.shape == (count,) for p in parts)
        assert is_valid(kind, parts).all()

    @settings(max_examples=20)
    @given(count=counts, index=indices)
    def test_without_the_correction_they_do_not(
        self, kind: TripleKind, parties: int, count: int, index: int
    ) -> None:
        # An element is right by chance with probability 2^-64.
        parts = deal(seeds_for(parties), index, Triples(kind, count), corrected=False)
        assert not is_valid(kind, parts).any()

    @settings(max_examples=20)
    @given(pair=st.lists(indices, min_size=2, max_size=2, unique=True))
    def test_items_at_different_indices_have_no_word_in_common(
        self, kind: TripleKind, parties: int, pair: list[int]
    ) -> None:
        seeds, item = seeds_for(parties), Triples(kind, 64)
        first, second = (deal(seeds, index, item) for index in pair)
        for one, other in zip(first, second, strict=True):
            assert not set(one.c.tolist()) & set(other.c.tolist())
            # 64 coins agree with probability 2^-64.
            assert one.a.tolist() != other.a.tolist()

    def test_a_correction_of_another_item_is_of_no_use(
        self, kind: TripleKind, parties: int
    ) -> None:
        seeds, item = seeds_for(parties), Triples(kind, 16)
        free = [item.expand(seed, 7, None) for seed in seeds[:-1]]
        wrong = item.expand(seeds[-1], 7, item.correct(seeds, 8))
        assert not is_valid(kind, [*free, wrong]).any()

    def test_the_committee_in_one_process_takes_the_same_items(
        self, kind: TripleKind, parties: int
    ) -> None:
        seeds = seeds_for(parties)
        materials = [LocalPreprocessing(seeds, rank) for rank in range(parties)]
        for index in range(3):
            taken = [preprocessing.take(Triples(kind, 5)) for preprocessing in materials]
            for part, expected in zip(taken, deal(seeds, index, Triples(kind, 5)), strict=True):
                assert part.a.tolist() == expected.a.tolist()
                assert part.c.tolist() == expected.c.tolist()


def looks_uniform(octets: bytes) -> bool:
    """A chi-square test on bytes, wrong once in a thousand million."""
    observed = np.bincount(np.frombuffer(octets, np.uint8), minlength=256)
    return float(stats.chisquare(observed).pvalue) > 1e-9


@every_kind
def test_the_correction_is_masked_by_the_free_parts(kind: TripleKind) -> None:
    # 100 items under one seed of the last party: what it is sent looks uniform, although what it
    # stands for (a bit, or a conjunction that is rarely one) does not.
    item = Triples(kind, 100)
    last = new_seed()
    sent = [item.correct([new_seed(), last], index) for index in range(100)]
    assert looks_uniform(b"".join(sent))


def test_the_test_of_uniformity_sees_an_unmasked_conjunction() -> None:
    seeds, item = seeds_for(2), Triples(TripleKind.CONJUNCTION, 10_000)
    parts = deal(seeds, 0, item)
    assert not looks_uniform(np.bitwise_xor.reduce([p.c for p in parts]).tobytes())


def test_bits_are_bits() -> None:
    parts = deal(seeds_for(3), 0, Triples(TripleKind.BIT, 4_000))
    for part in parts:
        assert set(part.a.tolist()) == {0, 1}
    ones = int(np.bitwise_xor.reduce([p.a for p in parts]).sum())
    # Hoeffding: further from the middle with probability below 2 exp(-2 * 190^2 / 4000) < 3e-8.
    assert abs(ones - 2_000) < 190


def test_nothing_secret_is_shown() -> None:
    part = Triples(TripleKind.PRODUCT, 3).expand(new_seed(), 0, None)
    assert f"{part!r} {part}" == "TriplePart(hidden) TriplePart(hidden)"


@every_kind
@settings(max_examples=20)
@given(count=counts)
def test_sizes_are_as_announced(kind: TripleKind, count: int) -> None:
    item = Triples(kind, count)
    assert len(item.correct(seeds_for(2), 0)) == item.correction_bytes
    part = item.expand(new_seed(), 0, None)
    assert part.a.nbytes + part.b.nbytes + part.c.nbytes == item.part_bytes


@every_kind
@pytest.mark.parametrize("excess", [-8, -1, 1, 8])
def test_a_correction_of_another_size_is_refused(kind: TripleKind, excess: int) -> None:
    item, seeds = Triples(kind, 5), seeds_for(2)
    correction = (item.correct(seeds, 0) + bytes(8))[: item.correction_bytes + excess]
    with pytest.raises(ValueError, match=f"a correction of {40 + excess} bytes, not 40"):
        item.expand(seeds[-1], 0, correction)


def test_a_plan_is_its_runs_one_after_the_other() -> None:
    one, two, three = (Triples(TripleKind.BIT, count) for count in (1, 2, 3))
    plan = PreprocessingPlan((Run((one, two), 2), Run((three,), 1), Run((one,), 0)))
    assert list(plan) == [one, two, one, two, three]
    assert list(plan) == list(plan)
