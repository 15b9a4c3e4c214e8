"""Publishing a data-dependent bound: noise scaled to its smooth sensitivity, and a charge for it.

`release` publishes an upper estimate of what `data_dependent.curve` holds at one order. Like every
release about the votes it costs privacy itself, whatever the data: the record carries both.

Order, beta, noise and failure are public and must be chosen without looking at the votes; so must
the decision to release at all. Every call is one more charge.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mpc_vote.privacy.data_dependent import (
    _log_misses,
    checked,
    checked_orders,
    log_tail,
    per_query,
    tight_epsilon,
)
from mpc_vote.privacy.mechanisms import FloatArray, GaussianVote, Level, SmoothRelease
from mpc_vote.privacy.mechanisms.smooth_release import quantile, release_cost

IndexArray = npt.NDArray[np.intp]

_STEPS = 16  # steps of the staircase per move of one neighbour: more is tighter and slower
_REACH = _STEPS + 1  # one step to spare for rounding
_MOST_STEPS = 1 << 22
_GRID = 2.0**-20  # of the worst case: estimates are rounded up to it


@dataclass(frozen=True)
class Release:
    """A published estimate of what the labels of one batch lost, and what publishing it costs.

    `upper` is noisy. With probability 1 - `failure` over its noise it is at least the Renyi
    divergence of `order` between the labels on the data and on any neighbour, in both directions;
    otherwise it may be too low. The cost of the release itself holds for all data, at `level`.
    """

    level: Level
    queries: int
    order: float
    upper: float
    failure: float
    beta: float
    noise: float

    def cost(self, order: float) -> float:
        """The Renyi divergence of any order that the release itself adds; maybe infinite."""
        return release_cost(order, beta=self.beta, noise=self.noise, failure=self.failure)

    @property
    def total(self) -> float:
        """Labels and release together at `order`, as sure as `upper` is."""
        return self.upper + self.cost(self.order)

    def epsilon(self, delta: float) -> float:
        """`total` as an epsilon at `delta`, by the tight conversion at this one order."""
        orders = np.array([self.order])
        return float(tight_epsilon(np.array([self.total]), orders, delta)[0])

    def __str__(self) -> str:
        return (
            f"data-dependent, {self.level.value} level, {self.queries} queries: Renyi divergence "
            f"of order {self.order:g} at most {self.upper:.6g} with probability "
            f"{1 - self.failure:g} over the noise of this estimate, and "
            f"{self.cost(self.order):.6g} more for publishing it"
        )


def release(
    histograms: npt.ArrayLike,
    vote: GaussianVote,
    level: Level,
    order: float,
    *,
    beta: float,
    noise: float,
    failure: float,
    charge: Callable[[SmoothRelease], None],
) -> Release:
    """Publishes an upper estimate of the labels' Renyi divergence at `order`.

    `charge` is called before any noise is drawn, and must record the cost durably or raise: with a
    ledger, `lambda cost: ledger.charge(name, cost)`.

    With f and S the value and the smooth bound of `_Staircase`, z the 1 - failure quantile and N a
    standard normal, the estimate is f + noise * S * (z + N), which is at least f whenever N >= -z.
    It is then cut to [0, worst case] and rounded up to a public grid, which costs nothing and
    spares its low bits. N is drawn from the system's CSPRNG as a double: its tails end beyond 8
    standard deviations, an approximation left out of the account.

    A beta of 0.2 / order and a noise of 10 are a fair start: try histograms like those expected.
    Refuses parameters by which the release alone costs as much as the labels at worst.
    """
    totals = checked(histograms, vote)
    cost = release_cost(order, beta=beta, noise=noise, failure=failure)
    worst = vote.rdp(order, level)
    if cost >= worst:
        raise ValueError(
            f"publishing would cost {cost:.6g} where the labels lose at most {worst:.6g}: "
            "publish the data-independent bound, or choose another noise, beta or order"
        )
    charge(SmoothRelease(beta, noise, failure, **_covered(vote, level)))
    staircase = _Staircase.build(vote, level, order, totals.shape[1])
    at = staircase.locate(_log_misses(totals, vote, level))
    value, scale = staircase.value(at), staircase.smooth_sensitivity(at, beta)
    estimate = value + noise * scale * (quantile(failure) + _standard_normal())
    grid = worst * _GRID
    upper = min(max(math.ceil(estimate / grid), 0) * grid, worst)
    return Release(level, vote.queries, float(order), upper, failure, beta, noise)


def _covered(vote: GaussianVote, level: Level) -> dict[str, bool]:
    """The levels whose neighbours move differences of totals no further than those of `level`."""
    reach = vote.sensitivity(level).l1
    return {one.value: vote.sensitivity(one).l1 <= reach for one in Level}


@dataclass(frozen=True)
class _Staircase:
    """The data-dependent bound of one query as a falling staircase, and its smooth sensitivity.

    A query's totals n, C classes, have the position y(n) with (C-1) Phi(-y) = M(n), the sum of
    `_log_misses`. *Neighbours move y by at most h = g / (sqrt(2) sigma).* Proof: M(n) is the least
    over i of M_i(n) = sum over j != i of Phi(-(n_i - n_j - g) / (sqrt(2) sigma)), since no class
    leads another by more than the winner does. A neighbour moves every n_i - n_j by at most g, so
    with p_j the terms of M(n), M(n') is at most the sum of Phi(Phi^-1(p_j) + h). The summand is
    concave in p_j (its slope is exp(-x h - h^2/2) with x = Phi^-1(p_j), which falls), so by Jensen
    M(n') <= (C-1) Phi(Phi^-1(M(n) / (C-1)) + h), that is y(n') >= y(n) - h. The other side is the
    same with n and n' swapped.

    Step k begins at y = z_k, the steps being h/16 wide and the last one without end; they do not
    depend on the data. `heights[k]` is the least bound at the q of z_0..z_k, each of which is at
    least the q of any y on step k: sound, and falling in k whatever the bounds do. So neighbours
    are at most w = 17 steps apart in every query, one of them to spare for rounding.

    *Smooth bound.* With k the query's step, let drops[i] = heights[max(i - w, 0)] - heights[i],
    LS_d = max of drops over k - w d <= i <= k + w (d + 1), A_d the sum of LS_d over the queries
    and S = max over d >= 0 of e^(-beta d) A_d. (1) For neighbours |f - f'| <= A_0 <= S: of two
    steps at most w apart the upper one i is within w of k, and the heights differ by no more than
    drops[i]. (2) S <= e^beta S': what LS_d looks at from k is within what LS_(d+1) looks at from
    k', so A_d <= A'_(d+1). Nissim, Raskhodnikova, Smith, "Smooth Sensitivity and Sampling in
    Private Data Analysis" (2007), Definition 2.1, asks for no more.
    """

    log_q: FloatArray
    heights: FloatArray

    @classmethod
    def build(cls, vote: GaussianVote, level: Level, order: float, classes: int) -> _Staircase:
        """Made from public numbers only; it ends where the bound is next to nothing."""
        moved = vote.sensitivity(level)
        rate = moved.l2_squared / (2 * vote.variance)
        width = moved.l1 / math.sqrt(2 * vote.variance) / _STEPS
        root = order * math.sqrt(rate) + math.sqrt(order * (order - 1) * rate + 40)
        last = math.sqrt(2 * (root**2 + math.log(classes)))
        count = math.ceil(last / width) + _REACH
        if count > _MOST_STEPS:
            raise ValueError("order and noise are too large for a release: lower the order")
        steps = np.arange(count, dtype=np.float64) - _REACH  # y >= -h: no gap is below zero
        log_q = math.log(classes - 1) + log_tail(steps * width)
        bounds = per_query(log_q, vote, level, checked_orders(order))[:, 0]
        return cls(log_q, np.minimum.accumulate(bounds))

    def locate(self, log_q: FloatArray) -> IndexArray:
        """The step of every query."""
        at = np.searchsorted(-self.log_q, -log_q, side="right") - 1
        return np.maximum(at, 0)

    def value(self, at: IndexArray) -> float:
        """The bound of all queries together: what a release estimates."""
        return float(self.heights[at].sum())

    def smooth_sensitivity(self, at: IndexArray, beta: float) -> float:
        """S of the class's proof."""
        above = np.concatenate([np.full(_REACH, self.heights[0]), self.heights])[:-_REACH]
        drops = above - self.heights
        most = float(drops.max()) * len(at)
        reached = drops
        for shift in range(1, _REACH + 1):
            reached = np.maximum(reached, _moved(drops, shift))
        best, distance = 0.0, 0
        while best * (1 + 2.0**-40) < math.exp(-beta * distance) * most:
            best = max(best, math.exp(-beta * distance) * float(reached[at].sum()))
            left, right = _moved(reached, -_REACH), _moved(reached, _REACH)
            reached = np.maximum(reached, np.maximum(left, right))
            distance += 1
        return best * (1 + 2.0**-36)


def _moved(values: FloatArray, by: int) -> FloatArray:
    """values[i + by], and the value at the end where that is beyond it."""
    return values[np.clip(np.arange(len(values)) + by, 0, len(values) - 1)]


def _standard_normal() -> float:
    return random.SystemRandom().gauss(0.0, 1.0)
