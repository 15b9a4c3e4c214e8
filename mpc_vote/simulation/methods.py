"""The paper's methods end to end: agents vote on some public points, the server learns from them.

Each takes data, a configuration and a seed, and gives an outcome; nothing else decides about it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from mpc_vote import ballots
from mpc_vote.ballots import BallotKind, IntArray
from mpc_vote.data.dataset import Dataset, FloatArray, LabelArray
from mpc_vote.learning.abstention import train_abstaining
from mpc_vote.learning.abstention import votes as abstaining_votes
from mpc_vote.learning.asking import asking
from mpc_vote.learning.features import feature_map
from mpc_vote.learning.knn import KnnVoter
from mpc_vote.learning.networks import Architecture
from mpc_vote.learning.semi import SemiRecipe, train_semi
from mpc_vote.learning.stacked import (
    Labelled,
    Recipe,
    classify,
    fresh,
    predict_scores,
    train_agents,
)
from mpc_vote.simulation.experiment import Bench, Outcome
from mpc_vote.simulation.store import fingerprint
from mpc_vote.simulation.vote import simulated_spec, vote
from mpc_vote.spec import Spec

AGENT_RECIPE = Recipe(steps=200, batch=32, rate=5e-3, decay=0.1)
"""For agents that always vote."""

_SMOOTHING = 0.05


@dataclass(frozen=True)
class Labelling:
    """Which public points are asked about, by their `features`, and with how much noise."""

    queries: int
    sigma: float
    asking: str = "clusters"
    features: str = "strokes"


@dataclass(frozen=True)
class AeConfig:
    """AE-DPFL (the paper's Algorithm 2): agents' models of `features` vote, and may `abstain`."""

    labelling: Labelling
    features: str = "strokes"
    abstain: bool = True
    student: SemiRecipe = field(default_factory=SemiRecipe)


@dataclass(frozen=True)
class KnnConfig:
    """kNN-DPFL (the paper's Algorithm 3) with count ballots; k is a share of an agent's points."""

    labelling: Labelling
    k_share: float
    student: SemiRecipe = field(default_factory=SemiRecipe)


def ae_dpfl(
    bench: Bench,
    parts: Sequence[Dataset],
    public: Dataset,
    test: Dataset,
    config: AeConfig,
    seed: int,
) -> Outcome:
    """Agents' models vote on some public points, the server's student learns from the winners."""
    votes = model_votes(bench, parts, public, config.features, config.abstain, seed)
    features = feature_map(config.labelling.features)(public.x)
    asked = asking(config.labelling.asking)(features, config.labelling.queries, seed)
    roster = {f"agent-{number}": 0 for number in range(len(parts))}
    spec = simulated_spec(
        BallotKind.ONE_HOT, len(asked), public.classes, roster, config.labelling.sigma
    )
    bits = spec.message.fraction_bits
    cast = {
        agent: ballots.one_hot(own[asked], public.classes, bits)
        for agent, own in zip(roster, votes, strict=True)
    }
    return learn(bench, spec, cast, asked, features, public, test, config.student, seed)


def knn_dpfl(
    bench: Bench,
    parts: Sequence[Dataset],
    public: Dataset,
    test: Dataset,
    config: KnnConfig,
    seed: int,
) -> Outcome:
    """The labels of agents' nearest neighbours of some public points are counted."""
    features = feature_map(config.labelling.features)(public.x)
    asked = asking(config.labelling.asking)(features, config.labelling.queries, seed)
    roster = {
        f"agent-{number}": max(1, round(config.k_share * len(part)))
        for number, part in enumerate(parts)
    }
    spec = simulated_spec(
        BallotKind.KNN_COUNT, len(asked), public.classes, roster, config.labelling.sigma
    )
    cast: dict[str, IntArray] = {}
    for (agent, k), part in zip(roster.items(), parts, strict=True):
        bench.tell("neighbours", len(cast), len(parts))
        voter = KnnVoter(part.x, part.y, part.classes, k, features=config.labelling.features)
        counts = voter.counts(public.x[asked])
        cast[agent] = ballots.knn_count(counts, k, spec.message.fraction_bits)
    return learn(bench, spec, cast, asked, features, public, test, config.student, seed)


def learn(
    bench: Bench,
    spec: Spec,
    cast: Mapping[str, IntArray],
    asked: LabelArray,
    features: FloatArray,
    public: Dataset,
    test: Dataset,
    recipe: SemiRecipe,
    seed: int,
) -> Outcome:
    """The vote, and a student of its labels; true labels of public points only score."""
    labels = vote(spec, cast, seed)[:, 0]
    student = train_semi(
        public.x,
        asked,
        labels,
        public.classes,
        seed,
        recipe,
        features=features,
        on_progress=lambda done, total, _: bench.tell("the student learns", done, total),
    )
    totals = np.sum(list(cast.values()), axis=0) / (1 << spec.message.fraction_bits)
    figures = {
        "asked": float(len(asked)),
        "labels": float(np.mean(labels == public.y[asked])),
        "votes_for_the_true_class": float(np.mean(totals[np.arange(len(asked)), public.y[asked]])),
        "sigma": spec.message.sigma,
    }
    return Outcome(student.agreement(test.x, test.y), (spec.mechanism,), figures)


def model_votes(
    bench: Bench, parts: Sequence[Dataset], public: Dataset, features: str, abstain: bool, seed: int
) -> LabelArray:
    """What every agent's model says of every public point, (agents, points); -1 is nothing."""
    config = {
        "parts": [fingerprint(part) for part in parts],
        "public": fingerprint(public),
        "features": features,
        "abstain": abstain,
        "recipe": dataclasses.asdict(AGENT_RECIPE),
        "seed": seed,
    }
    made = bench.store.arrays(
        "votes", config, lambda: {"votes": _train(bench, parts, public, features, abstain, seed)}
    )
    return made["votes"].astype(np.int64)


def _train(
    bench: Bench, parts: Sequence[Dataset], public: Dataset, features: str, abstain: bool, seed: int
) -> IntArray:
    see = feature_map(features)
    queries = see(public.x)
    data: list[Labelled] = []
    for part in parts:
        bench.tell("features", len(data), len(parts))
        data.append((see(part.x), part.y))

    def tell(done: int, total: int, loss: float) -> None:
        bench.tell("agents learn", done, total)

    if abstain:
        chunks = train_abstaining(
            data, public.classes, queries, seed, workers=bench.workers, on_chunk=tell
        )
        found = abstaining_votes(predict_scores(chunks, queries))
    else:
        architecture = Architecture.for_shape(tuple(queries.shape[1:]), public.classes)
        chunks = train_agents(
            lambda agents: fresh(architecture, seed, agents, data),
            data,
            classify(_SMOOTHING),
            AGENT_RECIPE,
            seed,
            workers=bench.workers,
            on_chunk=tell,
        )
        found = np.argmax(predict_scores(chunks, queries), axis=2)
    return found.astype(np.int16)
