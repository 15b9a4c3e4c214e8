"""What publishing a data-dependent bound costs: noise whose scale itself depends on the data."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import ClassVar

import numpy as np

from mpc_vote.privacy.mechanisms.base import (
    BaseMechanism,
    FloatArray,
    Level,
    check_orders,
    check_positive,
)


@dataclass(frozen=True)
class SmoothRelease(BaseMechanism):
    """One number published by `mpc_vote.privacy.smooth_sensitivity.release`.

    `agent` and `instance` say at which levels neighbours move it no further than it allows for;
    at any other level nothing is proved, and it costs infinitely much.
    """

    kind: ClassVar[str] = "smooth_release"
    queries: ClassVar[int] = 1

    beta: float
    noise: float
    failure: float
    agent: bool
    instance: bool

    def __post_init__(self) -> None:
        release_cost(2.0, beta=self.beta, noise=self.noise, failure=self.failure)
        for name in ("agent", "instance"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name} must be true or false, not {getattr(self, name)!r}")

    def curve(self, orders: FloatArray, level: Level) -> FloatArray:
        """`release_cost` at every order."""
        check_orders(orders)
        if not (self.agent if level is Level.AGENT else self.instance):
            return np.full(len(orders), math.inf)
        return np.array(
            [
                release_cost(float(order), beta=self.beta, noise=self.noise, failure=self.failure)
                for order in orders
            ]
        )


def release_cost(order: float, *, beta: float, noise: float, failure: float) -> float:
    """The Renyi divergence of `order` that `release` adds, whatever the data; maybe infinite.

    Let f move by at most min(S, S') between neighbours, with S <= e^beta S' and S' <= e^beta S.
    The estimate's mean is f + noise z S and moves by at most min(S, S') w,
    w = 1 + noise z (e^beta - 1), as |S - S'| <= (e^beta - 1) min(S, S'). Two Gaussians whose means
    are d apart and whose variances are v and v' = v / t have the divergence

        D_a = a d^2 / (2 v' (1 - (a-1)(t-1)))  -  [log(1 - (a-1)(t-1)) + (a-1) log t] / (2 (a-1))

    if (a-1)(t-1) < 1, else it is infinite (Gil, Alajaji, Linder, "Renyi divergence measures for
    commonly used univariate continuous distributions", 2013). Here t lies in [e^-2beta, e^2beta],
    v' = (noise S')^2 and d^2 <= w^2 min(1, t) S'^2. The first term grows with t; the second falls
    before t = 1 and grows after it. So the first at e^2beta plus the larger second of the two ends
    is a bound. It stands in for the GNSS mechanism of Papernot et al., "Scalable Private Learning
    with PATE" (2018), Theorem 23, whose formula in its authors' code, for z = 0 and
    1 < a < 1/(2 beta), a e^2beta / noise^2 + (a beta - log(1 - 2 a beta) / 2) / (a - 1), is looser
    while a beta is small, but too low near the end of that range (see the tests).
    """
    check_orders(np.array([order]))
    check_positive("beta", beta)
    check_positive("noise", noise)
    a = float(order)
    spread = math.expm1(min(2 * beta, 700.0))
    left = 1 - (a - 1) * spread
    if left <= 0:
        return math.inf
    moved = 1 + noise * quantile(failure) * math.expm1(beta)
    shift = a * moved**2 / (2 * noise**2 * left)
    grown = -math.log(left) / (2 * (a - 1)) - beta
    shrunk = -math.log1p(-(a - 1) * math.expm1(-2 * beta)) / (2 * (a - 1)) + beta
    return (shift + max(grown, shrunk)) * (1 + 2.0**-36)


def quantile(failure: float) -> float:
    """What a standard normal exceeds with probability `failure`."""
    if not 0 < failure <= 0.5:
        raise ValueError(f"failure must lie above 0 and at most at 1/2, not {failure}")
    return NormalDist().inv_cdf(1 - failure)
