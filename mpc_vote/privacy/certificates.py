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
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from mpc_vote.privacy.label_steps import CUT, Seen, cover_step, loss_scale
from mpc_vote.privacy.profiles import (
    ROUNDING,
    Cover,
    FloatArray,
    gaussian_profile,
    gaussian_slope,
)

LEAST_SLACK = 2.0**-36
"""What is certified must stand out from what rounding may take off."""

_FLOORS = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 18.0, 27.0, 40.0, 64.0, 120.0, 250.0)
_EXACTNESS = 2.0**-12  # of a cost, relative to the step's scale
_MOST_DOUBLINGS = 12
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
        """The least b that suffices for so many steps where a rest of `rest` follows."""
        b = max(rest, self.floors[0])
        ends = (*self.floors[1:], math.inf)
        for end, cost in zip(ends, self.costs, strict=True):
            if b >= end:
                continue
            within = steps if end == math.inf else min(steps, math.ceil((end - b) / cost))
            b = (b + within * cost) * _ROUND_UP
            steps -= within
            if steps == 0:
                break
        return b

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
    cover = cover_step(seen, probabilities, move)
    scale = loss_scale(seen, probabilities, move)
    floors: list[float] = []
    costs: list[float] = []
    for multiple in _FLOORS:
        cost = _least_cost(cover, multiple * scale, scale, slack)
        if cost is not None and (not costs or cost < costs[-1]):
            floors.append(multiple * scale)
            costs.append(cost)
    if not costs:
        raise ValueError(f"noise of this law does not hide a move of {move} units")
    return Certificate(tuple(floors), tuple(costs), slack)


def certify(seen: Seen, law: FloatArray, move: int, slack: float) -> Certificate:
    """The certificate of a step under noise of a law, in a second or a few; remembered."""
    if not LEAST_SLACK <= slack < 1:
        raise ValueError(f"a slack is at least {LEAST_SLACK:g}, not {slack:g}")
    return _certified(seen, np.ascontiguousarray(law, dtype=np.float64).tobytes(), move, slack)


def check_certificate(given: Certificate, seen: Seen, law: FloatArray, move: int) -> bool:
    """Whether a certificate holds for a step, by this computation; a no is no proof that it
    doesn't."""
    if given.slack < LEAST_SLACK:
        return False
    cover = cover_step(seen, law, move)
    for floor, cost in zip(given.floors, given.costs, strict=True):
        bounds = _bounds(cover, floor, given.slack)
        if bounds is None or not _below(*bounds, floor + cost, given.slack):
            return False
    return True


def _least_cost(cover: Cover, floor: float, scale: float, slack: float) -> float | None:
    """Of what `_below` accepts, next to the least; None if nothing is."""
    bounds = _bounds(cover, floor, slack)
    if bounds is None:
        return None
    low, high = 0.0, 2 * scale
    for _ in range(_MOST_DOUBLINGS):
        if _below(*bounds, floor + high, slack):
            break
        low, high = high, 2 * high
    else:
        return None
    while high - low > _EXACTNESS * scale:
        middle = (low + high) / 2
        if _below(*bounds, floor + middle, slack):
            high = middle
        else:
            low = middle
    return high


def _bounds(cover: Cover, floor: float, slack: float) -> tuple[FloatArray, FloatArray] | None:
    """Places, and the step's profile at them, up to where it is within the slack."""
    if cover.never_hidden >= slack:
        return None
    apart = cover.grid.places(2)[1]
    most = int(math.log(slack / CUT) / apart)  # beyond, the cut alone takes all of the slack
    number = min(_FIRST_PLACES, most)
    while True:
        x = cover.grid.places(number)
        profile = cover.step(floor, number)
        within = profile <= _tolerance(x, slack)
        if within.any():
            end = int(np.argmax(within)) + 1
            return x[:end], profile[:end]
        if number == most:
            return None
        number = min(2 * number, most)


def _below(x: FloatArray, profile: FloatArray, square: float, slack: float) -> bool:
    """Whether the chords of a profile lie below the tangents of G, up to the slack."""
    value, slope, g = gaussian_profile(square, x), gaussian_slope(square, x), np.exp(x)
    tolerance = _tolerance(x, slack)
    if (profile > value + tolerance).any():
        return False
    apart, turn = np.diff(g), slope[1:] - slope[:-1]
    rise = value[:-1] - value[1:] + slope[1:] * apart
    where = np.clip(np.divide(rise, turn, out=np.zeros_like(rise), where=turn > 0), 0.0, apart)
    tangents = np.maximum(value[:-1] + slope[:-1] * where, value[1:] - slope[1:] * (apart - where))
    chords = profile[:-1] + np.diff(profile) * (where / apart)
    return not (chords > tangents + tolerance[1:]).any()


def _tolerance(x: FloatArray, slack: float) -> FloatArray:
    """What is left of a slack after rounding, and after a law's cut in both worlds."""
    return slack - ROUNDING - (1 + np.exp(x)) * CUT
