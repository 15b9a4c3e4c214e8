"""FedAvg and DP-FedAvg: what is averaged, what no agent can do, and what the noise is."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from mpc_vote.data.embedded import load_embedded
from mpc_vote.learning.baselines.common_model import flatten, predict_logits
from mpc_vote.learning.baselines.fedavg import DpFedAvgRecipe, FedAvgRecipe, dp_fed_avg, fed_avg
from mpc_vote.learning.nets.networks import Architecture
from mpc_vote.learning.nets.stacked_networks import Labelled, StackedLinear, StackedNetwork
from mpc_vote.learning.nets.stacked_training import StackBatch, StackRecipe, classify
from mpc_vote.privacy import Clipped, Level, PoissonGaussian, epsilons

_STEP = StackRecipe(steps=1, batch=40, rate=0.5, adam=False)
_LOCAL = StackRecipe(steps=5, batch=20, rate=1.0, adam=False)
_STILL = StackRecipe(steps=1, batch=1, rate=1e-30, adam=False)
_HARDLY = 1e-9


def _linear(agents: int) -> StackedLinear:
    return StackedLinear(agents, 2, 3)


def _blobs(count: int, seed: int, classes: tuple[int, ...] = (0, 1, 2)) -> Labelled:
    draws = np.random.default_rng(seed)
    labels = draws.choice(classes, count)
    centres = np.array([[0, 0], [1, 0], [0, 1]], np.float32)
    return (centres[labels] + 0.15 * draws.normal(size=(count, 2))).astype(np.float32), labels


def _skewed(agents: int) -> list[Labelled]:
    """Every agent lacks one of three classes."""
    kinds = ((0, 1), (1, 2), (2, 0))
    return [_blobs(40, agent, kinds[agent % 3]) for agent in range(agents)]


def _accuracy(network: torch.nn.Module) -> float:
    x, y = _blobs(300, 99)
    return float((predict_logits(network, x).argmax(axis=1) == y).mean())


def _same(first: torch.nn.Module, second: torch.nn.Module) -> bool:
    return torch.equal(flatten(first), flatten(second))


def test_one_local_step_each_is_a_step_on_all_points_together() -> None:
    data = [_blobs(20, 0, (0, 1)), _blobs(40, 1, (1, 2)), _blobs(10, 2, (0,))]
    network = fed_avg(_linear(1), _linear, data, classify(), FedAvgRecipe(1, _STEP), 0)
    pooled = (np.concatenate([x for x, _ in data]), np.concatenate([y for _, y in data]))
    together = fed_avg(
        _linear(1),
        _linear,
        [pooled],
        classify(),
        FedAvgRecipe(1, replace(_STEP, batch=70)),
        0,
    )
    assert torch.allclose(flatten(network), flatten(together), atol=1e-6)


def test_rates_fade_and_momentum_carries_on() -> None:
    data, start = _skewed(3), _linear(1)

    def moved(rounds: int, fade: float, momentum: float) -> torch.Tensor:
        plan = FedAvgRecipe(rounds, replace(_STEP, rate=1e-3), fade=fade, momentum=momentum)
        return flatten(fed_avg(start, _linear, data, classify(), plan, 0))

    # So small a rate leaves the gradient as it was.
    once = moved(1, 1.0, 0.0)
    assert torch.allclose(moved(3, 0.5, 0.0), 1.75 * once, rtol=0.01, atol=1e-7)
    assert torch.allclose(moved(3, 1.0, 0.5), (1 + 1.5 + 1.75) * once, rtol=0.01, atol=1e-7)


@pytest.mark.parametrize("sampling", [1.0, 0.5])
def test_agents_that_each_lack_a_class_learn_all_of_them(sampling: float) -> None:
    plan = FedAvgRecipe(20, _LOCAL, sampling)
    network = fed_avg(_linear(1), _linear, _skewed(9), classify(), plan, 1)
    assert _accuracy(network) > 0.95


def test_many_agents_learn_with_privacy() -> None:
    plan = DpFedAvgRecipe(10, _LOCAL, clip=1.0)
    noise = plan.noise_for(4.0, 1e-3)
    network, mechanism = dp_fed_avg(_linear(1), _linear, _skewed(120), classify(), plan, noise, 1)
    assert _accuracy(network) > 0.9
    found = epsilons([mechanism], Level.AGENT, 1e-3).exact
    assert found is not None and 3.98 < found <= 4


def test_the_cost_is_that_of_sampled_agents_and_of_any_change_to_one_for_a_record() -> None:
    plan = DpFedAvgRecipe(7, _LOCAL, 0.3, clip=2.0)
    _, mechanism = dp_fed_avg(_linear(1), _linear, _skewed(3), classify(), plan, 1.5, 0)
    assert mechanism == PoissonGaussian(7, 0.3, 1.5, Clipped(1.0), Clipped(1.0, replaced=True))
    assert mechanism == plan.mechanism(1.5)


@pytest.mark.parametrize("poison", [1e4, 3e38])
def test_no_agent_moves_the_model_by_more_than_the_clip(poison: float) -> None:
    plan = DpFedAvgRecipe(1, _LOCAL, clip=0.25)
    data = _skewed(5)
    x, y = data[2]
    poisoned = [*data[:2], (np.full_like(x, poison), y), *data[3:]]
    honest, changed = (
        dp_fed_avg(_linear(1), _linear, given, classify(), plan, _HARDLY, 0)[0]
        for given in (data, poisoned)
    )
    distance = (flatten(honest) - flatten(changed)).norm().item()
    assert math.isfinite(distance)
    assert 0 < distance <= 2 * 0.25 / 5 + 1e-6


def test_the_noise_falls_on_the_sum_of_clipped_differences() -> None:
    def stack(agents: int) -> StackedLinear:
        return StackedLinear(agents, 2, 4000)

    plan = DpFedAvgRecipe(4, _STILL, clip=2.0)
    network, _ = dp_fed_avg(stack(1), stack, _skewed(10), classify(), plan, 3.0, 0)
    assert flatten(network).std().item() == pytest.approx(math.sqrt(4) * 3 * 2 / 10, rel=0.03)


def test_the_divisor_is_the_expected_number_whoever_takes_part() -> None:
    def stack(agents: int) -> StackedLinear:
        return StackedLinear(agents, 2, 4000)

    plan = DpFedAvgRecipe(1, _STILL, 1e-4, clip=1.0)
    network, _ = dp_fed_avg(stack(1), stack, _skewed(10), classify(), plan, 2.0, 0)
    assert flatten(network).std().item() == pytest.approx(2 / (1e-4 * 10), rel=0.03)


def test_a_sampled_round_is_over_the_expected_number() -> None:
    """All agents have the same data and noise is next to none: only who took part varies."""
    data = [_blobs(40, 0)] * 16
    plan = DpFedAvgRecipe(1, _STEP, 0.25, clip=10.0)
    whole, _ = dp_fed_avg(
        _linear(1), _linear, data, classify(), replace(plan, sampling=1.0), _HARDLY, 0
    )
    taking_part = set()
    for seed in range(12):
        network, _ = dp_fed_avg(_linear(1), _linear, data, classify(), plan, _HARDLY, seed)
        times = flatten(network).norm() / flatten(whole).norm() * 4
        assert times.item() == pytest.approx(round(times.item()), abs=1e-3)
        taking_part.add(round(times.item()))
    assert len(taking_part) > 3 and min(taking_part) < 4 < max(taking_part) <= 16


def test_without_privacy_a_round_without_agents_changes_nothing() -> None:
    start = _linear(1)
    network = fed_avg(start, _linear, _skewed(3), classify(), FedAvgRecipe(2, _LOCAL, 1e-9), 0)
    assert _same(network, start)


def test_the_result_depends_on_arguments_and_seed_alone() -> None:
    plan, start = DpFedAvgRecipe(3, _LOCAL, 0.6), _linear(1)
    before = torch.random.get_rng_state()

    def run(seed: int, workers: int = 1) -> StackedLinear:
        return dp_fed_avg(
            start, _linear, _skewed(20), classify(), plan, 1.0, seed, workers=workers
        )[0]

    assert _same(run(4), run(4))
    assert _same(run(4), run(4, workers=3))
    assert not _same(run(4), run(5))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert not flatten(start).any()


def test_a_loss_sees_public_points_and_the_share_of_all_rounds() -> None:
    seen: list[tuple[float, tuple[int, ...]]] = []

    def loss(network: StackedLinear, batch: StackBatch) -> torch.Tensor:
        seen.append((batch.done, tuple(batch.public.shape)))
        spread: torch.Tensor = network(batch.public).square().mean(dim=(1, 2))
        return classify()(network, batch) + spread

    local = StackRecipe(steps=2, batch=8, rate=0.1, adam=False, public_batch=6)
    public = _blobs(30, 5)[0]
    fed_avg(_linear(1), _linear, _skewed(4), loss, FedAvgRecipe(2, local), 0, public=public)
    assert seen == [(share, (4, 6, 2)) for share in (0, 0.25, 0.5, 0.75)]


def test_images_learn_with_a_small_convolutional_network() -> None:
    digits = load_embedded()
    rows = np.random.default_rng(0).permutation(np.flatnonzero(digits.y < 3))
    data = [(digits.x[part], digits.y[part]) for part in np.array_split(rows[:400], 8)]
    architecture = Architecture("cnn", (28, 28), 3, 2)

    def stack(agents: int) -> StackedNetwork:
        return StackedNetwork(architecture, agents)

    start = stack(1)
    start.draw(0, [0])
    told: list[tuple[int, int]] = []
    plan = FedAvgRecipe(4, StackRecipe(steps=8, batch=16, rate=0.2, adam=False), 0.7)
    network = fed_avg(
        start,
        stack,
        data,
        classify(),
        plan,
        0,
        on_round=lambda done, of, loss: told.append((done, of)),
    )
    scores = predict_logits(network, digits.x[rows[400:700]])
    assert (scores.argmax(axis=1) == digits.y[rows[400:700]]).mean() > 0.9
    assert told == [(1, 4), (2, 4), (3, 4), (4, 4)]


def test_impossible_plans_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one round"):
        FedAvgRecipe(0, _LOCAL)
    with pytest.raises(ValueError, match="probability"):
        FedAvgRecipe(1, _LOCAL, 1.5)
    with pytest.raises(ValueError, match="momentum"):
        FedAvgRecipe(1, _LOCAL, momentum=1.0)
    with pytest.raises(ValueError, match="clip"):
        DpFedAvgRecipe(1, _LOCAL, clip=0.0)
    with pytest.raises(ValueError, match="no agents"):
        fed_avg(_linear(1), _linear, [], classify(), FedAvgRecipe(1, _LOCAL), 0)
    with pytest.raises(ValueError, match="exactly one"):
        fed_avg(_linear(2), _linear, _skewed(3), classify(), FedAvgRecipe(1, _LOCAL), 0)
    with pytest.raises(ValueError, match="noise_multiplier"):
        dp_fed_avg(_linear(1), _linear, _skewed(3), classify(), DpFedAvgRecipe(1, _LOCAL), 0.0, 0)
