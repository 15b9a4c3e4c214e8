"""The client: a batch of public queries in, labels and their cost out.

    from mpc_vote import LabelClient, Plan

    with LabelClient("localhost:7000", "certs/client/me") as client:
        result = client.label(queries, Plan(classes=10))
        print(result.labels, result.cost.epsilon_agent)

With a task, `Plan(task=Task.load(path))` or `Plan(task=client.task("rhc"))`, classes and ballot
follow from the task, and `result.names` has the labels by name.

`AsyncLabelClient` does the same on asyncio. Both raise `VoteError`, which says what to do. With
`patience`, a service that is busy is asked again when it says so, for that many seconds.
"""

from __future__ import annotations

from mpc_vote.client.answers import LabelResult, Progress
from mpc_vote.client.asynchronous import AsyncLabelClient, OnTraining, pause
from mpc_vote.client.blocking import LabelClient
from mpc_vote.client.plan import Plan

__all__ = [
    "AsyncLabelClient",
    "LabelClient",
    "LabelResult",
    "OnTraining",
    "Plan",
    "Progress",
    "pause",
]
