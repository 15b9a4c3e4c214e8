"""The baselines end to end, small, on the embedded digits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mpc_vote.data.dataset import Dataset
from mpc_vote.data.partition import Partition
from mpc_vote.learning.baselines.dp_sgd import DpSgdRecipe
from mpc_vote.learning.baselines.fedavg import DpFedAvgRecipe, FedAvgRecipe
from mpc_vote.learning.nets.stacked_training import StackRecipe
from mpc_vote.privacy import Level, epsilons
from mpc_vote.simulation.experiment import ArmContext, SeedResult
from mpc_vote.simulation.feature_pipeline import FeaturePipeline
from mpc_vote.simulation.gradient_methods import (
    DpFedSgdConfig,
    FedAvgConfig,
    LinearModel,
    Model,
    NeuralModel,
    averaging,
    descent,
)

FEW = FeaturePipeline("strokes", 30)
LOCAL = StackRecipe(steps=10, batch=16, rate=10.0, adam=False)


def _epsilon(outcome: SeedResult, level: Level, delta: float) -> float:
    found = epsilons(outcome.mechanisms, level, delta).exact
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("features", "model", "rate"),
    [
        (FEW, LinearModel(), 10.0),
        (FeaturePipeline("strokes"), NeuralModel(32), 0.1),
        (FeaturePipeline(), NeuralModel(8), 0.1),
        (FeaturePipeline("strokes"), NeuralModel(32, reversal=0.1), 0.1),
    ],
)
def test_fedavg_learns_all_digits_with_any_model(
    context: ArmContext, digits: Partition, features: FeaturePipeline, model: Model, rate: float
) -> None:
    local = replace(LOCAL, rate=rate, public_batch=8 if model == NeuralModel(32, 0.1) else 0)
    config = FedAvgConfig(features, model, FedAvgRecipe(8, local))
    found = averaging(context, digits, config, 0)
    assert found.accuracy > 0.85
    assert not found.mechanisms
    assert averaging(context, digits, config, 0) == found


def test_dp_fed_avg_keeps_its_epsilon_and_pays_for_it(
    context: ArmContext, digits: Partition
) -> None:
    plan = DpFedAvgRecipe(8, LOCAL, clip=3.0)
    private = averaging(context, digits, FedAvgConfig(FEW, LinearModel(), plan, epsilon=8.0), 0)
    assert 7.9 < _epsilon(private, Level.AGENT, 1e-3) <= 8
    free = averaging(context, digits, FedAvgConfig(FEW, LinearModel(), FedAvgRecipe(8, LOCAL)), 0)
    assert 0.3 < private.accuracy < free.accuracy, "twelve agents are few"
    parameters = 30 * 10 + 10
    assert private.figures["sent"] == 8 * 4 * parameters
    assert private.figures["received"] == 8 * 4 * parameters + digits.public.x.nbytes


def test_dp_fed_sgd_keeps_its_epsilon(context: ArmContext, digits: Partition) -> None:
    plan = DpSgdRecipe(steps=30, sampling=1.0, rate=10.0, clip=0.5)
    found = descent(context, digits, DpFedSgdConfig(FEW, LinearModel(), plan, 2.0, 1e-4), 0)
    assert found.accuracy > 0.85
    assert 1.9 < _epsilon(found, Level.INSTANCE, 1e-4) <= 2


def test_attributes_are_learnt_each_by_itself(context: ArmContext, digits: Partition) -> None:
    def attributes(dataset: Dataset) -> Dataset:
        y = np.stack([dataset.y % 2, dataset.y // 5, dataset.y == 3], axis=1).astype(np.int64)
        return replace(dataset, y=y, classes=3)

    parts = tuple(attributes(part) for part in digits.private)
    marked = Partition(parts, attributes(digits.public), attributes(digits.test))
    config = FedAvgConfig(FEW, LinearModel(), FedAvgRecipe(10, LOCAL))
    most = np.mean(np.maximum(marked.test.y.mean(axis=0), 1 - marked.test.y.mean(axis=0)))
    assert averaging(context, marked, config, 0).accuracy > most + 0.1


def test_noise_without_clipping_is_refused() -> None:
    with pytest.raises(ValueError, match="plan that clips"):
        FedAvgConfig(FEW, LinearModel(), FedAvgRecipe(1, LOCAL), epsilon=1.0)
