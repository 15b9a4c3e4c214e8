"""From mechanisms to epsilon: one function for each way to account.

- `simple_epsilon` and `epsilon`: Renyi divergences add up, and convert once at the end. Cheap, for
  every mechanism: what the ledger decides by.
- `exact_epsilon`: Gaussian noise only, where nothing is lost in the account.
- `mpc_vote.privacy.pld.pld_epsilon`: privacy loss distributions, next to exact for everything
  whose worst neighbours are known.

Invariant: no function here returns less than what is lost. Every order gives a valid bound, so a
coarse choice of orders only costs tightness, and results are rounded up past floating-point error.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np

from mpc_vote.privacy.mechanisms import (
    CoinRuns,
    CoinVote,
    FloatArray,
    GaussianScreen,
    GaussianVote,
    Level,
    Mechanism,
    SkellamRuns,
    SkellamScreen,
    SkellamVote,
    check_mechanism,
    one_query,
)
from mpc_vote.privacy.sensitivity import Sensitivity

Conversion = Callable[[FloatArray, FloatArray], FloatArray]

_GAUSSIAN = (GaussianVote, GaussianScreen)
_SKELLAM = (SkellamVote, SkellamScreen)

ORDERS: FloatArray = np.unique(
    np.concatenate([np.arange(2.0, 257.0), np.geomspace(256.0, 2.0**20, 300).round()])
)
"""Integer orders, dense where epsilon is about 1 and reaching far for a tiny epsilon."""

MIN_DELTA = 1e-12
"""A sampler of noise is not ideal, which must stay far below delta: over 2^30 draws of 2^-108 each
it adds 1e-20 at epsilon 8."""

ROUND_UP = 1 + 2.0**-40
_LARGEST_MU = 1e100
_SLACK = 2.0**-38  # covers the rounding of the normal tails and of their difference


class Unsupported(ValueError):
    """This way to account has no proved bound for one of the mechanisms; the message says why."""


@dataclass(frozen=True)
class Epsilons:
    """The loss of the same mechanisms by every account: each a valid bound, none above the last.

    `exact` is the least that can be said: `how` is "exact" for Gaussian noise, "PLD" for privacy
    loss distributions, and where `exact` is None the reason why neither applies.
    """

    simple: float
    tight: float
    exact: float | None
    how: str


def epsilons(mechanisms: Iterable[Mechanism], level: Level, delta: float) -> Epsilons:
    """What all mechanisms together lose at `delta`, by every account; may take seconds."""
    given = list(mechanisms)
    simple, tight = (account(given, level, delta) for account in (simple_epsilon, epsilon))
    try:
        if all(isinstance(mechanism, _GAUSSIAN) for mechanism in given):
            return Epsilons(simple, tight, exact_epsilon(given, level, delta), "exact")
        # Takes seconds to import, and only researchers have it installed.
        from mpc_vote.privacy.pld import pld_epsilon

        return Epsilons(simple, tight, min(tight, pld_epsilon(given, level, delta)), "PLD")
    except Unsupported as reason:
        return Epsilons(simple, tight, None, str(reason))
    except ModuleNotFoundError as missing:
        package = str(missing.name).partition(".")[0]
        return Epsilons(simple, tight, None, f"PLD needs the package {package}")


def epsilon(mechanisms: Iterable[Mechanism], level: Level, delta: float) -> float:
    """The epsilon that all mechanisms together lose at `delta`, by the tight conversion.

    Canonne, Kamath and Steinke, "The Discrete Gaussian for Differential Privacy" (2020),
    Proposition 12; and zero where delta alone covers the total variation, which is at most
    sqrt(1 - exp(-KL)) by Bretagnolle and Huber, with KL below every Renyi divergence.
    """
    return epsilon_of_totals(totals(mechanisms), level, delta)


def simple_epsilon(mechanisms: Iterable[Mechanism], level: Level, delta: float) -> float:
    """The same by the looser conversion most papers use: rdp + log(1/delta) / (order - 1)."""
    counted = totals(mechanisms)
    left = _left_of(delta, counted, level)
    if not left > 0:
        return math.inf
    log_delta = math.log(left)

    def convert(orders: FloatArray, rdp: FloatArray) -> FloatArray:
        return rdp - log_delta / (orders - 1)

    return _least(counted, level, convert)


def totals(mechanisms: Iterable[Mechanism]) -> Counter[Mechanism]:
    """How many single queries of each mechanism there are; an unknown one is a TypeError."""
    counted: Counter[Mechanism] = Counter()
    for mechanism in mechanisms:
        check_mechanism(mechanism)
        counted[one_query(mechanism)] += mechanism.queries
    return counted


def epsilon_of_totals(counted: Mapping[Mechanism, int], level: Level, delta: float) -> float:
    """`epsilon` for single-query mechanisms and how often each was run."""
    left = _left_of(delta, counted, level)
    if not left > 0:
        return math.inf

    def convert(orders: FloatArray, rdp: FloatArray) -> FloatArray:
        return tight_conversion(orders, rdp, left)

    return _least(counted, level, convert)


def _left_of(delta: float, counted: Mapping[Mechanism, int], level: Level) -> float:
    """Delta less the mass of outcomes that no divergence covers, which noise of a finite law has;
    see `mpc_vote.privacy.mechanisms.coins`."""
    check_delta(delta)
    escaped = math.fsum(
        runs * mechanism.escaped(level)
        for mechanism, runs in counted.items()
        if isinstance(mechanism, CoinVote)
    )
    return math.nextafter(delta - escaped * ROUND_UP, -math.inf) if escaped else delta


def tight_conversion(orders: FloatArray, rdp: FloatArray, delta: float) -> FloatArray:
    """From the Renyi divergence of each order to an epsilon; see `epsilon`."""
    converted = rdp + np.log1p(-1 / orders) - (math.log(delta) + np.log(orders)) / (orders - 1)
    return np.where(delta**2 > -np.expm1(-rdp), 0.0, np.maximum(converted, 0.0))


def exact_epsilon(mechanisms: Iterable[Mechanism], level: Level, delta: float) -> float:
    """The exact epsilon where all noise is Gaussian: the squares of mu add up.

    Dong, Roth and Su, "Gaussian Differential Privacy" (2022), Corollary 3.3.
    """
    squares = []
    for mechanism, runs in totals(mechanisms).items():
        if not isinstance(mechanism, _GAUSSIAN):
            raise Unsupported("the exact account is for Gaussian noise only")
        squares.append(runs * mechanism.sensitivity(level).l2_squared / mechanism.variance)
    mu = math.sqrt(sum(sorted(squares)))
    return gaussian_exact_epsilon(mu, delta) if mu < _LARGEST_MU else math.inf


def gaussian_exact_epsilon(mu: float, delta: float) -> float:
    """The exact epsilon of a Gaussian mechanism whose sensitivity is `mu` standard deviations.

    Q queries of sensitivity D under noise sigma are one of mu = sqrt(Q) D / sigma. Balle and Wang,
    "Improving the Gaussian Mechanism" (2018), Theorem 8: delta(epsilon) =
    Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu), which falls as epsilon grows.
    With a = mu/2 - epsilon/mu and b = mu/2 + epsilon/mu, e^epsilon phi(b) = phi(a), so the second
    term is phi(a) Phi(-b) / phi(b), which neither overflows nor underflows.
    """
    check_delta(delta)
    if not 0 <= mu < math.inf:
        raise ValueError(f"mu must be finite and not negative, not {mu}")
    if mu == 0:
        return 0.0

    def needed_delta(eps: float) -> float:
        a, b = mu / 2 - eps / mu, mu / 2 + eps / mu
        first = math.erfc(-a / math.sqrt(2)) / 2
        second = math.exp(-a * a / 2) / math.sqrt(2 * math.pi) * _mills(b)
        return first * (1 + _SLACK) - second * (1 - _SLACK)

    low, high = 0.0, 1.0
    if needed_delta(low) <= delta:
        return 0.0
    while needed_delta(high) > delta:
        low, high = high, 2 * high
    while low < (middle := (low + high) / 2) < high:
        if needed_delta(middle) > delta:
            low = middle
        else:
            high = middle
    return high * ROUND_UP


def _mills(x: float) -> float:
    """Phi(-x) / phi(x) for x > 0; far out a lower bound, right to 1e-10."""
    if x < 30:
        return math.erfc(x / math.sqrt(2)) * math.sqrt(math.pi / 2) * math.exp(x * x / 2)
    return (x**2 + 5) / (x**2 + 6 + 3 / x**2) / x


def check_delta(delta: float) -> None:
    """A ValueError for what is no delta."""
    if not MIN_DELTA <= delta < 1:
        raise ValueError(f"delta must be at least {MIN_DELTA:g} and below 1, not {delta}")


def _composed(counted: Mapping[Mechanism, int], level: Level) -> Callable[[FloatArray], FloatArray]:
    """The Renyi divergence of everything together, as a function of the orders."""
    skellam: list[tuple[Sensitivity, float, int]] = []
    coins: list[tuple[CoinVote, int]] = []
    others: list[Mechanism] = []
    for mechanism, runs in counted.items():
        if isinstance(mechanism, _SKELLAM):
            skellam.append((mechanism.sensitivity(level), mechanism.variance, runs))
        elif isinstance(mechanism, CoinVote):
            coins.append((mechanism, runs))
        else:
            others.append(mechanism)
    # In an order of their own: whoever composes the same mechanisms gets the same digits.
    curves: list[Callable[[FloatArray], FloatArray]] = [
        partial(_times, counted[mechanism], mechanism, level)
        for mechanism in sorted(others, key=repr)
    ]
    if skellam:
        curves.append(SkellamRuns(skellam).curve)
    if coins:
        curves.append(CoinRuns(coins, level).curve)

    def composed(orders: FloatArray) -> FloatArray:
        total = np.zeros(len(orders))
        with np.errstate(over="ignore"):  # infinite is the right answer then
            for curve in curves:
                total += curve(orders)
        return total

    return composed


def _times(runs: int, mechanism: Mechanism, level: Level, orders: FloatArray) -> FloatArray:
    return runs * mechanism.curve(orders, level)


def _least(counted: Mapping[Mechanism, int], level: Level, convert: Conversion) -> float:
    """The least epsilon over the orders: `ORDERS`, then ever finer grids about the best one."""
    if not counted:
        return 0.0
    composed = _composed(counted, level)
    best = float(convert(ORDERS, composed(ORDERS)).min())
    low, high = 0.01, float(ORDERS[-1])
    for _ in range(4):
        orders = 1 + np.geomspace(low, high, 100)
        values = convert(orders, composed(orders))
        at = int(values.argmin())
        best = min(best, float(values[at]))
        low = float(orders[max(at - 1, 0)]) - 1
        high = float(orders[min(at + 1, len(orders) - 1)]) - 1
    return best * ROUND_UP
