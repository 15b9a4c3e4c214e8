"""Certificates: never below the truth, hardly above it, and checked by whoever reads one."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom, norm

from mpc_vote.privacy import certificates, label_steps
from mpc_vote.privacy.certificates import (
    LEAST_SLACK,
    Certificate,
    certify,
    check_certificate,
)
from mpc_vote.privacy.gdp import skellam_law
from mpc_vote.privacy.label_steps import Seen, flips, thresholds
from mpc_vote.privacy.loss_filter import planned_epsilon
from mpc_vote.privacy.profiles import gaussian_profile
from tests.unit.privacy.exact import (
    FloatArray,
    Profile,
    before,
    coins,
    epsilon_of,
    label_law,
    nothing,
)

SMALL = coins((1, 16))
SLACK = 2.0**-12
G = np.exp(np.linspace(-1.5, 4, 45))
MOVES = {Seen.THRESHOLD: [(1, 0, 0), (0, 0, 1)], Seen.FLIP: [(1, -1, 0), (-1, 0, 1)]}


def both_ways(p: FloatArray, q: FloatArray) -> tuple[FloatArray, FloatArray]:
    return np.concatenate([p, q]), np.concatenate([q, p])


def claimed(certificate: Certificate, labels: int) -> FloatArray:
    square = certificate.needed(0.0, labels)
    return gaussian_profile(square, np.log(G)) + labels * certificate.slack


def versions(seen: Seen, law: FloatArray) -> tuple[FloatArray, FloatArray]:
    """All that one query can show, or for totals what it does show."""
    if seen is Seen.TOTALS:
        return np.append(law, 0.0)[None], np.insert(law, 0, 0.0)[None]
    return thresholds(law, 1) if seen is Seen.THRESHOLD else flips(law, 1)


def some_versions(seen: Seen, law: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Few enough for three queries: an adversary's tree has all their triples."""
    p, q = versions(seen, law)
    if seen is Seen.FLIP:
        informative = np.abs(p - q).sum(axis=1) > 0.25
        p, q = p[informative][::20], q[informative][::20]
    return both_ways(p, q)


@pytest.mark.parametrize("seen", list(Seen))
def test_no_adversary_of_up_to_three_queries_sees_more(seen: Seen) -> None:
    """Every next query is chosen by what the last ones gave, in both directions."""
    certificate = certify(seen, SMALL, 1, SLACK)
    shown: Profile = nothing
    for queries in (1, 2, 3):
        shown = before(*some_versions(seen, SMALL), shown)
        assert (shown(G) <= claimed(certificate, queries)).all()


@pytest.mark.parametrize("seen", [Seen.THRESHOLD, Seen.FLIP])
def test_no_adversary_sees_more_of_three_noisy_classes(seen: Seen) -> None:
    ps, qs = [], []
    for order in list(permutations(range(3)))[::2]:
        for first, second in [(0, 0), (0, 2), (-3, 1)]:
            for move in MOVES[seen]:
                moved = (first + move[0], second + move[1], move[2])
                ps.append(label_law((first, second, 0), SMALL, order))
                qs.append(label_law(moved, SMALL, order))
    certificate = certify(seen, SMALL, 1, SLACK)
    shown: Profile = nothing
    for queries in (1, 2, 3):
        shown = before(*both_ways(np.array(ps), np.array(qs)), shown)
        assert (shown(G) <= claimed(certificate, queries)).all()


@pytest.mark.parametrize("seen", list(Seen))
def test_the_claim_holds_for_any_larger_rest_and_at_any_g(seen: Seen) -> None:
    """Places that no grid has, by another implementation of the normal distribution."""
    law, random = skellam_law(9.0), np.random.default_rng(1)
    certificate = certify(seen, law, 1, 2.0**-24)
    p, q = both_ways(*versions(seen, law))
    p, q = p[:: 1 + len(p) // 500], q[:: 1 + len(p) // 500]

    def gaussian(square: float) -> Profile:
        mu = math.sqrt(square)

        def profile(g: FloatArray) -> FloatArray:
            x = np.log(np.maximum(g, 1e-300))
            upper: FloatArray = norm.sf(x / mu - mu / 2) - g * norm.sf(x / mu + mu / 2)
            return upper

        return profile

    for floor, cost in zip(certificate.floors, certificate.costs, strict=True):
        rest = floor * (1 + random.exponential(0.3)) + 1e-6
        g = np.exp(random.uniform(-3, 3, 12) * math.sqrt(rest + cost) * 2)
        bound = gaussian(rest + cost)(g) + certificate.slack
        assert (before(p, q, gaussian(rest))(g) <= bound).all()


def test_many_labels_cost_next_to_what_a_fixed_attack_finds() -> None:
    """The same query at the middle threshold, again and again: two binomials, exactly."""
    law, delta = skellam_law(625.0), 1e-3
    p, q = thresholds(law, 1)
    middle = int(np.argmin(np.abs(p[:, 0] - 0.508)))
    ones = np.arange(501)
    worlds = (binom.pmf(ones, 500, rate) for rate in (p[middle, 0], q[middle, 0]))
    right, wrong = (np.array(world)[None] for world in worlds)
    found = epsilon_of(before(right, wrong, nothing), delta)
    certificate = certify(Seen.THRESHOLD, law, 1, 2.0**-27)
    assert found < planned_epsilon([(certificate, 500)], delta) < found * 1.015


def test_totals_of_a_law_with_short_tails_cost_next_to_the_exact_composition() -> None:
    """Of 64 coins, which one mu would make 10 % dearer: 20 convolutions of the law itself."""
    law, delta, queries = coins((1, 64)), 1e-3, 20
    loss = np.full(len(law) + 1, np.inf)
    with np.errstate(divide="ignore"):
        loss[:-1] = np.log(law) - np.log(np.append(0.0, law[:-1]))
    interval = 1e-4
    # Of each loss the grid's next lower one: never above the truth.
    finite = np.isfinite(loss[1:-1])
    at = np.floor(loss[1:-1][finite] / interval).astype(int)
    first = at.min()
    grid = np.bincount(at - first, law[1:][finite])
    size = 1 << int(queries * len(grid)).bit_length()
    whole = np.fft.irfft(np.fft.rfft(grid, size) ** queries, size)
    losses = (np.arange(size) + queries * first) * interval

    def shown(g: FloatArray) -> FloatArray:
        return np.array([np.maximum(0.0, -np.expm1(np.log(one) - losses)) @ whole for one in g])

    found = epsilon_of(shown, delta)
    certificate = certify(Seen.TOTALS, law, 1, 2.0**-24)
    assert found < planned_epsilon([(certificate, queries)], delta) < found * 1.03


@pytest.mark.parametrize("seen", [Seen.TOTALS, Seen.THRESHOLD])
def test_a_certificate_that_was_stored_is_checked_anew(seen: Seen) -> None:
    law = skellam_law(20.0)
    stored = Certificate.from_json(certify(seen, law, 1, 2.0**-24).to_json())
    assert stored == certify(seen, law, 1, 2.0**-24)
    assert check_certificate(stored, seen, law, 1)


@pytest.mark.parametrize("seen", [Seen.THRESHOLD, Seen.FLIP])
def test_a_certificate_that_says_too_little_is_refused(seen: Seen) -> None:
    law = skellam_law(4.0)
    true = certify(seen, law, 1, 2.0**-24)
    assert not check_certificate(true, seen, skellam_law(3.6), 1)
    assert not check_certificate(true, seen, law, 2)
    assert not check_certificate(replace(true, slack=2.0**-27), seen, law, 1)
    cheaper = tuple(cost * 0.99 for cost in true.costs)
    assert not check_certificate(replace(true, costs=cheaper), seen, law, 1)
    lowered = Certificate((0.0,), true.costs[-1:], true.slack)
    assert not check_certificate(lowered, seen, law, 1)
    assert not check_certificate(replace(true, slack=LEAST_SLACK / 2), seen, law, 1)


def test_the_price_of_many_labels_is_not_that_of_one() -> None:
    """One label at the price that each of many has: an adversary of one query refutes it."""
    certificate = certify(Seen.THRESHOLD, SMALL, 1, SLACK)
    planted = Certificate((0.0,), certificate.costs[-1:], SLACK)
    shown = before(*some_versions(Seen.THRESHOLD, SMALL), nothing)(G)
    assert (shown > claimed(planted, 1)).any()


def one_threshold(law: FloatArray, move: int) -> tuple[FloatArray, FloatArray]:
    p, q = thresholds(law, move)
    middle = int(np.argmin(np.abs(p[:, 0] - 0.5)))
    return p[middle : middle + 1], q[middle : middle + 1]


def one_lead(law: FloatArray, move: int) -> tuple[FloatArray, FloatArray]:
    p, q = flips(law, move)
    level = np.abs(p[:, 0] - p[:, 1]) < 0.02
    return p[level], q[level]


@pytest.mark.parametrize(
    ("seen", "name", "plant"),
    [(Seen.THRESHOLD, "thresholds", one_threshold), (Seen.FLIP, "flips", one_lead)],
)
def test_an_account_that_forgets_versions_is_seen(
    seen: Seen, name: str, plant: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = before(*some_versions(seen, SMALL), nothing)(G)
    monkeypatch.setattr(label_steps, name, plant)
    certificates._certified.cache_clear()
    planted = certify(seen, SMALL, 1, SLACK)
    certificates._certified.cache_clear()
    assert (shown > claimed(planted, 1)).any()


def test_a_comparison_at_places_alone_would_not_be_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a grid that is too coarse chords rise above the Gaussian in between: a cost must not be
    less than on a fine one."""
    law = skellam_law(4.0)
    fine = certify(Seen.THRESHOLD, law, 1, 2.0**-20)
    coarse = label_steps.Fineness(1 / 4, 1, 16.0)
    monkeypatch.setitem(label_steps._FINENESS, Seen.THRESHOLD, coarse)
    certificates._certified.cache_clear()
    found = certify(Seen.THRESHOLD, law, 1, 2.0**-20)
    certificates._certified.cache_clear()
    assert all(a >= b for a, b in zip(found.costs, fine.costs, strict=False))


def test_noise_that_hides_nothing_has_no_certificate() -> None:
    with pytest.raises(ValueError, match="does not hide"):
        certify(Seen.TOTALS, np.array([0.5, 0.5]), 2, 2.0**-20)


@pytest.mark.parametrize("slack", [0.0, LEAST_SLACK / 2, 1.0, math.nan])
def test_a_slack_below_rounding_is_refused(slack: float) -> None:
    with pytest.raises(ValueError, match="slack is at least"):
        certify(Seen.THRESHOLD, SMALL, 1, slack)


@pytest.mark.parametrize(
    "parts",
    [
        ((), (), 0.0),
        ((0.0, 1.0), (2.0,), 0.0),
        ((1.0, 0.0), (2.0, 1.0), 0.0),
        ((0.0, 1.0), (1.0, 2.0), 0.0),
        ((-1.0,), (1.0,), 0.0),
        ((0.0,), (0.0,), 0.0),
        ((0.0,), (1.0,), -1e-9),
        ((0.0,), (math.nan,), 0.0),
        ((0.0,), (math.inf,), 0.0),
        ((math.nan,), (1.0,), 0.0),
        ((0.0,), (1.0,), math.nan),
    ],
)
def test_what_is_no_certificate_is_refused(
    parts: tuple[tuple[float, ...], tuple[float, ...], float],
) -> None:
    with pytest.raises(ValueError):
        Certificate(*parts)


TABLE = Certificate((0.0, 1.0, 3.0, 10.0), (1.0, 0.9, 0.75, 0.64), 1e-9)


def one_by_one(b: float, steps: int) -> float | None:
    for _ in range(steps):
        fitting = [c for f, c in zip(TABLE.floors, TABLE.costs, strict=True) if b - c >= f]
        if not fitting:
            return None
        b -= min(fitting)
    return b


@given(st.floats(0, 40), st.integers(1, 80))
def test_many_steps_leave_what_as_many_single_ones_leave(b: float, steps: int) -> None:
    left, expected = TABLE.left(b, steps), one_by_one(b, steps)
    if left is None or expected is None:
        assert left is None  # by rounding it may refuse what just fits, never the other way round
        assert expected is None or expected < 1e-6
    else:
        assert left <= expected + 1e-12
        assert left == pytest.approx(expected, abs=0.4)


@given(st.floats(0, 30), st.integers(1, 80))
def test_what_steps_need_is_what_they_take(rest: float, steps: int) -> None:
    needed = TABLE.needed(rest, steps)
    left = TABLE.left(needed * (1 + 1e-9), steps)
    assert left is not None
    assert left >= rest - 1e-9
