"""What verified rounds leave open: an agent may choose its noise within a bound, and it is wide.

The figures are in `docs/protocol.md`.
"""

from __future__ import annotations

import numpy as np
import pytest

from mpc_vote.privacy.noise import SkellamSampler
from mpc_vote.simulation.vote import simulated_spec
from mpc_vote.verified.encoding import encode
from mpc_vote.voting.ballots import ONE_HOT
from tests.unit.verified.plain import counted

CLASSES, QUERIES = 10, 400
AGREED, WANTED = 0, 1


@pytest.mark.parametrize(("agents", "liars", "least"), [(200, 5, 0.98), (8, 1, 1.0)])
def test_few_agents_with_noise_at_its_bound_choose_nearly_all_labels(
    agents: int, liars: int, least: float
) -> None:
    """Sigma is 25, and six in ten of the others agree on another class."""
    roster = {f"agent-{number}": 0 for number in range(agents)}
    spec = simulated_spec(ONE_HOT, QUERIES, CLASSES, roster, 25.0, verified=True)
    layout, sampler = spec.layouts[0], SkellamSampler(spec.agent_variance)
    rng = np.random.default_rng(0)
    totals = np.zeros((QUERIES, CLASSES), np.int64)
    for number in range(agents):
        labels = np.where(rng.random(QUERIES) < 0.6, AGREED, rng.integers(1, CLASSES, QUERIES))
        noise = sampler.sample((QUERIES, CLASSES), rng.bytes)
        if number < liars:
            labels = np.full(QUERIES, WANTED)
            pushed = np.where(np.arange(CLASSES) == WANTED, layout.bound, -layout.bound)
            noise = np.tile(pushed, (QUERIES, 1))
        bits = encode(layout, spec.encode(f"agent-{number}", labels), noise)
        totals += counted(layout, bits)
    assert (totals.argmax(axis=1) == WANTED).mean() >= least
