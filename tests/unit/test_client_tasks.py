"""Plans that name a task, labels by name, and a service that answers with a task that it likes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from mpc_vote.client import Plan
from mpc_vote.errors import ErrorKind
from mpc_vote.proto.mpcvote.v1 import common_pb2, label_pb2
from mpc_vote.tasks import Task, agreement
from mpc_vote.voting.ballots import KNN_COUNT
from tests.system.service.support import refused
from tests.unit.test_answers import ROWS, Client, labelled


def task(ballot: str) -> Task:
    tau = "tau = 2\n" if ballot == "multi_label" else ""
    return Task.parse(
        'format = 1\nname = "t"\nclasses = ["x", "y", "z"]\n[input]\nkind = "vector"\nshape = [2]\n'
        f'[features]\nmap = "raw"\n[vote]\nballot = "{ballot}"\nk = 4\n{tau}'
    )


COUNTS, MARKS = task("knn_count"), task("multi_label")
QUERIES = np.zeros((ROWS, 2), np.float32)


def test_a_plan_says_on_the_wire_what_its_task_says() -> None:
    for one in (COUNTS, MARKS):
        message = Plan(task=one).message()
        assert (message.task, message.task_digest) == ("t", one.digest)
        assert (message.classes, message.ballot) == (3, one.vote.ballot.code)
        assert message.tau == one.vote.tau
    assert Plan(task=COUNTS, classes=3, ballot="knn_count") == Plan(3, KNN_COUNT, task=COUNTS)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"classes": 4}, "plan.classes is 4, and task t has 3"),
        ({"ballot": "one_hot"}, "plan.ballot is one_hot, and task t has knn_count"),
        ({"tau": 2}, "plan.tau is 2, and task t has 0"),
    ],
)
def test_what_contradicts_it_is_refused_before_anything_is_sent(
    given: dict[str, Any], why: str
) -> None:
    with refused(ErrorKind.TASK_CONTRADICTED, why):
        Plan(task=COUNTS, **given).message()
    with refused(ErrorKind.CLASSES_RANGE):
        Plan().message()


async def test_labels_have_the_names_of_the_tasks_classes() -> None:
    client = Client(RequestLabels=labelled(label_pb2.Labels(width=1, values=[2, 0, 1, 2])))
    result = await client.label(QUERIES, Plan(task=COUNTS))
    assert result.names == ["z", "x", "y", "z"]
    flags = [0, 0, 0, 1, 0, 1, 0, 1, 0, 1, 1, 1]
    client = Client(RequestLabels=labelled(label_pb2.Labels(width=3, values=flags)))
    result = await client.label(QUERIES, Plan(task=MARKS))
    assert result.names == [[], ["x", "z"], ["y"], ["x", "y", "z"]]
    with refused(ErrorKind.ANSWER_MALFORMED, "1 labels for a query of task t"):
        client = Client(RequestLabels=labelled(label_pb2.Labels(width=1, values=[0] * ROWS)))
        await client.label(QUERIES, Plan(task=MARKS))


async def test_a_task_that_a_service_sends_must_be_the_one_asked_for() -> None:
    def served(message: common_pb2.Task) -> Client:
        return Client(GetTask=[common_pb2.GetTaskResponse(task=message)])

    assert await served(agreement.to_wire(COUNTS)).task("t") == COUNTS
    with refused(ErrorKind.ANSWER_MALFORMED, "another task"):
        await served(agreement.to_wire(replace(COUNTS, name="u"))).task("t")
    for lie in (
        common_pb2.Task(name="t", digest=MARKS.digest, content=COUNTS.wire),
        common_pb2.Task(name="u", digest=COUNTS.digest, content=COUNTS.wire),
        common_pb2.Task(name="t", digest=COUNTS.digest, content=b"[" * 100_000),
        common_pb2.Task(name="t"),
        common_pb2.Task(),
    ):
        with refused(ErrorKind.ANSWER_MALFORMED, "the task can't be used"):
            await served(lie).task("t")
