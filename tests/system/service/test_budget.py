"""Budgets in the service: what is spent is told, what is over is refused, and whoever is killed in
between loses no spend and lets nothing out that is not charged.

Run as a program, this is what starts the roles that die: it has everything imported, so that a role
is a fork away, and each role names the points that it passes and dies at the one it is told to.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial, wraps
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import grpc
import psutil
import pytest

from agent_node.agent import Agent
from agent_node.policy import Policy
from aggregator.coordinator.archive import Archive
from aggregator.coordinator.attendance import Attendance
from aggregator.coordinator.rounds import Round, RoundRunner
from mpc_vote import cli
from mpc_vote.app.process import PARENT_VARIABLE
from mpc_vote.client import AsyncLabelClient, LabelResult
from mpc_vote.errors import ErrorKind, VoteError
from mpc_vote.pki.identity import Role
from mpc_vote.privacy import Budget, CoinVote, Ledger, Level, charged_epsilon
from mpc_vote.privacy.ledger import LEDGER_ID, LedgerView, Spend
from mpc_vote.privacy.rounding import round_down
from mpc_vote.privacy.sensitivity import Sensitivity
from mpc_vote.proto.mpcvote.v1 import agent_pb2, label_pb2
from mpc_vote.voting.ballots import KNN_COUNT, KNN_FREQUENCY, ONE_HOT, BallotKind
from tests.system.service.support import (
    SECONDS,
    Group,
    Service,
    attends,
    command,
    refused,
    until,
)

DELTA = 1e-5
SIGMA = 25.0
ROWS = 10


def ledger_of(service: Service, name: str) -> Path:
    return service.cluster.directory / "data" / name / "ledger.db"


def spends_of(service: Service, name: str) -> list[Spend]:
    """Everything that a role has ever charged, as it is on disk."""
    with LedgerView(ledger_of(service, name)) as view:
        return view.spends()


def ids_of(service: Service, name: str) -> list[str]:
    return [spend.round_id for spend in spends_of(service, name)]


def count_vote(queries: int, k: int) -> CoinVote:
    """A verified round of count ballots of agents with k neighbours each, at SIGMA."""
    levels = ((1, 11), (2, 8), (3, 5), (6, 67))
    return CoinVote(queries, levels, 1, Sensitivity(k, k**2), Sensitivity.of_cells(2, 1))


def budget_for(rounds: int) -> str:
    """An instance-level budget for exactly this many rounds."""
    limit = charged_epsilon([count_vote(ROWS, 5)] * rounds, Level.INSTANCE, DELTA)
    return repr(limit * (1 + 1e-6))


# Several rounds at once


async def at_once(
    client: AsyncLabelClient, group: Group, rounds: int, **plan: Any
) -> list[LabelResult | VoteError]:
    """Asks for so many rounds at the same time."""
    asked = (
        client.label(group.queries(ROWS, seed=n), group.plan(sigma=SIGMA, agreement=None, **plan))
        for n in range(rounds)
    )
    answers = []
    for answer in await asyncio.gather(*asked, return_exceptions=True):
        assert isinstance(answer, LabelResult | VoteError), answer
        answers.append(answer)
    return answers


async def test_an_agent_answers_as_many_rounds_as_its_budget_allows_and_the_others_go_on(
    fragile: Service, farms: Group
) -> None:
    others = {name: len(ids_of(fragile, name)) for name in fragile.cluster.agents}
    async with (
        fragile.extra_agent("thrifty", farms, budget_instance=budget_for(2)),
        fragile.client() as client,
    ):
        answers = await at_once(client, farms, 4, quorum=3)
        results = [answer for answer in answers if isinstance(answer, LabelResult)]
        assert len(results) == 4, answers
        without = [result for result in results if result.absences]
        assert sorted(result.contributors for result in results) == [3, 3, 4, 4]
        charged = {result.round_id for result in results if not result.absences}
        assert set(ids_of(fragile, "thrifty")) == charged
        limit = float(budget_for(2))
        log = fragile.cluster.directory / "logs" / "coordinator.log"
        for result in without:
            assert result.absences.keys() == {"thrifty"}
            reason = result.absences["thrifty"]
            for part in (
                "BUDGET_EXHAUSTED: The instance-level privacy budget of agent thrifty",
                f" of {round_down(limit)} is left",
                "would bring the spend to ",
                "(delta 1e-05",
                "0 queries with this noise would fit",
                "Ask for fewer queries or more noise.",
            ):
                assert part in reason, reason
            told = f"round {result.round_id} went without thrifty: {reason}"
            assert told in log.read_text()
        with LedgerView(ledger_of(fragile, "thrifty")) as view:
            assert view.spent(Level.INSTANCE, DELTA) <= limit
            assert view.budget == Budget(None, limit, DELTA)
    for name, known in others.items():
        assert len(ids_of(fragile, name)) == known + 4


async def test_rounds_that_need_an_agent_whose_budget_is_promised_away_cost_nobody_anything(
    fragile: Service, farms: Group
) -> None:
    """All are prepared at the same time; the agent keeps every promise that it gives."""
    roles = [*fragile.cluster.agents, "coordinator"]
    known = {name: len(ids_of(fragile, name)) for name in roles}
    async with (
        fragile.extra_agent("needed", farms, budget_instance=budget_for(2)),
        fragile.client() as client,
    ):
        answers = await at_once(client, farms, 4, quorum=4, answer_seconds=10)
        done = {answer.round_id for answer in answers if isinstance(answer, LabelResult)}
        errors = [answer for answer in answers if isinstance(answer, VoteError)]
        assert len(done) == len(errors) == 2, answers
        for error in errors:
            assert error.kind is ErrorKind.QUORUM_UNAFFORDABLE
            assert error.kind.status is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert "no more than 3 can pay" in error.message
            assert "Nothing was spent." in error.message
            assert "needed: BUDGET_EXHAUSTED" in error.message
            assert len(error.message) < 420, error.message
        for name in roles:
            assert set(ids_of(fragile, name)[known[name] :]) == done, name
        assert set(ids_of(fragile, "needed")) == done


async def test_a_service_that_has_spent_its_budget_says_where_it_stands(
    fragile: Service, farms: Group
) -> None:
    """The operator sets a limit that one more round would pass; then takes it away again."""
    roles = [*fragile.cluster.agents, "coordinator"]
    with LedgerView(ledger_of(fragile, "coordinator")) as view:
        spent = view.spent(Level.INSTANCE, DELTA)
    assert spent > 0
    with limited(fragile, {"budget-instance": repr(spent)}):
        async with fragile.client() as client:
            await until(lambda: attends(client, *fragile.cluster.agents), "the agents are back")
            known = {name: ids_of(fragile, name) for name in roles}
            (answer,) = await at_once(client, farms, 1, quorum=3, answer_seconds=10)
            assert isinstance(answer, VoteError)
            assert answer.kind is ErrorKind.BUDGET_EXHAUSTED
            assert "privacy budget of the service" in answer.message
            assert float(answer.values["limit_instance"]) == spent
            assert float(answer.values["asked_agent"]) > float(answer.values["spent_agent"])
            assert answer.values["limit_agent"] == "None"
            assert {name: ids_of(fragile, name) for name in roles} == known
            asked = await asyncio.to_thread(budget_of_service, fragile)
            assert asked["levels"]["instance"] == {"spent": spent, "limit": spent, "remaining": 0}
            assert asked["levels"]["agent"]["limit"] is None
    async with fragile.client() as client:
        await until(lambda: attends(client, *fragile.cluster.agents), "the agents are back")


@contextlib.contextmanager
def limited(service: Service, limits: Mapping[str, str]) -> Iterator[None]:
    """The coordinator has other settings inside."""
    cluster = service.cluster
    plain = cluster.coordinator_settings

    def restart(settings: Mapping[str, str]) -> None:
        cluster.stop_child("coordinator")
        cluster.coordinator_settings = settings
        cluster.start_coordinator()

    restart({**plain, **limits})
    try:
        yield
    finally:
        restart(plain)


async def test_an_agent_says_one_thing_at_a_time(tmp_path: Path) -> None:
    """gRPC gives a stream up that two write to at once, without telling its reader."""

    class Stream:
        writing = False
        written = 0

        async def write(self, message: agent_pb2.AttendRequest) -> None:
            assert not self.writing
            self.writing = True
            await asyncio.sleep(0)
            self.writing = False
            self.written += 1

    stream, unused = Stream(), agent_pb2.Capabilities()
    async with grpc.aio.insecure_channel("localhost:1") as channel:
        policy: Any = None
        agent = Agent("ann", policy, [], unused, cast(Any, channel), {}, tmp_path)
        await asyncio.gather(*(agent._say(stream, agent_pb2.AttendRequest()) for _ in range(5)))
    assert stream.written == 5


# What is left, from the shell


def budget(*flags: str | Path) -> dict[str, Any]:
    done = command("budget", *flags, "--json=-")
    assert done.returncode == 0, done.stderr
    figures: dict[str, Any] = json.loads(done.stdout)
    return figures


def budget_of_service(service: Service) -> dict[str, Any]:
    certs = service.certs(Role.CLIENT, "asker")
    return budget("--certs", certs, f"--coordinator={service.cluster.coordinator_address}")


async def test_the_budget_of_a_running_agent_is_a_query(fragile: Service, farms: Group) -> None:
    """Over methods, clients and restarts: what the account says of everything it ever answered."""
    folder = ledger_of(fragile, "turncoat").parent
    lives: list[tuple[str, dict[str, str], list[BallotKind]]] = [
        ("asker", {}, [KNN_COUNT, KNN_FREQUENCY]),
        ("another", {"voter": "network"}, [ONE_HOT]),
    ]
    for name, flags, ballots in lives:
        async with (
            fragile.extra_agent("turncoat", farms, budget_instance="20", **flags),
            fragile.client(name) as client,
        ):
            for ballot in ballots:
                quorum = 1 if ballot is ONE_HOT else 4
                plan = farms.plan(
                    sigma=SIGMA, ballot=ballot, quorum=quorum, collusion=0, agreement=None
                )
                await client.label(farms.queries(ROWS), plan)
            figures = await asyncio.to_thread(budget, "--data-dir", folder, "--spends", "--k=10")
    spends = spends_of(fragile, "turncoat")
    assert [spend.note for spend in spends] == [
        f"{kind.name}, sigma 25" for _, _, ballots in lives for kind in ballots
    ]
    assert [row["round_id"] for row in figures["spends"]] == [s.round_id for s in spends]
    assert (figures["rounds"], figures["queries"], figures["delta"]) == (3, 3 * ROWS, DELTA)
    assert figures["owner"] == "agent/turncoat" and LEDGER_ID.fullmatch(figures["ledger_id"])
    answered = [spend.mechanism for spend in spends]
    agent, instance = figures["levels"]["agent"], figures["levels"]["instance"]
    assert agent["spent"] == pytest.approx(charged_epsilon(answered, Level.AGENT, DELTA), rel=1e-12)
    assert (agent["limit"], agent["remaining"]) == (None, None)
    assert instance["spent"] == pytest.approx(
        charged_epsilon(answered, Level.INSTANCE, DELTA), rel=1e-12
    )
    assert (instance["limit"], instance["remaining"]) == (20.0, 20.0 - instance["spent"])
    (buys,) = figures["buys"]
    more = [*answered, count_vote(buys["queries"], 10)]
    assert charged_epsilon(more, Level.INSTANCE, DELTA) <= 20.0
    assert charged_epsilon([*more, count_vote(1, 10)], Level.INSTANCE, DELTA) > 20.0


def test_a_client_asks_the_service_and_an_operator_the_file(fragile: Service) -> None:
    asked = budget_of_service(fragile)
    read = budget("--data-dir", ledger_of(fragile, "coordinator").parent, "--k=5")
    assert asked["levels"] == read["levels"]
    assert asked["delta"] == read["delta"]
    assert read["limits_noted"]
    assert [row["queries"] for row in read["buys"]] == [None]
    folder = ledger_of(fragile, "north").parent
    assert "pass --k" in command("budget", "--data-dir", folder).stdout
    told = command("budget", "--data-dir", folder, "--k=10").stdout
    assert "there is no limit" in told
    assert "allows any number of more queries at sigma 25 (knn_count of 10 neighbours)" in told


def test_what_is_left_is_told_in_words(tmp_path: Path) -> None:
    limit = charged_epsilon([count_vote(100, 10)], Level.INSTANCE, DELTA)
    with Ledger(tmp_path / "ledger.db", Budget(None, limit, DELTA)) as ledger:
        ledger.charge("first", count_vote(40, 10), "knn_count, sigma 25")
        done = command("budget", "--data-dir", tmp_path, "--sigma=25,50", "--spends", "--k=10")
    assert done.returncode == 0, done.stderr
    for part in (
        "of nobody yet, ledger ",
        "1 round, 40 queries",
        "no limit",
        round_down(limit),
        "allows 60 more queries at sigma 25 (knn_count of 10 neighbours)",
        "queries at sigma 50",
        "first",
        "knn_count, sigma 25",
    ):
        assert part in done.stdout, done.stdout


def _none(path: Path) -> None:
    pass


def _empty(path: Path) -> None:
    path.touch()


def _text(path: Path) -> None:
    path.write_text("no database, and long enough to be sure of it" * 100)


def _theirs(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as other:
        other.execute("CREATE TABLE theirs (x)")


def _newer(path: Path) -> None:
    with Ledger(path, None) as ledger:
        ledger._db.execute("PRAGMA user_version = 99")


def _odd(path: Path) -> None:
    with Ledger(path, None) as ledger:
        ledger._db.execute(
            "INSERT INTO spends (round_id, mechanism, note, charged_at) "
            """VALUES ('odd', '{"type": "future_vote"}', '', '')"""
        )


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (_none, "there is no ledger at"),
        (_empty, "holds no ledger yet"),
        (_text, "is no ledger: file is not a database"),
        (_theirs, "is a database, but no ledger"),
        (_newer, "has schema 99, this version knows up to 4"),
        (_odd, "can't be read: unknown mechanism 'future_vote'"),
    ],
)
def test_a_budget_that_can_not_be_read_is_explained(
    make: Callable[[Path], None], why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make(tmp_path / "ledger.db")
    before = sorted(tmp_path.iterdir())
    assert cli.main(["budget", f"--data-dir={tmp_path}"]) == 1
    error = capsys.readouterr().err
    assert error.startswith("mpc-vote budget: error: ")
    assert why in error
    assert set(before) <= set(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        ([], "pass one: --data-dir"),
        (["--data-dir=d", "--certs=c"], "pass one: --data-dir"),
        (["--data-dir=d", "--sigma=0"], "--sigma: each must be a number above 0"),
        (["--data-dir=d", "--k=0"], "--k: each must be a whole number"),
        (["--data-dir=d", "--ballot=multi_label"], "multi-label ballots need tau"),
        (["--certs=c", "--spends"], "spends: is for --data-dir"),
    ],
)
def test_flags_that_can_not_be_used_are_explained(
    flags: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["budget", *flags]) == 2
    assert why in capsys.readouterr().err


# Roles that are killed at every point where something is written or leaves

# What is written down or sent in a round, in this order.
COORDINATOR_POINTS = (
    "before open_round",
    "after open_round",
    "before charge",
    "before INSERT",
    "after INSERT",
    "after charge",
    "before start",
    "after start",
    "before aggregate",
    "after aggregate",
    "before complete_round",
    "after complete_round",
    "before finish",
    "after finish",
)
AGENT_POINTS = (
    "before check_budget",
    "after check_budget",
    "before say prepared",
    "after say prepared",
    "before charge",
    "before INSERT",
    "after INSERT",
    "after charge",
    "before submit to party-0",
    "before submit to party-1",
    "after submit to party-0",
    "after submit to party-1",
    "before say submitted",
    "after say submitted",
)


class Points:
    """Writes down the points that a role passes, and kills it at the one that a file names."""

    def __init__(self, folder: Path) -> None:
        self._armed, self._passed = folder / "armed", folder / "passed"

    def reach(self, name: str) -> None:
        with self._passed.open("a") as passed:
            passed.write(f"{name}\n")
        if self._armed.read_text() == name:
            os.kill(os.getpid(), signal.SIGKILL)

    def around(self, owner: Any, method: str, name: Callable[..., str]) -> None:
        """Points before and after a method or function, whether it is to be awaited or not."""
        work = getattr(owner, method)

        if asyncio.iscoroutinefunction(work):

            @wraps(work)
            async def watched(*arguments: Any) -> Any:
                self.reach(f"before {name(*arguments)}")
                result = await work(*arguments)
                self.reach(f"after {name(*arguments)}")
                return result

        else:

            @wraps(work)
            def watched(*arguments: Any) -> Any:
                self.reach(f"before {name(*arguments)}")
                result = work(*arguments)
                self.reach(f"after {name(*arguments)}")
                return result

        setattr(owner, method, watched)

    def install(self) -> None:
        """In the role's process, before it starts."""
        points = self

        class Watched(sqlite3.Connection):
            def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
                if not sql.startswith("INSERT INTO spends"):
                    return super().execute(sql, *values)
                points.reach("before INSERT")
                cursor = super().execute(sql, *values)
                points.reach("after INSERT")
                return cursor

        cast(Any, sqlite3).connect = partial(sqlite3.connect, factory=Watched)
        self.around(Ledger, "charge", lambda *_: "charge")
        for owner, method in (
            (Archive, "open_round"),
            (Attendance, "start"),
            (RoundRunner, "_aggregate"),
            (Archive, "complete_round"),
            (Round, "finish"),
            (Policy, "check_budget"),
        ):
            self.around(owner, method, lambda *_, method=method: method.removeprefix("_"))
        self.around(Agent, "_submit", lambda *given: f"submit to {given[3]}")
        self.around(Agent, "_say", lambda *given: f"say {given[2].WhichOneof('message')}")


def nursery() -> None:
    """Forks a role for every line that it reads, and answers with its process id."""
    for module in (
        "agent_node.command",
        "aggregator.coordinator.command",
        "mpc_vote.learning.voters.knn",
    ):
        import_module(module)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    me = os.getpid()
    for line in sys.stdin:
        given = json.loads(line)
        pid = os.fork()
        if pid:
            print(pid, flush=True)
            continue
        os.setsid()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        log = os.open(given["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.environ[PARENT_VARIABLE] = str(me)
        Points(Path(given["folder"])).install()
        os._exit(cli.main(given["arguments"]))


class Mortal:
    """Roles of a cluster that are killed at a point and come back quickly."""

    def __init__(self, service: Service, labels: tuple[str, ...]) -> None:
        self.service = service
        self._labels = labels
        self._pids: dict[str, int] = {}
        self._nursery = subprocess.Popen(
            [sys.executable, "-m", __spec__.name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )

    def folder(self, label: str) -> Path:
        return self.service.cluster.directory / "mortal" / label

    def start(self, label: str) -> None:
        cluster = self.service.cluster
        if label == "coordinator":
            cluster.start_coordinator()
        else:
            cluster.start_agent(label)

    def _fork(self, label: str, command: str, settings: Mapping[str, str]) -> None:
        flags = [part for key, value in settings.items() for part in (f"--{key}", value)]
        log = self.service.cluster.directory / "logs" / f"{label}.log"
        given = {"arguments": [command, *flags], "log": str(log), "folder": str(self.folder(label))}
        assert self._nursery.stdin is not None and self._nursery.stdout is not None
        self._nursery.stdin.write(json.dumps(given) + "\n")
        self._nursery.stdin.flush()
        self._pids[label] = int(self._nursery.stdout.readline())

    def arm(self, label: str, point: str) -> None:
        (self.folder(label) / "armed").write_text(point)
        (self.folder(label) / "passed").write_text("")

    def passed(self, label: str) -> list[str]:
        return (self.folder(label) / "passed").read_text().splitlines()

    async def died(self, label: str, point: str) -> None:
        """Waits for the death that was arranged; from then on nothing is."""

        async def gone() -> bool:
            return not psutil.pid_exists(self._pids[label])

        await until(gone, f"{label} dies {point}", step=0.01)
        assert self.passed(label)[-1] == point
        self.arm(label, "")

    def __enter__(self) -> Mortal:
        cluster = self.service.cluster
        for label in self._labels:
            self.folder(label).mkdir(parents=True)
            self.arm(label, "")
            cluster.stop_child(label)
        cast(Any, cluster).start_command = self._fork
        for label in self._labels:
            self.start(label)
        return self

    def __exit__(self, *_: object) -> None:
        self._nursery.kill()
        self._nursery.wait()
        del self.service.cluster.start_command
        for label in self._labels:
            deadline = time.monotonic() + SECONDS
            while psutil.pid_exists(self._pids[label]) and time.monotonic() < deadline:
                time.sleep(0.05)
            self.start(label)


@pytest.fixture(scope="module")
def mortal(fragile: Service) -> Iterator[Mortal]:
    with Mortal(fragile, ("coordinator", "north")) as roles:
        yield roles
    asyncio.run(fragile.cluster.ready(2 * SECONDS))


async def all_attend(service: Service) -> None:
    async with service.client() as client:
        await until(lambda: attends(client, *service.cluster.agents), "all agents attend")


async def label(service: Service, farms: Group, **plan: Any) -> LabelResult:
    """Needs every agent, and is right."""
    async with service.client("mourner") as client:
        result = await client.label(farms.queries(ROWS), farms.plan(quorum=3, **plan))
    assert (result.labels == farms.winners(farms.queries(ROWS))).all()
    return result


def in_order(points: Iterable[str]) -> list[str]:
    """The two parties are sent to at the same time."""
    return ["submit" if "submit to" in point else point for point in points]


@pytest.mark.parametrize(
    ("victim", "points"), [("coordinator", COORDINATOR_POINTS), ("north", AGENT_POINTS)]
)
async def test_these_are_all_points_of_a_round(
    mortal: Mortal, farms: Group, victim: str, points: tuple[str, ...]
) -> None:
    await all_attend(mortal.service)
    mortal.arm(victim, "")
    await label(mortal.service, farms)

    async def over() -> bool:
        return len(mortal.passed(victim)) >= len(points)

    await until(over, "the round is over for everybody")
    passed = mortal.passed(victim)
    assert sorted(passed) == sorted(points)
    assert in_order(passed) == in_order(points)


def is_after(mark: str, point: str, points: tuple[str, ...]) -> bool:
    return points.index(point) > points.index(mark)


@pytest.mark.parametrize("point", COORDINATOR_POINTS)
async def test_a_coordinator_is_killed(mortal: Mortal, farms: Group, point: str) -> None:
    service, request = mortal.service, f"killed {point}"
    await all_attend(service)
    roles = [*service.cluster.agents, "coordinator"]
    before = {name: ids_of(service, name) for name in roles}
    mortal.arm("coordinator", point)
    result: LabelResult | None = None
    try:
        result = await label(service, farms, request_id=request)
    except VoteError as error:
        assert error.kind is ErrorKind.COORDINATOR_UNREACHABLE, error.message
    await mortal.died("coordinator", point)
    mortal.start("coordinator")
    await all_attend(service)
    after = {name: ids_of(service, name) for name in roles}
    spent = {name: after[name][len(before[name]) :] for name in roles}
    assert all(after[name][: len(before[name])] == before[name] for name in roles), "none is lost"
    charged = spent["coordinator"]
    assert len(charged) <= 1, "one round was asked for"
    assert bool(charged) == is_after("after INSERT", point, COORDINATOR_POINTS)
    for name in service.cluster.agents:
        assert spent[name] in ([], charged), "an agent spends what the service has spent"
    async with service.client("mourner") as client:
        found = {one.round_id: one for one in await client.rounds()}
    complete = [r for r in charged if found[r].state == label_pb2.ROUND_STATE_COMPLETE]
    if result is not None:
        assert complete == [result.round_id], "no label goes out uncharged or is forgotten"
    for one in found.values():
        assert one.state != label_pb2.ROUND_STATE_OPEN, "what a restart finds open has failed"
        assert one.state != label_pb2.ROUND_STATE_COMPLETE or one.round_id in after["coordinator"]
    # The same request is the same round, or was never taken in.
    if complete or point != "before open_round":
        if complete:
            assert (await label(service, farms, request_id=request)).round_id == complete[0]
        else:
            with refused(ErrorKind.ROUND_FAILED, "restarted"):
                await label(service, farms, request_id=request)
        assert {name: ids_of(service, name) for name in roles} == after
    fresh = await label(service, farms)
    for name in roles:
        assert ids_of(service, name) == [*after[name], fresh.round_id], "the next round works"


@pytest.mark.parametrize("point", AGENT_POINTS)
async def test_an_agent_is_killed(mortal: Mortal, farms: Group, point: str) -> None:
    """The round needs it; it comes back while the round is open."""
    service = mortal.service
    await all_attend(service)
    before = ids_of(service, "north")
    mortal.arm("north", point)
    asked = asyncio.create_task(label(service, farms, answer_seconds=20))
    await mortal.died("north", point)
    on_disk = ids_of(service, "north")
    mortal.start("north")
    result: LabelResult | None = None
    try:
        result = await asyncio.wait_for(asked, SECONDS)
    except VoteError as error:
        assert error.kind is ErrorKind.QUORUM_MISSED, error.message
        assert "north: POLICY_REFUSED" in error.message and "answered before" in error.message
    after = ids_of(service, "north")
    assert on_disk[: len(before)] == before and after[: len(on_disk)] == on_disk, "none is lost"
    charged = len(on_disk) > len(before)
    assert charged == is_after("after INSERT", point, AGENT_POINTS)
    (round_id,) = after[len(before) :]
    if not charged:
        assert result is not None, "nothing was spent, so it can answer after all"
    if result is not None:
        assert (result.round_id, result.contributors) == (round_id, 3)
    assert round_id == ids_of(service, "coordinator")[-1]
    await all_attend(service)
    fresh = await label(service, farms)
    assert ids_of(service, "north") == [*after, fresh.round_id], "the next round works"


if __name__ == "__main__":
    nursery()
