"""Votes and screens: noise on what each query adds up to.

A vote releases, for each query, a function of the ballots' total plus noise; a screen whether the
largest total plus noise reaches a public threshold. Their loss is bounded by that of the noisy
number itself, whatever the secure computation makes of it. `variance` is the part of the noise, in
units^2, that no coalition of the assumed size knows; sensitivities are in units.

The *agent* level of a vote compares a round with the same round where one agent's ballot is left
out and its noise stays: it holds for a fixed noise roster. A query of a multi-label round is one
query, however many attributes it has.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from mpc_vote.privacy.mechanisms.base import (
    BaseMechanism,
    Decided,
    FloatArray,
    Level,
    check_count,
    check_orders,
    check_positive,
)
from mpc_vote.privacy.sensitivity import Sensitivity


@dataclass(frozen=True)
class _Noisy(BaseMechanism):
    """Additive noise on numbers of bounded sensitivity, once for each query."""

    queries: int
    variance: float
    agent: Sensitivity
    instance: Sensitivity

    def __post_init__(self) -> None:
        check_count("queries", self.queries)
        check_positive("variance", self.variance)
        for name in ("agent", "instance"):
            if not isinstance(getattr(self, name), Sensitivity):
                raise ValueError(f"{name} must be a Sensitivity, not {getattr(self, name)!r}")

    def sensitivity(self, level: Level) -> Sensitivity:
        """How far neighbours at this level move what one query adds noise to."""
        return self.agent if level is Level.AGENT else self.instance


class SkellamRuns:
    """Queries under integer noise of Skellam's distribution, of any variances, moved in any way.

    At integer orders the bound is that of Agarwal, Kairouz and Liu, "The Skellam Mechanism for
    Differentially Private Federated Learning" (arXiv 2110.04995), proved for integer totals.
    Between them (order - 1) times the divergence is convex in the order and zero at order 1 (van
    Erven and Harremoes, "Renyi Divergence and Kullback-Leibler Divergence", 2014, Corollary 2),
    so it lies below its chords. The sampler is within 2^-108 of Skellam
    (`mpc_vote.privacy.noise.STATISTICAL_DISTANCE`), which adds less than 2^-60 to delta over 2^40
    draws at epsilon 4: negligible against any delta in use, and left out of the account.

    With w = 1 / (2 variance) a query adds w order D2^2 + min(w^2 c, 3 w D1) at an integer order,
    c = (2 order - 1) D2^2 + 6 D1. The first of the two is less where 2 order - 1 is at most
    6 (variance - 1) D1 / D2^2, the query's turn: with queries in order of their turns, sums up to
    one of them and from it on serve every order. So a client that never asks for the same noise
    twice, or always for another kind of ballot, does not make a ledger slow.
    """

    def __init__(self, runs: Iterable[tuple[Sensitivity, float, int]]) -> None:
        """`runs` has what moves and a variance, each with its number of queries."""
        rows = [(moved.l1, moved.l2_squared, variance, n) for moved, variance, n in runs]
        given: FloatArray = np.array(rows, dtype=np.float64).T
        turns = 6 * (given[2] - 1) * given[0] / given[1]
        # In an order of their own: whoever composes the same runs gets the same digits.
        order = np.lexsort((*given, turns))
        self._turns: FloatArray = turns[order]
        l1, l2_squared, variances, queries = given[:, order]
        # With so little noise that it overflows, there is no bound.
        with np.errstate(over="ignore", divide="ignore"):
            scales = 1 / (2 * variances)
            once, twice = queries * scales, queries * scales * scales
            self._all = float(_up_to(l2_squared * once)[-1])
            self._up_to = _up_to(l1 * once)
            self._from = [_up_to((d * twice)[::-1])[::-1] for d in (l1, l2_squared)]
        # A sum of n positive numbers is right to n units in its last place, each to a few.
        self._slack = 1 + (len(rows) + 4) * 2.0**-52

    def curve(self, orders: FloatArray) -> FloatArray:
        """Bounds the Renyi divergence over all queries, for every order."""
        check_orders(orders)
        below = np.floor(orders)
        share = orders - below
        # Where it overflows there is no bound, not even where it meets a zero.
        with np.errstate(over="ignore", invalid="ignore"):
            moment, next_one = self._moment(below), self._moment(below + 1)
            chord = (1 - share) * moment + share * next_one
            bound = self._slack * (chord / (orders - 1))
        return np.where(np.isnan(bound), np.inf, bound)

    def _moment(self, orders: FloatArray) -> FloatArray:
        """(order - 1) times the bound at integer orders."""
        odd = 2 * orders - 1
        at = np.searchsorted(self._turns, odd)
        l1, l2_squared = self._from
        excess = 3 * self._up_to[at] + odd * l2_squared[at] + 6 * l1[at]
        moment: FloatArray = (orders - 1) * (orders * self._all + excess)
        return moment


def _up_to(numbers: FloatArray) -> FloatArray:
    """Sums of the first 0, 1, ... of them."""
    return np.concatenate([[0.0], np.cumsum(numbers)])


class _Skellam(_Noisy):
    """Integer noise of Skellam's distribution."""

    def curve(self, orders: FloatArray, level: Level) -> FloatArray:
        """Bounds the Renyi divergence over all queries, for every order."""
        return SkellamRuns([(self.sensitivity(level), self.variance, self.queries)]).curve(orders)


class _Gaussian(_Noisy):
    """Continuous Gaussian noise: the idealised baseline, not what rounds add."""

    def curve(self, orders: FloatArray, level: Level) -> FloatArray:
        """The Renyi divergence over all queries, for every order (Mironov 2017, Corollary 3)."""
        check_orders(orders)
        return self.queries * (orders * self.sensitivity(level).l2_squared / (2 * self.variance))


@dataclass(frozen=True)
class SkellamVote(_Skellam):
    """A vote on the totals of all classes under Skellam noise."""

    kind: ClassVar[str] = "skellam_vote"

    decided: Decided = Decided.UNKNOWN

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "decided", Decided(self.decided))


@dataclass(frozen=True)
class GaussianVote(_Gaussian):
    """A vote on the totals of all classes under Gaussian noise."""

    kind: ClassVar[str] = "gaussian_vote"


class _Screen(_Noisy):
    """Whether a query's largest total plus noise reaches a public threshold.

    One draw is added to the largest total, independent of the vote's noise (Papernot et al. 2018,
    "Scalable Private Learning with PATE", Algorithm 1). The largest of *noisy* totals is no
    screen: it costs a vote. Every query screened counts, passed or not; how many pass is public
    only afterwards, so the vote that follows is charged for the most queries that may pass.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.agent.cells != 1 or self.instance.cells != 1:
            raise ValueError("a screen adds noise to one number: use Sensitivity.of_maximum()")


@dataclass(frozen=True)
class SkellamScreen(_Screen, _Skellam):
    """A screen under Skellam noise."""

    kind: ClassVar[str] = "skellam_screen"


@dataclass(frozen=True)
class GaussianScreen(_Screen, _Gaussian):
    """A screen under Gaussian noise."""

    kind: ClassVar[str] = "gaussian_screen"
