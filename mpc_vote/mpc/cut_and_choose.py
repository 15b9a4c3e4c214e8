"""Cut and choose: a dealer that deals wrong preprocessing is caught, but for one chance in
`copies`.

The parties draw all seeds; the dealer draws nothing. In this order:

1. Each party draws a seed for each copy, fresh for this one request, and sends them to the dealer.
2. The dealer, once it has everybody's, answers all parties alike: a hash of each seed, and a
   commitment to each correction of each copy. A correction follows from the seeds alone.
3. A party whose own seeds are not those hashed aborts. Else it tells its peers a digest of all that
   the dealer said, and commits to a coin. Where digests differ, all abort: nobody knows who lied.
4. The coins are opened and choose the copy to use. A coin that does not fit its commitment exposes
   its party. Everybody echoes what it has heard; where echoes differ, all abort.
5. The seeds of all other copies are opened. One that does not fit its hash exposes its party: by
   its digest it had agreed to the hash. Only now a correction, made again from the seeds, that is
   not what the dealer committed to exposes the dealer.

So a dealer gets away with wrong preprocessing only if the one copy in which it is wrong is the one
that is drawn, and then the last party still sees that it gets what was committed to. An honest
dealer is never blamed whatever the parties do, nor an honest party whatever the others and the
dealer do: blame rests on hashes that the blamed one agreed to. Without blame a session can still be
aborted, by anybody, before anything of it is used.

What a seed expands to also depends on the *transcript*: the session, its parties and plan, and the
hashes of all seeds. No two requests have a stream in common unless every seed in them is the same,
and the dealer has no say in it. Hashes and commitments hide as long as SHA-256, HMAC and BLAKE2b
with a secret key are pseudo-random. Copies that were opened are never used. The lot is fair as long
as one party is honest and no party works for the dealer.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from mpc_vote.errors import ErrorKind, VoteError
from mpc_vote.mpc.channel import Openings
from mpc_vote.mpc.preprocessing import Item, PreprocessingPlan
from mpc_vote.mpc.prg import SEED_BYTES, new_seed

DIGEST_BYTES = 32
MAX_COPIES = 64

MADE_AT_ONCE = max(2, os.cpu_count() or 1)
"""Corrections that one process makes at a time, whatever number of sessions it deals or checks."""
LARGE_BYTES = 1 << 26
LARGE_AT_ONCE = 2
"""Of those that are larger than that: they take up to a gigabyte each."""

_making = threading.BoundedSemaphore(MADE_AT_ONCE)
_making_large = threading.BoundedSemaphore(LARGE_AT_ONCE)

# Corrections that wait to be compared.
_COMPARED_AT_ONCE = 1_024
# Parties hear of each other at least this often, in bytes of corrections that were made again.
_CHECKED_BYTES = 1 << 26


def _hash(purpose: str, *parts: bytes) -> bytes:
    """SHA-256 of a purpose and parts, each preceded by its length: no two lists read the same."""
    digest = hashlib.sha256()
    for part in (b"mpc-vote " + purpose.encode(), *parts):
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.digest()


def _number(value: int) -> bytes:
    return value.to_bytes(8, "big")


@dataclass(frozen=True)
class Session:
    """What is dealt for, as everybody has to see it; all of it is public."""

    id: str
    parties: tuple[str, ...]
    plan: PreprocessingPlan
    copies: int

    def draw_seeds(self) -> tuple[bytes, ...]:
        """A party's seeds, one for each copy. They serve a single request, whatever becomes of it:
        the difference of two corrections that have a seed in common would reveal masks."""
        return tuple(new_seed() for _ in range(self.copies))

    def seed_hash(self, rank: int, copy: int, seed: bytes) -> bytes:
        """Binds a party to a seed, and hides it."""
        return _hash("seed", self.id.encode(), _number(rank), _number(copy), seed)

    def seed_hashes(self, rank: int, seeds: Sequence[bytes]) -> bytes:
        """Of all seeds of a party, side by side."""
        return b"".join(self.seed_hash(rank, copy, seed) for copy, seed in enumerate(seeds))

    def transcript(self, seed_hashes: Sequence[bytes]) -> bytes:
        """Stands for the session and for all seeds, whose hashes come by rank."""
        names = (name.encode() for name in self.parties)
        return _hash(
            "transcript",
            self.id.encode(),
            _number(len(self.parties)),
            *names,
            self.plan.digest,
            _number(self.copies),
            *seed_hashes,
        )

    def disagreement(self, why: str) -> VoteError:
        """Something does not fit, and it is not shown that the dealer is to blame."""
        return VoteError(ErrorKind.COMMITTEE_DISAGREES, round=self.id, why=why)


def stream_key(seed: bytes, transcript: bytes, rank: int, copy: int) -> bytes:
    """The key that a party's share of a copy is expanded from."""
    said = _hash("stream", transcript, _number(rank), _number(copy))
    return hmac.digest(seed, said, "sha256")


def stream_keys(transcript: bytes, seeds: Sequence[bytes], copy: int) -> list[bytes]:
    """Of a copy the keys of all parties, from their seeds of it by rank."""
    return [stream_key(seed, transcript, rank, copy) for rank, seed in enumerate(seeds)]


def coin_hash(transcript: bytes, rank: int, coin: bytes) -> bytes:
    """Binds a party to its coin for a session's draw, and hides it."""
    return _hash("coin", transcript, _number(rank), coin)


def dealt_digest(transcript: bytes, digests: Sequence[bytes]) -> bytes:
    """Stands for all that the dealer said, with its commitments to each item of the plan."""
    return _hash("dealt", transcript, *digests)


def lot_digest(said: bytes, first: Sequence[bytes], coins: Sequence[bytes]) -> bytes:
    """Stands for all that a party has heard when the copy is drawn; its peers' come by rank."""
    return _hash("lot", said, *first, *coins)


def drawn_copy(coins: Sequence[bytes], copies: int) -> int:
    """The copy that the coins of all parties choose."""
    return int.from_bytes(_hash("copy", *coins), "big") % copies


def drawn_context(lot: bytes, copy: int) -> bytes:
    """Stands for all that was said and drawn, and for the copy."""
    return _hash("drawn", lot, _number(copy))


def commitment(correction: bytes, last_key: bytes, index: int) -> bytes:
    """Binds the dealer to a correction, and hides it from whoever lacks the last party's key."""
    key = hmac.digest(last_key, b"mpc-vote commitment", "sha256")
    digest = hashlib.blake2b(_number(index), digest_size=DIGEST_BYTES, key=key)
    digest.update(correction)
    return digest.digest()


def commit(item: Item[Any], copies: Sequence[Sequence[bytes]], index: int) -> bytes:
    """The dealer's commitments to an item, of the copies with these keys by rank."""
    return b"".join(commitment(item.correct(keys, index), keys[-1], index) for keys in copies)


@dataclass(frozen=True)
class Grant:
    """What one party and the dealer told each other of a session."""

    session: Session
    rank: int
    seeds: tuple[bytes, ...] = field(repr=False)
    """This party's own, one for each copy."""
    seed_hashes: tuple[bytes, ...] = field(repr=False)
    """By rank those of all copies side by side, as the dealer says."""
    digests: tuple[bytes, ...] = field(repr=False)
    """For each item of the plan the commitments of all copies, side by side."""

    def transcript(self) -> bytes:
        """Stands for the session and all its seeds; refused if one's own are not among them."""
        if self.seed_hashes[self.rank] != self.session.seed_hashes(self.rank, self.seeds):
            raise self.session.disagreement("the dealer has other seeds of this party than it sent")
        return self.session.transcript(self.seed_hashes)


class DealerCaught(VoteError):
    """This party has itself seen that the dealer is wrong.

    An error that came over the wire is never one, whatever it says of itself: else a peer could
    have an honest dealer blamed.
    """

    def __init__(self, session_id: str, why: str) -> None:
        super().__init__(ErrorKind.DEALER_CAUGHT, session=session_id, why=why)


@dataclass(frozen=True)
class Drawn:
    """The copy to use, and this party's key to it."""

    session_id: str
    copy: int
    key: bytes = field(repr=False)
    digests: tuple[bytes, ...] = field(repr=False)
    """The dealer's commitments to each item of this copy."""
    context: bytes
    """Stands for the transcript, all that the dealer said, the lot and the copy."""
    heard_bytes: int
    """What the dealer has sent so far."""

    def wrong(self, why: str) -> DealerCaught:
        """The dealer was caught."""
        return DealerCaught(self.session_id, why)


def choose(grant: Grant, channel: Openings) -> Drawn:
    """The copy to use, once all parties have found the others right. Blocks, like an engine."""
    transcript = grant.transcript()
    copy, context = _draw(grant, transcript, channel)
    drawn = Drawn(
        grant.session.id,
        copy,
        stream_key(grant.seeds[copy], transcript, grant.rank, copy),
        tuple(_of_copy(digests, copy) for digests in grant.digests),
        context,
        sum(map(len, (*grant.digests, *grant.seed_hashes))),
    )
    opened = [other for other in range(grant.session.copies) if other != copy]
    keys = _open_seeds(grant, transcript, opened, channel)
    _check(grant, drawn, keys, channel)
    return drawn


def _of_copy(digests: bytes, copy: int) -> bytes:
    return digests[copy * DIGEST_BYTES : (copy + 1) * DIGEST_BYTES]


def _draw(grant: Grant, transcript: bytes, channel: Openings) -> tuple[int, bytes]:
    """A copy by lot, which the dealer could not foresee; and what stands for how it was drawn."""
    session = grant.session
    coin = new_seed()
    said = dealt_digest(transcript, grant.digests)
    first = channel.exchange(said + coin_hash(transcript, channel.rank, coin))
    for rank, payload in enumerate(first):
        if payload[:DIGEST_BYTES] != said:
            who = session.parties[rank]
            raise session.disagreement(f"the dealer told party {who} other things, or it says so")
    coins = channel.exchange(coin)
    for rank, (payload, revealed) in enumerate(zip(first, coins, strict=True)):
        if coin_hash(transcript, rank, revealed) != payload[DIGEST_BYTES:]:
            who = session.parties[rank]
            raise session.disagreement(f"party {who} changed its coin after committing to it")
    lot = lot_digest(said, first, coins)
    if any(echo != lot for echo in channel.exchange(lot)):
        raise session.disagreement("a party told its peers different things")
    copy = drawn_copy(coins, session.copies)
    return copy, drawn_context(lot, copy)


def _open_seeds(
    grant: Grant, transcript: bytes, opened: Sequence[int], channel: Openings
) -> list[tuple[int, list[bytes]]]:
    """The copies that are not used, with their keys by rank."""
    session = grant.session
    told = channel.exchange(b"".join(grant.seeds[copy] for copy in opened))
    by_rank = [list(_pieces(payload, SEED_BYTES)) for payload in told]
    for rank, seeds in enumerate(by_rank):
        for copy, seed in zip(opened, seeds, strict=True):
            hashed = session.seed_hash(rank, copy, seed)
            if hashed != _of_copy(grant.seed_hashes[rank], copy):
                who = session.parties[rank]
                raise session.disagreement(
                    f"party {who} opened a seed that it had not committed to"
                )
    by_copy = zip(opened, zip(*by_rank, strict=True), strict=True)
    return [(copy, stream_keys(transcript, seeds, copy)) for copy, seeds in by_copy]


def _check(
    grant: Grant, drawn: Drawn, opened: Sequence[tuple[int, list[bytes]]], channel: Openings
) -> None:
    """Makes this party's part of the corrections of the opened copies again."""
    checks: list[tuple[int, Future[bool]]] = []

    def settle() -> None:
        for index, check in checks:
            if not check.result():
                raise drawn.wrong(f"item {index} of a copy that was opened is not what it must be")
        checks.clear()

    unheard = 0
    with ThreadPoolExecutor(MADE_AT_ONCE, thread_name_prefix="check") as threads:
        for index, item in enumerate(grant.session.plan):
            for place, (copy, keys) in enumerate(opened):
                if (place + index) % channel.size == channel.rank:
                    said = _of_copy(grant.digests[index], copy)
                    checks.append((index, threads.submit(_is_right, item, keys, index, said)))
            unheard += len(opened) * item.correction_bytes
            if unheard > _CHECKED_BYTES or len(checks) > _COMPARED_AT_ONCE:
                settle()
            if unheard > _CHECKED_BYTES:
                channel.exchange(b"")
                unheard = 0
        settle()
    # Nobody uses anything before everybody is content.
    channel.exchange(b"")


def _is_right(item: Item[Any], keys: Sequence[bytes], index: int, said: bytes) -> bool:
    """Whether the dealer has committed to the correction that the keys require."""
    with contextlib.ExitStack() as places:
        if item.correction_bytes > LARGE_BYTES:
            places.enter_context(_making_large)
        places.enter_context(_making)
        return commit(item, [keys], index) == said


def _pieces(payload: bytes, size: int) -> Iterable[bytes]:
    return (payload[start : start + size] for start in range(0, len(payload), size))
