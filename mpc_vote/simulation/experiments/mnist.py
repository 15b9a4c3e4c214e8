"""MNIST as several experiments use it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from mpc_vote.data import sources
from mpc_vote.data.assignment import Deal, deal_by_class, deal_iid, deal_repeatedly
from mpc_vote.data.partition import Partition, hand_out, split_public
from mpc_vote.learning.baselines.dp_sgd import PRIVATE_RECORDS
from mpc_vote.learning.baselines.fedavg import IMAGES, PRIVATE_FEATURES, PRIVATE_IMAGES
from mpc_vote.simulation.experiment import Data, data_folder
from mpc_vote.simulation.feature_pipeline import FeaturePipeline
from mpc_vote.simulation.gradient_methods import (
    DpFedSgdConfig,
    FedAvgConfig,
    LinearModel,
    NeuralModel,
)

POINTS = 60_000

IMAGE = FeaturePipeline()
FEW_STROKES, FEWER_STROKES = FeaturePipeline("strokes", 60), FeaturePipeline("strokes", 15)

FED_AVG = FedAvgConfig(IMAGE, NeuralModel(16), IMAGES)


def dp_fed_avg_of_images(epsilon: float) -> FedAvgConfig:
    """DP-FedAvg of a convolutional network, as in the paper."""
    return FedAvgConfig(IMAGE, NeuralModel(4), PRIVATE_IMAGES, epsilon)


def dp_fed_avg_of_features(epsilon: float) -> FedAvgConfig:
    """DP-FedAvg of a linear model on the features that our agents see.

    Tuned on a split of its own: the more noise, the fewer parameters and rounds it tolerates.
    """
    features, plan = FEW_STROKES, PRIVATE_FEATURES
    if epsilon <= 1:
        features, plan = FEWER_STROKES, replace(PRIVATE_FEATURES, rounds=10, clip=6.0)
    if epsilon <= 0.5:
        plan = replace(plan, clip=3.0, local=replace(plan.local, rate=10.0))
    return FedAvgConfig(features, LinearModel(), plan, epsilon)


def dp_fed_sgd_of_features(epsilon: float) -> DpFedSgdConfig:
    """DP-FedSGD of the same; the recipe is that of other pictures, not tuned for these."""
    return DpFedSgdConfig(FEW_STROKES, LinearModel(), PRIVATE_RECORDS, epsilon, 1e-3)


@dataclass(frozen=True)
class MnistSetting:
    """So many agents, each with `size` images of `digits` digits (None: any), and so many public
    test images; the other test images test the global model."""

    agents: int = 100
    size: int = 600
    digits: int | None = 6
    public: int = 3000


def load(root: Path | None) -> Data:
    train, test = sources.mnist(data_folder(root))
    return {"train": train, "test": test}


def split(data: Data, division: MnistSetting, seed: int) -> Partition:
    """Where the images do not suffice for all agents they are dealt several times, as the paper
    does for more than 100."""
    train = data["train"]

    def deal(agents: int, own_seed: int) -> Deal:
        if division.digits is None:
            return deal_iid(len(train), agents, division.size, own_seed)
        return deal_by_class(train.y, agents, division.size, division.digits, own_seed)

    at_once = len(train) // division.size
    if division.agents <= at_once:
        dealt = deal(division.agents, seed)
    else:
        dealt = deal_repeatedly(deal, division.agents, at_once, seed)
    return Partition(hand_out(train, dealt), *split_public(data["test"], division.public, seed))
