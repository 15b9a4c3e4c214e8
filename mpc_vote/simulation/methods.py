"""The paper's methods end to end: agents vote on some public points, the server learns from them.

Each takes who holds what, a configuration and a seed, and gives an outcome; nothing else decides
about it. PATE and Private-kNN, which trust a curator with all records, are here to compare with.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np

from mpc_vote.data.dataset import FloatArray, LabelArray
from mpc_vote.data.partition import Partition
from mpc_vote.learning.baselines import centralised
from mpc_vote.learning.baselines.centralised import CentralTotals
from mpc_vote.learning.query_selection import selector
from mpc_vote.learning.students import DEFAULT, StudentOptions, find_student
from mpc_vote.learning.students.classifier import Classifier
from mpc_vote.learning.students.prototypes import PrototypeRecipe, train_prototypes
from mpc_vote.learning.students.semi_supervised import SemiSupervisedRecipe, train_semi_supervised
from mpc_vote.learning.students.supervised import train_student
from mpc_vote.learning.voters.knn import KnnVoter
from mpc_vote.simulation.agents import (
    STROKES,
    AbstainingAgents,
    AlwaysVotingAgents,
    SimulatedAgents,
    cast,
)
from mpc_vote.simulation.experiment import ArmContext, SeedResult
from mpc_vote.simulation.feature_pipeline import FeaturePipeline
from mpc_vote.simulation.vote import simulated_spec, upload_bytes, vote
from mpc_vote.voting.ballots import KNN_COUNT, ONE_HOT, IntArray
from mpc_vote.voting.spec import Spec

ALWAYS, ABSTAINING = AlwaysVotingAgents(), AbstainingAgents()


@dataclass(frozen=True)
class LabelledOnly:
    """A network that learns from the asked points alone: the paper's way."""


@dataclass(frozen=True)
class NamedStudent:
    """A student as the service trains it, by its name, with the feature map that a client names."""

    name: str = DEFAULT
    features: str = ""


StudentRecipe: TypeAlias = SemiSupervisedRecipe | PrototypeRecipe | LabelledOnly | NamedStudent


@dataclass(frozen=True)
class QueryConfig:
    """Which public points are asked about, chosen by their `features`, and with how much noise."""

    queries: int
    sigma: float
    selection: str = "clusters"
    features: FeaturePipeline = STROKES


@dataclass(frozen=True)
class AeConfig:
    """AE-DPFL (the paper's Algorithm 2)."""

    labelling: QueryConfig
    agents: SimulatedAgents = ABSTAINING
    student: StudentRecipe = field(default_factory=SemiSupervisedRecipe)


@dataclass(frozen=True)
class KnnConfig:
    """kNN-DPFL (the paper's Algorithm 3) with count ballots; k is a share of an agent's points, and
    neighbours are sought among `features` of their own."""

    labelling: QueryConfig
    k_share: float
    features: FeaturePipeline = STROKES
    student: StudentRecipe = field(default_factory=SemiSupervisedRecipe)


@dataclass(frozen=True)
class PateConfig:
    """PATE over the pooled records, with so many teachers."""

    labelling: QueryConfig
    teachers: int
    models: AlwaysVotingAgents = ALWAYS
    student: StudentRecipe = field(default_factory=SemiSupervisedRecipe)


@dataclass(frozen=True)
class PrivateKnnConfig:
    """Private-kNN over the pooled records."""

    labelling: QueryConfig
    k: int
    sampling: float
    features: FeaturePipeline = STROKES
    student: StudentRecipe = field(default_factory=SemiSupervisedRecipe)


def ae_dpfl(context: ArmContext, partition: Partition, config: AeConfig, seed: int) -> SeedResult:
    """Agents' models vote on some public points, the server's student learns from the winners."""
    public = partition.public
    votes = cast(context, partition, config.agents, seed)
    features, asked = _ask(partition, config.labelling, seed)
    roster = {f"agent-{number}": 0 for number in range(len(partition.private))}
    spec = simulated_spec(ONE_HOT, len(asked), public.classes, roster, config.labelling.sigma)
    given = {
        agent: spec.encode(agent, own[asked]) for agent, own in zip(roster, votes, strict=True)
    }
    received = public.x if config.agents.sees_public else public.x[asked]
    return _learn(context, spec, given, asked, features, received, partition, config.student, seed)


def knn_dpfl(context: ArmContext, partition: Partition, config: KnnConfig, seed: int) -> SeedResult:
    """The labels of agents' nearest neighbours of some public points are counted."""
    public = partition.public
    features, asked = _ask(partition, config.labelling, seed)
    see = config.features.of(public.x)
    queries = see(public.x[asked])
    roster = {
        f"agent-{number}": max(1, round(config.k_share * len(part)))
        for number, part in enumerate(partition.private)
    }
    spec = simulated_spec(KNN_COUNT, len(asked), public.classes, roster, config.labelling.sigma)
    given: dict[str, IntArray] = {}
    for (agent, k), part in zip(roster.items(), partition.private, strict=True):
        context.tell("neighbours", len(given), len(roster))
        voter = KnnVoter(see(part.x), part.y, part.classes, k)
        given[agent] = spec.encode(agent, voter.counts(queries))
    received = public.x[asked]
    return _learn(context, spec, given, asked, features, received, partition, config.student, seed)


def pate(context: ArmContext, partition: Partition, config: PateConfig, seed: int) -> SeedResult:
    """Models of random parts of all records vote before a curator."""
    pooled = centralised.pool(partition.private)
    parts = centralised.teacher_parts(pooled, config.teachers, seed)
    votes = cast(context, replace(partition, private=parts), config.models, seed)
    features, asked = _ask(partition, config.labelling, seed)
    reference = centralised.pate(votes[:, asked], pooled.classes, config.labelling.sigma)
    return _refer(context, reference, asked, features, partition, config.student, seed)


def private_knn(
    context: ArmContext, partition: Partition, config: PrivateKnnConfig, seed: int
) -> SeedResult:
    """The labels of neighbours in samples of all records are counted before a curator."""
    features, asked = _ask(partition, config.labelling, seed)
    reference = centralised.private_knn(
        centralised.pool(partition.private),
        partition.public.x[asked],
        config.k,
        config.sampling,
        config.labelling.sigma,
        seed,
        features=config.features.of(partition.public.x),
    )
    return _refer(context, reference, asked, features, partition, config.student, seed)


def _ask(partition: Partition, labelling: QueryConfig, seed: int) -> tuple[FloatArray, LabelArray]:
    """Features of all public points, and which of them are asked about."""
    features = labelling.features.of(partition.public.x)(partition.public.x)
    return features, selector(labelling.selection)(features, labelling.queries, seed)


def _learn(
    context: ArmContext,
    spec: Spec,
    given: Mapping[str, IntArray],
    asked: LabelArray,
    features: FloatArray,
    received: FloatArray,
    partition: Partition,
    recipe: StudentRecipe,
    seed: int,
) -> SeedResult:
    """The vote, and a student of its labels; true labels of public points only score."""
    labels = vote(spec, given, seed)[:, 0]
    student = _student(context, asked, labels, features, partition, recipe, seed)
    totals = np.sum(list(given.values()), axis=0) / (1 << spec.message.fraction_bits)
    true = partition.public.y[asked]
    figures = {
        "asked": float(len(asked)),
        "labels": float(np.mean(labels == true)),
        "votes_for_the_true_class": float(np.mean(totals[np.arange(len(asked)), true])),
        "sigma": spec.message.sigma,
        "sent": float(upload_bytes(spec)),
        "received": float(received.nbytes),
    }
    test = partition.test
    return SeedResult(student.agreement(test.x, test.y), (spec.mechanism,), figures)


def _refer(
    context: ArmContext,
    reference: CentralTotals,
    asked: LabelArray,
    features: FloatArray,
    partition: Partition,
    recipe: StudentRecipe,
    seed: int,
) -> SeedResult:
    labels = reference.release(seed)
    student = _student(context, asked, labels, features, partition, recipe, seed)
    figures = {
        "asked": float(len(asked)),
        "labels": float(np.mean(labels == partition.public.y[asked])),
        "sigma": reference.sigma,
    }
    test = partition.test
    return SeedResult(student.agreement(test.x, test.y), (reference.mechanism,), figures)


def _student(
    context: ArmContext,
    asked: LabelArray,
    labels: LabelArray,
    features: FloatArray,
    partition: Partition,
    recipe: StudentRecipe,
    seed: int,
) -> Classifier:
    public = partition.public

    def tell(done: int, total: int, loss: float) -> None:
        context.tell("the student learns", done, total)

    match recipe:
        case SemiSupervisedRecipe():
            return train_semi_supervised(
                public.x,
                asked,
                labels,
                public.classes,
                seed,
                recipe,
                features=features,
                on_progress=tell,
            )
        case PrototypeRecipe():
            return train_prototypes(public.x, asked, labels, public.classes, recipe)
        case NamedStudent(name, map_name):
            others = np.setdiff1d(np.arange(len(public)), asked)
            options = StudentOptions(public.classes, seed, map_name, tell)
            return find_student(name).train(public.x[asked], labels, public.x[others], options)
        case LabelledOnly():
            return train_student(public.x[asked], labels, public.classes, seed, on_progress=tell)
