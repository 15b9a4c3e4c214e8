"""Exact profiles of small cases, by enumeration: what no account may fall below."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import comb

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
Profile = Callable[[FloatArray], FloatArray]


def coins(*levels: tuple[int, int]) -> FloatArray:
    """The law of weighted coins: so many of each weight."""
    law = np.ones(1)
    for weight, number in levels:
        spaced = np.zeros(weight * number + 1)
        spaced[::weight] = [comb(number, heads) / 2**number for heads in range(number + 1)]
        law = np.convolve(law, spaced)
    return law


def label_law(totals: Sequence[int], law: FloatArray, order: Sequence[int]) -> FloatArray:
    """The probability of every class to be the noisy argmax, ties to the first in an order."""
    drawn = np.indices((len(law),) * len(totals)).reshape(len(totals), -1)
    noisy = drawn + np.asarray(totals)[:, None]
    winners = np.asarray(order)[np.argmax(noisy[list(order)], axis=0)]
    masses: FloatArray = law[drawn].prod(axis=0)
    return np.array([masses[winners == one].sum() for one in range(len(totals))])


def nothing(g: FloatArray) -> FloatArray:
    """The profile of what shows nothing."""
    return np.maximum(0.0, 1 - g)


def before(p: FloatArray, q: FloatArray, rest: Profile) -> Profile:
    """The worst of all versions of a step, arrays of (version, outcome), before a rest."""

    def profile(g: FloatArray) -> FloatArray:
        worst = np.zeros(len(g))
        for one, other in zip(p, q, strict=True):
            seen = one > 0
            ratios = other[seen] / one[seen]
            values = rest(np.outer(ratios, g).reshape(-1)).reshape(-1, len(g))
            worst = np.maximum(worst, one[seen] @ values)
        return worst

    return profile


def epsilon_of(profile: Profile, delta: float) -> float:
    """The least epsilon at delta, to 2^-30."""
    low, high = 0.0, 64.0
    while high - low > 2.0**-30:
        middle = (low + high) / 2
        if profile(np.exp([middle]))[0] <= delta:
            high = middle
        else:
            low = middle
    return high
