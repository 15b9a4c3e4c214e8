"""Networks see a task's inputs as it compares them, and abstain where public points taught them."""

from __future__ import annotations

import numpy as np
import pytest

from mpc_vote.data.dataset import Dataset
from mpc_vote.data.embedded import load_embedded
from mpc_vote.learning.voters import VoterOptions, make_voter
from mpc_vote.learning.voters.local_model import AbstainingVoter, ModelVoter
from mpc_vote.tasks import TableInput, Task
from mpc_vote.voting.ballots import ABSTAIN, ONE_HOT
from tests.unit.learning.voters.tasks import PICTURES, TABLE, VECTORS


def test_a_network_learns_from_the_features_of_a_table() -> None:
    assert isinstance(TABLE.input, TableInput)
    ages = np.tile([20.0, 35.0, 65.0, 80.0], 30)
    x = TABLE.input.encode({"age": ages.tolist(), "ward": ["a", None, "b", "c"] * 30})
    data = Dataset("table", x, (ages > 50).astype(np.int64), 2)
    voter = make_voter("network", data, VoterOptions(task=TABLE))
    assert isinstance(voter, ModelVoter)
    rows = TABLE.input.encode({"age": [25, 75], "ward": ["a", "a"]})
    assert voter.vote(rows, ONE_HOT).tolist() == [0, 1]


def test_a_network_looks_at_pictures_of_bytes() -> None:
    draws = np.random.default_rng(0)
    y = np.arange(80) % 2
    x = (draws.integers(0, 60, (80, 3, 4, 5)) + 180 * y[:, None, None, None]).astype(np.uint8)
    voter = make_voter("network", Dataset("signs", x, y, 2), VoterOptions(task=PICTURES))
    assert voter.vote(x[:4], ONE_HOT).tolist() == [0, 1, 0, 1]


def test_rows_of_another_task_are_refused() -> None:
    data = Dataset("vectors", np.eye(3, dtype=np.float32), np.array([0, 1, 2]), 3)
    for name, why in (("network", "the task's inputs are"), ("knn", "a query has shape")):
        voter = make_voter(name, data, VoterOptions(k=1, task=VECTORS))
        with pytest.raises(ValueError, match=why):
            voter.vote(np.zeros((2, 4), np.float32), ONE_HOT)
        with pytest.raises(ValueError, match="row 1 is no vector of this task"):
            voter.vote(np.array([[0, 0, 0], [0, 0, 1e20]], np.float32), ONE_HOT)


def _digits() -> tuple[Dataset, Dataset]:
    """An agent that saw three of five digits, and public points of all five."""
    digits = load_embedded()
    order = np.random.default_rng(0).permutation(np.flatnonzero(digits.y < 5))
    public, private = digits.take(order[:400]), order[400:]
    own = private[digits.y[private] < 3][:150]
    return digits.take(own), public


def test_with_public_points_a_network_abstains_on_what_it_never_saw() -> None:
    data, public = _digits()
    options = VoterOptions(features="strokes", public=public.x)
    voter = make_voter("network", data, options)
    assert isinstance(voter, AbstainingVoter)
    votes, saw = voter.vote(public.x, ONE_HOT), public.y < 3
    assert np.mean(votes[~saw] == ABSTAIN) > 0.8
    assert np.mean(votes[saw] == public.y[saw]) > 0.85
    always = make_voter("network", data, VoterOptions(features="strokes"))
    assert ABSTAIN not in always.vote(public.x, ONE_HOT)


def test_public_points_of_another_shape_are_refused() -> None:
    data, _ = _digits()
    options = VoterOptions(public=np.zeros((5, 3), np.float32))
    with pytest.raises(ValueError, match="--public has points of shape"):
        make_voter("network", data, options)


@pytest.mark.parametrize("name", ["knn", "network"])
def test_without_records_nobody_learns(name: str) -> None:
    task: Task = VECTORS
    with pytest.raises(ValueError, match="pass --data"):
        make_voter(name, None, VoterOptions(k=1, task=task))
