"""What every method of CrypTen's argmax owes the committee: the right label, shared afresh."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from mpc_vote.argmax.channel import Channel
from mpc_vote.argmax.local import run_committee
from mpc_vote.argmax.material import Item, Material, Part
from mpc_vote.argmax.stock import MaxMethod, StockArgmax
from mpc_vote.csprng import SeedStream, Words, new_seed

CLASSES = 6


@dataclass
class Run:
    """A committee's run and all that passed."""

    shares: list[Words]
    taken: list[list[Item]]
    sent: list[list[bytes]]
    rounds: set[int]

    @property
    def labels(self) -> list[int]:
        return np.add.reduce(self.shares).tolist()


class Recorder:
    """A material and a channel that note what goes through them."""

    def __init__(self, channel: Channel, material: Material) -> None:
        self._channel, self._material = channel, material
        self.rank, self.size, self.traffic = channel.rank, channel.size, channel.traffic
        self.previous_stream = channel.previous_stream
        self.next_stream = channel.next_stream
        self.taken: list[Item] = []
        self.sent: list[bytes] = []

    def exchange(self, payload: bytes) -> Sequence[bytes]:
        self.sent.append(payload)
        return self._channel.exchange(payload)

    def announce(self, items: Sequence[Item]) -> None:
        self._material.announce(items)

    def take(self, item: Item) -> Part:
        self.taken.append(item)
        return self._material.take(item)


def share(totals: np.ndarray, parties: int) -> list[Words]:
    """A fresh sharing modulo 2^64."""
    flat = np.ascontiguousarray(totals, dtype=np.int64).reshape(-1).view(np.uint64)
    masks = [SeedStream(new_seed()).words(flat.size) for _ in range(parties - 1)]
    return [*masks, flat - np.add.reduce(masks)]


def argmax(method: MaxMethod, parties: int, totals: np.ndarray) -> Run:
    """Runs a committee on rows of totals."""
    shares = share(totals, parties)

    def program(channel: Channel, material: Material) -> tuple[Words, Recorder]:
        recorder = Recorder(channel, material)
        labels = StockArgmax(method).run(shares[channel.rank], totals.shape[1], recorder, recorder)
        return labels, recorder

    results = run_committee(parties, program)
    recorders = [recorder for _, recorder in results]
    return Run(
        [labels for labels, _ in results],
        [r.taken for r in recorders],
        [r.sent for r in recorders],
        {r.traffic.rounds for r in recorders},
    )


@dataclass(frozen=True)
class Committee:
    """What the contract is checked for."""

    method: MaxMethod
    parties: int

    def __str__(self) -> str:
        return f"{self.method}-{self.parties}"

    def argmax(self, totals: np.ndarray) -> Run:
        return argmax(self.method, self.parties, totals)

    def plan(self, totals: np.ndarray) -> list[Item]:
        return StockArgmax(self.method).plan(*totals.shape, self.parties)


def gallery() -> dict[str, np.ndarray]:
    """Rows of every sort, by name; they go through one run together."""
    rng = np.random.default_rng(11)
    top = StockArgmax(MaxMethod.PAIRWISE).largest_total(CLASSES)
    ends = np.where(np.eye(CLASSES, dtype=bool), top, -top)
    return {
        "random": rng.integers(-(10**6), 10**6, (12, CLASSES)),
        "close": rng.integers(0, 3, (12, CLASSES)),
        "ties": np.stack([np.full(CLASSES, value) for value in (0, 7, -7, top, -top)]),
        "pairs": np.array([[1, 5, 5, 0, 5, 2], [0, 0, 0, 0, 9, 9], [-3, -3, -9, -9, -4, -4]]),
        "extremes": np.concatenate([ends, -ends, np.roll(ends, 1, axis=0) // 2]),
        "neighbours at the top": top - np.array([np.roll(np.arange(CLASSES), i) for i in range(6)]),
        "negative": rng.integers(-(10**9), 0, (6, CLASSES)),
        "equal rows": np.tile(rng.integers(-50, 50, CLASSES), (8, 1)),
    }


@pytest.fixture(
    scope="class",
    params=[Committee(method, parties) for method in MaxMethod for parties in (2, 3, 4)],
    ids=str,
)
def committee(request: pytest.FixtureRequest) -> Committee:
    made: Committee = request.param
    return made


@dataclass
class Exhibition:
    """The labels of the gallery's groups, and the run that gave them."""

    run: Run
    groups: dict[str, np.ndarray]
    labels: dict[str, list[int]] = field(default_factory=dict)


@pytest.fixture(scope="class")
def shown(committee: Committee) -> Iterator[Exhibition]:
    groups = gallery()
    run = committee.argmax(np.concatenate(list(groups.values())))
    labels = iter(run.labels)
    yield Exhibition(
        run, groups, {name: [next(labels) for _ in rows] for name, rows in groups.items()}
    )


class TestEveryMethod:
    """The contract."""

    @pytest.mark.parametrize("name", gallery())
    def test_the_label_is_the_first_largest_total(self, shown: Exhibition, name: str) -> None:
        assert shown.labels[name] == shown.groups[name].argmax(axis=1).tolist()

    def test_ties_go_to_the_lower_class(self, shown: Exhibition) -> None:
        assert shown.labels["ties"] == [0] * 5
        assert shown.labels["pairs"] == [1, 4, 0]

    def test_one_class_needs_nothing(self, committee: Committee) -> None:
        run = committee.argmax(np.array([[5], [-5], [0]]))
        assert run.labels == [0, 0, 0]
        assert run.rounds == {0}
        assert run.taken == [[]] * committee.parties
        assert committee.plan(np.ones((3, 1))) == []

    def test_two_classes(self, committee: Committee) -> None:
        top = StockArgmax(committee.method).largest_total(2)
        totals = np.array([[0, 0], [0, 1], [1, 0], [-1, -2], [-top, top], [top, -top], [-2, -1]])
        run = committee.argmax(totals)
        assert run.labels == [0, 1, 0, 0, 1, 0, 1]
        assert run.taken == [committee.plan(totals)] * committee.parties

    def test_one_row(self, committee: Committee) -> None:
        totals = np.array([[3, 1, 4]])
        run = committee.argmax(totals)
        assert run.labels == [2]
        assert run.taken == [committee.plan(totals)] * committee.parties

    def test_the_plan_is_what_is_taken(self, committee: Committee, shown: Exhibition) -> None:
        rows = np.concatenate(list(shown.groups.values()))
        assert shown.run.taken == [committee.plan(rows)] * committee.parties

    def test_the_transcript_depends_on_the_shape_only(
        self, committee: Committee, shown: Exhibition
    ) -> None:
        rows = np.concatenate(list(shown.groups.values()))
        other = committee.argmax(np.zeros_like(rows))
        sizes = [[len(payload) for payload in sent] for sent in shown.run.sent]
        assert [[len(payload) for payload in sent] for sent in other.sent] == sizes
        assert all(of_rank == sizes[0] for of_rank in sizes)
        assert shown.run.rounds == other.rounds == {len(sizes[0])}

    def test_the_totals_are_left_alone(self, committee: Committee) -> None:
        shares = share(np.array([[1, 2]]), committee.parties)
        before = [s.tolist() for s in shares]
        run_committee(
            committee.parties,
            lambda c, m: StockArgmax(committee.method).run(shares[c.rank], 2, c, m),
        )
        assert [s.tolist() for s in shares] == before


@settings(deadline=None, max_examples=10)
@given(
    st.sampled_from(MaxMethod),
    st.integers(2, 4),
    st.integers(3, 12),
    st.integers(1, 5),
    st.data(),
)
def test_any_shape(
    method: MaxMethod, parties: int, classes: int, rows: int, data: st.DataObject
) -> None:
    top = StockArgmax(method).largest_total(classes)
    values = st.integers(-top, top) | st.integers(-2, 2)
    cells = data.draw(st.lists(values, min_size=rows * classes, max_size=rows * classes))
    totals = np.array(cells, dtype=np.int64).reshape(rows, classes)
    run = argmax(method, parties, totals)
    assert run.labels == totals.argmax(axis=1).tolist()
    assert run.taken == [StockArgmax(method).plan(rows, classes, parties)] * parties


def looks_uniform(words: Words) -> bool:
    """A chi-square test on bytes, wrong once in a thousand million."""
    observed = np.bincount(np.ascontiguousarray(words).view(np.uint8), minlength=256)
    return stats.chisquare(observed).pvalue > 1e-9


class TestFreshness:
    """What leaves the committee is uniform but for its sum, every time anew."""

    @pytest.mark.parametrize("classes", [1, 2])
    def test_all_label_shares_but_one_look_uniform(self, classes: int) -> None:
        totals = np.tile(np.arange(classes), (2_000, 1))
        run = argmax(MaxMethod.PAIRWISE, 3, totals)
        assert run.labels == [classes - 1] * 2_000
        for rank in range(3):
            others = [s for i, s in enumerate(run.shares) if i != rank]
            assert looks_uniform(run.shares[rank])
            assert looks_uniform(np.add.reduce(others))
        assert not looks_uniform(np.add.reduce(run.shares))

    @pytest.mark.parametrize("parties", [2, 3, 4])
    def test_two_runs_on_one_channel_have_no_mask_in_common(self, parties: int) -> None:
        # With one class a label's share is nothing but the mask.
        def program(channel: Channel, material: Material) -> list[Words]:
            engine = StockArgmax(MaxMethod.PAIRWISE)
            return [engine.run(np.zeros(50, np.uint64), 1, channel, material) for _ in range(4)]

        for of_rank in run_committee(parties, program):
            words = np.concatenate(of_rank)
            assert len(np.unique(words)) == words.size

    @pytest.mark.parametrize("method", MaxMethod)
    def test_the_streams_of_the_zero_sharing_are_read_on(self, method: MaxMethod) -> None:
        totals = np.array([[1, 5, 2], [7, 7, 7]])
        shares = share(totals, 3)

        def program(channel: Channel, material: Material) -> list[bytes]:
            ends = []
            for _ in range(2):
                labels = StockArgmax(method).run(shares[channel.rank], 3, channel, material)
                assert labels.shape == (2,)
                ends += [channel.previous_stream.take(16), channel.next_stream.take(16)]
            return ends

        results = run_committee(3, program)
        for rank, (previous, following, previous_2, following_2) in enumerate(results):
            # Neighbours stand at the same place of the stream that they share ...
            assert following == results[(rank + 1) % 3][0]
            assert following_2 == results[(rank + 1) % 3][2]
            # ... and never come back to a place where they were.
            assert len({previous, following, previous_2, following_2}) == 4

    def test_a_second_run_reads_no_byte_of_the_first_again(self) -> None:
        shares = share(np.array([[1, 5, 2]]), 3)

        class Noted:
            def __init__(self, stream: SeedStream) -> None:
                self.stream, self.read = stream, []

            def words(self, count: int) -> Words:
                words = self.stream.words(count)
                self.read += words.tolist()
                return words

        def program(channel: Any, material: Material) -> list[list[int]]:
            channel.previous_stream = Noted(channel.previous_stream)
            channel.next_stream = Noted(channel.next_stream)
            for _ in range(2):
                StockArgmax(MaxMethod.LOG_REDUCTION).run(shares[channel.rank], 3, channel, material)
            return [channel.previous_stream.read, channel.next_stream.read]

        for streams in run_committee(3, program):
            for read in streams:
                assert read
                assert len(set(read)) == len(read)

    def test_the_same_input_gives_other_shares_every_time(self) -> None:
        runs = [argmax(MaxMethod.PAIRWISE, 2, np.array([[1, 2]] * 4)) for _ in range(2)]
        assert runs[0].labels == runs[1].labels == [1] * 4
        assert not set(runs[0].shares[0].tolist()) & set(runs[1].shares[0].tolist())


class TestRange:
    @pytest.mark.parametrize("classes", [1, 2, 3, 10, 100, 1_000])
    def test_the_largest_total_keeps_every_comparison_from_wrapping(self, classes: int) -> None:
        top = StockArgmax(MaxMethod.PAIRWISE).largest_total(classes)
        # The largest difference of two totals once they are ordered by class.
        assert 2 * classes * top + classes - 1 < 2**63

    def test_the_plan_grows_with_the_rows_alone(self) -> None:
        for method in MaxMethod:
            one, many = (StockArgmax(method).plan(rows, 7, 3) for rows in (1, 9))
            assert [dataclasses.replace(i, count=9 * i.count) for i in one] == many
            assert one
