"""A stack trains every agent as if it were alone, whatever stands beside it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from mpc_vote.data.embedded import load_embedded
from mpc_vote.learning.nets.networks import Architecture
from mpc_vote.learning.nets.stacked_networks import (
    Labelled,
    StackedConvolution,
    StackedLinear,
    StackedNetwork,
    fresh,
)
from mpc_vote.learning.nets.stacked_training import (
    StackBatch,
    StackRecipe,
    chunked,
    classify,
    cross_entropy,
    in_chunks,
    predict_scores,
    train,
    train_agents,
    train_chunk,
)

IMAGES = Architecture.for_shape((28, 28), 10)
VECTORS = Architecture.for_shape((784,), 10)


def _deal(agents: int, points: int, vectors: bool = False) -> list[Labelled]:
    digits = load_embedded()
    order = np.random.default_rng(0).permutation(len(digits))
    x = digits.x.reshape(-1, 784) if vectors else digits.x
    rows = [order[first * points : (first + 1) * points] for first in range(agents)]
    return [(x[row], digits.y[row]) for row in rows]


def _alike(one: nn.Module, place: int, other: nn.Module, other_place: int) -> bool:
    theirs = other.state_dict()
    return all(
        torch.equal(value[place], theirs[name][other_place])
        for name, value in one.state_dict().items()
    )


@pytest.mark.parametrize("architecture", [IMAGES, VECTORS], ids=["images", "vectors"])
def test_an_agent_gets_the_same_bits_in_any_company(architecture: Architecture) -> None:
    data = _deal(11, 60, vectors=architecture is VECTORS)
    recipe = StackRecipe(6, 16, 4e-3, decay=0.1, augment=architecture is IMAGES, public_batch=8)

    def loss(network: StackedNetwork, batch: StackBatch) -> torch.Tensor:
        own: torch.Tensor = cross_entropy(network(batch.x), batch.y, 0.0).mean(dim=1)
        spread: torch.Tensor = network(batch.public).square().mean(dim=(1, 2))
        return own + spread

    def stack(agents: Sequence[int]) -> StackedNetwork:
        def start(some: Sequence[int]) -> StackedNetwork:
            return fresh(architecture, 3, some, data)

        return train_chunk(start, data, loss, recipe, 3, agents, public=data[10][0])[0]

    queries = data[9][0]
    whole, alone, few = stack(range(8)), stack([5]), stack([7, 5, 1])
    assert _alike(alone, 0, whole, 5)
    assert _alike(few, 1, whole, 5)
    assert not _alike(few, 1, whole, 1)
    scores = predict_scores([whole], queries)[5]
    assert np.array_equal(predict_scores([alone], queries)[0], scores)


def test_threads_chunks_and_the_global_generator_change_nothing() -> None:
    data = _deal(17, 40, vectors=True)
    recipe = StackRecipe(5, 8, 4e-3)
    told: list[tuple[int, int]] = []

    def run(workers: int, seed: int = 1) -> np.ndarray:
        chunks = train_agents(
            lambda agents: fresh(VECTORS, seed, agents, data),
            data,
            classify(),
            recipe,
            seed,
            workers=workers,
            on_chunk=lambda done, total, _: told.append((done, total)),
        )
        return predict_scores(chunks, data[0][0])

    before = torch.random.get_rng_state()
    scores = run(1)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert told == [(1, 3), (2, 3), (3, 3)]
    assert scores.shape == (17, 40, 10)
    assert np.allclose(scores.sum(axis=2), 1, atol=1e-5)
    assert np.array_equal(run(2), scores)
    assert not np.array_equal(run(1, seed=2), scores)


def test_a_stack_computes_what_its_agents_compute_alone() -> None:
    data = _deal(3, 20)
    network = fresh(IMAGES, 0, range(3), data)
    x = torch.from_numpy(data[0][0])
    logits = network(x[None])
    for agent in range(3):
        h = ((x[:, None] - network.mean[agent]) / network.scale[agent]).double()
        layers = [cast(StackedConvolution, layer) for layer in network.convolutions]
        first, second = (layer.weight[agent].double() for layer in layers)
        h = functional.conv2d(h, first, stride=2, padding=2)
        h = functional.relu(functional.instance_norm(h))
        h = functional.max_pool2d(functional.conv2d(h, second, padding=1), 2)
        h = functional.relu(functional.instance_norm(h)).flatten(1)
        h = functional.relu(h @ network.hidden.weight[agent].double())
        h = h @ network.head.weight[agent].double()
        assert torch.allclose(logits[agent].double(), h, atol=1e-3)


def test_agents_learn_their_digits_from_unequal_numbers_of_points() -> None:
    data = _deal(4, 300)
    data[1] = (data[1][0][:120], data[1][1][:120])
    data[2] = (data[2][0][:7], data[2][1][:7])
    recipe = StackRecipe(150, 32, 4e-3, decay=0.1, augment=True)
    chunks = train_agents(
        lambda agents: fresh(IMAGES, 0, agents, data), data, classify(0.05), recipe, 0
    )
    x, y = _deal(14, 300)[13]
    right = (predict_scores(chunks, x).argmax(axis=2) == y).mean(axis=1)
    assert right[0] > 0.9
    assert right[3] > 0.9
    assert right[1] > 0.75
    assert 0.2 < right[2] < right[1]


def test_a_plain_step_goes_down_the_gradient_of_each_agent() -> None:
    data = _deal(3, 30, vectors=True)
    network = fresh(VECTORS, 0, range(3), data).pick([1, 1, 1])
    before = [value.detach().clone() for value in network.parameters()]
    gradients: list[tuple[torch.Tensor, ...]] = []

    def loss(stack: StackedNetwork, batch: StackBatch) -> torch.Tensor:
        losses = classify()(stack, batch)
        parameters = tuple(stack.parameters())
        gradients.append(torch.autograd.grad(losses.sum(), parameters, retain_graph=True))
        return losses

    train(network, data, loss, StackRecipe(1, 30, 0.5, decay=0.1, adam=False), 0, range(3))
    after = list(network.parameters())
    for old, new, slope in zip(before, after, gradients[0], strict=True):
        assert torch.equal(old[0], old[2])
        assert torch.allclose(new, old * (1 - 0.5 * 0.1) - 0.5 * slope, atol=1e-6)
    assert not torch.equal(after[0][0], after[0][2])


def test_a_pass_shows_each_point_once_with_its_label_and_public_rows_name_their_points() -> None:
    count = 24
    x = np.arange(count, dtype=np.float32)[:, None] + np.array([[0.0, 0.5]], np.float32)
    data = [(x, np.arange(count) % 2), (x + 100, np.arange(count) % 2)]
    public = -np.arange(1, 11, dtype=np.float32)[:, None] * np.array([[1.0, 2.0]], np.float32)
    batches: list[StackBatch] = []

    def loss(network: StackedNetwork, batch: StackBatch) -> torch.Tensor:
        batches.append(batch)
        return classify()(network, batch)

    architecture = Architecture("mlp", (2,), 2, 4)
    recipe = StackRecipe(6, 8, 1e-3, public_batch=5)
    train(fresh(architecture, 0, range(2), data), data, loss, recipe, 0, range(2), public)
    for half in (batches[:3], batches[3:]):
        seen = torch.cat([batch.x[1, :, 0] for batch in half])
        assert sorted(seen.tolist()) == sorted((x[:, 0] + 100).tolist())
    for step, batch in enumerate(batches):
        assert batch.done == step / 6
        assert torch.equal(batch.x[0, :, 0] % 2, batch.y[0].float())
        assert torch.equal(batch.public, torch.from_numpy(public)[batch.public_rows])
    assert not torch.equal(batches[0].public_rows[0], batches[0].public_rows[1])


def test_warping_moves_images_a_little_and_differently_for_each_agent() -> None:
    data = _deal(1, 20) * 2
    batches: list[StackBatch] = []

    def loss(network: StackedNetwork, batch: StackBatch) -> torch.Tensor:
        batches.append(batch)
        return classify()(network, batch)

    recipe = StackRecipe(2, 20, 1e-3, augment=True)
    train(fresh(IMAGES, 0, range(2), data), data, loss, recipe, 0, range(2))
    first = batches[0].x.flatten(2)
    ink = torch.from_numpy(data[0][0]).sum()
    assert torch.allclose(first.sum(dim=(1, 2)), ink.expand(2), rtol=0.2)
    assert not torch.equal(first[0].sum(dim=1).sort()[0], first[1].sum(dim=1).sort()[0])
    assert torch.equal(batches[0].x.amax(dim=(2, 3)) > 0.5, torch.ones(2, 20, dtype=torch.bool))


def test_a_loss_may_bring_a_head_of_its_own_and_leave_parameters_out() -> None:
    class TwoHeads(nn.Module):
        def __init__(self, agents: Sequence[int]) -> None:
            super().__init__()
            self.network = fresh(VECTORS, 0, agents, data)
            self.domain = StackedLinear(len(agents), 128, 2)
            self.idle = StackedLinear(len(agents), 3, 3)

    def loss(both: TwoHeads, batch: StackBatch) -> torch.Tensor:
        logits = both.domain(both.network.features(batch.x))
        return cross_entropy(logits, batch.y % 2, 0.0).mean(dim=1)

    data = _deal(2, 40, vectors=True)
    both, _ = train_chunk(TwoHeads, data, loss, StackRecipe(30, 20, 1e-2), 0, range(2))
    x = torch.from_numpy(np.stack([x for x, _ in data]))
    odd = both.domain(both.network.features(x)).argmax(dim=2).numpy()
    assert (odd == np.stack([y for _, y in data]) % 2).mean() > 0.9
    assert not both.idle.weight.any()
    assert torch.equal(both.network.head.weight[0], fresh(VECTORS, 0, [0], data).head.weight[0])


def test_queries_are_answered_in_parts_and_none_at_all_is_fine() -> None:
    data = _deal(2, 300)
    network = fresh(IMAGES, 0, range(2), data)
    with torch.no_grad():
        at_once = functional.softmax(network(torch.from_numpy(data[0][0])[None]), dim=2)
    assert np.allclose(predict_scores([network], data[0][0]), at_once.numpy(), atol=1e-6)
    assert predict_scores([network], data[0][0][:0]).shape == (2, 0, 10)


def test_every_agent_is_in_one_chunk() -> None:
    for agents in (1, 2, 8, 9, 17, 100, 800):
        assert [agent for part in chunked(agents) for agent in part] == list(range(agents))
        assert max(map(len, chunked(agents))) - min(map(len, chunked(agents))) <= 1


def test_bad_input_is_refused_with_what_to_do() -> None:
    data = _deal(2, 10, vectors=True)
    network = fresh(VECTORS, 0, range(2), data)
    recipe = StackRecipe(1, 4, 1e-3)
    empty = [data[0], (data[1][0][:0], data[1][1][:0])]
    with pytest.raises(ValueError, match="agent 1 has 0 points"):
        train(network, empty, classify(), recipe, 0, range(2))
    with pytest.raises(ValueError, match="one figure per agent"):
        train(network, data, lambda stack, batch: batch.x.mean(), recipe, 0, range(2))
    with pytest.raises(ValueError, match="public points"):
        train(network, data, classify(), StackRecipe(1, 4, 1e-3, public_batch=2), 0, range(2))
    with pytest.raises(ValueError, match="must be positive"):
        StackRecipe(0, 4, 1e-3)
    with pytest.raises(ValueError, match="no agents"):
        in_chunks(lambda agents: (0, 0.0), 0)
    with pytest.raises(ValueError, match="at least one agent"):
        StackedNetwork(VECTORS, 0)
    with pytest.raises(ValueError, match=r"shape \(3,\), the networks take \(784,\)"):
        predict_scores([network], np.zeros((4, 3), np.float32))
    with pytest.raises(ValueError, match="2 agents need as many"):
        network.standardise([data[0][0]])
