"""One vote for one class, or none: what an agent's model predicts (AE-DPFL, Algorithm 2)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from mpc_vote.privacy.mechanisms import Decided
from mpc_vote.privacy.sensitivity import Sensitivity
from mpc_vote.proto.mpcvote.v1 import common_pb2
from mpc_vote.verified.encoding import Layout
from mpc_vote.voting.ballots.kind import BallotKind, IntArray, check_positive, integers, unit_of

ABSTAIN = -1
"""In place of a label: no vote at all, which is no more sensitive than one."""


class OneHot(BallotKind):
    """A voter gives labels, (queries,), or `ABSTAIN`."""

    name = "one_hot"
    code = common_pb2.BALLOT_KIND_ONE_HOT
    about = "AE-DPFL, a vote of each agent's model"
    decided = Decided.ARGMAX
    wants = "integers of shape (queries,), each a class from 0 or -1 for none"

    def encode(
        self, votes: npt.ArrayLike, *, classes: int, fraction_bits: int, k: int = 0, tau: int = 0
    ) -> IntArray:
        unit = unit_of(fraction_bits)
        check_positive("classes", classes)
        labels = integers("labels", votes, 1)
        if labels.size and (labels.min() < ABSTAIN or labels.max() >= classes):
            raise ValueError(
                f"labels must lie in 0..{classes - 1}: map them to class indices first"
            )
        ballots = np.zeros((labels.size, classes), dtype=np.int64)
        voting = np.flatnonzero(labels != ABSTAIN)
        ballots[voting, labels[voting]] = unit
        return ballots

    def agent_sensitivity(
        self, *, fraction_bits: int, ks: Sequence[int] = (), tau: int | None = None
    ) -> Sensitivity:
        # One entry of one vote.
        return Sensitivity.of_cells(1, unit_of(fraction_bits))

    def instance_sensitivity(
        self, *, fraction_bits: int, ks: Sequence[int] = (), tau: int | None = None
    ) -> Sensitivity:
        # The prediction flips: one entry loses a vote, another gains one.
        return Sensitivity.of_cells(2, unit_of(fraction_bits))

    def max_entry(
        self, *, fraction_bits: int, ks: Sequence[int] = (), tau: int | None = None
    ) -> int:
        return unit_of(fraction_bits)

    def layout(self, classes: int, unit: int, k: int, tau: int) -> Layout:
        return Layout(classes, unit)
