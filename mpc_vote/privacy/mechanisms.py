"""The private mechanisms: frozen records of what was released, and their Renyi divergence.

A vote releases, for each query, a function of the ballots' total plus noise; a screen whether the
largest total plus noise reaches a public threshold. Their loss is bounded by that of the noisy
number itself, whatever the secure computation makes of it. `variance` is the part of the noise, in
units^2, that no coalition of the assumed size knows; sensitivities are in units.

The *agent* level of a vote compares a round with the same round where one agent's ballot is zeroed
and its noise stays: it holds for a fixed noise roster. A query of a multi-label round is one query,
however many attributes it has.

A curve bounds the Renyi divergence for any order above 1, in both directions between neighbours.
"""

from __future__ import annotations

import abc
import enum
import json
import math
from dataclasses import MISSING, asdict, dataclass, fields, replace
from functools import lru_cache
from typing import Any, ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt

from mpc_vote.ballots import Sensitivity

FloatArray = npt.NDArray[np.float64]


class Level(enum.Enum):
    """Whom a guarantee protects: a whole agent, or one record of one agent."""

    AGENT = "agent"
    INSTANCE = "instance"


@dataclass(frozen=True)
class _Recorded(abc.ABC):
    """What every mechanism can do."""

    kind: ClassVar[str]

    @abc.abstractmethod
    def curve(self, orders: FloatArray, level: Level) -> FloatArray:
        """Bounds the Renyi divergence over all queries, for every order."""

    def rdp(self, order: float, level: Level) -> float:
        """`curve` at a single order."""
        return float(self.curve(np.array([order], dtype=np.float64), level)[0])

    def to_json(self) -> str:
        """One line that `mechanism_from_json` reads back to an equal record."""
        return json.dumps({"type": self.kind, **asdict(self)}, sort_keys=True)


@dataclass(frozen=True)
class _Noisy(_Recorded):
    """Additive noise on numbers of bounded sensitivity, once for each query."""

    queries: int
    variance: float
    agent: Sensitivity
    instance: Sensitivity

    def __post_init__(self) -> None:
        _check_count("queries", self.queries)
        _check_positive("variance", self.variance)
        for name in ("agent", "instance"):
            if not isinstance(getattr(self, name), Sensitivity):
                raise ValueError(f"{name} must be a Sensitivity, not {getattr(self, name)!r}")

    def sensitivity(self, level: Level) -> Sensitivity:
        """How far neighbours at this level move what one query adds noise to."""
        return self.agent if level is Level.AGENT else self.instance


class _Skellam(_Noisy):
    """Integer noise of Skellam's distribution.

    At integer orders the bound is that of Agarwal, Kairouz and Liu, "The Skellam Mechanism for
    Differentially Private Federated Learning" (arXiv 2110.04995), proved for integer totals.
    Between them (order - 1) times the divergence is convex in the order and zero at order 1 (van
    Erven and Harremoes, "Renyi Divergence and Kullback-Leibler Divergence", 2014, Corollary 2),
    so it lies below its chords. The sampler is within 2^-108 of Skellam
    (`mpc_vote.noise.STATISTICAL_DISTANCE`), which adds less than 2^-60 to delta over 2^40 draws at
    epsilon 4: negligible against any delta in use, and left out of the account.
    """

    def curve(self, orders: FloatArray, level: Level) -> FloatArray:
        """Bounds the Renyi divergence over all queries, for every order."""
        _check_orders(orders)
        below = np.floor(orders)
        share = orders - below
        chord = (1 - share) * self._moment(below, level) + share * self._moment(below + 1, level)
        return self.queries * (chord / (orders - 1))

    def _moment(self, orders: FloatArray, level: Level) -> FloatArray:
        """(order - 1) times the bound of one query at integer orders."""
        moved, twice = self.sensitivity(level), 2 * self.variance
        excess = ((2 * orders - 1) * moved.l2_squared + 6 * moved.l1) / twice / twice
        gaussian = orders * moved.l2_squared / twice
        return (orders - 1) * (gaussian + np.minimum(excess, 3 * moved.l1 / twice))


class _Gaussian(_Noisy):
    """Continuous Gaussian noise: the idealised baseline, not what rounds add."""

    def curve(self, orders: FloatArray, level: Level) -> FloatArray:
        """The Renyi divergence over all queries, for every order (Mironov 2017, Corollary 3)."""
        _check_orders(orders)
        return self.queries * (orders * self.sensitivity(level).l2_squared / (2 * self.variance))


@dataclass(frozen=True)
class SkellamVote(_Skellam):
    """A vote on the totals of all classes under Skellam noise."""

    kind: ClassVar[str] = "skellam_vote"


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


@dataclass(frozen=True)
class Clipped:
    """What differs between neighbours when the unit concerned is sampled, in clips (l2 norm).

    A contribution of at most `clips` is added or removed with its unit; or, with `replaced`, the
    unit stays in both and one contribution of at most `clips` takes the place of another.
    """

    clips: float
    replaced: bool = False

    def __post_init__(self) -> None:
        _check_positive("clips", self.clips)
        if not isinstance(self.replaced, bool):
            raise ValueError(f"replaced must be true or false, not {self.replaced!r}")


@dataclass(frozen=True)
class PoissonGaussian(_Recorded):
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
        _check_count("steps", self.steps)
        _check_positive("sampling", self.sampling)
        if self.sampling > 1:
            raise ValueError(f"sampling must be a probability, not {self.sampling!r}")
        _check_positive("noise_multiplier", self.noise_multiplier)
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
        _check_orders(orders)
        change = self.change(level)
        if change is None:
            return np.full(len(orders), math.inf)
        sigma = self.noise_multiplier / change.clips
        once = [
            _sampled_gaussian(float(order), self.sampling, sigma, change.replaced)
            for order in orders
        ]
        return self.steps * np.array(once)


Mechanism: TypeAlias = SkellamVote | GaussianVote | SkellamScreen | GaussianScreen | PoissonGaussian

_KINDS: dict[str, type[Mechanism]] = {
    mechanism.kind: mechanism
    for mechanism in (SkellamVote, GaussianVote, SkellamScreen, GaussianScreen, PoissonGaussian)
}


def one_query(mechanism: Mechanism) -> Mechanism:
    """The mechanism for a single query, so that equal ones can be counted together."""
    if isinstance(mechanism, PoissonGaussian):
        return replace(mechanism, steps=1)
    return replace(mechanism, queries=1)


def check_mechanism(mechanism: object) -> None:
    """Refuses what this module has no bound for: an unknown loss must not count as none."""
    if not isinstance(mechanism, Mechanism):
        raise TypeError(f"no privacy bound is known for a {type(mechanism).__name__}")


def mechanism_from_json(text: str) -> Mechanism:
    """Reads `to_json` back; refuses unknown types, and fields too many or too few."""
    record = json.loads(text)
    if not isinstance(record, dict):
        raise ValueError("a mechanism must be a JSON object")
    kind = record.pop("type", None)
    owner = _KINDS.get(kind) if isinstance(kind, str) else None
    if owner is None:
        raise ValueError(f"unknown mechanism {kind!r}: a newer version may have written it")
    _check_fields(kind, record, owner)
    for level in ("agent", "instance"):
        if owner is not PoissonGaussian:
            record[level] = _part(record[level], Sensitivity)
        elif record[level] is not None:
            record[level] = _part(record[level], Clipped)
    return owner(**record)


def _part(record: object, owner: type[Sensitivity] | type[Clipped]) -> Sensitivity | Clipped:
    if not isinstance(record, dict):
        raise ValueError(f"a {owner.__name__} must be a JSON object")
    _check_fields(owner.__name__, record, owner)
    return owner(**record)


def _check_fields(
    name: str,
    record: dict[str, Any],
    owner: type[Mechanism] | type[Sensitivity] | type[Clipped],
) -> None:
    """Fields with a default came later: older records go without them."""
    known = {field.name: field.default is MISSING for field in fields(owner)}
    needed = {field for field, required in known.items() if required}
    if not needed <= record.keys() <= known.keys():
        raise ValueError(f"a {name} has the fields {sorted(known)}, not {sorted(record)}")


def _check_count(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} must be a positive integer, not {value!r}")


def _check_positive(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, float | int):
        raise ValueError(f"{name} must be a number, not {value!r}")
    if not 0 < value < math.inf:
        raise ValueError(f"{name} must be positive and finite, not {value!r}")


def _check_orders(orders: FloatArray) -> None:
    if not (orders > 1).all():
        raise ValueError(f"an order must be above 1, not {orders}")


_MOST_POINTS = 1 << 14
_ROOT_TAU = math.sqrt(2 * math.pi)


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
