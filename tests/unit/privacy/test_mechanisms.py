"""Mechanisms: their bounds hold against exact divergences, and their records round-trip."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
from dp_accounting.rdp import rdp_privacy_accountant
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.special import ive, logsumexp

from mpc_vote.privacy import (
    Clipped,
    GaussianScreen,
    GaussianVote,
    Level,
    Mechanism,
    PoissonGaussian,
    SkellamScreen,
    SkellamVote,
    mechanism_from_json,
)
from mpc_vote.privacy.sensitivity import Sensitivity
from mpc_vote.voting.ballots import (
    KNN_COUNT,
    KNN_FREQUENCY,
    MULTI_LABEL,
    ONE_HOT,
    BallotKind,
)

ONE = Sensitivity.of_cells(1, 1)

sensitivities = st.one_of(
    st.builds(Sensitivity, st.integers(1, 10**6), st.integers(1, 10**12)),
    st.builds(Sensitivity.of_cells, st.integers(1, 20), st.integers(1, 10**6)),
)
scalars = st.builds(Sensitivity.of_cells, st.just(1), st.integers(1, 10**6))
counts = st.integers(1, 10**6)
variances = st.floats(1e-6, 1e12)
contributions = st.none() | st.builds(Clipped, st.floats(0.1, 4.0), st.booleans())
mechanisms: st.SearchStrategy[Mechanism] = st.one_of(
    st.builds(SkellamVote, counts, variances, sensitivities, sensitivities),
    st.builds(GaussianVote, counts, variances, sensitivities, sensitivities),
    st.builds(SkellamScreen, counts, variances, scalars, scalars),
    st.builds(GaussianScreen, counts, variances, scalars, scalars),
    st.builds(
        PoissonGaussian,
        counts,
        st.floats(1e-6, 1.0),
        st.floats(0.05, 100.0),
        contributions,
        contributions,
    ),
)


def skellam_log_pmf(variance: float, reach: int) -> np.ndarray:
    """log P(X = k) for k = -reach..reach, by the ratios of consecutive terms."""
    ratio, logs = 0.0, [0.0] * (reach + 1)
    for k in range(reach + 300, 0, -1):
        ratio = 1 / (2 * k / variance + ratio)
        if k <= reach:
            logs[k] = math.log(ratio)
    positive = math.log(ive(0, variance)) + np.cumsum(logs)
    return np.concatenate([positive[:0:-1], positive])


@pytest.mark.parametrize("variance", [0.3, 2.0, 40.0, 625.0])
@pytest.mark.parametrize("shift", [1, 3, 16])
@pytest.mark.parametrize("order", [1.1, 1.9, 2, 2.5, 5, 7.7, 32])
def test_skellam_bound_covers_the_exact_divergence(
    variance: float, shift: int, order: float
) -> None:
    reach = int(20 * math.sqrt(variance) + 3 * order * shift + 200)
    law = skellam_log_pmf(variance, reach)
    exact = logsumexp(order * law[:-shift] + (1 - order) * law[shift:]) / (order - 1)
    moved = Sensitivity.of_cells(1, shift)
    for vote in (SkellamVote(1, variance, moved, moved), SkellamScreen(1, variance, moved, moved)):
        assert exact <= vote.rdp(order, Level.AGENT)


def test_skellam_uses_the_smaller_excess_term() -> None:
    assert SkellamVote(1, 0.01, ONE, ONE).rdp(3, Level.AGENT) == pytest.approx(150 + 150)


def test_between_integer_orders_skellam_follows_the_chord() -> None:
    vote = SkellamVote(7, 30.0, ONE, ONE)
    low, high = (vote.rdp(order, Level.AGENT) for order in (4, 5))
    assert vote.rdp(4.25, Level.AGENT) * 3.25 == pytest.approx(0.75 * 3 * low + 0.25 * 4 * high)
    assert vote.rdp(1.5, Level.AGENT) == pytest.approx(vote.rdp(2, Level.AGENT))


def test_levels_use_their_own_sensitivity() -> None:
    vote = GaussianVote(3, 2.0, Sensitivity(1, 1), Sensitivity(2, 2))
    assert vote.rdp(2, Level.AGENT) == pytest.approx(1.5)
    assert vote.rdp(2, Level.INSTANCE) == pytest.approx(3.0)


@pytest.mark.parametrize(
    ("kind", "agent", "instance"),
    [
        (ONE_HOT, 16, 16),
        (KNN_FREQUENCY, 16, 6),
        (KNN_COUNT, 80, 16),
        (MULTI_LABEL, 16, 16),
    ],
)
def test_a_screen_costs_what_one_cell_may_move(kind: BallotKind, agent: int, instance: int) -> None:
    given: dict[str, Any] = {"fraction_bits": 4, "ks": [5, 3, 4], "tau": 2}
    screen = SkellamScreen(
        10,
        1e4,
        kind.agent_sensitivity(**given).of_maximum(),
        kind.instance_sensitivity(**given).of_maximum(),
    )
    assert screen.agent == Sensitivity.of_cells(1, agent)
    assert screen.instance == Sensitivity.of_cells(1, instance)


@given(st.lists(st.integers(-50, 50), min_size=2, max_size=5), st.data())
def test_the_largest_total_moves_no_further_than_of_maximum_says(
    totals: list[int], data: st.DataObject
) -> None:
    moves = data.draw(st.lists(st.integers(-9, 9), min_size=len(totals), max_size=len(totals)))
    moved = [total + move for total, move in zip(totals, moves, strict=True)]
    l1, l2_squared = sum(map(abs, moves)), sum(move**2 for move in moves)
    if l1 == 0:
        return
    cells, step = sum(map(bool, moves)), max(map(abs, moves))
    for bound in (Sensitivity(l1, l2_squared), Sensitivity(l1, l2_squared, cells, step)):
        assert abs(max(moved) - max(totals)) <= bound.of_maximum().l1


def test_the_ballots_say_how_many_cells_move() -> None:
    def shapes(kind: BallotKind) -> list[tuple[int | None, int | None]]:
        given: dict[str, Any] = {"fraction_bits": 4, "ks": [5, 3, 4], "tau": 2}
        agent = kind.agent_sensitivity(**given)
        instance = kind.instance_sensitivity(**given)
        return [(found.cells, found.step) for found in (agent, instance)]

    assert shapes(ONE_HOT) == [(1, 16), (2, 16)]
    assert shapes(KNN_FREQUENCY) == [(None, None), (2, 6)]
    assert shapes(KNN_COUNT) == [(None, None), (2, 16)]
    assert shapes(MULTI_LABEL) == [(2, 16), (4, 16)]


def sampled_divergence(order: float, q: float, z: float, replaced: bool) -> tuple[float, float]:
    """Both directions for contributions 1 and 0, or 1 and -1, integrated numerically."""

    def log_density(x: float, mean: float) -> float:
        without = math.log1p(-q) - (x / z) ** 2 / 2
        sampled = math.log(q) - ((x - mean) / z) ** 2 / 2
        return float(np.logaddexp(without, sampled)) if mean else -((x / z) ** 2) / 2

    def one_way(first: float, second: float) -> float:
        def integrand(x: float) -> float:
            first_log, second_log = log_density(x, first), log_density(x, second)
            return math.exp(order * first_log + (1 - order) * second_log)

        ends = (-2 * order - 15 * z, 2 * order + 15 * z)
        total, _ = quad(integrand, *ends, limit=2000, epsrel=1e-11, points=[-1.0, 0.0, 1.0])
        return math.log(total / z / math.sqrt(2 * math.pi)) / (order - 1)

    other = -1.0 if replaced else 0.0
    return one_way(1.0, other), one_way(other, 1.0)


@pytest.mark.parametrize("replaced", [False, True])
@pytest.mark.parametrize(("q", "z"), [(0.05, 1.0), (0.3, 0.7), (0.9, 2.0), (0.001, 1.0)])
@pytest.mark.parametrize("order", [1.2, 2, 3.7, 8])
def test_sampled_gaussian_bound_is_the_exact_divergence(
    order: float, q: float, z: float, replaced: bool
) -> None:
    there, back = sampled_divergence(order, q, z, replaced)
    steps = PoissonGaussian(1, q, 2 * z, Clipped(2.0, replaced), None)
    bound = steps.rdp(order, Level.AGENT)
    assert max(there, back) * (1 - 1e-7) <= bound <= there * (1 + 1e-6)
    if replaced:
        assert back == pytest.approx(there, rel=1e-6)


@given(
    st.floats(-1.0, 1.0),
    st.floats(-1.0, 1.0),
    st.floats(-1.0, 1.0),
    st.floats(0.01, 0.99),
    st.floats(0.4, 3.0),
    st.floats(1.05, 6.0),
)
def test_no_replaced_contribution_in_the_plane_loses_more(
    along: float, other: float, across: float, q: float, z: float, order: float
) -> None:
    other, across = (part / max(1.0, math.hypot(other, across)) for part in (other, across))
    axis = np.linspace(-9 * z - 1, 9 * z + 1, 161)
    x, y = np.meshgrid(axis, axis)

    def density(mean_x: float, mean_y: float) -> np.ndarray:
        near = np.exp(-((x - mean_x) ** 2 + (y - mean_y) ** 2) / (2 * z * z))
        law = q * near + (1 - q) * np.exp(-(x**2 + y**2) / (2 * z * z))
        return np.asarray(law / law.sum())

    first, second = density(along, 0.0), density(other, across)
    lost = math.log((first**order * second ** (1 - order)).sum()) / (order - 1)
    bound = PoissonGaussian(1, q, z, Clipped(1.0, True), None).rdp(order, Level.AGENT)
    assert lost <= bound * (1 + 1e-6) + 1e-9


@pytest.mark.parametrize(("q", "z"), [(1e-4, 0.5), (0.01, 1.0), (0.2, 4.0)])
def test_sampled_gaussian_agrees_with_dp_accounting_at_integer_orders(q: float, z: float) -> None:
    orders = [2, 3, 8, 31]
    theirs = rdp_privacy_accountant._compute_rdp_poisson_subsampled_gaussian(q, z, orders)
    ours = PoissonGaussian(1, q, z, Clipped(1.0), None).curve(np.array(orders, float), Level.AGENT)
    assert ours == pytest.approx(theirs, rel=1e-7)


def test_without_sampling_it_is_the_gaussian() -> None:
    steps = PoissonGaussian(4, 1.0, 3.0, Clipped(1.0), Clipped(1.0, True))
    assert steps.rdp(2.5, Level.AGENT) == pytest.approx(4 * 2.5 / 18)
    assert steps.rdp(2.5, Level.INSTANCE) == pytest.approx(4 * 2.5 * 4 / 18)


def test_a_level_without_a_bound_costs_infinitely_much() -> None:
    steps = PoissonGaussian(1, 0.1, 1.0, None, Clipped(1.0))
    assert steps.rdp(2, Level.AGENT) == math.inf
    assert steps.rdp(2, Level.INSTANCE) < 1


@pytest.mark.parametrize("order", [1.0, 0.0, -3.0, math.nan])
@pytest.mark.parametrize(
    "mechanism",
    [
        SkellamVote(1, 1.0, ONE, ONE),
        GaussianScreen(1, 1.0, ONE, ONE),
        PoissonGaussian(1, 0.5, 1.0, Clipped(1.0), None),
    ],
)
def test_orders_up_to_one_are_refused(mechanism: Mechanism, order: float) -> None:
    with pytest.raises(ValueError):
        mechanism.rdp(order, Level.AGENT)


@given(mechanisms, st.floats(1.02, 1000), st.sampled_from(Level))
def test_loss_grows_with_queries_and_order(
    mechanism: Mechanism, order: float, level: Level
) -> None:
    loss = mechanism.rdp(order, level)
    assert 0 < loss <= mechanism.rdp(order + 1, level) * (1 + 1e-8)
    more: Mechanism
    if isinstance(mechanism, PoissonGaussian):
        more = replace(mechanism, steps=mechanism.steps + 1)
    else:
        more = replace(mechanism, queries=mechanism.queries + 1)
    assert loss < more.rdp(order, level) or loss == math.inf


@given(mechanisms)
def test_json_round_trip_is_exact(mechanism: Mechanism) -> None:
    assert mechanism_from_json(mechanism.to_json()) == mechanism


def test_records_of_the_first_version_stay_readable() -> None:
    text = (
        '{"agent": {"l1": 16, "l2_squared": 256}, "instance": {"l1": 32, "l2_squared": 512}, '
        '"queries": 10, "type": "%s", "variance": 160000.0}'
    )
    agent, instance = Sensitivity(16, 256), Sensitivity(32, 512)
    assert mechanism_from_json(text % "skellam_vote") == SkellamVote(10, 160000.0, agent, instance)
    assert mechanism_from_json(text % "gaussian_vote") == GaussianVote(
        10, 160000.0, agent, instance
    )


@pytest.mark.parametrize(
    "change",
    [
        {"type": "laplace_vote"},
        {"type": None},
        {"type": ["skellam_vote"]},
        {"surprise": 1},
        {"queries": 0},
        {"queries": True},
        {"queries": 1.5},
        {"variance": 0.0},
        {"variance": math.inf},
        {"variance": "1"},
        {"agent": None},
        {"agent": {"l1": 1}},
        {"agent": {"l1": 0, "l2_squared": 1}},
        {"agent": {"l1": 1, "l2_squared": 1, "cells": 1}},
        {"agent": {"l1": 1, "l2_squared": 1, "cells": 0, "step": 1}},
        {"agent": {"l1": 3, "l2_squared": 1, "cells": 2, "step": 1}},
        {"agent": {"l1": 2, "l2_squared": 4, "cells": 2, "step": 1}},
        {"agent": {"l1": 1, "l2_squared": 1, "linf": 1}},
    ],
)
def test_records_that_are_not_understood_are_refused(change: dict[str, object]) -> None:
    record = json.loads(SkellamVote(1, 1.0, ONE, ONE).to_json()) | change
    with pytest.raises(ValueError):
        mechanism_from_json(json.dumps(record))


@pytest.mark.parametrize(
    "change",
    [
        {"steps": 0},
        {"sampling": 0.0},
        {"sampling": 1.5},
        {"noise_multiplier": -1.0},
        {"agent": 1.0},
        {"agent": {"clips": 0}},
        {"agent": {"clips": 1.0, "replaced": 1}},
        {"agent": {"replaced": True}},
        {"queries": 1},
    ],
)
def test_baselines_that_are_not_understood_are_refused(change: dict[str, object]) -> None:
    record = json.loads(PoissonGaussian(1, 0.1, 1.0, Clipped(1.0), None).to_json()) | change
    with pytest.raises(ValueError):
        mechanism_from_json(json.dumps(record))


@pytest.mark.parametrize("text", ["[]", "{}", "not json", "null"])
def test_text_that_is_no_record_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        mechanism_from_json(text)


def test_a_mechanism_needs_to_know_what_it_protects() -> None:
    with pytest.raises(ValueError):
        SkellamVote(1, 1.0, cast(Any, (1, 1)), ONE)
    with pytest.raises(ValueError):
        PoissonGaussian(1, 0.1, 1.0, cast(Any, 1.0), None)
    with pytest.raises(ValueError, match="one number"):
        SkellamScreen(1, 1.0, ONE, Sensitivity.of_cells(2, 1))
    with pytest.raises(ValueError, match="one number"):
        GaussianScreen(1, 1.0, Sensitivity(1, 1), ONE)


@pytest.mark.parametrize("variance", [5e-324, 1e-310, 1e-200])
@pytest.mark.parametrize("level", list(Level))
def test_noise_that_hides_nothing_has_no_finite_bound(variance: float, level: Level) -> None:
    """Not a number would be no answer to whether it is within a budget."""
    moved = Sensitivity(l1=16, l2_squared=256)
    vote = SkellamVote(queries=1, variance=variance, agent=moved, instance=moved)
    bounds = vote.curve(np.array([1.5, 2.0, 32.0]), level)
    assert not np.isnan(bounds).any()
    assert (bounds > 1e100).all()
