"""What CrypTen's argmax owes beyond the contract: fresh shares, and a range without wrapping."""

from __future__ import annotations

import dataclasses
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from scipy import stats

from mpc_vote.argmax.crypten.engine import CryptenArgmax, MaxMethod
from mpc_vote.argmax.crypten.triples import Triples
from mpc_vote.mpc.channel import Channel
from mpc_vote.mpc.in_process import run_committee
from mpc_vote.mpc.preprocessing import Preprocessing
from mpc_vote.mpc.prg import SeedStream, Words
from tests.unit.argmax.committee import record, share


def looks_uniform(words: Words) -> bool:
    """A chi-square test on bytes, wrong once in a thousand million."""
    observed = np.bincount(np.ascontiguousarray(words).view(np.uint8), minlength=256)
    return float(stats.chisquare(observed).pvalue) > 1e-9


class TestFreshness:
    """What leaves the committee is uniform but for its sum, every time anew."""

    @pytest.mark.parametrize("classes", [1, 2])
    def test_all_label_shares_but_one_look_uniform(self, classes: int) -> None:
        totals = np.tile(np.arange(classes), (2_000, 1))
        run = record(CryptenArgmax(MaxMethod.PAIRWISE), 3, totals)
        assert run.labels == [classes - 1] * 2_000
        for rank in range(3):
            others = [s for i, s in enumerate(run.shares) if i != rank]
            assert looks_uniform(run.shares[rank])
            assert looks_uniform(np.add.reduce(others))
        assert not looks_uniform(np.add.reduce(run.shares))

    @pytest.mark.parametrize("parties", [2, 3, 4])
    def test_two_runs_on_one_channel_have_no_mask_in_common(self, parties: int) -> None:
        # With one class a label's share is nothing but the mask.
        def program(channel: Channel, preprocessing: Preprocessing) -> list[Words]:
            engine = CryptenArgmax(MaxMethod.PAIRWISE)
            return [
                engine.run(np.zeros(50, np.uint64), 1, channel, preprocessing) for _ in range(4)
            ]

        for of_rank in run_committee(parties, program):
            words = np.concatenate(of_rank)
            assert len(np.unique(words)) == words.size

    @pytest.mark.parametrize("method", MaxMethod)
    def test_the_streams_of_the_zero_sharing_are_read_on(self, method: MaxMethod) -> None:
        totals = np.array([[1, 5, 2], [7, 7, 7]])
        shares = share(totals, 3)

        def program(channel: Channel, preprocessing: Preprocessing) -> list[bytes]:
            ends = []
            for _ in range(2):
                labels = CryptenArgmax(method).run(shares[channel.rank], 3, channel, preprocessing)
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
                self.stream = stream
                self.read: list[int] = []

            def words(self, count: int) -> Words:
                words = self.stream.words(count)
                self.read += words.tolist()
                return words

        def program(channel: Any, preprocessing: Preprocessing) -> list[list[int]]:
            channel.previous_stream = Noted(channel.previous_stream)
            channel.next_stream = Noted(channel.next_stream)
            for _ in range(2):
                CryptenArgmax(MaxMethod.LOG_REDUCTION).run(
                    shares[channel.rank], 3, channel, preprocessing
                )
            return [channel.previous_stream.read, channel.next_stream.read]

        for streams in run_committee(3, program):
            for read in streams:
                assert read
                assert len(set(read)) == len(read)

    def test_the_same_input_gives_other_shares_every_time(self) -> None:
        engine = CryptenArgmax(MaxMethod.PAIRWISE)
        runs = [record(engine, 2, np.array([[1, 2]] * 4)) for _ in range(2)]
        assert runs[0].labels == runs[1].labels == [1] * 4
        assert not set(runs[0].shares[0].tolist()) & set(runs[1].shares[0].tolist())


class TestRange:
    @pytest.mark.parametrize("classes", [1, 2, 3, 10, 100, 1_000])
    def test_the_largest_total_keeps_every_comparison_from_wrapping(self, classes: int) -> None:
        top = CryptenArgmax(MaxMethod.PAIRWISE).largest_total(classes)
        # The largest difference of two totals once they are ordered by class.
        assert 2 * classes * top + classes - 1 < 2**63

    def test_the_plan_grows_with_the_rows_alone(self) -> None:
        for method in MaxMethod:
            one, many = (CryptenArgmax(method).plan(rows, 7, 3) for rows in (1, 9))
            triples = [item for item in one if isinstance(item, Triples)]
            assert [dataclasses.replace(i, count=9 * i.count) for i in triples] == many
            assert one


def test_rounds_that_are_planned_at_once_rehearse_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rehearsal takes memory, and a coordinator may open many rounds of a kind at once."""
    engine, run = CryptenArgmax(MaxMethod.PAIRWISE), CryptenArgmax.run
    rehearsals: list[int] = []

    def counted(*given: Any) -> Words:
        rehearsals.append(threading.get_ident())
        return run(*given)

    monkeypatch.setattr(CryptenArgmax, "run", counted)
    # A number of classes that no other test has planned.
    with ThreadPoolExecutor(4) as threads:
        plans = list(threads.map(lambda _: engine.plan(8, 123, 2), range(4)))
    assert plans == [plans[0]] * 4
    assert len(rehearsals) == 1
