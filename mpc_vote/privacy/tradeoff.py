"""Trade-off curves: how well the best test tells neighbours apart, at every rate of false alarms.

A mechanism is mu-GDP if no test of one neighbour against another does better than the best test of
N(0, 1) against N(mu, 1): at a rate q of false alarms it is right at a rate p of at most
Phi(Phi^-1(q) + mu). Over queries, agents or cells the squares of mu add up, adaptively too. Dong,
Roth and Su, "Gaussian Differential Privacy" (2022), Definition 2.6 and Corollary 3.3.
"""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import pairwise
from statistics import NormalDist

from mpc_vote.privacy import noise
from mpc_vote.privacy.mechanisms import Level, SkellamVote

_NORMAL = NormalDist()
_TAIL = 2.0**-100
_START = 2.0**-256
# Bounds what rounding takes off a spacing, which is at least 1e-5 and made of numbers right to
# 1e-12 of themselves.
_ROUND_UP = 1 + 2.0**-20


def mu_of(right: float, wrong: float) -> float:
    """The least mu for which a test may be right, and wrong, at such rates; may be negative."""
    if right <= 0 or wrong >= 1:
        return -math.inf
    if right >= 1 or wrong <= 0:
        return math.inf
    return _NORMAL.inv_cdf(right) - _NORMAL.inv_cdf(wrong)


def vote_mu(vote: SkellamVote, level: Level) -> float:
    """The mu of all totals of a vote.

    A move by s units is s moves by one, whose mu adds up (group privacy, Theorem 2.14), and cells
    compose: any integer move of squared length D2^2 costs sqrt(D2^2) times the mu of one unit.
    """
    moved = vote.sensitivity(level).l2_squared
    return math.sqrt(vote.queries * moved) * unit_mu(vote.variance)


@lru_cache(maxsize=16)
def unit_mu(variance: float) -> float:
    """The mu of a Skellam variable that moves by one unit, not below the truth.

    Skellam is log-concave, so the best tests are X >= j: right at rate P(X >= j - 1), wrong at rate
    P(X >= j), and mixtures of two such, which the curve of a mu that covers both covers too, being
    concave. So mu is the largest spacing of Phi^-1 of the distribution function. It is looked for
    where P(X >= j) is above 2^-100 only: what is further out adds less than 2^-99 a draw to any
    probability.
    """
    tails = _tails(variance)
    places = [-_NORMAL.inv_cdf(tail) for tail in tails]
    spacings = [after - before for before, after in pairwise(places)]
    # By symmetry P(X >= 0) is 1 - P(X >= 1).
    return max(2 * places[0], *spacings, 0.0) * _ROUND_UP


def _tails(variance: float) -> list[float]:
    """P(X >= j) for j = 1, 2, ... down to 2^-100, at least one of them.

    By Miller's backward recurrence, as `mpc_vote.privacy.noise` has it, in floating point: all
    terms are positive, so rounding costs each a few units in its last place for every step.
    """
    start = max(2, noise.tail_bound(variance, _START))
    above, here = 0.0, 1.0
    masses = [here]
    for k in range(start, 0, -1):
        above, here = here, above + 2 * k / variance * here
        masses.append(here)
    whole = math.fsum(masses[:-1]) * 2 + masses[-1]
    tails, reached = [], 0.0
    for mass in masses[:-1]:
        reached += mass / whole
        tails.append(reached)
    tails.reverse()
    return [tails[0], *(tail for tail in tails[1:] if tail > _TAIL)]
