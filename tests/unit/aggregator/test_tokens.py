"""A token stands for one name, once, until it expires; and agents take one each from a pool."""

from __future__ import annotations

import stat
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from agent_node.enrolment import claim
from aggregator.coordinator.tokens import Tokens
from mpc_vote import cli
from mpc_vote.app.process import CommandError

HOUR = 3600.0
AT_ONCE = 8


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "data" / "enrolment.db"


@pytest.fixture
def now() -> list[float]:
    """The time, for tests to move."""
    return [1e9]


@pytest.fixture
def tokens(database: Path, now: list[float]) -> Iterator[Tokens]:
    store = Tokens(database, clock=lambda: now[0])
    yield store
    store.close()


def test_a_token_gives_its_name_once(tokens: Tokens) -> None:
    made = tokens.make(["alice", "bob"], HOUR)
    assert tokens.redeem(made["bob"]) == "bob"
    assert tokens.redeem(made["bob"]) is None
    assert tokens.redeem(made["alice"]) == "alice"


def test_a_used_token_stays_used_in_another_process(tokens: Tokens, database: Path) -> None:
    token = tokens.make(["alice"], HOUR)["alice"]
    assert tokens.redeem(token) == "alice"
    again = Tokens(database, clock=lambda: 1e9)
    assert again.redeem(token) is None
    again.close()


def test_a_token_ends_with_its_time(tokens: Tokens, now: list[float]) -> None:
    made = tokens.make(["alice", "bob"], HOUR)
    now[0] += HOUR - 1
    assert tokens.redeem(made["alice"]) == "alice"
    now[0] += 1
    assert tokens.redeem(made["bob"]) is None


def test_of_many_processes_with_one_token_one_wins(database: Path) -> None:
    stores = [Tokens(database) for _ in range(AT_ONCE)]
    for turn in range(20):
        name = f"agent-{turn}"
        token = stores[0].make([name], HOUR)[name]
        with ThreadPoolExecutor(AT_ONCE) as threads:
            got = list(threads.map(lambda store, token=token: store.redeem(token), stores))
        assert sorted(map(str, got)) == sorted([name, *["None"] * (AT_ONCE - 1)])
    for store in stores:
        store.close()


def test_a_name_gets_another_token_only_when_asked(tokens: Tokens, now: list[float]) -> None:
    first = tokens.make(["alice"], HOUR)["alice"]
    with pytest.raises(CommandError, match="alice has a token that is not used"):
        tokens.make(["bob", "alice"], HOUR)
    assert tokens.make(["bob"], HOUR), "nothing was made for bob before"
    second = tokens.make(["alice"], HOUR, renew=True)["alice"]
    assert tokens.redeem(first) is None, "a name has one live token at most"
    assert tokens.redeem(second) == "alice"
    with pytest.raises(CommandError, match="alice has enrolled"):
        tokens.make(["alice"], HOUR)
    third = tokens.make(["alice"], HOUR, renew=True)["alice"]
    assert tokens.redeem(third) == "alice"


def test_an_expired_token_is_in_nobodys_way(tokens: Tokens, now: list[float]) -> None:
    tokens.make(["alice"], HOUR)
    now[0] += HOUR
    assert tokens.redeem(tokens.make(["alice"], HOUR)["alice"]) == "alice"


def test_the_database_holds_no_token(tokens: Tokens, database: Path) -> None:
    token = tokens.make(["alice"], HOUR)["alice"]
    assert len(token) == 43
    written = b"".join(path.read_bytes() for path in database.parent.iterdir())
    assert b"alice" in written
    assert token.encode() not in written


# The command

Command = Callable[..., int]


@pytest.fixture
def command(database: Path) -> Command:
    database.parent.mkdir(exist_ok=True)

    def run(*arguments: str) -> int:
        return cli.main(["token", "--data-dir", str(database.parent), *arguments])

    return run


@pytest.mark.parametrize(
    ("place", "why"),
    [
        ("nowhere", "nowhere is not there: name the coordinator's data folder"),
        ("file", "file is a file: name the coordinator's data folder"),
        ("agent", "agent is not a coordinator's data folder, which has a coordinator.db"),
    ],
)
def test_a_folder_that_is_no_coordinators_is_refused_and_left_as_it_is(
    place: str, why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "agent").mkdir()
    (tmp_path / "agent" / "ledger.db").touch()
    before = sorted(tmp_path.rglob("*"))
    assert cli.main(["token", "--data-dir", str(tmp_path / place), "--names", "alice"]) == 2
    assert why in capsys.readouterr().err
    assert sorted(tmp_path.rglob("*")) == before


def test_a_folder_that_a_coordinator_has_used_takes_tokens(
    command: Command, database: Path
) -> None:
    (database.parent / "coordinator.db").touch()
    (database.parent / "ledger.db").touch()
    assert command("--names", "alice") == 0


def test_tokens_are_printed_with_their_names(
    command: Command, database: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command("--names", "alice,bob") == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [name for name, _ in lines] == ["alice", "bob"]
    store = Tokens(database)
    assert [store.redeem(token) for _, token in lines] == ["alice", "bob"]
    store.close()


def test_tokens_are_written_for_a_pool(
    command: Command, database: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pool = tmp_path / "pool"
    assert command("--names", "alice", "--names", "bob", "--out", str(pool)) == 0
    assert sorted(path.name for path in pool.iterdir()) == ["alice", "bob"]
    store = Tokens(database)
    for path in pool.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        token = path.read_text().strip()
        assert token not in capsys.readouterr().out
        assert store.redeem(token) == path.name
    store.close()


def test_a_second_token_needs_renew(command: Command, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("--names", "alice") == 0
    assert command("--names", "alice") == 1
    assert "--renew" in capsys.readouterr().err
    assert command("--names", "alice", "--renew") == 0


@pytest.mark.parametrize(
    ("arguments", "code", "why"),
    [
        (["--names", "Alice"], 2, "is not a name"),
        (["--names", "a/b"], 2, "is not a name"),
        (["--names", "alice", "--hours", "0"], 2, "hours"),
        ([], 2, "names: none are given"),
        (["--names", "alice", "--keep", "--renew"], 2, "contradict"),
        (["--pool", "a" * 62, "--count", "11"], 1, "can't be a name"),
    ],
)
def test_a_mistake_is_told_and_nothing_is_made(
    command: Command,
    database: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    code: int,
    why: str,
) -> None:
    assert command(*arguments) == code
    assert why in capsys.readouterr().err
    assert not database.exists()


def test_a_pool_is_made_once_however_often_it_is_asked_for(
    command: Command, database: Path, tmp_path: Path
) -> None:
    pool = tmp_path / "pool"
    asked = ["--pool", "agent", "--count", "3", "--out", str(pool), "--keep"]
    assert command(*asked) == 0
    first = {path.name: path.read_text() for path in pool.iterdir()}
    assert sorted(first) == ["agent-0", "agent-1", "agent-2"]
    store = Tokens(database)
    assert store.redeem(first["agent-1"].strip()) == "agent-1"
    store.close()
    (pool / "agent-1").unlink()
    assert command(*asked) == 0
    assert {path.name for path in pool.iterdir()} == {"agent-0", "agent-2"}
    assert (pool / "agent-0").read_text() == first["agent-0"]


def test_tokens_are_not_written_where_everybody_reads(
    command: Command, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pool = tmp_path / "pool"
    pool.mkdir()
    pool.chmod(0o755)
    assert command("--names", "alice", "--out", str(pool)) == 1
    assert f"chmod 700 {pool}" in capsys.readouterr().err


# The pool


def test_agents_that_claim_at_once_get_different_tokens(tmp_path: Path) -> None:
    pool = tmp_path / "pool"
    pool.mkdir()
    wanted = {f"token-{number}" for number in range(40)}
    for token in wanted:
        (pool / token).write_text(token)

    def agent(number: int) -> list[str]:
        got = []
        while claim(pool, tmp_path / f"mine-{number}"):
            got.append((tmp_path / f"mine-{number}").read_text())
        return got

    with ThreadPoolExecutor(AT_ONCE) as threads:
        claimed = [token for got in threads.map(agent, range(AT_ONCE)) for token in got]
    assert len(claimed) == len(wanted) and set(claimed) == wanted
    assert [path for path in pool.rglob("*") if path.is_file()] == []


def test_a_claimed_token_is_its_owners_only_and_half_written_files_are_left(
    tmp_path: Path,
) -> None:
    pool, mine = tmp_path / "pool", tmp_path / "mine"
    pool.mkdir()
    (pool / ".alice.x1y2").write_text("half")
    assert not claim(pool, mine)
    (pool / "alice").write_text("token")
    assert claim(pool, mine)
    assert mine.read_text() == "token"
    assert stat.S_IMODE(mine.stat().st_mode) == 0o600
    assert (pool / ".alice.x1y2").exists()


def test_a_pool_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match=f"{tmp_path}/pool: No such file"):
        claim(tmp_path / "pool", tmp_path / "mine")
