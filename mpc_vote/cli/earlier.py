"""What this client has asked before: the same queries again are charged again, and a new round says
little that the old one doesn't."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mpc_vote.app.process import CommandError
from mpc_vote.cli.against import AGAINST
from mpc_vote.cli.common import counted
from mpc_vote.client import AsyncLabelClient
from mpc_vote.privacy.charging import Against
from mpc_vote.privacy.rounding import round_up
from mpc_vote.proto.mpcvote.v1 import label_pb2
from mpc_vote.tasks import Task
from mpc_vote.transport import tensors

Rounds = Sequence[label_pb2.RoundSummary]
_ASKED = (label_pb2.ROUND_STATE_OPEN, label_pb2.ROUND_STATE_COMPLETE)


def same_queries(
    rounds: Rounds, rows: npt.NDArray[Any], task: Task | None, classes: int | None
) -> label_pb2.RoundSummary | None:
    """The newest round over these very queries that has labels, or will; None without one."""
    digest, of_task = tensors.digest_of(rows), b"" if task is None else task.digest
    number = len(task.classes) if task is not None else classes
    for one in reversed(rounds):
        question = (one.queries_digest, one.task_digest, one.classes)
        if one.state in _ASKED and question == (digest, of_task, number):
            return one
    return None


def same_request(rounds: Rounds, request_id: str | None) -> label_pb2.RoundSummary | None:
    """The round that was asked for under this id, which no other will be."""
    return next((one for one in rounds if request_id and one.request_id == request_id), None)


async def labels_of(
    client: AsyncLabelClient,
    round_id: str,
    rows: npt.NDArray[Any] | None = None,
    task: Task | None = None,
) -> tuple[label_pb2.GetRoundResponse, npt.NDArray[np.int64]]:
    """A round and its labels; refused where these are not the rows that it was about, in order."""
    found = await client.round(round_id)
    one = found.round
    if one.state == label_pb2.ROUND_STATE_OPEN:
        raise CommandError(f"round {round_id} is under way: fetch its labels once it is complete")
    if one.state != label_pb2.ROUND_STATE_COMPLETE:
        raise CommandError(f"round {round_id} has no labels: {one.reason}")
    if rows is not None:
        of_task = b"" if task is None else task.digest
        if (one.queries_digest, one.task_digest) != (tensors.digest_of(rows), of_task):
            raise CommandError(
                f"round {round_id} was about other queries than these, so its labels are not "
                "theirs: give the task, the file, --select and --bad-rows of that request"
            )
    labels = np.array(found.labels.values, dtype=np.int64)
    return found, labels if found.labels.width == 1 else labels.reshape(-1, found.labels.width)


def told(one: label_pb2.RoundSummary, arguments: Sequence[str], out: Path | None) -> str:
    """That a round over the same queries exists, and how to have its labels for nothing."""
    queries = "query" if one.queries == 1 else counted(one.queries, "query", "queries")
    fetch = _fetch(one, arguments, out)
    if not one.HasField("cost"):
        return (
            f"round {one.round_id} over the same {queries} is under way; fetch its labels, at "
            f"no further cost, once it is complete: {fetch}"
        )
    cost = one.cost
    return (
        f"round {one.round_id} over the same {queries} has cost epsilon "
        f"{round_up(cost.epsilon_agent)} at agent level and {round_up(cost.epsilon_instance)} at "
        f"instance level (delta {cost.delta:g}), {AGAINST[Against.TOTALS]}; fetch its labels, at "
        f"no further cost: {fetch}"
    )


def _fetch(one: label_pb2.RoundSummary, arguments: Sequence[str], out: Path | None) -> str:
    """The same `label`, for the labels that there are: it alone knows which row each belongs to."""
    again = [argument for argument in arguments if argument != "--dry-run"]
    to = [] if out is not None else ["--out", "labels.npy"]
    return shlex.join(["mpc-vote", "label", *again, *to, "--round", one.round_id])
