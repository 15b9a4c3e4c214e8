"""No printed epsilon is below the number it stands for."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpc_vote.privacy.rounding import round_up, round_up_places


@pytest.mark.parametrize(
    ("epsilon", "digits", "text"),
    [
        (2.66394, 3, "2.67"),
        (2.66, 3, "2.67"),  # the double is a little above
        (0.25, 4, "0.25"),
        (0.00083161, 4, "0.0008317"),
        (3e-9, 4, "3e-09"),
        (786.71, 4, "786.8"),
        (12345.6, 3, "1.24e+04"),
        (9.9999, 3, "10"),
        (0.0, 4, "0"),
        (math.inf, 4, "inf"),
    ],
)
def test_it_rounds_up_to_the_digits(epsilon: float, digits: int, text: str) -> None:
    assert round_up(epsilon, digits) == text


@given(st.floats(1e-12, 1e12), st.integers(2, 8))
def test_what_is_printed_is_never_less(epsilon: float, digits: int) -> None:
    assert epsilon <= float(round_up(epsilon, digits)) <= epsilon * (1 + 2 * 10 ** (1 - digits))
    assert epsilon <= float(round_up_places(epsilon, digits)) <= epsilon + 1.01 * 10**-digits


def test_places() -> None:
    assert round_up_places(2.8762437, 5) == "2.87625"
    assert round_up_places(math.inf, 5) == "inf"
