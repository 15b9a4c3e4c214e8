"""The sum that DP-FedAvg and DP-FedSGD publish: each contribution clipped, then Gaussian noise.

What a unit (an agent, or a record) adds is never longer than the clip in l2 norm, whatever its
data did to it: what is not finite counts as nothing. The sum is divided by the *expected* number of
contributions, which is public; the number that did contribute is not. The noise here comes from a
seeded generator of floating-point numbers, which serves a simulation and protects nobody.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache

import numpy as np
import torch

from mpc_vote.privacy import Clipped, Level, PoissonGaussian, epsilons
from mpc_vote.privacy.accountant import check_delta

_SHRINK = 1 - 2.0**-30  # more than all rounding of a sum of clipped contributions adds
_RATIO = 1.002
_LOG_RATIO = math.log(_RATIO)
_FAR = 2.0


def clipped_sum(contributions: torch.Tensor, clip: float) -> torch.Tensor:
    """The sum over rows, each scaled down to l2 norm `clip` where it is longer."""
    rows = contributions.double()
    norms = torch.linalg.vector_norm(rows, dim=1)
    sound = norms.isfinite()
    factors = torch.where(sound, (clip / norms).clamp(max=1.0) * _SHRINK, 0.0)
    return factors @ rows.masked_fill(~sound[:, None], 0.0)


def noisy_mean(
    total: torch.Tensor,
    clip: float,
    noise_multiplier: float,
    expected: float,
    draws: np.random.Generator,
) -> torch.Tensor:
    """The sum with noise of `noise_multiplier` clips, over the expected contributions."""
    noise = torch.from_numpy(draws.standard_normal(len(total)))
    return (total + noise_multiplier * clip * noise) / expected


@lru_cache(maxsize=1 << 8)
def noise_for(epsilon: float, delta: float, steps: int, sampling: float) -> float:
    """The least noise multiplier, to 0.2 %, with which all steps cost at most `epsilon`.

    For a unit that is added or removed: an agent in DP-FedAvg, a record in DP-FedSGD. By privacy
    loss distributions where they are installed, which takes seconds, else by Renyi divergences.
    """
    if not 0 < epsilon < math.inf:
        raise ValueError(f"epsilon must be positive and finite, not {epsilon}")
    check_delta(delta)
    unit_noise = PoissonGaussian(steps, sampling, 1.0, Clipped(1.0), None)

    def excess(power: int) -> float:
        """The logarithm of what is lost over what may be, within bounds that a search can use."""
        found = epsilons([replace(unit_noise, noise_multiplier=_RATIO**power)], Level.AGENT, delta)
        lost = found.tight if found.exact is None else found.exact
        return min(max(math.log(max(lost, 1e-99) / epsilon), -_FAR), _FAR)

    # Dong, Roth and Su, "Gaussian Differential Privacy" (2022), Corollary 5.4: in the limit the
    # steps are a Gaussian mechanism, of which epsilon is about mu sqrt(2 log(1 / delta)).
    mu = epsilon / math.sqrt(2 * math.log(1 / delta))
    guess = math.log1p(mu**2 / sampling**2 / steps) ** -0.5
    good: tuple[int, float] | None = None
    bad: tuple[int, float] | None = None
    power = round(math.log(guess) / _LOG_RATIO)
    while good is None or bad is None or good[0] - bad[0] > 1:
        over = excess(power)
        good, bad = (good, (power, over)) if over > 0 else ((power, over), bad)
        if good is None or bad is None:
            # Epsilon falls about as the noise rises: as far again, and a little further.
            power += round(over / _LOG_RATIO * 1.2) + (2 if over > 0 else -2)
        else:
            width = good[0] - bad[0]
            between = round(width * bad[1] / (bad[1] - good[1]))
            power = bad[0] + min(max(between, -(-width // 8)), width - -(-width // 8), width - 1)
    return _RATIO ** good[0]
