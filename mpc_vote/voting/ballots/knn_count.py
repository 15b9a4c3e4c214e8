"""A vote for each of an agent's nearest records: totals and margins grow with k, and what one
record moves does not."""

from __future__ import annotations

from collections.abc import Sequence

from mpc_vote.privacy.mechanisms import Decided
from mpc_vote.privacy.sensitivity import Sensitivity
from mpc_vote.proto.mpcvote.v1 import common_pb2
from mpc_vote.verified.encoding import Layout
from mpc_vote.voting.ballots.kind import IntArray, unit_of
from mpc_vote.voting.ballots.neighbours import NeighbourBallot, checked_ks


class KnnCount(NeighbourBallot):
    """count * 2^f, at most the public k neighbours in a row."""

    name = "knn_count"
    code = common_pb2.BALLOT_KIND_KNN_COUNT
    about = "kNN-DPFL, a vote of each neighbour"
    decided = Decided.ARGMAX

    def _encode(self, counts: IntArray, fraction_bits: int, k: int) -> IntArray:
        return counts * unit_of(fraction_bits)

    def agent_sensitivity(
        self, *, fraction_bits: int, ks: Sequence[int] = (), tau: int | None = None
    ) -> Sensitivity:
        # At most k votes, by the agent with the largest k; how they are spread over cells is the
        # agent's secret, and no spread is known to be the worst.
        most = max(checked_ks(ks)) * unit_of(fraction_bits)
        return Sensitivity(most, most**2)

    def instance_sensitivity(
        self, *, fraction_bits: int, ks: Sequence[int] = (), tau: int | None = None
    ) -> Sensitivity:
        # One neighbour is swapped for another: two counts move by one vote, whatever k is.
        return Sensitivity.of_cells(2, unit_of(fraction_bits))

    def max_entry(
        self, *, fraction_bits: int, ks: Sequence[int] = (), tau: int | None = None
    ) -> int:
        return max(checked_ks(ks)) * unit_of(fraction_bits)

    def layout(self, classes: int, unit: int, k: int, tau: int) -> Layout:
        return Layout(classes, unit, k)

    def votes(self, ks: Sequence[int]) -> int:
        return sum(ks)
