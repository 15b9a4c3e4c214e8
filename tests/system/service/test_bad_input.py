"""Requests and set-ups that can't work: each gets its own sentence, costs nothing, breaks nothing.

Invariants: whatever is refused is refused before anything is charged; the service goes on; a
process that can't start says why in one sentence, and not in a traceback.
"""

from __future__ import annotations

import asyncio
import math
import shutil
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from aggregator.coordinator import attendance, requests
from aggregator.coordinator.planner import make_spec
from aggregator.coordinator.roster import Defaults
from mpc_vote.argmax.registry import ENGINES
from mpc_vote.client import AsyncLabelClient, Plan, asynchronous
from mpc_vote.data.partition import save_part
from mpc_vote.errors import ErrorKind, VoteError
from mpc_vote.pki.identity import Identity, Role
from mpc_vote.proto.mpcvote.v1 import agent_pb2, common_pb2, label_pb2, label_pb2_grpc
from mpc_vote.testbed.cluster import free_ports
from mpc_vote.transport import rpc, tensors
from tests.system.service.support import (
    CLINICS,
    QUIET,
    SECONDS,
    Group,
    Service,
    command,
    error_of,
    expired,
    points,
    refused,
)

GOOD: dict[str, Any] = {"classes": 3, "sigma": QUIET}
LAB: dict[str, Any] = {"classes": 4, "sigma": 0.5}
ROW = np.zeros((1, 6), np.float32)
IMAGE = np.zeros((1, 16, 8), np.float32)


def batch(**changes: Any) -> list[label_pb2.RequestLabelsRequest]:
    """A request whose tensor says something else than it should."""
    tensor = tensors.to_tensor(ROW)
    for name, value in changes.items():
        if name == "shape":
            del tensor.shape[:]
            tensor.shape.extend(value)
        else:
            setattr(tensor, name, value)
    plan = label_pb2.LabelPlan(**GOOD)
    return [label_pb2.RequestLabelsRequest(plan=plan, queries=tensor)]


def request(
    plan: dict[str, Any], *parts: np.ndarray[Any, Any]
) -> list[label_pb2.RequestLabelsRequest]:
    """A request as the wire carries it, past every check of our client."""
    first = label_pb2.RequestLabelsRequest(plan=label_pb2.LabelPlan(**plan))
    rest = [label_pb2.RequestLabelsRequest(queries=tensors.to_tensor(part)) for part in parts]
    return [first, *rest]


def with_nan(row: int) -> np.ndarray[Any, Any]:
    array = np.zeros((5, 6), np.float32)
    array[row, 3] = math.nan
    return array


MULTI = common_pb2.BALLOT_KIND_MULTI_LABEL
BAD_REQUESTS: dict[str, tuple[list[label_pb2.RequestLabelsRequest], str, str]] = {
    "nothing at all": ([], "PLAN_MISSING", "no plan"),
    "no plan": (
        [label_pb2.RequestLabelsRequest(queries=tensors.to_tensor(ROW))],
        "PLAN_MISSING",
        "no plan",
    ),
    "no queries": (request(GOOD), "QUERIES_EMPTY", "at least one row"),
    "no rows": (request(GOOD, ROW[:0]), "QUERIES_EMPTY", "at least one row"),
    "a piece that came twice": (
        request({**GOOD, "queries": 1}, ROW, ROW),
        "QUERIES_INCOMPLETE",
        "2 queries have arrived, and the plan announces 1",
    ),
    "too many queries": (
        request(GOOD, *[np.zeros((2_001, 6), np.float32)] * 5),
        "QUERIES_TOO_MANY",
        "10005 queries were sent, at most 10000",
    ),
    "wrong dtype": (request(GOOD, ROW.astype(np.float64)), "QUERIES_DTYPE", "float64"),
    "unknown dtype": (batch(dtype=77), "METHOD_UNKNOWN", "dtype 77"),
    "wrong shape": (request(GOOD, np.zeros((1, 7), np.float32)), "QUERIES_SHAPE", "(7,)"),
    "shapes that differ": (request(GOOD, ROW, IMAGE), "QUERIES_SHAPE", "(16, 8)"),
    "not a number": (request(GOOD, with_nan(3)), "QUERIES_NOT_FINITE", "Query 3 holds NaN"),
    "infinite": (request(GOOD, ROW + np.inf), "QUERIES_NOT_FINITE", "Query 0"),
    "beyond all distances": (request(GOOD, ROW + 1e19), "QUERIES_RANGE", "Query 0"),
    "too few bytes": (batch(data=bytes(23)), "TENSOR_MALFORMED", "needs 24 bytes, got 23"),
    "too many bytes": (batch(data=bytes(25)), "TENSOR_MALFORMED", "needs 24 bytes, got 25"),
    "no shape": (batch(shape=[], data=bytes(4)), "TENSOR_MALFORMED", "shape ()"),
    "nine dimensions": (batch(shape=[1] * 8 + [6]), "TENSOR_MALFORMED", "shape"),
    "a shape beyond memory": (batch(shape=[2**31] * 4), "TENSOR_MALFORMED", "shape"),
    "no classes": (request({"sigma": 1.0}, ROW), "CLASSES_RANGE", "0 classes"),
    "one class": (request({**GOOD, "classes": 1}, ROW), "CLASSES_RANGE", "from 2 to 1000"),
    "too many classes": (request({**GOOD, "classes": 1001}, ROW), "CLASSES_RANGE", "1001"),
    "classes of nobody": (request({**GOOD, "classes": 5}, ROW), "CLASSES_MISMATCH", "3 or 4"),
    "unknown ballot": (request({**GOOD, "ballot": 99}, ROW), "METHOD_UNKNOWN", "ballot 99"),
    "unknown engine": (request({**GOOD, "engine": 99}, ROW), "METHOD_UNKNOWN", "engine 99"),
    "ballot of nobody": (
        request({**GOOD, "ballot": common_pb2.BALLOT_KIND_MULTI_LABEL, "tau": 1}, ROW),
        "BALLOT_UNSUPPORTED",
        "No connected agent casts multi_label",
    ),
    "negative sigma": (request({**GOOD, "sigma": -1.0}, ROW), "SIGMA_RANGE", "-1"),
    "sigma not a number": (request({**GOOD, "sigma": math.nan}, ROW), "SIGMA_RANGE", "nan"),
    "infinite sigma": (request({**GOOD, "sigma": math.inf}, ROW), "SIGMA_RANGE", "inf"),
    "sigma of no ring": (request({**GOOD, "sigma": 1e9}, ROW), "SPEC_INVALID", "lower sigma"),
    "sigma of no number": (request({**GOOD, "sigma": 1e300}, ROW), "SPEC_INVALID", "at most 2^40"),
    "sigma below the service's": (
        request({**GOOD, "sigma": 1e-7}, ROW),
        "SIGMA_BELOW_POLICY",
        "this service accepts, 1e-06",
    ),
    "sigma below the agents'": (
        request({**LAB, "sigma": 0.4}, IMAGE),
        "SIGMA_BELOW_POLICY",
        "any agent accepts, 0.5",
    ),
    "quorum above the roster": (
        request({**GOOD, "quorum": 4}, ROW),
        "QUORUM_RANGE",
        "A quorum of 4 does not fit 3 agents",
    ),
    "all of the quorum collude": (
        request({**GOOD, "quorum": 2, "collusion": 2}, ROW),
        "QUORUM_RANGE",
        "2 assumed to collude",
    ),
    "negative delta": (request({**GOOD, "delta": -0.1}, ROW), "DELTA_RANGE", "-0.1"),
    "delta of one": (request({**GOOD, "delta": 1.0}, ROW), "DELTA_RANGE", "1.0"),
    "delta not a number": (request({**GOOD, "delta": math.nan}, ROW), "DELTA_RANGE", "nan"),
    "no tau": (request({**GOOD, "ballot": MULTI}, ROW), "TAU_RANGE", "got 0"),
    "tau above the attributes": (
        request({**GOOD, "ballot": MULTI, "tau": 4}, ROW),
        "TAU_RANGE",
        "from 1 to the number of attributes (3), got 4",
    ),
    "a long wait": (
        request({**GOOD, "answer_seconds": 3_001}, ROW),
        "TIMEOUT_RANGE",
        "from 1 to 3000, got 3001",
    ),
    "a long name": (request({**GOOD, "request_id": "x" * 129}, ROW), "NAME_INVALID", "request_id"),
}


@pytest.mark.parametrize("case", BAD_REQUESTS)
async def test_a_bad_request_is_named_unspent_and_forgotten(service: Service, case: str) -> None:
    messages, name, words = BAD_REQUESTS[case]
    charged = service.spends()
    client = Identity(Role.CLIENT, "careless")
    async with service.channel(client, Identity(Role.COORDINATOR, "coordinator")) as channel:
        stub = label_pb2_grpc.LabelServiceStub(channel)
        error = await error_of(stub.RequestLabels(iter(messages), timeout=SECONDS))
        assert error.name == name, error.message
        assert words in error.message
        assert service.spends() == charged
        listed = await stub.ListRounds(label_pb2.ListRoundsRequest(), timeout=SECONDS)
        assert not listed.rounds, "nothing was opened"


@pytest.mark.parametrize("role", [Role.CLIENT, Role.AGENT])
async def test_a_refusal_in_the_middle_of_an_upload_is_not_lost(
    service: Service, role: Role
) -> None:
    """The caller is still sending when the answer is clear, and must hear that very answer."""
    tensor = tensors.to_tensor(np.zeros((1, 1 << 18), np.uint8))
    messages = [label_pb2.RequestLabelsRequest(queries=tensor)] * 64
    wanted = "PLAN_MISSING" if role is Role.CLIENT else "ROLE_REFUSED"
    server = Identity(Role.COORDINATOR, "coordinator")
    async with service.channel(Identity(role, "careless"), server) as channel:
        stub = label_pb2_grpc.LabelServiceStub(channel)
        for _ in range(5):
            error = await error_of(stub.RequestLabels(iter(messages), timeout=SECONDS))
            assert error.name == wanted, error.message


@pytest.fixture(scope="module", autouse=True)
def _the_service_goes_on(service: Service) -> Iterator[None]:
    """After all that, a good request is served and is the only thing that was charged."""
    charged = len(service.spends())
    yield

    async def good() -> None:
        queries = CLINICS.queries(5)
        async with service.client() as client:
            result = await client.label(queries, CLINICS.plan())
        assert (result.labels == CLINICS.winners(queries)).all()

    asyncio.run(good())
    assert len(service.spends()) == charged + 1


async def test_too_many_bytes_are_refused_as_they_arrive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "MAX_QUERY_BYTES", 100)

    async def stream(messages: Iterable[Any]) -> Any:
        for number, message in enumerate(messages):
            assert number < 6, "it reads on after it has had too much"
            yield message

    with refused(ErrorKind.QUERIES_TOO_LARGE, "100 bytes"):
        messages = stream(request(GOOD, *[ROW] * 50))
        await requests.read_queries(await requests.read_plan(messages), messages)


def test_agents_that_offer_no_known_ballot_are_not_asked() -> None:
    unknown: Any = 99
    offer = common_pb2.Offer(
        classes=3, query_dtype=common_pb2.DTYPE_FLOAT32, query_shape=[6], ballots=[unknown], k=1
    )
    odd = agent_pb2.Capabilities(offers=[offer])
    defaults = Defaults(
        parties=("party-0", "party-1"),
        dealer="dealer",
        engine=next(iter(ENGINES)),
        sigma=1.0,
        min_sigma=0.0,
        delta=1e-3,
        quorum_fraction=0.8,
        collusion=0,
        answer_seconds=60,
        min_k=1,
        max_k=9,
    )
    with refused(ErrorKind.BALLOT_UNSUPPORTED):
        make_spec(label_pb2.LabelPlan(**GOOD), ROW, {"odd": odd}, defaults, 0.0)


@pytest.mark.parametrize(
    "ballot", [common_pb2.BALLOT_KIND_KNN_FREQUENCY, common_pb2.BALLOT_KIND_KNN_COUNT]
)
def test_agents_that_count_neighbours_without_a_k_are_refused(ballot: Any) -> None:
    offer = common_pb2.Offer(
        classes=3, query_dtype=common_pb2.DTYPE_FLOAT32, query_shape=[6], ballots=[ballot]
    )
    told = agent_pb2.Capabilities(offers=[offer], ledger_id="0" * 32, process_id="0" * 32)
    with refused(ErrorKind.SPEC_INVALID, "has no k"):
        attendance._check_capabilities(told)
    told.offers[0].k = 1
    attendance._check_capabilities(told)


# What our own client refuses before anything is sent


@pytest.mark.parametrize(
    ("queries", "plan", "name"),
    [
        (ROW, {"sigma": 0.0}, "SIGMA_RANGE"),
        (ROW, {"sigma": math.nan}, "SIGMA_RANGE"),
        (ROW, {"delta": 0.0}, "DELTA_RANGE"),
        (ROW, {"classes": -3}, "CLASSES_RANGE"),
        (ROW.astype(np.float16), {}, "METHOD_UNKNOWN"),
        (np.array([["a"]]), {}, "METHOD_UNKNOWN"),
        ([], {}, "QUERIES_EMPTY"),
        (1.0, {}, "QUERIES_SHAPE"),
        ([1.0, 2.0], {}, "QUERIES_SHAPE"),
        (ROW + np.nan, {}, "QUERIES_NOT_FINITE"),
        (ROW + 1e19, {}, "QUERIES_RANGE"),
    ],
)
async def test_the_client_refuses_what_the_wire_could_not_say(
    service: Service,
    queries: Any,
    plan: dict[str, Any],
    name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Zero means the default on the wire, so a zero that is meant must not get there."""
    monkeypatch.setattr(asynchronous, "label_requests", None)  # nothing is sent
    async with service.client() as client:
        with pytest.raises(VoteError) as caught:
            await client.label(queries, Plan(**{"classes": 3, **plan}))
    assert caught.value.name == name, caught.value.message


async def test_a_client_without_a_service_is_told_so(service: Service) -> None:
    (port,) = free_ports(1)
    certs = service.certs(Role.CLIENT, "client")
    async with AsyncLabelClient(f"127.0.0.1:{port}", certs) as client:
        with refused(
            ErrorKind.COORDINATOR_UNREACHABLE,
            f"The coordinator at 127.0.0.1:{port} does not answer",
        ):
            await client.label(ROW, Plan(classes=3))
        assert not await client.is_ready()


# Processes that can't start


def fails_to_start(*arguments: str | Path) -> str:
    """Runs a role that must not start; returns its one sentence."""
    done = command(*arguments)
    assert done.returncode in (1, 2), done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    told = [line for line in done.stderr.splitlines() if ": error: " in line]
    assert len(told) == 1, done.stderr
    return told[0]


PARTIES = "--parties=party-0=127.0.0.1:1,party-1=127.0.0.1:1"
PEERS = PARTIES.replace("--parties", "--peers")


def role_flags(role: str, scratch: Path) -> list[str]:
    """What a role needs besides its certificate."""
    given = {
        "dealer": [],
        "party": [PEERS, "--dealer=127.0.0.1:1", f"--data-dir={scratch / 'data'}"],
        "coordinator": [PARTIES, f"--data-dir={scratch / 'data'}"],
        "agent": [
            PARTIES,
            "--coordinator=127.0.0.1:1",
            f"--data={scratch / 'part.npz'}",
            f"--data-dir={scratch / 'data'}",
        ],
    }
    return given[role]


@pytest.mark.parametrize("role", ["dealer", "party", "coordinator", "agent"])
def test_a_role_without_certificates_does_not_start(role: str, tmp_path: Path) -> None:
    missing = tmp_path / "nowhere"
    said = fails_to_start(role, f"--certs={missing}", *role_flags(role, tmp_path))
    assert f"{missing} with ca.pem, cert.pem and key.pem does not exist" in said


def test_an_expired_certificate_does_not_start(service: Service, tmp_path: Path) -> None:
    certs = expired(service, Identity(Role.DEALER, "dealer"), tmp_path / "late")
    assert "expired on" in fails_to_start("dealer", f"--certs={certs}", "--listen=127.0.0.1:0")


def test_another_roles_certificate_does_not_start(service: Service, tmp_path: Path) -> None:
    certs = service.certs(Role.CLIENT, "client")
    said = fails_to_start("party", f"--certs={certs}", *role_flags("party", tmp_path))
    assert "is of client/client, but the role party is needed here" in said


def test_a_key_that_others_may_read_does_not_start(service: Service, tmp_path: Path) -> None:
    certs = tmp_path / "certs"
    shutil.copytree(service.certs(Role.DEALER, "dealer"), certs)
    (certs / "key.pem").chmod(stat.S_IRUSR | stat.S_IRGRP)
    assert "chmod 600" in fails_to_start("dealer", f"--certs={certs}", "--listen=127.0.0.1:0")


@pytest.mark.parametrize("role", ["dealer", "coordinator"])
def test_a_port_in_use_is_named(service: Service, tmp_path: Path, role: str) -> None:
    taken = service.cluster.party_addresses["party-0"]
    certs = service.certs(Role(role), role)
    said = fails_to_start(
        role, f"--certs={certs}", f"--listen={taken}", *role_flags(role, tmp_path)
    )
    assert f"PORT_IN_USE: Can't listen on {taken}" in said


def test_a_party_must_be_among_the_parties(service: Service, tmp_path: Path) -> None:
    certs = service.certs(Role.PARTY, "party-2")
    said = fails_to_start("party", f"--certs={certs}", *role_flags("party", tmp_path))
    assert "party-2, which is not among the parties (party-0, party-1)" in said


def garbage(path: Path) -> None:
    path.write_bytes(b"no data at all")


def pickled(path: Path) -> None:
    with path.open("wb") as file:
        np.savez(file, x=np.array([{}], dtype=object), y=np.zeros(1, np.int64))


def incomplete(path: Path) -> None:
    with path.open("wb") as file:
        np.savez(file, x=np.zeros((3, 2), np.float32))


def folder(path: Path) -> None:
    path.mkdir()


@pytest.mark.parametrize(
    ("write", "words"),
    [
        (None, "no such data file"),
        (garbage, "part.npz"),
        (pickled, "part.npz"),
        (incomplete, "misses"),
        (folder, "part.npz"),
    ],
)
def test_an_agent_without_usable_data_does_not_start(
    service: Service, tmp_path: Path, write: Any, words: str
) -> None:
    if write is not None:
        write(tmp_path / "part.npz")
    certs = service.certs(Role.AGENT, "clinic-0")
    said = fails_to_start("agent", f"--certs={certs}", *role_flags("agent", tmp_path))
    assert "the data of agent clinic-0 can't be used" in said
    assert words in said


def ledger_of_garbage(scratch: Path) -> None:
    (scratch / "data").mkdir()
    (scratch / "data" / "ledger.db").write_bytes(b"no ledger " * 100)


def file_for_a_folder(scratch: Path) -> None:
    (scratch / "data").write_text("a file")


@pytest.mark.parametrize("damage", [ledger_of_garbage, file_for_a_folder])
@pytest.mark.parametrize("role", ["coordinator", "agent"])
def test_a_data_folder_that_can_not_be_used_is_named(
    service: Service, tmp_path: Path, role: str, damage: Any
) -> None:
    """A spend that can't be recorded must not be made."""
    save_part(tmp_path / "part.npz", points(0, 5, (2,), 2, 1.0))
    damage(tmp_path)
    certs = service.certs(Role(role), "clinic-0" if role == "agent" else role)
    listen = ["--listen=127.0.0.1:0"] if role == "coordinator" else []
    said = fails_to_start(role, f"--certs={certs}", *role_flags(role, tmp_path), *listen)
    assert str(tmp_path / "data") in said
    assert damage is ledger_of_garbage or "a file: name a folder" in said


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--certs=x", "--colour=red"], "--colour"),
        (["--certs=x", "--listen=nowhere"], "is not host:port"),
        (["--certs=x", "--log-level=loud"], "choose one of"),
        ([], "certs: is missing"),
        (["--certs=x", "--config=nowhere.toml"], "can't read the settings in nowhere.toml"),
    ],
)
def test_settings_that_make_no_sense_are_explained(flags: list[str], words: str) -> None:
    assert words in fails_to_start("dealer", *flags)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('colour = "red"', "colour: is not a setting of this command"),
        ("listen = ", "is not valid TOML"),
    ],
)
def test_a_settings_file_is_checked(tmp_path: Path, content: str, words: str) -> None:
    path = tmp_path / "dealer.toml"
    path.write_text(content)
    assert words in fails_to_start("dealer", "--certs=x", f"--config={path}")


def test_one_party_is_no_committee(service: Service, tmp_path: Path) -> None:
    certs = service.certs(Role.PARTY, "party-0")
    said = fails_to_start(
        "party",
        f"--certs={certs}",
        "--peers=party-0=127.0.0.1:1",
        "--dealer=127.0.0.1:1",
        f"--data-dir={tmp_path}",
    )
    assert "at least two parties are needed" in said


async def test_every_call_must_say_who_may_make_it(service: Service) -> None:
    """A server does not start with a call that forgot its guard."""

    class Careless(label_pb2_grpc.LabelServiceServicer):
        async def GetService(self, request: Any, context: Any) -> Any:
            raise AssertionError

    careless = cast(Any, Careless)()  # the stubs say abstract of what gRPC itself fills in
    services = [(label_pb2_grpc.add_LabelServiceServicer_to_server, careless)]
    credentials = service.credentials(Role.COORDINATOR, "coordinator")

    async def health() -> dict[str, bool]:
        return {}

    with pytest.raises(TypeError, match="does not say who may call it"):
        rpc.Server(credentials, "127.0.0.1:0", services, health)


def test_groups_of_the_two_kinds_differ(clinics: Group, labs: Group) -> None:
    """The table above leans on it."""
    assert (clinics.classes, clinics.shape) == (3, ROW.shape[1:])
    assert (labs.classes, labs.shape) == (4, IMAGE.shape[1:])
