"""Mechanisms: their bounds hold against exact divergences, and their records round-trip."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import ive, logsumexp

from mpc_vote.ballots import Sensitivity
from mpc_vote.privacy import GaussianVote, Level, Mechanism, SkellamVote, mechanism_from_json

sensitivities = st.builds(Sensitivity, st.integers(1, 10**6), st.integers(1, 10**12))
mechanisms = st.builds(
    lambda kind, *fields: kind(*fields),
    st.sampled_from([SkellamVote, GaussianVote]),
    st.integers(1, 10**6),
    st.floats(1e-6, 1e12),
    sensitivities,
    sensitivities,
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
@pytest.mark.parametrize("order", [2, 5, 32])
def test_skellam_bound_covers_the_exact_divergence(variance: float, shift: int, order: int) -> None:
    reach = int(20 * math.sqrt(variance) + 3 * order * shift + 200)
    law = skellam_log_pmf(variance, reach)
    exact = logsumexp(order * law[:-shift] + (1 - order) * law[shift:]) / (order - 1)
    moved = Sensitivity(shift, shift**2)
    bound = SkellamVote(1, variance, moved, moved).rdp(order, Level.AGENT)
    assert exact <= bound


def test_skellam_bound_on_file() -> None:
    one = Sensitivity(1, 1)
    assert SkellamVote(1, 625.0, one, one).rdp(5, Level.AGENT) == pytest.approx(
        0.0040096, rel=1e-12
    )


def test_skellam_uses_the_smaller_excess_term() -> None:
    one = Sensitivity(1, 1)
    assert SkellamVote(1, 0.01, one, one).rdp(3, Level.AGENT) == pytest.approx(150 + 150)


def test_levels_use_their_own_sensitivity() -> None:
    vote = GaussianVote(3, 2.0, Sensitivity(1, 1), Sensitivity(2, 2))
    assert vote.rdp(2, Level.AGENT) == pytest.approx(1.5)
    assert vote.rdp(2, Level.INSTANCE) == pytest.approx(3.0)


@pytest.mark.parametrize("order", [1, 2.5, 0, -3])
def test_skellam_refuses_orders_its_theorem_does_not_cover(order: float) -> None:
    one = Sensitivity(1, 1)
    with pytest.raises(ValueError):
        SkellamVote(1, 1.0, one, one).rdp(order, Level.AGENT)


def test_gaussian_refuses_order_one() -> None:
    one = Sensitivity(1, 1)
    with pytest.raises(ValueError):
        GaussianVote(1, 1.0, one, one).rdp(1.0, Level.AGENT)


@given(mechanisms, st.integers(2, 1000), st.sampled_from(Level))
def test_loss_grows_with_queries_and_order(vote: Mechanism, order: int, level: Level) -> None:
    loss = vote.rdp(order, level)
    assert 0 < loss <= vote.rdp(order + 1, level)
    more = type(vote)(vote.queries + 1, vote.variance, vote.agent, vote.instance)
    assert loss < more.rdp(order, level)


@given(mechanisms)
def test_json_round_trip_is_exact(vote: Mechanism) -> None:
    assert mechanism_from_json(vote.to_json()) == vote


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
    ],
)
def test_records_that_are_not_understood_are_refused(change: dict[str, object]) -> None:
    one = Sensitivity(1, 1)
    record = json.loads(SkellamVote(1, 1.0, one, one).to_json()) | change
    with pytest.raises(ValueError):
        mechanism_from_json(json.dumps(record))


@pytest.mark.parametrize("text", ["[]", "{}", "not json", "null"])
def test_text_that_is_no_record_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        mechanism_from_json(text)


def test_a_vote_needs_real_sensitivities() -> None:
    with pytest.raises(ValueError):
        SkellamVote(1, 1.0, (1, 1), Sensitivity(1, 1))  # type: ignore[arg-type]
