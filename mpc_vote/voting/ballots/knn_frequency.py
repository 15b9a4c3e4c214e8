"""One vote split over the labels of an agent's nearest records (the paper's kNN-DPFL)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from mpc_vote.privacy.sensitivity import Sensitivity
from mpc_vote.proto.mpcvote.v1 import common_pb2
from mpc_vote.voting.ballots.kind import IntArray, unit_of
from mpc_vote.voting.ballots.neighbours import NeighbourBallot, checked_ks


class KnnFrequency(NeighbourBallot):
    """floor(count * 2^f / k), k being the public number of neighbours, also where the agent has
    fewer records: dividing by its own number of records would let one record move the ballot by
    more than 1/k of a vote."""

    name = "knn_frequency"
    code = common_pb2.BALLOT_KIND_KNN_FREQUENCY
    about = "kNN-DPFL, a vote shared by each agent's neighbours"

    def _encode(self, counts: IntArray, fraction_bits: int, k: int) -> IntArray:
        return counts * unit_of(fraction_bits) // k

    def agent_sensitivity(
        self, *, fraction_bits: int, ks: Sequence[int] = (), tau: int | None = None
    ) -> Sensitivity:
        # Floors of non-negative parts of one vote: sum <= 2^f, and l2 <= l1. How the vote is
        # spread over cells is the agent's secret, and no spread is known to be the worst.
        unit = unit_of(fraction_bits)
        return Sensitivity(unit, unit**2)

    def instance_sensitivity(
        self, *, fraction_bits: int, ks: Sequence[int] = (), tau: int | None = None
    ) -> Sensitivity:
        # One neighbour is swapped for another, so two counts move by one, and
        # floor(x + d) - floor(x) <= ceil(d) with d = 2^f / k, largest for the smallest k.
        step = -(-unit_of(fraction_bits) // min(checked_ks(ks)))
        return Sensitivity.of_cells(2, step)

    def max_entry(
        self, *, fraction_bits: int, ks: Sequence[int] = (), tau: int | None = None
    ) -> int:
        return unit_of(fraction_bits)

    def default_fraction_bits(self, ks: Sequence[int]) -> int:
        """Enough more to tell 1/k of a vote apart."""
        return super().default_fraction_bits(ks) + math.ceil(math.log2(max(ks)))

    def ideal_unit(self, ks: Sequence[int]) -> int:
        return min(ks)

    def ideal_sensitivities(
        self, ks: Sequence[int], tau: int | None
    ) -> tuple[Sensitivity, Sensitivity]:
        # Nothing is rounded, and one neighbour in k is swapped for another.
        unit = self.ideal_unit(ks)
        return Sensitivity(unit, unit**2), Sensitivity(2, 2)
