"""A round from the client's side, on live processes: right labels, told costs, charged once.

With next to no noise the released labels must be the plain argmax of the ballots' sum, which only
these tests can compute, as they hold every agent's data.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import math
import shlex
import signal
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open

from mpc_vote.argmax.registry import ENGINES, EngineKind
from mpc_vote.client import AsyncLabelClient, LabelClient, LabelResult, Plan, Progress
from mpc_vote.errors import ErrorKind, VoteError
from mpc_vote.mpc import ring
from mpc_vote.pki.identity import Identity, Role
from mpc_vote.privacy import charged_epsilon
from mpc_vote.privacy.mechanisms import Level
from mpc_vote.proto.mpcvote.v1 import label_pb2, label_pb2_grpc, model_pb2
from mpc_vote.results import Cost, Model
from mpc_vote.voting.ballots import KNN_COUNT, KNN_FREQUENCY, BallotKind
from mpc_vote.voting.spec import Spec
from tests.system.service.support import (
    QUIET,
    SECONDS,
    Group,
    Queries,
    Service,
    attends,
    cancelled,
    command,
    error_of,
    ghost,
    refused,
    until,
)

# Labels


@pytest.mark.parametrize("kind", [KNN_COUNT, KNN_FREQUENCY])
async def test_labels_are_the_argmax_of_the_summed_ballots(
    service: Service, clinics: Group, kind: BallotKind
) -> None:
    queries = clinics.queries(200)
    top = np.sort(clinics.totals(queries, kind), axis=1)
    assert (top[:, -1] == top[:, -2]).any() or kind is KNN_FREQUENCY, "some rows tie"
    async with service.client() as client:
        result = await client.label(queries, clinics.plan(ballot=kind))
    assert (result.labels == clinics.winners(queries, kind)).all()
    assert result.contributors == 3
    assert result.absences == {}


@pytest.mark.parametrize("engine", list(ENGINES))
async def test_every_engine_finds_the_same_winners(
    service: Service, clinics: Group, engine: EngineKind
) -> None:
    queries = clinics.queries(40)
    async with service.client() as client:
        result = await client.label(queries, clinics.plan(engine=engine))
    assert result.spec is not None
    assert ENGINES.by_code(result.spec.engine) is engine
    assert (result.labels == clinics.winners(queries)).all()


async def test_a_batch_of_several_messages_and_another_shape(service: Service, labs: Group) -> None:
    """Queries of the agents that want images of 16 x 8, over a megabyte of them."""
    queries = labs.queries(3_000)
    assert queries.nbytes > 1 << 20
    async with service.client() as client:
        result = await client.label(queries, labs.plan(sigma=0.5))
    assert (result.labels == labs.winners(queries)).all()
    assert result.spec is not None
    assert [entry.agent for entry in result.spec.roster] == ["lab-0", "lab-1"]


async def test_the_largest_batch_works(service: Service, clinics: Group) -> None:
    queries = clinics.queries(10_000)
    async with service.client() as client:
        result = await client.label(queries, clinics.plan())
    assert (result.labels == clinics.winners(queries)).all()


async def test_requests_side_by_side_do_not_mix(
    service: Service, clinics: Group, labs: Group
) -> None:
    batches = [clinics.queries(60, seed=1), clinics.queries(80, seed=2), labs.queries(30, seed=3)]
    plans = [clinics.plan(), clinics.plan(ballot=KNN_FREQUENCY), labs.plan(sigma=0.5)]
    async with service.client() as client:
        results = await asyncio.gather(
            *(client.label(batch, plan) for batch, plan in zip(batches, plans, strict=True))
        )
    assert (results[0].labels == clinics.winners(batches[0])).all()
    assert (results[1].labels == clinics.winners(batches[1], KNN_FREQUENCY)).all()
    assert (results[2].labels == labs.winners(batches[2])).all()
    assert len({result.round_id for result in results}) == 3


# Costs


async def test_a_round_tells_what_it_cost(service: Service, labs: Group) -> None:
    queries = labs.queries(30)
    async with service.client() as client:
        result = await client.label(queries, labs.plan(sigma=2.0, delta=1e-4))
        total = await client.service()
    cost = result.cost
    assert result.spec is not None
    mechanism = Spec.parse(result.spec.SerializeToString()).mechanism
    assert cost.delta == 1e-4
    assert cost.epsilon_agent == charged_epsilon([mechanism], Level.AGENT, 1e-4)
    assert cost.epsilon_instance == charged_epsilon([mechanism], Level.INSTANCE, 1e-4)
    assert cost.total_epsilon_agent >= cost.epsilon_agent > 0
    assert cost.total_epsilon_instance >= cost.epsilon_instance > 0
    assert total.total_epsilon_agent > 0
    cells = len(queries) * labs.classes
    # One explicit share in the round's ring, seeds and headers: about one plain ballot.
    ballot = ring.packed_size(cells, result.spec.ring_bits)
    assert ballot < cost.upload_bytes_per_agent < ballot + 1_000
    assert cost.mpc_rounds > 0
    assert cost.mpc_bytes_per_party > cells
    assert cost.dealer_bytes > cells
    assert 0 < cost.mpc_seconds <= cost.seconds
    assert service.spends()[-1].mechanism == mechanism


async def test_an_agent_uploads_little_more_than_its_plain_ballot(
    service: Service, clinics: Group
) -> None:
    """As many numbers as 500 queries of ten classes have, to three parties."""
    queries = clinics.queries(1_667)
    async with service.client() as client:
        result = await client.label(queries, clinics.plan())
    assert result.spec is not None and len(result.spec.parties) == 3
    cells = len(queries) * clinics.classes
    assert result.cost.upload_bytes_per_agent <= 1.05 * cells * result.spec.ring_bits / 8


# Requests that are asked twice


async def spent(client: AsyncLabelClient) -> tuple[float, float]:
    told = await client.service()
    return told.total_epsilon_agent, told.total_epsilon_instance


async def test_a_resumed_request_gives_the_same_labels_at_one_charge(
    service: Service, labs: Group
) -> None:
    queries = labs.queries(20)
    plan = labs.plan(sigma=3.0, request_id="resumed")
    async with service.client() as client:
        first = await client.label(queries, plan)
        charged, total = service.spends(), await spent(client)
        again = await client.label(queries, plan)
        assert again.round_id == first.round_id
        assert (again.labels == first.labels).all()
        assert again.cost == first.cost
        assert service.spends() == charged
        assert await spent(client) == total


async def test_one_request_asked_twice_at_once_is_one_round(service: Service, labs: Group) -> None:
    queries = labs.queries(20, seed=4)
    plan = labs.plan(sigma=3.0, request_id="at-once")
    charged = len(service.spends())
    async with service.client() as one, service.client() as two:
        first, second = await asyncio.gather(one.label(queries, plan), two.label(queries, plan))
    assert first.round_id == second.round_id
    assert (first.labels == second.labels).all()
    assert len(service.spends()) == charged + 1


async def test_a_request_id_names_one_batch_and_plan(service: Service, clinics: Group) -> None:
    queries = clinics.queries(5)
    async with service.client() as client:
        first = await client.label(queries, clinics.plan(request_id="mine"))
        charged = service.spends()
        for batch, plan in (
            (clinics.queries(5, seed=9), clinics.plan(request_id="mine")),
            (queries, clinics.plan(request_id="mine", sigma=2 * QUIET)),
        ):
            with refused(ErrorKind.REQUEST_ID_REUSED, "'mine'"):
                await client.label(batch, plan)
        assert service.spends() == charged
    # It is a name among one client's requests: another client's is another round.
    async with service.client("neighbour") as client:
        other = await client.label(queries, clinics.plan(request_id="mine"))
    assert other.round_id != first.round_id


# Too many rounds at a time


async def test_a_full_service_says_when_to_come_back(service: Service, clinics: Group) -> None:
    """Three rounds wait for an agent that does not answer; the fourth is told to wait."""
    slow = Group(shape=(2,), classes=8, ks={}, spread=1.0)
    plan = slow.plan(quorum=1, collusion=0, answer_seconds=3_000)
    queries = np.zeros((1, 2), np.float32)
    async with ghost(service, "sleeper", classes=8) as sleeper, service.client() as client:
        waiting = [asyncio.create_task(client.label(queries, plan)) for _ in range(3)]
        opened = [(await sleeper.announced()).round_id for _ in waiting]
        charged = service.spends()
        with pytest.raises(VoteError) as caught:
            await client.label(clinics.queries(3), clinics.plan())
        assert caught.value.name == "SERVICE_BUSY"
        assert caught.value.retry_after is not None and caught.value.retry_after > 0
        assert service.spends() == charged
        # It is told by its plan alone: a batch that can't be taken is not looked at.
        me, coordinator = Identity(Role.CLIENT, "client"), Identity(Role.COORDINATOR, "coordinator")
        async with service.channel(me, coordinator) as channel:
            stub = label_pb2_grpc.LabelServiceStub(channel)
            empty = label_pb2.RequestLabelsRequest(plan=clinics.plan().message())
            told = await error_of(stub.RequestLabels(iter([empty])))
        assert told.kind is ErrorKind.SERVICE_BUSY and told.retry_after
        for round_id in opened:
            await sleeper.decline(round_id, "it is asleep")
        # Nobody waits for the deadline once the quorum is out of reach.
        for task in waiting:
            with refused(ErrorKind.QUORUM_MISSED, "sleeper: POLICY_REFUSED: it is asleep"):
                await task
        queries, results = clinics.queries(3), []

        async def there_is_room() -> bool:
            # A failed round keeps its place until the parties have been told.
            try:
                results.append(await client.label(queries, clinics.plan()))
            except VoteError as error:
                assert error.name == "SERVICE_BUSY", error.message
            return bool(results)

        await until(there_is_room, "a request is taken again")
    assert (results[0].labels == clinics.winners(queries)).all()


async def test_a_patient_client_comes_back_when_it_is_told(
    service: Service, clinics: Group
) -> None:
    """A full service is asked again at its own hint, and at no other time, until it has room."""
    slow = Group(shape=(2,), classes=5, ks={}, spread=1.0)
    plan = slow.plan(quorum=1, collusion=0, answer_seconds=3_000)
    queries = clinics.queries(3)
    waited: list[Progress] = []
    async with ghost(service, "dozer", classes=5) as dozer, service.client() as client:
        batch = np.zeros((1, 2), np.float32)
        waiting = [asyncio.create_task(client.label(batch, plan)) for _ in range(3)]
        opened = [(await dozer.announced()).round_id for _ in waiting]
        charged = service.spends()
        async with service.client("patient") as patient:
            with refused(ErrorKind.SERVICE_BUSY):
                await patient.label(queries, clinics.plan(), patience=0.01)
            async for event in patient.stream(queries, clinics.plan(), patience=SECONDS):
                if isinstance(event, LabelResult):
                    result = event
                elif event.stage == "waiting":
                    if not waited:
                        assert service.spends() == charged
                        for round_id in opened:
                            await dozer.decline(round_id)
                    waited.append(event)
        await asyncio.gather(*waiting, return_exceptions=True)
    assert waited and "Nothing was spent. It is asked again in" in waited[0].detail
    assert (result.labels == clinics.winners(queries)).all()


async def test_a_client_that_uploads_without_end_holds_nobody_else_up(
    service: Service, clinics: Group
) -> None:
    """Batches are read a few at a time, and of one client fewer still."""
    queries, plan = clinics.queries(3), clinics.plan()
    client_identity = Identity(Role.CLIENT, "endless")
    coordinator = Identity(Role.COORDINATOR, "coordinator")
    async with (
        service.channel(client_identity, coordinator) as channel,
        service.client("endless") as endless,
        service.client() as other,
    ):
        stub = label_pb2_grpc.LabelServiceStub(channel)
        calls = [stub.RequestLabels() for _ in range(4)]
        for call in calls:
            await call.write(label_pb2.RequestLabelsRequest(plan=plan.message()))

        async def is_refused() -> bool:
            try:
                await endless.label(queries, plan)
            except VoteError as error:
                assert error.kind is ErrorKind.SERVICE_BUSY and error.retry_after
                return True
            return False

        await until(is_refused, "its own uploads are in its way")
        result = await other.label(queries, plan)
        for call in calls:
            call.cancel()
        assert (await endless.label(queries, plan, SECONDS)).contributors == 3
    assert (result.labels == clinics.winners(queries)).all()


async def test_a_client_that_hangs_up_finds_its_round_again(service: Service) -> None:
    slow = Group(shape=(2,), classes=7, ks={}, spread=1.0)
    plan = slow.plan(quorum=1, collusion=0, request_id="hung-up", answer_seconds=60)
    queries = np.zeros((1, 2), np.float32)
    async with ghost(service, "doubter", classes=7) as doubter:
        async with service.client() as client, cancelled(client.label(queries, plan)):
            spec = await doubter.announced()
            charged = service.spends()
        async with service.client() as client:
            async with contextlib.aclosing(client.stream(queries, plan)) as events:
                assert isinstance(await anext(events), Progress)
            (found,) = [r for r in await client.rounds() if r.round_id == spec.round_id]
            assert found.state == label_pb2.ROUND_STATE_OPEN
            assert service.spends() == charged
            await doubter.decline(spec.round_id)
            with pytest.raises(VoteError) as caught:
                await client.label(queries, plan)
            assert caught.value.name in ("QUORUM_MISSED", "ROUND_FAILED")


# What is remembered


async def test_rounds_are_listed_and_fetched(service: Service, clinics: Group) -> None:
    queries = clinics.queries(7)
    async with service.client() as client:
        result = await client.label(queries, clinics.plan())
        listed = await client.rounds()
        fetched = await client.round(result.round_id)
        assert [r.opened_unix_ms for r in listed] == sorted(r.opened_unix_ms for r in listed)
        assert listed[-1].round_id == result.round_id
        assert fetched.round == listed[-1]
        assert fetched.round.state == label_pb2.ROUND_STATE_COMPLETE
        assert (fetched.round.queries, fetched.round.classes) == (7, clinics.classes)
        assert Cost.from_message(fetched.round.cost) == result.cost
        assert list(fetched.labels.values) == list(result.labels)
        with refused(ErrorKind.ROUND_UNKNOWN, "no-such-round"):
            await client.round("no-such-round")


async def test_a_client_sees_its_own_rounds_only(service: Service, clinics: Group) -> None:
    async with service.client() as client, service.client("stranger") as stranger:
        result = await client.label(clinics.queries(3), clinics.plan())
        assert result.round_id not in [r.round_id for r in await stranger.rounds()]
        with refused(ErrorKind.ROUND_UNKNOWN):
            await stranger.round(result.round_id)
        with refused(ErrorKind.ROUND_UNKNOWN):
            await trained(stranger, [result.round_id])
        with refused(ErrorKind.NOTHING_LABELLED):
            await trained(stranger)


async def test_a_client_cancels_its_own_rounds_only_and_before_they_are_charged(
    service: Service, clinics: Group
) -> None:
    slow = Group(shape=(2,), classes=5, ks={}, spread=1.0)
    plan = slow.plan(quorum=1, collusion=0, answer_seconds=3_000)
    async with (
        ghost(service, "lingerer", classes=5) as lingerer,
        service.client() as client,
        service.client("stranger") as stranger,
    ):
        charged = service.spends()
        waiting = asyncio.create_task(client.label(np.zeros((1, 2), np.float32), plan))
        round_id = (await lingerer.announced()).round_id
        with refused(ErrorKind.ROUND_UNKNOWN):
            await stranger.cancel(round_id)
        assert await client.cancel(round_id)
        with refused(ErrorKind.ROUND_CANCELLED, round_id):
            await waiting
        assert not await client.cancel(round_id)
        found = await client.round(round_id)
        assert found.round.state == label_pb2.ROUND_STATE_FAILED
        assert found.round.reason.startswith("ROUND_CANCELLED")
        assert service.spends() == charged
        done = await client.label(clinics.queries(3), clinics.plan())
        assert not await client.cancel(done.round_id)
        assert (await client.round(done.round_id)).round.state == label_pb2.ROUND_STATE_COMPLETE


@pytest.mark.parametrize("charged", [False, True])
async def test_who_interrupts_a_request_hears_what_becomes_of_its_round(
    service: Service, tmp_path: Path, charged: bool
) -> None:
    """Before the charge it is cancelled; later the labels can be fetched with what is printed."""
    np.save(tmp_path / "queries.npy", np.zeros((1, 2), np.float32))
    out, certs = tmp_path / "labels.npy", service.certs(Role.CLIENT, "client")
    arguments = [
        *("label", f"--certs={certs}", f"--coordinator={service.cluster.coordinator_address}"),
        *(f"--queries={tmp_path / 'queries.npy'}", f"--out={out}", "--classes=5", "--sigma=1"),
        *("--yes", "--quorum=1", "--collusion=0", "--answer-seconds=3000"),
    ]
    async with ghost(service, "idler", classes=5) as idler:
        before = len(service.spends())
        asked = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "mpc_vote.cli", *arguments),
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        round_id = (await idler.announced()).round_id
        if charged:
            await idler.prepare(round_id)

            async def is_charged() -> bool:
                return len(service.spends()) == before + 1

            await until(is_charged, "the round is charged")
        asked.send_signal(signal.SIGINT)
        _, told = await asyncio.wait_for(asked.communicate(), SECONDS)
        said = told.decode()
        assert asked.returncode == 130, said
        assert "Traceback" not in said
        assert len(service.spends()) == before + charged
        if not charged:
            assert f"round {round_id} was cancelled, and nothing was charged" in said
            return
        assert f"round {round_id} is charged and goes on; fetch its labels" in said
        fetch = shlex.split(said.partition("at no further cost: ")[2])
        assert fetch[:2] == ["mpc-vote", "label"] and fetch[-2] == "--request-id"
        await idler.decline(round_id)
        # It is the command that there is: it asks for this round, and for no other.
        told_later = await asyncio.to_thread(command, *fetch[1:])
        assert told_later.returncode == 1 and round_id in told_later.stderr
        assert len(service.spends()) == before + 1


# The client without asyncio


def test_the_plain_client_labels_and_shows_progress(service: Service, clinics: Group) -> None:
    queries = clinics.queries(30)
    address = service.cluster.coordinator_address
    with LabelClient(address, service.certs(Role.CLIENT, "client")) as client:
        *progress, result = client.stream(queries, clinics.plan())
        assert isinstance(result, LabelResult)
        assert (result.labels == clinics.winners(queries)).all()
        stages = [event.stage for event in progress if isinstance(event, Progress)]
        assert list(dict.fromkeys(stages)) == ["opened", "preparing", "voting", "counting"]
        last = progress[-1]
        assert isinstance(last, Progress) and last.done == last.total == 30
        again = client.label(queries, clinics.plan())
        assert (again.labels == result.labels).all()
        assert again.round_id in [r.round_id for r in client.rounds()]
        assert list(client.round(again.round_id).labels.values) == list(again.labels)
        assert len(client.service().agents) == 5
        with refused(ErrorKind.CLASSES_MISMATCH):
            client.label(queries, Plan(classes=77))


def test_the_plain_client_can_stop_listening(service: Service, clinics: Group) -> None:
    address = service.cluster.coordinator_address
    with LabelClient(address, service.certs(Role.CLIENT, "client")) as client:
        events = client.stream(clinics.queries(5), clinics.plan())
        assert isinstance(next(events), Progress)
        events.close()
        assert client.service().agents


# The global model


async def trained(client: AsyncLabelClient, rounds: list[str] | None = None) -> Model:
    def check(progress: model_pb2.TrainProgress) -> None:
        assert 0 < progress.step <= progress.steps

    return await client.train(rounds or [], on_progress=check)


async def test_models_are_versions_that_say_where_they_come_from(
    service: Service, clinics: Group, tmp_path: Path
) -> None:
    queries = clinics.queries(50)
    async with service.client() as client:
        known = len(await client.models())
        noisy = clinics.plan(sigma=5.0)
        rounds = [(await client.label(queries, noisy)).round_id for _ in range(2)]
        first = await trained(client, rounds[:1])
        second = await trained(client, rounds)
        assert [first.version, second.version] == [known + 1, known + 2]
        assert (list(first.round_ids), first.labels) == (rounds[:1], 50)
        assert (list(second.round_ids), second.labels) == (rounds, 100)
        assert math.inf > second.epsilon_agent > first.epsilon_agent > 0
        assert [m.version for m in await client.models()] == list(range(1, known + 3))
        for version, model in ((first.version, first), (0, second)):
            description, content = await client.model(version)
            assert description == model
            assert hashlib.sha256(content).digest() == model.sha256
        path = tmp_path / "model.safetensors"
        path.write_bytes(content)
        with safe_open(path, "np") as file:
            assert file.metadata()["rounds"] == ",".join(rounds)
        predicted = await client.predict(queries)
        assert predicted.shape == (50,) and set(predicted) <= set(range(clinics.classes))
        with refused(ErrorKind.QUERIES_SHAPE, "(7,)", "(6,)"):
            await client.predict(np.zeros((2, 7), np.float32))
        with refused(ErrorKind.QUERIES_DTYPE):
            await client.predict(np.zeros((2, 6), np.float64))
        with refused(ErrorKind.QUERIES_NOT_FINITE):
            await client.predict(np.full((2, 6), np.nan, np.float32))
        with refused(ErrorKind.MODEL_UNKNOWN, "99"):
            await client.predict(queries, version=99)
        with refused(ErrorKind.MODEL_UNKNOWN, "99"):
            await client.model(99)


async def test_unlike_rounds_train_no_model(service: Service, clinics: Group, labs: Group) -> None:
    async with service.client() as client:
        one = await client.label(clinics.queries(4), clinics.plan())
        two = await client.label(labs.queries(4), labs.plan(sigma=0.5))
        with refused(ErrorKind.ROUNDS_UNLIKE):
            await trained(client, [one.round_id, two.round_id])


# From the shell


@pytest.fixture
def shell_queries(clinics: Group, tmp_path: Path) -> tuple[Path, Queries]:
    path = tmp_path / "queries.npy"
    queries = clinics.queries(25)
    np.save(path, queries)
    return path, queries


def test_the_commands_label_train_and_tell(
    service: Service, clinics: Group, shell_queries: tuple[Path, Queries], tmp_path: Path
) -> None:
    path, queries = shell_queries
    reach = [
        f"--coordinator={service.cluster.coordinator_address}",
        f"--certs={service.certs(Role.CLIENT, 'shell')}",
    ]

    out = tmp_path / "labels.npy"
    asked = [f"--queries={path}", f"--out={out}", "--classes=3", f"--sigma={QUIET}", "--json=-"]
    done = command("label", *reach, *asked)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (np.load(out) == clinics.winners(queries)).all()
    assert (told["labels"], told["contributors"], told["absences"]) == (25, 3, {})
    for key in (
        "epsilon_agent",
        "epsilon_instance",
        "delta",
        "total_epsilon_agent",
        "total_epsilon_instance",
        "mpc_rounds",
        "mpc_bytes_per_party",
        "mpc_seconds",
        "mpc_preprocessing_seconds",
        "mpc_sum_seconds",
        "dealer_bytes",
        "upload_bytes_per_agent",
        "seconds",
    ):
        assert told[key] > 0, key

    done = command("status", *reach, "--json=-")
    assert done.returncode == 0, done.stderr
    status = json.loads(done.stdout)
    agents = {agent["agent"]: agent for agent in status["agents"]}
    assert agents.keys() == {"clinic-0", "clinic-1", "clinic-2", "lab-0", "lab-1"}
    assert agents["clinic-1"]["offer"]["k"] == 5
    assert agents["lab-0"]["offer"]["query_shape"] == [16, 8]
    assert agents["lab-0"]["min_sigma"] == 0.5
    assert status["parties"] == ["party-0", "party-1", "party-2"]
    assert status["total_epsilon_agent"] == told["total_epsilon_agent"]

    figures = tmp_path / "model.json"
    done = command("train", *reach, f"--rounds={told['round_id']}", f"--json={figures}")
    assert done.returncode == 0, done.stderr
    model = json.loads(figures.read_text())
    assert (model["round_ids"], model["labels"]) == ([told["round_id"]], 25)

    file, guesses = tmp_path / "model.safetensors", tmp_path / "guesses.npy"
    done = command(
        "model",
        *reach,
        f"--version={model['version']}",
        f"--out={file}",
        f"--inputs={path}",
        f"--labels={guesses}",
        "--json=-",
    )
    assert done.returncode == 0, done.stderr
    versions = {m["version"]: m for m in json.loads(done.stdout)["models"]}
    assert versions[model["version"]] == model
    assert hashlib.sha256(file.read_bytes()).hexdigest() == model["sha256"]
    assert np.load(guesses).shape == (25,)


def test_a_refusal_reaches_the_shell_as_one_sentence(
    service: Service, shell_queries: tuple[Path, Queries], tmp_path: Path
) -> None:
    out = tmp_path / "labels.npy"
    done = command(
        "label",
        f"--coordinator={service.cluster.coordinator_address}",
        f"--certs={service.certs(Role.CLIENT, 'shell')}",
        f"--queries={shell_queries[0]}",
        f"--out={out}",
        "--classes=17",
    )
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("mpc-vote label: error: CLASSES_MISMATCH: 17 classes were asked for")
    assert last.endswith("Nothing was spent.")
    assert "Traceback" not in done.stderr
    assert not out.exists()


# A restart


async def test_a_restarted_coordinator_remembers_everything(
    service: Service, clinics: Group
) -> None:
    """Rounds, labels, models and the spend outlive the process; agents come back by themselves."""
    queries = clinics.queries(20)
    plan = clinics.plan(request_id="before-the-restart")
    async with service.client() as client:
        before = await client.label(queries, plan)
        await trained(client, [before.round_id])
        rounds, models, total = await client.rounds(), await client.models(), await spent(client)
    coordinator = service.cluster.children["coordinator"]
    service.cluster.stop_child("coordinator", signal.SIGINT)
    assert coordinator.process.returncode == 0, coordinator.last_words()
    service.cluster.start_coordinator()
    async with service.client() as client:
        await until(lambda: attends(client, *service.cluster.agents), "all agents are back")
        await until(client.is_ready, "the service is ready")
        assert await client.rounds() == rounds
        assert await client.models() == models
        assert await spent(client) == total
        charged = service.spends()
        again = await client.label(queries, plan)
        assert (again.round_id, service.spends()) == (before.round_id, charged)
        assert (again.labels == before.labels).all()
        fresh = await client.label(queries, clinics.plan())
    assert fresh.round_id != before.round_id
    assert (fresh.labels == clinics.winners(queries)).all()
