"""The paper's methods end to end, small, on the embedded digits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mpc_vote.data.dataset import Dataset
from mpc_vote.data.images import resize
from mpc_vote.data.partition import Partition
from mpc_vote.learning.nets.stacked_training import StackRecipe
from mpc_vote.learning.students.prototypes import PrototypeRecipe
from mpc_vote.learning.students.semi_supervised import SemiSupervisedRecipe
from mpc_vote.privacy import GaussianVote, PoissonGaussian, SkellamVote
from mpc_vote.simulation.agents import (
    AbstainingAgents,
    AdaptedAgents,
    AlwaysVotingAgents,
    SimulatedAgents,
    cast,
)
from mpc_vote.simulation.experiment import ArmContext
from mpc_vote.simulation.feature_pipeline import FeaturePipeline
from mpc_vote.simulation.methods import (
    AeConfig,
    KnnConfig,
    LabelledOnly,
    PateConfig,
    PrivateKnnConfig,
    QueryConfig,
    ae_dpfl,
    knn_dpfl,
    pate,
    private_knn,
)
from mpc_vote.simulation.store import ResultStore

QUICK = SemiSupervisedRecipe(consistency=False, members=1, steps=80)
HASTY = SemiSupervisedRecipe(propagate=False, consistency=False, steps=20)
LABELLING = QueryConfig(queries=60, sigma=1.0)


def _margin(votes: np.ndarray, truth: np.ndarray) -> float:
    totals = np.stack([(votes == label).sum(axis=0) for label in range(10)], axis=1)
    true = totals[np.arange(len(truth)), truth]
    totals[np.arange(len(truth)), truth] = 0
    return float(np.mean(true - totals.max(axis=1)))


@pytest.mark.slow
def test_agents_that_abstain_leave_a_wider_margin_than_agents_that_always_vote(
    context: ArmContext, digits: Partition
) -> None:
    margins = {}
    for agents in (AbstainingAgents(), AlwaysVotingAgents()):
        votes = cast(context, digits, agents, 0)
        assert votes.shape == (len(digits.private), len(digits.public))
        assert (votes.min() == -1) == isinstance(agents, AbstainingAgents)
        margins[type(agents)] = _margin(votes, digits.public.y)
    assert margins[AbstainingAgents] > margins[AlwaysVotingAgents] > 0


def test_adapted_agents_label_a_domain_that_they_never_saw(
    context: ArmContext, digits: Partition
) -> None:
    """The server's digits are smaller and stand in a corner of the frame."""

    def shrunk(dataset: Dataset) -> Dataset:
        small = resize(dataset, 18)
        return replace(small, x=np.pad(small.x, ((0, 0), (8, 2), (8, 2))))

    moved = Partition(digits.private[:6], shrunk(digits.public), digits.test)
    recipe = StackRecipe(steps=100, batch=32, rate=4e-3, decay=0.02, public_batch=32)
    kinds: dict[str, SimulatedAgents] = {
        "plain": AlwaysVotingAgents(FeaturePipeline("raw")),
        "adapted": AdaptedAgents(FeaturePipeline("raw"), recipe=recipe, least=300),
    }
    margins = {
        name: _margin(cast(context, moved, agents, 0), moved.public.y)
        for name, agents in kinds.items()
    }
    assert margins["adapted"] > margins["plain"]


def test_ae_dpfl_learns_from_the_vote_and_repeats(
    context: ArmContext, digits: Partition, tmp_path: Path
) -> None:
    config = AeConfig(LABELLING, student=QUICK)
    first = ae_dpfl(context, digits, config, 0)
    assert first.figures["labels"] > 0.85
    assert first.accuracy > 0.8
    (mechanism,) = first.mechanisms
    assert isinstance(mechanism, SkellamVote)
    assert (mechanism.queries, mechanism.agent.l2_squared) == (60, 256)
    again = ae_dpfl(replace(context, store=ResultStore(tmp_path)), digits, config, 0)
    assert again == first
    drowned = ae_dpfl(context, digits, replace(config, labelling=replace(LABELLING, sigma=1e3)), 0)
    assert drowned.figures["labels"] < 0.4


def test_what_an_agent_sends_and_receives_is_counted(
    context: ArmContext, digits: Partition
) -> None:
    config = AeConfig(LABELLING, AlwaysVotingAgents(), HASTY)
    always = ae_dpfl(context, digits, config, 0).figures
    assert always["received"] == 60 * digits.public.x[0].nbytes
    assert 60 * 10 < always["sent"] < 60 * 10 * 4
    abstaining = ae_dpfl(context, digits, replace(config, agents=AbstainingAgents()), 0).figures
    assert abstaining["received"] == digits.public.x.nbytes


def test_knn_dpfl_counts_neighbours(context: ArmContext, digits: Partition) -> None:
    found = knn_dpfl(context, digits, KnnConfig(LABELLING, k_share=0.05, student=QUICK), 0)
    assert found.figures["labels"] > 0.85
    assert found.accuracy > 0.8
    (mechanism,) = found.mechanisms
    assert isinstance(mechanism, SkellamVote)
    assert mechanism.instance.l2_squared == 512
    assert mechanism.agent.l2_squared == (16 * 10) ** 2


def test_pate_votes_over_parts_of_the_pooled_records(
    context: ArmContext, digits: Partition
) -> None:
    config = PateConfig(LABELLING, teachers=10, student=LabelledOnly())
    found = pate(context, digits, config, 0)
    assert found.figures["labels"] > 0.85
    assert found.accuracy > 0.7
    assert isinstance(found.mechanisms[0], GaussianVote)


def test_private_knn_and_a_student_for_vectors(context: ArmContext, digits: Partition) -> None:
    vectors, raw = FeaturePipeline("strokes").partition(digits), FeaturePipeline("raw")
    labelling = replace(LABELLING, features=raw)
    config = PrivateKnnConfig(labelling, 20, 0.5, raw, PrototypeRecipe())
    found = private_knn(context, vectors, config, 0)
    assert found.figures["labels"] > 0.85
    assert found.accuracy > 0.8
    assert isinstance(found.mechanisms[0], PoissonGaussian)
