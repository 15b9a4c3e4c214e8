"""Who asks the same again is told of the round that there is."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mpc_vote.app import config
from mpc_vote.cli import earlier
from mpc_vote.cli.rounds import RoundsSettings
from mpc_vote.proto.mpcvote.v1 import common_pb2, label_pb2
from mpc_vote.transport import tensors

ROWS = np.arange(6, dtype=np.float32).reshape(3, 2)


def summary(**more: Any) -> label_pb2.RoundSummary:
    cost = common_pb2.Cost(epsilon_agent=20.5, epsilon_instance=1.25, delta=1e-3)
    given: dict[str, Any] = {
        "round_id": "abc",
        "state": label_pb2.ROUND_STATE_COMPLETE,
        "queries": 3,
        "classes": 3,
        "queries_digest": tensors.digest_of(ROWS),
        "cost": cost,
    }
    return label_pb2.RoundSummary(**{**given, **more})


def reaching(*flags: str) -> RoundsSettings:
    return config.load(RoundsSettings, flags)


def test_the_newest_round_over_the_same_queries_is_found() -> None:
    rounds = [summary(round_id="old"), summary(round_id="new")]
    found = earlier.same_queries(rounds, ROWS, None, 3)
    assert found is not None and found.round_id == "new"


@pytest.mark.parametrize(
    "other",
    [
        {"queries_digest": tensors.digest_of(ROWS + 1)},
        {"task_digest": b"another"},
        {"classes": 4},
        {"state": label_pb2.ROUND_STATE_FAILED},
    ],
)
def test_another_question_or_a_round_without_labels_is_not_the_same(other: dict[str, Any]) -> None:
    assert earlier.same_queries([summary(**other)], ROWS, None, 3) is None


def test_a_request_is_found_by_its_id_and_none_by_no_id() -> None:
    rounds = [summary(), summary(round_id="mine", request_id="r1")]
    found = earlier.same_request(rounds, "r1")
    assert found is not None and found.round_id == "mine"
    assert earlier.same_request(rounds, None) is None
    assert earlier.same_request(rounds, "") is None


def test_it_is_told_with_its_cost_and_the_command_that_fetches_its_labels(tmp_path: Path) -> None:
    settings = reaching(f"--certs={tmp_path / 'my certs'}", "--coordinator=there:7000")
    said = earlier.told(summary(), settings, Path("labels.csv"))
    assert "round abc over the same 3 queries" in said
    assert "20.5 at agent level and 1.25 at instance level (delta 0.001)" in said
    fetch = shlex.split(said.partition("at no further cost: ")[2])
    where = ["--coordinator", "there:7000", "--certs", str(tmp_path / "my certs")]
    assert fetch == ["mpc-vote", "rounds", *where, "--round", "abc", "--out", "labels.csv"]


def test_one_that_goes_on_has_no_cost_yet() -> None:
    going = summary(state=label_pb2.ROUND_STATE_OPEN, cost=None)
    said = earlier.told(going, reaching("--certs=me"), None)
    assert "is under way" in said and "epsilon" not in said
