"""Cut and choose: whether a dealer that deals wrong material is caught.

Invariant: a dealer whose material is wrong, in however small a place, goes undetected only if the
lot falls on the very copy that is wrong; and nobody computes with anything before all is checked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from mpc_vote.argmax.channel import Channel
from mpc_vote.argmax.checking import DIGEST_BYTES, Grant, choose, commit, commitment
from mpc_vote.argmax.levels import Level
from mpc_vote.argmax.local import run_committee
from mpc_vote.argmax.material import Material, Plan, Run
from mpc_vote.argmax.triples import TripleKind, Triples
from mpc_vote.csprng import new_seed
from mpc_vote.errors import ErrorKind, VoteError
from mpc_vote.verified.unmasking import Unmasking

ITEMS = (
    Triples(TripleKind.PRODUCT, 3),
    Level(vectors=2, group=3, bits=16, label_bits=2, labelled=False, last=True),
    Unmasking(pointers=2, pointer_bits=2, flags=3, ring_bits=16),
)
PLAN = Plan((Run(ITEMS, 1),))
PARTIES, COPIES = 3, 4
FALSE_ALARM = 1e-9

Seeds = list[list[bytes]]
Digests = list[list[bytes]]


def seeds_of(copies: int = COPIES, parties: int = PARTIES) -> Seeds:
    """By copy and rank."""
    return [[new_seed() for _ in range(parties)] for _ in range(copies)]


def honest(seeds: Seeds) -> Digests:
    """Commitments, by item and copy."""
    return [[commit(item, [copy], i) for copy in seeds] for i, item in enumerate(PLAN)]


def grants(seeds: Seeds, digests: Digests) -> list[Grant]:
    return [
        Grant(
            "session",
            bytes(16),
            tuple(copy[rank] for copy in seeds),
            tuple(b"".join(copies) for copies in digests),
        )
        for rank in range(len(seeds[0]))
    ]


def drawn(given: Sequence[Grant]) -> int:
    """The copy that all parties use."""

    def party(channel: Channel, _: Material) -> int:
        return choose(given[channel.rank], PLAN, channel)

    (copy,) = set(run_committee(len(given), party))
    return copy


def spoilt(seeds: Seeds, index: int, copy: int) -> bytes:
    """A commitment to a correction that has one bit wrong."""
    correction = bytearray(ITEMS[index].correct(seeds[copy], index))
    correction[len(correction) // 2] ^= 1
    return commitment(bytes(correction), seeds[copy][-1], index)


@pytest.mark.parametrize("parties", [2, 3, 5])
def test_an_honest_dealer_is_never_caught(parties: int) -> None:
    for copies in (1, 2, 7):
        seeds = seeds_of(copies, parties)
        assert 0 <= drawn(grants(seeds, honest(seeds))) < copies


def test_every_copy_is_drawn_as_often() -> None:
    seeds = seeds_of()
    given, tries = grants(seeds, honest(seeds)), 400
    counts = Counter(drawn(given) for _ in range(tries))
    # Hoeffding, for each copy: off by 100 with probability below 2 exp(-2 * 100^2 / 400) < 1e-21.
    assert all(abs(counts[copy] - tries / COPIES) < 100 for copy in range(COPIES)), counts


@pytest.mark.parametrize("index", range(len(ITEMS)), ids=lambda i: type(ITEMS[i]).__name__)
@pytest.mark.parametrize("copy", range(COPIES))
def test_one_wrong_bit_is_caught_unless_its_copy_is_drawn(index: int, copy: int) -> None:
    """Whichever item it is in, and so whichever party has to look at it."""
    seeds = seeds_of()
    digests = honest(seeds)
    digests[index][copy] = spoilt(seeds, index, copy)
    given = grants(seeds, digests)
    caught = 0
    while caught < 3:
        try:
            assert drawn(given) == copy, "only the copy that nobody has looked at"
        except VoteError as error:
            assert error.kind is ErrorKind.DEALER_CAUGHT
            assert f"item {index}" in error.message
            caught += 1


def test_a_lie_in_every_copy_is_always_caught() -> None:
    for _ in range(20):
        seeds = seeds_of()
        digests = honest(seeds)
        digests[2] = [spoilt(seeds, 2, copy) for copy in range(COPIES)]
        with pytest.raises(VoteError) as caught:
            drawn(grants(seeds, digests))
        assert caught.value.kind is ErrorKind.DEALER_CAUGHT


def test_one_seed_for_two_parties_is_caught() -> None:
    """Each of them would know the other's masks."""
    seeds = [[copy[0], copy[1], copy[0]] for copy in seeds_of()]
    with pytest.raises(VoteError) as caught:
        drawn(grants(seeds, honest(seeds)))
    assert caught.value.kind is ErrorKind.DEALER_CAUGHT and "same seed" in caught.value.message


def _other_digest(grant: Grant) -> Grant:
    return replace(grant, digests=(bytes(COPIES * DIGEST_BYTES), *grant.digests[1:]))


def _other_deal(grant: Grant) -> Grant:
    return replace(grant, deal_id=b"another deal id!")


@pytest.mark.parametrize("rank", range(PARTIES))
@pytest.mark.parametrize("change", [_other_digest, _other_deal])
def test_a_dealer_that_tells_parties_different_things_is_caught(
    rank: int, change: Callable[[Grant], Grant]
) -> None:
    seeds = seeds_of()
    given = grants(seeds, honest(seeds))
    given[rank] = change(given[rank])
    with pytest.raises(VoteError) as caught:
        drawn(given)
    assert caught.value.kind is ErrorKind.DEALER_CAUGHT
    assert "different" in caught.value.message


@pytest.mark.parametrize("rank", range(PARTIES))
def test_seeds_other_than_those_dealt_with_are_caught(rank: int) -> None:
    """A dealer that gives a party seeds which don't belong to what it committed to."""
    seeds = seeds_of()
    given = grants(seeds, honest(seeds))
    given[rank] = replace(given[rank], seeds=tuple(new_seed() for _ in range(COPIES)))
    with pytest.raises(VoteError) as caught:
        drawn(given)
    assert caught.value.kind is ErrorKind.DEALER_CAUGHT


class Cheat:
    """A party's channel that sends another coin than it committed to."""

    def __init__(self, channel: Channel) -> None:
        self.rank, self.size, self.traffic = channel.rank, channel.size, channel.traffic
        self._channel = channel

    def exchange(self, payload: bytes) -> Sequence[bytes]:
        if self.traffic.rounds == 1:
            payload = bytes(len(payload))
        return self._channel.exchange(payload)


def test_a_party_cannot_choose_the_copy() -> None:
    seeds = seeds_of()
    given = grants(seeds, honest(seeds))

    def party(channel: Channel, _: Material) -> int:
        return choose(given[channel.rank], PLAN, Cheat(channel) if channel.rank == 1 else channel)

    with pytest.raises(VoteError) as caught:
        run_committee(PARTIES, party)
    assert caught.value.kind is ErrorKind.COMMITTEE_DISAGREES


def test_the_drawn_copys_seeds_stay_where_they_are() -> None:
    """Else peers would know each other's masks."""
    seeds = seeds_of()
    given = grants(seeds, honest(seeds))
    sent: list[bytes] = []

    class Heard(Cheat):
        def exchange(self, payload: bytes) -> Sequence[bytes]:
            sent.append(payload)
            return self._channel.exchange(payload)

    def party(channel: Channel, _: Material) -> int:
        return choose(given[channel.rank], PLAN, Heard(channel))

    (copy,) = set(run_committee(PARTIES, party))
    everything = b"".join(sent)
    for rank in range(PARTIES):
        assert [seed in everything for seed in given[rank].seeds] == [
            other != copy for other in range(COPIES)
        ]


def test_a_commitment_hides_a_correction_from_who_lacks_the_last_seed() -> None:
    correction = b"known"
    assert commitment(correction, new_seed(), 0) != commitment(correction, new_seed(), 0)
    seed = new_seed()
    assert commitment(correction, seed, 0) != commitment(correction, seed, 1)
    assert commitment(correction, seed, 0) == commitment(correction, seed, 0)


def test_grants_show_no_seed() -> None:
    seeds = seeds_of()
    for grant in grants(seeds, honest(seeds)):
        shown = repr(grant)
        assert not any(repr(seed) in shown or seed.hex() in shown for seed in grant.seeds)
