"""Skellam noise: the table is exact, the draws follow it, the tails are bounded.

Statistical tests use fresh randomness. Each fails by chance with probability below 1e-8.
"""

from __future__ import annotations

import decimal
import math
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from mpc_vote.privacy import noise
from mpc_vote.privacy.noise import SkellamSampler, per_agent_variance, tail_bound

CHANCE = 1e-9


def boundaries(sampler: SkellamSampler) -> list[int]:
    """floor(2^127 P(|X| <= k)) for every k of the table."""
    table = sampler._table
    return [(int(h) << 63) | int(low) for h, low in zip(table.high, table.low, strict=True)]


def masses(sampler: SkellamSampler) -> np.ndarray:
    """P(|X| = k) as the sampler draws it, the last one holding the tail."""
    edges = [0, *boundaries(sampler), 1 << 127]
    return np.array([(b - a) / 2.0**127 for a, b in pairwise(edges)])


def draw_bytes(*draws: tuple[int, int]) -> bytes:
    """The bytes of draws given as (u, sign bit)."""
    return b"".join(
        (u >> 63).to_bytes(8, "little") + (((u & (2**63 - 1)) << 1) | sign).to_bytes(8, "little")
        for u, sign in draws
    )


@pytest.mark.parametrize("variance", [1e-6, 0.3, 1.0, 7.5, 400.0, 25_600.0])
def test_table_matches_scipy(variance: float) -> None:
    found = masses(SkellamSampler(variance))
    k = np.arange(len(found))
    expected = stats.skellam.pmf(k, variance / 2, variance / 2) * np.where(k == 0, 1, 2)
    assert np.abs(found - expected).max() < 1e-12


@pytest.mark.parametrize("variance", [0.01, 1.0, 37.25])
def test_table_matches_the_power_series_to_the_last_bit(variance: float) -> None:
    sampler = SkellamSampler(variance)
    with decimal.localcontext(decimal.Context(prec=150)):
        half = decimal.Decimal(variance) / 2
        scale = 2**127 * (-2 * half).exp()
        total = decimal.Decimal(0)
        for k, edge in enumerate(boundaries(sampler)):
            bessel = term = half**k / math.factorial(k)
            for m in range(1, 400):
                term *= half * half / (m * (m + k))
                bessel += term
            total += scale * bessel * (1 if k == 0 else 2)
            assert -(decimal.Decimal(2) ** -30) < total - edge < 1 + decimal.Decimal(2) ** -30


@pytest.mark.parametrize("variance", [1e-300, 1e-6, 1.0, 160_000.0])
def test_stated_distance_covers_the_table(variance: float) -> None:
    sampler = SkellamSampler(variance)
    edges = boundaries(sampler)
    assert edges == sorted(edges)
    assert edges[-1] < 1 << 127
    assert sampler.statistical_distance == (len(edges) + 1) * 2.0**-127
    assert sampler.statistical_distance <= noise.STATISTICAL_DISTANCE
    assert tail_bound(variance, 2.0**-130) <= sampler.largest


def test_the_constant_covers_the_largest_table() -> None:
    largest = tail_bound(noise.MAX_STD**2, 2.0**-130)
    assert (largest + 1) * 2.0**-127 <= noise.STATISTICAL_DISTANCE


def test_draws_resolve_every_boundary_with_all_bits() -> None:
    sampler = SkellamSampler(400.0)
    edges = boundaries(sampler)
    draws, expected = [], []
    for k, edge in enumerate(edges):
        following = k + 1
        while following < len(edges) and edges[following] == edge:
            following += 1
        draws += [(edge, 1)]
        expected += [-following]
        if k == 0 or edges[k - 1] < edge:
            draws += [(edge - 1, 0)]
            expected += [k]
    raw = draw_bytes(*draws)
    assert sampler.sample(len(draws), lambda n: raw[:n]).tolist() == expected


def test_extreme_words_give_the_extreme_draws() -> None:
    sampler = SkellamSampler(10.0)
    raw = draw_bytes((0, 0), (0, 1), (2**127 - 1, 0), (2**127 - 1, 1))
    drawn = sampler.sample((2, 2), lambda n: raw)
    assert drawn.tolist() == [[0, 0], [sampler.largest, -sampler.largest]]


@pytest.mark.parametrize("variance", [0.5, 12.0, 6400.0])
def test_draws_follow_skellam(variance: float) -> None:
    count = 200_000
    drawn = SkellamSampler(variance).sample(count)
    assert abs(int(drawn.sum())) <= tail_bound(count * variance, CHANCE)
    spread = math.sqrt((2 + 1 / variance) / count)
    assert abs((drawn**2).mean() / variance - 1) < 6.5 * spread
    std = math.sqrt(variance)
    edges = np.unique(np.round(np.linspace(-2.5 * std, 2.5 * std, 20)))
    observed = np.bincount(np.searchsorted(edges, drawn), minlength=len(edges) + 1)
    cumulative = stats.skellam.cdf(edges, variance / 2, variance / 2)
    expected = np.diff(np.concatenate([[0.0], cumulative, [1.0]])) * count
    statistic = ((observed - expected) ** 2 / expected).sum()
    assert stats.chi2.sf(statistic, len(edges)) > CHANCE


def test_the_parts_of_a_quorum_add_up_to_the_wanted_noise() -> None:
    sigma, f, quorum, collusion = 3.0, 4, 12, 2
    sampler = SkellamSampler(per_agent_variance(sigma, f, quorum, collusion))
    honest = sampler.sample((quorum - collusion, 40_000)).sum(axis=0)
    wanted = sigma**2 * 4**f
    ratio = (honest**2).mean() / wanted
    assert abs(ratio - 1) < 6.5 * math.sqrt((2 + 1 / wanted) / 40_000)
    fit = stats.skellam(wanted / 2, wanted / 2)
    values, counts = np.unique(honest, return_counts=True)
    distance = np.abs(np.cumsum(counts) / 40_000 - fit.cdf(values)).max()
    assert distance < math.sqrt(math.log(2 / CHANCE) / 2 / 40_000)


def test_a_given_source_makes_draws_repeatable() -> None:
    sampler = SkellamSampler(100.0)
    first = sampler.sample((3, 50_000), np.random.default_rng(7).bytes)
    second = sampler.sample((3, 50_000), np.random.default_rng(7).bytes)
    assert (first == second).all()
    assert (first != sampler.sample((3, 50_000))).any()


@given(st.sampled_from([0, 5, (0, 3), (2, 3), (1, 2, 3), ()]))
def test_draws_have_the_shape_asked_for(shape: int | tuple[int, ...]) -> None:
    drawn = SkellamSampler(4.0).sample(shape)
    assert drawn.shape == np.zeros(shape).shape
    assert drawn.dtype == np.int64


def test_a_short_source_is_refused() -> None:
    with pytest.raises(ValueError, match="source gave"):
        SkellamSampler(4.0).sample(3, lambda n: b"\0" * (n - 1))


@pytest.mark.parametrize("variance", [0.0, -1.0, math.inf, math.nan, 4.1e8])
def test_impossible_variances_are_refused(variance: float) -> None:
    with pytest.raises(ValueError):
        SkellamSampler(variance)


@pytest.mark.parametrize("variance", [0.01, 1.0, 50.0, 10_000.0])
@pytest.mark.parametrize("probability", [0.5, 1e-3, 1e-12])
def test_tail_bound_holds_and_is_close(variance: float, probability: float) -> None:
    bound = tail_bound(variance, probability)
    law = stats.skellam(variance / 2, variance / 2)
    assert 2 * law.cdf(-bound - 1) <= probability
    assert bound <= 1 + 14 * max(1.0, math.sqrt(variance))


@settings(max_examples=50)
@given(st.floats(1e-6, 1e12), st.floats(1e-30, 0.9), st.floats(1.0, 1e3))
def test_tail_bound_grows_with_variance_and_certainty(
    variance: float, probability: float, factor: float
) -> None:
    bound = tail_bound(variance, probability)
    assert tail_bound(variance * factor, probability) >= bound
    assert tail_bound(variance, probability / factor) >= bound


@pytest.mark.parametrize("probability", [0.0, 1.0, -0.1, math.nan])
def test_tail_bound_needs_a_probability(probability: float) -> None:
    with pytest.raises(ValueError):
        tail_bound(1.0, probability)


@given(st.floats(1e-3, 1e6), st.integers(0, 12), st.integers(1, 10_000), st.integers(0, 10_000))
def test_honest_agents_always_carry_the_wanted_variance(
    sigma: float, f: int, quorum: int, collusion: int
) -> None:
    collusion %= quorum
    part = per_agent_variance(sigma, f, quorum, collusion)
    wanted = Fraction(sigma) ** 2 * 4**f
    assert Fraction(part) * (quorum - collusion) >= wanted
    assert Fraction(math.nextafter(part, 0)) * (quorum - collusion) < wanted


def test_the_paper_is_the_case_without_dropout_or_collusion() -> None:
    assert per_agent_variance(25.0, 0, 100, 0) == 6.25


@pytest.mark.parametrize(
    ("sigma", "f", "quorum", "collusion"),
    [
        (0.0, 4, 3, 0),
        (math.nan, 4, 3, 0),
        (math.inf, 4, 3, 0),
        (1.0, -1, 3, 0),
        (1.0, 4, 3, 3),
        (1.0, 4, 3, -1),
        (1.0, 4, 0, 0),
    ],
)
def test_unsafe_noise_plans_are_refused(sigma: float, f: int, quorum: int, collusion: int) -> None:
    with pytest.raises(ValueError):
        per_agent_variance(sigma, f, quorum, collusion)
