"""The ledger: what is charged stays charged, and no one overspends, alone or together."""

from __future__ import annotations

import pickle
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mpc_vote.ballots import Sensitivity
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
    epsilon,
)

DELTA = 1e-5
VOTE = SkellamVote(10, 256 * 625.0, Sensitivity(16, 256), Sensitivity(32, 512))

CHILD = """
import sys
from pathlib import Path
from mpc_vote.ballots import Sensitivity
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
    while epsilon([VOTE] * (count + 1), Level.AGENT, DELTA) <= limit:
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
    limit = epsilon([VOTE] * 3, level, DELTA)
    limits = {Level.AGENT: (limit, None), Level.INSTANCE: (None, limit)}[level]
    with Ledger(path, Budget(*limits, DELTA)) as ledger:
        for i in range(3):
            ledger.charge(f"r{i}", VOTE)
        with pytest.raises(BudgetExhausted) as caught:
            ledger.charge("r3", VOTE)
        error = caught.value
        assert (error.level, error.limit, error.delta) == (level, limit, DELTA)
        assert error.spent == ledger.spent(level, DELTA) == limit
        assert error.asked == epsilon([VOTE] * 4, level, DELTA)
        assert len(ledger.spends()) == 3
        assert ledger.remaining() == {level: 0.0}


def test_a_smaller_round_may_still_fit_after_a_refusal(path: Path) -> None:
    limit = epsilon([VOTE], Level.AGENT, DELTA)
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
        expected = 9.0 - epsilon([VOTE], Level.INSTANCE, DELTA)
        assert limited.remaining() == {Level.INSTANCE: expected}


def test_the_budget_counts_what_was_spent_before_it_was_set(path: Path) -> None:
    with Ledger(path, None) as ledger:
        ledger.charge("old", SkellamVote(10_000, VOTE.variance, VOTE.agent, VOTE.instance))
    with Ledger(path, Budget(1.0, None, DELTA)) as ledger, pytest.raises(BudgetExhausted):
        ledger.charge("new", VOTE)


def test_threads_together_never_overspend(path: Path) -> None:
    limit = epsilon([VOTE] * 10, Level.AGENT, DELTA)
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
    limit = epsilon([VOTE] * 15, Level.AGENT, DELTA)
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
                assert error.asked > limit >= error.spent
            else:
                accepted.append(vote)
            spent = ledger.spent(Level.AGENT, DELTA)
            assert last <= spent <= limit
            assert spent == pytest.approx(epsilon(accepted, Level.AGENT, DELTA), rel=1e-12)
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
        assert ledger.spent(Level.AGENT, DELTA) == epsilon([together], Level.AGENT, DELTA)
        assert len(ledger._totals) == 1


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
            with pytest.raises(ValueError, match="future_vote"):
                ledger.charge("r1", VOTE)


def test_an_unknown_mechanism_is_not_charged(ledger: Ledger) -> None:
    with pytest.raises(TypeError):
        ledger.charge("r1", "free")  # type: ignore[arg-type]
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
    error = BudgetExhausted(Level.AGENT, 3.0, 1.5, 2.0, 1e-5)
    copy = pickle.loads(pickle.dumps(error))
    assert str(copy) == str(error)
    assert "fewer queries or more noise" in str(error)
    assert "new id" in str(pickle.loads(pickle.dumps(AlreadyCharged("r1"))))
