"""Epsilons in print: rounded up, so that no line says less than what is lost."""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, Context, Decimal


def round_up(epsilon: float, digits: int = 4) -> str:
    """At least `epsilon`, with so many digits that count."""
    if not 0 < epsilon < math.inf:
        return f"{epsilon:g}"
    rounded = Context(prec=digits, rounding=ROUND_CEILING).create_decimal(Decimal(epsilon))
    return f"{float(rounded):.{digits}g}"


def round_up_places(epsilon: float, places: int) -> str:
    """The same with so many decimal places."""
    if not math.isfinite(epsilon):
        return f"{epsilon:g}"
    return str(Decimal(epsilon).quantize(Decimal(1).scaleb(-places), rounding=ROUND_CEILING))
