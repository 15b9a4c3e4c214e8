"""The law of weighted coins: the noise that the committee draws in verified rounds.

The noise of a cell is X = sum over levels of w * (Bin(n, 1/2) - n/2): n coins, each worth half of w
up or down. It is an integer if the sum of w * n is even, its variance is the sum of w^2 n / 4, and
it never leaves [-reach, reach]. Few coins suffice, as those of small weights smooth the steps of
the large ones: 91 for a sigma of 25, where unit coins alone would take 2,500.

`law_for` is the public rule by which every role finds the same law from a round's sigma, in
integers. Its variance is never below sigma^2, and above it by less than half a unit^2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]

MAX_SIGMA = 20_000.0
"""In votes: what is accounted for in a second."""

MIN_SIGMA = 0.05
"""In votes: with less, noise that could still hide a vote takes thousands of coins."""

MAX_COINS = 1 << 12
"""Of a cell."""

RELATIVE_ERROR = 2.0**-40
"""Bounds that of every probability that `CoinLaw.probabilities` gives above 2^-900."""

_MIN_COINS = 60
_MIN_TOP = 48
_SMOOTH = 4
_DEVIATIONS = 8
# A round's is asked for by each of its checks and charges.
_LAWS_KEPT = 64


@dataclass(frozen=True)
class CoinLaw:
    """So many coins of each weight, lightest first."""

    levels: tuple[tuple[int, int], ...]

    def __post_init__(self) -> None:
        for level in self.levels:
            if len(level) != 2 or any(type(one) is not int or one < 1 for one in level):
                raise ValueError(f"a level is a positive weight and number, not {level!r}")
        weights = [weight for weight, _ in self.levels]
        if not weights or weights != sorted(set(weights)):
            raise ValueError(f"the weights of coins must rise, not {weights}")
        if self.coins > MAX_COINS:
            raise ValueError(f"a cell has at most {MAX_COINS} coins, not {self.coins}")
        if self._worth % 2:
            raise ValueError("all coins together must be worth an even number")

    @property
    def coins(self) -> int:
        """Of a cell."""
        return sum(number for _, number in self.levels)

    @property
    def weights(self) -> tuple[int, ...]:
        """Of every coin, in the order in which they are drawn."""
        return tuple(weight for weight, number in self.levels for _ in range(number))

    @property
    def reach(self) -> int:
        """The most noise, in units: what a ring must have room for."""
        return self._worth // 2

    @property
    def variance(self) -> Fraction:
        """In units^2."""
        return Fraction(sum(weight**2 * number for weight, number in self.levels), 4)

    @property
    def _worth(self) -> int:
        return sum(weight * number for weight, number in self.levels)

    def probabilities(self) -> FloatArray:
        """P(X = x) for x from -reach to reach.

        Every binomial weight is a quotient of integers, rounded once, and a level adds n + 1
        products of positive numbers: above 2^-900, where what underflows is nothing, the relative
        error is below sum of (n + 3) 2^-53, and so below `RELATIVE_ERROR`.
        """
        return _probabilities(self)


@lru_cache(maxsize=8)
def _probabilities(law: CoinLaw) -> FloatArray:
    masses = np.ones(1)
    for weight, number in law.levels:
        added = np.zeros(len(masses) + weight * number)
        for heads in range(number + 1):
            share = math.comb(number, heads) / (1 << number)
            added[weight * heads :][: len(masses)] += share * masses
        masses = added
    masses.flags.writeable = False
    return masses


def fraction_bits_for(sigma: float) -> int:
    """The least f for which noise of sigma * 2^f units is made of coins enough: 0 from a sigma of 4
    on. A vote is 2^f units."""
    _check(sigma)
    bits = 0
    while _quarters(sigma, bits) < max(_MIN_COINS, _least_top(sigma)):
        bits += 1
    return bits


@lru_cache(_LAWS_KEPT)
def law_for(sigma: float) -> CoinLaw:
    """The noise of a round, in units of a vote over 2^`fraction_bits_for(sigma)`.

    The heaviest coins have a weight of 2^m or 3 * 2^m, the others are halves of it down to 1 (and
    2). A lattice of the weight w shows as a ripple of the period w unless lighter coins smooth it:
    those of half the weight have a zero of the order of their number there, and of the weights 1
    and 2 below 3 each coin halves it. So each level has a few, the heaviest takes what is left of
    the variance, and what it leaves over is paid in lighter ones. Of all weights that leave enough
    heavy coins the one with the least coins is taken.
    """
    wanted = _quarters(sigma, fraction_bits_for(sigma))
    top = _least_top(sigma)
    laws = (_law(wanted, weight, top) for m in range(24) for weight in (1 << m, 3 << m))
    return min((law for law in laws if law is not None), key=lambda law: law.coins)


def _law(wanted: int, heaviest: int, least: int) -> CoinLaw | None:
    """With coins whose squares of weights add up to `wanted`; None if they are too few."""
    lighter = _lighter(heaviest)
    thirds = 7 + heaviest.bit_length() // 3
    numbers = {
        weight: thirds if heaviest % 3 == 0 and weight < 3 else _SMOOTH for weight in lighter
    }
    left = wanted - sum(weight**2 * number for weight, number in numbers.items())
    if left < least * heaviest**2:
        return None
    for weight in (heaviest, *reversed(lighter)):
        more, left = divmod(left, weight**2)
        numbers[weight] = numbers.get(weight, 0) + more
    law = CoinLaw(tuple(sorted(numbers.items()))) if sum(numbers.values()) <= MAX_COINS else None
    return law if law is not None and law.coins >= _MIN_COINS else None


def _lighter(heaviest: int) -> list[int]:
    """All weights below the heaviest."""
    if heaviest % 3:
        return [1 << m for m in range(heaviest.bit_length() - 1)]
    return [1, 2, *(3 << m for m in range((heaviest // 3).bit_length() - 1))]


def _quarters(sigma: float, fraction_bits: int) -> int:
    """The least even number of quarters of units^2 that is not below sigma^2: with an even number
    the noise is of whole units."""
    return 2 * math.ceil(2 * (Fraction(sigma) * (1 << fraction_bits)) ** 2)


def _least_top(sigma: float) -> int:
    """The least number of heaviest coins: their reach is its root, in standard deviations. Below a
    sigma of 1 it is wide enough for a vote and `_DEVIATIONS` of noise."""
    if sigma >= 1:
        return _MIN_TOP
    return max(_MIN_TOP, math.ceil((_DEVIATIONS + 1 / Fraction(sigma)) ** 2))


def _check(sigma: float) -> None:
    if not MIN_SIGMA <= sigma <= MAX_SIGMA:
        raise ValueError(
            f"in verified rounds sigma is {MIN_SIGMA:g} to {MAX_SIGMA:g} votes, not {sigma:g}: "
            "choose another, or verified=False"
        )
