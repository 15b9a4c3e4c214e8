"""What dealer and coordinator learn together: the label, and nothing of the ranking behind it.

The coordinator has every party's label share, the dealer every table that they were looked up in.
Without re-randomisation that tells the masked number of wins of each class, and so the ranking.
"""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest

from mpc_vote.argmax.table.engine import TableArgmax
from mpc_vote.argmax.table.level import LevelPart, LevelTables
from mpc_vote.mpc.channel import Channel, zero_share
from mpc_vote.mpc.in_process import LocalPreprocessing, run_committee
from mpc_vote.mpc.preprocessing import Preprocessing
from mpc_vote.mpc.prg import Words, new_seed
from tests.unit.argmax.committee import share
from tests.unit.argmax.dealt import added, deal

CLASSES, BITS = 6, 16
# What one item of preprocessing serves.
ROWS = 2_000
ENGINE = TableArgmax(BITS)
FALSE_ALARM = 1e-9


def shares_of_labels(totals: np.ndarray, seeds: list[bytes], fresh: bool) -> list[Words]:
    """What each party sends to the coordinator, or would send without re-randomisation."""
    inputs = share(totals, len(seeds), BITS)

    def party(channel: Channel, _: Preprocessing) -> Words:
        run = ENGINE.run if fresh else ENGINE.winners
        return run(inputs[channel.rank], CLASSES, channel, LocalPreprocessing(seeds, channel.rank))

    return run_committee(len(seeds), party)


def rankings_left(
    wins: tuple[int, ...], shares: list[Words], parts: list[LevelPart], labels: np.ndarray
) -> np.ndarray:
    """The rows in which a ranking, as wins by class, fits the label and the parties would have
    looked up just what they sent: the attack of who knows the tables."""
    level = LevelTables(ROWS, CLASSES, BITS, ENGINE.label_bits(CLASSES), False, True)
    s = added([part.s for part in parts], level.win_bits).T.astype(np.int64)
    mask = np.uint64((1 << level.label_bits) - 1)
    opened = (np.array(wins) + s) % (1 << level.win_bits)
    rows = np.arange(ROWS)[:, None]
    fits: np.ndarray = labels == wins.index(CLASSES - 1)
    for part, sent in zip(parts, shares, strict=True):
        chosen = part.chosen[0][opened, np.arange(CLASSES), rows]
        fits &= (chosen.sum(axis=1, dtype=np.uint64) ^ sent) & mask == 0
    return fits


def attack(parties: int, fresh: bool) -> tuple[float, float]:
    """Over many rows: how often the true ranking is among those left, and how many are left of the
    120 that fit the label."""
    rng = np.random.default_rng(parties)
    totals = np.array([rng.permutation(CLASSES) * 7 for _ in range(ROWS)])
    seeds = [new_seed() for _ in range(parties)]
    parts = deal(LevelTables(ROWS, CLASSES, BITS, ENGINE.label_bits(CLASSES), False, True), seeds)
    shares = shares_of_labels(totals, seeds, fresh)
    labels = added(shares, ENGINE.label_bits(CLASSES))
    assert labels.tolist() == totals.argmax(axis=1).tolist()
    found, left = 0, 0
    for wins in permutations(range(CLASSES)):
        fits = rankings_left(wins, shares, parts, labels)
        left += fits.sum()
        found += (fits & (totals == np.array(wins) * 7).all(axis=1)).sum()
    return found / ROWS, left / ROWS


@pytest.mark.parametrize("parties", [2, 3, 5])
def test_shares_that_are_not_re_randomised_tell_the_ranking(parties: int) -> None:
    """So the attack works where it can: it is worth being defended against."""
    found, left = attack(parties, fresh=False)
    assert found == 1.0
    assert left < 120 / 4


@pytest.mark.parametrize("parties", [2, 3, 5])
def test_dealer_and_coordinator_find_the_true_ranking_no_likelier_than_another(
    parties: int,
) -> None:
    """The true one fits by chance alone, as any of the 120 does."""
    found, left = attack(parties, fresh=True)
    margin = np.sqrt(np.log(2 / FALSE_ALARM) / (2 * ROWS))
    assert abs(found - left / 120) < margin


@pytest.mark.parametrize("parties", [2, 3, 4])
def test_zero_shares_add_up_to_nothing_and_all_but_one_are_free(parties: int) -> None:
    drawn = run_committee(parties, lambda channel, _: [zero_share(channel, 500) for _ in range(2)])
    for shares in zip(*drawn, strict=True):
        assert not np.add.reduce(shares).any()
    assert len(np.unique(np.concatenate([np.concatenate(one) for one in drawn]))) == parties * 1000
