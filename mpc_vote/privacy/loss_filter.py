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
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mpc_vote.privacy.accountant import check_delta, gaussian_exact_epsilon
from mpc_vote.privacy.certificates import Certificate, certify
from mpc_vote.privacy.gdp import square_for
from mpc_vote.privacy.label_steps import Seen
from mpc_vote.privacy.profiles import FloatArray

SLACK_SHARE = 1 / 128
"""Of delta: what is set aside for the slack of all steps together."""

_MOST_STEPS = 1 << 60
_ROUND_UP = 1 + 2.0**-40


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
        while high < _MOST_STEPS and self.left(certificate, high) is not None:
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            if self.left(certificate, middle) is not None:
                low = middle
            else:
                high = middle
        return low

    def after(self, certificate: Certificate, steps: int) -> LossFilter:
        """What so many steps leave; LimitReached if they don't fit."""
        if isinstance(steps, bool) or not isinstance(steps, int) or steps < 0:
            raise ValueError(f"steps must be a number of them, not {steps!r}")
        left = self.left(certificate, steps)
        if left is None:
            raise LimitReached(f"{steps} more don't fit: {self.allows(certificate)} would")
        return left

    def left(self, certificate: Certificate, steps: int) -> LossFilter | None:
        """What so many steps leave; None if they don't fit."""
        if steps == 0:
            return self
        square = certificate.left(self.square, steps)
        slack = math.nextafter(self.slack - steps * certificate.slack, -math.inf)
        return None if square is None or slack < 0 else LossFilter(square, slack)


class Steps:
    """Steps in the order in which they were made, and the least limit that allows them."""

    def __init__(self) -> None:
        self._runs: list[tuple[Certificate, int]] = []
        # Of all runs before one: their highest floor, what they take above it, and their slack.
        self._before: list[tuple[float, float, float]] = []

    def add(self, certificate: Certificate, number: int) -> None:
        """After all others."""
        if self._runs and self._runs[-1][0] == certificate:
            self._runs[-1] = certificate, self._runs[-1][1] + number
            return
        floor, above, slack = self._whole()
        self._before.append((floor, above, slack))
        self._runs.append((certificate, number))

    def epsilon(self, delta: float, later: Sequence[tuple[Certificate, int]] = ()) -> float:
        """The least epsilon at delta of a filter that allows these steps, then later ones, in
        whatever order those are made."""
        check_delta(delta)
        together: Counter[Certificate] = Counter()
        for certificate, number in later:
            together[certificate] += number
        slack = math.fsum(one.slack * number for one, number in together.items()) * _ROUND_UP
        if slack + self._whole()[2] > delta * SLACK_SHARE:
            return math.inf
        square = self._needed(together)
        return gaussian_exact_epsilon(math.sqrt(square), delta * (1 - SLACK_SHARE))

    def _needed(self, later: Mapping[Certificate, int]) -> float:
        if len(later) > 1:
            before, rest = len(self._runs), _in_any_order(later)
        else:
            before, rest = self._with_last(later)
        while before:
            floor, above, _ = self._first(before)
            if rest >= floor:
                return (rest + above) * _ROUND_UP
            before -= 1
            certificate, number = self._runs[before]
            rest = certificate.needed(rest, number)
        return rest

    def _with_last(self, later: Mapping[Certificate, int]) -> tuple[int, float]:
        """What later steps of one certificate need, with the run before them if it is of the same:
        what was added and what is later come to the same digits."""
        before = len(self._runs)
        if not before and not later:
            return 0, 0.0
        ((certificate, number),) = later.items() or (self._runs[-1],)
        if before and self._runs[-1][0] == certificate:
            before -= 1
            number = self._runs[-1][1] + (number if later else 0)
        return before, certificate.needed(0.0, number)

    def _first(self, number: int) -> tuple[float, float, float]:
        return self._before[number] if number < len(self._runs) else self._whole()

    def _whole(self) -> tuple[float, float, float]:
        if not self._runs:
            return 0.0, 0.0, 0.0
        (floor, above, slack), (certificate, number) = self._before[-1], self._runs[-1]
        return (
            max(floor, certificate.floors[-1]),
            (above + number * certificate.costs[-1]) * _ROUND_UP,
            (slack + number * certificate.slack) * _ROUND_UP,
        )


def _in_any_order(runs: Mapping[Certificate, int]) -> float:
    """What runs need with nothing after them, in whatever order: each step at the most that it may
    cost."""
    floor = max((one.floors[0] for one in runs), default=0.0)
    costs = math.fsum(one.costs[0] * number for one, number in runs.items())
    return (floor + costs) * _ROUND_UP


def planned_epsilon(steps: Sequence[tuple[Certificate, int]], delta: float) -> float:
    """The least epsilon at delta of a filter that allows these steps, in this order."""
    planned = Steps()
    for certificate, number in steps:
        if number:
            planned.add(certificate, number)
    return planned.epsilon(delta)


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
