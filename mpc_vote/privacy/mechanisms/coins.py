"""Votes under the committee's noise: the Renyi divergence of weighted coins, from their law.

A query's cells have independent noise of one finite law P. Moved by s units a cell is told from
itself by the outcomes alone that both can have; those at the edge of P can't be had after the move,
and by them the divergence is infinite. So let B be the event that the noise of a cell that moves
falls outside of a set R, and m = P(R):

- Given not B, noise has the law P_R = P(. and R) / m, and the divergence of P_R from the moved P is
  finite: (a - 1) D_a = log(sum over R of P(x)^a P(x + s)^(1-a)) - a log m.
- The noise of a query does not depend on what was asked or answered before, whoever chose the
  queries and however. So given that B never happens, queries compose as mechanisms with noise P_R
  in one world and P in the other, adaptively, and Renyi divergences add up.
- P(E) <= P(E | not B) + P(B), and P(B) <= sum of 1 - m over all queries and cells that move. So
  epsilon at delta - P(B) for the conditional laws is an epsilon at delta for the true ones. This
  is what `escaped` is for: accountants take it off delta.

R is where either tail has at least 2^-60, and where the law and the moved one are above 2^-900. P
is symmetric, so the other direction is the same. A move of several cells is a sum over cells; of k
votes in any spread over cells it is the largest sum over all compositions of k, by dynamic
programming on the divergences themselves. Laws with many outcomes are replaced by pairs with a few
thousand that are no closer (`_fewer`): a client that never asks for the same noise twice, and for
much of it, must not make ledgers slow. Nothing else is approximated but by rounding, upwards:
probabilities are right to 2^-40 and so their logarithms to 2^-39, which (2a - 1) of them can't take
further than a 2^-37. Between orders (a - 1) D_a is convex, so it lies below its chords, and above
the last it is not bounded at all.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from mpc_vote.privacy.coins import CoinLaw
from mpc_vote.privacy.mechanisms.base import (
    BaseMechanism,
    Decided,
    FloatArray,
    Level,
    check_count,
    check_orders,
)
from mpc_vote.privacy.sensitivity import Sensitivity

_GRID: FloatArray = 1 + np.geomspace(2.0**-6, 2.0**18, 24 * 14 + 1)
# Of a spread over cells there are as many divergences as votes: a few orders have to do.
_COARSE: FloatArray = _GRID[::7]
_TAIL = 2.0**-60
_LEAST = 2.0**-900
_ERROR = 2.0**-37
# Up to a sigma of 1,000 all are gone through; of more, so many stand for all.
_MANY_OUTCOMES = 1 << 14
_OUTCOMES = 1 << 12
_AT_ONCE = 1 << 21
_MOST_WORK = 1 << 28


class _Bound(NamedTuple):
    """(order - 1) times the Renyi divergence at the orders of a grid, and the mass that is in no
    divergence."""

    moments: FloatArray
    escaped: float


@dataclass(frozen=True)
class CoinVote(BaseMechanism):
    """A vote on the totals of all classes under the committee's coins.

    `levels` are the weights and numbers of the coins of a cell (`mpc_vote.privacy.coins`). Totals
    move by whole votes of `unit` units. Nobody knows a coin while one party is honest: the noise
    counts whichever agents drop out, lie or collude.
    """

    kind: ClassVar[str] = "coin_vote"

    queries: int
    levels: tuple[tuple[int, int], ...]
    unit: int
    agent: Sensitivity
    instance: Sensitivity
    decided: Decided = Decided.UNKNOWN

    def __post_init__(self) -> None:
        object.__setattr__(self, "decided", Decided(self.decided))
        check_count("queries", self.queries)
        check_count("unit", self.unit)
        if not isinstance(self.levels, tuple | list):
            raise ValueError(f"levels must be a list, not {self.levels!r}")
        # From JSON they come as lists.
        levels = tuple(tuple(one) if isinstance(one, list) else one for one in self.levels)
        object.__setattr__(self, "levels", levels)
        object.__setattr__(self, "_law", CoinLaw(levels))
        for name in ("agent", "instance"):
            moved = getattr(self, name)
            if not isinstance(moved, Sensitivity):
                raise ValueError(f"{name} must be a Sensitivity, not {moved!r}")
            if (moved.l1 if moved.step is None else moved.step) % self.unit:
                raise ValueError(f"{name} must be of whole votes of {self.unit} units")

    @property
    def law(self) -> CoinLaw:
        """Of the noise of a cell."""
        law: CoinLaw = self._law  # type: ignore[attr-defined]
        return law

    @property
    def variance(self) -> float:
        """Of the noise of a cell, in units^2."""
        return float(self.law.variance)

    def sensitivity(self, level: Level) -> Sensitivity:
        """How far neighbours at this level move what one query adds noise to."""
        return self.agent if level is Level.AGENT else self.instance

    def escaped(self, level: Level) -> float:
        """What all queries together take off delta."""
        return self.queries * self._bound(level).escaped * (1 + 2.0**-50)

    def curve(self, orders: FloatArray, level: Level) -> FloatArray:
        """Bounds the Renyi divergence over all queries, for every order."""
        return CoinRuns([(self, self.queries)], level).curve(orders)

    def _bound(self, level: Level) -> _Bound:
        return _bound(self.law, self.unit, self.sensitivity(level))


class CoinRuns:
    """Queries under coins of any laws, moved in any way: moments add up, order by order."""

    def __init__(self, runs: Iterable[tuple[CoinVote, int]], level: Level) -> None:
        """`runs` has votes of one query, each with its number of queries."""

        # In an order of their own: whoever composes the same runs gets the same digits.
        def key(run: tuple[CoinVote, int]) -> tuple[object, ...]:
            vote, number = run
            moved = vote.sensitivity(level)
            return vote.levels, vote.unit, moved.l1, moved.l2_squared, number

        given = sorted(runs, key=key)
        self._moments = np.zeros(len(_GRID))
        with np.errstate(over="ignore"):  # infinite is the right answer then
            for vote, number in given:
                self._moments += number * vote._bound(level).moments
        self._moments *= 1 + (len(given) + 4) * 2.0**-52

    def curve(self, orders: FloatArray) -> FloatArray:
        """Bounds the Renyi divergence over all queries, for every order."""
        check_orders(orders)
        return _chords(orders, _GRID, self._moments) / (orders - 1)


def _chords(orders: FloatArray, grid: FloatArray, moments: FloatArray) -> FloatArray:
    """A convex function that is 0 at 1, not below the truth between the orders of a grid."""
    at, value = np.concatenate([[1.0], grid]), np.concatenate([[0.0], moments])
    above = np.searchsorted(at, orders)
    last = len(at) - 1
    left, right = np.clip(above - 1, 0, last), np.minimum(above, last)
    with np.errstate(invalid="ignore", divide="ignore"):
        share = np.where(right > left, (orders - at[left]) / (at[right] - at[left]), 0.0)
        found = (1 - share) * value[left] + share * value[right]
    exact = at[right] == orders
    found = np.where(exact, value[right], found) * (1 + 2.0**-50)
    return np.where((above > last) | np.isnan(found), np.inf, found)


@lru_cache(maxsize=1 << 14)
def _bound(law: CoinLaw, unit: int, moved: Sensitivity) -> _Bound:
    """Of one query, at the orders of the grid."""
    if moved.cells is None or moved.step is None:
        return _spread(law, unit, moved.l1 // unit)
    worst = _worst([_moved(law, votes * unit, _GRID) for votes in range(1, moved.step // unit + 1)])
    return _Bound(moved.cells * worst.moments, moved.cells * worst.escaped)


def _spread(law: CoinLaw, unit: int, votes: int) -> _Bound:
    """Of up to so many votes, in any spread over cells: the largest sum over all compositions.

    Where they move one cell out of reach, or there are too many to go through, nothing is bounded.
    """
    work = votes * (2 * law.reach + 1) * len(_COARSE)
    if votes * unit > 2 * law.reach or work > _MOST_WORK:
        return _Bound(np.full(len(_GRID), np.inf), 1.0)
    cells = [_moved(law, number * unit, _COARSE) for number in range(1, votes + 1)]
    moments = np.array([cell.moments for cell in cells])
    escapes = np.array([cell.escaped for cell in cells])
    most, escaped = np.zeros((votes + 1, len(_COARSE))), np.zeros(votes + 1)
    for number in range(1, votes + 1):
        # The last part has 1, 2, ... of the votes, and the others what is left.
        most[number] = (moments[:number] + most[:number][::-1]).max(axis=0)
        escaped[number] = (escapes[:number] + escaped[:number][::-1]).max()
    return _Bound(_chords(_GRID, _COARSE, most[-1]), float(escaped[-1]) * (1 + votes * 2.0**-50))


def _worst(bounds: list[_Bound]) -> _Bound:
    return _Bound(
        np.max([one.moments for one in bounds], axis=0), max(one.escaped for one in bounds)
    )


def _moved(law: CoinLaw, step: int, orders: FloatArray) -> _Bound:
    """Of one cell that moves by `step` units."""
    masses = law.probabilities()
    within = inside(masses, step)
    if not within.any():
        return _Bound(np.full(len(orders), np.inf), 1.0)
    outside = escaped_mass(masses, within)
    places = np.flatnonzero(within)
    loss = np.log(masses[places]) - np.log(masses[places + step])
    mass, loss = _fewer(masses[places], loss)
    mine = np.log(mass)
    # One row for each order, a few at a time.
    moments = np.empty(len(orders))
    rows = max(1, _AT_ONCE // len(mine))
    for start in range(0, len(orders), rows):
        powers = mine + (orders[start : start + rows, None] - 1) * loss
        most = powers.max(axis=1)
        moments[start : start + rows] = most + np.log(np.exp(powers - most[:, None]).sum(axis=1))
    missing = -math.log1p(-outside) if outside < 1 else math.inf
    return _Bound(np.maximum(moments + orders * (missing + _ERROR), 0.0), outside)


def _fewer(mass: FloatArray, loss: FloatArray) -> tuple[FloatArray, FloatArray]:
    """In the place of many outcomes `_OUTCOMES`, which are told apart no worse.

    With r = Q / P = e^-loss an outcome adds P r^(1-a), which is convex in r. So it is split between
    the two next ratios of a grid, such that the masses of P and of Q stay what they are: no
    divergence falls, and epsilon rises by some 10^-5 of itself.
    """
    low, high = float(loss.min()), float(loss.max())
    if len(mass) <= _MANY_OUTCOMES or not low < high:
        return mass, loss
    grid = np.linspace(low, high, _OUTCOMES)
    above = np.clip(np.searchsorted(grid, loss), 1, _OUTCOMES - 1)
    left, right = grid[above - 1], grid[above]
    share = np.clip(np.expm1(left - loss) / np.expm1(left - right), 0.0, 1.0)
    found: FloatArray = np.zeros(_OUTCOMES)
    found += np.bincount(above - 1, mass * (1 - share), _OUTCOMES)
    found += np.bincount(above, mass * share, _OUTCOMES)
    # A sum of n positive numbers is right to n units in its last place.
    found *= 1 + len(mass) * 2.0**-52
    held = found > 0
    return found[held], grid[held]


def inside(masses: FloatArray, step: int) -> npt.NDArray[np.bool_]:
    """The outcomes that count for a move by `step`: the set R of the module."""
    low = int(np.searchsorted(np.cumsum(masses), _TAIL))
    within = masses > _LEAST
    within[:low] = within[len(masses) - low :] = False
    after = np.zeros_like(within)
    after[: max(0, len(masses) - step)] = masses[step:] > _LEAST
    return within & after


def escaped_mass(masses: FloatArray, within: npt.NDArray[np.bool_]) -> float:
    """Of all other outcomes, rounded up: a sum of positive numbers, which may be small."""
    return math.fsum(masses[~within]) * (1 + 2.0**-30)
