"""Tasks over real processes: two at once and rounds without one, on one committee; agents with one
ledger for all that they answer; another task is refused, and told in what it differs."""

from __future__ import annotations

import asyncio
import contextlib
import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mpc_vote.client import LabelClient, Plan
from mpc_vote.errors import ErrorKind, VoteError
from mpc_vote.pki.identity import Identity, Role
from mpc_vote.privacy.ledger import LedgerView
from mpc_vote.proto.mpcvote.v1 import agent_pb2, agent_pb2_grpc, label_pb2, label_pb2_grpc
from mpc_vote.tasks import TableInput, Task, agreement
from mpc_vote.tasks.toml import dump
from mpc_vote.testbed.cluster import Cluster
from mpc_vote.transport import tensors
from tests.system.service.support import (
    CLINICS,
    SECONDS,
    Service,
    command,
    error_of,
    refused,
    until,
)

STAY = Task.parse(
    """
    format = 1
    name = "stay"
    classes = ["short", "long"]
    [input]
    kind = "table"
    label = "stay"
    [[input.columns]]
    name = "age"
    kind = "number"
    center = 50.0
    scale = 10.0
    [[input.columns]]
    name = "ward"
    kind = "category"
    values = ["day", "night"]
    [features]
    map = "standard"
    [vote]
    ballot = "knn_count"
    k = 5
    """
)
MARKS = Task.parse(
    """
    format = 1
    name = "marks"
    classes = ["red", "green", "blue"]
    [input]
    kind = "vector"
    shape = [4]
    [features]
    map = "raw"
    [vote]
    ballot = "multi_label"
    k = 3
    tau = 2
    """
)
AGENTS = ("ann", "bob", "cleo")


def patients(seed: int, rows: int) -> list[dict[str, Any]]:
    """Old people stay long; some ages are missing, and the ward says the rest."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(rows):
        old = bool(rng.integers(2))
        age = rng.normal(70.0 if old else 30.0, 3.0)
        found.append(
            {
                "age": "" if rng.random() < 0.1 else f"{age:.1f}",
                "ward": "night" if old else "day",
                "stay": "long" if old else "short",
            }
        )
    return found


def write_csv(path: Path, rows: list[dict[str, Any]], *columns: str) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns or list(rows[0]), extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)
    return path


def marked(seed: int, rows: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Points whose first coordinates say which attributes they have."""
    rng = np.random.default_rng(seed)
    y = np.zeros((rows, 3), dtype=np.int64)
    y[np.arange(rows), rng.integers(3, size=rows)] = 1
    x = np.concatenate([4.0 * y, np.zeros((rows, 1))], axis=1) + rng.normal(size=(rows, 4)) * 0.1
    return x.astype(np.float32), y


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Three agents that answer both tasks, and the clinics, which answer rounds without one."""
    directory = tmp_path_factory.mktemp("tasks")
    files = {}
    for task in (STAY, MARKS):
        files[task.name] = directory / f"{task.name}.toml"
        files[task.name].write_text(dump(task))
    serves = {}
    for place, name in enumerate(AGENTS):
        table = write_csv(directory / f"{name}.csv", patients(place, 60))
        x, y = marked(place, 60)
        np.savez(directory / f"{name}.npz", x=x, y=y, classes=3, name="marks")
        serves[name] = [
            {"task": str(files["stay"]), "data": str(table)},
            {"task": str(files["marks"]), "data": str(directory / f"{name}.npz")},
        ]
    agents: dict[str, dict[str, str]] = {name: {} for name in AGENTS}
    clinics = CLINICS.write(directory / "private")
    cluster = Cluster(
        directory, 2, {**agents, **clinics}, tasks=list(files.values()), serves=serves
    )
    cluster.issue()
    try:
        cluster.start()
        asyncio.run(cluster.ready(2 * SECONDS))
        yield Service(cluster, {"clinics": CLINICS})
    finally:
        cluster.stop()


@pytest.fixture
def client(federation: Service) -> Iterator[LabelClient]:
    address = federation.cluster.coordinator_address
    with LabelClient(address, federation.cluster.client_certs) as made:
        yield made


def ledger(service: Service, agent: str) -> LedgerView:
    return LedgerView(service.cluster.directory / "data" / agent / "ledger.db")


def spent(service: Service) -> list[int]:
    """Spends that each ledger has."""
    counts = []
    for name in (*AGENTS, *CLINICS.ks, "coordinator"):
        with ledger(service, name) as view:
            counts.append(len(view.spends()))
    return counts


def table_rows(task: Task, rows: list[dict[str, Any]]) -> np.ndarray[Any, Any]:
    assert isinstance(task.input, TableInput)
    ages = [float(row["age"]) if row["age"] else None for row in rows]
    return task.input.encode({"age": ages, "ward": [row["ward"] for row in rows]})


async def test_two_tasks_and_rounds_without_one_at_once(federation: Service) -> None:
    asked = patients(9, 12)
    x, y = marked(9, 8)
    queries = CLINICS.queries(10)
    async with federation.client() as client:
        stay, marks, plain = await asyncio.gather(
            client.label(table_rows(STAY, asked), Plan(task=STAY, sigma=1.0)),
            client.label(x, Plan(task=MARKS, sigma=0.2)),
            client.label(queries, CLINICS.plan()),
        )
    assert stay.names == [row["stay"] for row in asked]
    assert marks.names == [[MARKS.classes[int(np.argmax(row))]] for row in y]
    assert plain.names is None and (plain.labels == CLINICS.winners(queries)).all()
    assert stay.spec is not None and marks.spec is not None and plain.spec is not None
    assert [entry.agent for entry in stay.spec.roster] == list(AGENTS)
    assert {entry.k for entry in stay.spec.roster} == {5}
    assert (stay.spec.task, stay.spec.task_digest) == ("stay", STAY.digest)
    assert (marks.spec.task_digest, marks.spec.tau) == (MARKS.digest, 2)
    assert {entry.agent for entry in plain.spec.roster} == set(CLINICS.ks)
    assert (plain.spec.task, plain.spec.task_digest) == ("", b"")


def test_an_agents_budget_adds_up_over_its_tasks(federation: Service, client: LabelClient) -> None:
    """Either round alone would fit the newcomer's budget, but not one after the other."""
    stay = (table_rows(STAY, patients(10, 5)), Plan(task=STAY, sigma=9.0))
    marks = (marked(10, 5)[0], Plan(task=MARKS, sigma=9.0, agreement=None))
    costs = [client.label(*request).cost.epsilon_instance for request in (stay, marks)]
    with ledger(federation, "ann") as view:
        assert [spend.note for spend in view.spends()[-2:]] == [
            "task stay, knn_count, sigma 9",
            "task marks, multi_label, sigma 9",
        ]
    served = federation.cluster.serves["ann"]
    with newcomer(federation, "dora", served, budget_instance=1.01 * max(costs)):
        asyncio.run(federation.cluster.ready(SECONDS))
        assert client.label(stay[0], replace(stay[1], quorum=4)).contributors == 4
        before = spent(federation)
        with refused(ErrorKind.QUORUM_UNAFFORDABLE, "dora"):
            client.label(marks[0], replace(marks[1], quorum=4))
        assert spent(federation) == before
        with ledger(federation, "dora") as view:
            assert [spend.note for spend in view.spends()] == ["task stay, knn_count, sigma 9"]


@contextlib.contextmanager
def newcomer(
    service: Service, name: str, serves: Sequence[Mapping[str, str]], **settings: object
) -> Iterator[Path]:
    """One more agent; gives its log."""
    cluster = service.cluster
    service.certs(Role.AGENT, name)
    flags = {key.replace("_", "-"): str(value) for key, value in settings.items()}
    cluster.agents = {**cluster.agents, name: flags}
    cluster.serves = {**cluster.serves, name: serves}
    cluster.start_agent(name)
    try:
        yield cluster.children[name].log
    finally:
        cluster.stop_child(name)
        cluster.agents = {one: cluster.agents[one] for one in cluster.agents if one != name}


def test_queries_that_are_no_inputs_of_the_task_cost_nothing(
    federation: Service, client: LabelClient
) -> None:
    before = spent(federation)
    rows = table_rows(STAY, patients(12, 4))
    rows[2, 2] = 7.0
    with refused(ErrorKind.INPUT_UNFIT, "row 2 is no table of this task"):
        client.label(rows, Plan(task=STAY, sigma=1.0))
    with refused(ErrorKind.INPUT_UNFIT, "not float64"):
        client.label(rows.astype(np.float64), Plan(task=STAY, sigma=1.0))
    assert spent(federation) == before


async def test_nor_do_they_where_a_client_does_not_check_them(federation: Service) -> None:
    before = spent(federation)
    rows = table_rows(STAY, patients(12, 4))
    rows[3, 1] = 0.5
    caller, server = Identity(Role.CLIENT, "client"), Identity(Role.COORDINATOR, "coordinator")
    async with federation.channel(caller, server) as channel:
        plan = label_pb2.LabelPlan(task="stay", sigma=1.0)
        error = await asked(channel, plan, rows)
        assert error.kind is ErrorKind.INPUT_UNFIT and "row 3" in error.message
        for wrong, kind in (
            (label_pb2.LabelPlan(task="stay", classes=3), ErrorKind.TASK_CONTRADICTED),
            (label_pb2.LabelPlan(task="gone"), ErrorKind.TASK_UNKNOWN),
            (label_pb2.LabelPlan(task_digest=STAY.digest), ErrorKind.TASK_UNKNOWN),
            (label_pb2.LabelPlan(task="stay", task_digest=MARKS.digest), ErrorKind.TASK_DIFFERS),
        ):
            assert (await asked(channel, wrong, rows)).kind is kind
    assert spent(federation) == before


async def asked(channel: Any, plan: label_pb2.LabelPlan, rows: np.ndarray[Any, Any]) -> VoteError:
    """What a client is told that asks by hand."""
    request = label_pb2.RequestLabelsRequest(plan=plan, queries=tensors.to_tensor(rows))
    stub = label_pb2_grpc.LabelServiceStub(channel)
    return await error_of(stub.RequestLabels(iter([request]), timeout=SECONDS))


def test_a_client_with_another_task_is_told_in_what(client: LabelClient) -> None:
    other = replace(STAY, vote=replace(STAY.vote, k=6))
    rows = table_rows(STAY, patients(13, 3))
    with refused(ErrorKind.TASK_DIFFERS, "vote.k is 6 here, 5 there"):
        client.label(rows, Plan(task=other, sigma=1.0))
    with refused(ErrorKind.TASK_CONTRADICTED, "classes is 3, and task stay has 2"):
        client.label(rows, Plan(task=STAY, classes=3))


def test_tasks_are_listed_and_can_be_fetched(client: LabelClient) -> None:
    service = client.service()
    assert {task.name: task.digest for task in service.tasks} == {
        "stay": STAY.digest,
        "marks": MARKS.digest,
    }
    tasks = {agent.agent: list(agent.tasks) for agent in service.agents}
    assert tasks["ann"] == ["stay", "marks"] and tasks["clinic-0"] == []
    assert client.task("stay") == STAY
    with refused(ErrorKind.TASK_UNKNOWN, "stay, marks"):
        client.task("gone")


async def turned_away(service: Service, name: str, offer: Any) -> VoteError:
    """What the coordinator tells an agent with this offer."""
    caller, server = Identity(Role.AGENT, name), Identity(Role.COORDINATOR, "coordinator")
    async with service.channel(caller, server) as channel:
        call = agent_pb2_grpc.AgentServiceStub(channel).Attend()
        told = agent_pb2.Capabilities(
            offers=[offer], ledger_id="a" * 32, process_id="b" * 32, min_quorum=1
        )
        await call.write(agent_pb2.AttendRequest(capabilities=told))
        return await error_of(call.read())


async def test_an_agent_of_an_unknown_or_another_task_is_turned_away(federation: Service) -> None:
    gone = agreement.offer_of(replace(STAY, name="gone"))
    error = await turned_away(federation, "eve", gone)
    assert error.kind is ErrorKind.TASK_UNKNOWN and "stay, marks" in error.message
    other = agreement.offer_of(replace(STAY, vote=replace(STAY.vote, k=6)))
    error = await turned_away(federation, "eve", other)
    assert error.kind is ErrorKind.TASK_DIFFERS
    lie = agreement.offer_of(STAY)
    lie.k = 50
    error = await turned_away(federation, "eve", lie)
    assert error.kind is ErrorKind.SPEC_INVALID and "not what task stay says" in error.message


async def test_it_logs_the_settings_that_differ(federation: Service, tmp_path: Path) -> None:
    """A real agent with another k under the same name."""
    other = tmp_path / "other.toml"
    other.write_text(dump(replace(STAY, vote=replace(STAY.vote, k=6))))
    data = write_csv(tmp_path / "finn.csv", patients(1, 30))
    with newcomer(federation, "finn", [{"task": str(other), "data": str(data)}]) as log:
        sentence = "not attending: Task stay is not the same for agent finn (here) and the coord"

        async def told() -> bool:
            return sentence in log.read_text()

        await until(told, "it does not attend, and says why")
        assert "vote.k is 6 here, 5 there" in log.read_text()


def test_from_a_table_to_a_table_with_the_names_of_classes(
    federation: Service, tmp_path: Path
) -> None:
    cluster = federation.cluster
    task = cluster.directory / "stay.toml"
    rows = patients(20, 15)
    queries = write_csv(tmp_path / "queries.csv", rows, "age", "ward")
    out, model_out = tmp_path / "labelled.csv", tmp_path / "model.csv"
    shared = [f"--certs={cluster.client_certs}", f"--coordinator={cluster.coordinator_address}"]
    done = command(
        "label", *shared, f"--task={task}", f"--queries={queries}", f"--out={out}", "--sigma=1",
        "--json=-",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert figures["task"] == "stay"
    assert figures["classes"] == {
        name: sum(row["stay"] == name for row in rows) for name in STAY.classes
    }
    with out.open() as file:
        assert [row["stay"] for row in csv.DictReader(file)] == [row["stay"] for row in rows]

    again = tmp_path / "again.csv"
    done = command("rounds", *shared, f"--round={figures['round_id']}", f"--out={again}")
    assert done.returncode == 0, done.stderr
    with again.open() as file:
        fetched = list(csv.DictReader(file))
    assert [row["stay"] for row in fetched] == [row["stay"] for row in rows]
    # They are numbered as queries: rows of which file they are of is not known there.
    assert [row["query"] for row in fetched] == [str(place) for place in range(1, len(rows) + 1)]

    done = command("train", *shared, f"--task={task}", "--json=-")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["task"] == "stay"
    fresh = patients(21, 20)
    inputs = write_csv(tmp_path / "new.csv", fresh, "age", "ward")
    done = command(
        "model", *shared, f"--task={task}", f"--inputs={inputs}", f"--labels={model_out}"
    )
    assert done.returncode == 0, done.stderr
    with model_out.open() as file:
        predicted = [row["stay"] for row in csv.DictReader(file)]
    assert np.mean([p == row["stay"] for p, row in zip(predicted, fresh, strict=True)]) > 0.9

    done = command("status", *shared)
    assert done.returncode == 0 and "task stay: 3 agents" in done.stdout
    done = command("label", *shared, f"--queries={queries}", f"--out={out}")
    assert done.returncode == 2 and "--task: is missing" in done.stderr
    done = command("label", *shared, "--classes=2", f"--queries={queries}", f"--out={out}")
    assert done.returncode == 1 and "pass --task" in done.stderr


def test_a_round_of_a_task_is_planned_without_a_spend(
    federation: Service, client: LabelClient
) -> None:
    before = spent(federation)
    told = client.plan(20, Plan(task=STAY, sigma=2.0))
    assert dict(told.agents) == dict.fromkeys(AGENTS, 5)
    assert (told.task, told.votes) == ("stay", 15)
    assert told.left_out == dict.fromkeys(CLINICS.ks, "answers no rounds of task stay")
    assert client.plan(table_rows(STAY, patients(14, 20)), Plan(task=STAY, sigma=2.0)) == told
    marks = client.plan(5, Plan(task=MARKS, sigma=0.2))
    assert marks.forecast(0.9).high > 0.99
    other = replace(STAY, vote=replace(STAY.vote, k=6))
    with refused(ErrorKind.TASK_DIFFERS, "vote.k is 6 here, 5 there"):
        client.plan(20, Plan(task=other, sigma=2.0))
    assert spent(federation) == before


def test_representatives_of_a_table_are_asked_about_and_other_rows_have_no_label(
    federation: Service, tmp_path: Path
) -> None:
    rows = patients(15, 30)
    table = write_csv(tmp_path / "public.csv", rows, "age", "ward")
    task = tmp_path / "stay.toml"
    task.write_text(dump(STAY))
    cluster = federation.cluster
    where = ("--certs", cluster.client_certs, "--coordinator", cluster.coordinator_address)
    files = ("--task", task, "--queries", table, "--out", tmp_path / "labelled.csv")
    done = command("label", *where, *files, "--sigma=1", "--select=8", "--json=-")
    assert done.returncode == 0, done.stderr
    chosen = json.loads(done.stdout)["selected"]
    with (tmp_path / "labelled.csv").open(newline="") as file:
        written = list(csv.DictReader(file))
    assert len(chosen) == 8
    for place, (row, known) in enumerate(zip(written, rows, strict=True)):
        assert (row["age"], row["ward"]) == (known["age"], known["ward"])
        assert row["stay"] == (known["stay"] if place in chosen else "")
