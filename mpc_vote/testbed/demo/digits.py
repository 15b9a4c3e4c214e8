"""The demo on handwritten digits: rounds without a task, agents with arrays in npz files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from mpc_vote.app.config import Method
from mpc_vote.app.process import CommandError
from mpc_vote.data.dataset import Dataset
from mpc_vote.data.embedded import load_embedded
from mpc_vote.data.partition import Partition, save_part, split_skewed
from mpc_vote.learning.contribution_bound import suggest_bound
from mpc_vote.learning.features.maps import feature_map
from mpc_vote.tasks import Features, Task, VectorInput, Vote
from mpc_vote.tasks.toml import dump
from mpc_vote.testbed.demo.subject import DemoMethod, OnProgress, Predict, Scale, Subject
from mpc_vote.voting.ballots import KNN_COUNT, ONE_HOT

QUERIES = 500
METHODS = {
    Method.KNN: DemoMethod(
        Method.KNN,
        KNN_COUNT,
        40.0,
        ({"voter": "knn", "k": "50", "features": "strokes", "reach": "0.07"},),
    ),
    Method.AE: DemoMethod(Method.AE, ONE_HOT, 1.5, ({"voter": "network"},)),
}
_TEST_POINTS = 500
# What the coordinator's default chooses on these pictures, at a third of its time.
_STUDENT = "network"
# Each class is held by this part of the agents: none knows all classes, as in life.
_HELD = 0.75


def split(scale: Scale) -> Partition:
    """Digits of which no agent knows all classes."""
    try:
        holders = max(1, round(_HELD * scale.agents))
        return split_skewed(
            load_embedded(), scale.agents, scale.queries, _TEST_POINTS, scale.seed, holders
        )
    except ValueError as error:
        raise CommandError(f"the data can't be split like that: {error}") from error


def prepare(method: DemoMethod, scale: Scale, folder: Path) -> Subject:
    """Writes a part for each agent."""
    data = split(scale)
    task = bounded_task(method, data.public) if scale.bounded else None
    file = folder / "task.toml"
    if task is not None:
        file.write_text(dump(task), encoding="utf-8")
    agents = {}
    for number, part in enumerate(data.private):
        path = folder / f"private-{number}.npz"
        save_part(path, part)
        settings = method.settings(number) if task is None else {"task": str(file)}
        agents[f"agent-{number}"] = {"data": str(path), **settings}
    made = subject(method, scale, data, agents)
    return made if task is None else replace(made, task=task, tasks=(file,), student=None)


def bounded_task(method: DemoMethod, public: Dataset) -> Task:
    """The same vote as a task that bounds what a record contributes, by the public rule that `task
    init` has: from the queries, which are public."""
    if method.name != Method.KNN:
        raise CommandError("--bounded is for neighbours: leave --method out")
    settings = method.settings(0)
    reach, features = float(settings["reach"]), settings["features"]
    bound = suggest_bound(feature_map(features)(public.x), reach, len(public))
    return Task(
        "digits",
        tuple(str(digit) for digit in range(public.classes)),
        VectorInput(public.shape),
        Features(features),
        Vote(
            method.ballot,
            int(settings["k"]),
            reach,
            radius=bound.radius,
            max_contributions=bound.max_contributions,
        ),
    )


def subject(
    method: DemoMethod, scale: Scale, data: Partition, agents: dict[str, dict[str, str]]
) -> Subject:
    """The demo on parts that agents have, wherever they are."""
    known = sorted(len(np.unique(part.y)) for part in data.private)
    told = (
        f"data: {data.test.name.split('/')[0]}, split into {scale.agents} private parts of at "
        f"least {min(map(len, data.private))} points, {len(data.public)} public queries, "
        f"{len(data.test)} test points",
        f"an agent knows {known[0]} to {known[-1]} of the {data.public.classes} classes",
    )

    def alone(part: Dataset, number: int) -> Predict:
        return _alone(method, part, scale.seed + number)

    return Subject(
        data,
        told,
        agents,
        alone,
        lambda on_progress: _oracle(data, scale.seed, on_progress),
        student=_STUDENT,
    )


def _oracle(data: Partition, seed: int, on_progress: OnProgress) -> float:
    from mpc_vote.learning.students.supervised import train_student

    public, test = data.public, data.test
    student = train_student(public.x, public.y, public.classes, seed, on_progress=on_progress)
    return student.agreement(test.x, test.y)


def _alone(method: DemoMethod, part: Dataset, seed: int) -> Predict:
    """An agent's model, or its five nearest points."""
    if method.name == Method.AE:
        from mpc_vote.learning.voters.local_model import ModelVoter

        return ModelVoter.train(part.x, part.y, part.classes, seed).predict
    from mpc_vote.learning.voters.knn import KnnVoter

    features = method.settings(0)["features"]
    neighbours = KnnVoter(part.x, part.y, part.classes, 5, features=features)
    return lambda queries: neighbours.counts(queries).argmax(axis=1)
