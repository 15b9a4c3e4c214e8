"""Accounting by privacy loss distributions (PLD): next to exact, and never below the truth.

A mechanism is accounted for by a pair of distributions that dominates all its neighbours: whose
hockey-stick divergence H_a(P || Q) = sup over sets of P - a Q is no smaller at any a. Dominating
pairs compose (Zhu, Dong and Wang, "Optimal Accounting of Differential Privacy via Characteristic
Function", 2022, Theorem 10), adaptively too. `dp_accounting` composes; the pairs are built here,
on a grid of losses that is pessimistic:

- a discrete outcome is split in two of neighbouring grid losses, with the same total probability
  under both distributions: merging them again is post-processing, so the split pair dominates;
- a continuous pair goes through Doroshenko et al., "Connect the Dots: Tighter Discrete
  Approximations of Privacy Loss Distributions" (2022);
- what tails are cut off lose infinitely much.

Importing this module takes seconds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
from dp_accounting.pld import pld_pmf
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution
from scipy.special import ive, log_ndtr, ndtr

from mpc_vote.privacy import noise
from mpc_vote.privacy.accountant import ROUND_UP, Unsupported, check_delta, totals
from mpc_vote.privacy.mechanisms import (
    CoinVote,
    FloatArray,
    GaussianScreen,
    GaussianVote,
    Level,
    Mechanism,
    PoissonGaussian,
    SkellamScreen,
    SkellamVote,
)
from mpc_vote.privacy.mechanisms.coins import escaped_mass, inside

Curve = Callable[[FloatArray], FloatArray]
"""From epsilons to the hockey-stick divergence of a pair at a = e^epsilon."""

_FINENESS = 1 / 256  # the grid's interval, in standard deviations of a typical run's loss
_MOST_POINTS = 1 << 20  # of the composed distribution
_MOST_POINTS_OF_ONE = 1 << 17
_LARGEST_MOVE = 20.0  # of a cell, in standard deviations
_LARGEST_MU = 1e4
_TAIL = 2.0**-100
_DEVIATIONS = 12.0  # a normal variable is further out with probability below 2^-108
_DEBYE_FROM = 2.0**13
_CHUNK = 1 << 20

_ROUNDING = 2.0**-39
"""Bounds the error of a computed log-probability: up to `_DEBYE_FROM` by `ive`, then by an
expansion, it is right to 2^-40, measured against 50 digits."""

_RUN_ERROR = 2.0**-46
"""Set aside of delta for each run: for the rounding of a pair's divergences, estimated at 2^-51,
and of the Fourier transform that composes, estimated at 2^-49."""


@dataclass(frozen=True)
class _Part:
    """A dominating pair, how often it was run, and about how large its loss is.

    `spread` is its squared standard deviation, `reach` the largest loss on the grid. They only
    serve to choose the grid: any is sound.
    """

    runs: int
    spread: float
    reach: float
    build: Callable[[float], PrivacyLossDistribution]


def pld_epsilon(mechanisms: Iterable[Mechanism], level: Level, delta: float) -> float:
    """The epsilon that all mechanisms together lose at `delta`; Unsupported where unproved."""
    check_delta(delta)
    counted = totals(mechanisms)
    if not counted:
        return 0.0
    if any(isinstance(m, PoissonGaussian) and m.change(level) is None for m in counted):
        return math.inf
    parts = _parts(sorted(counted.items(), key=lambda item: item[0].to_json()), level)
    runs = sum(part.runs for part in parts)
    target = delta - (runs + 4) * _RUN_ERROR
    if target < delta / 2:
        raise Unsupported(f"delta {delta:g} is too small for PLD's arithmetic over {runs} runs")
    interval = _interval(parts, runs)
    composed: PrivacyLossDistribution | None = None
    for part in parts:
        own = part.build(interval).self_compose(part.runs)
        composed = own if composed is None else composed.compose(own)
    assert composed is not None
    return _least_epsilon(composed, target) * ROUND_UP


def _least_epsilon(composed: PrivacyLossDistribution, delta: float) -> float:
    """Their own search sums up inexactly, and overflows where epsilon is large."""
    if composed.get_delta_for_epsilon(math.inf) > delta:
        return math.inf
    low, high = 0.0, 1.0
    if composed.get_delta_for_epsilon(low) <= delta:
        return 0.0
    while composed.get_delta_for_epsilon(high) > delta:
        low, high = high, 2 * high
    while high - low > 2.0**-32 * high:
        middle = (low + high) / 2
        if composed.get_delta_for_epsilon(middle) > delta:
            low = middle
        else:
            high = middle
    return high


def _interval(parts: list[_Part], runs: int) -> float:
    """The grid: far finer than one run's loss where that leaves few enough points."""
    spread = math.sqrt(sum(part.runs * min(part.spread, 1.0) for part in parts))
    return max(
        _FINENESS * spread / math.sqrt(runs),
        16 * spread / _MOST_POINTS,
        max(part.reach for part in parts) / _MOST_POINTS_OF_ONE,
    )


def _parts(counted: Iterable[tuple[Mechanism, int]], level: Level) -> list[_Part]:
    """All Gaussian noise is one part, exactly: the squares of mu add up."""
    squares: list[float] = []
    parts: list[_Part] = []
    for mechanism, runs in counted:
        match mechanism:
            case GaussianVote() | GaussianScreen():
                moved = mechanism.sensitivity(level)
                squares.append(runs * moved.l2_squared / mechanism.variance)
            case SkellamVote() | SkellamScreen():
                parts.append(_skellam_part(mechanism, runs, level))
            case CoinVote():
                parts.append(_coin_part(mechanism, runs, level))
            case PoissonGaussian():
                parts.append(_poisson_part(mechanism, runs, level))
    if squares:
        mu = _checked_mu(math.sqrt(sum(sorted(squares))))
        parts.append(_sampled_part(1, mu, 1.0))
    return parts


def _checked_mu(mu: float) -> float:
    if not mu < _LARGEST_MU:
        raise Unsupported(f"a move of {mu:g} standard deviations drowns the noise")
    return mu


def _skellam_part(mechanism: SkellamVote | SkellamScreen, runs: int, level: Level) -> _Part:
    """Every cell that moves is a run of its own.

    Skellam noise is log-concave, so the likelihood ratio of two shifts is monotone and the best
    set for H_a(X + t || X) is a half line: the supremum over c of P(X >= c - t) - a P(X >= c),
    which rises with t. So a cell moved by exactly `step` dominates one moved by less, in both
    directions, as X is symmetric.
    """
    moved, variance = mechanism.sensitivity(level), mechanism.variance
    if moved.cells is None or moved.step is None:
        raise Unsupported(
            f"PLD needs the shape of the worst move, which is not known for Skellam noise "
            f"at {level.value} level with these ballots"
        )
    step = moved.step
    if not step * step / variance < _LARGEST_MOVE**2:
        raise Unsupported(f"a move of {step} units drowns noise of variance {variance:g}")
    spread = step * step / variance
    return _Part(
        runs * moved.cells,
        spread,
        2 * _DEVIATIONS * math.sqrt(spread),
        lambda interval: _skellam(step, variance, interval),
    )


def _skellam(step: int, variance: float, interval: float) -> PrivacyLossDistribution:
    """The pair (X, X - step) on the grid; the loss rises with the outcome."""
    reach = noise.tail_bound(variance, _TAIL)

    def losses(outcomes: FloatArray) -> tuple[FloatArray, FloatArray]:
        log_mass = _log_skellam(outcomes, variance)
        return log_mass, log_mass - _log_skellam(outcomes + step, variance) + 2 * _ROUNDING

    _, ends = losses(np.array([-reach, reach], dtype=np.float64))
    split = _Split(interval, float(ends[0]), float(ends[1]))
    for start in range(-reach, reach + 1, _CHUNK):
        outcomes = np.arange(start, min(start + _CHUNK, reach + 1), dtype=np.float64)
        log_mass, loss = losses(outcomes)
        split.add(np.exp(log_mass + _ROUNDING), loss)
    return split.distribution(_TAIL)


class _Split:
    """Outcomes split in two of neighbouring grid losses, from the least loss to the largest."""

    def __init__(self, interval: float, least: float, largest: float) -> None:
        self._interval = interval
        self._first = math.floor(least / interval) - 1
        self._grid = np.zeros(math.floor(largest / interval) + 3 - self._first)

    def add(self, mass: FloatArray, loss: FloatArray) -> None:
        below = np.floor(loss / self._interval)
        share = np.expm1(below * self._interval - loss) / math.expm1(-self._interval)
        upper = np.clip(share, 0.0, 1.0)
        at = below.astype(np.int64) - self._first
        self._grid += np.bincount(at, mass * (1 - upper), len(self._grid))
        self._grid += np.bincount(at + 1, mass * upper, len(self._grid))

    def distribution(self, beyond: float) -> PrivacyLossDistribution:
        """What is `beyond` loses infinitely much."""
        pmf = pld_pmf.DensePLDPmf(self._interval, self._first, self._grid, beyond, True)
        return PrivacyLossDistribution(pmf)


def _coin_part(mechanism: CoinVote, runs: int, level: Level) -> _Part:
    """Every cell that moves is a run of its own.

    Votes are whole, so a cell that may move by one vote moves by one or by none, and by none it
    loses nothing. The law need not be log-concave: all outcomes are split, in any order. It is
    symmetric, so swapped the pair is the same mirrored.
    """
    moved = mechanism.sensitivity(level)
    if moved.cells is None or moved.step != mechanism.unit:
        raise Unsupported(
            "PLD needs the shape of the worst move, which is not known for the committee's coins "
            f"at {level.value} level with these ballots"
        )
    step, masses = mechanism.unit, mechanism.law.probabilities()
    within = inside(masses, step)
    if not within.any():
        raise Unsupported("a vote moves a total beyond the reach of the committee's coins")
    places = np.flatnonzero(within)
    mass = masses[places]
    loss = np.log(mass) - np.log(masses[places + step]) + 2 * _ROUNDING
    beyond = escaped_mass(masses, within)

    def build(interval: float) -> PrivacyLossDistribution:
        split = _Split(interval, float(loss.min()), float(loss.max()))
        split.add(mass * (1 + _ROUNDING), loss)
        return split.distribution(beyond)

    spread = step * step / mechanism.variance
    return _Part(runs * moved.cells, spread, float(np.abs(loss).max()), build)


def _log_skellam(outcomes: FloatArray, variance: float) -> FloatArray:
    """log P(X = k) = log(e^-mu I_k(mu)); for a large mu by Debye's expansion (DLMF 10.41.3).

    In R = sqrt(k^2 + mu^2) its terms are bounded polynomials of (k / R)^2 over powers of R; after
    two, the error is below R^-3 (DLMF 10.41(iii)).
    """
    k = np.abs(outcomes)
    if variance < _DEBYE_FROM:
        return np.asarray(np.log(ive(k, variance)), dtype=np.float64)
    root = np.hypot(k, variance)
    ratio = (k / root) ** 2
    exponent = k * (k / (root + variance) - np.arcsinh(k / variance))
    second = (81 - 462 * ratio + 385 * ratio**2) / (1152 * root**2)
    terms = np.log1p((3 - 5 * ratio) / (24 * root) + second)
    return np.asarray(exponent - np.log(2 * math.pi * root) / 2 + terms, dtype=np.float64)


def _poisson_part(mechanism: PoissonGaussian, runs: int, level: Level) -> _Part:
    change, sampling = mechanism.change(level), mechanism.sampling
    assert change is not None
    mu = _checked_mu(change.clips / mechanism.noise_multiplier)
    return (_replaced_part if change.replaced else _sampled_part)(runs, mu, sampling)


def _sampled_part(runs: int, mu: float, sampling: float) -> _Part:
    """(1 - q) N(0, 1) + q N(mu, 1) and N(0, 1), in both orders.

    They dominate what is added or removed (Zhu, Dong and Wang 2022, Theorem 11). For b =
    1 + (a - 1) / q, H_a of the pair is q H_b(N(mu, 1) || N(0, 1)), and 1 - a where b <= 0.
    """
    low, high = (
        _mixture(sampling, loss)
        for loss in (-mu * mu / 2 - _DEVIATIONS * mu, mu * mu / 2 + _DEVIATIONS * mu)
    )
    least = _log_unsampled(sampling)

    def curve(eps: FloatArray) -> FloatArray:
        with np.errstate(divide="ignore", invalid="ignore"):
            order = eps - math.log(sampling) + np.log(-np.expm1(least - eps))
            gaussian = ndtr(mu / 2 - order / mu) - np.exp(order + log_ndtr(-mu / 2 - order / mu))
        return np.where(eps > least, sampling * gaussian, -np.expm1(np.minimum(eps, 0.0)))

    def build(interval: float) -> PrivacyLossDistribution:
        return PrivacyLossDistribution(
            _connected(curve, low, high, interval),
            _connected(_swapped(curve), -high, -low, interval) if sampling < 1 else None,
        )

    return _Part(runs, sampling**2 * math.expm1(min(mu * mu, 99.0)), max(high, -low), build)


def _replaced_part(runs: int, mu: float, sampling: float) -> _Part:
    """P = (1 - q) N(0, 1) + q N(mu, 1) and Q, the same with -mu.

    They dominate contributions u and u' no longer than mu, in any dimension: the proof is at
    `mpc_vote.privacy.mechanisms.subsampled_gaussian._sampled_gaussian`. Swapped they are the pair
    mirrored.
    """
    high = mu * (mu + _DEVIATIONS)
    reach = _mixture(sampling, high - mu * mu / 2) - _mixture(sampling, -high - mu * mu / 2)

    def above(eps: FloatArray) -> FloatArray:
        """P - a Q of {x > t}, where t solves P = a Q: e^(mu t) is a root of a quadratic."""
        with np.errstate(divide="ignore"):
            log_sinh = eps / 2 + np.log(-np.expm1(-eps) / 2)
        log_ratio = log_sinh + _log_unsampled(sampling) - math.log(sampling) + mu * mu / 2
        t = (eps / 2 + np.logaddexp(log_ratio, np.logaddexp(0.0, 2 * log_ratio) / 2)) / mu
        apart = ndtr(mu - t) - np.exp(eps + log_ndtr(-mu - t))
        same = ndtr(-t) - np.exp(eps + log_ndtr(-t))
        return np.asarray(sampling * apart + (1 - sampling) * same, dtype=np.float64)

    def curve(eps: FloatArray) -> FloatArray:
        return np.where(eps >= 0, above(np.abs(eps)), _swapped(above)(-np.abs(eps)))

    def build(interval: float) -> PrivacyLossDistribution:
        return PrivacyLossDistribution(_connected(curve, -reach, reach, interval))

    return _Part(runs, 4 * sampling**2 * math.sinh(min(mu * mu, 99.0)), reach, build)


def _mixture(sampling: float, loss: float) -> float:
    """log(1 - q + q e^loss)."""
    return float(np.logaddexp(_log_unsampled(sampling), math.log(sampling) + loss))


def _log_unsampled(sampling: float) -> float:
    return math.log1p(-sampling) if sampling < 1 else -math.inf


def _swapped(curve: Curve) -> Curve:
    """The curve of the pair (Q, P): H_a(Q || P) = 1 - a + a H_{1/a}(P || Q)."""
    return lambda eps: np.exp(eps) * curve(-eps) - np.expm1(eps)


def _connected(curve: Curve, low: float, high: float, interval: float) -> pld_pmf.PLDPmf:
    """The pair of a curve on the grid from `low` to `high`; what is above loses infinitely much."""
    first, last = math.floor(low / interval), math.ceil(high / interval)
    grid = np.arange(first, last + 1, dtype=np.float64) * interval
    deltas = np.clip(curve(grid), 0.0, 1.0)
    return pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(interval, first, last, deltas)
