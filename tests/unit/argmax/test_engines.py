"""The contract of every engine: the right labels, by the plan, in a transcript of fixed shape."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpc_vote.argmax.engine import Engine, label_bits, session_plan
from mpc_vote.argmax.registry import ENGINES, TABLE, EngineKind
from mpc_vote.argmax.table.engine import TableArgmax
from mpc_vote.argmax.table.level import MAX_BITS, MIN_BITS
from mpc_vote.mpc.channel import Channel
from mpc_vote.mpc.in_process import run_committee
from mpc_vote.mpc.preprocessing import Item, Preprocessing
from mpc_vote.mpc.prg import Words
from tests.unit.argmax.committee import Recorded, Recorder, Totals, record, share

CRYPTEN = [name for name in ENGINES if name is not TABLE]
# The table engine's rings, given by what has to fit: the least, ones with uneven digits, a common
# one, the largest.
BOUNDS = [1, 4_000, 100_000, (1 << 23) - 1, (1 << 29) - 1]
# They all take 100 classes, and fewer.
GROUPINGS = [(), (2,) * 7, (3, 4, 3, 3), (4, 25), (7, 3, 5), (10, 10), (10, 3, 2, 2), (256,)]


@dataclass(frozen=True)
class Case:
    """An engine in a committee, on rows of some number of classes."""

    name: EngineKind
    parties: int
    classes: int
    bound: int = 10**6
    groups: tuple[int, ...] = ()
    two_rounds: bool = False

    def __str__(self) -> str:
        groups = "in two rounds" if self.two_rounds else "x".join(map(str, self.groups))
        return f"{self.name}{groups}-{self.bound}-{self.parties}of{self.classes}"

    @property
    def engine(self) -> Engine:
        return self.name.make(self.name.ring_bits(self.bound), self.groups, self.two_rounds)

    def plan(self, rows: int) -> list[Item[Any]]:
        return self.engine.plan(rows, self.classes, self.parties)

    def record(self, totals: Totals) -> Recorded:
        return record(self.engine, self.parties, totals)


def table_cases() -> Iterator[Case]:
    for number, classes in enumerate([2, 3, 6, 10, 11, 17, 100]):
        for groups in GROUPINGS:
            parties = 2 + (number + len(groups)) % 4
            yield Case(TABLE, parties, classes, groups=groups)
    for number, bound in enumerate(BOUNDS):
        for groups in [(), (4, 3)]:
            yield Case(TABLE, 2 + number % 4, 10, bound, groups)
    for parties in (2, 3, 4, 5):
        yield Case(TABLE, parties, 10)
        yield Case(TABLE, parties, 11, groups=(4, 3))
    for number, classes in enumerate([2, 3, 6, 10, 11, 17, 100]):
        for bound in (1, 700, 10**6):
            yield Case(TABLE, 2 + number % 4, classes, bound, two_rounds=True)


def stock_cases() -> Iterator[Case]:
    """Fewer: they are slow, and slower with every party."""
    for name in CRYPTEN:
        for parties in (2, 3, 4, 5):
            yield Case(name, parties, 6)
        for classes in (10, 11, 17, 100):
            yield Case(name, 2, classes)


CASES = list(dict.fromkeys([*table_cases(), *stock_cases()]))
RUN_AGAIN = list(dict.fromkeys([*table_cases(), *(Case(name, 3, 4) for name in CRYPTEN)]))


def gallery(classes: int, top: int) -> dict[str, Totals]:
    """Rows of every sort, by name; they go through one run together."""
    rng = np.random.default_rng(11)
    few = 8 if classes < 50 else 1
    order = np.arange(classes)
    rows = {
        "random": rng.integers(-top, top, (few, classes), endpoint=True),
        "close": rng.integers(0, 3, (few, classes)),
        "ties": np.stack([np.full(classes, value) for value in (0, 7, -7, top, -top)]),
        "negative": rng.integers(-top, 0, (few, classes)),
        "equal rows": np.tile(rng.integers(-50, 50, classes), (few, 1)),
        "rising and falling": np.stack([order, -order, top - order, order - top]),
    }
    # One class against all others, at the ends of the range and by the least difference.
    picked = np.unique([0, classes // 2, classes - 1])
    ends = np.where(order == picked[:, None], top, -top)
    rows["extremes"] = np.concatenate([ends, -ends, ends // 2])
    rows["by one"] = np.concatenate([np.maximum(ends, top - 1), np.minimum(ends, -top + 1)])
    # Two classes tie above all others, also at the ends of a group.
    tied = np.array([(i, j) for i in picked for j in picked if i <= j])
    rows["tied winners"] = np.where((order == tied[:, :1]) | (order == tied[:, 1:]), top, top - 1)
    # All are within the engine's range.
    return {name: np.clip(values, -top, top) for name, values in rows.items()}


@dataclass(frozen=True)
class Exhibition:
    """A run on the gallery's rows."""

    case: Case
    groups: dict[str, Totals]
    rows: Totals
    run: Recorded


@pytest.fixture(scope="module", params=CASES, ids=str)
def shown(request: pytest.FixtureRequest) -> Exhibition:
    case: Case = request.param
    groups = gallery(case.classes, case.engine.largest_total(case.classes))
    rows = np.concatenate(list(groups.values()))
    return Exhibition(case, groups, rows, case.record(rows))


class TestEveryEngine:
    def test_the_label_is_the_first_largest_total(self, shown: Exhibition) -> None:
        labels = iter(shown.run.labels)
        got = {name: [next(labels) for _ in rows] for name, rows in shown.groups.items()}
        assert got == {name: rows.argmax(axis=1).tolist() for name, rows in shown.groups.items()}
        assert got["ties"] == [0] * 5

    def test_each_party_gets_a_share_of_each_label(self, shown: Exhibition) -> None:
        numbers = len(shown.rows) * shown.run.code.per_row
        assert [(s.shape, s.dtype) for s in shown.run.shares] == [
            ((numbers,), np.dtype(np.uint64))
        ] * shown.case.parties

    def test_the_plan_is_what_is_taken_and_in_its_order(self, shown: Exhibition) -> None:
        plan = shown.case.plan(len(shown.rows))
        assert plan
        assert shown.run.taken == [plan] * shown.case.parties

    def test_the_channel_counts_what_is_sent(self, shown: Exhibition) -> None:
        for traffic, sizes in zip(shown.run.traffic, shown.run.sizes, strict=True):
            assert traffic.rounds == len(sizes)
            assert traffic.bytes_sent == sum(sizes) * (shown.case.parties - 1)
            assert traffic.bytes_received == traffic.bytes_sent


@pytest.mark.parametrize("case", RUN_AGAIN, ids=str)
def test_the_transcript_depends_on_the_shape_only(case: Case) -> None:
    groups = gallery(case.classes, case.engine.largest_total(case.classes))
    one = case.record(np.concatenate([groups["random"], groups["extremes"]]))
    rows = len(one.shares[0]) // one.code.per_row
    other = case.record(np.zeros((rows, case.classes), dtype=np.int64))
    assert other.sizes == one.sizes
    assert other.taken == one.taken
    assert other.traffic == one.traffic
    # All parties send alike, and more rows take more bytes but no more rounds.
    assert one.sizes == [one.sizes[0]] * case.parties
    row = case.record(groups["close"][:1])
    assert row.rounds == one.rounds
    assert all(few < many for few, many in zip(row.sizes[0], one.sizes[0], strict=True))
    engine = case.engine
    if isinstance(engine, TableArgmax):
        levels = len(engine.levels(case.classes))
        assert one.rounds == {2 if case.two_rounds else 3 * levels}


every_engine = pytest.mark.parametrize("name", list(ENGINES))


@pytest.mark.parametrize(
    ("name", "parties"),
    [(TABLE, parties) for parties in (2, 3, 4, 5)] + [(name, 2) for name in CRYPTEN],
)
class TestSmallShapes:
    def test_one_class_needs_nothing(self, name: EngineKind, parties: int) -> None:
        case = Case(name, parties, 1)
        run = case.record(np.array([[5], [-5], [0]]))
        assert run.labels == [0, 0, 0]
        assert run.rounds == {0}
        assert run.taken == [case.plan(3)] * parties == [[]] * parties

    def test_one_row_of_three(self, name: EngineKind, parties: int) -> None:
        case = Case(name, parties, 3)
        run = case.record(np.array([[3, 1, 4]]))
        assert run.labels == [2]
        assert run.taken == [case.plan(1)] * parties

    def test_two_classes(self, name: EngineKind, parties: int) -> None:
        case = Case(name, parties, 2)
        top = case.engine.largest_total(2)
        run = case.record(
            np.array([[0, 0], [0, 1], [1, 0], [-1, -2], [-top, top], [top, -top], [-2, -1]])
        )
        assert run.labels == [0, 1, 0, 0, 1, 0, 1]
        assert run.taken == [case.plan(7)] * parties


@every_engine
def test_the_totals_are_left_alone(name: EngineKind) -> None:
    engine = Case(name, 2, 4).engine
    shares = share(np.array([[1, 2, 3, 4], [4, 3, 2, 1]]), 2, engine.ring_bits)
    before = [words.copy() for words in shares]
    run_committee(2, lambda channel, deal: engine.run(shares[channel.rank], 4, channel, deal))
    assert np.array_equal(shares, before)


@every_engine
def test_a_session_is_its_blocks_one_after_the_other(name: EngineKind) -> None:
    """Several runs on one channel and one preprocessing, as the service does it."""
    engine = Case(name, 3, 4).engine
    rows = np.random.default_rng(5).integers(-1_000, 1_000, (19, 4))
    blocks = [rows[:8], rows[8:16], rows[16:]]
    shares = [share(block, 3, engine.ring_bits) for block in blocks]

    def program(channel: Channel, preprocessing: Preprocessing) -> tuple[list[Words], Recorder]:
        recorder = Recorder(channel, preprocessing)
        return [engine.run(s[channel.rank], 4, recorder, recorder) for s in shares], recorder

    results = run_committee(3, program)
    mask = np.uint64((1 << label_bits(4)) - 1)
    by_block = zip(*[of_rank for of_rank, _ in results], strict=True)
    labels = [np.add.reduce(of_block) & mask for of_block in by_block]
    assert np.concatenate(labels).tolist() == rows.argmax(axis=1).tolist()
    plan = [item for block in blocks for item in engine.plan(len(block), 4, 3)]
    assert [recorder.taken for _, recorder in results] == [plan] * 3


@every_engine
@pytest.mark.parametrize("classes", [1, 2, 10, 100])
def test_a_sessions_plan_cuts_its_rows_into_blocks(name: EngineKind, classes: int) -> None:
    engine = Case(name, 2, classes).engine
    block = engine.block_rows(classes)
    assert block > 0
    for rows in (0, 1, block - 1, block, block + 1, 3 * block, 3 * block + 2):
        sizes = [block] * (rows // block) + ([rows % block] if rows % block else [])
        items = [item for size in sizes for item in engine.plan(size, classes, 2)]
        assert list(session_plan(engine, rows, classes, 2)) == items


@st.composite
def tables(draw: st.DrawFn) -> Case:
    """Any table engine, with any groups that take its classes."""
    classes = draw(st.integers(1, 30))
    groups: list[int] = []
    left = classes
    while left > 1:
        groups.append(draw(st.integers(2, max(2, left))))
        left = -(-left // groups[-1])
    if draw(st.booleans()):
        groups = []
    bits = draw(st.integers(MIN_BITS, MAX_BITS))
    bound, two_rounds = (1 << bits - 2) - 1, not groups and draw(st.booleans())
    return Case(TABLE, draw(st.integers(2, 5)), classes, bound, tuple(groups), two_rounds)


stocks = st.builds(Case, st.sampled_from(CRYPTEN), st.integers(2, 4), st.integers(1, 12))


def check(case: Case, data: st.DataObject) -> None:
    """A run on drawn totals."""
    rows = data.draw(st.integers(1, 5))
    top = case.engine.largest_total(case.classes)
    near = min(2, top)
    values = st.sampled_from([-top, top, top - 1]) | st.integers(-top, top)
    values |= st.integers(-near, near)
    size = rows * case.classes
    cells = data.draw(st.lists(values, min_size=size, max_size=size))
    totals = np.array(cells, dtype=np.int64).reshape(rows, case.classes)
    run = case.record(totals)
    assert run.labels == totals.argmax(axis=1).tolist()
    assert run.taken == [case.plan(rows)] * case.parties


@settings(max_examples=150)
@given(tables(), st.data())
def test_any_table_engine_finds_the_winners(case: Case, data: st.DataObject) -> None:
    check(case, data)


@settings(max_examples=8)
@given(stocks, st.data())
def test_any_stock_engine_finds_the_winners(case: Case, data: st.DataObject) -> None:
    check(case, data)


class TestRings:
    @every_engine
    @settings(max_examples=40)
    @given(bound=st.integers(0, (1 << 29) - 1), classes=st.integers(1, 1_000))
    def test_a_ring_for_a_bound_takes_all_totals_up_to_it(
        self, name: EngineKind, bound: int, classes: int
    ) -> None:
        engine = name.make(name.ring_bits(bound))
        assert engine.ring_bits == name.ring_bits(bound)
        assert engine.largest_total(classes) >= bound

    @settings(max_examples=40)
    @given(bound=st.integers(1, (1 << 29) - 1))
    def test_the_table_engines_ring_is_the_least(self, bound: int) -> None:
        bits = TABLE.ring_bits(bound)
        assert bits == MIN_BITS or TableArgmax(bits - 1).largest_total(2) < bound

    @pytest.mark.parametrize("name", CRYPTEN)
    def test_a_stock_engine_has_one_ring_and_no_groups(self, name: EngineKind) -> None:
        with pytest.raises(ValueError, match=f"{name.name} has a ring of 64 bits, no groups"):
            name.make(25)
        with pytest.raises(ValueError, match=f"{name.name} has a ring of 64 bits, no groups"):
            name.make(64, (10,))
        with pytest.raises(ValueError, match=f"{name.name} has a ring of 64 bits, no groups"):
            name.make(64, two_rounds=True)

    @pytest.mark.parametrize("classes", [1, 2, 3, 4, 5, 8, 9, 10, 16, 17, 256, 257, 1_000])
    def test_labels_fit_in_their_bits_and_in_no_fewer(self, classes: int) -> None:
        bits = label_bits(classes)
        assert classes - 1 < 2**bits
        assert bits == 1 or classes - 1 >= 2 ** (bits - 1)
