"""A client's plans, its end, and what its commands show."""

from __future__ import annotations

import gc
import io
import warnings
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from mpc_vote.argmax.registry import ENGINES, TABLE
from mpc_vote.cli import budget, label, rounds
from mpc_vote.client import LabelClient, LabelResult, Plan, Progress
from mpc_vote.errors import ErrorKind, VoteError
from mpc_vote.pki.authority import CertificateAuthority
from mpc_vote.pki.identity import Identity, Role
from mpc_vote.proto.mpcvote.v1 import common_pb2, label_pb2
from mpc_vote.results import Cost
from mpc_vote.voting.ballots import BALLOTS, KNN_COUNT

NOBODY = "127.0.0.1:1"


@pytest.fixture
def client(tmp_path: Path) -> Iterator[LabelClient]:
    authority = CertificateAuthority.create(tmp_path / "ca")
    authority.issue(Identity(Role.CLIENT, "me"), tmp_path / "me")
    with LabelClient(NOBODY, tmp_path / "me") as made:
        yield made


# Plans


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"classes": 3, "sigma": "10"}, "plan.sigma must be a number, not '10'"),
        ({"classes": 3.5}, "plan.classes must be a whole number, not 3.5"),
        ({"task": "task.toml"}, r"plan.task must be a task, such as Task.load\('task.toml'\)"),
    ],
)
def test_what_is_of_another_type_is_told_by_name(given: dict[str, Any], words: str) -> None:
    with pytest.raises(TypeError, match=words):
        Plan(**given)


def test_numbers_of_numpy_are_numbers() -> None:
    plan = Plan(classes=np.int64(3), sigma=np.float32(2))  # type: ignore[arg-type]
    assert (plan.message().classes, plan.message().sigma) == (3, 2)


def test_no_queries_at_all_are_told_as_such(client: LabelClient) -> None:
    with pytest.raises(VoteError) as caught:
        client.label(None, Plan(classes=3))  # type: ignore[arg-type]
    assert caught.value.kind is ErrorKind.QUERIES_EMPTY


@pytest.mark.parametrize("name", BALLOTS.names())
def test_a_plan_takes_a_kind_of_ballot_by_its_name(name: str) -> None:
    kind = BALLOTS.by_name(name)
    assert Plan(classes=3, ballot=name) == Plan(classes=3, ballot=kind)
    assert Plan(classes=3, ballot=name).message().ballot == kind.code


@pytest.mark.parametrize("name", ENGINES.names())
def test_a_plan_takes_an_engine_by_its_name(name: str) -> None:
    assert Plan(classes=3, engine=name).message().engine == ENGINES.by_name(name).code
    assert Plan(classes=3, ballot=KNN_COUNT, engine=TABLE).message().ballot == KNN_COUNT.code


@pytest.mark.parametrize("field", ["ballot", "engine"])
@pytest.mark.parametrize("given", ["foo", "", 3, object])
def test_a_plan_refuses_names_that_nobody_knows_and_lists_those_there_are(
    field: str, given: Any
) -> None:
    known = BALLOTS.names() if field == "ballot" else ENGINES.names()
    with pytest.raises(ValueError, match=f"choose one of {', '.join(known)}"):
        Plan(classes=3, **{field: given})


# The client without asyncio


def test_a_coordinator_that_is_not_there_is_named_as_such(client: LabelClient) -> None:
    with pytest.raises(VoteError) as caught:
        client.service()
    assert caught.value.kind is ErrorKind.COORDINATOR_UNREACHABLE
    assert caught.value.message.startswith(
        f"The coordinator at {NOBODY} does not answer (connection refused)"
    )


def test_a_closed_client_says_so_and_leaves_nothing_unawaited(client: LabelClient) -> None:
    client.close()
    client.close()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(RuntimeError, match="the client is closed: make a new one"):
            client.service()
        gc.collect()


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
def test_progress_that_nobody_reads_on_ends_with_its_client(
    client: LabelClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def stream(*_: Any) -> AsyncIterator[Progress]:
        yield Progress("preparing", 0, 1, "", 0.0)
        raise AssertionError("nobody reads on")

    monkeypatch.setattr(client._client, "stream", stream)
    events = client.stream([[0.0]], Plan(classes=3))
    assert isinstance(next(events), Progress)
    client.close()
    del events
    gc.collect()


# What is shown

SPENT = {
    "delta": 1e-3,
    "against": "totals",
    "total_labels_epsilon_agent": 1.0,
    "total_labels_epsilon_instance": 2.0,
}


@pytest.mark.parametrize("verified", [True, False])
def test_a_result_names_the_noise_that_a_request_left_open(verified: bool) -> None:
    spec = common_pb2.RoundSpec(sigma=25.0, collusion=1, verified=verified)
    cost = Cost.from_message(common_pb2.Cost(epsilon_agent=1, epsilon_instance=1, delta=1e-3))
    out = io.StringIO()
    result = LabelResult("round", np.zeros(1, np.int64), cost, 3, {}, (), spec)
    label._show(Console(file=out, width=200), result, Path("labels.npy"))
    assert "sigma 25 votes" in out.getvalue()
    assert label.figures(result)["sigma"] == 25


def test_one_epsilon_looks_the_same_wherever_it_is_shown() -> None:
    cost = common_pb2.Cost(
        epsilon_agent=123.4561, epsilon_instance=2.664101, delta=1e-3, total_epsilon_instance=2.66
    )
    out = io.StringIO()
    shown = Console(file=out, width=200)
    result = LabelResult("round", np.zeros(1, np.int64), Cost.from_message(cost), 3, {}, (), None)
    label._show(shown, result, Path("labels.npy"))
    levels = {"instance": {"spent": cost.epsilon_instance, "limit": 8.0, "remaining": 5.335899}}
    budget._show_levels(shown, {"levels": levels, **SPENT})
    text = out.getvalue()
    assert "123.5 agent level, 2.665 instance level" in text
    assert text.count("2.665") == 2 and "5.335" in text
    summary = label_pb2.RoundSummary(cost=cost)
    assert rounds._spent(summary) == "epsilon 123.5 agent, 2.665 instance level, delta 0.001"


@pytest.mark.parametrize(("count", "told"), [(1, ": 1 round, 1 query\n"), (2, ": 2 rounds, 2 que")])
def test_one_round_is_told_in_the_singular(count: int, told: str) -> None:
    figures: dict[str, Any] = {
        "ledger": "ledger.db",
        "ledger_id": "",
        "owner": "agent/a",
        "rounds": count,
        "queries": count,
        **SPENT,
        "limits_noted": True,
        "levels": {},
        "ballot": "one_hot",
        "k": [],
        "buys": [{"sigma": 5.0, "queries": count}],
    }
    out = io.StringIO()
    budget._show_ledger(Console(file=out, width=200), figures)
    assert told in out.getvalue()
    assert f"allows {count} more {'query' if count == 1 else 'queries'} at" in out.getvalue()
