"""Bytes per agent: votes on a few points against models that go to and fro."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from mpc_vote.learning.baselines.fedavg import FEATURES, IMAGES
from mpc_vote.privacy.mechanisms import Level
from mpc_vote.simulation.agents import AlwaysVotingAgents
from mpc_vote.simulation.experiment import Arm, Experiment, Method
from mpc_vote.simulation.experiments.mnist import (
    FED_AVG,
    FEW_STROKES,
    MnistSetting,
    dp_fed_avg_of_features,
    dp_fed_avg_of_images,
    load,
    split,
)
from mpc_vote.simulation.gradient_methods import FedAvgConfig, LinearModel, averaging
from mpc_vote.simulation.methods import AeConfig, QueryConfig, ae_dpfl

# Each at epsilon 2, delta 1e-3, exactly accounted.
LABELLINGS = (
    QueryConfig(queries=25, sigma=7.24),
    QueryConfig(queries=50, sigma=10.23),
    QueryConfig(queries=100, sigma=14.5),
    QueryConfig(queries=200, sigma=20.45),
)
ROUNDS = (5, 10, 20, 40, 60)
BOTH_WAYS = ("sent", "received")


def experiment() -> Experiment:
    """MNIST, non-IID: bytes per agent against FedAvg's"""
    votes = [
        Arm(
            f"AE-DPFL, {one.queries} queries, epsilon 2",
            ae_dpfl,
            AeConfig(one),
            line="AE-DPFL, 25 to 200 queries, epsilon 2",
            counted=BOTH_WAYS,
        )
        for one in LABELLINGS
    ]
    always = AeConfig(LABELLINGS[2], AlwaysVotingAgents())
    models = [
        Arm(
            f"FedAvg, {rounds} rounds",
            averaging,
            replace(FED_AVG, plan=replace(IMAGES, rounds=rounds)),
            line="FedAvg, 5 to 60 rounds, not private",
            counted=BOTH_WAYS,
        )
        for rounds in ROUNDS
    ]
    linear = FedAvgConfig(FEW_STROKES, LinearModel(), FEATURES)
    return Experiment(
        name="communication",
        title="MNIST, non-IID: bytes that an agent sends and receives in all",
        load=load,
        split=split,
        arms=(
            *votes,
            _alone("AE-DPFL, 100 queries, no abstention, epsilon 2", ae_dpfl, always),
            *models,
            _alone("FedAvg, linear on our features", averaging, linear),
            _alone("DP-FedAvg, epsilon 2", averaging, dp_fed_avg_of_images(2.0)),
            _alone(
                "DP-FedAvg, linear on our features, epsilon 2",
                averaging,
                dp_fed_avg_of_features(2.0),
            ),
        ),
        level=Level.AGENT,
        delta=1e-3,
        setting=MnistSetting(),
        notes=(
            "A vote is sent as secret shares to a committee of two; a difference of models is "
            "counted as plain 32-bit floats, to which secure aggregation would add.",
            "Received are models, or public points as 32-bit floats: those asked about, and all "
            "3,000 (9.4 MB) where agents train with them or the features are fitted to them.",
            "An agent takes part in a tenth of FedAvg's rounds on average.",
        ),
        axis="bytes that an agent sends and receives",
        shown=("sent", "received"),
    )


def _alone(name: str, method: Method, config: Any) -> Arm:
    """A method with one point in the picture."""
    return Arm(name, method, config, line=name, counted=BOTH_WAYS)
