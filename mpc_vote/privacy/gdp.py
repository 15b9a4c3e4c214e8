"""Gaussian differential privacy: one number for a law of noise, certified, whatever it is used for.

A pair of worlds is mu-GDP if no test tells them apart better than N(0, 1) from N(mu, 1): a test
that is wrong at a rate q is right at a rate of at most Phi(Phi^-1(q) + mu) (Dong, Roth and Su,
"Gaussian Differential Privacy", 2022). Squares of mu add up under composition, also where every
next mechanism is chosen by what the last ones gave: as long as their sum stays below B^2, all of
it together is B-GDP (Smith and Thakurta, "Fully Adaptive Composition for Gaussian Differential
Privacy", 2022; Koskela, Tobaben and Honkela, "Individual Privacy Accounting with Gaussian
Differential Privacy", 2023). It is the case of one floor of `mpc_vote.privacy.loss_filter`, which
has a proof of its own.

Noise Z of a *log-concave* law, moved by `move`, has a likelihood ratio that is monotone. So the
best tests are thresholds and mixtures of two: X >= t is right at the rate P(Z >= t - move), wrong
at the rate P(Z >= t). Phi(Phi^-1(q) + mu) is concave in q, so it covers the mixtures if it covers
the thresholds, and mu is the largest Phi^-1(right) - Phi^-1(wrong). Thresholds in the tails may be
left out: where right <= tail, or wrong >= 1 - tail, right - g wrong exceeds max(0, 1 - g) by no
more than the tail (g >= 1; below, swap the worlds). So in every case profiles are within `tail` of
those of a mu-GDP pair, and each use adds `tail` to delta, nothing more. For laws that are not
log-concave the spacing says nothing, and they are refused.
"""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import pairwise
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mpc_vote.privacy import noise
from mpc_vote.privacy.accountant import check_delta, gaussian_exact_epsilon
from mpc_vote.privacy.label_steps import check_law
from mpc_vote.privacy.profiles import FloatArray

_NORMAL = NormalDist()
_START = 2.0**-256
_TAIL = 2.0**-200
# Bounds what rounding takes off a spacing, which is at least 1e-5 and made of numbers right to
# 1e-12 of themselves.
_ROUND_UP = 1 + 2.0**-20
_ERROR = 2.0**-37  # of a spacing, where probabilities are right to a relative 2^-40
_LARGE = 2.0**22
_MOST_VARIANCE = 2.0**34
_BITS = 12
_STARTS_AT, _REACH = 14, 12  # standard deviations: what is left out at the start is below e^-50
_BLOCKS = 1 << 16
_NOTHING = 2.0**-900  # below, floating point has no more than a few digits
_CONCAVITY = 2.0**-38


def unit_mu(variance: float) -> float:
    """The mu of a Skellam variable that moves by one unit, not below the truth.

    Skellam is log-concave and symmetric. The largest spacing is that at the middle, 2 Phi^-1((1 +
    e^-v I_0(v)) / 2); here it is looked for as far as tails go. A move by s units spans s spacings,
    so any integer move of length D in all cells together costs D times as much; what
    `skellam_slack` has is added to delta.
    """
    return _unit(_rounded(variance)).mu


def skellam_slack(variance: float, move: int) -> float:
    """What each use of `unit_mu` for a cell that moves by `move` units adds to delta.

    Tests beyond the last threshold that was looked at are right at a rate of at most this.
    """
    unit = _unit(_rounded(variance))
    at = int(np.searchsorted(unit.places, unit.places[-1] + 1 - move, side="right")) - 1
    return float(unit.tails[at]) if move >= 1 and at >= 0 else 1.0


def _rounded(variance: float) -> float:
    """A variance that is not larger: Skellam noise is one of less variance and another one beside
    it. So there are few of them, and whoever never asks for the same noise twice slows nobody."""
    mantissa, exponent = math.frexp(min(variance, _MOST_VARIANCE))
    return math.ldexp(math.floor(math.ldexp(mantissa, _BITS)), exponent - _BITS)


class _Unit(NamedTuple):
    """Of a variance: mu, and P(X >= j) at some places j, from 1 on as far as mu was looked for."""

    mu: float
    places: npt.NDArray[np.int64]
    tails: FloatArray


@lru_cache(maxsize=1 << 8)
def _unit(variance: float) -> _Unit:
    return _exactly(variance) if variance <= _LARGE else _in_blocks(variance)


def _exactly(variance: float) -> _Unit:
    """By all spacings at places j whose P(X >= j) is above 2^-200."""
    masses = _half(variance)
    whole = np.cumsum(masses[:0:-1])[::-1]
    tails = whole[: max(1, int((whole > _TAIL).sum()))]
    places = [-_NORMAL.inv_cdf(tail) for tail in tails.tolist()]
    # By symmetry P(X >= 0) is 1 - P(X >= 1).
    spacings = [2 * places[0], *(after - before for before, after in pairwise(places)), 0.0]
    return _Unit(max(spacings) * _ROUND_UP, np.arange(1, len(tails) + 1), tails)


def _in_blocks(variance: float) -> _Unit:
    """The same of much noise, for which that would take long.

    The spacing at j is at most P(X = j) over phi(Phi^-1(P(X >= j + 1))), as phi falls outwards; and
    within a block at most what it is with the mass of its first and the tail of its last place.
    Ratios of masses, r_k = P(k) / P(k - 1) = 1 / (r_(k+1) + 2 k / v), are right to 2 n 2^-53 after
    n steps, as each step makes the error before it no larger, and masses and tails, products of n
    of them, to e = n^2 2^-51. phi(Phi^-1(t)) is concave and 0 at 0, so it is right to the same.
    """
    spread = math.sqrt(variance)
    start, last = math.ceil(_STARTS_AT * spread), math.ceil(_REACH * spread)
    ratios, ratio = np.empty(start), 0.0
    for k in range(start, 0, -1):
        ratio = 1 / (ratio + 2 * k / variance)
        ratios[k - 1] = ratio
    masses = np.exp(np.concatenate([[0.0], np.cumsum(np.log(ratios))]))
    beyond = np.cumsum(masses[:0:-1])[::-1]
    whole = 2 * float(beyond[0]) + 1
    masses, tails = masses[:last] / whole, beyond[:last] / whole  # of 0, and of 1, on
    first = np.arange(0, last, max(1, last // _BLOCKS))
    final = np.append(first[1:], last) - 1
    places = [_NORMAL.inv_cdf(tail) for tail in tails[final].tolist()]
    spacings = masses[first] * math.sqrt(2 * math.pi) * np.exp(np.square(places) / 2)
    error = start**2 * 2.0**-51
    return _Unit(float(spacings.max()) * (1 + 6 * error), first + 1, tails[first] * (1 + 6 * error))


def _half(variance: float) -> FloatArray:
    """P(X = k) for k = 0, 1, ..., each rounded once, but for the last few.

    By Miller's backward recurrence, as `mpc_vote.privacy.noise` has it, in integers.
    """
    start = max(2, noise.tail_bound(variance, _START))
    numerator, denominator = variance.as_integer_ratio()
    above, here = 0, 1 << 128
    masses = [here]
    for k in range(start, 0, -1):
        above, here = here, above + 2 * k * denominator * here // numerator
        masses.append(here)
    whole = 2 * sum(masses[:-1]) + masses[-1]
    return np.array([mass / whole for mass in reversed(masses)])


def skellam_law(variance: float) -> FloatArray:
    """The probabilities of a Skellam variable, about 0, as far as they are above 2^-200."""
    half = _half(variance)
    half = half[half > _TAIL]
    return np.concatenate([half[:0:-1], half])


def law_mu(law: FloatArray, move: int, tail: float) -> float:
    """The mu of noise of a finite log-concave law that moves by exactly `move` units.

    Each use adds `tail` to delta, which a finite law can't do without: a place at its edge is seen
    in one world only.
    """
    law = check_law(law)
    _check_log_concave(law)
    if move < 1 or not 0 < tail < 1:
        raise ValueError("a move is positive, and a tail between 0 and 1")
    padded = np.concatenate([law, np.zeros(move)])
    above = np.cumsum(padded[::-1])[::-1]  # P(Z >= t)
    below = np.concatenate([[0.0], np.cumsum(padded)[:-1]])  # P(Z < t)
    right, not_right = above[:-move], below[:-move]
    wrong, not_wrong = above[move:], below[move:]
    needed = (right > tail) & (not_wrong > tail)
    if (needed & ((wrong <= 0) | (not_right <= 0))).any():
        raise ValueError(
            f"a move of {move} shows what noise of this law can't have with a probability above "
            f"{tail:g}: take a larger tail, or more noise"
        )
    rates = zip(*(one[needed] for one in (right, not_right, wrong, not_wrong)), strict=True)
    spacings = (_place(r, not_r) - _place(w, not_w) for r, not_r, w, not_w in rates)
    return max(spacings, default=0.0) * (1 + _CONCAVITY) + _ERROR


def spread_mu(law: FloatArray, most: int, tail: float) -> float:
    """A mu of one unit for every move of up to `most`, spread over cells in any way.

    A cell that moves by d costs at most d times as much, so a move of length D costs D times. Each
    cell that moves adds `tail` to delta.
    """
    return max(law_mu(law, move, tail) / move for move in range(1, most + 1))


def square_for(epsilon: float, delta: float) -> float:
    """The largest mu^2 whose epsilon at delta is at most `epsilon`; rounded down."""
    check_delta(delta)
    if not 0 <= epsilon < math.inf:
        raise ValueError(f"epsilon must be finite and not negative, not {epsilon}")
    low, high = 0.0, 1.0
    while gaussian_exact_epsilon(high, delta) <= epsilon:
        low, high = high, 2 * high
    while high - low > 2.0**-40 * high:
        middle = (low + high) / 2
        if gaussian_exact_epsilon(middle, delta) <= epsilon:
            low = middle
        else:
            high = middle
    return low * low / (1 + 2.0**-40)


def _place(rate: float, rest: float) -> float:
    """Phi^-1(rate), by the smaller one of a rate and the rest."""
    return _NORMAL.inv_cdf(rate) if rate <= rest else -_NORMAL.inv_cdf(rest)


def _check_log_concave(law: FloatArray) -> None:
    kept = np.flatnonzero(law > _NOTHING)
    inside = law[kept[0] : kept[-1] + 1]
    logs = np.log(np.maximum(inside, _NOTHING))
    if (np.diff(logs, 2) > _CONCAVITY).any():
        raise ValueError("the law is not log-concave: its tests are no thresholds, mu says nothing")
