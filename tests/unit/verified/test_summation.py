"""Verified ballots on a committee in one process: totals are right, and lies can't be said."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from mpc_vote.mpc import ring
from mpc_vote.mpc.channel import Channel, Traffic
from mpc_vote.mpc.in_process import run_committee
from mpc_vote.mpc.preprocessing import Preprocessing
from mpc_vote.mpc.prg import Words
from mpc_vote.mpc.sharing import Share
from mpc_vote.privacy.coins import CoinLaw
from mpc_vote.verified import summation
from mpc_vote.verified.encoding import BitReader, Layout, encode, split_bits
from mpc_vote.verified.summation import Summation
from tests.unit.verified.plain import Tosses, noise_of, tossed

UNIT = 16
LAW = CoinLaw(((1, 6), (2, 4), (5, 3), (9, 1)))


def count_all(
    count: Summation, shares: Sequence[Sequence[Share] | None], parties: int
) -> tuple[np.ndarray, Traffic]:
    """The totals that the committee shares, less the noise that it drew, and what a party sent."""
    tosses = [Tosses() for _ in range(parties)]

    def party(channel: Channel, preprocessing: Preprocessing) -> tuple[Words, Traffic]:
        readers = [
            None if held is None else BitReader(held[channel.rank], layout)
            for held, layout in zip(shares, count.layouts, strict=True)
        ]
        run = count.run(readers, channel, preprocessing, tosses[channel.rank])
        return run, channel.traffic

    found = run_committee(parties, party)
    total = np.add.reduce([totals for totals, _ in found])
    signed = ring.signed(total & np.uint64((1 << count.ring_bits) - 1), count.ring_bits)
    classes = count.layouts[0].classes
    drawn = tossed(tosses, count.queries * classes * count.law.coins)
    noise = noise_of(count.law, drawn, classes)
    return signed.reshape(count.queries, -1) - noise, found[0][1]


def votes_of(rng: np.random.Generator, layout: Layout, queries: int) -> np.ndarray:
    """A valid ballot: some votes go to no class."""
    if layout.attributes:
        order = rng.random((queries, layout.classes)).argsort(axis=1)
        said = order < rng.integers(0, layout.votes + 1, (queries, 1))
        return UNIT * said.astype(np.int64)
    ballot = np.zeros((queries, layout.classes + 1), dtype=np.int64)
    for _ in range(layout.votes):
        ballot[np.arange(queries), rng.integers(0, layout.classes + 1, queries)] += UNIT
    return ballot[:, : layout.classes]


def one_hot(classes: int) -> Layout:
    return Layout(classes, UNIT)


def counts(classes: int, k: int) -> Layout:
    return Layout(classes, UNIT, k)


def attributes(classes: int, tau: int) -> Layout:
    return Layout(classes, UNIT, tau, attributes=True)


@pytest.mark.parametrize("parties", [2, 3, 5])
@pytest.mark.parametrize("classes", [2, 3, 10, 100])
@pytest.mark.parametrize("kind", ["one_hot", "counts", "attributes"])
@pytest.mark.parametrize("bits", [20, 64])
def test_totals_are_those_of_the_ballots(parties: int, classes: int, kind: str, bits: int) -> None:
    rng = np.random.default_rng(classes)
    layouts = {
        "one_hot": (one_hot(classes),) * 3,
        "counts": (counts(classes, 4), counts(classes, 1), counts(classes, 7)),
        "attributes": (attributes(classes, 1 + classes // 2),) * 3,
    }[kind]
    count = Summation(layouts, 24, bits, LAW)
    expected = np.zeros((24, classes), dtype=np.int64)
    shares: list[list[Share] | None] = []
    for place, layout in enumerate(layouts):
        ballot = votes_of(rng, layout, 24)
        expected += ballot
        shares.append(split_bits(encode(layout, ballot), parties, place % parties))
    totals, _ = count_all(count, shares, parties)
    assert np.array_equal(totals, expected)


def test_who_is_absent_adds_nothing_and_many_queries_come_in_chunks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(summation, "_CHUNK_NUMBERS", 1000)
    rng = np.random.default_rng(0)
    layout = one_hot(5)
    count = Summation((layout,) * 4, 48, 16, LAW)
    assert len(count.plan()) > 2
    ballots = [votes_of(rng, layout, 48) for _ in range(4)]
    shares = [split_bits(encode(layout, ballot), 3, 1) for ballot in ballots]
    totals, _ = count_all(count, [shares[0], None, shares[2], None], 3)
    assert np.array_equal(totals, ballots[0] + ballots[2])


VOTE = 1 << 12


@settings(max_examples=60, deadline=None)
@given(
    layout=st.one_of(
        st.builds(Layout, st.integers(2, 12), st.just(VOTE), st.integers(1, 20)),
        st.builds(Layout, st.integers(1, 12), st.just(VOTE), st.integers(1, 12), st.just(True)),
    ),
    seed=st.binary(min_size=32, max_size=32),
    data=st.data(),
)
def test_no_bits_that_an_agent_could_send_are_more_than_its_votes(
    layout: Layout, seed: bytes, data: st.DataObject
) -> None:
    """Any bytes at all are sent to the parties: the same, those of a seed, or chosen by hand."""
    size = layout.share_bytes(16)
    last = data.draw(
        st.one_of(
            st.sampled_from([bytes(size), b"\xff" * size, seed * (size // 32 + 1)]),
            st.binary(min_size=size, max_size=size),
        )
    )
    shares = [Share(seed=seed), Share(packed=last[:size])]
    totals, _ = count_all(Summation((layout,), 16, 24, LAW), [shares], 2)
    cast, rest = np.divmod(totals, VOTE)
    assert not rest.any() and cast.min() >= 0
    if layout.attributes:
        assert cast.max() <= 1
    else:
        assert cast.sum(axis=1).max() <= layout.votes


@pytest.mark.parametrize("layout", [Layout(3, VOTE, 50), Layout(9, VOTE, 4, True)])
def test_all_votes_can_be_cast_for_one_class_or_for_every_attribute(layout: Layout) -> None:
    """What is left to a liar, so that the bounds above are met."""
    bits = np.ones((8, layout.bits), np.uint8)
    bits[:, : layout.pointers * layout.pointer_bits] = 0
    totals, _ = count_all(Summation((layout,), 8, 24, LAW), [split_bits(bits, 2, 0)], 2)
    cast = totals // VOTE
    said = [1] * layout.classes if layout.attributes else [layout.votes, 0, 0]
    assert cast.tolist() == [said] * 8


def test_openings_are_uniform_whatever_the_ballots_are() -> None:
    """For one honest party of two: what it sends is masked by bits that the other lacks."""
    layouts = {
        "pointer": one_hot(10),
        "pointers": counts(10, 30),
        "flags": attributes(10, 3),
    }
    for what, layout in layouts.items():
        count = Summation((layout,) * 8, 96, 20, LAW)
        empty = np.zeros((96, 10), dtype=np.int64)
        shares = [split_bits(encode(layout, empty), 2, 0) for _ in range(8)]
        sent: list[list[bytes]] = [[], []]

        def party(
            channel: Channel,
            preprocessing: Preprocessing,
            count: Summation = count,
            shares: list[list[Share]] = shares,
            sent: list[list[bytes]] = sent,
        ) -> None:
            tapped = Tapped(channel, sent[channel.rank])
            readers = [BitReader(held[channel.rank], count.layouts[0]) for held in shares]
            count.run(readers, tapped, preprocessing)

        run_committee(2, party)
        opened = bytes(x ^ y for x, y in zip(sent[0][0], sent[1][0], strict=True))
        for data in (sent[0][0], opened):
            halves = np.frombuffer(data, np.uint8)[:, None] >> np.array([0, 4]) & 15
            assert stats.chisquare(np.bincount(halves.reshape(-1))).pvalue > 1e-7, what


class Tapped:
    """A channel that keeps what was sent."""

    def __init__(self, channel: Channel, sent: list[bytes]) -> None:
        self._channel, self._sent = channel, sent
        self.rank, self.size, self.traffic = channel.rank, channel.size, channel.traffic

    def exchange(self, payload: bytes) -> Sequence[bytes]:
        self._sent.append(payload)
        return self._channel.exchange(payload)


def test_one_round_opens_no_more_than_the_bits() -> None:
    layout = one_hot(10)
    count = Summation((layout,) * 20, 64, 18, LAW)
    empty = np.zeros((64, 10), dtype=np.int64)
    shares = [split_bits(encode(layout, empty), 3, 0) for _ in range(20)]
    _, traffic = count_all(count, shares, 3)
    assert traffic.rounds == 1
    assert traffic.bytes_sent == 2 * 64 * (20 * layout.bits + 10 * LAW.coins) // 8


@pytest.mark.parametrize(
    ("layout", "ballot"),
    [
        (one_hot(2), [16, 16]),
        (one_hot(2), [32, 0]),
        (one_hot(2), [5, 0]),
        (one_hot(2), [-16, 0]),
        (attributes(2, 1), [16, 16]),
        (attributes(2, 2), [32, 0]),
        (counts(2, 2), [48, 0]),
        (counts(2, 2), [32, 16]),
        (counts(2, 2), [-16, 16]),
    ],
)
def test_what_is_no_ballot_is_not_encoded(layout: Layout, ballot: list[int]) -> None:
    said = np.array([ballot])
    with pytest.raises(ValueError, match="vote"):
        encode(layout, said)
