"""From shares of ballots to the rows of a secure argmax: what every party does with its shares."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from mpc_vote.mpc.channel import Openings
from mpc_vote.mpc.preprocessing import Preprocessing
from mpc_vote.mpc.prg import Words
from mpc_vote.mpc.sharing import Share, ShareReader, split, sum_blocks
from mpc_vote.verified.encoding import BitReader, encode, split_bits
from mpc_vote.verified.summation import ByteSource
from mpc_vote.voting.ballots import IntArray
from mpc_vote.voting.spec import Spec


class Totals:
    """A party's shares of the totals of a round, row by row, of the agents whose shares it has.

    The ballots of a verified round are all turned into numbers before the first row is given, with
    noise that the parties draw then: so totals are made after the round's one aggregation is marked
    for ever. Any `coins` but fresh ones are for simulation only.
    """

    def __init__(
        self, spec: Spec, shares: Mapping[str, Share], coins: ByteSource | None = None
    ) -> None:
        self._spec = spec
        self._shares = shares
        self._coins = coins
        self._readers = [
            ShareReader(share, spec.message.ring_bits)
            for share in ([] if spec.message.verified else shares.values())
        ]
        self._verified: Words | None = None

    def take(self, rows: int, channel: Openings, preprocessing: Preprocessing) -> Words:
        """The next rows, `row_classes` to a row.

        An attribute is a row of two: half of the counted agents, and those who say yes. Half is
        public, so it is party 0's share alone; a tie is a no.
        """
        spec = self._spec
        cells = rows if spec.ballot.attributes else rows * spec.row_classes
        totals = self._cells(cells, channel, preprocessing)
        if not spec.ballot.attributes:
            return totals
        votes = len(self._shares) << spec.message.fraction_bits
        half = votes // 2 if channel.rank == 0 else 0
        return np.stack([np.full(rows, half, dtype=np.uint64), totals], axis=1).reshape(-1)

    def _cells(self, count: int, channel: Openings, preprocessing: Preprocessing) -> Words:
        if not self._spec.message.verified:
            return sum_blocks(self._readers, count)
        if self._verified is None:
            self._verified = self._count(channel, preprocessing)
        cells, self._verified = np.split(self._verified, [count])
        return cells

    def _count(self, channel: Openings, preprocessing: Preprocessing) -> Words:
        spec = self._spec
        readers = [
            BitReader(self._shares[agent], spec.layout(agent)) if agent in self._shares else None
            for agent in spec.roster
        ]
        return spec.summation.run(readers, channel, preprocessing, self._coins)


def share_ballot(spec: Spec, agent: str, ballot: IntArray) -> list[Share]:
    """An agent's side: shares of its ballot, one for each party; in a round that is not verified
    the ballot holds its noise."""
    parties, explicit = len(spec.parties), spec.explicit_rank(agent)
    if spec.message.verified:
        return split_bits(encode(spec.layout(agent), ballot), parties, explicit)
    return split(ballot, parties, explicit, spec.message.ring_bits)
