"""The table engine's figures and shapes, and the choice of its groups."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpc_vote.argmax.engine import Schedule, label_bits
from mpc_vote.argmax.table.engine import TableArgmax
from mpc_vote.argmax.table.grouping import choose_groups, choose_schedule
from mpc_vote.argmax.table.level import MAX_BITS, MAX_GROUP, MIN_BITS, LevelTables
from mpc_vote.argmax.table.marks import MAX_MARKED
from tests.unit.argmax.committee import Recorded, record

ROWS = 500


def right_run(engine: TableArgmax, rows: int, classes: int, parties: int = 2) -> Recorded:
    """A run on random totals whose labels are right."""
    top = engine.largest_total(classes)
    totals = np.random.default_rng(3).integers(-top, top, (rows, classes), endpoint=True)
    run = record(engine, parties, totals)
    assert run.labels == totals.argmax(axis=1).tolist()
    return run


class TestFigures:
    @pytest.mark.parametrize("parties", [2, 3, 5])
    def test_ten_classes_take_three_rounds_and_76_bytes_a_row(self, parties: int) -> None:
        run = right_run(TableArgmax(25), ROWS, 10, parties)
        assert run.rounds == {3}
        for traffic in run.traffic:
            per_row = traffic.bytes_sent / (parties - 1) / ROWS
            # 10 totals of 25 bits, 45 comparisons of 7 bits, 10 numbers of wins of 4 bits.
            assert per_row == pytest.approx((10 * 25 + 45 * 7 + 10 * 4) / 8, rel=0.01)
            assert per_row <= 100

    def test_ten_classes_take_three_kilobytes_a_row_from_the_dealer(self) -> None:
        corrections = sum(item.correction_bytes for item in TableArgmax(25).plan(ROWS, 10, 3))
        assert 3_000 <= corrections / ROWS <= 3_500

    @pytest.mark.parametrize("parties", [2, 3, 5])
    def test_ten_classes_in_a_small_ring_take_at_most_40_bytes_a_row(self, parties: int) -> None:
        for two_rounds, digits in ((False, 4), (True, 0)):
            run = right_run(TableArgmax(13, two_rounds=two_rounds), ROWS, 10, parties)
            assert run.rounds == {2 if two_rounds else 3}
            for traffic in run.traffic:
                per_row = traffic.bytes_sent / (parties - 1) / ROWS
                # 10 totals of 13 bits, 45 comparisons of 3 bits, 10 numbers of wins of 4 bits.
                assert per_row == pytest.approx((10 * 13 + 45 * 3 + 10 * digits) / 8, rel=0.01)
                assert per_row <= 40

    @pytest.mark.parametrize(
        ("bits", "two_rounds", "most"),
        [(11, False, 735), (12, False, 915), (13, False, 1_275), (13, True, 1_310)],
    )
    def test_the_dealer_sends_less_in_a_small_ring(
        self, bits: int, two_rounds: bool, most: int
    ) -> None:
        items = TableArgmax(bits, two_rounds=two_rounds).plan(ROWS, 10, 3)
        assert sum(item.correction_bytes for item in items) <= most * ROWS

    def test_two_rounds_send_a_number_for_each_class_to_the_coordinator(self) -> None:
        shares = right_run(TableArgmax(13, two_rounds=True), ROWS, 10).shares
        code = TableArgmax(13, two_rounds=True).label_code(10)
        # Ten numbers modulo 11 in 4 bits each; three rounds send two bytes.
        assert [len(code.pack(share)) for share in shares] == [5 * ROWS] * 2

    def test_a_hundred_classes_in_tens_take_six_rounds(self) -> None:
        run = right_run(TableArgmax(25, (10, 10)), ROWS, 100)
        assert run.rounds == {6}

    def test_the_dealer_sends_the_same_whatever_the_number_of_parties(self) -> None:
        plans = [TableArgmax(25, (10, 10)).plan(ROWS, 100, parties) for parties in (2, 3, 10)]
        assert plans == [plans[0]] * 3

    @pytest.mark.parametrize(("groups", "pairs"), [((), 4_950), ((10, 10), 495), ((2,) * 7, 102)])
    def test_groups_save_comparisons(self, groups: tuple[int, ...], pairs: int) -> None:
        engine = TableArgmax(25, groups)
        assert engine.pairs(100) == pairs
        items = [item for item in engine.plan(ROWS, 100, 2) if isinstance(item, LevelTables)]
        assert sum(item.vectors * item.pairs for item in items) == ROWS * pairs


class TestLevels:
    @pytest.mark.parametrize(
        ("groups", "classes", "levels"),
        [
            ((), 1, []),
            ((), 10, [(1, 10)]),
            ((), MAX_GROUP, [(1, MAX_GROUP)]),
            ((10, 10), 100, [(10, 10), (1, 10)]),
            ((10, 10), 91, [(10, 10), (1, 10)]),
            ((10, 10), 11, [(2, 10), (1, 2)]),
            ((10, 10), 7, [(1, 7)]),
            ((10, 10), 1, []),
            ((4, 3), 11, [(3, 4), (1, 3)]),
            ((2, 2, 2, 2, 2), 17, [(9, 2), (5, 2), (3, 2), (2, 2), (1, 2)]),
        ],
    )
    def test_groups_meet_until_one_is_left(
        self, groups: tuple[int, ...], classes: int, levels: list[tuple[int, int]]
    ) -> None:
        assert TableArgmax(25, groups).levels(classes) == levels

    @pytest.mark.parametrize(
        ("groups", "classes", "left"), [((3,), 4, 2), ((10, 10), 101, 2), ((2, 2), 100, 25)]
    )
    def test_groups_that_leave_more_than_one_are_refused(
        self, groups: tuple[int, ...], classes: int, left: int
    ) -> None:
        engine = TableArgmax(25, groups)
        for call in (engine.levels, engine.pairs, lambda c: engine.plan(5, c, 2)):
            with pytest.raises(ValueError, match=f"leave {left} of {classes} classes"):
                call(classes)

    def test_more_classes_than_a_group_holds_need_groups(self) -> None:
        classes = MAX_GROUP + 1
        with pytest.raises(ValueError, match=f"{classes} classes need groups"):
            TableArgmax(25).levels(classes)
        assert TableArgmax(25, (MAX_GROUP, 2)).levels(classes) == [(2, MAX_GROUP), (1, 2)]

    @pytest.mark.parametrize(
        ("groups", "classes"),
        [((), MAX_GROUP), ((MAX_GROUP, 2), MAX_GROUP + 1), ((4, 3), 11), ((4, 3), 9), ((5, 3), 11)],
    )
    def test_full_groups_and_nearly_empty_ones_find_the_winner(
        self, groups: tuple[int, ...], classes: int
    ) -> None:
        engine = TableArgmax(MIN_BITS, groups)
        top = engine.largest_total(classes)
        # All others at the least total: places without a class must not win over these.
        winners = [0, 1, classes // 2, classes - 2, classes - 1]
        totals = np.where(np.arange(classes) == np.array(winners)[:, None], 1 - top, -top)
        assert record(engine, 3, totals).labels == winners
        assert record(engine, 3, np.full((2, classes), -top)).labels == [0, 0]

    @pytest.mark.parametrize(
        ("groups", "classes"), [((4, 3), 9), ((4, 3), 11), ((5, 3), 11), ((2, 2, 2, 2), 11)]
    )
    def test_totals_out_of_range_make_no_label_out_of_range(
        self, groups: tuple[int, ...], classes: int
    ) -> None:
        """Any agent can share such in a round that is not verified: nobody else is at fault."""
        low = -(1 << (MIN_BITS - 1))
        totals = np.random.default_rng(5).integers(low, -low, (200, classes))
        # Below half of what fits, equal and not.
        totals[:4] = low // 2 - 1 - np.arange(4)[:, None]
        totals[4:8] = low // 2 - 1 - np.arange(classes)
        labels = record(TableArgmax(MIN_BITS, groups), 2, totals).labels
        assert all(label < classes for label in labels)


class TestChunks:
    @pytest.mark.parametrize(
        ("groups", "rows", "classes"), [((), 1_501, 10), ((), 15, 100), ((10, 10), 157, 100)]
    )
    def test_rows_that_take_several_items_find_their_winners(
        self, groups: tuple[int, ...], rows: int, classes: int
    ) -> None:
        engine = TableArgmax(17, groups)
        assert len(engine.plan(rows, classes, 2)) > len(engine.levels(classes))
        run = right_run(engine, rows, classes)
        assert run.rounds == {3 * len(engine.levels(classes))}

    @settings(max_examples=40)
    @given(rows=st.integers(1, 5_000), classes=st.integers(2, 100), data=st.data())
    def test_items_hold_all_vectors_of_a_level_in_pieces(
        self, rows: int, classes: int, data: st.DataObject
    ) -> None:
        groups = data.draw(st.sampled_from([(), (10, 10), (3, 34), (2,) * 7]))
        engine = TableArgmax(25, groups)
        items = iter(engine.plan(rows, classes, 2))
        levels = engine.levels(classes)
        for depth, (count, size) in enumerate(levels):
            left = count * rows
            while left:
                item = next(items)
                assert isinstance(item, LevelTables)
                assert item.group == size
                # The dealer takes items of up to 2^16 comparisons.
                assert item.vectors == 1 or item.vectors * item.pairs <= 1 << 16
                assert item.labelled == (depth > 0)
                assert item.last == (depth == len(levels) - 1)
                assert (item.bits, item.label_bits) == (25, label_bits(classes))
                left -= item.vectors
                assert left >= 0
        assert next(items, None) is None

    @settings(max_examples=40)
    @given(st.integers(1, 256))
    def test_a_block_has_whole_bytes_of_rows_and_bounded_comparisons(self, classes: int) -> None:
        engine = TableArgmax(25)
        rows = engine.block_rows(classes)
        assert rows % 8 == 0
        assert rows == 8 or rows * engine.pairs(classes) <= 1 << 21 or classes == 1


class TestConstructor:
    @pytest.mark.parametrize("bits", [0, MIN_BITS - 1, MAX_BITS + 1, 64])
    def test_a_ring_that_is_too_small_or_too_large_is_refused(self, bits: int) -> None:
        with pytest.raises(ValueError, match=f"{MIN_BITS} to {MAX_BITS} bits, not {bits}"):
            TableArgmax(bits)

    @pytest.mark.parametrize("groups", [(1,), (0,), (-3,), (10, 1), (MAX_GROUP + 1,)])
    def test_groups_that_make_no_contest_are_refused(self, groups: tuple[int, ...]) -> None:
        with pytest.raises(ValueError, match=f"2 to {MAX_GROUP} contestants"):
            TableArgmax(25, groups)

    def test_two_rounds_are_for_one_level(self) -> None:
        with pytest.raises(ValueError, match="two rounds are for one level, without groups"):
            TableArgmax(25, (5, 2), two_rounds=True)
        with pytest.raises(ValueError, match=f"at most {MAX_MARKED} classes, not 252"):
            TableArgmax(25, two_rounds=True).plan(3, MAX_MARKED + 1, 2)
        assert right_run(TableArgmax(13, two_rounds=True), 2, MAX_MARKED).rounds == {2}

    def test_two_rounds_yield_no_shares_that_stay_with_the_parties(self) -> None:
        engine: Any = TableArgmax(13, two_rounds=True)
        with pytest.raises(ValueError, match="two rounds yield no shares of labels"):
            engine.winners(np.zeros(4, np.uint64), 2, None, None)

    def test_its_name_says_how_it_groups(self) -> None:
        assert TableArgmax(25).name == "table all pairs"
        assert TableArgmax(25, [10, 5, 2]).name == "table 10x5x2"
        assert TableArgmax(25, two_rounds=True).name == "table two rounds"

    @pytest.mark.parametrize("bits", [MIN_BITS, 25, MAX_BITS])
    def test_the_largest_totals_keep_the_sign_of_their_difference(self, bits: int) -> None:
        assert 2 * TableArgmax(bits).largest_total(10) < 1 << (bits - 1)

    @pytest.mark.parametrize("groups", [(), (4, 3), (2, 3, 2)])
    @pytest.mark.parametrize("wide", [8, 20, 40])
    def test_labels_can_be_shared_in_a_larger_ring(
        self, groups: tuple[int, ...], wide: int
    ) -> None:
        engine = TableArgmax(17, groups, label_bits=wide)
        assert engine.label_bits(11) == wide
        totals = np.random.default_rng(4).integers(-9, 9, (300, 11))
        shares = record(engine, 3, totals).shares
        together = np.add.reduce(shares) & np.uint64((1 << wide) - 1)
        assert together.tolist() == totals.argmax(axis=1).tolist()
        assert all(int(share.max()) >> (wide - 1) == 1 for share in shares)

    @pytest.mark.parametrize("groups", [(), (4, 3)])
    def test_label_shares_are_reduced(self, groups: tuple[int, ...]) -> None:
        shares = right_run(TableArgmax(17, groups), 300, 11, 3).shares
        assert all(int(share.max()) < 1 << label_bits(11) for share in shares)


class TestPlanner:
    @settings(max_examples=200)
    @given(
        rows=st.integers(1, 100_000),
        classes=st.integers(1, 1_000),
        parties=st.integers(2, 10),
        round_trip=st.floats(0, 1),
    )
    def test_the_groups_are_ones_that_the_engine_takes(
        self, rows: int, classes: int, parties: int, round_trip: float
    ) -> None:
        groups = choose_groups(rows, classes, parties, round_trip)
        levels = TableArgmax(25, groups).levels(classes)
        # No level is without work, and none that was chosen is left out.
        assert len(levels) == (len(groups) or min(1, classes - 1))

    @settings(max_examples=200)
    @given(
        bits=st.integers(MIN_BITS, MAX_BITS),
        rows=st.integers(1, 100_000),
        classes=st.integers(1, 1_000),
        round_trip=st.floats(0, 1),
    )
    def test_the_schedule_is_one_that_the_engine_takes(
        self, bits: int, rows: int, classes: int, round_trip: float
    ) -> None:
        schedule = choose_schedule(bits, rows, classes, 3, round_trip)
        engine = TableArgmax(bits, schedule.groups, two_rounds=schedule.two_rounds)
        assert engine.block_rows(classes)
        if not schedule.two_rounds:
            assert schedule.groups == choose_groups(rows, classes, 3, round_trip, bits)

    @pytest.mark.parametrize(("round_trip", "two_rounds"), [(0, False), (0.02, True), (0.2, True)])
    @pytest.mark.parametrize("bits", [13, 25])
    def test_far_parties_save_a_round(self, bits: int, round_trip: float, two_rounds: bool) -> None:
        assert choose_schedule(bits, 500, 10, 3, round_trip) == Schedule((), two_rounds)

    def test_more_rows_are_worth_more_rounds(self) -> None:
        assert choose_schedule(13, 10, 100, 3, 0.02).two_rounds
        assert choose_schedule(13, 10_000, 100, 3, 0.02).groups

    @pytest.mark.parametrize("round_trip", [0, 0.001, 0.002, 0.02, 0.2])
    @pytest.mark.parametrize("rows", [1, 100, 500])
    def test_ten_classes_meet_at_once(self, rows: int, round_trip: float) -> None:
        assert choose_groups(rows, 10, 3, round_trip) == ()

    @pytest.mark.parametrize("rows", [1, 8, 50, 500])
    @pytest.mark.parametrize("classes", [17, 50, 100, 300, 1_000])
    def test_the_farther_the_parties_the_fewer_the_levels(self, rows: int, classes: int) -> None:
        engines = [
            TableArgmax(25, choose_groups(rows, classes, 3, round_trip))
            for round_trip in (0.002, 0.005, 0.02, 0.05, 0.1, 0.3, 1.0)
        ]
        depths = [len(engine.levels(classes)) for engine in engines]
        assert depths == sorted(depths, reverse=True)

    def test_distance_and_rows_decide(self) -> None:
        def depth(rows: int, round_trip: float) -> int:
            groups = choose_groups(rows, 100, 3, round_trip, bits=13)
            return len(TableArgmax(13, groups).levels(100))

        assert depth(rows=10, round_trip=0.3) == 1
        assert depth(rows=500, round_trip=0.02) == 2
        assert depth(rows=10_000, round_trip=0.001) == 3
