"""A filter for what a single record loses where its contributions are bounded.

Which queries a record contributes to is not public, so what is left of a limit is not one number.
The filter holds, for every number c of steps that may have differed so far, the least mu^2 and
slack that can be left after c of them: `left[c]` and `slack[c]`. A query of a bounded round makes
of it min(left[c], left[c - 1] less the step's cost there), for c up to the largest bound so far (or
twice that, where records are replaced: of two records one may still take part where the other has
contributed beyond a smaller bound); one of a round without a bound charges every c. It is refused
if any c could not pay. All of this follows from rounds and bounds, which are public, and from no
record.

Theorem. Whoever chooses rounds by what was seen: the profile of all that is ever seen is at most
that of the start. For take any record and any path. After c steps that differed, a
`mpc_vote.privacy.loss_filter.LossFilter` that is charged for these alone has no less than `left[c]`
and `slack[c]` left, by induction: what a step leaves does not fall where more was there before it.
So that filter allows every step that this one does, and its theorem holds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mpc_vote.privacy.certificates import Certificate
from mpc_vote.privacy.loss_filter import LimitReached, LossFilter
from mpc_vote.privacy.profiles import FloatArray

_ROUND_UP = 1 + 2.0**-40


@dataclass(frozen=True, eq=False)
class RecordFilter:
    """The least that can be left of a limit, by the number of steps that differed."""

    left: FloatArray
    slack: FloatArray

    @classmethod
    def for_limit(cls, epsilon: float, delta: float) -> RecordFilter:
        """Of which a record loses no more than epsilon at delta."""
        start = LossFilter.for_limit(epsilon, delta)
        return cls(np.array([start.square]), np.array([start.slack]))

    def after(
        self, certificate: Certificate, queries: int, most: int | None, steps: int = 1
    ) -> RecordFilter:
        """What so many queries leave, each of which is so many steps of a certificate; `most` of
        them may differ, or all where there is no bound. LimitReached if some record could not
        pay."""
        left, slack = self.left, self.slack
        if most is None:
            for _ in range(queries):
                left, slack = _charged(left, slack, certificate, steps)
            return RecordFilter(left, slack)
        most = max(most, len(left) - 1)
        left, slack = (_padded(one, most + 1) for one in (left, slack))
        # After as many queries as may differ nothing changes any more.
        for _ in range(min(queries, most)):
            known = slice(0, most)
            paid, added = _charged(left[known], slack[known], certificate, steps)
            left[1 : most + 1] = np.minimum(left[1 : most + 1], paid)
            slack[1 : most + 1] = np.minimum(slack[1 : most + 1], added)
        return RecordFilter(left[np.isfinite(left)], slack[np.isfinite(left)])


def _padded(given: FloatArray, length: int) -> FloatArray:
    """With infinity where no path leads yet."""
    return np.concatenate([given, np.full(length - len(given), np.inf)])


def _charged(
    left: FloatArray, slack: FloatArray, certificate: Certificate, steps: int
) -> tuple[FloatArray, FloatArray]:
    """What the steps of one query leave of each."""
    floors, costs = np.array(certificate.floors), np.array(certificate.costs)
    slack = slack - steps * certificate.slack * _ROUND_UP
    for _ in range(steps):
        rest = left[:, None] - costs * _ROUND_UP
        left = np.where(rest >= floors, rest, -np.inf).max(axis=1)
    if (left < 0).any() or (slack < 0).any():
        raise LimitReached("a single record could lose more than the limit")
    return left, slack
