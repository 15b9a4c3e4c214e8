"""Cut and choose: whether a dealer that deals wrong preprocessing is caught, and nobody else is
blamed.

Invariants: a dealer whose preprocessing is wrong, in however small a place, goes undetected only if
the lot falls on the very copy that is wrong; nobody computes with anything before all is checked;
an honest dealer is never blamed whatever a party says to whom; and no party ever learns a seed of
the copy in use, whatever the dealer does.
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import numpy as np
import pytest

from mpc_vote.argmax.crypten.triples import TripleKind, Triples
from mpc_vote.argmax.table.level import LevelTables
from mpc_vote.errors import ErrorKind, VoteError
from mpc_vote.mpc import cut_and_choose
from mpc_vote.mpc.channel import Channel, Openings, Traffic
from mpc_vote.mpc.cut_and_choose import (
    DIGEST_BYTES,
    LARGE_AT_ONCE,
    Drawn,
    Grant,
    Session,
    choose,
    coin_hash,
    commit,
    commitment,
    stream_key,
    stream_keys,
)
from mpc_vote.mpc.in_process import run_committee
from mpc_vote.mpc.preprocessing import Preprocessing, PreprocessingPlan, Run
from mpc_vote.mpc.prg import new_seed
from mpc_vote.verified.bit_conversion import BitConversion

ITEMS = (
    Triples(TripleKind.PRODUCT, 3),
    LevelTables(vectors=2, group=3, bits=16, label_bits=2, labelled=False, last=True),
    BitConversion(pointers=2, pointer_bits=2, flags=3, ring_bits=16),
)
PLAN = PreprocessingPlan((Run(ITEMS, 1),))
PARTIES, COPIES = 3, 4

Seeds = list[tuple[bytes, ...]]
Digests = list[list[bytes]]


def session_of(copies: int = COPIES, parties: int = PARTIES, name: str = "session") -> Session:
    return Session(name, tuple(f"party-{rank}" for rank in range(parties)), PLAN, copies)


@dataclass
class Dealing:
    """What a dealer has of a session, and what it says; by rank, or by item and copy."""

    session: Session
    seeds: Seeds
    hashes: tuple[bytes, ...]
    keys: list[list[bytes]]
    digests: Digests

    @classmethod
    def honest(cls, session: Session, seeds: Seeds | None = None) -> Dealing:
        seeds = seeds or [session.draw_seeds() for _ in session.parties]
        hashes = tuple(session.seed_hashes(rank, own) for rank, own in enumerate(seeds))
        by_copy = enumerate(zip(*seeds, strict=True))
        transcript = session.transcript(hashes)
        keys = [stream_keys(transcript, of_copy, copy) for copy, of_copy in by_copy]
        digests = [[commit(item, [copy], i) for copy in keys] for i, item in enumerate(PLAN)]
        return cls(session, seeds, hashes, keys, digests)

    def grants(self) -> list[Grant]:
        digests = tuple(b"".join(copies) for copies in self.digests)
        return [
            Grant(self.session, rank, own, self.hashes, digests)
            for rank, own in enumerate(self.seeds)
        ]

    def spoil(self, index: int, copy: int) -> None:
        """Commits to a correction that has one bit wrong."""
        correction = bytearray(ITEMS[index].correct(self.keys[copy], index))
        correction[len(correction) // 2] ^= 1
        self.digests[index][copy] = commitment(bytes(correction), self.keys[copy][-1], index)


def drawn(given: Sequence[Grant]) -> int:
    """The copy that all parties use."""
    found = run_committee(len(given), lambda channel, _: choose(given[channel.rank], channel))
    (copy,) = {one.copy for one in found}
    (_,) = {one.context for one in found}
    return copy


@pytest.mark.parametrize("parties", [2, 3, 5])
def test_an_honest_dealer_is_never_caught(parties: int) -> None:
    for copies in (1, 2, 7):
        dealing = Dealing.honest(session_of(copies, parties))
        assert 0 <= drawn(dealing.grants()) < copies


def test_every_copy_is_drawn_as_often() -> None:
    given, tries = Dealing.honest(session_of()).grants(), 400
    counts = Counter(drawn(given) for _ in range(tries))
    # Hoeffding, for each copy: off by 100 with probability below 2 exp(-2 * 100^2 / 400) < 1e-21.
    assert all(abs(counts[copy] - tries / COPIES) < 100 for copy in range(COPIES)), counts


@pytest.mark.parametrize("index", range(len(ITEMS)), ids=lambda i: type(ITEMS[i]).__name__)
@pytest.mark.parametrize("copy", range(COPIES))
def test_one_wrong_bit_is_caught_unless_its_copy_is_drawn(index: int, copy: int) -> None:
    """Whichever item it is in, and so whichever party has to look at it."""
    dealing = Dealing.honest(session_of())
    dealing.spoil(index, copy)
    given = dealing.grants()
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
        dealing = Dealing.honest(session_of())
        for copy in range(COPIES):
            dealing.spoil(2, copy)
        with pytest.raises(VoteError) as caught:
            drawn(dealing.grants())
        assert caught.value.kind is ErrorKind.DEALER_CAUGHT


# Seeds are the parties' own


def test_no_two_seeds_of_a_request_are_the_same() -> None:
    session = session_of(copies=64)
    seeds = {seed for _ in range(50) for seed in session.draw_seeds()}
    assert len(seeds) == 50 * 64


def test_streams_differ_also_where_a_party_sends_equal_seeds() -> None:
    """One that sends the dealer a single seed for all copies, as none that follows the protocol
    does, opens it with the others: its peers then know its own parts, and nobody else's."""
    one, liar = new_seed(), 1
    session = session_of()
    seeds = [(one,) * COPIES if rank == liar else session.draw_seeds() for rank in range(PARTIES)]
    dealing = Dealing.honest(session, seeds)
    assert len({key for copy in dealing.keys for key in copy}) == COPIES * PARTIES
    transcript = dealing.grants()[0].transcript()
    for rank in range(PARTIES):
        told = dealing.seeds[rank][1]
        known = stream_key(told, transcript, rank, 0) == dealing.keys[0][rank]
        assert known == (rank == liar)


def test_any_other_session_has_other_streams_from_the_same_seeds() -> None:
    """A seed that was sent twice would else tell masks: the difference of two corrections."""
    session = session_of()
    seeds = [session.draw_seeds() for _ in range(PARTIES)]
    other_seed = [*seeds[:-1], session.draw_seeds()]
    names = tuple(reversed(session.parties))
    others = [
        Dealing.honest(replace(session, id="another"), seeds),
        Dealing.honest(replace(session, parties=names), seeds),
        Dealing.honest(
            replace(session, plan=PreprocessingPlan((Run(ITEMS, 1), Run(ITEMS[:1], 1)))), seeds
        ),
        Dealing.honest(session, other_seed),
    ]
    sets = [{key for copy in one.keys for key in copy} for one in (Dealing.honest(session, seeds),)]
    for other in others:
        sets.append({key for copy in other.keys for key in copy})
    assert len(set.union(*sets)) == sum(map(len, sets)) == 5 * COPIES * PARTIES


def test_a_dealer_that_hashes_other_seeds_gets_no_session() -> None:
    """It would make the parties' parts from seeds that it has chosen."""
    session = session_of()
    mine = Dealing.honest(session)
    for rank in range(PARTIES):
        own = [session.draw_seeds() if r == rank else s for r, s in enumerate(mine.seeds)]
        given = Dealing.honest(session, own).grants()
        given[rank] = replace(given[rank], seeds=mine.seeds[rank])
        with pytest.raises(VoteError) as caught:
            drawn(given)
        assert caught.value.kind is ErrorKind.COMMITTEE_DISAGREES
        assert "other seeds" in caught.value.message


# What the dealer says is compared


def _other_digest(grant: Grant) -> Grant:
    return replace(grant, digests=(bytes(COPIES * DIGEST_BYTES), *grant.digests[1:]))


def _other_hash(grant: Grant) -> Grant:
    hashes = list(grant.seed_hashes)
    hashes[grant.rank - 1] = bytes(COPIES * DIGEST_BYTES)
    return replace(grant, seed_hashes=tuple(hashes))


@pytest.mark.parametrize("rank", range(PARTIES))
@pytest.mark.parametrize("change", [_other_digest, _other_hash])
def test_a_dealer_that_tells_parties_different_things_gets_no_session(
    rank: int, change: Callable[[Grant], Grant]
) -> None:
    """It is not blamed: a party could have made that up."""
    given = Dealing.honest(session_of()).grants()
    given[rank] = change(given[rank])
    with pytest.raises(VoteError) as caught:
        drawn(given)
    assert caught.value.kind is ErrorKind.COMMITTEE_DISAGREES
    assert "other things" in caught.value.message


# Parties that lie

Lie = Callable[[int, int, bytes], bytes]
"""What is told to a peer instead of a payload, by exchange and peer."""


class TwoFaced:
    """A committee whose party LIAR tells each peer what a lie makes of its payload."""

    LIAR = 1

    def __init__(self, lie: Lie) -> None:
        self._lie = lie
        self._told: dict[tuple[int, int], bytes] = {}

    def run(self, given: Sequence[Grant]) -> list[Drawn | VoteError]:
        def party(channel: Openings, _: Preprocessing) -> Drawn | VoteError | None:
            try:
                return choose(given[channel.rank], _Mouth(channel, self._lie, self._told))
            except VoteError as error:
                return error

        return [one for one in _all_results(len(given), party) if one is not None]


class _Mouth:
    """A party's channel; it hears what the liar tells to it."""

    def __init__(self, channel: Openings, lie: Lie, told: dict[tuple[int, int], bytes]) -> None:
        self.rank, self.size, self.traffic = channel.rank, channel.size, Traffic()
        self._channel, self._lie, self._told = channel, lie, told
        self._exchanges = count()

    def exchange(self, payload: bytes) -> Sequence[bytes]:
        number = next(self._exchanges)
        received = list(self._channel.exchange(payload))
        if self.rank != TwoFaced.LIAR:
            honest = received[TwoFaced.LIAR]
            received[TwoFaced.LIAR] = self._lie(number, self.rank, honest)
        return received


class _Counted:
    """A party's channel that counts the exchanges which it has come to."""

    def __init__(
        self, channel: Openings, come_to: list[float], changed: threading.Condition
    ) -> None:
        self.rank, self.size, self.traffic = channel.rank, channel.size, Traffic()
        self._channel, self._come_to, self._changed = channel, come_to, changed

    def exchange(self, payload: bytes) -> Sequence[bytes]:
        with self._changed:
            self._come_to[self.rank] += 1
            self._changed.notify_all()
        return self._channel.exchange(payload)


def _all_results(
    parties: int, program: Callable[[Openings, Preprocessing], Any]
) -> list[Drawn | VoteError | None]:
    """Of all parties; None of who waits in vain for one that has left.

    Who leaves waits until all others have judged what they heard in the same exchange: nobody's
    blame goes unseen because another was quicker.
    """
    results: list[Any] = [None] * parties
    come_to: list[float] = [0.0] * parties
    changed = threading.Condition()

    def noted(channel: Channel, preprocessing: Preprocessing) -> None:
        rank = channel.rank
        results[rank] = program(_Counted(channel, come_to, changed), preprocessing)
        with changed:
            heard, come_to[rank] = come_to[rank], math.inf
            changed.notify_all()
            assert changed.wait_for(lambda: min(come_to) > heard, timeout=30)
        if isinstance(results[rank], VoteError):
            raise results[rank]

    with contextlib.suppress(VoteError):
        run_committee(parties, noted)
    return results


def _changed(payload: bytes) -> bytes:
    return bytes([payload[0] ^ 1]) + payload[1:] if payload else payload


def _lies() -> dict[str, Lie]:
    lies: dict[str, Lie] = {}
    for number, what in enumerate(["digest or coin's hash", "coin", "echo", "seeds"]):
        for whom in ((0,), (2,), (0, 2)):
            for place, changed in {
                "first": _changed,
                "last": lambda p: _changed(p[::-1])[::-1],
            }.items():

                def lie(
                    at: int,
                    peer: int,
                    payload: bytes,
                    number: int = number,
                    whom: tuple[int, ...] = whom,
                    changed: Callable[[bytes], bytes] = changed,
                ) -> bytes:
                    return changed(payload) if at == number and peer in whom else payload

                lies[f"{what}, {place} byte, to {whom}"] = lie
    return lies


LIES = _lies()


@pytest.mark.parametrize("lie", LIES)
def test_a_party_that_lies_has_nobody_blame_the_dealer(lie: str) -> None:
    given = Dealing.honest(session_of()).grants()
    results = TwoFaced(LIES[lie]).run(given)
    errors = [one for one in results if isinstance(one, VoteError)]
    assert errors, "somebody notices"
    assert all(error.kind is ErrorKind.COMMITTEE_DISAGREES for error in errors), errors


def test_a_party_that_draws_two_lots_has_nobody_blame_the_dealer() -> None:
    """It commits and opens one coin to one peer, another to the other: the lots differ, and with
    them what the peers would open."""
    for _ in range(300):
        session = session_of()
        given = Dealing.honest(session).grants()
        transcript = given[0].transcript()
        coin = new_seed()

        def lie(
            number: int,
            peer: int,
            payload: bytes,
            coin: bytes = coin,
            transcript: bytes = transcript,
        ) -> bytes:
            if peer == 0:
                return payload
            if number == 0:
                return payload[:DIGEST_BYTES] + coin_hash(transcript, TwoFaced.LIAR, coin)
            return coin if number == 1 else payload

        results = TwoFaced(lie).run(given)
        errors = [one for one in results if isinstance(one, VoteError)]
        assert errors and not any(isinstance(one, Drawn) for one in results)
        assert all(error.kind is ErrorKind.COMMITTEE_DISAGREES for error in errors), errors


def test_an_opened_seed_that_was_not_committed_to_tells_on_its_party() -> None:
    given = Dealing.honest(session_of()).grants()
    results = TwoFaced(LIES["seeds, first byte, to (0, 2)"]).run(given)
    errors = [one for one in results if isinstance(one, VoteError)]
    assert errors and all("party party-1 opened a seed" in e.message for e in errors)


def test_a_coin_that_was_not_committed_to_tells_on_its_party() -> None:
    given = Dealing.honest(session_of()).grants()
    results = TwoFaced(LIES["coin, first byte, to (0, 2)"]).run(given)
    errors = [one for one in results if isinstance(one, VoteError)]
    assert errors and all("party party-1 changed its coin" in e.message for e in errors)


def test_a_coin_of_a_peer_can_not_be_used_again() -> None:
    """Else the last to speak could repeat a peer's hash and coin: what they add up to is then not
    drawn by both."""
    given = Dealing.honest(session_of()).grants()
    heard: dict[int, bytes] = {}

    class Parrot(_Mouth):
        def exchange(self, payload: bytes) -> Sequence[bytes]:
            number = next(self._exchanges)
            received = list(self._channel.exchange(payload))
            if self.rank == 0:
                heard[number] = payload
            if number < 2 and self.rank != TwoFaced.LIAR:
                received[TwoFaced.LIAR] = received[0]
            return received

    def party(channel: Openings, _: Preprocessing) -> Drawn | VoteError:
        try:
            return choose(given[channel.rank], Parrot(channel, lambda _, __, p: p, {}))
        except VoteError as error:
            return error

    errors = [one for one in _all_results(PARTIES, party) if isinstance(one, VoteError)]
    assert errors and all(error.kind is ErrorKind.COMMITTEE_DISAGREES for error in errors)


def test_the_drawn_copys_seeds_stay_where_they_are() -> None:
    """Else peers would know each other's masks."""
    given = Dealing.honest(session_of()).grants()
    sent: list[bytes] = []

    class Heard(_Mouth):
        def exchange(self, payload: bytes) -> Sequence[bytes]:
            sent.append(payload)
            return self._channel.exchange(payload)

    def party(channel: Channel, _: Preprocessing) -> Drawn:
        return choose(given[channel.rank], Heard(channel, lambda _, __, p: p, {}))

    (copy,) = {one.copy for one in run_committee(PARTIES, party)}
    everything = b"".join(sent)
    for rank in range(PARTIES):
        assert [seed in everything for seed in given[rank].seeds] == [
            other != copy for other in range(COPIES)
        ]


# What is bound to what


def test_hashes_and_keys_are_bound_to_session_rank_and_copy() -> None:
    session, seed = session_of(), new_seed()
    hashes = {
        session.seed_hash(0, 0, seed),
        session.seed_hash(1, 0, seed),
        session.seed_hash(0, 1, seed),
        session_of(name="another").seed_hash(0, 0, seed),
    }
    keys = {
        stream_key(seed, transcript, rank, copy)
        for transcript in (bytes(32), b"\1" * 32)
        for rank in range(2)
        for copy in range(2)
    }
    assert len(hashes) == 4 and len(keys) == 8


def test_a_commitment_hides_a_correction_from_who_lacks_the_last_key() -> None:
    correction = b"known"
    assert commitment(correction, new_seed(), 0) != commitment(correction, new_seed(), 0)
    key = new_seed()
    assert commitment(correction, key, 0) != commitment(correction, key, 1)
    assert commitment(correction, key, 0) == commitment(correction, key, 0)


def test_nothing_shows_a_seed_or_a_key() -> None:
    given = Dealing.honest(session_of()).grants()
    found = run_committee(PARTIES, lambda channel, _: choose(given[channel.rank], channel))
    shown = repr(given) + repr(found)
    secrets = [seed for grant in given for seed in grant.seeds] + [one.key for one in found]
    assert not any(repr(secret) in shown or secret.hex() in shown for secret in secrets)


# The attack that equal seeds were


def test_a_party_that_listens_reads_no_mask_whatever_seeds_the_dealer_would_like() -> None:
    """Seeds of the opened copies, which every party hears, expand to nothing that is in use."""
    session = session_of()
    dealing = Dealing.honest(session)
    given = dealing.grants()
    found = run_committee(PARTIES, lambda channel, _: choose(given[channel.rank], channel))
    copy, level = found[0].copy, ITEMS[1]
    transcript = given[0].transcript()
    used = [level.expand(one.key, 1, None).r for one in found[:-1]]
    for rank in range(PARTIES - 1):
        for other in range(COPIES):
            if other == copy:
                continue
            for guess in range(COPIES):
                key = stream_key(dealing.seeds[rank][other], transcript, rank, guess)
                assert not np.array_equal(level.expand(key, 1, None).r, used[rank])


def test_a_dealer_that_expands_equal_seeds_of_its_own_is_caught() -> None:
    """Which would tell one party the parts of others, if they were what the parties expand."""
    for _ in range(20):
        dealing = Dealing.honest(session_of())
        equal = stream_keys(dealing.grants()[0].transcript(), [new_seed()] * PARTIES, 0)
        dealing.digests = [[commit(item, [equal], i)] * COPIES for i, item in enumerate(PLAN)]
        with pytest.raises(VoteError) as caught:
            drawn(dealing.grants())
        assert caught.value.kind is ErrorKind.DEALER_CAUGHT


def test_whatever_is_checked_at_once_few_corrections_are_in_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever opens many rounds must not have a party hold a gigabyte for each."""
    given = Dealing.honest(session_of(copies=2)).grants()
    changed = threading.Condition()
    at_once = peak = 0

    def waiting_for_others(*arguments: Any) -> bytes:
        nonlocal at_once, peak
        with changed:
            at_once += 1
            peak = max(peak, at_once)
            changed.notify_all()
            changed.wait_for(lambda: peak > LARGE_AT_ONCE, timeout=0.2)
            at_once -= 1
        return commit(*arguments)

    monkeypatch.setattr(cut_and_choose, "commit", waiting_for_others)
    monkeypatch.setattr(cut_and_choose, "LARGE_BYTES", 0)
    drawn(given)
    assert 1 <= peak <= LARGE_AT_ONCE
