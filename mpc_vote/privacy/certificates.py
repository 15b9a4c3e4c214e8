"""Certificates: what a step costs where a Gaussian rest follows, as a few numbers anyone can check.

G_b is the profile of N(mu, 1) against N(0, 1) with mu^2 = b (`mpc_vote.privacy.profiles`). A
certificate of a step has floors b_0 < b_1 < ..., costs c_0 > c_1 > ... and a slack, and claims for
every version of the step, every j and every g that

    (step G_(b_j))(g) <= G_(b_j + c_j)(g) + slack.

It then holds for every larger b in place of b_j: a Gaussian of b is one of b_j with another beside
it, and what bounds two worlds for all g does so beside any independent third thing. The first
labels that are asked are followed by many others, so most pay the least cost: for labels that is
2/pi of what the totals lose, and only the last few pay as much as totals.

A certificate is checked on a grid of g: what `Cover.step` gives is convex in g and so below its
chords, G is convex and so above its tangents, and the difference of chord and tangents is least
where two tangents meet. Both worlds swapped are versions as well and G is its own swap, so g >= 1
suffices; beyond the grid, where the step itself is within the slack, nothing remains to be shown.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property, lru_cache
from statistics import NormalDist

import numpy as np

from mpc_vote.privacy.label_steps import COARSE, CUT, Seen, cover_step, loss_scale
from mpc_vote.privacy.profiles import (
    ROUNDING,
    Cover,
    FloatArray,
    gaussian_rise,
    gaussian_slope,
    gaussian_tail,
    tail_of,
)

LEAST_SLACK = 2.0**-60
"""What is certified must stand out from what is cut off a law."""

_FEW_FLOORS = (0.0, 0.5, 1.0, 2.0, 3.0, 5.0, 8.0, 12.0, 20.0, 40.0, 80.0, 250.0)
_MANY_FLOORS = tuple(
    sorted({*_FEW_FLOORS, 0.25, 0.75, 1.5, 2.5, 4.0, 6.0, 10.0, 15.0, 27.0, 55.0, 120.0})
)
_FLOORS = {
    Seen.TOTALS: _FEW_FLOORS,
    Seen.THRESHOLD: _MANY_FLOORS,
    Seen.FLIP: _FEW_FLOORS,
}
_EXACTNESS = 2.0**-12  # of a cost, relative to the step's scale
_NEWTON_STEPS = 20
_CORRECTIONS = 10
_NO_RISE = 2.0**-200
_FARTHEST = 600.0
_FIRST_PLACES = 64
_ROUND_UP = 1 + 2.0**-40


@dataclass(frozen=True)
class Certificate:
    """Floors and costs of a step, in mu^2, and what each step adds to delta."""

    floors: tuple[float, ...]
    costs: tuple[float, ...]
    slack: float

    def __post_init__(self) -> None:
        rising = all(a < b for a, b in zip(self.floors, self.floors[1:], strict=False))
        falling = all(a > b for a, b in zip(self.costs, self.costs[1:], strict=False))
        if not self.floors or len(self.floors) != len(self.costs) or not (rising and falling):
            raise ValueError("a certificate has rising floors, each with a cost, falling")
        finite = self.floors[-1] < math.inf and self.costs[0] < math.inf
        if not (finite and self.floors[0] >= 0 and self.costs[-1] > 0 and 0 <= self.slack < 1):
            raise ValueError("floors and slack are not negative, costs positive, and all finite")

    @classmethod
    def of_mu(cls, mu: float, slack: float = 0.0) -> Certificate:
        """Of a step that is mu-GDP up to a slack: it costs the same whatever follows."""
        return cls((0.0,), (mu * mu * _ROUND_UP,), slack)

    def to_json(self) -> str:
        """Exact: floats are written so that they are read back as they are."""
        return json.dumps({"floors": self.floors, "costs": self.costs, "slack": self.slack})

    @classmethod
    def from_json(cls, text: str) -> Certificate:
        """What `to_json` wrote; whether it holds is for `check_certificate` to say."""
        read = json.loads(text)
        return cls(tuple(read["floors"]), tuple(read["costs"]), read["slack"])

    def needed(self, rest: float, steps: int) -> float:
        """The least b that suffices for so many steps where a rest of `rest` follows.

        A step takes max(rest, b_j) + c_j, by the best floor: it grows with the rest, so what was
        enough for more is enough for less.
        """
        b = max(rest, self.floors[0])
        while steps:
            at = bisect_right(self.floors, b) - 1
            cost, jump = self.costs[at], self._jumps[at]
            here = steps if jump == math.inf else min(steps, max(0, int((jump - b) / cost)))
            if here:
                b = (b + here * cost) * _ROUND_UP
            elif steps:
                b, here = jump * _ROUND_UP, 1
            steps -= here
        return b

    @cached_property
    def _jumps(self) -> tuple[float, ...]:
        """For each floor the least of b_k + c_k over those above."""
        takes = [floor + cost for floor, cost in zip(self.floors, self.costs, strict=True)]
        return tuple(min(takes[at + 1 :], default=math.inf) for at in range(len(takes)))

    def left(self, b: float, steps: int) -> float | None:
        """The rest that so many steps leave of b; None if they don't fit."""
        for floor, cost in zip(reversed(self.floors), reversed(self.costs), strict=True):
            room = b - floor
            if room >= cost:
                within = min(steps, math.floor(room / cost * (2 - _ROUND_UP)))
                b -= within * cost * _ROUND_UP
                steps -= within
            if steps == 0:
                return b
        return None


@lru_cache(maxsize=64)
def _certified(seen: Seen, law: bytes, move: int, slack: float) -> Certificate:
    probabilities = np.frombuffer(law)
    step = _Step(cover_step(seen, probabilities, move), 2 * CUT[seen], slack)
    scale = loss_scale(seen, probabilities, move)
    floors: list[float] = []
    costs: list[float] = []
    for multiple in _FLOORS[seen]:
        cost = step.least_cost(multiple * scale, scale)
        if cost is not None and (not costs or cost < costs[-1]):
            floors.append(multiple * scale)
            costs.append(cost)
    if not costs:
        raise NotHidden(f"noise of this law does not hide a move of {move} units")
    return Certificate(tuple(floors), tuple(costs), slack)


class NotHidden(ValueError):
    """Noise shows what moved with a probability above the slack."""


def certify(seen: Seen, law: FloatArray, move: int, slack: float) -> Certificate:
    """The certificate of a step under noise of a law, in a second or a few; remembered."""
    if not LEAST_SLACK <= slack < 1:
        raise ValueError(f"a slack is at least {LEAST_SLACK:g}, not {slack:g}")
    return _certified(seen, np.ascontiguousarray(law, dtype=np.float64).tobytes(), move, slack)


def floor_cost(
    seen: Seen, law: FloatArray, move: int, slack: float, multiple: float
) -> tuple[float, float] | None:
    """A floor, so many times what a step loses, and what a step costs there; None if none does."""
    scale = loss_scale(seen, law, move)
    step = _Step(cover_step(seen, law, move, COARSE), 2 * CUT[seen], slack)
    cost = step.least_cost(multiple * scale, scale)
    return None if cost is None else (multiple * scale, cost)


def check_certificate(given: Certificate, seen: Seen, law: FloatArray, move: int) -> bool:
    """Whether a certificate holds for a step, by this computation; a no is no proof that it
    doesn't."""
    if given.slack < LEAST_SLACK:
        return False
    step = _Step(cover_step(seen, law, move), 2 * CUT[seen], given.slack)
    for floor, cost in zip(given.floors, given.costs, strict=True):
        bounds = step.bounds(floor)
        if bounds is None or not step.below(*bounds, floor + cost):
            return False
    return True


@dataclass(frozen=True)
class _Step:
    """What a certificate is about. `cut` bounds the probability that the law's cut changes it."""

    cover: Cover
    cut: float
    slack: float

    def least_cost(self, floor: float, scale: float) -> float | None:
        """Of what `below` accepts, next to the least; None if nothing is.

        By Newton's method at all places at once, which ends at most a little below; then a little
        more is added until it is enough.
        """
        bounds = self.bounds(floor)
        if bounds is None:
            return None
        x, profile = bounds
        cost = scale
        for _ in range(_NEWTON_STEPS):
            missing = profile - _claimed(floor + cost, x)[0] - self.tolerance(x)
            rise = gaussian_rise(floor + cost, x)
            matters = rise > _NO_RISE
            if not matters.any():
                break
            change = float((missing[matters] / rise[matters]).max())
            cost += min(max(change, -cost / 2), cost)
            if abs(change) < _EXACTNESS * scale / 4:
                break
        for number in range(_CORRECTIONS):
            if self.below(x, profile, floor + cost):
                return cost
            cost += _EXACTNESS * scale * 2.0**number
        return None

    def bounds(self, floor: float) -> tuple[FloatArray, FloatArray] | None:
        """Places, and the step's profile at them with what rounding may have taken off, up to
        where it is within the slack."""
        if self.cover.never_hidden >= self.slack:
            return None
        apart = float(self.cover.grid.places(2)[1])
        # Beyond, the cut takes all of the slack, or there is no hiding.
        farthest = math.log(self.slack / self.cut) if self.cut else _FARTHEST
        most = int(farthest / apart)
        # About where a Gaussian's profile is within the slack.
        square = floor + (apart * self.cover.grid.fineness) ** 2
        place = square / 2 - math.sqrt(square) * NormalDist().inv_cdf(self.slack)
        number = min(max(_FIRST_PLACES, math.ceil(place / apart)), most)
        while True:
            x = self.cover.grid.places(number)
            profile = self.cover.step(floor, number)
            profile += ROUNDING * tail_of(profile, apart)
            within = profile <= self.tolerance(x)
            if within.any():
                end = int(np.argmax(within)) + 1
                return x[:end], profile[:end]
            if number == most:
                return None
            number = min(number + number // 2, most)

    def below(self, x: FloatArray, profile: FloatArray, square: float) -> bool:
        """Whether the chords of a profile lie below the tangents of G, up to the slack."""
        g = np.exp(x)
        value, slope = _claimed(square, x)
        tolerance = self.tolerance(x)
        if (profile > value + tolerance).any():
            return False
        apart, turn = np.diff(g), slope[1:] - slope[:-1]
        rise = value[:-1] - value[1:] + slope[1:] * apart
        where = np.divide(rise, turn, out=np.zeros_like(rise), where=turn > 0).clip(0.0, apart)
        left, right = value[:-1] + slope[:-1] * where, value[1:] - slope[1:] * (apart - where)
        chords = profile[:-1] + np.diff(profile) * (where / apart)
        return not (chords > np.maximum(left, right) + tolerance[1:]).any()

    def tolerance(self, x: FloatArray) -> FloatArray:
        """What is left of the slack after a law's cut in both worlds."""
        return self.slack - (1 + np.exp(x)) * self.cut


def _claimed(square: float, x: FloatArray) -> tuple[FloatArray, FloatArray]:
    """G, less what rounding may have added to it, and its slope."""
    tail, slope = gaussian_tail(square, x), gaussian_slope(square, x)
    return np.maximum(0.0, tail + np.exp(x) * slope) - ROUNDING * tail, slope
