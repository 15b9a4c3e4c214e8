"""Rounds are planned with a real federation before anything is spent, and what noise would drown is
not asked for."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import numpy as np
import pytest

from mpc_vote.client import LabelClient, Plan
from mpc_vote.errors import ErrorKind
from mpc_vote.pki.identity import Role
from mpc_vote.privacy.ledger import LedgerView
from mpc_vote.voting.ballots import KNN_COUNT
from tests.system.service.support import Group, Service, command, ghost, refused

Spent = dict[str, list[str]]


@pytest.fixture
def spent(service: Service) -> Spent:
    """What every ledger of the federation held before the test."""
    return ledgers(service)


def ledgers(service: Service) -> Spent:
    """The rounds in every ledger of the federation, by its folder."""
    paths = sorted((service.cluster.directory / "data").glob("*/ledger.db"))
    found = {}
    for path in paths:
        with LedgerView(path) as ledger:
            found[path.parent.name] = [spend.round_id for spend in ledger.spends()]
    assert {"coordinator", "clinic-0", "lab-0"} <= found.keys()
    return found


def reach(service: Service, client: str) -> tuple[str | Path, ...]:
    certs = service.certs(Role.CLIENT, client)
    return ("--certs", certs, "--coordinator", service.cluster.coordinator_address)


async def test_a_dry_run_tells_the_round_that_follows_and_leaves_no_trace(
    service: Service, clinics: Group, spent: Spent
) -> None:
    queries, plan = clinics.queries(20), clinics.plan(sigma=2.0)
    async with service.client("planner") as client:
        told = await client.plan(queries, plan)
        assert await client.plan(len(queries), plan) == told
        assert list(await client.rounds()) == []
        assert ledgers(service) == spent
        result = await client.label(queries, plan)
    assert result.spec is not None
    assert dict(told.agents) == {entry.agent: entry.k for entry in result.spec.roster} == clinics.ks
    assert told.left_out == {f"lab-{place}": "answers for 4 classes" for place in range(2)}
    assert (told.quorum, told.collusion) == (result.spec.quorum, result.spec.collusion)
    assert (told.ballot, told.verified) == (KNN_COUNT, result.spec.verified)
    assert told.ring_bits == result.spec.ring_bits
    assert (told.epsilon_agent, told.epsilon_instance) == (
        result.cost.epsilon_agent,
        result.cost.epsilon_instance,
    )
    assert told.total_epsilon_instance == result.cost.total_epsilon_instance
    assert len(told.parties) == 3
    assert told.unready_parties == ()


async def test_an_agent_whose_policy_refuses_is_told_as_left_out(
    service: Service, clinics: Group
) -> None:
    async with ghost(service, "picky", classes=3, shape=(6,)), service.client() as client:
        told = await client.plan(5, clinics.plan(sigma=2.0))
    assert told.left_out["picky"] == "casts no knn_count ballots"


def test_programs_without_asyncio_plan_too(service: Service, clinics: Group) -> None:
    certs = service.certs(Role.CLIENT, "planner")
    with LabelClient(service.cluster.coordinator_address, certs) as client:
        told = client.plan(10, Plan(classes=clinics.classes, sigma=2.0))
    assert told.votes == sum(clinics.ks.values())
    assert told.forecast(0.9).low > told.forecast(0.5).low


async def test_a_request_that_noise_would_drown_is_refused_before_anything_is_spent(
    service: Service, clinics: Group, spent: Spent
) -> None:
    async with service.client("drowned") as client:
        with refused(ErrorKind.LEAD_DROWNED, "Nothing was spent."):
            await client.label(clinics.queries(5), clinics.plan(sigma=50.0))
        with refused(ErrorKind.LEAD_DROWNED, "Where 40 % of the votes agree"):
            await client.label(clinics.queries(5), clinics.plan(sigma=5.0, agreement=0.4))
        assert list(await client.rounds()) == []
    assert ledgers(service) == spent


def test_label_stops_where_noise_drowns_the_lead_unless_told_to_go_on(
    service: Service, clinics: Group, spent: Spent, tmp_path: Path
) -> None:
    np.save(tmp_path / "q.npy", clinics.queries(5))
    files = ("--queries", tmp_path / "q.npy", "--out", tmp_path / "labels.npy")
    asked = ("label", *reach(service, "stopped"), *files, "--classes=3", "--sigma=50")
    stopped = command(*asked)
    assert stopped.returncode == 1
    assert "LEAD_DROWNED: Sigma 50 is large for at most 15 votes" in stopped.stderr
    assert "--yes" in stopped.stderr
    assert not (tmp_path / "labels.npy").exists()
    assert ledgers(service) == spent
    done = command(*asked, "--yes")
    assert done.returncode == 0, done.stderr
    assert "close to random" in done.stdout
    assert len(np.load(tmp_path / "labels.npy")) == 5


def test_label_charges_the_same_queries_once_unless_told_to_pay_again(
    service: Service, clinics: Group, tmp_path: Path
) -> None:
    np.save(tmp_path / "q.npy", clinics.queries(7))
    files = ("--queries", tmp_path / "q.npy", "--out", tmp_path / "labels.npy")
    asked = ("label", *reach(service, "twice"), *files, "--classes=3", "--sigma=2", "--json=-")
    done = command(*asked, "--request-id=first")
    assert done.returncode == 0, done.stderr
    round_id = json.loads(done.stdout)["round_id"]
    assert "nothing more was charged" not in done.stderr
    charged = ledgers(service)

    stopped = command(*asked)
    assert stopped.returncode == 1
    assert f"nothing was asked: round {round_id} over the same 7 queries" in stopped.stderr
    fetch = shlex.split(stopped.stderr.partition("at no further cost: ")[2].partition(";")[0])
    labels = np.load(tmp_path / "labels.npy")
    (tmp_path / "labels.npy").unlink()
    fetched = command(*fetch[1:])
    assert fetched.returncode == 0, fetched.stderr
    assert (np.load(tmp_path / "labels.npy") == labels).all()
    planned = command(*asked, "--dry-run")
    assert planned.returncode == 0 and f"warning: round {round_id}" in planned.stderr

    again = command(*asked, "--request-id=first")
    assert json.loads(again.stdout)["round_id"] == round_id
    assert "nothing more was charged" in again.stderr
    other = command("label", *reach(service, "somebody"), *files, "--classes=3", "--dry-run")
    assert other.returncode == 0 and round_id not in other.stdout, "it is another client's"
    assert ledgers(service) == charged

    kept = command(*asked, "--yes")
    assert kept.returncode == 1
    assert f"{tmp_path / 'labels.npy'} is there already: pass --overwrite" in kept.stderr
    assert ledgers(service) == charged
    paid = command(*asked, "--yes", "--overwrite")
    assert paid.returncode == 0, paid.stderr
    assert json.loads(paid.stdout)["round_id"] != round_id
    assert len(ledgers(service)["coordinator"]) == len(charged["coordinator"]) + 1


def test_label_shows_a_dry_run_and_asks_nobody(
    service: Service, clinics: Group, spent: Spent, tmp_path: Path
) -> None:
    np.save(tmp_path / "q.npy", clinics.queries(5))
    asked = ("label", *reach(service, "dry"), "--queries", tmp_path / "q.npy", "--classes=3")
    shown = command(*asked, "--sigma=2", "--dry-run")
    assert shown.returncode == 0, shown.stderr
    for told in (
        "3: clinic-0, clinic-1, clinic-2",
        "lab-0: answers for 4 classes",
        "at most 15 votes on a query",
        "if 90 % of the votes agree",
        "nobody was asked and nothing was spent",
    ):
        assert told in shown.stdout
    figures = command(*asked, "--sigma=50", "--dry-run", "--agreement=0.8", "--json=-")
    told = json.loads(figures.stdout)
    assert [found["agreement"] for found in told["forecasts"]] == [0.8]
    assert told["forecasts"][0]["drowned"]
    assert "Where 80 % of the votes agree" in told["warnings"][0]
    assert ledgers(service) == spent


def test_plan_takes_the_agents_that_attend(service: Service, spent: Spent) -> None:
    asked = ("plan", *reach(service, "planner"), "--classes=3", "--queries=50,100")
    done = command(*asked, "--sigma=1,2", "--agreement=0.8", "--json=-")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["federation"]["k"] == [3, 5, 7]
    assert len(told["plans"]) == 4
    chosen = told["recommended"]
    assert (told["round"]["queries"], told["round"]["sigma"]) == (
        chosen["queries"],
        chosen["sigma"],
    )
    assert told["round"]["epsilon_instance"] == pytest.approx(chosen["epsilon_instance"])
    assert told["round"]["left_out"].keys() == {"lab-0", "lab-1"}
    assert "nothing was spent" in done.stderr
    assert ledgers(service) == spent


def test_noise_that_the_service_refuses_is_left_out_of_a_plan_by_name(
    service: Service, spent: Spent
) -> None:
    asked = ("plan", *reach(service, "planner"), "--classes=3", "--queries=50")
    done = command(*asked, "--sigma=1,2,1e9", "--json=-")
    assert done.returncode == 0, done.stderr
    assert [cell["sigma"] for cell in json.loads(done.stdout)["plans"]] == [1, 2]
    assert "Sigma 1e+09 is left out, as the service would refuse it: " in done.stderr
    alone = command(*asked, "--sigma=1e9")
    assert alone.returncode == 1 and "SPEC_INVALID" in alone.stderr
    assert ledgers(service) == spent


def test_label_asks_about_representatives_alone(
    service: Service, clinics: Group, tmp_path: Path
) -> None:
    queries = clinics.queries(40)
    np.save(tmp_path / "q.npy", queries)
    files = ("--queries", tmp_path / "q.npy", "--out", tmp_path / "labels.npy")
    asked = ("label", *reach(service, "chooser"), *files, "--classes=3", "--sigma=1e-5")
    planned = command(*asked, "--select=9", "--json=-", "--dry-run")
    done = command(*asked, "--select=9", "--json=-")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    labels, chosen = np.load(tmp_path / "labels.npy"), told["selected"]
    assert told["labels"] == len(chosen) == 9
    assert json.loads(planned.stdout)["selected"] == chosen
    assert np.flatnonzero(labels >= 0).tolist() == chosen
    assert (labels[chosen] == clinics.winners(queries)[chosen]).all()
    assert set(labels) - {0, 1, 2} == {-1}

    # Asked again, it stops; what it says then writes the same file, for nothing.
    charged = ledgers(service)
    stopped = command(*asked, "--select=9")
    fetch = shlex.split(stopped.stderr.partition("at no further cost: ")[2].partition(";")[0])
    (tmp_path / "labels.npy").unlink()
    fetched = command(*fetch[1:])
    assert fetched.returncode == 0, fetched.stderr
    assert "nothing more was charged" in fetched.stdout
    assert (np.load(tmp_path / "labels.npy") == labels).all()
    others = command(*asked, "--select=8", f"--round={told['round_id']}")
    assert others.returncode == 1 and "about other queries than these" in others.stderr
    assert ledgers(service) == charged
    many = command(*asked, "--select=41")
    assert many.returncode == 2
    assert "--select: there are 40 rows to choose from" in many.stderr
