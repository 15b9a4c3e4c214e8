"""The paper's methods end to end, small, on the embedded digits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mpc_vote.data.deal import deal_by_class
from mpc_vote.data.embedded import load_embedded
from mpc_vote.data.partition import hand_out, split_public
from mpc_vote.learning.semi import SemiRecipe
from mpc_vote.privacy import SkellamVote
from mpc_vote.simulation.experiment import Bench, Outcome
from mpc_vote.simulation.methods import (
    AeConfig,
    KnnConfig,
    Labelling,
    ae_dpfl,
    knn_dpfl,
    model_votes,
)
from mpc_vote.simulation.store import Store

AGENTS = 12
QUICK = SemiRecipe(consistency=False, members=1, steps=120)
LABELLING = Labelling(queries=60, sigma=1.0)

DIGITS = load_embedded()
PUBLIC, REST = split_public(DIGITS, 400, 0)
PARTS = hand_out(REST, deal_by_class(REST.y, AGENTS, 200, 6, 0))
TEST = REST.take(np.arange(2600, len(REST)))


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench({}, Store(tmp_path_factory.mktemp("store")), 2, lambda *_: None)


def ae(bench: Bench, config: AeConfig, seed: int = 0) -> Outcome:
    return ae_dpfl(bench, PARTS, PUBLIC, TEST, config, seed)


def test_models_that_abstain_label_better_than_models_that_always_vote(bench: Bench) -> None:
    right = {}
    for abstain in (True, False):
        votes = model_votes(bench, PARTS, PUBLIC, "strokes", abstain, 0)
        assert votes.shape == (AGENTS, len(PUBLIC))
        assert (votes.min() == -1) == abstain
        totals = np.stack([(votes == label).sum(axis=0) for label in range(10)], axis=1)
        true = totals[np.arange(len(PUBLIC)), PUBLIC.y]
        totals[np.arange(len(PUBLIC)), PUBLIC.y] = 0
        right[abstain] = float(np.mean(true - totals.max(axis=1)))
    assert right[True] > right[False] > 0


def test_ae_dpfl_learns_from_the_vote_and_repeats(bench: Bench, tmp_path: Path) -> None:
    config = AeConfig(LABELLING, student=QUICK)
    first = ae(bench, config)
    assert first.figures["labels"] > 0.85
    assert first.accuracy > 0.8
    (mechanism,) = first.mechanisms
    assert isinstance(mechanism, SkellamVote)
    assert (mechanism.queries, mechanism.agent.l2_squared) == (60, 256)
    again = ae(replace(bench, store=Store(tmp_path)), config)
    assert again == first
    drowned = ae(bench, replace(config, labelling=replace(LABELLING, sigma=1e3)))
    assert drowned.figures["labels"] < 0.4


def test_knn_dpfl_counts_neighbours(bench: Bench) -> None:
    config = KnnConfig(LABELLING, k_share=0.05, student=QUICK)
    found = knn_dpfl(bench, PARTS, PUBLIC, TEST, config, 0)
    assert found.figures["labels"] > 0.85
    assert found.accuracy > 0.8
    (mechanism,) = found.mechanisms
    assert isinstance(mechanism, SkellamVote)
    assert mechanism.instance.l2_squared == 512
    assert mechanism.agent.l2_squared == (16 * 10) ** 2
