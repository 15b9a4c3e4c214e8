"""Yes or no to each of several attributes, of which an agent names at most tau."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from mpc_vote.privacy.mechanisms import Decided
from mpc_vote.privacy.sensitivity import Sensitivity
from mpc_vote.proto.mpcvote.v1 import common_pb2
from mpc_vote.verified.encoding import Layout
from mpc_vote.voting.ballots.kind import BallotKind, IntArray, check_positive, unit_of


class MultiLabel(BallotKind):
    """A vote of yes for each attribute scored above 1/2, the `tau` highest where there are more.

    A voter gives scores, (queries, attributes). Ties go to the lower attribute. The cap is what
    bounds the ballot's sensitivity.
    """

    name = "multi_label"
    code = common_pb2.BALLOT_KIND_MULTI_LABEL
    about = "AE-DPFL, a yes of each agent's model for some attributes"
    decided = Decided.EACH
    wants = "numbers of shape (queries, attributes)"
    min_classes: ClassVar[int] = 1
    attributes: ClassVar[bool] = True
    needs_tau: ClassVar[bool] = True

    def encode(
        self, votes: npt.ArrayLike, *, classes: int, fraction_bits: int, k: int = 0, tau: int = 0
    ) -> IntArray:
        unit = unit_of(fraction_bits)
        check_positive("tau", tau)
        scores: npt.NDArray[np.float64] = np.asarray(votes, dtype=np.float64)
        if scores.ndim != 2 or scores.shape[1] != classes:
            raise ValueError(f"scores must have shape (rows, {classes}), not {scores.shape}")
        if np.isnan(scores).any():
            raise ValueError("scores must not hold NaN: repair the model before it votes")
        ballots = np.zeros(scores.shape, dtype=np.int64)
        highest = np.argsort(-scores, axis=1, kind="stable")[:, :tau]
        chosen = np.take_along_axis(scores, highest, axis=1) > 0.5
        np.put_along_axis(ballots, highest, np.where(chosen, unit, 0), axis=1)
        return ballots

    def agent_sensitivity(
        self, *, fraction_bits: int, ks: Sequence[int] = (), tau: int | None = None
    ) -> Sensitivity:
        # At most tau entries of one vote each.
        return Sensitivity.of_cells(_cap(tau), unit_of(fraction_bits))

    def instance_sensitivity(
        self, *, fraction_bits: int, ks: Sequence[int] = (), tau: int | None = None
    ) -> Sensitivity:
        # Up to tau attributes of the old ballot are dropped, up to tau others taken up.
        return Sensitivity.of_cells(2 * _cap(tau), unit_of(fraction_bits))

    def max_entry(
        self, *, fraction_bits: int, ks: Sequence[int] = (), tau: int | None = None
    ) -> int:
        _cap(tau)
        return unit_of(fraction_bits)

    def layout(self, classes: int, unit: int, k: int, tau: int) -> Layout:
        return Layout(classes, unit, tau, attributes=True)


def _cap(tau: int | None) -> int:
    if tau is None:
        raise ValueError("multi-label ballots need tau: the most attributes an agent says yes to")
    check_positive("tau", tau)
    return tau
