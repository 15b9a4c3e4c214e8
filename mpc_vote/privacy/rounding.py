"""Epsilons in print, the same wherever one is shown: rounded up, so that no line says less than
what is lost, and what is left of a budget rounded down."""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal

_DIGITS = 4


def round_up(epsilon: float) -> str:
    """At least `epsilon`, with four significant digits."""
    return _rounded(epsilon, ROUND_CEILING)


def round_down(epsilon: float) -> str:
    """At most `epsilon`, with four significant digits: for limits and what is left of them."""
    return _rounded(epsilon, ROUND_FLOOR)


def round_up_places(epsilon: float, places: int) -> str:
    """At least `epsilon`, with so many decimal places: for columns of a table."""
    if not math.isfinite(epsilon):
        return f"{epsilon:g}"
    return str(Decimal(epsilon).quantize(Decimal(1).scaleb(-places), rounding=ROUND_CEILING))


def _rounded(epsilon: float, rounding: str) -> str:
    if not 0 < epsilon < math.inf:
        return f"{epsilon:g}"
    # As it is written, not as it is stored: 8.1 stays 8.1.
    exact = Decimal(repr(float(epsilon)))
    rounded = Context(prec=_DIGITS, rounding=rounding).create_decimal(exact)
    return f"{float(rounded):.{_DIGITS}g}"
