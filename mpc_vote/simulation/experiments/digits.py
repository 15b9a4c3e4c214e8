"""Digits of other domains, SVHN's and MNIST's, to USPS: the paper's Table 1, first part.

The paper brings all pictures to one size. Framed as MNIST's digits are (and SVHN's as bright ink on
a dark ground), USPS's pixels are far closer to the agents' before anything is learnt: all methods
get that, and rows without it show what it brings to ours.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from mpc_vote.data import sources
from mpc_vote.data.dataset import Dataset
from mpc_vote.data.images import frame_like_mnist, resize
from mpc_vote.data.partition import Domain, Partition, split_domains, split_public
from mpc_vote.learning.baselines.fedavg import IMAGES, PRIVATE_IMAGES
from mpc_vote.learning.voters.domain_adaptation import ink
from mpc_vote.privacy.mechanisms import Level
from mpc_vote.simulation.agents import AdaptedAgents, AlwaysVotingAgents
from mpc_vote.simulation.experiment import Arm, Data, Experiment, PaperFigure, data_folder
from mpc_vote.simulation.experiments.mnist import (
    IMAGE,
    dp_fed_avg_of_features,
    dp_fed_sgd_of_features,
)
from mpc_vote.simulation.experiments.students import student_arms, with_default
from mpc_vote.simulation.gradient_methods import FedAvgConfig, NeuralModel, averaging, descent
from mpc_vote.simulation.methods import AeConfig, QueryConfig, ae_dpfl

MNIST_AGENTS, MNIST_SIZE, SVHN_AGENTS, SVHN_SIZE, PUBLIC = 60, 1000, 140, 3000, 3000

# Epsilon 2 at delta 1e-3, exactly accounted, which is the paper's 2.8 by the simple conversion; and
# its 3.6; and epsilon 1.
STRICT = QueryConfig(queries=150, sigma=17.75)
LOOSE = QueryConfig(queries=150, sigma=14.16)
STRICTER = QueryConfig(queries=150, sigma=31.64)
# The paper's 500 queries with its noise.
PAPERS = QueryConfig(queries=500, sigma=30.0)
# What an exact account says of the paper's 3.7 and 3.6.
PAPERS_EPSILON, PAPERS_EPSILON_DA = 2.713, 2.633

ADAPTED, VOTES = "AE-DPFL+DA", "AE-DPFL"
AVERAGED, AVERAGED_DA = "DP-FedAvg", "DP-FedAvg+DA"
LINEAR = "DP-FedAvg, linear on our features"


@dataclass(frozen=True)
class DigitsSetting:
    """Whether pictures are framed as MNIST's are, or only brought to one size."""

    framed: bool = True


def load(root: Path | None) -> Data:
    folder = data_folder(root)
    mnist, _ = sources.mnist(folder)
    train, test = sources.usps(folder)
    x, y = np.concatenate([train.x, test.x]), np.concatenate([train.y, test.y])
    return {
        "mnist": mnist,
        "svhn": sources.svhn(folder),
        "usps": Dataset("usps", x, y, train.classes),
    }


def split(data: Data, frame: DigitsSetting, seed: int) -> Partition:
    """140 agents with SVHN (3,000 images each where there are as many), 60 with MNIST."""
    svhn, usps = resize(data["svhn"]), data["usps"]
    if frame.framed:
        svhn, usps = replace(svhn, x=ink(svhn.x)), frame_like_mnist(usps)
    else:
        usps = resize(usps)
    svhn_size = min(SVHN_SIZE, len(svhn) // SVHN_AGENTS)
    private = split_domains(
        (
            Domain(svhn, SVHN_AGENTS, svhn_size),
            Domain(data["mnist"], MNIST_AGENTS, MNIST_SIZE),
        ),
        seed,
    )
    return Partition(private, *split_public(usps, PUBLIC, seed))


def experiment() -> Experiment:
    """SVHN and MNIST to USPS, 200 agents, with and without domain adaptation"""
    as_in_paper = AdaptedAgents(conditional=False, even=False, strength=0.1)
    apart = DigitsSetting(framed=False)
    fed_avg = FedAvgConfig(IMAGE, NeuralModel(16), IMAGES)
    adapting = replace(IMAGES, local=replace(IMAGES.local, public_batch=32))
    private = FedAvgConfig(IMAGE, NeuralModel(4), PRIVATE_IMAGES, 2.0)
    private_adapting = replace(PRIVATE_IMAGES, local=replace(PRIVATE_IMAGES.local, public_batch=16))
    private_da = replace(private, model=NeuralModel(4, reversal=0.1), plan=private_adapting)
    return Experiment(
        name="digits",
        title="SVHN and MNIST to USPS, 200 agents",
        load=load,
        split=split,
        arms=(
            *student_arms(
                "AE-DPFL+DA, epsilon 2",
                ADAPTED,
                AeConfig(STRICT, AdaptedAgents()),
                PaperFigure(92.5, 0.2, 2.8),
            ),
            *student_arms("AE-DPFL+DA, epsilon 1", ADAPTED, AeConfig(STRICTER, AdaptedAgents())),
            Arm(
                "AE-DPFL+DA, plain gradient reversal, epsilon 2",
                ae_dpfl,
                with_default(AeConfig(STRICT, as_in_paper)),
            ),
            *(
                Arm(
                    name,
                    ae_dpfl,
                    with_default(AeConfig(labelling, AlwaysVotingAgents())),
                    line=VOTES,
                )
                for name, labelling in (
                    ("AE-DPFL, epsilon 2", STRICT),
                    ("AE-DPFL, epsilon 1", STRICTER),
                )
            ),
            Arm(
                "AE-DPFL, the paper's epsilon",
                ae_dpfl,
                with_default(AeConfig(LOOSE, AlwaysVotingAgents())),
                PaperFigure(83.8, 0.2, 3.6),
                line=VOTES,
            ),
            Arm(
                "AE-DPFL+DA, the paper's setting",
                ae_dpfl,
                with_default(AeConfig(PAPERS, AdaptedAgents())),
            ),
            Arm(
                "AE-DPFL, the paper's setting",
                ae_dpfl,
                with_default(AeConfig(replace(PAPERS, sigma=25.0), AlwaysVotingAgents())),
            ),
            Arm(
                "AE-DPFL+DA, not framed, epsilon 2",
                ae_dpfl,
                with_default(AeConfig(STRICT, AdaptedAgents())),
                setting=apart,
            ),
            Arm(
                "AE-DPFL, not framed, epsilon 2",
                ae_dpfl,
                with_default(AeConfig(STRICT, AlwaysVotingAgents())),
                setting=apart,
            ),
            Arm("DP-FedAvg, epsilon 2", averaging, private, line=AVERAGED),
            Arm(
                "DP-FedAvg, the paper's epsilon",
                averaging,
                replace(private, epsilon=PAPERS_EPSILON),
                PaperFigure(76.3, 0.3, 3.7),
                line=AVERAGED,
            ),
            Arm("DP-FedAvg+DA, epsilon 2", averaging, private_da, line=AVERAGED_DA),
            Arm(
                "DP-FedAvg+DA, the paper's epsilon",
                averaging,
                replace(private_da, epsilon=PAPERS_EPSILON_DA),
                PaperFigure(71.2, 0.4, 3.6),
                line=AVERAGED_DA,
            ),
            *(
                Arm(
                    f"{LINEAR}, epsilon {epsilon:g}",
                    averaging,
                    dp_fed_avg_of_features(epsilon),
                    line=LINEAR,
                )
                for epsilon in (2.0, 1.0)
            ),
            *(
                Arm(
                    f"DP-FedSGD, linear on our features, instance-level epsilon {epsilon:g}",
                    descent,
                    dp_fed_sgd_of_features(epsilon),
                )
                for epsilon in (2.0, 1.0)
            ),
            Arm("FedAvg", averaging, fed_avg, PaperFigure(87.6, 0.1), line="FedAvg, not private"),
            Arm(
                "FedAvg+DA",
                averaging,
                replace(fed_avg, model=NeuralModel(16, reversal=0.1), plan=adapting),
                PaperFigure(86.9, 0.1),
                line="FedAvg+DA, not private",
            ),
        ),
        level=Level.AGENT,
        delta=1e-3,
        setting=DigitsSetting(),
        notes=(
            "3,000 of USPS's 9,298 images are public, the others test the global model.",
            "DP-FedSGD protects single images, which is less than the others do: an agent's images "
            "together have no bound.",
            "Where the standard SVHN is not at hand, its agents hold what a stand-in of 23,060 "
            "grey digits gives each of 140: 164 images instead of 3,000. Figures on it are not "
            "comparable with the paper's.",
        ),
    )
