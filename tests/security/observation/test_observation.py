"""Nobody sees what they must not: one round, with everything that every role saw written down.

The agents' own records say what is secret; it is then looked for in what each role sent, received,
printed and stored, and in what the parties open to each other. All of it for each engine. The last
tests plant secrets, so that a search that finds nothing means that there is nothing.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import hashlib
import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from cryptography.hazmat.primitives import serialization
from scipy import stats

from aggregator.party.stock import NOTHING
from mpc_vote.argmax.crypten.engine import CryptenArgmax
from mpc_vote.argmax.crypten.triples import TripleKind, Triples
from mpc_vote.argmax.engine import label_bits
from mpc_vote.argmax.registry import LOG_REDUCTION, TABLE
from mpc_vote.argmax.table.engine import TableArgmax
from mpc_vote.argmax.table.level import LevelTables, pair_indices
from mpc_vote.mpc import ring
from mpc_vote.mpc.cut_and_choose import DIGEST_BYTES, Session, coin_hash, stream_keys
from mpc_vote.mpc.preprocessing import Item
from mpc_vote.proto.mpcvote.v1 import dealer_pb2, label_pb2, party_pb2
from mpc_vote.transport.frames import HEADER_BYTES, Header, Kind
from mpc_vote.verified.bit_conversion import BitConversion
from mpc_vote.voting import codec
from tests.security.observation.needles import Needles, binary_forms, varint
from tests.security.observation.openings import (
    Opening,
    Words,
    ballot_openings,
    differences,
    digits,
    expanded,
    stock_openings,
    table_openings,
)
from tests.security.observation.recorder import RECEIVED, SENT
from tests.security.observation.run import (
    AGENTS,
    CLASSES,
    PARTIES,
    QUERIES,
    Observation,
    View,
    Way,
    environment,
    observe,
    own_folder,
)
from tests.unit.verified.plain import pointers_of, votes_in

pytestmark = pytest.mark.slow

CHECK_SIZES = (64, 32, 32, 7 * 32, 0)
"""Of what a party sends to each peer as they check the dealer's eight copies."""

FALSE_ALARM = 1e-6
LABELS_IN_A_PIECE = 24
LABEL_BITS = label_bits(CLASSES)
# All bits of verified ballots are opened in one exchange.
_BALLOT_ITEMS, _BALLOT_EXCHANGES = 1, 1

# The engines, and the table engine also with winners of groups that meet at a second level.
WAYS = {
    "crypten": Way(LOG_REDUCTION),
    "table": Way(TABLE),
    "table in levels": Way(TABLE, (4, 3)),
    "verified": Way(TABLE, verified=True),
}

Matrix = npt.NDArray[np.int64]

PARTY_NAMES = [f"party-{rank}" for rank in range(PARTIES)]
AGENT_NAMES = [f"agent-{number}" for number in range(AGENTS)]
EVERYONE = [*AGENT_NAMES, *PARTY_NAMES, "dealer", "coordinator", "client"]

# What a role of each kind may say and hear. Whoever adds a call decides here what it shows to whom.
ATTENDING = {"AgentService/Attend", "AgentService/FetchQueries"}
ORDERS = {
    f"PartyService/{name}"
    for name in ("OpenRound", "AwaitPreprocessing", "ListHoldings", "Aggregate")
}
AMONG_PARTIES = {"PeerLink/Frame", "DealerService/Deal", "DealerService/Collect"}
ASKING = {"LabelService/RequestLabels", "LabelService/ListRounds"}
CALLS = {
    "agent": {*ATTENDING, "PartyService/SubmitShares", "Health/Check"},
    "party": {*ORDERS, *AMONG_PARTIES, "PartyService/SubmitShares", "Health/Check"},
    "dealer": {"DealerService/Deal", "DealerService/Collect", "Health/Check"},
    "coordinator": {
        *ATTENDING,
        *ORDERS,
        *ASKING,
        "LabelService/GetService",
        "Health/Check",
    },
    "client": ASKING,
}


@contextlib.contextmanager
def observed(way: Way) -> Iterator[Observation]:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        for name, value in environment(way).items():
            patch.setenv(name, value)
        yield observe(Path(folder), way)


@pytest.fixture(scope="module", params=WAYS)
def seen(request: pytest.FixtureRequest) -> Iterator[Observation]:
    with observed(WAYS[request.param]) as seen:
        yield seen


@pytest.fixture(scope="module")
def secrets(seen: Observation) -> Needles:
    return secrets_of(seen)


def secrets_of(seen: Observation) -> Needles:
    """What no role but the agent it belongs to may ever have, and no agent ever sends."""
    hidden: dict[str, Matrix] = {}
    for name, truth in seen.truths.items():
        hidden[f"ballot of {name}"] = truth.ballot
        hidden[f"votes of {name}"] = truth.ballot // seen.unit
        if truth.layout is None:
            hidden[f"noise of {name}"] = truth.noise
            hidden[f"noisy ballot of {name}"] = truth.noisy
    total = seen.noisy_total()
    hidden["total"] = seen.total()
    hidden["votes"] = seen.total() // seen.unit
    hidden["noisy total"] = total
    if seen.coins or not seen.spec.message.verified:
        hidden["noise of the total"] = total - seen.total()
    # CrypTen's engine's own form of the total, in which no tie is left.
    hidden["noisy total in the engine"] = total * CLASSES + np.arange(CLASSES - 1, -1, -1)
    # Who is ahead of whom, and by how much.
    upper, lower = pair_indices(CLASSES)
    hidden["differences"] = total[:, upper] - total[:, lower]
    needles = Needles()
    for name, matrix in hidden.items():
        hide(needles, name, matrix, seen.ring_bits)
    for name, truth in seen.truths.items():
        if truth.layout is not None:
            needles.add_packed(f"bits of {name}", truth.shared, 1)
            pointers = pointers_of(truth.layout, truth.shared)
            for bits in (truth.layout.pointer_bits, 8, 16):
                needles.add_packed(f"pointers of {name}", pointers, bits)
    if seen.coins:
        # Nobody has them, and a party's own are in its memory only.
        every = {**seen.coins, "all parties": np.packbits(seen.tossed, bitorder="little").tobytes()}
        for name, drawn in every.items():
            rows = np.frombuffer(drawn, np.uint8)[: len(drawn) // QUERIES * QUERIES]
            needles.add_packed(f"coins of {name}", rows.reshape(QUERIES, -1).astype(np.int64), 8)
    wins = wins_of(total.T).T
    needles.add_matrix("wins", wins)
    needles.add_packed("wins", wins, LABEL_BITS)
    needles.add_packed("comparisons", (hidden["differences"] >= 0).astype(np.int64), 1)
    return needles


def hide(needles: Needles, name: str, matrix: Matrix, bits: int) -> None:
    """Looks for numbers of so many bits in every form; for single bits, packed."""
    if bits > 1:
        needles.add_matrix(name, matrix)
    needles.add_packed(name, matrix, bits)


@pytest.fixture(scope="module")
def labels(seen: Observation) -> Needles:
    needles = Needles()
    needles.add_matrix("labels", seen.labels.reshape(-1, LABELS_IN_A_PIECE))
    needles.add_packed("labels", seen.labels[None], LABEL_BITS)
    return needles


@pytest.fixture(scope="module")
def openings(seen: Observation) -> list[Opening]:
    """Everything that the parties opened to each other, with the dealer's masks."""
    by_level = [opening for _, one in opened_by_level(seen) for opening in one]
    return [*opened_of_ballots(seen), *by_level]


def opened_of_ballots(seen: Observation) -> list[Opening]:
    """What was opened of verified ballots."""
    plan, parts, exchanges = session(seen)
    if not seen.spec.message.verified:
        return []
    held = [own[:_BALLOT_ITEMS] for own in parts]
    return list(ballot_openings(plan[:_BALLOT_ITEMS], held, exchanges[:_BALLOT_EXCHANGES]))


def pointers_shared(seen: Observation) -> Iterator[Matrix]:
    """By agent, the pointers of its verified ballot."""
    for truth in seen.truths.values():
        assert truth.layout is not None
        yield pointers_of(truth.layout, truth.shared).reshape(-1)


def opened_by_level(seen: Observation) -> list[tuple[LevelTables | None, list[Opening]]]:
    """What the engine opened; for the table engine by level."""
    engine = seen.spec.engine
    plan, parts, exchanges = session(seen)
    if seen.spec.message.verified:
        parts = [held[_BALLOT_ITEMS:] for held in parts]
        exchanges = exchanges[_BALLOT_EXCHANGES:]
    if isinstance(engine, TableArgmax):
        return list(table_openings(engine, QUERIES, CLASSES, parts, exchanges))
    assert isinstance(engine, CryptenArgmax)
    items = [item for item in plan if isinstance(item, Triples)]
    return [(None, list(stock_openings(items, parts, exchanges)))]


def session(seen: Observation) -> tuple[list[Item[Any]], list[list[Any]], list[list[bytes]]]:
    """The plan of all preprocessing, each party's parts of it, and what each sent, by exchange."""
    sent = [payloads(seen.views[party], SENT) for party in PARTY_NAMES]
    exchanges = [[each[number] for each in sent] for number in range(len(sent[0]))]
    plan, keys = list(seen.spec.plan()), keys_of(seen)
    return plan, expanded(plan, keys, corrections(seen.views[PARTY_NAMES[-1]])), exchanges


def keys_of(seen: Observation) -> list[bytes]:
    """What the parties' parts of the copy in use were expanded from, by rank."""
    copy = collected(seen.views[PARTY_NAMES[-1]]).copy
    seeds = [own_seeds(seen.views[party])[copy] for party in PARTY_NAMES]
    return stream_keys(transcript(seen), seeds, copy)


def transcript(seen: Observation) -> bytes:
    """Of the dealing, from what the first party was told."""
    request = asked(seen.views[PARTY_NAMES[0]])
    session = Session(request.session_id, tuple(request.parties), seen.spec.plan(), request.copies)
    return session.transcript(grant(seen.views[PARTY_NAMES[0]]).seed_hashes)


def asked(view: View) -> dealer_pb2.DealRequest:
    """What a party asked the dealer for."""
    (content,) = view.passed(SENT, "DealerService/Deal")
    return dealer_pb2.DealRequest.FromString(content)


def own_seeds(view: View) -> list[bytes]:
    """The seeds that a party has drawn."""
    return list(asked(view).seeds)


def payloads(view: View, direction: str) -> list[bytes]:
    """What a party sent to each peer, exchange by exchange; or all that came, likewise."""
    carrying = [frame for frame in frames(view, direction) if frame.payload]
    carrying.sort(key=lambda frame: frame.sequence)
    if direction == RECEIVED:
        return [frame.payload for frame in carrying]
    by_sequence = {frame.sequence: frame.payload for frame in carrying}
    assert list(by_sequence) == list(range(len(by_sequence)))
    return list(by_sequence.values())


def grant(view: View) -> dealer_pb2.DealGrant:
    """What the dealer granted to a party."""
    (found_,) = (one.grant for one in dealt(view) if one.HasField("grant"))
    return found_


def collected(view: View) -> dealer_pb2.CollectRequest:
    """Which copy the last party asked for."""
    (content,) = view.passed(SENT, "DealerService/Collect")
    return dealer_pb2.CollectRequest.FromString(content)


def corrections(view: View) -> bytes:
    """All corrections that the dealer sent to a party."""
    contents = view.passed(RECEIVED, "DealerService/Collect")
    return b"".join(dealer_pb2.CollectResponse.FromString(content).data for content in contents)


def dealt(view: View) -> list[dealer_pb2.DealResponse]:
    contents = view.passed(RECEIVED, "DealerService/Deal")
    return [dealer_pb2.DealResponse.FromString(content) for content in contents]


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
        if truth.layout is None:
            assert np.array_equal(in_ring(np.sum(parts, axis=0), seen), truth.noisy), name
        else:
            votes = votes_in(truth.layout, truth.shared)
            assert np.array_equal(seen.unit * votes, truth.ballot), name
        for rank, share in enumerate(truth.shares):
            received = b"".join(
                seen.views[f"party-{rank}"].passed(RECEIVED, "PartyService/SubmitShares")
            )
            assert (share.seed or share.packed) in received


def test_coins_are_drawn_when_the_aggregation_is_marked_for_ever(seen: Observation) -> None:
    """Not before: a party that is stopped and started again draws none a second time."""
    for name in seen.parties:
        order = (seen.cluster.records(name) / "order.txt").read_text().split()
        assert order == ["marked", *(["drawn"] if seen.spec.message.verified else [])]


def test_the_labels_are_those_of_the_recorded_ballots(seen: Observation) -> None:
    assert seen.labels.shape == (QUERIES,)
    assert np.array_equal(seen.labels, seen.noisy_total().argmax(axis=1))


def test_the_coordinator_received_shares_that_add_up_to_the_labels(seen: Observation) -> None:
    shares = label_shares(seen.views["coordinator"])
    assert len(shares) == PARTIES and all(share.max() < 1 << LABEL_BITS for share in shares)
    total = np.sum(shares, axis=0) % (1 << LABEL_BITS)
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
    """And starts no program, and connects nowhere but over watched channels and, as a party, to
    links of parties of higher rank."""
    folder = str(own_folder(seen.cluster, name))
    writes = ("open", "os.rename", "sqlite3.connect")
    higher = [peer for peer in PARTY_NAMES if name in PARTY_NAMES and peer > name]
    addresses = [seen.cluster.peer_addresses[peer].split(":") for peer in higher]
    connects = {f"socket.connect {(host, int(port))}" for host, port in addresses}
    for deed in set(seen.views[name].deeds) - connects:
        kind, _, path = deed.partition(" ")
        assert kind in writes
        # The folder itself is opened for a file without a name.
        assert f"{path}/".startswith(f"{folder}/"), deed
    assert bool(seen.views[name].disk) == (name != "dealer")


def test_the_dealer_hears_nothing_but_sizes(seen: Observation) -> None:
    """What it hears is the session's name, the parties, a plan that follows from the shape, the
    parties' seeds, and the copy that the lot fell on."""
    messages = seen.views["dealer"].passed(RECEIVED, "DealerService/Deal")
    (session,) = {dealer_pb2.DealRequest.FromString(content).session_id for content in messages}
    plan = seen.spec.plan()
    # Byte for byte, so that nothing is hidden in fields that the dealer does not know.
    requests = [
        dealer_pb2.DealRequest(
            session_id=session,
            parties=seen.parties,
            plan=codec.to_wire(plan),
            copies=8,
            seeds=own_seeds(seen.views[party]),
        )
        for party in PARTY_NAMES
    ]
    assert sorted(messages) == sorted(request.SerializeToString() for request in requests)
    last = seen.views[PARTY_NAMES[-1]]
    chosen = dealer_pb2.CollectRequest(session_id=session, copy=collected(last).copy)
    heard = seen.views["dealer"].passed(RECEIVED, "DealerService/Collect")
    assert heard == [chosen.SerializeToString()]
    others = {m.content for m in seen.views["dealer"].messages if m.method.endswith("Health/Check")}
    everything = set(seen.views["dealer"].passed(RECEIVED))
    assert everything - others == {*messages, *heard}
    if isinstance(seen.spec.engine, CryptenArgmax):
        assert {item.kind for item in plan if isinstance(item, Triples)} == set(TripleKind)
    else:
        assert all(isinstance(item, LevelTables | BitConversion) for item in plan)


def test_the_client_hears_labels_cost_and_progress(seen: Observation) -> None:
    (rounds,) = seen.views["client"].passed(RECEIVED, "LabelService/ListRounds")
    assert not label_pb2.ListRoundsResponse.FromString(rounds).rounds
    messages = seen.views["client"].passed(RECEIVED, "LabelService/RequestLabels")
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
                hide(needles, name, truth.expanded(rank), truth.bits)
            expected[name] = {(agent, SENT), (f"party-{rank}", RECEIVED)}
        assert [rank for rank, share in enumerate(truth.shares) if share.packed] == [truth.explicit]
    assert whereabouts(needles, seen) == expected
    assert {truth.explicit for truth in seen.truths.values()} == set(range(PARTIES))


def test_what_parties_compute_from_their_shares_stays_with_them(seen: Observation) -> None:
    """Expanded seeds, and a party's share of the total, are on no wire, in no log and no file."""
    needles = Needles()
    for rank in range(PARTIES):
        shares = {name: truth.expanded(rank) for name, truth in seen.truths.items()}
        total = in_ring(share_of_total(seen, rank), seen)
        kept = {f"share of the total at {rank}": total}
        order = np.arange(CLASSES - 1, -1, -1) * (rank == 0)
        kept[f"share in CrypTen's engine at {rank}"] = in_ring(total * CLASSES + order, seen)
        for name, values in shares.items():
            truth = seen.truths[name]
            if truth.shares[rank].seed:
                hide(needles, f"expansion for {name} at {rank}", values, truth.bits)
        for name, matrix in kept.items():
            hide(needles, name, matrix, seen.ring_bits)
    for name in EVERYONE:
        assert found(needles, seen.views[name]) == {}, name


def share_of_total(seen: Observation, rank: int) -> Matrix:
    """A party's share of the total, by query."""
    if not seen.spec.message.verified:
        added: Matrix = np.sum([t.expanded(rank) for t in seen.truths.values()], axis=0)
        return added
    _, (totals, *_) = opened_by_level(seen)[0]
    share = totals.shares[rank] - totals.masks[rank]
    return np.ascontiguousarray(share[:CLASSES].T).view(np.int64)


def test_what_the_committee_exchanges_in_private_is_at_both_ends_only(seen: Observation) -> None:
    """Seeds of preprocessing in use, those of the zero sharing between neighbours, and label
    shares."""
    needles, expected = Needles(), {}
    copy = collected(seen.views[PARTY_NAMES[-1]]).copy
    for rank, party in enumerate(PARTY_NAMES):
        seed = own_seeds(seen.views[party])[copy]
        (zero,) = {f.hello.zero_seed for f in frames(seen.views[party], SENT) if f.hello} - {b""}
        (label_share,) = label_shares(seen.views[party])
        after = PARTY_NAMES[(rank + 1) % PARTIES]
        for name, content, ends in (
            ("seed in use", seed, {(party, SENT), ("dealer", RECEIVED)}),
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
    files = add_keys(needles, seen)
    for name in EVERYONE:
        assert found(needles, seen.views[name]) == {}, name
    assert needles.find(files[0].read_bytes()) == {files[0].parent.name, "any key"}


def add_keys(needles: Needles, seen: Observation) -> list[Path]:
    """Looks for every private key; returns their files."""
    files = sorted((seen.cluster.directory / "certs").rglob("*key.pem"))
    assert len(files) == len(EVERYONE) + 1
    for path in files:
        pem = path.read_bytes()
        key: Any = serialization.load_pem_private_key(pem, password=None)
        scalar = key.private_numbers().private_value.to_bytes(32, "big")
        needles.add_bytes(path.parent.name, scalar)
        for line in pem.splitlines()[1:-1]:
            needles.add_bytes(path.parent.name, line)
    needles.add_bytes("any key", b"PRIVATE KEY-----")
    return files


@pytest.mark.parametrize("verified", [False, True], ids=["plain", "verified"])
def test_a_round_that_fails_tells_no_secret(verified: bool) -> None:
    """Every share was sent when the parties gave up: errors, logs and what the client is told hold
    no ballot, noise, total, share, seed or key."""
    with observed(Way(TABLE, verified=verified, fails=True)) as seen:
        needles = secrets_of(seen)
        add_keys(needles, seen)
        for agent, truth in seen.truths.items():
            for rank, share in enumerate(truth.shares):
                needles.add_bytes(f"share of {agent} at {rank}", (share.seed or share.packed)[:32])
        for view in seen.views.values():
            assert needles.find(view.log) == set(), view.name
            assert needles.find(view.disk) == set(), view.name
        assert b"error" in seen.views["client"].log


# What the parties open


@pytest.mark.parametrize("name", PARTY_NAMES)
def test_as_they_check_the_dealer_parties_tell_seeds_that_are_not_used_and_nothing_else(
    seen: Observation, name: str
) -> None:
    view = seen.views[name]
    copy, seeds = collected(seen.views[PARTY_NAMES[-1]]).copy, own_seeds(view)
    sent = [frame for frame in frames(view, SENT, checking=True) if frame.hello is None]
    assert len(sent) == len(CHECK_SIZES) * (PARTIES - 1)
    by_sequence = {frame.sequence: frame.payload for frame in sent}
    rank, coin = PARTY_NAMES.index(name), by_sequence[1]
    assert by_sequence[0][DIGEST_BYTES:] == coin_hash(transcript(seen), rank, coin)
    assert by_sequence[3] == b"".join(s for place, s in enumerate(seeds) if place != copy)
    assert seeds[copy] not in b"".join(by_sequence.values())
    # What stands for things that all have heard is the same from everybody.
    for sequence, size in ((0, DIGEST_BYTES), (2, DIGEST_BYTES)):
        heard = [f for f in frames(view, RECEIVED, checking=True) if f.hello is None]
        others = {f.payload[:size] for f in heard if f.sequence == sequence}
        assert others == {by_sequence[sequence][:size]}


@pytest.mark.parametrize("name", PARTY_NAMES)
def test_parties_exchange_what_they_open_and_nothing_else(
    seen: Observation, openings: list[Opening], name: str
) -> None:
    """Each sends the same to all; every byte of it is a share of an opening, in a known place."""
    own = payloads(seen.views[name], SENT)
    others = [payloads(seen.views[other], SENT) for other in PARTY_NAMES if other != name]
    assert len(frames(seen.views[name], SENT)) == (len(own) + 1) * (PARTIES - 1), "and a hello"
    came = payloads(seen.views[name], RECEIVED)
    sent = [payload for exchange in zip(*others, strict=True) for payload in exchange]
    assert sorted(came) == sorted(sent)
    # No room is left beside the openings, but for words in which CrypTen's engine opens bits.
    rank = PARTY_NAMES.index(name)
    sizes = [
        8 * opening.shares[rank].size
        if opening.what == "bit"
        else ring.planes_size(opening.shares[rank].size, opening.bits)
        for opening in openings
    ]
    assert sum(map(len, own)) == sum(sizes)
    for opening in openings:
        assert opening.shares[rank].max() < 1 << opening.bits


def test_openings_are_what_they_are_said_to_be(
    seen: Observation, openings: list[Opening], secrets: Needles
) -> None:
    """Who knows all masks takes them off; else that a search finds nothing would mean nothing."""
    if isinstance(seen.spec.engine, CryptenArgmax):
        assert {opening.what for opening in openings} == {"product", "conjunction", "bit"}
        return
    if seen.spec.message.verified:
        pointers, flags = (one.without(range(PARTIES)) for one in opened_of_ballots(seen))
        assert np.array_equal(pointers.reshape(-1), np.concatenate(list(pointers_shared(seen))))
        assert np.array_equal(flags.reshape(-1), seen.tossed)
    values, tags = seen.noisy_total().T, np.arange(CLASSES)[:, None].repeat(QUERIES, axis=1)
    whats = []
    for level, opened in opened_by_level(seen):
        assert level is not None
        unmasked = {one.what: one.without(range(PARTIES)) for one in opened}
        whats += list(unmasked)
        contestants = grouped(values, level)
        labels = grouped(tags, level)
        wins = wins_of(contestants)
        assert np.array_equal(ring.signed(unmasked["totals"], level.bits), contestants)
        if level.labelled:
            assert np.array_equal(unmasked["labels"], labels)
        assert np.array_equal(unmasked["wins"], wins)
        totals = opened[0]
        public = digits(differences(totals.opened, level), level)
        rho = digits(differences(np.add.reduce(totals.masks), level), level)
        less = [x < y for x, y in zip(public, rho, strict=True)]
        equal = [x == y for x, y in zip(public, rho, strict=True)]
        assert np.array_equal(unmasked["comparisons"], np.stack([*less, *equal[:-1]]))
        winner = wins.argmax(axis=0)[None]
        values = np.take_along_axis(contestants, winner, axis=0).reshape(-1, QUERIES)
        tags = np.take_along_axis(labels, winner, axis=0).reshape(-1, QUERIES)
    assert np.array_equal(tags[0], seen.labels)
    if seen.spec.message.groups:
        assert whats == ["totals", "comparisons", "wins", "totals", "labels", "comparisons", "wins"]
    else:
        assert whats == ["totals", "comparisons", "wins"]
        (totals,) = (opening for opening in openings if opening.what == "totals")
        hits = secrets.find(b"".join(readings(totals.without(range(PARTIES)), totals)))
        assert {"noisy total", "differences"} <= hits


@pytest.mark.parametrize("honest", range(PARTIES))
def test_what_the_parties_open_holds_no_secret(
    openings: list[Opening], secrets: Needles, labels: Needles, honest: int
) -> None:
    """Shares add up to openings, by sum or by xor; all but one party's masks come off."""
    others = [rank for rank in range(PARTIES) if rank != honest]
    read = [replace(opening, by_xor=by_xor) for opening in openings for by_xor in (True, False)]
    hay = b"".join(
        content
        for one in read
        for values in (one.opened, one.without(others))
        for content in readings(values, one)
    )
    assert secrets.find_numbers(hay) | labels.find_numbers(hay) == set()


@pytest.mark.parametrize("honest", range(PARTIES))
def test_what_the_parties_open_is_uniform_under_one_partys_masks(
    openings: list[Opening], honest: int
) -> None:
    """False alarms below 1e-6 for all parties and all ways together."""
    others = [rank for rank in range(PARTIES) if rank != honest]
    kinds = {opening.what for opening in openings}
    limit = FALSE_ALARM / (2 * len(kinds) * PARTIES * len(WAYS))
    for kind in sorted(kinds):
        chosen = [opening for opening in openings if opening.what == kind]
        for values in ([one.opened for one in chosen], [one.without(others) for one in chosen]):
            packed = [ring.pack(v.reshape(-1), o.bits) for v, o in zip(values, chosen, strict=True)]
            assert uniform_p_value(b"".join(packed)) > limit, kind


def test_what_the_parties_open_would_not_look_uniform_without_masks(
    openings: list[Opening],
) -> None:
    for kind in sorted({opening.what for opening in openings} - {"flags"}):
        # (Those are coins, which are uniform by themselves.)
        chosen = [opening for opening in openings if opening.what == kind]
        bare = [ring.pack(one.without(range(PARTIES)).reshape(-1), one.bits) for one in chosen]
        assert uniform_p_value(b"".join(bare)) < FALSE_ALARM, kind


def readings(values: Words, opening: Opening) -> Iterator[bytes]:
    """Opened values in the forms in which a search can find a secret in them."""
    if opening.what in ("pointers", "flags"):
        # So small as whole words, they would be like every small number.
        yield ring.pack(values.reshape(-1), opening.bits)
        yield values.astype(np.uint8).tobytes()
        return
    orders = [values, np.moveaxis(values, -1, 0)] if values.ndim > 1 else [values]
    if opening.what == "totals":
        upper, lower = pair_indices(len(values))
        pairs = values[upper] - values[lower]
        orders += [pairs, pairs.T]
    for order in orders:
        flat = np.ascontiguousarray(order).reshape(-1)
        yield flat.tobytes()
        yield ring.signed(flat, opening.bits).tobytes()
        yield ring.pack(flat, opening.bits)
        yield ring.pack_planes(flat, opening.bits)


def grouped(values: Matrix, level: LevelTables) -> Matrix:
    """Contestants by place; each group's rows lie side by side, and the last fills it up."""
    groups = level.vectors // QUERIES
    filler = np.repeat(values[-1:], groups * level.group - len(values), axis=0)
    whole = np.concatenate([values, filler]).reshape(groups, level.group, QUERIES)
    return np.concatenate(list(whole), axis=1)


def wins_of(values: Matrix) -> Matrix:
    """How many others each contestant beats; of equals the first beats the second."""
    wins = np.zeros(values.shape, dtype=np.int64)
    for first, second in combinations(range(len(values)), 2):
        beats = values[first] >= values[second]
        wins[first] += beats
        wins[second] += ~beats
    return wins


def in_ring(values: Matrix, seen: Observation) -> Matrix:
    """Representatives around zero."""
    return ring.signed(values.view(np.uint64), seen.ring_bits)


# What a role receives looks like noise


@pytest.mark.parametrize("name", [*PARTY_NAMES, "coordinator"])
def test_what_a_role_receives_of_shares_is_uniform(
    seen: Observation, openings: list[Opening], name: str
) -> None:
    """Residuals, seeds, openings, corrections, label shares: false alarms below 1e-6 in all."""
    samples = shares_received(seen.views[name], openings)
    assert len(samples) >= (5 if name != "coordinator" else 1)
    assert ("corrections" in samples) == (name == PARTY_NAMES[-1])
    limit = FALSE_ALARM / (len(samples) * (PARTIES + 1) * len(WAYS))
    for what, data in samples.items():
        assert uniform_p_value(data) > limit, what


def test_a_ballot_among_the_shares_would_not_look_uniform(
    seen: Observation, openings: list[Opening]
) -> None:
    party, truth = seen.views[PARTY_NAMES[-1]], seen.truths["agent-0"]
    ballot = ring.pack(truth.noisy.view(np.uint64), seen.ring_bits)
    tried = set()
    for what, data in shares_received(party, openings).items():
        if len(data) < len(ballot):
            continue
        planted = ballot + data[len(ballot) :]
        assert uniform_p_value(planted[: 4 * len(ballot)]) < FALSE_ALARM, what
        tried.add(what)
    assert tried >= {"residuals", "corrections"} and len(tried) >= 4


def shares_received(view: View, openings: Sequence[Opening]) -> dict[str, bytes]:
    """All that must look random in what a role received, by kind; bits that count, packed."""
    samples: dict[str, bytes] = {}
    uploads = [
        party_pb2.SubmitSharesRequest.FromString(content)
        for content in view.passed(RECEIVED, "PartyService/SubmitShares")
    ]
    samples["residuals"] = b"".join(upload.packed for upload in uploads)
    if view.name in PARTY_NAMES:
        others = [rank for rank, name in enumerate(PARTY_NAMES) if name != view.name]
        for opening in openings:
            shares = [ring.pack(opening.shares[rank].reshape(-1), opening.bits) for rank in others]
            what = f"shares of {opening.what}"
            samples[what] = samples.get(what, b"") + b"".join(shares)
    samples["corrections"] = corrections(view)
    seeds = [upload.header.seed for upload in uploads]
    samples["hashes of seeds"] = b"".join(h for one in dealt(view) for h in one.grant.seed_hashes)
    samples["commitments"] = b"".join(one.commitments.digests for one in dealt(view))
    seeds += [frame.hello.zero_seed for frame in frames(view, RECEIVED) if frame.hello]
    samples["seeds"] = b"".join(seeds)
    if view.name == "coordinator":
        words = [share.astype(np.uint64) for share in label_shares(view)]
        samples["label shares"] = b"".join(ring.pack(share, LABEL_BITS) for share in words)
    return {what: data for what, data in samples.items() if data}


def uniform_p_value(data: bytes) -> float:
    """Of a chi-square test of the bytes, or of the halves of bytes where there are few."""
    values = np.frombuffer(data, dtype=np.uint8)
    if len(values) < 10 * 256:
        values = np.concatenate([values >> 4, values & 15])
        return float(stats.chisquare(np.bincount(values, minlength=16)).pvalue)
    return float(stats.chisquare(np.bincount(values, minlength=256)).pvalue)


@dataclasses.dataclass(frozen=True)
class PeerFrame:
    """A frame between peers: of a session's beginning, or a payload at its place in it."""

    sequence: int
    payload: bytes = b""
    hello: party_pb2.SessionHello | None = None

    @classmethod
    def parse(cls, frame: bytes) -> PeerFrame | None:
        """None of what carries nothing: pings, and the ends of sessions."""
        content = frame[HEADER_BYTES:]
        header = Header.parse(frame[:HEADER_BYTES], payload=len(content))
        if header.kind is Kind.HELLO:
            return cls(0, hello=party_pb2.SessionHello.FromString(content))
        assert header.kind is Kind.PAYLOAD or not content
        return cls(header.number, content) if header.kind is Kind.PAYLOAD else None


def frames(view: View, direction: str, checking: bool = False) -> list[PeerFrame]:
    """What passed between peers as they counted, or before as they checked what was dealt.

    The check's frames are told by their places and sizes.
    """
    contents = view.passed(direction, "PeerLink/Frame")
    all_frames = [
        frame
        for one in contents
        if (frame := PeerFrame.parse(one)) is not None and not of_stocks(frame)
    ]

    def of_check(frame: PeerFrame) -> bool:
        if frame.hello is not None:
            return frame.hello.session_id.endswith(".deal")
        return len(frame.payload) == dict(enumerate(CHECK_SIZES)).get(frame.sequence)

    return [frame for frame in all_frames if of_check(frame) == checking]


def of_stocks(frame: PeerFrame) -> bool:
    """Whether parties tell each other in it that they have nothing in stock: always the same."""
    if frame.hello is not None:
        return frame.hello.session_id.endswith(".stock")
    return frame.payload in (NOTHING, hashlib.sha256(NOTHING * len(PARTY_NAMES)).digest())


def label_shares(view: View) -> list[npt.NDArray[np.uint16]]:
    """The label shares that a party sent, or that the coordinator received."""
    direction = RECEIVED if view.name == "coordinator" else SENT
    answers = [
        party_pb2.AggregateResponse.FromString(content)
        for content in view.passed(direction, "PartyService/Aggregate")
        if content
    ]
    return [
        np.frombuffer(answer.shares.shares, dtype="<u2")
        for answer in answers
        if answer.HasField("shares")
    ]


# The search finds what is there


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
    # In fixed notation, which numpy leaves where numbers are far apart.
    "log line of floats": lambda rows: (
        f"counted {np.array2string(rows[3].astype(float), suppress_small=True)}".encode()
    ),
    "csv": lambda rows: "\n".join(",".join(map(str, row)) for row in rows).encode(),
    "hexadecimal": lambda rows: rows.tobytes().hex().upper().encode(),
    "base64": lambda rows: base64.b64encode(b"?" + rows.tobytes()),
    "base64 for addresses": lambda rows: base64.urlsafe_b64encode(rows.astype("<i4").tobytes()),
}
# Packed modulo a power of two, as shares and openings are.
PACKED_LEAKS: dict[str, Callable[[Matrix, int], bytes]] = {
    "a share": lambda rows, bits: ring.pack(rows.view(np.uint64), bits),
    "a share's end": lambda rows, bits: ring.pack(rows.view(np.uint64), bits)[-len(rows) * bits :],
    "an opening": lambda rows, bits: ring.pack_planes(rows.T.copy().view(np.uint64), bits),
    "an opening by row": lambda rows, bits: ring.pack_planes(rows.view(np.uint64), bits),
    "one class opened": lambda rows, bits: ring.pack_planes(rows[:, 3].copy().view("u8"), bits),
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
    for name in planted.keys() & secrets.names:
        assert name in secrets.find(log + LEAKS[form](planted[name]) + log)


@pytest.mark.parametrize("form", PACKED_LEAKS)
def test_a_secret_that_is_packed_like_a_share_is_found(
    seen: Observation, secrets: Needles, form: str
) -> None:
    truth, log = seen.truths["agent-2"], seen.views["party-1"].log
    total = seen.noisy_total()
    upper, lower = pair_indices(CLASSES)
    planted = {
        "ballot of agent-2": (truth.ballot, seen.ring_bits),
        "noisy ballot of agent-2": (truth.noisy, seen.ring_bits),
        "noisy total": (total, seen.ring_bits),
        "differences": (total[:, upper] - total[:, lower], seen.ring_bits),
        "wins": (wins_of(total.T).T.copy(), LABEL_BITS),
        "comparisons": ((total[:, upper] >= total[:, lower]).astype(np.int64), 1),
    }
    for name, (matrix, bits) in planted.items():
        if name not in secrets.names:
            continue
        if form == "an opening by row" and bits < 8:
            # Of these, bits are looked for by class alone.
            continue
        assert name in secrets.find(log + PACKED_LEAKS[form](matrix, bits) + log)


@pytest.mark.parametrize("form", [form for form in LEAKS if form != "array by class"])
def test_labels_planted_in_a_partys_view_are_found(
    seen: Observation, labels: Needles, form: str
) -> None:
    # A row is a piece here: of the labels, less than that is not looked for.
    pieces = np.tile(seen.labels.reshape(-1, LABELS_IN_A_PIECE), (2, 1))
    assert labels.find(seen.views["party-1"].log + LEAKS[form](pieces)) == {"labels"}


def test_labels_that_are_packed_like_shares_are_found(seen: Observation, labels: Needles) -> None:
    words, log = seen.labels.astype(np.uint64), seen.views["party-1"].log
    assert labels.find(log + ring.pack(words, LABEL_BITS)) == {"labels"}
    assert labels.find(log + ring.pack_planes(words, LABEL_BITS)) == {"labels"}


@pytest.mark.parametrize(
    "encode",
    [
        bytes,
        bytes.hex,
        base64.b64encode,
        base64.urlsafe_b64encode,
        repr,
        lambda seed: str(list(seed)),
        lambda seed: str(int.from_bytes(seed, "big")),
    ],
)
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
    row = seen.noisy_total()[11]
    forms = list(binary_forms(row))
    assert len(forms) >= 8
    for offset, form in enumerate(forms * 2):
        assert secrets.find(b"\xff" * offset + form) == {"noisy total"}


def test_a_plain_matrix_is_refused_rather_than_not_found() -> None:
    with pytest.raises(ValueError, match="too plain"):
        Needles().add_matrix("zeros", np.zeros((3, 10), dtype=np.int64))
    with pytest.raises(ValueError, match="too plain"):
        Needles().add_packed("zeros", np.zeros((16, 10), dtype=np.int64), 20)
