"""A filter: how much may still be asked, whatever was answered so far.

Queries, noise and data of the next step may be chosen by all that was seen before, in either world
alike. The filter holds a square b (a mu^2) and a slack s, which start from the limit that a data
owner set. A step with a certificate (`mpc_vote.privacy.certificates`) may be made if a floor b_j
has b - c_j >= b_j, and its slack is no more than s; b - c_j and s - slack are left.

Theorem. Whoever chooses the steps and however, all that is ever seen has a profile of at most
G_b + s, for the b and s of the start: epsilon at delta for every pair with G_b(e^epsilon) + s <=
delta.

Proof, by induction on the most steps that can still follow. With none left nothing is seen, and the
profile is max(0, 1 - g) = G_0(g) <= G_b(g) + s. Else take what was seen before as given; the next
step is then fixed, and of its versions one is that of the data. After outcome y, which changes
the ratio of the two worlds' probabilities from 1 to Q(y) / P(y), all the rest has a profile of at
most G_b' + s' with b' = b - c_j and s' = s - slack, by induction. So step and rest together have at
most the sum over y of P(y) (G_b' (g Q(y) / P(y)) + s') = (step G_b')(g) + s', and by the
certificate, as b' >= b_j, that is at most G_(b' + c_j)(g) + slack + s' = G_b(g) + s.

What is fixed in advance is the limit only. A later, higher limit is as if it had been there from
the start: the steps made so far are replayed from it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from mpc_vote.privacy.accountant import check_delta, gaussian_exact_epsilon
from mpc_vote.privacy.certificates import Certificate, certify
from mpc_vote.privacy.gdp import square_for
from mpc_vote.privacy.label_steps import Seen
from mpc_vote.privacy.profiles import FloatArray

SLACK_SHARE = 1 / 128
"""Of delta: what is set aside for the slack of all steps together."""

_MOST_STEPS = 1 << 40


class LimitReached(ValueError):
    """More steps than the limit allows."""


@dataclass(frozen=True)
class LossFilter:
    """What is left of a limit: a mu^2, and of delta what steps may add."""

    square: float
    slack: float

    @classmethod
    def for_limit(cls, epsilon: float, delta: float) -> LossFilter:
        """Of which all steps together lose no more than epsilon at delta."""
        check_delta(delta)
        slack = delta * SLACK_SHARE
        return cls(square_for(epsilon, delta - slack), slack)

    def step_slack(self, scale: float) -> float:
        """A slack for steps that cost at least half of `scale`, a power of two: with it a filter
        runs out of its square before it runs out of its slack."""
        if not 0 < scale < math.inf or self.square <= 0:
            raise ValueError("there is nothing to share")
        return _power_of_two(min(1.0, scale / 2 / self.square) * self.slack)

    def allows(self, certificate: Certificate) -> int:
        """How many more of such steps fit."""
        low, high = 0, 1
        while high < _MOST_STEPS and self._left(certificate, high) is not None:
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            if self._left(certificate, middle) is not None:
                low = middle
            else:
                high = middle
        return low

    def after(self, certificate: Certificate, steps: int) -> LossFilter:
        """What so many steps leave; LimitReached if they don't fit."""
        if isinstance(steps, bool) or not isinstance(steps, int) or steps < 0:
            raise ValueError(f"steps must be a number of them, not {steps!r}")
        left = self._left(certificate, steps)
        if left is None:
            raise LimitReached(f"{steps} more don't fit: {self.allows(certificate)} would")
        return left

    def _left(self, certificate: Certificate, steps: int) -> LossFilter | None:
        if steps == 0:
            return self
        square = certificate.left(self.square, steps)
        slack = math.nextafter(self.slack - steps * certificate.slack, -math.inf)
        return None if square is None or slack < 0 else LossFilter(square, slack)


def planned_epsilon(steps: Sequence[tuple[Certificate, int]], delta: float) -> float:
    """The least epsilon at delta of a filter that allows these steps, in this order."""
    check_delta(delta)
    square = 0.0
    for certificate, number in reversed(steps):
        if number:
            square = certificate.needed(square, number)
    left = delta - math.fsum(certificate.slack * number for certificate, number in steps)
    left = math.nextafter(left, -math.inf)
    if left < delta / 2:
        return math.inf
    return gaussian_exact_epsilon(math.sqrt(square), left)


def steps_epsilon(seen: Seen, law: FloatArray, move: int, steps: int, delta: float) -> float:
    """What so many steps under noise of one law lose: `planned_epsilon` with a slack of its own."""
    check_delta(delta)
    if steps == 0:
        return 0.0
    slack = _power_of_two(delta * SLACK_SHARE / steps)
    return planned_epsilon([(certify(seen, law, move, slack), steps)], delta)


def _power_of_two(at_most: float) -> float:
    """So that few slacks, and few certificates, are in use."""
    return 2.0 ** math.floor(math.log2(at_most))
