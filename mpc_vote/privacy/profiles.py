"""Privacy profiles: how far the best test tells two worlds apart, and what one more step adds.

The profile of a pair of worlds is H(g) = sup over events of P - g Q, for g >= 0; epsilon at delta
is log g where H(g) <= delta. Profiles are convex, fall from H(0) = 1 to 0 and never by more than
g Q. A *step* is a pair (P, Q) of distributions over a few outcomes; if what follows outcome y has a
profile of at most H, whichever outcome it was, then step and rest together have at most

    (step H)(g) = sum over y of P(y) H(g Q(y) / P(y)),

where an outcome with P(y) = 0 adds nothing. Every H is a mixture of (1 - g / s)+ over s, so step H
is the same mixture of the step's own profile at g / s: whatever bounds that one bounds step H.

Of one step there may be many versions (every threshold, every data set), of which an adversary
chooses. `Cover` holds them all: a few boxes of weights, on a grid of likelihood ratios, that
contain every version. It is sound since H is convex: chords between the grid's ratios lie above it,
and the sum is then linear in the weights, so the supremum over a box is its middle plus the half
widths. What is computed is never below step H, but for rounding, which `ROUNDING` bounds.

Rounding is bounded in relation to what is left to see. With probabilities p and q that are right to
a relative r the truth is at most (1 + r) H(g (1 - 2 r)) of what was computed. P - g Q is at most
P(ratio >= g), its *tail*, which also bounds how fast g takes it down: so r costs at most 3 r times
the tail. And the tail at g is at most H(g / s) / (1 - 1 / s) for every s > 1, as of a ratio that is
at least g at least 1 - 1 / s counts there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

ROUNDING = 2.0**-36
"""Of a tail: what rounding can take off a profile. Laws are right to 2^-40, sums of up to 2^13 of
their probabilities to 2^-40 more, which is 3 * 2^-39; the rest is sums of some hundred products of
numbers up to 1, right to 2^-45 each."""

_ROOT_2 = math.sqrt(2)
_AT_ONCE = 1 << 21


def gaussian_profile(square: float, x: FloatArray) -> FloatArray:
    """G(e^x) for N(mu, 1) against N(0, 1), where mu^2 is `square`.

    Balle and Wang, "Improving the Gaussian Mechanism" (2018), Theorem 8.
    """
    if square == 0:
        return np.maximum(0.0, -np.expm1(x))
    mu = math.sqrt(square)
    upper = _upper(x / mu - mu / 2)
    return np.asarray(np.maximum(0.0, upper - np.exp(x) * _upper(x / mu + mu / 2)))


def gaussian_slope(square: float, x: FloatArray) -> FloatArray:
    """The derivative of `gaussian_profile` by g = e^x, at `square` > 0."""
    mu = math.sqrt(square)
    return -_upper(x / mu + mu / 2)


def gaussian_tail(square: float, x: FloatArray) -> FloatArray:
    """P(ratio >= e^x) of the pair of `gaussian_profile`, at x that are right to 2^-40."""
    if square == 0:
        return np.where(x <= 2.0**-40, 1.0, 0.0)
    mu = math.sqrt(square)
    return _upper(x / mu - mu / 2)


def tail_of(profile: FloatArray, apart: float) -> FloatArray:
    """A bound of the tail of what has this profile, up to `ROUNDING`, at x = 0, `apart`, ..."""
    least = np.ones(len(profile))
    for back in (1 << power for power in range(len(profile).bit_length())):
        bound = (profile[:-back] + ROUNDING) / -math.expm1(-back * apart)
        least[back:] = np.minimum(least[back:], bound)
    return least


def gaussian_rise(square: float, x: FloatArray) -> FloatArray:
    """The derivative of `gaussian_profile` by `square` > 0."""
    mu = math.sqrt(square)
    return np.asarray(np.exp(-((x / mu - mu / 2) ** 2) / 2) / (math.sqrt(8 * math.pi) * mu))


def _upper(z: FloatArray) -> FloatArray:
    """P(N(0, 1) >= z)."""
    return np.array([math.erfc(one / _ROOT_2) for one in z.tolist()]) / 2


@dataclass(frozen=True)
class Grid:
    """The places x = log g from 0 on, `ratio / fineness` apart, and log-ratios `ratio` apart.

    There are 2 `reach` + 1 rows of log-ratios about 0, and below them one for a ratio of 0.
    """

    ratio: float
    fineness: int
    reach: int

    @property
    def rows(self) -> int:
        """Of `profiles`."""
        return 2 * self.reach + 2

    def places(self, number: int) -> FloatArray:
        """x."""
        return np.arange(number, dtype=np.float64) * (self.ratio / self.fineness)

    def shifted(self, square: float, number: int) -> FloatArray:
        """H(g r) of a Gaussian for every row's ratio r and the first places of g."""
        values = self._wide(square, number)
        windows = np.lib.stride_tricks.sliding_window_view(values, number)[:: self.fineness]
        return np.vstack([np.ones(number), windows[: 2 * self.reach + 1]])

    def mixed(self, square: float, number: int, weights: FloatArray) -> FloatArray:
        """`weights @ shifted(...)`, by correlations."""
        values, sums = self._wide(square, number), np.empty((len(weights), number))
        for one, total in zip(weights, sums, strict=True):
            for phase in range(self.fineness):
                places = total[phase :: self.fineness]
                found = np.correlate(values[phase :: self.fineness], one[1:], "valid")
                places[:] = one[0] + found[: len(places)]
        return sums

    def _wide(self, square: float, number: int) -> FloatArray:
        before = self.reach * self.fineness
        step = self.ratio / self.fineness
        return gaussian_profile(square, self.places(number + 2 * before) - before * step)

    def weights(self, p: FloatArray, q: FloatArray) -> tuple[IntArray, FloatArray, FloatArray]:
        """p H(g q / p) is at most `low` H of row `at` and `high` of the next: the chord.

        Beyond the highest row H is at most what it is there.
        """
        safe = np.where(p > 0, p, 1.0)
        with np.errstate(divide="ignore"):
            place = np.floor(np.log(np.where(p > 0, q, 0.0) / safe) / self.ratio)
        at = np.clip(place + self.reach + 1, 0, self.rows - 2).astype(np.int64)
        below = np.where(at == 0, 0.0, np.exp((at - self.reach - 1) * self.ratio))
        above = np.exp((at - self.reach) * self.ratio)
        share = np.clip((q / safe - below) / (above - below), 0.0, 1.0)
        return at, p * (1 - share), p * share


@dataclass(frozen=True)
class Cover:
    """Boxes that contain all versions of a step: weights of rows, in the middle and along axes."""

    grid: Grid
    rows: IntArray  # of a box: the rows that have weights
    middle: FloatArray  # of a box and row
    axes: FloatArray  # of a box, axis and row: half of the box along the axis

    @property
    def never_hidden(self) -> float:
        """What remains of a step's profile however large g is."""
        alone = self.rows == 0
        middle = np.where(alone, self.middle, 0.0).sum(axis=1)
        width = np.abs(np.where(alone[:, None, :], self.axes, 0.0).sum(axis=2)).sum(axis=1)
        return float((middle + width).max())

    def step(self, square: float, number: int) -> FloatArray:
        """The most that a step before a Gaussian rest can have, at the first places of g."""
        if not self.axes.size:
            return np.asarray(self.grid.mixed(square, number, self.middle).max(axis=0))
        profiles = self.grid.shifted(square, number)
        most: FloatArray = profiles[self.grid.reach + 1].copy()
        each = max(1, _AT_ONCE // (self.rows.shape[1] * number))
        for start in range(0, len(self.rows), each):
            part = slice(start, start + each)
            taken = profiles[self.rows[part]]
            middle = np.matmul(self.middle[part, None, :], taken)[:, 0]
            width = np.abs(np.matmul(self.axes[part], taken)).sum(axis=1)
            np.maximum(most, (middle + width).max(axis=0), out=most)
        return most


def cover_pairs(grid: Grid, p: FloatArray, q: FloatArray) -> Cover:
    """Of a step with a few versions over many outcomes: arrays of (version, outcome).

    A version is a box of its own, without axes, that has all rows.
    """
    at, low, high = grid.weights(p, q)
    weights = [
        np.bincount(rows, first, grid.rows) + np.bincount(rows + 1, second, grid.rows)
        for rows, first, second in zip(at, low, high, strict=True)
    ]
    rows = np.tile(np.arange(grid.rows), (len(p), 1))
    return Cover(grid, rows, np.array(weights), np.zeros((len(p), 0, grid.rows)))


def cover_versions(grid: Grid, p: FloatArray, q: FloatArray) -> Cover:
    """Of a step with many versions over a few outcomes: arrays of (version, outcome).

    Versions whose ratios fall between the same rows share a box, along the principal axes of their
    weights: in a smooth family all but a few of them are short.
    """
    at, low, high = grid.weights(p, q)
    order = np.lexsort(at.T)
    at, points = at[order], np.concatenate([low, high], axis=1)[order]
    starts = np.flatnonzero(np.r_[True, (at[1:] != at[:-1]).any(axis=1)])
    sizes = np.diff(np.r_[starts, len(at)])
    box = np.repeat(np.arange(len(starts)), sizes)
    means = np.add.reduceat(points, starts) / sizes[:, None]
    points -= means[box]
    weights = points.shape[1]
    spread = np.empty((len(starts), weights, weights))
    for one in range(weights):
        spread[:, one] = np.add.reduceat(points[:, one, None] * points, starts)
    _, frames = np.linalg.eigh(spread)
    middle, half = np.empty_like(means), np.empty_like(means)
    for axis in range(weights):
        along = np.einsum("nw,nw->n", points, frames[box, :, axis])
        least, most = np.minimum.reduceat(along, starts), np.maximum.reduceat(along, starts)
        middle[:, axis], half[:, axis] = (least + most) / 2, (most - least) / 2
    return Cover(
        grid,
        np.concatenate([at[starts], at[starts] + 1], axis=1),
        means + np.einsum("bwa,ba->bw", frames, middle),
        np.swapaxes(frames * half[:, None, :], 1, 2),
    )
