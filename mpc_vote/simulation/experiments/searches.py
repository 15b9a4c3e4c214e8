"""How the settings of the table and of the messages were chosen: on validation splits, not tests.

Each row is one setting that was tried. Test records of `table` and `text` are in none of the
splits.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from mpc_vote.learning.baselines.dp_sgd import DpSgdRecipe
from mpc_vote.learning.baselines.fedavg import DpFedAvgRecipe
from mpc_vote.learning.nets.stacked_training import StackRecipe
from mpc_vote.simulation.agents import AlwaysVotingAgents
from mpc_vote.simulation.experiment import Arm, Experiment
from mpc_vote.simulation.experiments import clinical_table, messages
from mpc_vote.simulation.feature_pipeline import FeaturePipeline
from mpc_vote.simulation.gradient_methods import (
    DpFedSgdConfig,
    FedAvgConfig,
    LinearModel,
    averaging,
    descent,
)
from mpc_vote.simulation.methods import (
    AeConfig,
    KnnConfig,
    NamedStudent,
    QueryConfig,
    ae_dpfl,
    knn_dpfl,
)

# For 100 queries, at epsilon 2 and 1.
_TABLE_SIGMAS = {2.0: 24.61, 1.0: 45.2}
_TEXT_SIGMAS = {2.0: 14.5, 1.0: 25.8}

_NOTES = ("Validation records, of which none tests: see `setting` in the JSON file.",)


def table() -> Experiment:
    """What the settings of `table` were chosen from, on validation splits"""
    return replace(
        clinical_table.experiment(),
        name="table-search",
        title="Right heart catheterization study: settings tried on validation splits",
        arms=(*_neighbours(), *_descents()),
        setting=clinical_table.TableSetting(validation=True),
        notes=_NOTES,
    )


def text() -> Experiment:
    """What the settings of `text` were chosen from, on validation splits"""
    return replace(
        messages.experiment(),
        name="text-search",
        title="SMS Spam Collection: settings tried on validation splits",
        arms=(*_models(), *_averages(), *_message_descents()),
        setting=messages.MessageSetting(validation=True),
        notes=_NOTES,
    )


def _asking(queries: int, sigma: float, features: FeaturePipeline) -> QueryConfig:
    """So many queries at the epsilon that 100 of them have with `sigma`."""
    return QueryConfig(queries, sigma * math.sqrt(queries / 100), features=features)


def _neighbours() -> Iterator[Arm]:
    for (epsilon, sigma), queries, share, dimensions in product(
        _TABLE_SIGMAS.items(),
        (100, 200, 400, 800),
        (0.01, 0.02, 0.05, 0.1, 0.2),
        (None, 20),
    ):
        labelling = _asking(queries, sigma, clinical_table.AS_IT_IS)
        features = FeaturePipeline(dimensions=dimensions)
        config = KnnConfig(labelling, share, features, NamedStudent())
        where = "all features" if dimensions is None else f"{dimensions} directions"
        name = f"kNN-DPFL, epsilon {epsilon:g}, {queries} queries, k {share:.0%} in {where}"
        yield Arm(name, knn_dpfl, config)


def _descents() -> Iterator[Arm]:
    for epsilon, steps, sampling, rate in product(
        _TABLE_SIGMAS, (50, 200, 800), (0.1, 0.3), (0.3, 1.0, 3.0, 10.0)
    ):
        recipe = DpSgdRecipe(steps, sampling, rate, clip=1.0)
        config = DpFedSgdConfig(
            clinical_table.AS_IT_IS, LinearModel(), recipe, epsilon, clinical_table.DELTA
        )
        name = f"DP-FedSGD, epsilon {epsilon:g}, {steps} steps of {sampling:.0%}, rate {rate:g}"
        yield Arm(name, descent, config)


def _models() -> Iterator[Arm]:
    for (epsilon, sigma), queries, dimensions, steps in product(
        _TEXT_SIGMAS.items(), (100, 200, 400, 800), (5, 10, 15, 30), (100, 400)
    ):
        features = FeaturePipeline("unit", dimensions)
        agents = AlwaysVotingAgents(features, replace(messages.AGENTS.recipe, steps=steps))
        config = AeConfig(_asking(queries, sigma, messages.AS_IT_IS), agents, NamedStudent())
        how = f"{queries} queries, {dimensions} directions, {steps} steps"
        yield Arm(f"AE-DPFL, epsilon {epsilon:g}, {how}", ae_dpfl, config)


def _averages() -> Iterator[Arm]:
    for epsilon, rounds, rate, clip in product(
        _TEXT_SIGMAS, (10, 40), (3.0, 10.0, 30.0, 100.0), (0.3, 1.0, 3.0)
    ):
        local = StackRecipe(steps=20, batch=32, rate=rate, adam=False)
        recipe = DpFedAvgRecipe(rounds, local, clip=clip)
        config = FedAvgConfig(messages.FEW, LinearModel(), recipe, epsilon)
        name = f"DP-FedAvg, epsilon {epsilon:g}, {rounds} rounds, rate {rate:g}, clip {clip:g}"
        yield Arm(name, averaging, config)


def _message_descents() -> Iterator[Arm]:
    for epsilon, steps, sampling, rate in product(
        _TEXT_SIGMAS, (30, 100), (0.3, 1.0), (3.0, 10.0, 30.0)
    ):
        recipe = DpSgdRecipe(steps, sampling, rate, clip=0.5)
        config = DpFedSgdConfig(messages.FEW, LinearModel(), recipe, epsilon, messages.DELTA)
        name = f"DP-FedSGD, epsilon {epsilon:g}, {steps} steps of {sampling:.0%}, rate {rate:g}"
        yield Arm(name, descent, config)
