"""What docs/deploy.md says of backups: a copy that SQLite makes is whole, beside a running role."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
from pathlib import Path

from aggregator.coordinator.archive import Archive
from aggregator.party.journal import RoundJournal
from mpc_vote.privacy.ledger import Ledger, LedgerView
from mpc_vote.privacy.mechanisms import SkellamVote
from mpc_vote.privacy.sensitivity import Sensitivity

VOTE = SkellamVote(10, 256 * 625.0, Sensitivity(16, 256), Sensitivity(32, 512))
KNOWN, OTHER = "0" * 32, "1" * 32


def backed_up(path: Path, folder: Path) -> Path:
    """A copy as `sqlite3 PATH ".backup COPY"` makes it."""
    folder.mkdir()
    copy = folder / path.name
    with (
        contextlib.closing(sqlite3.connect(path)) as source,
        contextlib.closing(sqlite3.connect(copy)) as target,
    ):
        source.backup(target)
    return copy


def test_a_coordinators_database_is_whole_when_sqlite_copies_it_and_not_as_a_file(
    tmp_path: Path,
) -> None:
    data, plain = tmp_path / "data", tmp_path / "plain"
    plain.mkdir()
    with contextlib.closing(Archive(data)) as archive:
        assert archive.known_ledger("ann", KNOWN) == KNOWN
        copy = backed_up(data / "coordinator.db", tmp_path / "copy")
        shutil.copy(data / "coordinator.db", plain)
    with contextlib.closing(Archive(copy.parent)) as archive:
        assert archive.known_ledger("ann", OTHER) == KNOWN
    with contextlib.closing(Archive(plain)) as archive:
        assert archive.known_ledger("ann", OTHER) == OTHER, "the -wal belongs to it"


def test_an_old_copy_of_a_partys_database_allows_what_the_newer_one_forbids(tmp_path: Path) -> None:
    path = tmp_path / "data" / "party.db"
    with contextlib.closing(RoundJournal(path)) as tally:
        old = backed_up(path, tmp_path / "old")
        assert tally.open("round") and tally.aggregate("round")
        new = backed_up(path, tmp_path / "new")
    with contextlib.closing(RoundJournal(new)) as tally:
        assert not tally.open("round") and not tally.aggregate("round")
    with contextlib.closing(RoundJournal(old)) as tally:
        assert tally.open("round") and tally.aggregate("round")


def test_a_ledgers_copy_has_all_spends_so_far_its_owner_and_its_id(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    with Ledger(path, None, "agent/ann") as ledger:
        ledger.charge("first", VOTE)
        copy = backed_up(path, tmp_path / "copy")
        ledger.charge("second", VOTE)
    with LedgerView(copy) as view:
        assert [spend.round_id for spend in view.spends()] == ["first"]
        assert (view.owner, view.ledger_id) == ("agent/ann", ledger.ledger_id)
