"""No printed epsilon is below the number it stands for."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpc_vote.privacy.rounding import round_down, round_up, round_up_places


@pytest.mark.parametrize(
    ("epsilon", "up", "down"),
    [
        (2.66394, "2.664", "2.663"),
        (2.66, "2.66", "2.66"),  # the double is a little above
        (8.1, "8.1", "8.1"),  # the double is a little below
        (0.25, "0.25", "0.25"),
        (0.00083161, "0.0008317", "0.0008316"),
        (3e-9, "3e-09", "3e-09"),
        (786.71, "786.8", "786.7"),
        (12345.6, "1.235e+04", "1.234e+04"),
        (9.9999, "10", "9.999"),
        (0.0, "0", "0"),
        (math.inf, "inf", "inf"),
    ],
)
def test_it_rounds_to_four_digits(epsilon: float, up: str, down: str) -> None:
    assert (round_up(epsilon), round_down(epsilon)) == (up, down)


@given(st.floats(1e-12, 1e12), st.integers(2, 8))
def test_what_is_printed_is_never_less_and_what_is_left_never_more(
    epsilon: float, digits: int
) -> None:
    assert epsilon <= float(round_up(epsilon)) <= epsilon * 1.002
    assert epsilon >= float(round_down(epsilon)) >= epsilon * 0.998
    assert epsilon <= float(round_up_places(epsilon, digits)) <= epsilon + 1.01 * 10**-digits


def test_places() -> None:
    assert round_up_places(2.8762437, 5) == "2.87625"
    assert round_up_places(math.inf, 5) == "inf"
