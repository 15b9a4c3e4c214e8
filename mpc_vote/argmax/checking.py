"""Cut and choose: a dealer that deals wrong material is caught, but for one chance in `copies`.

The dealer makes several copies of all material of a session, each from seeds of its own, and
commits to every correction before it can know which copy will be used. The parties then draw that
copy by lot, tell each other their seeds of all other copies, and make the corrections of these
again, each party its part of them: a correction follows from the seeds alone. One that is not what
was committed to ends the session. So a dealer gets away with wrong material only if the one copy in
which it is wrong is the one that is drawn, and then the last party still sees that it gets what was
committed to.

Copies that were opened are never used. A commitment is keyed by the last party's seed of its copy,
so it tells nothing of a copy that stays closed. The lot is fair as long as one party is honest:
everybody commits to its part before anybody tells it.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from mpc_vote.argmax.channel import Openings
from mpc_vote.argmax.material import Item, Plan
from mpc_vote.csprng import SEED_BYTES, SeedStream
from mpc_vote.errors import ErrorKind, VoteError

DIGEST_BYTES = 32
MAX_COPIES = 64

# Of a seed, the stream that no item uses.
_KEY_STREAM = (1 << 64) - 1
_COIN_BYTES = 32
# Parties hear of each other at least this often, in bytes of corrections that were made again.
_CHECKED_BYTES = 1 << 26


@dataclass(frozen=True)
class Grant:
    """What the dealer gave one party of a session."""

    session_id: str
    deal_id: bytes
    seeds: tuple[bytes, ...] = field(repr=False)
    """One for each copy."""
    digests: tuple[bytes, ...] = field(repr=False)
    """For each item of the plan the commitments of all copies, side by side."""

    @property
    def copies(self) -> int:
        return len(self.seeds)

    def digest(self, index: int, copy: int) -> bytes:
        """The commitment to one correction."""
        return self.digests[index][copy * DIGEST_BYTES : (copy + 1) * DIGEST_BYTES]

    def wrong(self, why: str) -> VoteError:
        """The dealer was caught."""
        return VoteError(ErrorKind.DEALER_CAUGHT, session=self.session_id, why=why)


def commitment(correction: bytes, last_seed: bytes, index: int) -> bytes:
    """Binds the dealer to a correction, and hides it from who lacks the last party's seed."""
    key = SeedStream(last_seed, _KEY_STREAM).take(SEED_BYTES)
    digest = hashlib.blake2b(index.to_bytes(8, "big"), digest_size=DIGEST_BYTES, key=key)
    digest.update(correction)
    return digest.digest()


def commit(item: Item[Any], copies: Sequence[Sequence[bytes]], index: int) -> bytes:
    """The dealer's commitments to an item, of the copies with these seeds by rank."""
    return b"".join(commitment(item.correct(seeds, index), seeds[-1], index) for seeds in copies)


def choose(grant: Grant, plan: Plan, channel: Openings) -> int:
    """The copy to use, once all parties have found the others right. Blocks, like an engine."""
    if grant.copies == 1:
        return 0
    chosen = _draw(grant, channel)
    opened = [copy for copy in range(grant.copies) if copy != chosen]
    told = channel.exchange(b"".join(grant.seeds[copy] for copy in opened))
    unheard = 0
    for index, item in enumerate(plan):
        for place, copy in enumerate(opened):
            if (place + index) % channel.size != channel.rank:
                continue
            start = place * SEED_BYTES
            seeds = [payload[start : start + SEED_BYTES] for payload in told]
            if len(set(seeds)) < len(seeds):
                raise grant.wrong("two parties were given the same seed")
            found = commitment(item.correct(seeds, index), seeds[-1], index)
            if found != grant.digest(index, copy):
                raise grant.wrong(f"item {index} of a copy that was opened is not what it must be")
        unheard += len(opened) * item.correction_bytes
        if unheard > _CHECKED_BYTES:
            channel.exchange(b"")
            unheard = 0
    # Nobody uses anything before everybody is content.
    channel.exchange(b"")
    return chosen


def _draw(grant: Grant, channel: Openings) -> int:
    """A copy by lot, which the dealer could not foresee; and that it told everybody the same."""
    coin = os.urandom(_COIN_BYTES)
    said = hashlib.sha256(grant.deal_id + b"".join(grant.digests)).digest()
    first = channel.exchange(said + hashlib.sha256(coin).digest())
    if any(payload[: len(said)] != said for payload in first):
        raise grant.wrong("it committed to different material before different parties")
    coins = channel.exchange(coin)
    for payload, revealed in zip(first, coins, strict=True):
        if hashlib.sha256(revealed).digest() != payload[len(said) :]:
            why = "a party changed its part of the lot"
            raise VoteError(ErrorKind.COMMITTEE_DISAGREES, round=grant.session_id, why=why)
    drawn = int.from_bytes(hashlib.sha256(b"".join(coins)).digest(), "big")
    return drawn % grant.copies
