"""A level's preprocessing: the parts of all parties are what they should be, those of fewer
nothing."""

from __future__ import annotations

import dataclasses
import gc
import tracemalloc
from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from mpc_vote.argmax.table.level import (
    DIGIT_BITS,
    MAX_BITS,
    MAX_GROUP,
    MIN_BITS,
    LevelPart,
    LevelTables,
    pair_indices,
)
from mpc_vote.mpc.prg import new_seed
from tests.unit.argmax import dealt
from tests.unit.argmax.dealt import deal, seeds_for

SHAPES = [
    LevelTables(vectors, group, bits, label_bits, labelled, last)
    for (vectors, group, bits, label_bits), labelled, last in product(
        [
            (9, 2, 3, 1),
            (6, 3, 12, 2),
            (9, 2, 13, 1),
            (5, 3, 14, 2),
            (7, 5, 17, 9),
            (4, 10, 25, 4),
            (3, 17, 31, 40),
        ],
        [False, True],
        [False, True],
    )
]
every_shape = pytest.mark.parametrize("level", SHAPES, ids=str)

any_level = st.builds(
    LevelTables,
    vectors=st.integers(1, 6),
    group=st.integers(2, 12),
    bits=st.integers(MIN_BITS, MAX_BITS),
    label_bits=st.integers(1, 64),
    labelled=st.booleans(),
    last=st.booleans(),
)


def arrays(part: LevelPart) -> Iterator[npt.NDArray[Any]]:
    for field in dataclasses.fields(part):
        value = getattr(part, field.name)
        yield from value if isinstance(value, tuple) else [] if value is None else [value]


def is_valid(level: LevelTables, parts: list[LevelPart]) -> dict[str, bool]:
    """By what is corrected, whether the parts combine to it."""
    secrets = dealt.read(level, parts)
    coefficients = dealt.coefficients_of(level, secrets)
    tables = dealt.tables_together(parts) & dealt.used_bits(level)
    wins = level.win_bits
    chosen = [
        np.array_equal(dealt.added(shares, width), wanted & np.uint64((1 << width) - 1))
        for shares, width, wanted in zip(
            zip(*[part.chosen for part in parts], strict=True),
            level.widths,
            dealt.chosen_of(level, secrets),
            strict=True,
        )
    ]
    return {
        "tables": np.array_equal(tables, dealt.tables_of(level, secrets)),
        "coefficients": np.array_equal(
            dealt.added([part.coefficients for part in parts], wins),
            dealt.modulo(coefficients, wins),
        ),
        "chosen": all(chosen),
    }


ALL_RIGHT = dict.fromkeys(["tables", "coefficients", "chosen"], True)
ALL_WRONG = dict.fromkeys(ALL_RIGHT, False)
LARGE = LevelTables(vectors=40, group=10, bits=25, label_bits=7, labelled=True, last=False)


class TestParts:
    @settings(max_examples=80)
    @given(level=any_level, parties=st.integers(2, 5), index=st.integers(0, 2**40))
    def test_they_combine_to_the_truth(self, level: LevelTables, parties: int, index: int) -> None:
        assert is_valid(level, deal(level, seeds_for(parties), index)) == ALL_RIGHT

    @pytest.mark.parametrize("parties", [2, 3, 5])
    def test_without_the_correction_they_do_not(self, parties: int) -> None:
        # Thousands of entries would all have to be right by chance.
        parts = [LARGE.expand(seed, 0, None) for seed in seeds_for(parties)]
        assert is_valid(LARGE, parts) == ALL_WRONG

    @pytest.mark.parametrize("parties", [2, 3, 5])
    def test_with_another_items_correction_they_do_not(self, parties: int) -> None:
        seeds = seeds_for(parties)
        parts = [LARGE.expand(seed, 7, None) for seed in seeds[:-1]]
        parts.append(LARGE.expand(seeds[-1], 7, LARGE.correct(seeds, 8)))
        assert is_valid(LARGE, parts) == ALL_WRONG

    @pytest.mark.parametrize("missing", range(3))
    def test_without_any_one_party_they_do_not(self, missing: int) -> None:
        parts = deal(LARGE, seeds_for(3))
        del parts[missing]
        assert is_valid(LARGE, parts) == ALL_WRONG

    @every_shape
    def test_their_arrays_have_the_shape_of_the_level(self, level: LevelTables) -> None:
        cells, pairs = (level.group, level.vectors), (level.pairs, level.vectors)
        digits = len(level.digits)
        for part in deal(level, seeds_for(3)):
            assert part.r.shape == part.s.shape == cells
            assert (part.q is not None) == level.labelled
            assert part.q is None or part.q.shape == cells
            assert [table.shape for table in part.tables] == [pairs] * (2 * digits - 1)
            assert part.coefficients.shape == (2 ** (digits - 1) + 2**digits - 1, *pairs)
            carried = int(not level.last) + int(level.labelled)
            assert len(part.chosen) == 1 + carried
            assert {t.shape for t in part.chosen} == {(2**level.win_bits, *cells)}

    def test_nothing_secret_is_shown(self) -> None:
        for part in deal(LARGE, seeds_for(2)):
            assert f"{part!r} {part}" == "LevelPart(hidden) LevelPart(hidden)"


class TestFlips:
    def test_they_are_fair_coins(self) -> None:
        secrets = dealt.read(LARGE, deal(LARGE, seeds_for(2)))
        for flips in (*secrets.alpha, *secrets.beta):
            # 1,800 coins. Hoeffding: wrong with probability below 2 exp(-2 * 160^2 / 1800) < 1e-12.
            assert abs(int(flips.sum()) - flips.size // 2) < 160

    @pytest.mark.parametrize("rank", range(3))
    def test_they_come_from_all_seeds_together(self, rank: int) -> None:
        """Who lacks one seed, whosever it is, can't foresee them; who has all can check them."""
        seeds = seeds_for(3)
        others = [*seeds[:rank], new_seed(), *seeds[rank + 1 :]]
        one, same, other = (dealt.read(LARGE, deal(LARGE, s)) for s in (seeds, seeds, others))
        assert np.array_equal(one.alpha, same.alpha) and np.array_equal(one.beta, same.beta)
        for mine, theirs in ((one.alpha, other.alpha), (one.beta, other.beta)):
            # Hoeffding, as above.
            assert abs(int((mine ^ theirs).sum()) - mine.size // 2) < 400

    def test_another_item_has_others(self) -> None:
        seeds = seeds_for(2)
        one, other = (dealt.read(LARGE, deal(LARGE, seeds, index)) for index in range(2))
        assert not np.array_equal(one.alpha, other.alpha)


def windows(part: LevelPart, size: int = 16) -> list[bytes]:
    """All strings of some bytes that were drawn for a part, wherever they start."""
    raws = [
        np.ascontiguousarray(array).tobytes()
        for array in (part.r, part.s, part.q, *part.tables, part.coefficients, *part.chosen)
        if array is not None
    ]
    return [raw[i : i + size] for raw in raws for i in range(len(raw) - size + 1)]


class TestUse:
    # Sixteen bytes have at least 16 * win_bits = 48 bits of chance in any of the arrays.
    SMALL = LevelTables(vectors=3, group=5, bits=17, label_bits=9, labelled=True, last=False)

    @pytest.mark.parametrize("rank", range(3))
    def test_two_items_and_two_sessions_have_nothing_in_common(self, rank: int) -> None:
        seeds = seeds_for(3)
        dealings = [(seeds, 0), (seeds, 1), (seeds, 2**32), (seeds_for(3), 0)]
        found = [windows(deal(self.SMALL, s, index)[rank]) for s, index in dealings]
        assert len(set().union(*found)) == sum(map(len, found)) > 5_000

    def test_the_parts_of_two_parties_have_nothing_in_common(self) -> None:
        found = [windows(part) for part in deal(self.SMALL, seeds_for(3))]
        assert len(set().union(*found)) == sum(map(len, found))

    def test_a_party_expands_the_same_part_again(self) -> None:
        seed = new_seed()
        one, other = (self.SMALL.expand(seed, 3, None) for _ in range(2))
        assert windows(one) == windows(other)


class TestSizes:
    @every_shape
    def test_a_correction_has_the_size_that_is_announced(self, level: LevelTables) -> None:
        assert len(level.correct(seeds_for(2), 0)) == level.correction_bytes

    @every_shape
    @pytest.mark.parametrize("excess", [-8, -1, 1, 8])
    def test_a_correction_of_another_size_is_refused(self, level: LevelTables, excess: int) -> None:
        seeds = seeds_for(2)
        correction = (level.correct(seeds, 0) + bytes(8))[: level.correction_bytes + excess]
        wanted = f"a correction of {len(correction)} bytes, not {level.correction_bytes}"
        with pytest.raises(ValueError, match=wanted):
            level.expand(seeds[-1], 0, correction)

    @every_shape
    def test_a_part_takes_the_memory_that_is_announced(self, level: LevelTables) -> None:
        for part in deal(level, seeds_for(2)):
            assert sum(array.nbytes for array in arrays(part)) == level.part_bytes

    @pytest.mark.parametrize("corrected", [False, True])
    @pytest.mark.parametrize("vectors", [200, 400])
    def test_a_part_keeps_nothing_else_in_memory(self, vectors: int, corrected: bool) -> None:
        level = dataclasses.replace(LARGE, vectors=vectors)
        seeds = seeds_for(2)
        correction = level.correct(seeds, 0)
        level.expand(seeds[1], 0, correction)
        gc.collect()
        tracemalloc.start()
        try:
            mine = bytes(bytearray(correction)) if corrected else None
            part = level.expand(seeds[1], 0, mine)
            del mine
            gc.collect()
            kept, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert part.coefficients.shape[-1] == vectors
        assert level.part_bytes <= kept < 1.01 * level.part_bytes + 8_192


class TestCorrections:
    def test_they_look_uniform_although_the_truth_does_not(self) -> None:
        """Wrong once in a thousand million."""
        last = new_seed()
        # Fields of whole bytes, so that no padding is counted.
        level = LevelTables(vectors=2, group=256, bits=25, label_bits=8, labelled=False, last=True)
        sent = np.frombuffer(level.correct([new_seed(), last], 0), np.uint8)
        assert stats.chisquare(np.bincount(sent, minlength=256)).pvalue > 1e-9
        parts = deal(level, seeds_for(2))
        open_table = dealt.added([part.chosen[0] for part in parts], 8).astype(np.uint8)
        counts = np.bincount(open_table.reshape(-1), minlength=256)
        assert stats.chisquare(counts).pvalue < 1e-9


class TestShape:
    @pytest.mark.parametrize("bits", range(MIN_BITS, MAX_BITS + 1))
    def test_digits_cover_the_low_bits_once_from_the_top(self, bits: int) -> None:
        level = dataclasses.replace(LARGE, bits=bits)
        at = bits - 1
        for shift, width in level.digits:
            assert shift + width == at
            assert 1 <= width <= DIGIT_BITS
            at = shift
        assert at == 0
        widths = [width for _, width in level.digits]
        assert max(widths) - min(widths) <= 1
        # The lowest, which has one table only, is not the narrowest.
        assert widths == sorted(widths)
        # A word holds a truth table and no more.
        found = [word.itemsize * 8 for _, word in level.tables]
        assert found == [max(8, 1 << width) for width in [*widths, *widths[:-1]]]

    @pytest.mark.parametrize("group", [2, 3, 4, 5, 8, 9, 10, 100, MAX_GROUP])
    def test_numbers_of_wins_fit_in_their_ring(self, group: int) -> None:
        level = dataclasses.replace(LARGE, group=group)
        assert 2 ** (level.win_bits - 1) < group <= 2**level.win_bits <= 256
        assert level.pairs == len(list(zip(*pair_indices(group), strict=True)))
        assert all(first < second for first, second in zip(*pair_indices(group), strict=True))
