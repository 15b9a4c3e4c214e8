"""Skellam noise: the integers an agent adds to its ballot before sharing it.

A Skellam variable of variance mu is the difference of two Poisson(mu / 2). Independent ones add up
to a Skellam whose variance is the sum, so the total's noise is known exactly whichever agents drop
out. Privacy rests on `os.urandom` and on agents keeping their draws to themselves; a table lookup
is not constant time, so a draw must not be made where an attacker shares the agent's caches.
"""

from __future__ import annotations

import decimal
import math
import os
from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

MAX_STD = 20_000.0
"""The largest standard deviation, in units, a table is built for."""

STATISTICAL_DISTANCE = 2.0**-108
"""Bounds the total variation distance of one draw from Skellam, at every allowed variance.

n draws made with it instead of the ideal noise add at most (1 + e^epsilon) * n * 2^-108 to delta:
below 2^-60 for 2^40 draws and epsilon 4. It is why delta has a least value, and says nothing where
epsilon is above 40 or so.
"""

MAX_SIGMA = 2.0**40

_DRAW_BITS = 127  # of the 128 bits of a draw; the last one is the sign
_TAIL = 2.0**-130
_START = 2.0**-256
_DIGITS = 80
_WORKING_BITS = 192
_CHUNK = 1 << 16

ByteSource = Callable[[int], bytes]


class _Table(NamedTuple):
    """floor(2^127 P(|X| <= k)) for k = 0, 1, ..., split into 64 high and 63 low bits."""

    high: npt.NDArray[np.uint64]
    low: npt.NDArray[np.uint64]


class SkellamSampler:
    """Draws Skellam integers of a variance (in units^2) from a table of their distribution.

    One draw takes 16 bytes: one bit of sign, 127 bits u that select |X| as the number of k with
    floor(2^127 P(|X| <= k)) <= u. With K entries in the table, each is off by at most 2^-127
    plus the error of its computation, which is below 2^-160 (see `_build`), and all mass above K,
    at most 2^-130, is moved to K: the distance from Skellam is below (K + 1) 2^-127.
    """

    def __init__(self, variance: float) -> None:
        _check_variance(variance)
        if variance > MAX_STD**2:
            raise ValueError(
                f"a variance of {variance} units^2 is above {MAX_STD**2}: "
                "use fewer fraction bits or a smaller sigma"
            )
        self.variance = float(variance)
        self._table = _build(self.variance)

    @property
    def largest(self) -> int:
        """No draw exceeds this in absolute value."""
        return len(self._table.high)

    @property
    def statistical_distance(self) -> float:
        """Bounds the total variation distance of one draw from Skellam; see the class."""
        return math.ldexp(self.largest + 1, -_DRAW_BITS)

    def sample(
        self, shape: int | tuple[int, ...], source: ByteSource = os.urandom
    ) -> npt.NDArray[np.int64]:
        """Independent draws; any `source` but the default is for simulation only."""
        drawn = np.empty(shape, dtype=np.int64)
        flat = drawn.reshape(-1)
        for start in range(0, flat.size, _CHUNK):
            part = flat[start : start + _CHUNK]
            raw = source(16 * part.size)
            if len(raw) != 16 * part.size:
                raise ValueError(f"source gave {len(raw)} bytes, not {16 * part.size}")
            words = np.frombuffer(raw, dtype="<u8").astype(np.uint64, copy=False).reshape(-1, 2)
            last = words[:, 1]
            size = self._magnitude(np.ascontiguousarray(words[:, 0]), last >> np.uint64(1))
            sign = 1 - 2 * (last & np.uint64(1)).astype(np.int64)
            np.multiply(size, sign, out=part)
        return drawn

    def _magnitude(
        self, high: npt.NDArray[np.uint64], low: npt.NDArray[np.uint64]
    ) -> npt.NDArray[np.int64]:
        table = self._table
        found = np.searchsorted(table.high, high, side="left").astype(np.int64)
        inside = np.minimum(found, len(table.high) - 1)
        for i in np.flatnonzero(table.high[inside] == high):
            end = np.searchsorted(table.high, high[i], side="right")
            found[i] += np.searchsorted(table.low[found[i] : end], low[i], side="right")
        return found


def tail_bound(variance: float, probability: float) -> int:
    """A B with P(|X| > B) <= probability for Skellam X: what a ring must have room for.

    Chernoff with the cumulant mu (cosh t - 1), at its best t = asinh(x / mu):
    P(X >= x) <= exp(-(x asinh(x / mu) - sqrt(x^2 + mu^2) + mu)), and twice that for |X|.
    """
    _check_variance(variance)
    if not 0 < probability < 1:
        raise ValueError(f"probability must lie strictly between 0 and 1, not {probability}")
    wanted = (math.log(2) - math.log(probability)) * (1 + 1e-9)

    def exponent(x: int) -> float:
        return x * math.asinh(x / variance) - x * (x / (math.hypot(x, variance) + variance))

    below, enough = 0, 1
    while exponent(enough) < wanted:
        below, enough = enough, 2 * enough
    while enough - below > 1:
        middle = (below + enough) // 2
        if exponent(middle) < wanted:
            below = middle
        else:
            enough = middle
    return enough - 1


def per_agent_variance(sigma: float, fraction_bits: int, quorum: int, collusion: int) -> float:
    """The variance (units^2) each agent adds so that a round carries sigma^2 nobody knows.

    Any `quorum` agents of whom `collusion` pool what they drew leave quorum - collusion unknown
    parts; these sum to at least sigma^2 * 4^fraction_bits exactly, the result being rounded up.
    """
    if not 0 < sigma <= MAX_SIGMA:
        raise ValueError(f"sigma must be positive and at most 2^40 votes, not {sigma}")
    if not 0 <= fraction_bits <= 64:
        raise ValueError(f"fraction_bits must lie in 0..64, not {fraction_bits}")
    if not 0 <= collusion < quorum:
        raise ValueError(
            f"quorum ({quorum}) must exceed the collusion bound ({collusion}), itself at least 0: "
            "with no honest agent left there is no noise to hide behind"
        )
    honest = quorum - collusion
    wanted = Fraction(sigma) ** 2 * 4**fraction_bits
    variance = float(wanted / honest)
    while Fraction(variance) * honest < wanted:
        variance = math.nextafter(variance, math.inf)
    return variance


def _check_variance(variance: float) -> None:
    if not 0 < variance < math.inf:
        raise ValueError(f"variance must be positive and finite, not {variance}")


@lru_cache(maxsize=8)
def _build(variance: float) -> _Table:
    """The table for one variance, by Miller's backward recurrence.

    p_k = P(X = k) = e^-mu I_k(mu) is positive, falls with k and obeys
    p_{k-1} = p_{k+1} + (2k / mu) p_k. Let f obey the same from f_M = 1 and f_{M+1} = 0, where
    P(|X| > M) <= 2^-256. f_k p_{k+1} - f_{k+1} p_k only changes its sign from one k to the next,
    so q_k = f_k / p_k moves in alternating steps of size f_M p_{M+1} / (p_k p_{k+1}), which shrink
    as k falls. Hence for i < j <= M, |q_j - q_i| is at most one step, f_M p_{M+1} / (p_{j-1} p_j),
    and q_j >= q_M - one step = q_M (2M / mu) p_M / p_{M-1}: put together,
    p_j |q_j - q_i| / q <= p_{M+1} mu / (2M). So f / (f_0 + 2 sum f) is p but for errors that add
    up to less than 2 mu p_{M+1} + 2^-255 < 2^-220. All terms are positive, so rounding to 80
    digits costs a relative 6 (M + 1) 10^-80 < 2^-240, and cutting each term to 192 bits, over at
    most 2^19 terms, less than 2^-172: an entry is right to 2^-160 before it is cut to 127 bits.
    """
    entries = max(1, tail_bound(variance, _TAIL))
    start = max(entries + 1, tail_bound(variance, _START))
    with decimal.localcontext(
        decimal.Context(
            prec=_DIGITS,
            rounding=decimal.ROUND_HALF_EVEN,
            Emin=decimal.MIN_EMIN,
            Emax=decimal.MAX_EMAX,
        )
    ):
        step = 2 / decimal.Decimal(variance)
        above, here = decimal.Decimal(0), decimal.Decimal(1)
        mass = [here]
        for k in range(start, 0, -1):
            above, here = here, above + k * step * here
            mass.append(here)
        mass.reverse()
        scale = (1 << _WORKING_BITS) / (mass[0] + 2 * sum(mass[1:]))
        parts = [int(mass[0] * scale), *(int(2 * p * scale) for p in mass[1:entries])]
    drop = _WORKING_BITS - _DRAW_BITS
    largest = (1 << _DRAW_BITS) - 1
    cumulative = [min(total >> drop, largest) for total in accumulate(parts)]
    low_bits = _DRAW_BITS - 64
    mask = (1 << low_bits) - 1
    return _Table(
        high=np.array([c >> low_bits for c in cumulative], dtype=np.uint64),
        low=np.array([c & mask for c in cumulative], dtype=np.uint64),
    )
