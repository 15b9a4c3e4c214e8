"""Agents that never saw a class abstain on it, and those that did go on voting."""

from __future__ import annotations

import numpy as np
import pytest

from mpc_vote.data.embedded import load_embedded
from mpc_vote.learning.features.maps import strokes
from mpc_vote.learning.nets.networks import Architecture
from mpc_vote.learning.nets.stacked_networks import Labelled, fresh
from mpc_vote.learning.nets.stacked_training import (
    StackRecipe,
    classify,
    predict_scores,
    train_agents,
)
from mpc_vote.learning.voters.abstention import (
    ABSTAIN,
    train_abstaining,
    train_abstaining_chunk,
    votes,
)

CLASSES = 5
KNOWN = [(0, 1, 2), (1, 2, 3), (2, 3, 4), (0, 3, 4), (0, 1, 2, 3, 4)]
Setting = tuple[list[Labelled], np.ndarray, np.ndarray]


@pytest.fixture(scope="module")
def setting() -> Setting:
    """Four agents with three of five digits each and one with all; public points of all five."""
    digits = load_embedded()
    order = np.random.default_rng(0).permutation(np.flatnonzero(digits.y < CLASSES))
    public, private = order[:500], order[500:]
    pools = [private[digits.y[private] == c] for c in range(CLASSES)]
    data = []
    for agent, known in enumerate(KNOWN):
        rows = np.concatenate([pools[c][40 * agent : 40 * (agent + 1)] for c in known])
        data.append((strokes(digits.x[rows]), digits.y[rows]))
    return data, strokes(digits.x[public]), digits.y[public]


@pytest.fixture(scope="module")
def ballots(setting: Setting) -> np.ndarray:
    data, public, _ = setting
    return votes(predict_scores(train_abstaining(data, CLASSES, public, 0), public))


def test_agents_abstain_on_what_they_never_saw_and_vote_on_the_rest(
    setting: Setting, ballots: np.ndarray
) -> None:
    data, public, y = setting
    architecture = Architecture.for_shape(tuple(public.shape[1:]), CLASSES)
    plain = train_agents(
        lambda agents: fresh(architecture, 0, agents, data),
        data,
        classify(),
        StackRecipe(100, 32, 5e-3),
        0,
    )
    careless = predict_scores(plain, public).argmax(axis=2)
    for agent, known in enumerate(KNOWN[:4]):
        saw = np.isin(y, known)
        assert np.mean(ballots[agent][~saw] == ABSTAIN) > 0.85
        assert np.mean(ballots[agent][saw] == y[saw]) > 0.9
        assert np.mean(careless[agent][~saw] == y[~saw]) == 0
    assert ABSTAIN not in ballots[4]
    assert np.mean(ballots[4] == y) > 0.95


def test_abstaining_widens_the_margin_of_the_vote(setting: Setting, ballots: np.ndarray) -> None:
    _, _, y = setting
    totals = np.stack([(ballots == c).sum(axis=0) for c in range(CLASSES)], axis=1)
    right = totals[np.arange(len(y)), y].copy()
    totals[np.arange(len(y)), y] = 0
    assert right.mean() > 3.2
    assert totals.max(axis=1).mean() < 0.3


def test_an_agent_that_trains_alone_casts_the_ballots_of_the_crowd(
    setting: Setting, ballots: np.ndarray
) -> None:
    data, public, _ = setting
    network, loss = train_abstaining_chunk(data, CLASSES, public, 0, [3])
    assert 0 < loss < 1
    assert np.array_equal(votes(predict_scores([network], public))[0], ballots[3])


def test_a_ballot_is_the_likeliest_class_unless_the_unknown_is_likelier() -> None:
    scores = np.array([[0.2, 0.5, 0.3], [0.3, 0.2, 0.5], [0.4, 0.3, 0.3]], np.float32)
    assert votes(scores).tolist() == [1, ABSTAIN, 0]
    assert votes(scores[None]).shape == (1, 3)


def test_bad_input_is_refused_with_what_to_do(setting: Setting) -> None:
    data, public, _ = setting
    with pytest.raises(ValueError, match=r"not in 0\.\.2"):
        train_abstaining(data, 3, public, 0)
    with pytest.raises(ValueError, match="public points"):
        train_abstaining(data, CLASSES, public[:0], 0)
    with pytest.raises(ValueError, match="the networks take"):
        train_abstaining(data, CLASSES, public[:, :50], 0)
