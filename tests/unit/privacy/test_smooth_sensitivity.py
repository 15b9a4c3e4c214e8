"""Smooth sensitivity by brute force, the charge of a release, and what a release says."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import FrozenInstanceError, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpc_vote.privacy import (
    Budget,
    BudgetExhausted,
    GaussianVote,
    Ledger,
    Level,
    SkellamVote,
    SmoothRelease,
    epsilon,
    smooth_sensitivity,
)
from mpc_vote.privacy.data_dependent import _log_misses, curve
from mpc_vote.privacy.mechanisms import FloatArray
from mpc_vote.privacy.mechanisms.smooth_release import quantile, release_cost
from mpc_vote.privacy.sensitivity import Sensitivity
from mpc_vote.privacy.smooth_sensitivity import Release, _Staircase, release

PLAN = {"beta": 0.02, "noise": 12.0, "failure": 0.01}
ROWS = np.random.default_rng(3).multinomial(300, [0.9, 0.06, 0.04], size=400)


def one_hot(queries: int, sigma: float) -> GaussianVote:
    return GaussianVote(queries, sigma**2, Sensitivity(1, 1), Sensitivity(2, 2))


def votes(agents: int, classes: int) -> FloatArray:
    """All histograms of at most so many one-hot ballots."""
    rows = itertools.product(range(agents + 1), repeat=classes)
    return np.array([row for row in rows if sum(row) <= agents], dtype=np.float64)


def measured(
    rounds: list[FloatArray], sigma: float, level: Level, order: float, beta: float
) -> tuple[FloatArray, FloatArray]:
    """The value and the smooth sensitivity for each round of histograms."""
    queries, classes = rounds[0].shape
    vote = one_hot(queries, sigma)
    stairs = _Staircase.build(vote, level, order, classes)
    at = [stairs.locate(_log_misses(rows, vote, level)) for rows in rounds]
    smoothed = [stairs.smooth_sensitivity(a, beta) for a in at]
    return np.array([stairs.value(a) for a in at]), np.array(smoothed)


def rounds_of(agents: int, classes: int, queries: int) -> list[FloatArray]:
    return [np.array(rows) for rows in itertools.product(votes(agents, classes), repeat=queries)]


@pytest.mark.parametrize(
    ("built", "level"),
    [
        (Level.AGENT, Level.AGENT),
        (Level.INSTANCE, Level.INSTANCE),
        (Level.INSTANCE, Level.AGENT),
    ],
)
@pytest.mark.parametrize(
    ("agents", "classes", "queries", "sigma"), [(25, 2, 1, 1.5), (8, 3, 1, 0.4), (5, 2, 2, 0.5)]
)
@pytest.mark.parametrize(("order", "beta"), [(1.3, 0.3), (2.0, 0.1)])
def test_the_sensitivity_is_smooth_and_covers_every_neighbour(
    built: Level,
    level: Level,
    agents: int,
    classes: int,
    queries: int,
    sigma: float,
    order: float,
    beta: float,
) -> None:
    """All data there can be, all neighbours: and their releases diverge by no more than charged."""
    rounds = rounds_of(agents, classes, queries)
    value, smoothed = measured(rounds, sigma, built, order, beta)
    noise, failure = 5.0, 0.05
    cost = release_cost(order, beta=beta, noise=noise, failure=failure)
    means, deviations = value + noise * quantile(failure) * smoothed, noise * smoothed
    stacked = np.array(rounds)
    largest = 0.0
    for i, rows in enumerate(stacked):
        moved = np.abs(stacked - rows).sum(axis=2)
        near = moved.max(axis=1) == (1 if level is Level.AGENT else 2)
        if level is Level.INSTANCE:  # votes change their class, none comes or goes
            near &= (stacked.sum(axis=2) == rows.sum(axis=1)).all(axis=1)
        assert (np.abs(value[near] - value[i]) <= smoothed[i]).all()
        assert (smoothed[i] <= math.exp(beta) * smoothed[near] * (1 + 1e-12)).all()
        for j in np.flatnonzero(near).tolist():
            assert gaussian_divergence(means[[i, j]], deviations[[i, j]], order) <= cost
            largest = max(largest, abs(float(value[i] - value[j])) / smoothed[i])
    assert largest > 0.1


def gaussian_divergence(means: FloatArray, deviations: FloatArray, order: float) -> float:
    """Renyi's of two Gaussians, by the closed form."""
    (m, n), (s, t) = means, deviations
    mixed = order * t**2 + (1 - order) * s**2
    shift = order * (m - n) ** 2 / (2 * mixed)
    return float(shift + math.log(t / s) + math.log(t**2 / mixed) / (2 * (order - 1)))


@settings(max_examples=100)
@given(
    st.lists(st.integers(0, 60), min_size=2, max_size=6),
    st.data(),
    st.floats(0.5, 30.0),
    st.sampled_from(Level),
)
def test_a_neighbour_moves_a_query_by_the_promised_steps(
    row: list[int], data: st.DataObject, sigma: float, level: Level
) -> None:
    vote = one_hot(1, sigma)
    other = list(row)
    other[data.draw(st.integers(0, len(row) - 1))] += 1
    if level is Level.INSTANCE:
        other[data.draw(st.integers(0, len(row) - 1))] -= 1
    stairs = _Staircase.build(vote, level, 4.0, len(row))
    one, two = (
        stairs.locate(_log_misses(np.array([r], dtype=np.float64), vote, level))[0]
        for r in (row, other)
    )
    assert abs(int(one) - int(two)) <= smooth_sensitivity._REACH


@pytest.mark.parametrize("order", [1.5, 4.0, 16.0])
def test_the_staircase_is_above_the_bound_and_close(order: float) -> None:
    vote = one_hot(1, 25.0)
    stairs = _Staircase.build(vote, Level.AGENT, order, 3)
    assert (np.diff(stairs.heights) <= 0).all()
    for row in ([100, 0, 0], [150, 20, 20], [260, 20, 20], [90, 90, 0], [0, 0, 0]):
        bound = curve([row], vote, Level.AGENT, order).for_the_data_owner_only()[0]
        totals = np.array([row], dtype=np.float64)
        found = stairs.value(stairs.locate(_log_misses(totals, vote, Level.AGENT)))
        assert bound <= found <= bound * 1.05 + stairs.heights[-1]


@pytest.mark.parametrize("order", [1.2, 2.0, 8.0, 24.0])
@pytest.mark.parametrize("beta", [1e-4, 0.005, 0.02])
@pytest.mark.parametrize("noise", [0.5, 4.0, 40.0])
@pytest.mark.parametrize("failure", [0.5, 0.01])
def test_the_cost_covers_all_scales_and_is_nearly_reached(
    order: float, beta: float, noise: float, failure: float
) -> None:
    cost = release_cost(order, beta=beta, noise=noise, failure=failure)
    z = quantile(failure)
    worst = 0.0
    for log_ratio in np.linspace(-beta, beta, 21):
        scales = np.array([math.exp(log_ratio), 1.0])  # S and S'
        for sign in (-1, 1):
            values = np.array([sign * scales.min(), 0.0])
            means = values + noise * z * scales
            worst = max(worst, gaussian_divergence(means, noise * scales, order))
    assert cost / 1.5 < worst <= cost
    if failure == 0.5 and 4 * order * beta < 1:
        assert cost < gnss(order, beta, noise)


def gnss(order: float, beta: float, noise: float) -> float:
    """The formula that the code of Papernot et al. gives for 1 < order < 1 / (2 beta)."""
    variances = (order * beta - math.log(1 - 2 * order * beta) / 2) / (order - 1)
    return order * math.exp(2 * beta) / noise**2 + variances


def test_the_usual_formula_is_too_low_near_the_end_of_its_range() -> None:
    """f = 1 at scale e^beta against f = 0 at scale 1: allowed, and beyond what it says."""
    order, beta, noise = 8.0, 0.05, 4.0
    scales = noise * np.array([math.exp(beta), 1.0])
    exact = gaussian_divergence(np.array([1.0, 0.0]), scales, order)
    assert exact == pytest.approx(0.992857, abs=1e-6)
    assert gnss(order, beta, noise) < 0.73
    assert release_cost(order, beta=beta, noise=noise, failure=0.5) >= exact


@pytest.mark.parametrize("order", [1.5, 3.0, 7.0])
def test_the_closed_form_is_the_integral(order: float) -> None:
    means, deviations = np.array([0.4, -0.2]), np.array([1.05, 1.0])
    x = np.linspace(-60.0, 60.0, 200_001)
    logs = -(((x[:, None] - means) / deviations) ** 2) / 2 - np.log(deviations * np.sqrt(2 * np.pi))
    total = np.exp(order * logs[:, 0] + (1 - order) * logs[:, 1]).sum() * (x[1] - x[0])
    want = math.log(total) / (order - 1)
    assert gaussian_divergence(means, deviations, order) == pytest.approx(want, rel=1e-9)


def test_the_cost_is_infinite_where_the_scales_differ_too_much() -> None:
    assert release_cost(11.0, beta=0.05, noise=1e6, failure=0.1) == math.inf
    assert release_cost(2.0, beta=500.0, noise=1.0, failure=0.1) == math.inf
    assert release_cost(9.0, beta=0.05, noise=10.0, failure=0.1) < math.inf


def free(cost: SmoothRelease) -> None:
    """For tests of the number itself."""


def draw(monkeypatch: pytest.MonkeyPatch, normal: float) -> Release:
    monkeypatch.setattr(smooth_sensitivity, "_standard_normal", lambda: normal)
    return release(ROWS, one_hot(400, 25.0), Level.AGENT, 8.0, **PLAN, charge=free)


def test_a_release_is_above_the_bound_unless_the_noise_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    vote = one_hot(400, 25.0)
    bound = curve(ROWS, vote, Level.AGENT, 8.0).for_the_data_owner_only()[0]
    worst = vote.rdp(8.0, Level.AGENT)
    z = quantile(PLAN["failure"])
    at_the_edge = draw(monkeypatch, -z * (1 - 1e-9)).upper
    assert bound <= at_the_edge <= bound * 1.05 + 2e-6 * worst
    assert at_the_edge < draw(monkeypatch, 0.0).upper < draw(monkeypatch, 1.0).upper
    assert draw(monkeypatch, 1e9).upper == worst
    assert draw(monkeypatch, -1e9).upper == 0.0


def test_a_release_fails_about_as_often_as_it_says() -> None:
    vote, plan = one_hot(400, 25.0), {**PLAN, "failure": 0.5}
    stairs = _Staircase.build(vote, Level.AGENT, 8.0, 3)
    value = stairs.value(stairs.locate(_log_misses(ROWS.astype(np.float64), vote, Level.AGENT)))
    found = [release(ROWS, vote, Level.AGENT, 8.0, **plan, charge=free).upper for _ in range(64)]
    assert 4 < sum(upper < value for upper in found) < 60  # seven standard deviations


def test_the_noise_does_not_come_from_a_seeded_generator() -> None:
    def seeded() -> float:
        random.seed(1)
        np.random.seed(1)
        return smooth_sensitivity._standard_normal()

    assert seeded() != seeded()


def test_a_release_says_what_it_is_and_what_it_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    found = draw(monkeypatch, 0.0)
    assert found.cost(8.0) == release_cost(8.0, **PLAN)
    assert found.total == found.upper + found.cost(8.0)
    simple = found.total + math.log(1e5) / 7
    assert 0 < found.epsilon(1e-5) < simple
    assert found.epsilon(1e-5) > replace(found, upper=0.0).epsilon(1e-5)
    text = str(found)
    for part in ("agent level", "400 queries", "order 8", "probability 0.99", "publishing"):
        assert part in text
    with pytest.raises(FrozenInstanceError):
        cast(Any, found).upper = 0.0


def test_a_release_is_charged_before_anything_is_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vote, delta = one_hot(400, 25.0), 1e-5
    cost = SmoothRelease(**PLAN, agent=True, instance=False)
    limit = epsilon([vote, cost], Level.AGENT, delta)
    with Ledger(tmp_path / "ledger.db", Budget(limit, None, delta)) as ledger:
        ledger.charge("labels", vote)

        def publish(name: str) -> Release:
            def charge(cost: SmoothRelease) -> None:
                ledger.charge(name, cost)

            return release(ROWS, vote, Level.AGENT, 8.0, **PLAN, charge=charge)

        publish("bound")
        assert [spend.mechanism for spend in ledger.spends()] == [vote, cost]
        assert ledger.spent(Level.AGENT, delta) == limit > epsilon([vote], Level.AGENT, delta)
        assert ledger.spent(Level.INSTANCE, delta) == math.inf

        def never() -> float:
            raise AssertionError("noise was drawn for a release that is not charged")

        monkeypatch.setattr(smooth_sensitivity, "_standard_normal", never)
        with pytest.raises(BudgetExhausted):
            publish("another")
        assert len(ledger.spends()) == 2


def test_a_release_at_the_level_whose_neighbours_move_further_covers_the_other() -> None:
    charged: list[SmoothRelease] = []
    for level in Level:
        release(ROWS, one_hot(400, 25.0), level, 4.0, **PLAN, charge=charged.append)
    assert [(cost.agent, cost.instance) for cost in charged] == [(True, False), (True, True)]


def test_a_release_that_costs_more_than_it_can_save_is_refused() -> None:
    with pytest.raises(ValueError, match="data-independent"):
        release([[30, 1]], one_hot(1, 25.0), Level.AGENT, 8.0, **PLAN, charge=free)
    with pytest.raises(ValueError, match="data-independent"):
        release(ROWS, one_hot(400, 25.0), Level.AGENT, 60.0, **PLAN, charge=free)


@pytest.mark.parametrize(
    "wrong",
    [
        {"beta": 0.0},
        {"beta": math.nan},
        {"noise": -1.0},
        {"noise": math.inf},
        {"failure": 0.0},
        {"failure": 0.6},
    ],
)
def test_parameters_must_make_sense(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError):
        release(ROWS, one_hot(400, 25.0), Level.AGENT, 8.0, **{**PLAN, **wrong}, charge=free)


def test_other_noise_is_refused() -> None:
    skellam: Any = SkellamVote(400, 625.0, Sensitivity(1, 1), Sensitivity(2, 2))
    with pytest.raises(TypeError, match="Gaussian noise only"):
        release(ROWS, skellam, Level.AGENT, 8.0, **PLAN, charge=free)
