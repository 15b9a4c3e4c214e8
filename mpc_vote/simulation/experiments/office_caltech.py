"""Office-Caltech, each of the four domains as the server in turn: the paper's Table 2.

Every domain is one agent; the server's is split into public and test pictures. Pictures are seen
through fixed backbones: ResNet-50, MobileNetV2 where the paper has AlexNet, and the SURF histograms
that came with the pictures.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mpc_vote.data import sources
from mpc_vote.data.partition import Partition, split_public
from mpc_vote.data.sources import OFFICE_DOMAINS
from mpc_vote.learning.baselines.dp_sgd import PRIVATE_RECORDS
from mpc_vote.learning.baselines.fedavg import FEATURES_OF_FEW, DpFedAvgRecipe
from mpc_vote.learning.nets.stacked_training import StackRecipe
from mpc_vote.learning.students.prototypes import PrototypeRecipe
from mpc_vote.privacy.mechanisms import Level
from mpc_vote.simulation.agents import AlwaysVotingAgents
from mpc_vote.simulation.experiment import (
    Arm,
    Data,
    Experiment,
    Method,
    PaperFigure,
    data_folder,
)
from mpc_vote.simulation.experiments.students import student_arms, with_default
from mpc_vote.simulation.feature_pipeline import FeaturePipeline
from mpc_vote.simulation.gradient_methods import (
    DpFedSgdConfig,
    FedAvgConfig,
    LinearModel,
    averaging,
    descent,
)
from mpc_vote.simulation.methods import (
    KnnConfig,
    PateConfig,
    PrivateKnnConfig,
    QueryConfig,
    knn_dpfl,
    pate,
    private_knn,
)

BACKBONES = {"resnet50": "ResNet-50", "mbv2": "MobileNetV2", "surf": "SURF"}
PUBLIC_SHARE, DELTA = 0.7, 1e-4

RAW, UNIT, FEW = FeaturePipeline("raw"), FeaturePipeline("unit"), FeaturePipeline("unit", 30)
# Instance-level epsilon 1 at delta 1e-4, exactly accounted; and the noise for epsilon 2.
STRICT = QueryConfig(
    queries=30, sigma=24.75, features=FeaturePipeline("unit", 30, unit_length=True)
)
SIGMA_AT_2 = 13.48

# The paper's rows: what it reports, and the sigma or the exact epsilon that is its epsilon by the
# simple conversion.
_PAPERS_KNN = {
    "dslr": (17.5, PaperFigure(91.9, 0.2, 2.0)),
    "webcam": (12.75, PaperFigure(86.3, 0.4, 2.8)),
}
_PAPERS_FED_SGD = {
    "dslr": (3.047, PaperFigure(42.7, 0.5, 3.9)),
    "webcam": (3.131, PaperFigure(25.8, 0.6, 4.0)),
}
_PAPERS_FED_AVG = {"dslr": PaperFigure(97.8, 0.1), "webcam": PaperFigure(96.5, 0.1)}


@dataclass(frozen=True)
class OfficeSetting:
    """The domain that the server holds, and the backbone that all see through."""

    domain: str
    backbone: str = "resnet50"


def load(root: Path | None) -> Data:
    folder = data_folder(root)
    return {
        f"{backbone}/{domain}": dataset
        for backbone in BACKBONES
        for domain, dataset in sources.office_caltech(folder, backbone).items()
    }


def split(data: Data, server: OfficeSetting, seed: int) -> Partition:
    domains = {domain: data[f"{server.backbone}/{domain}"] for domain in OFFICE_DOMAINS}
    own = domains.pop(server.domain)
    return Partition(
        tuple(domains.values()), *split_public(own, round(PUBLIC_SHARE * len(own)), seed)
    )


def experiment() -> Experiment:
    """Office-Caltech, 3 agents, each domain as the server in turn, strong and weak backbones"""
    return Experiment(
        name="office-caltech",
        title="Office-Caltech, 3 agents with a domain each, the fourth is the server's",
        load=load,
        split=split,
        arms=(*_votes(), *_parts(), *_gradients(), *_pooled()),
        level=Level.INSTANCE,
        delta=DELTA,
        notes=(
            "The paper states no delta for this table; 1e-4 is that of its other one.",
            "The paper's weak backbone is AlexNet, whose weights were not at hand.",
            "kNN-DPFL makes an agent's k a share of its number of pictures, and DP-FedSGD divides "
            "by the number of all: both take these numbers as public.",
            "DP-FedAvg protects whole domains, which is more than the others do; with three "
            "of them there is nothing left to learn.",
            "Settings were found on other splits of the same pictures; the test sets are small: 47 "
            "pictures of dslr, 89 of webcam.",
        ),
    )


def _votes() -> Iterator[Arm]:
    knn = with_default(KnnConfig(STRICT, 0.1, UNIT))
    looser = replace(knn, labelling=replace(STRICT, sigma=SIGMA_AT_2))
    for domain in OFFICE_DOMAINS:
        for epsilon, config in ((2, looser), (1, knn)):
            name = f"{domain}, ResNet-50: kNN-DPFL, epsilon {epsilon}"
            setting = OfficeSetting(domain)
            yield from student_arms(name, "kNN-DPFL", config, None, setting, domain)
    for backbone in ("mbv2", "surf"):
        for domain in OFFICE_DOMAINS:
            name = f"{domain}, {BACKBONES[backbone]}: kNN-DPFL, epsilon 1"
            yield Arm(name, knn_dpfl, knn, setting=OfficeSetting(domain, backbone))
    for domain, (sigma, paper) in _PAPERS_KNN.items():
        own = replace(knn, labelling=replace(STRICT, sigma=sigma))
        yield _strong(domain, "kNN-DPFL", "the paper's epsilon", knn_dpfl, own, paper)


def _parts() -> Iterator[Arm]:
    """What each part of the vote brings, at one epsilon."""
    papers_way = KnnConfig(
        # The same epsilon for all 206 public pictures of webcam.
        QueryConfig(queries=206, sigma=64.9, selection="random", features=RAW),
        0.05,
        RAW,
        PrototypeRecipe(rounds=0),
    )
    few_asked = replace(papers_way, labelling=replace(STRICT, selection="random", features=RAW))
    unit = replace(few_asked, k_share=0.1, features=UNIT)
    clusters = replace(unit, labelling=STRICT)
    parts = (
        ("the paper's way: all are asked, neighbours in features as they are", papers_way),
        ("+ only 30 are asked, with less noise", few_asked),
        ("+ neighbours by direction, k 10 % instead of 5", unit),
        ("+ representatives are asked", clusters),
    )
    for name, part in parts:
        yield Arm(f"webcam, ResNet-50: {name}", knn_dpfl, part, None, OfficeSetting("webcam"))


def _gradients() -> Iterator[Arm]:
    gradient = DpFedSgdConfig(FEW, LinearModel(), PRIVATE_RECORDS, 1.0, DELTA)
    for domain in OFFICE_DOMAINS:
        yield _strong(domain, "DP-FedSGD, linear", "epsilon 1", descent, gradient)
        twice = replace(gradient, epsilon=2.0)
        yield _strong(domain, "DP-FedSGD, linear", "epsilon 2", descent, twice)
    for domain, (epsilon, paper) in _PAPERS_FED_SGD.items():
        own_epsilon = replace(gradient, epsilon=epsilon)
        called = "the paper's epsilon"
        yield _strong(domain, "DP-FedSGD, linear", called, descent, own_epsilon, paper)
    domains = DpFedAvgRecipe(FEATURES_OF_FEW.rounds, FEATURES_OF_FEW.local, clip=0.5)
    averaged = FedAvgConfig(FEW, LinearModel(), domains, 2.0, DELTA)
    for domain in OFFICE_DOMAINS:
        name = f"{domain}, ResNet-50: DP-FedAvg, linear, agent-level epsilon 2"
        yield Arm(name, averaging, averaged, setting=OfficeSetting(domain))
    free = FedAvgConfig(FEW, LinearModel(), FEATURES_OF_FEW)
    for domain in OFFICE_DOMAINS:
        yield _strong(domain, "FedAvg, linear", "", averaging, free, _PAPERS_FED_AVG.get(domain))


def _pooled() -> Iterator[Arm]:
    """Methods that trust a curator with all records."""
    teachers = AlwaysVotingAgents(FEW, StackRecipe(steps=100, batch=16, rate=5e-3, decay=0.1))
    partitioned = with_default(PateConfig(STRICT, 150, teachers))
    sampled = with_default(PrivateKnnConfig(STRICT, 150, 1.0, UNIT))
    for domain in ("dslr", "webcam"):
        name, setting = f"{domain}, ResNet-50", OfficeSetting(domain)
        yield Arm(f"{name}: PATE, records pooled", pate, partitioned, None, setting)
        yield Arm(f"{name}: Private-kNN, records pooled", private_knn, sampled, None, setting)


def _strong(
    domain: str,
    line: str,
    called: str,
    method: Method,
    config: Any,
    paper: PaperFigure | None = None,
) -> Arm:
    """A row with the strong backbone, which the picture shows: a panel for each domain."""
    name = f"{domain}, ResNet-50: {line}" + (f", {called}" if called else "")
    return Arm(name, method, config, paper, OfficeSetting(domain), line, domain)
