"""Trade-off curves: how well the best test tells neighbours apart, at every rate of false alarms.

A mechanism is mu-GDP if no test of one neighbour against another does better than the best test of
N(0, 1) against N(mu, 1): at a rate q of false alarms it is right at a rate p of at most
Phi(Phi^-1(q) + mu). Over queries, agents or cells the squares of mu add up, adaptively too. Dong,
Roth and Su, "Gaussian Differential Privacy" (2022), Definition 2.6 and Corollary 3.3.
"""

from __future__ import annotations

import math
from statistics import NormalDist

from mpc_vote.privacy.gdp import unit_mu
from mpc_vote.privacy.mechanisms import Level, SkellamVote

_NORMAL = NormalDist()


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
