"""Domain adaptation: each part does what it says, and together they carry agents over a shift."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest
import torch

from mpc_vote.data.dataset import FloatArray, LabelArray
from mpc_vote.data.embedded import load_embedded
from mpc_vote.learning.nets.networks import Architecture
from mpc_vote.learning.nets.stacked_networks import StackedNetwork
from mpc_vote.learning.nets.stacked_training import (
    StackBatch,
    StackRecipe,
    predict_scores,
    train,
    train_agents,
)
from mpc_vote.learning.voters.domain_adaptation import (
    AdversarialNetwork,
    ConditionalNetwork,
    DomainStatistics,
    adversarial,
    fresh_adversarial,
    ink,
    neighbours,
    reverse,
    smooth,
)

KINDS = [AdversarialNetwork, ConditionalNetwork]
SMALL = Architecture("mlp", (6,), 3, 8)


def two_domains(
    rows: int, seed: int, gap: float = 3.0
) -> tuple[FloatArray, LabelArray, FloatArray, LabelArray]:
    """Three classes in features 0 to 2, the same in both domains; feature 5 gives away which."""
    draws = np.random.default_rng(seed)
    y = draws.integers(0, 3, 2 * rows)
    x = draws.normal(0, 0.5, (2 * rows, 6)).astype(np.float32)
    x[np.arange(2 * rows), y] += 2
    x[rows:, 5] += gap
    return x[:rows], y[:rows], x[rows:], y[rows:]


def batch_of(seed: int, done: float, agents: int = 2, public: int = 7) -> StackBatch:
    draws = torch.Generator().manual_seed(seed)
    return StackBatch(
        agents=range(agents),
        x=torch.randn(agents, 5, 6, generator=draws),
        y=torch.randint(3, (agents, 5), generator=draws),
        public=torch.randn(agents, public, 6, generator=draws),
        public_rows=torch.zeros(agents, public, dtype=torch.int64),
        done=done,
    )


def test_reversal_keeps_values_and_turns_gradients_round() -> None:
    x = torch.tensor([1.5, -2.0], requires_grad=True)
    turned = reverse(x, 0.25)
    assert torch.equal(turned, x)
    (turned * torch.tensor([4.0, 8.0])).sum().backward()  # type: ignore[no-untyped-call]
    assert x.grad is not None
    assert x.grad.tolist() == [-1.0, -2.0]


@pytest.mark.parametrize("kind", KINDS)
def test_the_head_descends_and_the_features_ascend_the_domain_loss(
    kind: type[AdversarialNetwork],
) -> None:
    """One small step along each part's gradient moves the domain loss the way it should."""
    network = fresh_adversarial(kind, SMALL, 3, [0, 1])
    batch = batch_of(1, done=0.9)

    def domain_loss() -> torch.Tensor:
        features = network.features(torch.cat([batch.x, batch.public], dim=1))
        odds = network.domain(features, network.head(features).softmax(dim=2))
        told = torch.nn.functional.softplus(odds[:, :5]).mean()
        return told + torch.nn.functional.softplus(-odds[:, 5:]).mean()

    def gradients(strength: float) -> dict[str, torch.Tensor]:
        network.zero_grad()
        adversarial(0.0, strength)(network, batch).sum().backward()  # type: ignore[no-untyped-call]
        return {
            name: p.grad.clone() for name, p in network.named_parameters() if p.grad is not None
        }

    with_it, without = gradients(1.0), gradients(0.0)
    before = domain_loss().item()
    for part, falls in (("domain", True), ("hidden", False)):
        kept = {name: value.clone() for name, value in network.state_dict().items()}
        with torch.no_grad():
            for name, parameter in network.named_parameters():
                if name.startswith(part):
                    step = with_it[name] - (0 if falls else without[name])
                    parameter.sub_(step * 1e-2)
        assert (domain_loss().item() < before) is falls
        network.load_state_dict(kept)


def test_the_reversal_is_off_at_the_start_and_grows() -> None:
    network = fresh_adversarial(ConditionalNetwork, SMALL, 3, [0, 1])

    def pull(done: float) -> float:
        grads = []
        for strength in (1.0, 0.0):
            network.zero_grad()
            adversarial(0.0, strength)(network, batch_of(1, done)).sum().backward()  # type: ignore[no-untyped-call]
            assert network.hidden.weight.grad is not None
            grads.append(network.hidden.weight.grad.clone())
        return float((grads[0] - grads[1]).norm())

    assert pull(0.0) == 0
    assert 0 < pull(0.05) < pull(0.2) < pull(0.9)


def test_growing_features_do_not_move_the_domain_head() -> None:
    network = fresh_adversarial(AdversarialNetwork, SMALL, 3, [0, 1])
    features = network.features(batch_of(1, 0.5).x)
    scores = network.head(features).softmax(dim=2)
    assert torch.allclose(
        network.domain(features, scores), network.domain(features * 50, scores), atol=1e-4
    )


def test_only_a_conditional_head_looks_at_class_scores() -> None:
    for kind in KINDS:
        network = fresh_adversarial(kind, SMALL, 3, [0, 1])
        features = network.features(batch_of(1, 0.5).x)
        odds = [
            network.domain(features, torch.eye(3)[[label] * 5].expand(2, 5, 3)) for label in (0, 1)
        ]
        assert torch.equal(*odds) is (kind is AdversarialNetwork)


@pytest.mark.parametrize("kind", KINDS)
def test_the_classifier_starts_as_it_would_without_a_second_head(
    kind: type[AdversarialNetwork],
) -> None:
    plain = StackedNetwork(SMALL, 2)
    plain.draw(5, [4, 9])
    adapted = fresh_adversarial(kind, SMALL, 5, [4, 9])
    x = batch_of(2, 0.0).x
    assert torch.equal(plain(x), adapted(x))
    assert not torch.equal(adapted.domain_hidden.weight[0], adapted.domain_hidden.weight[1])


@pytest.mark.parametrize("kind", KINDS)
def test_a_common_state_spreads_with_its_second_head(kind: type[AdversarialNetwork]) -> None:
    one = fresh_adversarial(kind, SMALL, 5, [0])
    three = one.pick([0, 0, 0])
    assert three.domain_hidden.weight.shape[0] == 3
    assert all(torch.equal(v[2:], one.state_dict()[k]) for k, v in three.state_dict().items())


@pytest.mark.parametrize("kind", KINDS)
def test_adversarial_training_hides_the_domain_from_a_fresh_judge(
    kind: type[AdversarialNetwork],
) -> None:
    """A judge fitted to the finished features tells the domains apart less well, on average."""
    x, y, public, _ = two_domains(300, 1)
    agents, told = range(6), {}
    for strength in (0.0, 1.0):
        network = fresh_adversarial(kind, SMALL, 0, agents)
        recipe = StackRecipe(400, 32, 1e-2, public_batch=32)
        train(network, [(x, y)] * 6, adversarial(0.0, strength), recipe, 0, agents, public)
        with torch.no_grad():
            both = torch.from_numpy(np.concatenate([x, public]))[None]
            features = network.features(both).double().numpy()
        told[strength] = np.mean([_judged(own, np.repeat([-1.0, 1.0], 300)) for own in features])
    assert told[0.0] > 0.9
    assert told[1.0] < told[0.0] - 0.1


def _judged(features: npt.NDArray[np.float64], domain: npt.NDArray[np.float64]) -> float:
    """How often a least-squares judge, fitted on even rows, is right on odd ones."""
    wide = np.hstack([features, np.ones((len(features), 1))])
    weights = np.linalg.lstsq(wide[::2], domain[::2], rcond=None)[0]
    return float((np.sign(wide[1::2] @ weights) == domain[1::2]).mean())


def test_training_is_the_same_twice_and_leaves_global_randomness_alone() -> None:
    x, y, public, _ = two_domains(60, 3)
    before = torch.get_rng_state()

    def once() -> FloatArray:
        def start(agents: Sequence[int]) -> ConditionalNetwork:
            return fresh_adversarial(ConditionalNetwork, SMALL, 7, agents)

        recipe = StackRecipe(20, 8, 1e-2, public_batch=8)
        loss = adversarial(0.05, 0.3)
        chunks = train_agents(start, [(x, y)] * 3, loss, recipe, 7, public=public)
        return predict_scores(chunks, public)

    assert np.array_equal(once(), once())
    assert torch.equal(before, torch.get_rng_state())


def test_adaptation_without_public_points_is_refused() -> None:
    network = fresh_adversarial(AdversarialNetwork, SMALL, 0, [0, 1])
    with pytest.raises(ValueError, match="public_batch"):
        adversarial(0.0, 1.0)(network, batch_of(0, 0.5, public=0))
    with pytest.raises(ValueError, match="negative"):
        adversarial(0.0, -1.0)


def test_ink_is_bright_on_dark_whatever_the_polarity_and_contrast() -> None:
    digits = load_embedded().x[::250].reshape(-1, 28, 28)
    shown = ink(digits)
    assert ((shown >= 0) & (shown <= 1)).all()
    for grey in (0.6 - 0.3 * digits, 0.2 + 0.1 * digits):
        assert np.abs(ink(grey.astype(np.float32)) - shown).max() < 1e-3
    assert shown[:, [0, -1]].max() < 0.05
    assert np.corrcoef(shown.ravel(), digits.ravel())[0, 1] > 0.95


def test_ink_takes_each_image_by_itself_and_blank_ones_too() -> None:
    digits = load_embedded().x[::500].reshape(-1, 28, 28)
    assert np.array_equal(ink(digits)[3:4], ink(digits[3:4]))
    assert np.isfinite(ink(np.full((2, 16, 16), 0.5, dtype=np.float32))).all()
    assert ink(digits[:0]).shape == (0, 28, 28)
    with pytest.raises(ValueError, match="grey images"):
        ink(np.zeros((2, 3, 8, 8), dtype=np.float32))


def test_statistics_bring_two_domains_together_without_blowing_up() -> None:
    draws = np.random.default_rng(0)
    here = draws.normal(0, 1, (500, 4)).astype(np.float32)
    there = (draws.normal(0, 1, (500, 4)) * [1, 2, 0.5, 1] + [0, 3, -2, 5]).astype(np.float32)
    here[:, 3] = 0
    one, other = DomainStatistics.of(here).apply(here), DomainStatistics.of(there).apply(there)
    assert np.abs(one.mean(axis=0) - other.mean(axis=0)).max() < 1e-3
    assert other.std(axis=0).max() < 1
    assert np.isfinite(DomainStatistics.of(here).apply(there)).all()
    assert np.abs(DomainStatistics.of(here).apply(there)).max() < 50
    with pytest.raises(ValueError, match="at least one"):
        DomainStatistics.of(here[:0])


def test_neighbours_are_the_nearest_others() -> None:
    points = np.random.default_rng(0).normal(size=(700, 5)).astype(np.float32)
    near = neighbours(points, 4)
    distances = ((points[:, None].astype(np.float64) - points[None]) ** 2).sum(axis=2)
    np.fill_diagonal(distances, np.inf)
    assert np.array_equal(near, np.argsort(distances, axis=1)[:, :4])
    with pytest.raises(ValueError, match="neighbours"):
        neighbours(points[:4], 4)


def test_smoothing_mends_stray_scores_inside_a_cluster() -> None:
    draws = np.random.default_rng(1)
    y = np.repeat([0, 1], 100)
    points = (draws.normal(0, 0.3, (200, 2)) + 4 * y[:, None]).astype(np.float32)
    said = np.where(draws.random((3, 200)) < 0.25, 1 - y, y)
    scores = np.eye(2, dtype=np.float32)[said]
    mended = smooth(scores, neighbours(points))
    assert (mended.argmax(axis=2) != y).sum() < (said != y).sum() / 4
    assert np.allclose(mended.sum(axis=2), 1, atol=1e-5)


def test_smoothing_reaches_one_neighbour_further_each_round() -> None:
    """On a chain in which each row has the one before it as its neighbour."""
    near = np.array([[0], [0], [1], [2]])
    scores = np.eye(2, dtype=np.float32)[[[0, 1, 1, 1]]]
    for rounds in (1, 2, 3):
        reached = smooth(scores, near, share=0.5, rounds=rounds)[0, :, 0] > 0
        assert reached.tolist() == [place <= rounds for place in range(4)]


def test_smoothing_keeps_agents_apart() -> None:
    """An agent's ballot may depend on its own scores only."""
    draws = np.random.default_rng(2)
    near = neighbours(draws.normal(size=(50, 3)).astype(np.float32), 5)
    scores = draws.random((4, 50, 3)).astype(np.float32)
    assert np.array_equal(smooth(scores, near)[2:3], smooth(scores[2:3], near))
    assert np.array_equal(smooth(scores, near, share=0.0), scores)
    with pytest.raises(ValueError, match="rows"):
        smooth(scores[:, :49], near)
    with pytest.raises(ValueError, match="share"):
        smooth(scores, near, share=1.0)
