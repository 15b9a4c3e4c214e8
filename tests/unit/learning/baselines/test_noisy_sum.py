"""No contribution is longer than the clip, and the noise is the least that meets an epsilon."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from mpc_vote.learning.baselines.noisy_sum import clipped_sum, noise_for, noisy_mean
from mpc_vote.privacy import Clipped, Level, PoissonGaussian, epsilons, gaussian_exact_epsilon


def test_a_short_contribution_counts_in_full_and_a_long_one_is_cut() -> None:
    rows = torch.tensor([[0.3, 0.4], [30.0, 40.0], [0.0, 0.0]])
    assert torch.allclose(
        clipped_sum(rows, 1.0), torch.tensor([0.3 + 0.6, 0.4 + 0.8], dtype=torch.float64)
    )


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_contribution_that_is_not_finite_counts_as_nothing(bad: float) -> None:
    rows = torch.tensor([[0.3, 0.4], [bad, 0.0]])
    assert torch.allclose(clipped_sum(rows, 1.0), torch.tensor([0.3, 0.4], dtype=torch.float64))


@pytest.mark.parametrize("size", [1e-30, 1.0, 1e30, 3e38])
def test_no_contribution_is_longer_than_the_clip(size: float) -> None:
    draws = np.random.default_rng(0)
    for _ in range(20):
        row = torch.from_numpy(draws.standard_normal((1, 1000)).astype(np.float32)).mul(size)
        assert clipped_sum(row, 0.08).norm().item() <= 0.08


def test_no_contributions_sum_to_nothing() -> None:
    assert clipped_sum(torch.zeros(0, 3), 1.0).tolist() == [0.0, 0.0, 0.0]


def test_noise_is_in_clips_and_divided_by_what_was_expected() -> None:
    total = torch.full((20_000,), 6.0, dtype=torch.float64)
    mean = noisy_mean(total, 0.5, 8.0, 2.0, np.random.default_rng(1))
    assert mean.mean().item() == pytest.approx(3.0, abs=0.06)
    assert mean.std().item() == pytest.approx(0.5 * 8 / 2, rel=0.03)


def test_without_sampling_the_noise_is_that_of_the_gaussian_mechanism() -> None:
    noise = noise_for(2.0, 1e-3, 25, 1.0)
    assert gaussian_exact_epsilon(5 / noise, 1e-3) <= 2
    assert gaussian_exact_epsilon(5 / (0.996 * noise), 1e-3) > 2


def test_with_sampling_the_noise_is_the_least_that_meets_epsilon() -> None:
    noise = noise_for(1.0, 1e-4, 20, 0.25)

    def exact(multiplier: float) -> float | None:
        steps = PoissonGaussian(20, 0.25, multiplier, Clipped(1.0), None)
        return epsilons([steps], Level.AGENT, 1e-4).exact

    enough, too_little = exact(noise), exact(0.996 * noise)
    assert enough is not None and too_little is not None
    assert enough <= 1 < too_little


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0.0, 1e-3, 10, 1.0), "epsilon must be positive"),
        ((1.0, 1.0, 10, 1.0), "delta must be at least"),
        ((1.0, 1e-3, 0, 1.0), "steps"),
        ((1.0, 1e-3, 10, 0.0), "sampling"),
    ],
)
def test_what_no_noise_can_meet_is_refused(
    arguments: tuple[float, float, int, float], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        noise_for(*arguments)
