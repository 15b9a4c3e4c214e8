"""Nobody sees what they must not: one round, with everything that every role saw written down.

The agents' own records say what is secret; it is then looked for in what each role sent, received,
printed and stored. The last tests plant secrets, so that a search that finds nothing means that
there is nothing.
"""

from __future__ import annotations

import base64
import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from cryptography.hazmat.primitives import serialization
from scipy import stats

from mpc_vote.argmax.material import ItemKind
from mpc_vote.argmax.stock import MaxMethod, StockArgmax
from mpc_vote.proto.mpcvote.v1 import dealer_pb2, label_pb2, party_pb2
from tests.observation.needles import Needles, binary_forms, varint
from tests.observation.recorder import RECEIVED, SENT
from tests.observation.run import (
    AGENTS,
    CLASSES,
    PARTIES,
    QUERIES,
    Observation,
    View,
    environment,
    observe,
    own_folder,
)

FALSE_ALARM = 1e-6
LABELS_IN_A_PIECE = 24
VOTE = 16

PARTY_NAMES = [f"party-{rank}" for rank in range(PARTIES)]
AGENT_NAMES = [f"agent-{number}" for number in range(AGENTS)]
EVERYONE = [*AGENT_NAMES, *PARTY_NAMES, "dealer", "coordinator", "client"]

# What a role of each kind may say and hear. Whoever adds a call decides here what it shows to whom.
ATTENDING = {"AgentService/Attend", "AgentService/FetchQueries"}
ORDERS = {f"PartyService/{name}" for name in ("OpenRound", "ListHoldings", "Aggregate")}
AMONG_PARTIES = {"PeerService/Exchange", "DealerService/Deal"}
CALLS = {
    "agent": {*ATTENDING, "PartyService/SubmitShares", "Health/Check"},
    "party": {*ORDERS, *AMONG_PARTIES, "PartyService/SubmitShares", "Health/Check"},
    "dealer": {"DealerService/Deal"},
    "coordinator": {
        *ATTENDING,
        *ORDERS,
        "LabelService/RequestLabels",
        "LabelService/GetService",
        "Health/Check",
    },
    "client": {"LabelService/RequestLabels"},
}


@pytest.fixture(scope="module")
def seen() -> Iterator[Observation]:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        for name, value in environment().items():
            patch.setenv(name, value)
        yield observe(Path(folder))


@pytest.fixture(scope="module")
def secrets(seen: Observation) -> Needles:
    """What no role but the agent it belongs to may ever have, and no agent ever sends."""
    needles = Needles()
    for name, truth in seen.truths.items():
        needles.add_matrix(f"ballot of {name}", truth.ballot)
        needles.add_matrix(f"votes of {name}", truth.ballot // VOTE)
        needles.add_matrix(f"noise of {name}", truth.noise)
        needles.add_matrix(f"noisy ballot of {name}", truth.noisy)
    needles.add_matrix("total", seen.total())
    needles.add_matrix("votes", seen.total() // VOTE)
    needles.add_matrix("noisy total", seen.noisy_total())
    # The engine's own form of the total, in which no tie is left.
    order = np.arange(CLASSES - 1, -1, -1)
    needles.add_matrix("noisy total in the engine", seen.noisy_total() * CLASSES + order)
    needles.add_matrix("noise of the total", seen.noisy_total() - seen.total())
    return needles


@pytest.fixture(scope="module")
def labels(seen: Observation) -> Needles:
    needles = Needles()
    needles.add_matrix("labels", seen.labels.reshape(-1, LABELS_IN_A_PIECE))
    return needles


def found(needles: Needles, view: View) -> dict[str, set[str]]:
    """Which secrets are where in a role's view."""
    hits = {place: needles.find(content) for place, content in view.places().items()}
    return {place: names for place, names in hits.items() if names}


def whereabouts(needles: Needles, seen: Observation) -> dict[str, set[tuple[str, str]]]:
    """At which roles, and where there, each secret is."""
    where: dict[str, set[tuple[str, str]]] = {name: set() for name in needles.names}
    for role, view in seen.views.items():
        for place, names in found(needles, view).items():
            for name in names:
                where[name].add((role, place))
    return where


# The records are whole


def test_the_recorded_shares_add_up_to_the_ballots(seen: Observation) -> None:
    for name, truth in seen.truths.items():
        parts = [truth.expanded(rank) for rank in range(PARTIES)]
        assert np.array_equal(np.sum(parts, axis=0), truth.noisy), name
        for rank, share in enumerate(truth.shares):
            received = b"".join(
                seen.views[f"party-{rank}"].passed(RECEIVED, "PartyService/SubmitShares")
            )
            assert (share.seed or share.packed) in received


def test_the_labels_are_those_of_the_recorded_ballots(seen: Observation) -> None:
    assert seen.labels.shape == (QUERIES,)
    assert np.array_equal(seen.labels, seen.noisy_total().argmax(axis=1))


def test_the_coordinator_received_shares_that_add_up_to_the_labels(seen: Observation) -> None:
    total = np.zeros(QUERIES, dtype=np.uint64)
    for shares in label_shares(seen.views["coordinator"]):
        total += shares
    assert np.array_equal(total, seen.labels)


@pytest.mark.parametrize("name", EVERYONE)
def test_what_one_sends_another_receives(seen: Observation, name: str) -> None:
    """No message is missing from the records, but health checks, which the test makes as well."""
    others = {
        (message.method, message.direction, message.content)
        for other, view in seen.views.items()
        if other != name
        for message in view.messages
    }
    opposite = {SENT: RECEIVED, RECEIVED: SENT}
    for message in seen.views[name].messages:
        if message.method.endswith(("Health/Check", "LabelService/GetService")):
            continue
        assert (message.method, opposite[message.direction], message.content) in others


# The table of roles


@pytest.mark.parametrize("name", EVERYONE)
def test_no_role_has_a_ballot_a_total_or_noise(
    seen: Observation, secrets: Needles, name: str
) -> None:
    """Not even an agent its own, in anything that leaves its memory."""
    assert found(secrets, seen.views[name]) == {}


@pytest.mark.parametrize("name", [*AGENT_NAMES, *PARTY_NAMES, "dealer"])
def test_agents_parties_and_dealer_have_no_label(
    seen: Observation, labels: Needles, name: str
) -> None:
    assert found(labels, seen.views[name]) == {}


def test_coordinator_and_client_have_the_labels_where_they_belong(
    seen: Observation, labels: Needles
) -> None:
    assert found(labels, seen.views["coordinator"]).keys() == {SENT, "disk"}
    assert found(labels, seen.views["client"]).keys() == {RECEIVED, "disk"}


@pytest.mark.parametrize("name", EVERYONE)
def test_a_role_makes_and_answers_only_its_own_calls(seen: Observation, name: str) -> None:
    view = seen.views[name]
    assert view.methods(SENT) | view.methods(RECEIVED) <= CALLS[name.partition("-")[0]]


@pytest.mark.parametrize("name", EVERYONE)
def test_a_role_writes_to_its_own_folder_only(seen: Observation, name: str) -> None:
    """And starts no program, and connects nowhere but over watched channels."""
    folder = str(own_folder(seen.cluster, name))
    writes = ("open", "os.rename", "sqlite3.connect")
    for deed in seen.views[name].deeds:
        kind, _, path = deed.partition(" ")
        assert kind in writes
        assert path.startswith(f"{folder}/"), deed
    assert bool(seen.views[name].disk) == (name != "dealer")


def test_the_dealer_hears_nothing_but_sizes(seen: Observation) -> None:
    """What it hears is the session's name, the parties, and items that follow from the shape."""
    messages = seen.views["dealer"].passed(RECEIVED)
    requests = [dealer_pb2.DealRequest.FromString(content) for content in messages]
    openings = [request.opening for request in requests if request.HasField("opening")]
    assert len(openings) == PARTIES
    assert len({opening.session_id for opening in openings}) == 1
    assert all(opening.parties == seen.parties for opening in openings)
    items = [(item.kind, item.count) for request in requests for item in request.items]
    plan = StockArgmax(MaxMethod.LOG_REDUCTION).plan(QUERIES, CLASSES, PARTIES)
    assert {item.kind for item in plan} == set(ItemKind)
    assert items == [(item.kind, item.count) for item in plan]
    # Nothing is hidden in fields that the dealer does not know: names and items are all there is.
    named = [
        dealer_pb2.DealRequest(
            opening=dealer_pb2.DealOpening(session_id=o.session_id, parties=o.parties)
        ).SerializeToString()
        for o in openings
    ]
    listed = [
        dealer_pb2.DealRequest(
            items=[dealer_pb2.DealItem(kind=item.kind, count=item.count) for item in request.items]
        ).SerializeToString()
        for request in requests
        if request.items
    ]
    assert sorted(messages) == sorted(named + listed)


def test_the_client_hears_labels_cost_and_progress(seen: Observation) -> None:
    messages = seen.views["client"].passed(RECEIVED)
    events = [label_pb2.RequestLabelsResponse.FromString(content) for content in messages]
    kinds = [event.WhichOneof("event") for event in events]
    assert set(kinds) == {"opened", "progress", "labels", "completed"}
    released = [value for event in events for value in event.labels.values]
    assert released == seen.labels.tolist()
    assert events[kinds.index("completed")].completed.cost.epsilon_instance > 0


# Shares, seeds and keys


def test_a_share_is_at_its_agent_and_its_party_only(seen: Observation) -> None:
    """The seed, or the explicit residual row by row: on one wire, in no log and no file."""
    needles, expected = Needles(), {}
    for agent, truth in seen.truths.items():
        for rank, share in enumerate(truth.shares):
            name = f"share of {agent} at {rank}"
            if share.seed:
                needles.add_bytes(name, share.seed)
            else:
                needles.add_matrix(name, truth.expanded(rank))
            expected[name] = {(agent, SENT), (f"party-{rank}", RECEIVED)}
        assert [rank for rank, share in enumerate(truth.shares) if share.packed] == [truth.explicit]
    assert whereabouts(needles, seen) == expected
    assert {truth.explicit for truth in seen.truths.values()} == set(range(PARTIES))


def test_what_parties_compute_from_their_shares_stays_with_them(seen: Observation) -> None:
    """Expanded seeds, and a party's share of the total, are on no wire, in no log and no file."""
    needles = Needles()
    for rank in range(PARTIES):
        expanded = {name: truth.expanded(rank) for name, truth in seen.truths.items()}
        total = np.sum(list(expanded.values()), axis=0)
        needles.add_matrix(f"share of the total at {rank}", total)
        order = np.arange(CLASSES - 1, -1, -1) * (rank == 0)
        needles.add_matrix(f"share in the engine at {rank}", total * CLASSES + order)
        for name, values in expanded.items():
            if seen.truths[name].shares[rank].seed:
                needles.add_matrix(f"expansion for {name} at {rank}", values)
    for name in EVERYONE:
        assert found(needles, seen.views[name]) == {}, name


def test_what_the_committee_exchanges_in_private_is_at_both_ends_only(seen: Observation) -> None:
    """The dealer's seeds, those of the zero sharing between neighbours, and label shares."""
    needles, expected = Needles(), {}
    for rank, party in enumerate(PARTY_NAMES):
        answers = seen.views[party].passed(RECEIVED, "DealerService/Deal")
        grants = [dealer_pb2.DealResponse.FromString(content).grant for content in answers]
        (dealt,) = {grant.seed for grant in grants if grant.seed}
        (zero,) = {frame.hello.zero_seed for frame in frames(seen.views[party], SENT)} - {b""}
        (label_share,) = label_shares(seen.views[party])
        after = PARTY_NAMES[(rank + 1) % PARTIES]
        for name, content, ends in (
            ("dealt seed", dealt, {("dealer", SENT), (party, RECEIVED)}),
            ("zero seed", zero, {(party, SENT), (after, RECEIVED)}),
            (
                "label share",
                label_share[:LABELS_IN_A_PIECE].tobytes(),
                {(party, SENT), ("coordinator", RECEIVED)},
            ),
        ):
            needles.add_bytes(f"{name} of {party}", content)
            expected[f"{name} of {party}"] = ends
    assert whereabouts(needles, seen) == expected


def test_no_private_key_is_anywhere(seen: Observation) -> None:
    needles = Needles()
    files = sorted((seen.cluster.directory / "certs").rglob("*key.pem"))
    assert len(files) == len(EVERYONE) + 1
    for path in files:
        pem = path.read_bytes()
        key = serialization.load_pem_private_key(pem, password=None)
        scalar = key.private_numbers().private_value.to_bytes(32, "big")
        needles.add_bytes(path.parent.name, scalar)
        for line in pem.splitlines()[1:-1]:
            needles.add_bytes(path.parent.name, line)
    needles.add_bytes("any key", b"PRIVATE KEY-----")
    for name in EVERYONE:
        assert found(needles, seen.views[name]) == {}, name
    assert needles.find(files[0].read_bytes()) == {files[0].parent.name, "any key"}


# What a party receives looks like noise


@pytest.mark.parametrize("name", PARTY_NAMES)
def test_what_the_parties_open_holds_no_secret(
    seen: Observation, secrets: Needles, labels: Needles, name: str
) -> None:
    """Frames add up to openings, by sum or by xor, at every party: they must still be masked."""
    by_sequence: dict[int, list[npt.NDArray[np.uint64]]] = {}
    # The same frame goes to all peers, so of what was sent one of each sequence is enough.
    own = {frame.sequence: frame for frame in frames(seen.views[name], SENT) if frame.payload}
    for frame in [*own.values(), *frames(seen.views[name], RECEIVED)]:
        if frame.payload:
            words = np.frombuffer(frame.payload, dtype="<u8")
            by_sequence.setdefault(frame.sequence, []).append(words)
    assert {len(one) for one in by_sequence.values()} == {PARTIES}
    sums = [np.add.reduce(one).tobytes() for one in by_sequence.values()]
    xors = [np.bitwise_xor.reduce(one).tobytes() for one in by_sequence.values()]
    for opened in (b"".join(sums), b"".join(xors)):
        assert secrets.find(opened) | labels.find(opened) == set()


@pytest.mark.parametrize("name", [*PARTY_NAMES, "coordinator"])
def test_what_a_role_receives_of_shares_is_uniform(seen: Observation, name: str) -> None:
    """Residuals, seeds, openings, corrections, label shares: false alarms below 1e-6 in all."""
    samples = shares_received(seen.views[name])
    assert len(samples) >= (4 if name != "coordinator" else 1)
    limit = FALSE_ALARM / (len(samples) * (PARTIES + 1))
    for what, data in samples.items():
        assert uniform_p_value(data) > limit, what


def test_a_ballot_among_the_shares_would_not_look_uniform(seen: Observation) -> None:
    party, truth = seen.views["party-0"], seen.truths["agent-0"]
    for what, data in shares_received(party).items():
        if len(data) < truth.noisy.nbytes:
            continue
        planted = truth.noisy.tobytes() + data[truth.noisy.nbytes :]
        small = planted[: 8 * truth.noisy.nbytes]
        assert uniform_p_value(small) < FALSE_ALARM, what


def shares_received(view: View) -> dict[str, bytes]:
    """All that must look random in what a role received, by kind; single bits packed."""
    samples: dict[str, bytes] = {}
    uploads = [
        party_pb2.SubmitSharesRequest.FromString(content)
        for content in view.passed(RECEIVED, "PartyService/SubmitShares")
    ]
    samples["residuals"] = b"".join(upload.packed for upload in uploads)
    payloads = [frame.payload for frame in frames(view, RECEIVED) if frame.payload]
    bits = [payload for payload in payloads if np.frombuffer(payload, "<u8").max() <= 1]
    samples["openings"] = b"".join(payload for payload in payloads if payload not in bits)
    opened = np.frombuffer(b"".join(bits), "<u8").astype(np.uint8)
    samples["opened bits"] = np.packbits(opened).tobytes()
    answers = [
        dealer_pb2.DealResponse.FromString(content)
        for content in view.passed(RECEIVED, "DealerService/Deal")
    ]
    samples["corrections"] = b"".join(answer.correction.words for answer in answers)
    seeds = [upload.header.seed for upload in uploads]
    seeds += [answer.grant.seed for answer in answers]
    seeds += [frame.hello.zero_seed for frame in frames(view, RECEIVED)]
    samples["seeds"] = b"".join(seeds)
    if view.name == "coordinator":
        samples["label shares"] = b"".join(shares.tobytes() for shares in label_shares(view))
    return {what: data for what, data in samples.items() if data}


def uniform_p_value(data: bytes) -> float:
    """Of a chi-square test of the bytes, or of the halves of bytes where there are few."""
    values = np.frombuffer(data, dtype=np.uint8)
    if len(values) < 10 * 256:
        values = np.concatenate([values >> 4, values & 15])
        return float(stats.chisquare(np.bincount(values, minlength=16)).pvalue)
    return float(stats.chisquare(np.bincount(values, minlength=256)).pvalue)


def frames(view: View, direction: str) -> list[party_pb2.PeerFrame]:
    """What passed between peers; requests and responses are alike."""
    contents = view.passed(direction, "PeerService/Exchange")
    return [party_pb2.ExchangeRequest.FromString(content).frame for content in contents]


def label_shares(view: View) -> list[npt.NDArray[np.uint64]]:
    """The label shares that a party sent, or that the coordinator received."""
    direction = RECEIVED if view.name == "coordinator" else SENT
    answers = [
        party_pb2.AggregateResponse.FromString(content)
        for content in view.passed(direction, "PartyService/Aggregate")
        if content
    ]
    return [
        np.frombuffer(answer.shares.shares, dtype="<u8")
        for answer in answers
        if answer.HasField("shares")
    ]


# The search finds what is there


Matrix = npt.NDArray[np.int64]

LEAKS: dict[str, Callable[[Matrix], bytes]] = {
    "array": lambda rows: rows.tobytes(),
    "array of int32": lambda rows: rows.astype("<i4").tobytes(),
    "array of int16, big-endian": lambda rows: rows.astype(">i2").tobytes(),
    "array by class": lambda rows: rows.T.copy().tobytes(),
    "array of float32": lambda rows: rows.astype("<f4").tobytes(),
    "one row": lambda rows: rows[7].tobytes(),
    "last row": lambda rows: rows[-1].tobytes(),
    "protobuf": lambda rows: b"".join(varint(int(value)) for value in rows.flat),
    "json": lambda rows: json.dumps(rows.tolist(), indent=2).encode(),
    "log line": lambda rows: f"counted {rows[3]}".encode(),
    "log line of a list": lambda rows: f"counted {list(rows[3])}".encode(),
    "log line of floats": lambda rows: f"counted {rows[3].astype(float)}".encode(),
    "csv": lambda rows: "\n".join(",".join(map(str, row)) for row in rows).encode(),
    "hexadecimal": lambda rows: rows.tobytes().hex().upper().encode(),
    "base64": lambda rows: base64.b64encode(b"?" + rows.tobytes()),
    "base64 for addresses": lambda rows: base64.urlsafe_b64encode(rows.astype("<i4").tobytes()),
}


@pytest.mark.parametrize("form", LEAKS)
def test_a_secret_planted_in_a_partys_view_is_found(
    seen: Observation, secrets: Needles, form: str
) -> None:
    truth, log = seen.truths["agent-2"], seen.views["party-1"].log
    planted = {
        "ballot of agent-2": truth.ballot,
        "noise of agent-2": truth.noise,
        "noisy ballot of agent-2": truth.noisy,
        "total": seen.total(),
        "noisy total": seen.noisy_total(),
    }
    for name, matrix in planted.items():
        assert name in secrets.find(log + LEAKS[form](matrix) + log)


@pytest.mark.parametrize("form", [form for form in LEAKS if form != "array by class"])
def test_labels_planted_in_a_partys_view_are_found(
    seen: Observation, labels: Needles, form: str
) -> None:
    # A row is a piece here: of the labels, less than that is not looked for.
    pieces = np.tile(seen.labels.reshape(-1, LABELS_IN_A_PIECE), (2, 1))
    assert labels.find(seen.views["party-1"].log + LEAKS[form](pieces)) == {"labels"}


@pytest.mark.parametrize("encode", [bytes, bytes.hex, base64.b64encode, base64.urlsafe_b64encode])
def test_a_seed_planted_in_a_log_is_found(
    seen: Observation, encode: Callable[[bytes], bytes | str]
) -> None:
    seed = next(share.seed for share in seen.truths["agent-0"].shares if share.seed)
    needles = Needles()
    needles.add_bytes("seed", seed)
    coded = encode(seed)
    content = coded.encode() if isinstance(coded, str) else coded
    assert needles.find(seen.views["party-0"].log + content + b"\n") == {"seed"}


def test_every_binary_form_of_a_row_is_found_at_every_offset(
    seen: Observation, secrets: Needles
) -> None:
    row = seen.truths["agent-1"].noisy[11]
    forms = list(binary_forms(row))
    assert len(forms) >= 8
    for offset, form in enumerate(forms * 2):
        assert secrets.find(b"\xff" * offset + form) == {"noisy ballot of agent-1"}


def test_a_plain_matrix_is_refused_rather_than_not_found() -> None:
    with pytest.raises(ValueError, match="too plain"):
        Needles().add_matrix("zeros", np.zeros((3, 10), dtype=np.int64))
