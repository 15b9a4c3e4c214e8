"""The filter: whoever chooses queries and noise by what was seen, the limit holds."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpc_vote.privacy.certificates import Certificate, certify
from mpc_vote.privacy.gdp import skellam_law, unit_mu
from mpc_vote.privacy.label_steps import Seen, flips, loss_scale, thresholds
from mpc_vote.privacy.loss_filter import LimitReached, LossFilter, planned_epsilon, steps_epsilon
from mpc_vote.privacy.profiles import gaussian_profile
from tests.unit.privacy.exact import FloatArray, Profile, before, coins, nothing

G = np.exp(np.linspace(-1, 4, 21))
SLACK = 2.0**-12
TABLE = Certificate((0.0, 1.0, 3.0), (1.0, 0.8, 0.65), 1e-9)


def versions(seen: Seen, law: FloatArray) -> tuple[FloatArray, FloatArray]:
    p, q = thresholds(law, 1) if seen is Seen.THRESHOLD else flips(law, 1)
    informative = np.abs(p - q).sum(axis=1) > 0.05
    p, q = p[informative], q[informative]
    thin = slice(None, None, 1 + len(p) // 16)
    return np.concatenate([p[thin], q[thin]]), np.concatenate([q[thin], p[thin]])


MENU = [
    (Seen.THRESHOLD, coins((1, 16))),
    (Seen.THRESHOLD, coins((1, 36))),
    (Seen.FLIP, coins((1, 36))),
]


def test_an_adversary_who_chooses_the_noise_by_the_answers_stays_within_the_limit() -> None:
    """Every step that the filter still allows may follow, of any law and any version: all trees."""
    steps = [(certify(seen, law, 1, SLACK), versions(seen, law)) for seen, law in MENU]

    def worst(filter_: LossFilter) -> Profile:
        rests = [
            before(*shown, worst(filter_.after(certificate, 1)))
            for certificate, shown in steps
            if filter_.allows(certificate)
        ]
        return lambda g: np.max([nothing(g), *(rest(g) for rest in rests)], axis=0)

    for square in (0.2, 0.4, 0.55):
        start = LossFilter(square, 3 * SLACK)
        most = max(start.allows(certificate) for certificate, _ in steps)
        assert 1 <= most <= 3
        assert (worst(start)(G) <= gaussian_profile(square, np.log(G)) + start.slack).all()


def test_a_filter_that_charges_each_label_as_one_of_many_is_caught() -> None:
    """Planted: the least cost of every certificate, whatever is left."""
    true = certify(Seen.THRESHOLD, MENU[0][1], 1, SLACK)
    planted = Certificate((0.0,), true.costs[-1:], SLACK)
    start = LossFilter(planted.costs[0] * 1.0001, 2 * SLACK)
    assert start.allows(planted) == 1
    assert start.allows(true) == 0
    shown = before(*versions(*MENU[0]), nothing)(G)
    assert (shown > gaussian_profile(start.square, np.log(G)) + start.slack).any()


def test_what_a_filter_allows_costs_no_more_than_its_limit() -> None:
    law, delta = skellam_law(25.0), 1e-3
    for epsilon in (0.8, 2.0, 4.0):
        start = LossFilter.for_limit(epsilon, delta)
        slack = start.step_slack(loss_scale(Seen.THRESHOLD, law, 1))
        certificate = certify(Seen.THRESHOLD, law, 1, slack)
        labels = start.allows(certificate)
        assert planned_epsilon([(certificate, labels)], delta) <= epsilon
        assert planned_epsilon([(certificate, labels + 2)], delta) > epsilon * 0.99
        totals = start.allows(Certificate.of_mu(unit_mu(25.0)))
        assert labels > 1.3 * totals


def test_rounds_of_different_noise_share_a_limit_in_any_order() -> None:
    delta, start = 1e-3, LossFilter.for_limit(3.0, 1e-3)
    rounds = [
        (certify(Seen.THRESHOLD, skellam_law(variance), 1, 2.0**-24), labels)
        for variance, labels in ((25.0, 10), (100.0, 40), (4.0, 1))
    ]
    for order in (rounds, rounds[::-1]):
        left = start
        for certificate, labels in order:
            left = left.after(certificate, labels)
        assert 0 <= left.square < start.square
        assert planned_epsilon(order, delta) <= 3.0
    mixed = planned_epsilon(rounds, delta)
    assert mixed > max(planned_epsilon([one], delta) for one in rounds)


def test_a_certificate_of_a_mu_composes_as_gaussians_do() -> None:
    found = planned_epsilon([(Certificate.of_mu(0.04), 500), (Certificate.of_mu(0.3), 2)], 1e-3)
    whole = planned_epsilon([(Certificate.of_mu(math.sqrt(0.8 + 0.18)), 1)], 1e-3)
    assert found == pytest.approx(whole, rel=1e-9)


def test_nothing_asked_is_nothing_lost() -> None:
    assert planned_epsilon([], 1e-3) == 0
    assert planned_epsilon([(TABLE, 0)], 1e-3) == 0
    start = LossFilter.for_limit(1.0, 1e-5)
    assert start.after(TABLE, 0) == start


def test_slack_is_charged_to_delta() -> None:
    mu = Certificate.of_mu(0.5)
    assert planned_epsilon([(Certificate.of_mu(0.5, 1e-4), 1)], 1e-3) > planned_epsilon(
        [(mu, 1)], 1e-3
    )
    assert planned_epsilon([(Certificate.of_mu(0.5, 1e-4), 9)], 1e-3) == math.inf
    dear = Certificate((0.0,), (1e-9,), 1e-6)
    assert LossFilter(1.0, 9.5e-6).allows(dear) == 9


def test_more_than_fits_is_refused_and_nothing_is_spent() -> None:
    start = LossFilter(2.5, 1e-6)
    with pytest.raises(LimitReached, match="2 would"):
        start.after(TABLE, 3)
    assert start.allows(TABLE) == 2
    with pytest.raises(ValueError, match="number of them"):
        start.after(TABLE, -1)


@given(st.floats(0.1, 8.0), st.sampled_from([1e-3, 1e-5, 1e-7]), st.floats(1e-6, 10.0))
def test_a_filter_runs_out_of_its_square_before_its_slack(
    epsilon: float, delta: float, scale: float
) -> None:
    start = LossFilter.for_limit(epsilon, delta)
    slack = start.step_slack(scale)
    cheapest = Certificate((0.0,), (scale / 2,), slack)
    free = Certificate((0.0,), (scale / 2,), 0.0)
    assert start.allows(cheapest) >= start.allows(free) - 1


def test_a_delta_too_small_for_so_many_labels_is_refused() -> None:
    with pytest.raises(ValueError, match="slack is at least"):
        steps_epsilon(Seen.THRESHOLD, skellam_law(25.0), 1, 100_000, 1e-12)
    assert steps_epsilon(Seen.THRESHOLD, skellam_law(25.0), 1, 0, 1e-7) == 0


@pytest.mark.parametrize(
    ("variance", "move", "expected"), [(625.0, 1, 2.089), (900.0, 1, 1.675), (25.0 * 256, 16, 2.84)]
)
def test_the_figures_of_thresholds(variance: float, move: int, expected: float) -> None:
    """500 labels under noise of sigma 25 and 30, at delta 1e-3, at agent level; and 31 under noise
    of sigma 5, where a vote is 16 units."""
    found = steps_epsilon(Seen.THRESHOLD, skellam_law(variance), move, 500 // move, 1e-3)
    assert 0.99 * expected < found <= expected


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variance", "labels", "expected"),
    [(625.0, 500, 3.236), (1600.0, 500, 1.822), (625.0, 100, 1.234)],
)
def test_the_figures_of_flips(variance: float, labels: int, expected: float) -> None:
    found = steps_epsilon(Seen.FLIP, skellam_law(variance), 1, labels, 1e-3)
    assert 0.99 * expected < found <= expected
