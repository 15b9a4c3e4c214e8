"""Poisson-subsampled Gaussian noise: what DP-FedAvg and DP-FedSGD cost."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np

from mpc_vote.privacy.mechanisms.base import (
    BaseMechanism,
    FloatArray,
    Level,
    check_count,
    check_orders,
    check_positive,
)

_MOST_POINTS = 1 << 14
_ROOT_TAU = math.sqrt(2 * math.pi)


@dataclass(frozen=True)
class Clipped:
    """What differs between neighbours when the unit concerned is sampled, in clips (l2 norm).

    A contribution of at most `clips` is added or removed with its unit; or, with `replaced`, the
    unit stays in both and one contribution of at most `clips` takes the place of another.
    """

    clips: float
    replaced: bool = False

    def __post_init__(self) -> None:
        check_positive("clips", self.clips)
        if not isinstance(self.replaced, bool):
            raise ValueError(f"replaced must be true or false, not {self.replaced!r}")


@dataclass(frozen=True)
class PoissonGaussian(BaseMechanism):
    """DP-FedAvg and DP-FedSGD: noisy sums of clipped contributions of a Poisson sample.

    In each step every unit takes part with probability `sampling`, on its own and unknown to the
    adversary, and the sum of contributions gets Gaussian noise of `noise_multiplier` clips in each
    coordinate. What is published must not depend on the sample's size: divide by its expectation.
    A level without a finite bound is None, and costs infinitely much.

    FedAvg samples agents: Clipped(1.0) at agent level, Clipped(1.0, replaced=True) at instance
    level, where a record changes its agent's update in any way. FedSGD samples records:
    Clipped(1.0) at instance level, None at agent level.
    """

    kind: ClassVar[str] = "poisson_gaussian"

    steps: int
    sampling: float
    noise_multiplier: float
    agent: Clipped | None
    instance: Clipped | None

    def __post_init__(self) -> None:
        check_count("steps", self.steps)
        check_positive("sampling", self.sampling)
        if self.sampling > 1:
            raise ValueError(f"sampling must be a probability, not {self.sampling!r}")
        check_positive("noise_multiplier", self.noise_multiplier)
        for name in ("agent", "instance"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, Clipped):
                raise ValueError(f"{name} must be Clipped or None, not {value!r}")

    @property
    def queries(self) -> int:
        """A step is what a query is to a vote."""
        return self.steps

    def change(self, level: Level) -> Clipped | None:
        """What differs between neighbours at this level."""
        return self.agent if level is Level.AGENT else self.instance

    def curve(self, orders: FloatArray, level: Level) -> FloatArray:
        """Bounds the Renyi divergence over all steps, for every order.

        Added or removed: Mironov, Talwar and Zhang, "Renyi Differential Privacy of the Sampled
        Gaussian Mechanism" (2019), Theorems 4 and 5. Replaced: see `_sampled_gaussian`.
        """
        check_orders(orders)
        change = self.change(level)
        if change is None:
            return np.full(len(orders), math.inf)
        sigma = self.noise_multiplier / change.clips
        once = [
            _sampled_gaussian(float(order), self.sampling, sigma, change.replaced)
            for order in orders
        ]
        return self.steps * np.array(once)


@lru_cache(maxsize=1 << 14)
def _sampled_gaussian(order: float, sampling: float, sigma: float, replaced: bool) -> float:
    """The Renyi divergence of (1 - q) N(0, s^2) + q N(1, s^2), rounded up.

    From N(0, s^2); or, with `replaced`, from (1 - q) N(0, s^2) + q N(-1, s^2), which is the worst
    case where a sampled unit's contribution u, of at most one clip, is replaced by such a u'.
    Proof: let n be densities. The divergence rises with the integrals, for all b > 0, of
    f(u, u') = max(0, (1 - q) n_0 + q n_u - b ((1 - q) n_0 + q n_u')); b < 1 is b > 1 with u and u'
    swapped. For b >= 1 that is q max(0, n_u - c n_0 - b n_u') with c = (b - 1) (1 - q) / q >= 0.
    (1) Let v = u - |u - u'| u / |u|, on the line through 0 and u, and mirror u' to v in the
    hyperplane through u between them. 0 is on the side of v, so of two mirrored points the one
    with the larger n_0 has the smaller n_u' and the larger n_v: as max(0, .) is convex, the
    integral of f(u, v) is no smaller. (2) v is within one clip and not beyond u, so
    n_u / (c n_0 + b n_v) is monotone along the line, the best set a half space {x > t}, and
    N_u - c N_0 - b N_v of it rises as u goes to 1 and v to -1.

    With p and r the two densities over that of N(0, s^2), the divergence is
    log(1 + A) / (order - 1), A = E[p^order r^(1 - order) - order p + (order - 1) r] over
    x from N(0, s^2), where p and r have mean 1. At x + i d, |p| is no larger than at x and |r| no
    smaller than cos(d / s^2) r. So with d = 9h and h = min(s, s^2) / 3, where r = 1, or else
    d = min(s, s^2) and h = d / (9 + order / 8), the trapezoidal rule is off by less than
    1e-21 (1 + A + order) (Trefethen and Weideman, "The Exponentially Convergent Trapezoidal
    Rule", 2014, Theorem 5.1). The tails left out have less than 1e-31 (1 + order): above, the
    first term is at most a normal density about m = order (replaced: 2 order - 1), with mass
    exp(m^2 / 2s^2); below, all terms but the last are bounded by `order`.

    Unsampled it would be order / 2s^2, or four times that, an upper bound by quasi-convexity:
    taken where h is too fine. It rises with the order, so orders below 1.01 get that of 1.01.
    """
    order = max(order, 1.01)
    unsampled = order / 2 / sigma / sigma * (4 if replaced else 1)
    step = min(sigma, sigma * sigma) / (9 + order / 8 if replaced else 3)
    furthest = 2 * order - 1 if replaced else order
    low, high = -1 - 12 * sigma, furthest + math.hypot(furthest, 12 * sigma)
    if sampling == 1 or not high - low < _MOST_POINTS * step:
        return unsampled
    places = np.arange(math.floor(low / step), math.ceil(high / step) + 1, dtype=np.float64)
    x = places * step
    log_p = _log_mixture((x - 0.5) / sigma / sigma, sampling)
    log_r = _log_mixture((-x - 0.5) / sigma / sigma, sampling) if replaced else np.zeros_like(x)
    logs = log_r + _log_excess(order * (log_p - log_r), order) - (x / sigma) ** 2 / 2
    most = float(logs.max())
    log_sum = most + math.log(float(np.exp(logs - most).sum()) * step / sigma / _ROOT_TAU)
    left_out = math.log(1e-19 * order) + max(0.0, log_sum)
    log_mean = float(np.logaddexp(log_sum + 2.0**-30, left_out))
    return min(unsampled, float(np.logaddexp(0.0, log_mean)) / (order - 1))


def _log_mixture(loss: FloatArray, sampling: float) -> FloatArray:
    """log(1 - q + q e^loss), right to the last digits about 0."""
    near = np.log1p(sampling * np.expm1(np.minimum(loss, 30.0)))
    odds = (1 - sampling) / sampling
    far = math.log(sampling) + loss + np.log1p(odds * np.exp(-np.maximum(loss, 30.0)))
    return np.where(loss < 30, near, far)


def _log_excess(power: FloatArray, order: float) -> FloatArray:
    """log(e^E - a e^(E/a) + a - 1), without cancellation: it is not negative.

    The number is the sum over n >= 2 of E^n / n! (1 - a^(1-n)).
    """
    found = np.full_like(power, -math.inf)
    tiny, large = (np.abs(power) <= 1e-3) & (power != 0), power > 1
    middle = (np.abs(power) > 1e-3) & ~large
    series = np.zeros_like(power[tiny])
    for n in range(7, 1, -1):
        factor = -math.expm1((1 - n) * math.log(order)) / math.factorial(n)
        series = series * power[tiny] + factor
    found[tiny] = np.log(series) + 2 * np.log(np.abs(power[tiny]))
    found[middle] = np.log(np.expm1(power[middle]) - order * np.expm1(power[middle] / order))
    some = power[large]
    scaled = 1 - order * np.exp((1 / order - 1) * some) + (order - 1) * np.exp(-some)
    found[large] = some + np.log(scaled)
    return found
