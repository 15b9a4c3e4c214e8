"""Standardised tables: every column weighs alike, a far value no more than five scales, and a row
has the same features in any company."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpc_vote.learning.features.standard import LIMIT, Standard
from mpc_vote.tasks import CategoryColumn, NumberColumn, TableInput

TABLE = TableInput(
    (
        NumberColumn("age", 60.0, 10.0),
        CategoryColumn("sex", ("f", "m")),
        NumberColumn("bp", 0, 1e-3),
    ),
    "died",
)
rows = st.tuples(
    st.none() | st.floats(-(2.0**39), 2.0**39, width=32),
    st.none() | st.sampled_from(["f", "m", "x"]),
    st.none() | st.floats(-(2.0**39), 2.0**39, width=32),
)


def encoded(*given_rows: tuple[Any, Any, Any]) -> np.ndarray[Any, np.dtype[np.float32]]:
    ages, sexes, pressures = (list(column) for column in zip(*given_rows, strict=True))
    return TABLE.encode({"age": ages, "sex": sexes, "bp": pressures})


def vector(*row: Any) -> list[float]:
    found: list[float] = Standard(TABLE)(encoded((row[0], row[1], row[2])))[0].tolist()
    return found


def test_each_column_has_its_own_places() -> None:
    assert vector(75.0, "m", None) == [1.5, 0, 0, 0, 1, 0, 0, 1]
    assert vector(None, None, 0.002) == [0, 1, 1, 0, 0, 0, 2, 0]
    assert vector(60.0, "x", 0.0) == [0, 0, 0, 0, 0, 1, 0, 0]
    assert Standard(TABLE).width == 8


def test_a_far_value_does_not_drown_the_rest() -> None:
    assert vector(1e12, "m", -1e12)[0] == LIMIT
    assert vector(1e12, "m", -1e12)[6] == -LIMIT


def distance(one: list[float], other: list[float]) -> float:
    return float(((np.array(one) - other) ** 2).sum())


def test_two_categories_are_as_far_apart_as_two_usual_numbers() -> None:
    numbers = np.random.default_rng(0).normal(60, 10, (4000, 2))
    vectors = Standard(TABLE)(encoded(*((float(one), "m", 0.0) for one in numbers.ravel())))
    usual = float(((vectors[::2] - vectors[1::2]) ** 2).sum(axis=1).mean())
    for pair in (("f", "m"), ("f", "x"), ("f", None), ("x", None)):
        one, other = (vector(60.0, sex, 0.0) for sex in pair)
        assert distance(one, other) == 2 == pytest.approx(usual, rel=0.05)
    missing = [distance(vector(None, "m", 0.0), row.tolist()) for row in vectors]
    assert np.mean(missing) == pytest.approx(2, rel=0.05)


@settings(max_examples=50, deadline=None)
@given(st.lists(rows, min_size=1, max_size=40), st.randoms(use_true_random=False))
def test_a_row_has_the_same_bits_in_any_batch(table: list[Any], random: Any) -> None:
    features = Standard(TABLE)
    together = features(encoded(*table))
    assert np.isfinite(together).all() and np.abs(together).max() <= LIMIT
    order = list(range(len(table)))
    random.shuffle(order)
    assert np.array_equal(features(encoded(*(table[place] for place in order))), together[order])
    for place, row in enumerate(table):
        assert np.array_equal(features(encoded(row))[0], together[place])


def test_what_no_row_of_the_task_is_is_refused() -> None:
    good = encoded((60.0, "m", 0.0))
    for cell, value in ((1, 0.5), (2, 4.0), (2, 0.5), (0, np.nan), (0, 2e12)):
        bad = good.copy()
        bad[0, cell] = value
        with pytest.raises(ValueError, match="row 0 is no table of this task"):
            Standard(TABLE)(bad)
