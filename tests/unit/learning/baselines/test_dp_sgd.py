"""DP-FedSGD: gradients of single records, each clipped, summed over agents, with noise."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch.nn import functional

from mpc_vote.learning.baselines.common_model import flatten, predict_logits
from mpc_vote.learning.baselines.dp_sgd import DpSgdRecipe, dp_fed_sgd
from mpc_vote.learning.nets.networks import Architecture
from mpc_vote.learning.nets.stacked_networks import Labelled, StackedLinear, StackedNetwork
from mpc_vote.privacy import Clipped, Level, PoissonGaussian, epsilon, epsilons

_HARDLY = 1e-9


def _blobs(count: int, seed: int) -> Labelled:
    draws = np.random.default_rng(seed)
    labels = draws.integers(0, 3, count)
    centres = np.array([[0, 0], [1, 0], [0, 1]], np.float32)
    return (centres[labels] + 0.15 * draws.normal(size=(count, 2))).astype(np.float32), labels


def _network(kind: str, shape: tuple[int, ...], width: int) -> StackedNetwork:
    network = StackedNetwork(Architecture(kind, shape, 3, width), 1)
    network.draw(0, [0])
    return network


@pytest.mark.parametrize(
    ("kind", "shape", "width"), [("cnn", (16, 16), 2), ("cnn", (3, 16, 16), 2), ("mlp", (5,), 4)]
)
@pytest.mark.parametrize("clip", [1e6, 0.5])
def test_a_step_is_the_mean_of_clipped_gradients_of_single_records(
    kind: str, shape: tuple[int, ...], width: int, clip: float
) -> None:
    draws = np.random.default_rng(1)
    data = [
        (draws.normal(size=(count, *shape)).astype(np.float32), draws.integers(0, 3, count))
        for count in (4, 7)
    ]
    start = _network(kind, shape, width)
    network, _ = dp_fed_sgd(start, data, DpSgdRecipe(1, 1.0, 0.3, clip), _HARDLY, 0)
    total = torch.zeros_like(flatten(start)[0])
    for x, y in data:
        for point, label in zip(torch.from_numpy(x), torch.from_numpy(y), strict=True):
            loss = functional.cross_entropy(start(point[None, None])[0], label[None])
            found = torch.autograd.grad(loss, list(start.parameters()))
            gradient = torch.cat([part.flatten() for part in found])
            total += gradient * min(1.0, clip / gradient.norm().item())
    expected = flatten(start)[0] - 0.3 * total / 11
    limit = 1e-6 + 0.3 * clip * _HARDLY
    assert torch.allclose(flatten(network)[0], expected, atol=limit, rtol=1e-4)


def test_it_does_not_matter_which_agent_holds_a_record() -> None:
    x, y = _blobs(30, 0)
    plan = DpSgdRecipe(3, 0.5, 1.0, 1.0, momentum=0.5)
    pooled, _ = dp_fed_sgd(StackedLinear(1, 2, 3), [(x, y)], plan, 1.0, 0)
    apart, _ = dp_fed_sgd(StackedLinear(1, 2, 3), [(x[:5], y[:5]), (x[5:], y[5:])], plan, 1.0, 0)
    assert torch.equal(flatten(pooled), flatten(apart))


def test_records_are_learnt_with_privacy() -> None:
    plan = DpSgdRecipe(20, 0.5, 2.0, 0.5, momentum=0.5)
    noise = plan.noise_for(1.0, 1e-4)
    data = [_blobs(400, 0), _blobs(300, 1)]
    network, mechanism = dp_fed_sgd(StackedLinear(1, 2, 3), data, plan, noise, 0)
    x, y = _blobs(300, 2)
    assert (predict_logits(network, x).argmax(axis=1) == y).mean() > 0.95
    found = epsilons([mechanism], Level.INSTANCE, 1e-4).exact
    assert found is not None and 0.99 < found <= 1


def test_the_cost_is_that_of_sampled_records_without_a_bound_for_agents() -> None:
    plan = DpSgdRecipe(5, 0.2, 1.0, 0.5)
    _, mechanism = dp_fed_sgd(StackedLinear(1, 2, 3), [_blobs(9, 0)], plan, 2.0, 0)
    assert mechanism == plan.mechanism(2.0)
    assert mechanism == PoissonGaussian(5, 0.2, 2.0, None, Clipped(1.0))
    assert epsilon([mechanism], Level.AGENT, 1e-4) == math.inf


@pytest.mark.parametrize("poison", [1e4, 3e38])
def test_no_record_moves_the_model_by_more_than_the_clip(poison: float) -> None:
    x, y = _blobs(20, 0)
    bad = x.copy()
    bad[7] = poison
    plan = DpSgdRecipe(1, 1.0, 3.0, 0.25)
    honest, changed = (
        dp_fed_sgd(StackedLinear(1, 2, 3), [(given, y)], plan, _HARDLY, 0)[0] for given in (x, bad)
    )
    distance = (flatten(honest) - flatten(changed)).norm().item()
    assert 0 < distance <= 2 * 3.0 * 0.25 / 20 + 1e-6


def test_the_noise_and_the_divisor_are_the_same_whatever_the_sample() -> None:
    plan = DpSgdRecipe(4, 1e-4, 0.5, 2.0)
    network, _ = dp_fed_sgd(StackedLinear(1, 2, 4000), [_blobs(10, 0)], plan, 3.0, 0)
    expected = 0.5 * math.sqrt(4) * 3 * 2 / (1e-4 * 10)
    assert flatten(network).std().item() == pytest.approx(expected, rel=0.03)


def test_samples_vary_about_their_expected_size() -> None:
    """All records are the same: the step tells how many took part."""
    x, y = np.ones((64, 2), np.float32), np.zeros(64, np.int64)
    plan = DpSgdRecipe(1, 0.25, 1.0, 1e6)
    sizes = []
    whole = flatten(
        dp_fed_sgd(StackedLinear(1, 2, 3), [(x, y)], DpSgdRecipe(1, 1.0, 1.0, 1e6), 1e-12, 0)[0]
    )
    for seed in range(12):
        network, _ = dp_fed_sgd(StackedLinear(1, 2, 3), [(x, y)], plan, 1e-12, seed)
        times = 16 * (flatten(network).norm() / whole.norm()).item()
        assert times == pytest.approx(round(times), abs=1e-2)
        sizes.append(round(times))
    assert len(set(sizes)) > 3 and 10 < np.mean(sizes) < 22


def test_the_result_depends_on_arguments_and_seed_alone() -> None:
    start, plan = StackedLinear(1, 2, 3), DpSgdRecipe(3, 0.5, 1.0, 1.0)
    before = torch.random.get_rng_state()
    told: list[tuple[int, int]] = []

    def run(seed: int) -> torch.Tensor:
        network, _ = dp_fed_sgd(
            start,
            [_blobs(20, 0)],
            plan,
            1.0,
            seed,
            on_step=lambda done, of, loss: told.append((done, of)),
        )
        return flatten(network)

    assert torch.equal(run(1), run(1))
    assert not torch.equal(run(1), run(2))
    assert told[:3] == [(1, 3), (2, 3), (3, 3)]
    assert torch.equal(torch.random.get_rng_state(), before)
    assert not flatten(start).any()


def test_impossible_plans_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one step"):
        DpSgdRecipe(0, 0.5, 1.0, 1.0)
    with pytest.raises(ValueError, match="probability"):
        DpSgdRecipe(1, 0.0, 1.0, 1.0)
    with pytest.raises(ValueError, match="positive"):
        DpSgdRecipe(1, 0.5, 1.0, 0.0)
    with pytest.raises(ValueError, match="no records"):
        dp_fed_sgd(StackedLinear(1, 2, 3), [], DpSgdRecipe(1, 0.5, 1.0, 1.0), 1.0, 0)
    x, y = _blobs(5, 0)
    with pytest.raises(ValueError, match="5 points and 4 labels"):
        dp_fed_sgd(StackedLinear(1, 2, 3), [(x, y[:4])], DpSgdRecipe(1, 0.5, 1, 1), 1.0, 0)
