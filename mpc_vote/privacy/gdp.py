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

import numpy as np

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
_NOTHING = 2.0**-900  # below, floating point has no more than a few digits
_CONCAVITY = 2.0**-38


@lru_cache(maxsize=16)
def unit_mu(variance: float) -> float:
    """The mu of a Skellam variable that moves by one unit, not below the truth.

    Skellam is log-concave and symmetric. The largest spacing is that at the middle, 2 Phi^-1((1 +
    e^-v I_0(v)) / 2); here it is looked for where P(X >= j) is above 2^-200. A move by s units
    spans s spacings, so any integer move of length D in all cells together costs D times as much;
    what `skellam_slack` has is added to delta.
    """
    tails = _tails(variance)
    places = [-_NORMAL.inv_cdf(tail) for tail in tails]
    spacings = [after - before for before, after in pairwise(places)]
    # By symmetry P(X >= 0) is 1 - P(X >= 1).
    return max(2 * places[0], *spacings, 0.0) * _ROUND_UP


def skellam_slack(variance: float, move: int) -> float:
    """What each use of `unit_mu` for a cell that moves by `move` units adds to delta.

    Tests beyond the last threshold that was looked at are right at a rate of at most this.
    """
    tails = _tails(variance)
    return tails[len(tails) - move] if 1 <= move <= len(tails) else 1.0


@lru_cache(maxsize=16)
def _tails(variance: float) -> list[float]:
    """P(X >= j) for j = 1, 2, ... down to 2^-200, at least one of them."""
    masses = _half(variance)
    tails = np.cumsum(masses[:0:-1])[::-1].tolist()
    return [tails[0], *(tail for tail in tails[1:] if tail > _TAIL)]


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
