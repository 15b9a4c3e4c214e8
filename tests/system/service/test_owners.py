"""What belongs to whom: models to the client that trained them; and what clients are told."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from mpc_vote.cli import rounds
from mpc_vote.errors import ErrorKind
from mpc_vote.pki.identity import Role
from mpc_vote.proto.mpcvote.v1 import common_pb2, label_pb2
from tests.system.service.support import Group, Service, command, ghost, refused


async def test_a_model_is_seen_by_the_client_that_trained_it_alone(
    service: Service, clinics: Group
) -> None:
    async with service.client("trainer") as trainer, service.client("stranger") as stranger:
        round_id = (await trainer.label(clinics.queries(30), clinics.plan())).round_id
        trained = await trainer.train([round_id])
        assert [model.version for model in await trainer.models()] == [trained.version]
        assert await stranger.models() == []
        with refused(ErrorKind.ROUND_UNKNOWN):
            await stranger.train([round_id])
        with refused(ErrorKind.MODEL_UNKNOWN):
            await stranger.model(trained.version)
        with refused(ErrorKind.MODEL_UNKNOWN):
            await stranger.predict(clinics.queries(2), trained.version)


async def test_noise_that_drowns_the_votes_is_warned_of(service: Service, clinics: Group) -> None:
    async with service.client() as client:
        quiet = await client.label(clinics.queries(3), clinics.plan())
        loud = await client.label(clinics.queries(3), clinics.plan(sigma=50.0, agreement=None))
    assert quiet.warnings == ()
    assert "close to random" in loud.warnings[0]


async def test_agents_whose_policy_refuses_are_named_with_what_they_want(service: Service) -> None:
    lone = Group(shape=(2,), classes=7, ks={}, spread=1.0)
    async with ghost(service, "picky", classes=7, min_quorum=3), service.client() as client:
        with refused(ErrorKind.AGENTS_UNWILLING, "picky wants a quorum of at least 3"):
            await client.label(np.zeros((1, 2), np.float32), lone.plan(quorum=1, collusion=0))


def test_no_epsilon_is_told_of_a_round_that_failed() -> None:
    """It may have been charged: zero would be too little."""
    failed = label_pb2.RoundSummary(
        state=label_pb2.ROUND_STATE_FAILED, ballot=common_pb2.BALLOT_KIND_ONE_HOT
    )
    row = rounds._row(failed)
    assert [row[key] for key in ("epsilon_agent", "epsilon_instance", "delta")] == [None] * 3


def test_rounds_are_listed_and_their_labels_fetched_again(
    service: Service, clinics: Group, tmp_path: Path
) -> None:
    certs = service.certs(Role.CLIENT, "lister")
    where = ("--certs", certs, "--coordinator", service.cluster.coordinator_address)
    np.save(tmp_path / "q.npy", clinics.queries(12))
    files = ("--queries", tmp_path / "q.npy", "--out", tmp_path / "first.npy")
    plan = ("--classes", "3", "--sigma", "50", "--delta", "0.25", "--yes")
    asked = command("label", *where, *files, *plan, "--json", "-")
    assert asked.returncode == 0, asked.stderr
    round_id = json.loads(asked.stdout)["round_id"]
    listed = command("rounds", *where, "--json", "-")
    (row,) = json.loads(listed.stdout)["rounds"]
    told = (row["round_id"], row["epsilon_instance"], row["delta"])
    assert told == (round_id, 0.0, 0.25), "an epsilon of 0 is true at such a delta, and there only"
    shown = command("rounds", *where).stdout.split()
    assert "0.25" in shown[shown.index(round_id) :]
    again = ("--round", round_id, "--out", tmp_path / "again.npy")
    assert command("rounds", *where, *again).returncode == 0
    assert (np.load(tmp_path / "first.npy") == np.load(tmp_path / "again.npy")).all()
    unknown = command("rounds", *where, "--round", "nope", "--out", tmp_path / "x.npy")
    assert unknown.returncode == 1
    assert "There is no round nope" in unknown.stderr
    assert not (tmp_path / "x.npy").exists()
