"""Two rounds: what leaves the committee tells who won and nothing else of the ranking.

To the coordinator, alone, with all parties but one, or with the dealer. Each promise is shown to
rest on what it is said to rest on: without that the same test finds the leak. All tests of this
file together raise a false alarm with a probability below 1e-6.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from scipy import stats

from mpc_vote.argmax.table import marks
from mpc_vote.argmax.table.comparison import MAX_COMPARISONS
from mpc_vote.argmax.table.engine import TableArgmax
from mpc_vote.argmax.table.marks import MarkedLabels, MarkPart, MarkTables
from mpc_vote.mpc.channel import Channel
from mpc_vote.mpc.in_process import run_committee
from mpc_vote.mpc.preprocessing import Item, Preprocessing
from mpc_vote.mpc.prg import SeedStream, Words, joint_seed, new_seed
from mpc_vote.mpc.residues import residues
from tests.unit.argmax.committee import Recorder, Totals, share

Matrix = npt.NDArray[Any]

CLASSES, BITS, PRIME = 6, 8, 7
ROWS = MAX_COMPARISONS // 32
FALSE_ALARM = 1e-10
# Of each class the losses, the same in all rows; ties go to the lower.
RANKED = np.array([30, -4, 17, 17, 2, 9])
LOSSES = np.array([0, 5, 1, 2, 4, 3])


class Handed:
    """Parts that were dealt before."""

    def __init__(self, parts: Sequence[MarkPart]) -> None:
        self._parts = list(parts)

    def take(self, item: Item[Any]) -> Any:
        return self._parts.pop(0)


class Deal:
    """A run's preprocessing, with all that the dealer knows."""

    def __init__(self, parties: int, rows: int = ROWS, classes: int = CLASSES, bits: int = BITS):
        self.engine = TableArgmax(bits, two_rounds=True)
        self.classes, self.rows, self.parties = classes, rows, parties
        plan = self.engine.plan(rows, classes, parties)
        self.items = [item for item in plan if isinstance(item, MarkTables)]
        seeds = [new_seed() for _ in range(parties)]
        self.parts: list[list[MarkPart]] = [[] for _ in range(parties)]
        units = []
        for index, item in enumerate(self.items):
            correction = item.correct(seeds, index)
            for rank, seed in enumerate(seeds):
                last = rank == parties - 1
                self.parts[rank].append(item.expand(seed, index, correction if last else None))
            secret = SeedStream(joint_seed(seeds), index)
            item.draw_flips(secret)
            units.append(item._draw_units(secret))
        self.units = np.concatenate(units, axis=1).T

    def run(self, totals: Totals) -> list[Matrix]:
        """What each party sends to the coordinator, by row and class."""
        inputs = share(totals, self.parties, self.engine.ring_bits)

        def party(channel: Channel, _: Preprocessing) -> Words:
            handed = Handed(self.parts[channel.rank])
            return self.engine.run(inputs[channel.rank], self.classes, channel, handed)

        return [own.reshape(-1, self.classes) for own in run_committee(self.parties, party)]


def summed(shares: Sequence[Matrix], prime: int = PRIME) -> Matrix:
    found: Matrix = np.add.reduce(shares) % np.uint64(prime)
    return found.astype(np.int64)


def ranked(parties: int) -> tuple[Deal, list[Matrix]]:
    deal = Deal(parties)
    return deal, deal.run(np.tile(RANKED, (ROWS, 1)))


def uniform(values: Matrix, first: int = 0, prime: int = PRIME) -> bool:
    """Whether each column's numbers are uniform from `first` on."""
    return all(
        stats.chisquare(np.bincount(column, minlength=prime)[first:]).pvalue > FALSE_ALARM
        and not np.bincount(column, minlength=prime)[:first].any()
        for column in values.T
    )


def ratios(values: Matrix) -> Matrix:
    """Of each two losers, modulo the prime."""
    lost = values[:, LOSSES > 0]
    pairs = [(i, j) for i in range(lost.shape[1]) for j in range(i)]
    return np.stack([lost[:, i] * lost[:, j] ** (PRIME - 2) % PRIME for i, j in pairs], axis=1)


def without_common_units(monkeypatch: pytest.MonkeyPatch) -> None:
    """The parties multiply by nothing that the dealer does not know."""
    monkeypatch.setattr(marks, "units", lambda stream, prime, count: np.ones(count, np.uint8))


def without_zeros(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(marks, "zero_residues", lambda _, p, count: np.zeros(count, np.uint8))


@pytest.mark.parametrize("parties", [2, 3, 5])
class TestCoordinator:
    def test_it_sees_a_zero_for_the_winner_and_uniform_units_for_all_others(
        self, parties: int
    ) -> None:
        seen = summed(ranked(parties)[1])
        assert not seen[:, 0].any()
        assert uniform(seen[:, 1:], first=1)
        assert uniform(ratios(seen), first=1)

    def test_any_shares_but_one_are_uniform(self, parties: int) -> None:
        shares = ranked(parties)[1]
        for missing in range(parties):
            others = [own for rank, own in enumerate(shares) if rank != missing]
            assert uniform(summed(others)) and uniform(shares[missing].astype(np.int64))


class TestCoordinatorWithParties:
    """They know what all parties multiply by; the dealer's units are left."""

    def test_it_still_sees_uniform_units(self, monkeypatch: pytest.MonkeyPatch) -> None:
        deal = Deal(3)
        without_common_units(monkeypatch)
        seen = summed(deal.run(np.tile(RANKED, (ROWS, 1))))
        assert uniform(seen[:, 1:], first=1) and uniform(ratios(seen), first=1)

    def test_one_unit_for_all_classes_would_tell_the_ranking(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        drawn = MarkTables._draw_units
        monkeypatch.setattr(
            MarkTables,
            "_draw_units",
            lambda self, stream: np.repeat(drawn(self, stream)[:1], self.group, axis=0),
        )
        deal = Deal(3)
        without_common_units(monkeypatch)
        seen = summed(deal.run(np.tile(RANKED, (ROWS, 1))))
        # Each alone looks well; of any two the ratio is that of their losses.
        assert uniform(seen[:, 1:], first=1)
        assert len(np.unique(ratios(seen), axis=0)) == 1


class TestCoordinatorWithDealer:
    """They know the dealer's units, and all that was dealt."""

    def test_they_still_see_uniform_units(self) -> None:
        deal, shares = ranked(3)
        left = summed(shares) * deal.units.astype(np.int64) ** (PRIME - 2) % PRIME
        assert uniform(left[:, 1:], first=1) and uniform(ratios(left), first=1)

    def test_without_the_parties_units_they_would_see_the_ranking(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        deal = Deal(3)
        without_common_units(monkeypatch)
        shares = deal.run(np.tile(RANKED, (ROWS, 1)))
        left = summed(shares) * deal.units.astype(np.int64) ** (PRIME - 2) % PRIME
        assert np.array_equal(left, np.tile(LOSSES, (ROWS, 1)))

    @pytest.mark.parametrize("parties", [2, 3])
    def test_totals_that_were_are_no_likelier_than_others_with_the_same_winner(
        self, parties: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        found, left = guessed(parties, monkeypatch, fresh=True)
        margin = np.sqrt(np.log(2 / 1e-9) / (2 * GUESSED_ROWS))
        assert abs(found - left) < margin

    @pytest.mark.parametrize("parties", [2, 3])
    def test_without_a_sharing_of_zero_they_would_be(
        self, parties: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        found, left = guessed(parties, monkeypatch, fresh=False)
        assert found == 1.0
        assert left < 0.5


GUESSED_ROWS = 1_500
SMALL = [-1, 0, 1]


def guessed(parties: int, monkeypatch: pytest.MonkeyPatch, fresh: bool) -> tuple[float, float]:
    """How often the true totals explain the shares, and any totals with the same winner do.

    For each of all totals in the least ring, who knows what was dealt computes what each party
    would send, but for the parties' units: those would have to be the same for all parties.
    """
    classes, prime = 4, 5
    deal = Deal(parties, GUESSED_ROWS, classes, bits=3)
    totals = np.random.default_rng(7).choice(SMALL, (GUESSED_ROWS, classes))
    with monkeypatch.context() as patch:
        if not fresh:
            without_zeros(patch)
        seen = np.stack(deal.run(totals)).astype(np.int64)
    winners = totals.argmax(axis=1)
    true, alike, explained = 0, 0, 0
    with monkeypatch.context() as patch:
        without_zeros(patch)
        without_common_units(patch)
        for guess in product(SMALL, repeat=classes):
            guesses = np.tile(guess, (GUESSED_ROWS, 1))
            bare = np.stack(deal.run(guesses)).astype(np.int64)
            fits = [(bare * unit % prime == seen).all(axis=0) for unit in range(1, prime)]
            fitting = np.any(fits, axis=0).all(axis=1)
            same = winners == np.argmax(guess)
            alike += int(same.sum())
            explained += int((fitting & same).sum())
            true += int((fitting & (totals == guesses).all(axis=1)).sum())
    return true / GUESSED_ROWS, explained / alike


class TestParts:
    @pytest.mark.parametrize("missing", range(3))
    def test_those_of_all_parties_but_one_are_uniform(self, missing: int) -> None:
        parts = [own for rank, own in enumerate(Deal(3).parts) if rank != missing]
        for kind in ("coefficients", "units"):
            held = [np.concatenate([getattr(p, kind).reshape(-1) for p in own]) for own in parts]
            together = np.add.reduce(held, dtype=np.int64) % PRIME
            for values in (*held, together):
                assert uniform(values.astype(np.int64)[:, None])

    def test_those_of_all_parties_are_not(self) -> None:
        held = [np.concatenate([p.coefficients.reshape(-1) for p in own]) for own in Deal(3).parts]
        assert not uniform((np.add.reduce(held, dtype=np.int64) % PRIME)[:, None])

    def test_bytes_modulo_the_prime_would_be_noticed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def biased(stream: SeedStream, modulus: int, count: int) -> Matrix:
            return np.frombuffer(stream.take(count), np.uint8) % np.uint8(modulus)

        stream = SeedStream(new_seed())
        count = 1 << 20
        assert uniform(residues(stream, PRIME, count).astype(np.int64)[:, None])
        assert not uniform(biased(stream, PRIME, count).astype(np.int64)[:, None])
        monkeypatch.setattr(marks, "residues", biased)
        held = [p.coefficients.reshape(-1) for p in Deal(2, rows=8 * ROWS).parts[0]]
        assert not uniform(np.concatenate(held).astype(np.int64)[:, None])

    def test_the_units_come_from_all_seeds(self) -> None:
        item = MarkTables(100, CLASSES, BITS)
        seeds = [new_seed() for _ in range(3)]

        def drawn(keys: Sequence[bytes]) -> Matrix:
            parts = [item.expand(key, 0, None) for key in keys[:-1]]
            parts.append(item.expand(keys[-1], 0, item.correct(keys, 0)))
            units: Matrix = np.add.reduce([p.units for p in parts], dtype=np.int64)
            return units % PRIME

        assert np.array_equal(drawn(seeds), drawn(seeds)) and drawn(seeds).all()
        for rank in range(3):
            other = drawn([*seeds[:rank], new_seed(), *seeds[rank + 1 :]])
            # 600 units of six values: as many are the same as by chance.
            assert abs((drawn(seeds) == other).mean() - 1 / (PRIME - 1)) < 0.12


class TestSessions:
    def test_blocks_of_a_session_have_units_of_their_own(self) -> None:
        engine = TableArgmax(BITS, two_rounds=True)
        totals = np.tile(RANKED, (300, 1))
        inputs = share(totals, 3, BITS)

        def party(channel: Channel, deal: Preprocessing) -> tuple[list[Words], list[bytes]]:
            recorder = Recorder(channel, deal)
            own = inputs[channel.rank]
            runs = [engine.run(own, CLASSES, recorder, recorder) for _ in range(2)]
            return runs, [sent[-32:] for sent in recorder.sent[::2]]

        results = run_committee(3, party)
        for block in range(2):
            sums = np.add.reduce([runs[block] for runs, _ in results])
            assert not MarkedLabels(CLASSES).labels(sums).any()
        # What each party tells its peers in round 1, to draw the units from.
        assert len({seed for _, told in results for seed in told}) == 6


class TestLabels:
    @pytest.mark.parametrize("row", [[1, 2, 3, 4, 5, 6], [0, 2, 0, 4, 5, 6], [7, 2, 0, 1, 1, 1]])
    def test_a_row_must_have_just_one_zero(self, row: list[int]) -> None:
        code = MarkedLabels(CLASSES)
        good = [3, 14, 1, 2, 3, 4]
        assert code.labels(np.array(good, np.uint64)).tolist() == [1]
        with pytest.raises(ValueError, match="a row has not just one winner"):
            code.labels(np.array([*good, *row, *good], np.uint64))

    @pytest.mark.parametrize("excess", [-1, 1])
    def test_shares_of_another_size_are_refused(self, excess: int) -> None:
        code = MarkedLabels(CLASSES)
        sent = code.pack(np.arange(60, dtype=np.uint64) % np.uint64(PRIME))
        assert code.unpack(sent, 10).tolist() == [n % PRIME for n in range(60)]
        with pytest.raises(ValueError, match="label shares out of place"):
            code.unpack((sent + b"0")[: len(sent) + excess], 10)
