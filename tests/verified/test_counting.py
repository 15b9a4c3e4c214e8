"""Verified ballots on a committee in one process: totals are right, and lies can't be said."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from mpc_vote import noise, ring
from mpc_vote.argmax.channel import Channel, Traffic
from mpc_vote.argmax.local import run_committee
from mpc_vote.argmax.material import Material
from mpc_vote.noise import SkellamSampler
from mpc_vote.sharing import Share
from mpc_vote.verified import counting
from mpc_vote.verified.counting import Count, Counted
from mpc_vote.verified.layout import TAIL, BitReader, Layout, encode, split_bits, weights_for

UNIT = 16


def count_all(
    count: Count, shares: Sequence[Sequence[Share] | None], parties: int
) -> tuple[np.ndarray, frozenset[int], Traffic]:
    """The totals that the committee shares, who was left out, and what a party sent."""

    def party(channel: Channel, material: Material) -> tuple[Counted, Traffic]:
        readers = [
            None if held is None else BitReader(held[channel.rank], layout)
            for held, layout in zip(shares, count.layouts, strict=True)
        ]
        return count.run(readers, channel, material), channel.traffic

    found = run_committee(parties, party)
    assert len({counted.excluded for counted, _ in found}) == 1
    total = np.add.reduce([counted.totals for counted, _ in found])
    signed = ring.signed(total & np.uint64((1 << count.ring_bits) - 1), count.ring_bits)
    return signed.reshape(count.queries, -1), found[0][0].excluded, found[0][1]


def votes_of(rng: np.random.Generator, layout: Layout, queries: int, most: int = 0) -> np.ndarray:
    """A valid ballot: some votes go to no class."""
    if not layout.votes:
        order = rng.random((queries, layout.classes)).argsort(axis=1)
        return UNIT * (order < rng.integers(0, most + 1, (queries, 1))).astype(np.int64)
    ballot = np.zeros((queries, layout.classes + 1), dtype=np.int64)
    for _ in range(layout.votes):
        ballot[np.arange(queries), rng.integers(0, layout.classes + 1, queries)] += UNIT
    return ballot[:, : layout.classes]


@pytest.mark.parametrize("parties", [2, 3, 5])
@pytest.mark.parametrize("classes", [2, 3, 10, 100])
@pytest.mark.parametrize("votes", [(1, 1, 1), (4, 1, 7), (0, 0, 0)])
@pytest.mark.parametrize("bits", [20, 64])
def test_totals_are_those_of_the_ballots(
    parties: int, classes: int, votes: tuple[int, ...], bits: int
) -> None:
    rng = np.random.default_rng(classes)
    layouts = tuple(Layout(classes, own, UNIT, 90) for own in votes)
    count = Count(layouts, 21, bits, tau=0 if any(votes) else classes)
    expected = np.zeros((21, classes), dtype=np.int64)
    shares: list[list[Share] | None] = []
    for place, layout in enumerate(layouts):
        ballot = votes_of(rng, layout, 21, classes)
        drawn = rng.integers(-90, 91, ballot.shape)
        expected += ballot + drawn
        shares.append(split_bits(encode(layout, ballot, drawn), parties, place % parties))
    totals, excluded, _ = count_all(count, shares, parties)
    assert np.array_equal(totals, expected)
    assert not excluded


def test_who_is_absent_adds_nothing_and_many_queries_come_in_chunks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(counting, "_CHUNK_NUMBERS", 1000)
    rng = np.random.default_rng(0)
    layout = Layout(5, 1, UNIT, 12)
    count = Count((layout,) * 4, 50, 16)
    assert len(count.plan()) > 2
    ballots = [votes_of(rng, layout, 50) for _ in range(4)]
    drawn = [rng.integers(-12, 13, (50, 5)) for _ in range(4)]
    shares = [split_bits(encode(layout, b, n), 3, 1) for b, n in zip(ballots, drawn, strict=True)]
    totals, _, _ = count_all(count, [shares[0], None, shares[2], None], 3)
    assert np.array_equal(totals, ballots[0] + drawn[0] + ballots[2] + drawn[2])


@pytest.mark.parametrize("votes", [1, 5])
def test_no_bits_that_an_agent_could_send_are_more_than_its_votes_and_bounded_noise(
    votes: int,
) -> None:
    """Every share is random, so that all bits are; and all bits 1, the largest there is."""
    rng = np.random.default_rng(1)
    layout = Layout(6, votes, 1 << 12, 40)  # so large a vote can be told from noise
    count = Count((layout,), 400, 24)
    size = layout.share_bytes(400)
    seeds = [Share(seed=rng.bytes(32)) for _ in range(2)]
    for last in (Share(packed=rng.bytes(size)), Share(packed=b"\xff" * size)):
        totals, _, _ = count_all(count, [[*seeds, last]], 3)
        cast = np.rint(totals / (1 << 12))
        assert np.abs(totals - cast * (1 << 12)).max() <= 40
        assert cast.min() >= 0 and cast.sum(axis=1).max() <= votes


def test_who_says_yes_too_often_is_left_out_whole_and_nobody_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(counting, "_CHUNK_NUMBERS", 3000)
    rng = np.random.default_rng(2)
    layout = Layout(9, 0, UNIT, 30)
    count = Count((layout,) * 5, 40, 18, tau=4)
    ballots = [votes_of(rng, layout, 40, 4) for _ in range(5)]
    for agent, query in ((1, 39), (3, 0)):
        ballots[agent][query] = UNIT * (np.arange(9) < 5)
    drawn = [rng.integers(-30, 31, (40, 9)) for _ in range(5)]
    shares = [split_bits(encode(layout, b, n), 2, 0) for b, n in zip(ballots, drawn, strict=True)]
    totals, excluded, _ = count_all(count, shares, 2)
    assert excluded == {1, 3}
    assert np.array_equal(totals, sum(ballots[a] + drawn[a] for a in (0, 2, 4)))


def test_one_round_opens_no_more_than_the_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    variance = noise.per_agent_variance(15.0, 4, 200, 0)
    layout = Layout(10, 1, UNIT, noise.tail_bound(variance, TAIL))
    count = Count((layout,) * 20, 64, 18)
    empty = np.zeros((64, 10), dtype=np.int64)
    shares = [split_bits(encode(layout, empty, empty), 3, 0) for _ in range(20)]
    _, _, traffic = count_all(count, shares, 3)
    assert traffic.rounds == 1
    assert traffic.bytes_sent == 2 * 20 * 64 * layout.bits // 8


@pytest.mark.parametrize("bound", [0, 1, 2, 7, 8, 90, 127, 128, 1000])
def test_weights_reach_every_noise_within_the_bound_and_none_beyond(bound: int) -> None:
    weights = weights_for(bound)
    sums = {0}
    for weight in weights:
        sums |= {one + weight for one in sums}
    assert sums == set(range(2 * bound + 1))


@pytest.mark.parametrize("std", [8.0, 17.0, 100.0, 3000.0])
def test_the_bound_is_below_twelve_standard_deviations_and_cuts_nothing(std: float) -> None:
    bound = noise.tail_bound(std**2, TAIL)
    assert bound < 12 * std
    draws = SkellamSampler(std**2).sample(20_000)
    layout = Layout(2, 1, UNIT, bound)
    assert np.abs(draws).max() < bound
    bits = encode(layout, np.zeros((10_000, 2), dtype=np.int64), draws.reshape(-1, 2))
    flags = bits[:, layout.pointer_bits :].reshape(-1, len(layout.weights)).astype(np.int64)
    assert np.array_equal(flags @ np.array(layout.weights) - bound, draws)


@pytest.mark.parametrize(
    ("votes", "ballot"),
    [
        (1, [[16, 16]]),
        (1, [[32, 0]]),
        (1, [[5, 0]]),
        (1, [[-16, 0]]),
        (0, [[32, 0]]),
        (2, [[48, 0]]),
    ],
)
def test_what_is_no_ballot_is_not_encoded(votes: int, ballot: list[list[int]]) -> None:
    given = np.array(ballot)
    with pytest.raises(ValueError, match="votes"):
        encode(Layout(2, votes, UNIT, 5), given, np.zeros_like(given))
