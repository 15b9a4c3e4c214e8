"""The demo on a clinical table: a task drafted from public rows, agents with CSV files, and voters
of different kinds in one round.

Of four agents in turn, one votes by its neighbours, one by a network, and two bring models that
were trained elsewhere: a scikit-learn estimator, and an ONNX file.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mpc_vote.app.config import Method
from mpc_vote.app.process import CommandError
from mpc_vote.data.clinical import LABEL, ClinicalTable, load_clinical
from mpc_vote.data.dataset import Dataset
from mpc_vote.data.partition import Partition, split_skewed
from mpc_vote.data.readers import read_inputs, read_labelled
from mpc_vote.data.sample import Wishes
from mpc_vote.learning.drafting import draft_task
from mpc_vote.learning.features import for_task
from mpc_vote.tasks import Task
from mpc_vote.testbed.demo import models
from mpc_vote.testbed.demo.subject import DemoMethod, OnProgress, Predict, Scale, Subject
from mpc_vote.voting.ballots import KNN_COUNT, ONE_HOT

MIXED = "mixed"
QUERIES = 150
METHODS = {
    MIXED: DemoMethod(
        MIXED,
        ONE_HOT,
        1.5,
        (
            {"voter": "knn", "k": "5"},
            {"voter": "network"},
            {"voter": "sklearn"},
            {"voter": "onnx"},
        ),
    ),
    Method.KNN: DemoMethod(Method.KNN, KNN_COUNT, 12.0, ({"voter": "knn"},)),
    Method.AE: DemoMethod(Method.AE, ONE_HOT, 1.5, ({"voter": "network"},)),
}
_TEST_ROWS = 150
_K = 10


@dataclass(frozen=True)
class Files:
    """Where the parts of the table are."""

    sample: Path
    """Public rows to ask about, without labels; a task can be drafted from it."""
    answers: Path
    """The same rows with labels, to score what was asked."""
    test: Path
    private: tuple[Path, ...]


def write(scale: Scale, folder: Path) -> Files:
    """Splits the table into CSV files; agents have both classes in like shares."""
    table = load_clinical()
    numbers = np.arange(len(table), dtype=np.float32)[:, None]
    rows = Dataset("breast-cancer", numbers, table.labels, len(table.classes))
    try:
        parts = split_skewed(
            rows, scale.agents, scale.queries, _TEST_ROWS, scale.seed, scale.agents
        )
    except ValueError as error:
        raise CommandError(f"the data can't be split like that: {error}") from error
    files = Files(
        folder / "public.csv",
        folder / "answers.csv",
        folder / "test.csv",
        tuple(folder / f"hospital-{number}.csv" for number in range(scale.agents)),
    )
    _write(table, files.sample, parts.public, labelled=False)
    _write(table, files.answers, parts.public)
    _write(table, files.test, parts.test)
    for path, part in zip(files.private, parts.private, strict=True):
        _write(table, path, part)
    return files


def _write(table: ClinicalTable, path: Path, part: Dataset, *, labelled: bool = True) -> None:
    table.write(path, part.x[:, 0].astype(np.int64).tolist(), labelled=labelled)


def prepare(method: DemoMethod, scale: Scale, folder: Path) -> Subject:
    """Writes tables, the task, and the models that agents bring."""
    files = write(scale, folder)
    path = folder / "task.toml"
    wishes = Wishes(label=LABEL, classes=load_clinical().classes)
    drafted = draft_task(files.sample, wishes, name="biopsies", ballot=method.ballot, k=_K)
    path.write_text(drafted.text, encoding="utf-8")
    task = Task.load(path)
    private = tuple(read_labelled(one, task) for one in files.private)
    agents = {
        f"hospital-{number}": _agent(method, task, path, number, part, files.private[number])
        for number, part in enumerate(private)
    }
    data = Partition(private, _public(task, files), read_labelled(files.test, task))
    told = (
        f"data: {scale.agents} tables (CSV) of at least {min(map(len, private))} biopsies, "
        f"{len(data.public)} public queries, {len(data.test)} test rows, 30 columns",
        f"task {task.name}: scales of the columns drafted from the public queries, "
        f"{task.vote.ballot.name} ballots, classes {' and '.join(task.classes)}",
    )

    def alone(part: Dataset, number: int) -> Predict:
        return models.voter_of(agents[f"hospital-{number}"], task, part, scale.seed + number)

    return Subject(
        data,
        told,
        agents,
        alone,
        lambda on_progress: _oracle(task, data, scale.seed, on_progress),
        task,
        (path,),
    )


def _agent(
    method: DemoMethod, task: Task, path: Path, number: int, part: Dataset, csv: Path
) -> dict[str, str]:
    """An agent's settings; a model that it brings is trained here, on its own part."""
    settings = {"task": str(path), "data": str(csv), **method.settings(number)}
    if settings["voter"] in models.BROUGHT:
        model = csv.with_suffix(models.BROUGHT[settings["voter"]].ending)
        models.BROUGHT[settings["voter"]].train(for_task(task)(part.x), part.y, model)
        settings["model"] = str(model)
    return settings


def _public(task: Task, files: Files) -> Dataset:
    """The queries as they are asked, with the labels that nobody is told."""
    queries, answers = read_inputs(files.sample, task).rows, read_labelled(files.answers, task)
    return Dataset("public", queries, answers.y, answers.classes)


def _oracle(task: Task, data: Partition, seed: int, on_progress: OnProgress) -> float:
    from mpc_vote.learning import students

    see = for_task(task)
    public, test = data.public, data.test
    options = students.StudentOptions(public.classes, seed, on_progress=on_progress)
    trainer = students.find_student(students.DEFAULT)
    model = trainer.train(see(public.x), public.y, None, options)
    return float(np.mean(students.predict(model, see(test.x), public.classes) == test.y))
