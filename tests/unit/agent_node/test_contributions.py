"""Counters of contributions: they last, span tasks and files, and are on disk before a vote is
known."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from agent_node.contributions import (
    FILE,
    AlreadyAnswered,
    Contributions,
    ContributionsError,
    CountingVoter,
    counted,
)
from agent_node.record_loss import RecordLoss
from agent_node.serving import Serving
from mpc_vote.data import identity
from mpc_vote.data.dataset import Dataset
from mpc_vote.learning.voters.bounded import BoundedVoter
from mpc_vote.learning.voters.knn import KnnVoter
from mpc_vote.privacy.contributions import BoundedRound, Neighbours, record_epsilon
from mpc_vote.privacy.ledger import Budget, Ledger
from mpc_vote.proto.mpcvote.v1 import common_pb2
from mpc_vote.tasks import Features, Task, VectorInput, Vote
from mpc_vote.voting.ballots import KNN_COUNT
from mpc_vote.voting.charge import charge

LEDGER = "5" * 32
PLACES = np.linspace(0, 0.5, 6, dtype=np.float32)[:, None]
AT = np.zeros((1, 1), np.float32)


def dataset(x: np.ndarray, *identifiers: str) -> Dataset:
    named = identity.of_identifiers(identifiers) if identifiers else None
    return Dataset("some", x, np.arange(len(x)) % 2, 2, named)


def near(bound: int, data: Dataset | None = None, radius: float = 1.0) -> BoundedVoter:
    return BoundedVoter(data or dataset(PLACES), 10, radius, bound)


def counting(kept: Contributions, voter: BoundedVoter) -> CountingVoter:
    return CountingVoter(voter, kept.of(voter.identities))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / FILE


@pytest.fixture
def kept(path: Path) -> Iterator[Contributions]:
    with closing(Contributions(path, LEDGER)) as opened:
        yield opened


def test_counters_outlive_the_process_and_the_order_of_the_file(path: Path) -> None:
    rng = np.random.default_rng(0)
    for life in range(4):
        data = dataset(PLACES).take(rng.permutation(6))
        with closing(Contributions(path, LEDGER)) as kept:
            votes = counting(kept, near(3, data)).answer(f"round {life}", AT)
            assert votes.sum() == (6 if life < 3 else 0)
            assert kept.rounds() == {f"round {n}": 3 for n in range(life + 1)}


def test_new_records_begin_at_none_and_those_that_come_back_go_on(kept: Contributions) -> None:
    fewer = near(2, dataset(PLACES[:4]))
    assert counting(kept, fewer).answer("a", AT).sum() == 4
    assert counting(kept, near(2)).answer("b", AT).sum() == 6
    last = dataset(PLACES[4:])
    assert counting(kept, near(2, last)).answer("c", AT).sum() == 2
    assert counting(kept, near(2)).answer("d", AT).sum() == 0


def test_counters_span_tasks_and_each_task_has_a_bound_of_its_own(kept: Contributions) -> None:
    one, other = counting(kept, near(3)), counting(kept, near(5, radius=2.0))
    assert [one.answer(f"one {n}", AT).sum() for n in range(2)] == [6, 6]
    assert [other.answer(f"other {n}", AT).sum() for n in range(4)] == [6, 6, 6, 0]
    assert one.answer("one more", AT).sum() == 0
    assert kept.rounds()["other 0"] == 5


def test_a_record_with_an_identifier_is_the_same_after_it_was_edited(kept: Contributions) -> None:
    names = [f"patient {n}" for n in range(6)]
    assert counting(kept, near(1, dataset(PLACES, *names))).answer("a", AT).sum() == 6
    edited = near(1, dataset(PLACES + np.float32(0.1), *names))
    assert counting(kept, edited).answer("b", AT).sum() == 0
    unnamed = near(1, dataset(PLACES + np.float32(0.1)))
    assert counting(kept, unnamed).answer("c", AT).sum() == 6


def test_copies_of_a_record_share_its_counter(kept: Contributions) -> None:
    data = Dataset("copies", np.repeat(PLACES[:1], 3, axis=0), np.array([0, 1, 0]), 2)
    voter = counting(kept, near(2, data))
    assert [voter.answer(str(n), AT).tolist() for n in range(3)] == [[[2, 1]], [[2, 1]], [[0, 0]]]


def test_a_round_is_answered_once_and_asking_again_counts_nobody(kept: Contributions) -> None:
    voter = counting(kept, near(2))
    voter.answer("a", AT)
    for _ in range(3):
        with pytest.raises(AlreadyAnswered):
            voter.answer("a", AT)
    assert voter.answer("b", AT).sum() == 6


def test_without_a_round_nothing_is_answered(kept: Contributions) -> None:
    with pytest.raises(ValueError, match="rounds only"):
        counting(kept, near(2)).vote(AT, KNN_COUNT)


def test_a_vote_is_known_only_once_its_contributions_are_on_disk(path: Path) -> None:
    with closing(Contributions(path, LEDGER)) as kept:
        voter = counting(kept, near(2))
        # Whatever comes back is in a copy of the files as they are at that moment.
        voter.answer("a", AT)
        copy = path.parent / "copy"
        copy.mkdir()
        for file in path.parent.glob(f"{FILE}*"):
            shutil.copy(file, copy)
        with closing(Contributions(copy / FILE, LEDGER)) as copied:
            assert copied.rounds() == {"a": 2}
            assert copied.of(near(2).identities).used().tolist() == [1] * 6
        # A disk that fails: no vote, and nothing that was not written is believed.
        kept._db.execute(
            "CREATE TRIGGER full BEFORE INSERT ON counters BEGIN SELECT RAISE(ABORT, 'full'); END"
        )
        with pytest.raises(sqlite3.IntegrityError, match="full"):
            voter.answer("b", AT)
        assert kept.of(near(2).identities).used().tolist() == [1] * 6
        assert kept.rounds() == {"a": 2}


def test_a_write_is_as_large_whoever_was_counted(path: Path) -> None:
    """How long it takes, and how the file grows, tell nothing of who lies within the radius."""
    with closing(Contributions(path, LEDGER)) as kept:
        voter, told = counting(kept, near(2)), []
        for number, query in enumerate((0.0, 99.0, 0.0, 0.0, 99.0)):
            statements: list[str] = []
            kept._db.set_trace_callback(statements.append)
            voter.answer(f"{number}", np.full((1, 1), query, np.float32))
            told.append([text[:40] for text in statements if "rounds" not in text])
        assert all(one == told[0] for one in told)


def test_many_records_are_kept_in_parts(
    kept: Contributions, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent_node.contributions._PART", 4)
    with closing(Contributions(path.with_name("parts"), LEDGER)) as parts:
        counting(parts, near(5, dataset(PLACES[:3]))).answer("a", AT)
        counting(parts, near(5)).answer("b", AT)
    with closing(Contributions(path.with_name("parts"), LEDGER)) as parts:
        used = parts.of(identity.of_content(PLACES)).used()
        assert used.tolist() == [2, 2, 2, 1, 1, 1]
        assert parts._db.execute("SELECT count(*) FROM names").fetchone() == (2,)


def test_a_file_that_holds_something_else_is_refused_with_what_to_do(path: Path) -> None:
    Contributions(path, LEDGER).close()
    with pytest.raises(ContributionsError, match=r"belongs to ledger 5+, and this agent spends"):
        Contributions(path, "6" * 32)
    path.write_bytes(b"no database at all, but long enough to be one" * 30)
    with pytest.raises(ContributionsError, match="put back a whole copy"):
        Contributions(path, LEDGER)
    path.unlink()
    with closing(sqlite3.connect(path)) as other:
        other.execute("CREATE TABLE something (other)")
    with pytest.raises(ContributionsError, match="does not hold counters"):
        Contributions(path, LEDGER)


def test_names_without_counters_are_refused(path: Path) -> None:
    with closing(Contributions(path, LEDGER)) as kept:
        counting(kept, near(2))
        kept._db.execute("UPDATE counters SET used = x'00000000'")
    with pytest.raises(ContributionsError, match="not of the same records"):
        Contributions(path, LEDGER)


def test_only_tasks_with_a_bound_have_counters(tmp_path: Path) -> None:
    plain = Serving(common_pb2.Offer(), KnnVoter(PLACES, np.arange(6) % 2, 2, 3), "knn")
    with counted([plain], tmp_path, LEDGER) as (servings, kept):
        assert servings == [plain] and kept is None
    assert not (tmp_path / FILE).exists()
    vote = Vote(KNN_COUNT, 10, radius=1.0, max_contributions=2)
    task = Task("bounded", ("a", "b"), VectorInput((1,)), Features("raw"), vote)
    bound = Serving(common_pb2.Offer(), near(2), "knn", task)
    with counted([plain, bound], tmp_path, LEDGER) as (servings, kept):
        assert servings[0] is plain and isinstance(servings[1].voter, CountingVoter)
        assert kept is not None
    assert (tmp_path / FILE).exists()


def test_an_owner_is_told_what_a_record_has_lost_in_all_rounds(path: Path) -> None:
    spend = charge(KNN_COUNT, queries=500, variance=1600.0, fraction_bits=0, ks=(50,))
    budget = Budget(None, None, 1e-3)
    with (
        closing(Ledger(path.with_name("ledger.db"), budget)) as ledger,
        closing(Contributions(path, ledger.ledger_id)) as kept,
    ):
        ledger.charge("a", spend)
        kept.of(identity.of_content(PLACES)).keep("a", 60, np.ones(6, np.uint32))
        told = RecordLoss(ledger, kept, 1e-3)
        assert "epsilon 0.6607 (added or removed) or 0.9978 (replaced)" in str(told)
        # A round that the counters know nothing of, as after an old copy, counts in full.
        ledger.charge("b", spend)
        rounds = [BoundedRound(spend, 60), BoundedRound(spend)]
        expected = record_epsilon(rounds, 1e-3, Neighbours.ADD_REMOVE)
        assert told.epsilon(Neighbours.ADD_REMOVE) == expected > 2.3
