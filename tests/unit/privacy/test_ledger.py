"""The ledger: what is charged stays charged, and no one overspends, alone or together."""

from __future__ import annotations

import functools
import pickle
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent_node.policy import Policy
from agent_node.settings import AgentSettings
from aggregator.coordinator.archive import Archive
from aggregator.coordinator.attendance import Attendance
from aggregator.coordinator.rounds import RoundRunner
from mpc_vote.app import config
from mpc_vote.errors import ErrorKind, VoteError
from mpc_vote.privacy import (
    AlreadyCharged,
    Budget,
    BudgetExhausted,
    GaussianVote,
    Ledger,
    LedgerError,
    Level,
    Mechanism,
    SkellamVote,
    charged_epsilon,
)
from mpc_vote.privacy.ledger import LEDGER_ID, MAX_QUERIES_COUNTED, LedgerView, Standing
from mpc_vote.privacy.rounding import round_down, round_up
from mpc_vote.privacy.sensitivity import Sensitivity
from mpc_vote.proto.mpcvote.v1 import common_pb2
from mpc_vote.voting.ballots import BALLOTS, KNN_COUNT, MULTI_LABEL, BallotKind
from mpc_vote.voting.spec import Spec

DELTA = 1e-5
VOTE = SkellamVote(10, 256 * 625.0, Sensitivity(16, 256), Sensitivity(32, 512))

CHILD = """
import sys
from pathlib import Path
from mpc_vote.privacy.sensitivity import Sensitivity
from mpc_vote.privacy import Budget, BudgetExhausted, Ledger, SkellamVote
vote = SkellamVote(10, 256 * 625.0, Sensitivity(16, 256), Sensitivity(32, 512))
path, name, count, limit = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
print("ready", flush=True)
sys.stdin.readline()
ledger = Ledger(path, Budget(limit, None, 1e-5))
done = 0
for i in range(count):
    try:
        ledger.charge(f"{name}-{i}", vote)
        done += 1
    except BudgetExhausted:
        pass
print(done, flush=True)
sys.stdin.readline()
"""


def child(path: Path, name: str, count: int, limit: float) -> subprocess.Popen[str]:
    """A process that waits for a line, charges, prints how many went through, and waits again."""
    process = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(path), name, str(count), str(limit)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert read(process) == "ready"
    return process


def read(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def go_on(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def affordable(limit: float) -> int:
    """How many times VOTE fits an agent-level limit."""
    count = 0
    while charged_epsilon([VOTE] * (count + 1), Level.AGENT, DELTA) <= limit:
        count += 1
    return count


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


@pytest.fixture
def ledger(path: Path) -> Iterator[Ledger]:
    with Ledger(path, None) as opened:
        yield opened


def test_a_charge_is_recorded_as_it_was_made(ledger: Ledger) -> None:
    before = datetime.now(UTC)
    ledger.charge("r1", VOTE, note="first")
    (spend,) = ledger.spends()
    assert (spend.round_id, spend.mechanism, spend.note) == ("r1", VOTE, "first")
    assert before <= spend.charged_at <= datetime.now(UTC)


def test_spends_survive_reopening(path: Path) -> None:
    with Ledger(path, None) as ledger:
        ledger.charge("r1", VOTE)
        ledger.charge("r2", GaussianVote(3, 9.0, VOTE.agent, VOTE.instance))
        spends, spent = ledger.spends(), ledger.spent(Level.AGENT, DELTA)
    with Ledger(path, None) as ledger:
        assert ledger.spends() == spends
        assert ledger.spent(Level.AGENT, DELTA) == spent
        with pytest.raises(AlreadyCharged):
            ledger.charge("r1", VOTE)


def test_a_charge_outlives_a_killed_process(path: Path) -> None:
    process = child(path, "doomed", 3, 100.0)
    go_on(process)
    assert read(process) == "3"
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    with Ledger(path, None) as ledger:
        assert [spend.round_id for spend in ledger.spends()] == ["doomed-0", "doomed-1", "doomed-2"]
        ledger.charge("after", VOTE)


def test_a_commit_waits_for_the_disk(ledger: Ledger) -> None:
    assert ledger._db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert ledger._db.execute("PRAGMA synchronous").fetchone() == (2,)


def test_a_round_is_charged_once(ledger: Ledger) -> None:
    ledger.charge("r1", VOTE)
    spent = ledger.spent(Level.AGENT, DELTA)
    with pytest.raises(AlreadyCharged, match="'r1'") as caught:
        ledger.charge("r1", VOTE)
    assert caught.value.round_id == "r1"
    assert ledger.spent(Level.AGENT, DELTA) == spent


@pytest.mark.parametrize("level", Level)
def test_the_budget_stops_what_would_exceed_it(path: Path, level: Level) -> None:
    limit = charged_epsilon([VOTE] * 3, level, DELTA)
    limits = {Level.AGENT: (limit, None), Level.INSTANCE: (None, limit)}[level]
    with Ledger(path, Budget(*limits, DELTA)) as ledger:
        for i in range(3):
            ledger.charge(f"r{i}", VOTE)
        with pytest.raises(BudgetExhausted) as caught:
            ledger.charge("r3", VOTE)
        error = caught.value
        assert (error.over.level, error.over.limit, error.delta) == (level, limit, DELTA)
        assert error.over.spent == ledger.spent(level, DELTA) == limit
        assert [(s.level, s.asked) for s in error.standings] == [
            (level, charged_epsilon([VOTE] * 4, level, DELTA)) for level in Level
        ]
        assert [s.limit for s in error.standings] == [*limits]
        assert error.fitting == 0
        assert len(ledger.spends()) == 3
        assert ledger.remaining() == {level: 0.0}


def test_a_smaller_round_may_still_fit_after_a_refusal(path: Path) -> None:
    limit = charged_epsilon([VOTE], Level.AGENT, DELTA)
    with Ledger(path, Budget(limit, None, DELTA)) as ledger:
        with pytest.raises(BudgetExhausted):
            ledger.charge("big", SkellamVote(11, VOTE.variance, VOTE.agent, VOTE.instance))
        ledger.charge("fits", VOTE)


def test_a_zero_budget_allows_nothing_that_costs(path: Path) -> None:
    with Ledger(path, Budget(0.0, None, DELTA)) as ledger, pytest.raises(BudgetExhausted):
        ledger.charge("r1", VOTE)


def test_remaining_names_only_limited_levels(path: Path, ledger: Ledger) -> None:
    assert ledger.remaining() == {}
    with Ledger(path, Budget(None, 9.0, DELTA)) as limited:
        assert limited.remaining() == {Level.INSTANCE: 9.0}
        ledger.charge("elsewhere", VOTE)
        expected = 9.0 - charged_epsilon([VOTE], Level.INSTANCE, DELTA)
        assert limited.remaining() == {Level.INSTANCE: expected}


def test_the_budget_counts_what_was_spent_before_it_was_set(path: Path) -> None:
    with Ledger(path, None) as ledger:
        ledger.charge("old", SkellamVote(10_000, VOTE.variance, VOTE.agent, VOTE.instance))
    with Ledger(path, Budget(1.0, None, DELTA)) as ledger, pytest.raises(BudgetExhausted):
        ledger.charge("new", VOTE)


def test_threads_together_never_overspend(path: Path) -> None:
    limit = charged_epsilon([VOTE] * 10, Level.AGENT, DELTA)
    went_through: list[str] = []
    with Ledger(path, Budget(limit, None, DELTA)) as ledger:

        def spend(name: str) -> None:
            for i in range(5):
                try:
                    ledger.charge(f"{name}-{i}", VOTE)
                except BudgetExhausted:
                    continue
                went_through.append(f"{name}-{i}")

        threads = [threading.Thread(target=spend, args=(f"t{n}",)) for n in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(went_through) == affordable(limit) == 10
        assert {spend.round_id for spend in ledger.spends()} == set(went_through)
        assert ledger.spent(Level.AGENT, DELTA) <= limit


def test_one_round_charged_from_many_threads_goes_through_once(ledger: Ledger) -> None:
    outcomes: list[bool] = []

    def spend() -> None:
        try:
            ledger.charge("same", VOTE)
        except AlreadyCharged:
            outcomes.append(False)
        else:
            outcomes.append(True)

    threads = [threading.Thread(target=spend) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == [False] * 7 + [True]


def test_processes_together_never_overspend(path: Path) -> None:
    limit = charged_epsilon([VOTE] * 15, Level.AGENT, DELTA)
    processes = [child(path, f"p{n}", 12, limit) for n in range(3)]
    for process in processes:
        go_on(process)
    done = [int(read(process)) for process in processes]
    for process in processes:
        go_on(process)
        assert process.wait() == 0
    assert sum(done) == affordable(limit) == 15
    with Ledger(path, None) as ledger:
        assert len(ledger.spends()) == 15
        assert ledger.spent(Level.AGENT, DELTA) <= limit


def test_opening_waits_for_another_opener(path: Path) -> None:
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    release = threading.Timer(0.1, other.execute, ["ROLLBACK"])
    release.start()
    with Ledger(path, None) as ledger:
        assert ledger.spends() == []
    release.join()
    other.close()


def test_nobody_makes_the_ledger_while_an_opener_looks_whether_it_is_there(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a file that two processes make at once looks half made, and is refused as no ledger."""
    looks: list[str] = []

    class Watched(sqlite3.Connection):
        def execute(self, statement: str, *values: Any) -> sqlite3.Cursor:
            if statement == "PRAGMA application_id":
                looks.append(statement)
                rival = sqlite3.Connection(path, timeout=0, isolation_level=None)
                with pytest.raises(sqlite3.OperationalError, match="locked"):
                    rival.execute("BEGIN IMMEDIATE")
                rival.close()
            return super().execute(statement, *values)

    monkeypatch.setattr(sqlite3, "connect", functools.partial(sqlite3.connect, factory=Watched))
    Ledger(path, None).close()
    assert looks


votes = st.builds(
    lambda queries, variance: SkellamVote(queries, variance, VOTE.agent, VOTE.instance),
    st.integers(1, 50),
    st.sampled_from([VOTE.variance, 2e5, 1e6]),
)


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(votes, min_size=1, max_size=6), st.floats(0.5, 3.0))
def test_spend_is_the_composition_of_what_was_let_through_and_never_falls(
    tmp_path_factory: pytest.TempPathFactory, charges: list[Mechanism], limit: float
) -> None:
    path = tmp_path_factory.mktemp("ledger") / "ledger.db"
    accepted: list[Mechanism] = []
    last = 0.0
    with Ledger(path, Budget(limit, None, DELTA)) as ledger:
        for i, vote in enumerate(charges):
            try:
                ledger.charge(f"r{i}", vote)
            except BudgetExhausted as error:
                assert error.over.asked > limit >= error.over.spent
            else:
                accepted.append(vote)
            spent = ledger.spent(Level.AGENT, DELTA)
            assert last <= spent <= limit
            assert spent == pytest.approx(charged_epsilon(accepted, Level.AGENT, DELTA), rel=1e-12)
            last = spent
        assert [spend.mechanism for spend in ledger.spends()] == accepted


def test_many_spends_are_composed_like_one(path: Path) -> None:
    with Ledger(path, Budget(None, None, DELTA)) as ledger:
        ledger.charge("first", VOTE)
        rows = [(f"r{i}", VOTE.to_json(), "", "2024-01-01T00:00:00+00:00") for i in range(4999)]
        with sqlite3.connect(path) as other:
            other.executemany(
                "INSERT INTO spends (round_id, mechanism, note, charged_at) VALUES (?, ?, ?, ?)",
                rows,
            )
        other.close()
        together = SkellamVote(50_000, VOTE.variance, VOTE.agent, VOTE.instance)
        assert ledger.spent(Level.AGENT, DELTA) == charged_epsilon([together], Level.AGENT, DELTA)


@pytest.mark.parametrize("statement", ["DELETE FROM spends", "UPDATE spends SET note = 'x'"])
def test_spends_can_not_be_taken_back(ledger: Ledger, statement: str) -> None:
    ledger.charge("r1", VOTE)
    with pytest.raises(sqlite3.IntegrityError, match="never"):
        ledger._db.execute(statement)


def test_an_unreadable_spend_blocks_further_ones(path: Path) -> None:
    with Ledger(path, Budget(9.0, None, DELTA)) as ledger:
        ledger._db.execute(
            "INSERT INTO spends (round_id, mechanism, note, charged_at) "
            """VALUES ('odd', '{"type": "future_vote"}', '', '')"""
        )
        for _ in range(2):
            with pytest.raises(LedgerError, match="future_vote"):
                ledger.charge("r1", VOTE)


def test_an_unknown_mechanism_is_not_charged(ledger: Ledger) -> None:
    with pytest.raises(TypeError):
        ledger.charge("r1", cast(Any, "free"))
    with pytest.raises(ValueError):
        ledger.charge("", VOTE)
    assert ledger.spends() == []


def test_a_newer_schema_is_refused(path: Path) -> None:
    with Ledger(path, None) as ledger:
        ledger._db.execute("PRAGMA user_version = 99")
    with pytest.raises(LedgerError, match="schema 99"):
        Ledger(path, None)


def test_other_files_are_refused(path: Path) -> None:
    path.write_text("not a database at all, but long enough to look at" * 100)
    with pytest.raises(LedgerError, match="can't be opened"):
        Ledger(path, None)


def test_another_database_is_refused(path: Path) -> None:
    other = sqlite3.connect(path)
    other.execute("CREATE TABLE theirs (x)")
    other.close()
    with pytest.raises(LedgerError, match="no ledger"):
        Ledger(path, None)


@pytest.mark.parametrize(
    ("agent", "instance", "delta"),
    [(-1.0, None, 1e-5), (float("nan"), None, 1e-5), (1.0, 1.0, 0.0)],
)
def test_impossible_budgets_are_refused(
    agent: float | None, instance: float | None, delta: float
) -> None:
    with pytest.raises(ValueError):
        Budget(agent, instance, delta)


def test_errors_say_what_to_do_and_survive_pickling() -> None:
    standings = (Standing(Level.AGENT, 1.5, 3.0, 2.0), Standing(Level.INSTANCE, 4.0, 7.0, None))
    error = BudgetExhausted(standings, 1e-5, 6, 2)
    copy = pickle.loads(pickle.dumps(error))
    assert str(copy) == str(error)
    assert str(error) == (
        "the agent-level budget forbids it: epsilon 0.5 of 2 is left and it would bring the spend "
        "to 3 (delta 1e-05, with 2 rounds under way; 6 queries with this noise would fit); ask for "
        "fewer or more noise"
    )
    assert copy.figures == {
        "delta": 1e-5,
        "against": "totals",
        "fitting": 6,
        "spent_agent": 1.5,
        "asked_agent": 3.0,
        "limit_agent": 2.0,
        "spent_instance": 4.0,
        "asked_instance": 7.0,
        "limit_instance": None,
    }
    assert "new id" in str(pickle.loads(pickle.dumps(AlreadyCharged("r1"))))


# Promises


def test_a_check_counts_what_is_promised_and_not_yet_charged(path: Path) -> None:
    limit = charged_epsilon([VOTE] * 2, Level.AGENT, DELTA)
    with Ledger(path, Budget(limit, None, DELTA)) as ledger:
        ledger.check("r2", VOTE, {"r1": VOTE})
        with pytest.raises(BudgetExhausted) as caught:
            ledger.check("r3", VOTE, {"r1": VOTE, "r2": VOTE})
        assert caught.value.promised == 2
        assert caught.value.over.spent == limit
        assert ledger.spends() == []
        ledger.charge("r1", VOTE)
        # Its promise is kept: it counts once.
        ledger.check("r2", VOTE, {"r1": VOTE})
        ledger.charge("r2", VOTE)
        with pytest.raises(AlreadyCharged):
            ledger.check("r2", VOTE, {"r2": VOTE})


def test_what_a_check_found_affordable_is_refused_once_somebody_else_has_spent_it(
    path: Path,
) -> None:
    limit = charged_epsilon([VOTE], Level.AGENT, DELTA)
    budget = Budget(limit, None, DELTA)
    with Ledger(path, budget) as ledger, Ledger(path, budget) as other:
        ledger.check("r1", VOTE)
        other.charge("r2", VOTE)
        with pytest.raises(BudgetExhausted):
            ledger.charge("r1", VOTE)


# What is left buys


@pytest.mark.parametrize("level", Level)
def test_what_is_affordable_can_be_charged_and_not_one_query_more(path: Path, level: Level) -> None:
    limits = {Level.AGENT: (2.0, None), Level.INSTANCE: (None, 2.0)}[level]
    other = SkellamVote(1, 2 * VOTE.variance, VOTE.agent, VOTE.instance)
    with Ledger(path, Budget(*limits, DELTA)) as ledger:
        ledger.charge("before", VOTE)
        most = ledger.affordable(other)
        assert most is not None and most > 1
        with pytest.raises(BudgetExhausted) as caught:
            ledger.charge(
                "more", SkellamVote(most + 1, other.variance, other.agent, other.instance)
            )
        assert caught.value.fitting == most
        ledger.charge("most", SkellamVote(most, other.variance, other.agent, other.instance))
        assert ledger.affordable(other) == 0


def test_the_tighter_level_decides_what_is_affordable(path: Path) -> None:
    with Ledger(path, Budget(2.0, 2.0, DELTA)) as ledger:
        both = ledger.affordable(VOTE)
    with Ledger(path, Budget(None, 2.0, DELTA)) as ledger:
        assert ledger.affordable(VOTE) == both
    with Ledger(path, Budget(2.0, None, DELTA)) as ledger:
        alone = ledger.affordable(VOTE)
        assert alone is not None and both is not None and alone > both


def test_without_a_limit_there_is_no_end_and_with_one_there_always_is(path: Path) -> None:
    with Ledger(path, None) as ledger:
        assert ledger.affordable(VOTE) is None
    with Ledger(path, Budget(None, None, DELTA)) as ledger:
        assert ledger.affordable(VOTE) is None
    with Ledger(path, Budget(1.0, None, DELTA)) as ledger:
        almost_free = GaussianVote(1, 1e40, VOTE.agent, VOTE.instance)
        assert ledger.affordable(almost_free) == MAX_QUERIES_COUNTED - 1


# Readers


def test_a_reader_sees_what_the_role_knows_and_its_limits(path: Path) -> None:
    with Ledger(path, Budget(None, 9.0, DELTA)) as ledger:
        ledger.charge("r1", VOTE, note="first")
        with LedgerView(path) as view:
            ledger.charge("r2", VOTE)
            assert [s.round_id for s in view.spends()] == ["r1"], "a reader sees one moment"
        with LedgerView(path) as view:
            assert view.spends() == ledger.spends()
            assert view.budget == ledger.budget
            assert view.remaining() == ledger.remaining()
            assert view.affordable(VOTE) == ledger.affordable(VOTE)
            for level in Level:
                assert view.spent(level, DELTA) == ledger.spent(level, DELTA)
    with LedgerView(path) as view:
        assert len(view.spends()) == 2


def test_a_reader_does_not_hold_the_role_up_and_can_not_write(path: Path) -> None:
    with Ledger(path, None) as ledger, LedgerView(path) as view:
        ledger.charge("r1", VOTE)
        with pytest.raises(sqlite3.OperationalError, match="readonly"):
            view._db.execute("DELETE FROM budgets")
        before = path.read_bytes()
        ledger._db.execute("BEGIN IMMEDIATE")
        with LedgerView(path) as another:
            assert [s.round_id for s in another.spends()] == ["r1"]
        ledger._db.execute("ROLLBACK")
        assert path.read_bytes() == before


def test_the_limits_of_the_last_start_are_noted(path: Path) -> None:
    def noted() -> Budget | None:
        with LedgerView(path) as view:
            return view.budget

    Ledger(path, None).close()
    assert noted() is None
    for budget in (Budget(1.0, 2.0, DELTA), Budget(1.0, 2.0, DELTA), Budget(None, 3.0, 1e-3)):
        Ledger(path, budget).close()
        assert noted() == budget
    Ledger(path, None).close()
    assert noted() == Budget(None, 3.0, 1e-3)
    Ledger(path, Budget(float("inf"), float("inf"), DELTA)).close()
    assert noted() == Budget(None, None, DELTA)
    with Ledger(path, None) as ledger:
        assert ledger._db.execute("SELECT count(*) FROM budgets").fetchone() == (3,)


def test_a_reader_says_what_is_wrong(path: Path) -> None:
    with pytest.raises(LedgerError, match="there is no ledger"):
        LedgerView(path)
    path.write_bytes(b"")
    with pytest.raises(LedgerError, match="no ledger yet"):
        LedgerView(path)
    path.write_text("not a database at all, but long enough to look at" * 100)
    with pytest.raises(LedgerError, match="is no ledger: file is not a database"):
        LedgerView(path)
    path.unlink()
    other = sqlite3.connect(path)
    other.execute("CREATE TABLE theirs (x)")
    other.close()
    with pytest.raises(LedgerError, match="no ledger"):
        LedgerView(path)
    path.unlink()
    with Ledger(path, None) as ledger:
        ledger._db.execute("PRAGMA user_version = 99")
    with pytest.raises(LedgerError, match="schema 99"):
        LedgerView(path)


def test_a_ledger_of_the_first_schema_is_read_and_taken_along(path: Path) -> None:
    with Ledger(path, None) as ledger:
        ledger.charge("old", VOTE)
        ledger._db.execute("DROP TABLE budgets")
        ledger._db.execute("DROP TABLE origin")
        ledger._db.execute("PRAGMA user_version = 1")
    with LedgerView(path) as view:
        assert (len(view.spends()), view.budget) == (1, None)
        assert (view.ledger_id, view.owner) == ("", None)
    with Ledger(path, Budget(9.0, None, DELTA), "agent/ann") as ledger:
        assert ledger.owner == "agent/ann" and LEDGER_ID.fullmatch(ledger.ledger_id)
        assert [s.round_id for s in ledger.spends()] == ["old"]
        assert ledger.spent(Level.AGENT, DELTA) == charged_epsilon([VOTE], Level.AGENT, DELTA)
    with LedgerView(path) as view:
        assert view.budget == Budget(9.0, None, DELTA)


# Whose it is


def test_a_ledger_belongs_to_the_first_who_opens_it_in_a_name(path: Path) -> None:
    with Ledger(path, None) as ledger:
        assert ledger.owner is None
        known = ledger.ledger_id
    for _ in range(2):
        with Ledger(path, None, "agent/ann") as ledger:
            assert (ledger.owner, ledger.ledger_id) == ("agent/ann", known)
    before = path.read_bytes()
    with pytest.raises(LedgerError, match="the ledger of agent/ann, not of agent/ben"):
        Ledger(path, Budget(1.0, None, DELTA), "agent/ben")
    assert path.read_bytes() == before, "nothing is written in another's name"
    with LedgerView(path) as view:
        assert (view.owner, view.ledger_id) == ("agent/ann", known)


def test_every_ledger_has_an_id_of_its_own_that_stays(path: Path, tmp_path: Path) -> None:
    with Ledger(path, None, "agent/ann") as ledger, Ledger(tmp_path / "b.db", None) as other:
        assert LEDGER_ID.fullmatch(ledger.ledger_id)
        assert ledger.ledger_id != other.ledger_id
        for change in (
            "UPDATE origin SET owner = 'agent/ben'",
            f"UPDATE origin SET ledger_id = '{other.ledger_id}'",
            "DELETE FROM origin",
        ):
            with pytest.raises(sqlite3.IntegrityError, match="keeps its id and its owner"):
                ledger._db.execute(change)


# The contract, as both roles use it

Charge = Callable[[Spec], None]


@contextmanager
def as_coordinator(path: Path, budget: Budget) -> Iterator[Charge]:
    archive = Archive(path.parent)
    with Ledger(path, budget) as ledger:
        yield RoundRunner(archive, ledger, Attendance(archive), {}, 1.0)._charge
    archive.close()


@contextmanager
def as_agent(path: Path, budget: Budget) -> Iterator[Charge]:
    flags = ["--certs=x", "--data=x", "--data-dir=x", "--coordinator=h:1", "--parties=p=h:1,q=h:1"]
    with Ledger(path, budget) as ledger:
        yield Policy("ann", config.load(AgentSettings, flags), ledger).charge


both_roles = pytest.mark.parametrize("role", [as_coordinator, as_agent])


def spec(round_id: str, kind: BallotKind = KNN_COUNT, queries: int = 10) -> Spec:
    """A round of three agents."""
    knn = kind.needs_k
    message = common_pb2.RoundSpec(
        round_id=round_id,
        queries_digest=bytes(32),
        queries=queries,
        query_dtype=common_pb2.DTYPE_FLOAT32,
        query_shape=[5],
        classes=3,
        ballot=kind.code,
        fraction_bits=kind.default_fraction_bits([5]),
        sigma=25.0,
        roster=[common_pb2.RosterEntry(agent=a, k=5 if knn else 0) for a in ("ann", "bo", "cy")],
        quorum=3,
        collusion=1,
        tau=2 if kind is MULTI_LABEL else 0,
        parties=["p", "q"],
        dealer="dealer",
        engine=common_pb2.ENGINE_CRYPTEN_PAIRWISE,
        ring_bits=64,
        deadline_unix_ms=int(1000 * (time.time() + 600)),
    )
    return Spec.seal(message)


@both_roles
def test_a_role_finds_its_spend_on_disk_when_it_may_go_on(role: Any, path: Path) -> None:
    with role(path, Budget(None, None, DELTA)) as charge:
        charge(spec("r1"))
        with LedgerView(path) as view:
            (spend,) = view.spends()
        assert (spend.round_id, spend.mechanism) == ("r1", spec("r1").mechanism)
        assert spend.note == "knn_count, sigma 25"
        with pytest.raises((AlreadyCharged, VoteError)):
            charge(spec("r1"))
    with (
        role(path, Budget(None, None, DELTA)) as charge,
        pytest.raises((AlreadyCharged, VoteError)),
    ):
        charge(spec("r1"))
    with LedgerView(path) as view:
        assert len(view.spends()) == 1


@both_roles
def test_a_role_composes_all_methods_over_all_its_lives(role: Any, path: Path) -> None:
    charged = [spec(f"r{number}", kind) for number, kind in enumerate([*BALLOTS] * 2)]
    for one in charged:
        with role(path, Budget(50.0, 50.0, DELTA)) as charge:
            charge(one)
    with LedgerView(path) as view:
        for level in Level:
            together = charged_epsilon([one.mechanism for one in charged], level, DELTA)
            assert view.spent(level, DELTA) == pytest.approx(together, rel=1e-12)
            assert together > max(charged_epsilon([s.mechanism], level, DELTA) for s in charged)


@both_roles
def test_a_role_that_has_spent_its_budget_says_in_two_sentences_what_is_left_and_asked(
    role: Any, path: Path
) -> None:
    limit = charged_epsilon([spec("any").mechanism] * 2, Level.INSTANCE, DELTA)
    with role(path, Budget(None, limit, DELTA)) as charge:
        charge(spec("r1"))
        with pytest.raises(VoteError) as caught:
            charge(spec("r2", queries=11))
        error = caught.value
        assert error.kind is ErrorKind.BUDGET_EXHAUSTED
        assert error.kind.status.name == "RESOURCE_EXHAUSTED"
        once = charged_epsilon([spec("any").mechanism], Level.INSTANCE, DELTA)
        for part in (
            "The instance-level privacy budget",
            f"epsilon {round_down(limit - once)} of {round_down(limit)} is left",
            f"bring the spend to {round_up(float(error.values['asked_instance']))} (delta 1e-05;",
            "10 queries with this noise would fit",
        ):
            assert part in error.message
        assert error.message.count(". ") == 1, "two sentences"
        assert len(error.message) < 240, error.message
        assert error.values["limit_instance"] == str(limit)
        charge(spec("r3", queries=10))
        with pytest.raises(VoteError):
            charge(spec("r4", queries=1))
    with LedgerView(path) as view:
        assert [s.round_id for s in view.spends()] == ["r1", "r3"]


@both_roles
def test_a_role_never_overspends_from_many_threads(role: Any, path: Path) -> None:
    limit = charged_epsilon([spec("any").mechanism] * 5, Level.AGENT, DELTA)
    refused: list[VoteError] = []
    with role(path, Budget(limit, None, DELTA)) as charge:

        def spend(name: str) -> None:
            try:
                charge(spec(name))
            except VoteError as error:
                refused.append(error)

        threads = [threading.Thread(target=spend, args=(f"r{n}",)) for n in range(9)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert [error.kind for error in refused] == [ErrorKind.BUDGET_EXHAUSTED] * 4
    with LedgerView(path) as view:
        assert len(view.spends()) == 5
        assert view.spent(Level.AGENT, DELTA) <= limit


def test_a_file_without_what_lay_beside_it_is_not_taken_for_a_new_ledger(
    path: Path, tmp_path: Path
) -> None:
    with sqlite3.connect(path) as empty:
        empty.execute("PRAGMA journal_mode = WAL")
        empty.execute("CREATE TABLE lost (x)")
        copy = tmp_path / "copy.db"
        copy.write_bytes(path.read_bytes())
    empty.close()
    assert copy.stat().st_size
    with pytest.raises(LedgerError, match=r"copy\.db-wal, which belongs to it"):
        Ledger(copy, None)


def test_the_file_alone_has_every_spend(path: Path, tmp_path: Path) -> None:
    """Whoever copies it, or loses what lies beside it, has all the same."""
    copy = tmp_path / "copy.db"
    with Ledger(path, None) as ledger:
        for number in range(3):
            copy.write_bytes(path.read_bytes())
            with Ledger(copy, None) as copied:
                assert len(copied.spends()) == number
            ledger.charge(f"round-{number}", VOTE)
