"""Who asks the same again is told of the round that there is."""

from __future__ import annotations

import asyncio
import shlex
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from mpc_vote.app.process import CommandError
from mpc_vote.cli import earlier
from mpc_vote.client import AsyncLabelClient
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


def test_it_is_told_with_its_cost_and_the_command_that_fetches_its_labels() -> None:
    asked = ("--certs=my certs", "--queries=q.csv", "--select=3", "--out=labels.csv")
    said = earlier.told(summary(), asked, Path("labels.csv"))
    assert "round abc over the same 3 queries" in said
    assert "20.5 at agent level and 1.25 at instance level (delta 0.001)" in said
    fetch = shlex.split(said.partition("at no further cost: ")[2])
    assert fetch == ["mpc-vote", "label", *asked, "--round", "abc"]


def test_one_that_goes_on_has_no_cost_yet() -> None:
    going = summary(state=label_pb2.ROUND_STATE_OPEN, cost=None)
    said = earlier.told(going, ["--certs=me", "--dry-run"], None)
    assert "is under way" in said and "epsilon" not in said
    assert said.endswith("mpc-vote label --certs=me --out labels.npy --round abc")


class Answering:
    """A client with one round."""

    def __init__(self, one: label_pb2.RoundSummary) -> None:
        self._found = label_pb2.GetRoundResponse(
            round=one, labels=label_pb2.Labels(width=1, values=[2, 0, 1])
        )

    async def round(self, _: str) -> label_pb2.GetRoundResponse:
        return self._found


def fetched(one: label_pb2.RoundSummary, rows: Any) -> list[int]:
    client = cast(AsyncLabelClient, Answering(one))
    _, labels = asyncio.run(earlier.labels_of(client, "abc", rows))
    return [int(label) for label in labels]


def test_labels_are_fetched_for_the_rows_that_were_asked_about_and_no_others() -> None:
    assert fetched(summary(), ROWS) == [2, 0, 1]
    assert fetched(summary(), None) == [2, 0, 1]
    for others in (ROWS + 1, ROWS[::-1].copy(), ROWS[:2]):
        with pytest.raises(CommandError, match="about other queries than these"):
            fetched(summary(), others)
    with pytest.raises(CommandError, match="about other queries than these"):
        fetched(summary(task_digest=b"another"), ROWS)


def test_a_round_without_labels_says_so() -> None:
    with pytest.raises(CommandError, match="under way"):
        fetched(summary(state=label_pb2.ROUND_STATE_OPEN), ROWS)
    with pytest.raises(CommandError, match="has no labels: too few"):
        fetched(summary(state=label_pb2.ROUND_STATE_FAILED, reason="too few"), ROWS)
