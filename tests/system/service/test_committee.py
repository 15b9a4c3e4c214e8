"""What parties do for nobody, not even for the coordinator.

The tests play the coordinator and the agents against live parties. Invariants: a round's shares are
counted once, ever, as one set, of at least the quorum that its agents agreed to; parties that don't
agree on the set release nothing; shares are forgotten once they are counted or given up.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

import numpy as np
import pytest

from mpc_vote.errors import ErrorKind
from mpc_vote.mpc.sharing import Share
from mpc_vote.pki.identity import Identity, Role
from mpc_vote.proto.mpcvote.v1 import common_pb2, party_pb2, party_pb2_grpc
from tests.system.service.committee import (
    AGENTS,
    CLASSES,
    EXPLICIT_BYTES,
    Committee,
    holdings_of,
    labels_of,
)
from tests.system.service.support import (
    SECONDS,
    UNKNOWN_FIELD,
    Labels,
    Service,
    error_of,
    until,
)


@pytest.fixture
async def committee(service: Service) -> AsyncIterator[Committee]:
    parties = list(service.cluster.party_addresses)
    async with Committee.reached(service.channel, parties) as reached:
        yield reached


VOTES = {
    "ann": np.array([0, 1, 2, 0, 1, 2, 0, 1, 2]),
    "ben": np.array([0, 1, 2, 2, 0, 1, 0, 1, 2]),
    "cat": np.array([1, 2, 0, 2, 0, 1, 0, 1, 2]),
}


def expected(agents: Sequence[str]) -> Labels:
    counts = sum(np.eye(CLASSES, dtype=np.int64)[VOTES[agent]] for agent in agents)
    best: Labels = np.argmax(counts, axis=1)
    return best


# One aggregation, ever


async def test_a_round_is_aggregated_once_ever(committee: Committee) -> None:
    """Two sets over the same shares would let their difference be read without noise."""
    spec = committee.spec()
    held = await committee.voted(spec, VOTES)
    assert (labels_of(await committee.aggregate(spec, [held])) == expected(AGENTS)).all()
    for again in (held, {agent: held[agent] for agent in AGENTS[:2]}):
        for outcome in await committee.aggregate(spec, [again]):
            assert outcome.error is not None and outcome.error.name == "ROUND_AGGREGATED"
            assert not outcome.released


async def test_two_rounds_release_what_marks_the_winners(committee: Committee) -> None:
    spec = committee.spec(two_rounds=True)
    held = await committee.voted(spec, VOTES)
    outcomes = await committee.aggregate(spec, [held])
    code = spec.engine.label_code(CLASSES)
    sent = [[(part.offset, part.shares) for part in outcome.released] for outcome in outcomes]
    assert all([offset for offset, _ in parts] == [0] for parts in sent)
    sums = np.add.reduce([code.unpack(parts[0][1], len(expected(AGENTS))) for parts in sent])
    assert (code.labels(sums) == expected(AGENTS)).all()
    assert {outcome.error for outcome in outcomes} == {None}


async def test_shares_are_forgotten_when_they_are_counted(committee: Committee) -> None:
    spec = committee.spec()
    held = await committee.voted(spec, VOTES)
    for party in committee.stubs:
        assert await committee.holdings(spec, party) == held
    labels_of(await committee.aggregate(spec, [held]))
    for party in committee.stubs:
        assert await committee.holdings(spec, party) == {}
    error = await error_of(committee.submit(spec, "ann", VOTES["ann"]))
    assert error.name == "ROUND_CLOSED", error.message


async def test_shares_are_forgotten_when_a_round_is_abandoned(committee: Committee) -> None:
    spec = committee.spec()
    held = await committee.voted(spec, VOTES)
    for party in committee.stubs:
        assert await committee.holdings(spec, party) == held
    await committee.abandon(spec)
    for party in committee.stubs:
        assert await committee.holdings(spec, party) == {}
        outcome = await committee.aggregate_at(party, spec, held)
        assert outcome.error is not None and not outcome.released


async def test_a_finished_round_is_not_opened_again(committee: Committee) -> None:
    spec = committee.spec()
    held = await committee.voted(spec, VOTES)
    await committee.open(spec)  # while it is open, once more is harmless
    assert await committee.holdings(spec) == held
    labels_of(await committee.aggregate(spec, [held]))
    for party in committee.stubs:
        error = await error_of(committee.open_at(party, spec))
        assert error.name == "ROUND_SPENT", error.message


async def test_a_round_that_is_opened_leaves_one_that_is_counted_alone(
    committee: Committee,
) -> None:
    """Rounds overlap: what one is charged must not be lost because another begins."""
    spec, next_spec = committee.spec(), committee.spec()
    held = await committee.voted(spec, VOTES)
    first, *others = committee.stubs
    counting = asyncio.create_task(committee.aggregate_at(first, spec, held))

    async def has_begun() -> bool:
        return await committee.holdings(spec, first) == {}

    await until(has_begun, "the first party waits for its peers")
    await committee.open(next_spec)
    outcomes = await asyncio.gather(*(committee.aggregate_at(p, spec, held) for p in others))
    assert (labels_of([await counting, *outcomes]) == expected(AGENTS)).all()
    await committee.abandon(next_spec)


# The set of contributors


async def test_fewer_than_the_quorum_are_never_counted(committee: Committee) -> None:
    spec = committee.spec()
    held = await committee.voted(spec, VOTES)
    for few in ({}, {"ann": held["ann"]}):
        for outcome in await committee.aggregate(spec, [few]):
            assert outcome.error is not None and outcome.error.name == "QUORUM_MISSED"
            assert not outcome.released
    # A refusal spends nothing: enough agents are still counted.
    pair = {agent: held[agent] for agent in ("ann", "ben")}
    labels = labels_of(await committee.aggregate(spec, [pair]))
    assert (labels == expected(["ann", "ben"])).all()


async def test_a_quorum_of_one_agent_named_twice_is_no_quorum(committee: Committee) -> None:
    spec = committee.spec()
    held = await committee.voted(spec, VOTES)
    twice = holdings_of({"ann": held["ann"]}) * 2
    outcome = await committee.order("party-0", spec, twice)
    assert outcome.error is not None and outcome.error.name == "SPEC_INVALID"
    assert not outcome.released


@pytest.mark.parametrize("wrong", ["agent", "submission"])
async def test_contributors_that_a_party_does_not_hold_are_refused(
    committee: Committee, wrong: str
) -> None:
    spec = committee.spec()
    held = await committee.voted(spec, VOTES)
    chosen = {"ann": held["ann"], "ben": held["ben"]}
    chosen |= {"dan": held["cat"]} if wrong == "agent" else {"cat": os.urandom(16)}
    for outcome in await committee.aggregate(spec, [chosen]):
        assert outcome.error is not None and outcome.error.name == "CONTRIBUTOR_UNKNOWN"
        assert not outcome.released


async def test_parties_that_are_given_different_sets_release_nothing(committee: Committee) -> None:
    spec = committee.spec()
    held = await committee.voted(spec, VOTES)
    first = {agent: held[agent] for agent in ("ann", "ben")}
    other = {agent: held[agent] for agent in ("ann", "cat")}
    outcomes = await committee.aggregate(spec, [first, other, first])
    assert [outcome.released for outcome in outcomes] == [[], [], []]
    errors = [outcome.error for outcome in outcomes]
    assert all(error is not None for error in errors)
    assert "COMMITTEE_DISAGREES" in {error.name for error in errors if error is not None}
    # And the attempt was the round's one aggregation.
    for outcome in await committee.aggregate(spec, [held]):
        assert outcome.error is not None and outcome.error.name == "ROUND_AGGREGATED"


# Submissions


async def test_repeating_a_submission_is_harmless_and_replacing_it_is_refused(
    committee: Committee,
) -> None:
    """Else an agent whose answer got lost could not try again, or could vote twice."""
    spec = committee.spec()
    await committee.open(spec)
    explicit = spec.explicit_rank("ann")
    seeded = next(p for rank, p in enumerate(committee.stubs) if rank != explicit)
    first, share = os.urandom(16), Share(seed=os.urandom(32))
    for _ in range(2):
        await committee.send(spec, "ann", seeded, first, share)
        assert await committee.holdings(spec, seeded) == {"ann": first}
    error = await error_of(committee.send(spec, "ann", seeded, os.urandom(16), share))
    assert error.name == "ROUND_CLOSED", error.message
    assert await committee.holdings(spec, seeded) == {"ann": first}


async def test_a_share_counts_for_the_agent_of_the_certificate(committee: Committee) -> None:
    """No field names the agent, so nobody can vote for another."""
    spec = committee.spec()
    await committee.open(spec)
    submission = await committee.submit(spec, "ben", VOTES["ben"])
    assert await committee.holdings(spec) == {"ben": submission}
    error = await error_of(
        committee.send(spec, "eve", "party-0", os.urandom(16), Share(seed=os.urandom(32)))
    )
    assert error.name == "NAME_REFUSED", error.message
    assert await committee.holdings(spec) == {"ben": submission}


@pytest.mark.parametrize(
    ("agent", "share", "header", "name"),
    [
        # ann's explicit share belongs to party 0, ben's and cat's elsewhere.
        ("ann", Share(packed=bytes(EXPLICIT_BYTES - 1)), {}, "SHARES_MALFORMED"),
        ("ann", Share(packed=bytes(EXPLICIT_BYTES + 1)), {}, "SHARES_MALFORMED"),
        ("ann", Share(seed=bytes(32)), {}, "SHARES_MALFORMED"),
        ("ben", Share(packed=bytes(EXPLICIT_BYTES)), {}, "SHARES_MALFORMED"),
        ("ben", Share(seed=bytes(31)), {}, "SHARES_MALFORMED"),
        ("ben", Share(seed=bytes(32)), {"submission_id": b"short"}, "SHARES_MALFORMED"),
        ("ben", Share(seed=bytes(32)), {"spec_digest": bytes(32)}, "SPEC_MISMATCH"),
        ("ben", Share(seed=bytes(32)), {"round_id": "elsewhere"}, "ROUND_UNKNOWN"),
    ],
)
async def test_malformed_shares_are_refused_and_not_kept(
    committee: Committee, agent: str, share: Share, header: dict[str, Any], name: str
) -> None:
    spec = committee.spec()
    await committee.open(spec)
    given = {"submission_id": os.urandom(16), **header}
    error = await error_of(committee.send(spec, agent, "party-0", b"", share, **given))
    assert error.name == name, error.message
    assert await committee.holdings(spec) == {}


async def test_a_header_takes_no_more_room_than_headers_do(
    service: Service, committee: Committee
) -> None:
    """It is kept until the upload ends, which may be at the deadline."""
    spec = committee.spec()
    await committee.open(spec)
    header = party_pb2.SubmissionHeader(
        round_id=spec.round_id, spec_digest=spec.digest, submission_id=bytes(16)
    )
    plain = party_pb2.SubmitSharesRequest(header=header).SerializeToString()
    party = spec.parties[spec.explicit_rank("ann")]
    ann, server = Identity(Role.AGENT, "ann"), Identity(Role.PARTY, party)
    async with service.channel(ann, server) as channel:
        upload = party_pb2_grpc.PartyServiceStub(channel).SubmitShares()
        await upload.write(party_pb2.SubmitSharesRequest.FromString(plain + UNKNOWN_FIELD))
        error = await error_of(upload)
    assert error.kind is ErrorKind.SHARES_MALFORMED and "too many bytes" in error.message
    await committee.abandon(spec)


async def test_an_upload_that_stops_halfway_ends_with_its_round(
    service: Service, committee: Committee
) -> None:
    """Else what it has sent would take memory for as long as the agent likes."""
    spec = committee.spec(deadline_unix_ms=int(1000 * (time.time() + 2)))
    await committee.open(spec)
    party = spec.parties[spec.explicit_rank("ann")]
    header = party_pb2.SubmissionHeader(
        round_id=spec.round_id, spec_digest=spec.digest, submission_id=bytes(16)
    )
    ann, server = Identity(Role.AGENT, "ann"), Identity(Role.PARTY, party)
    async with service.channel(ann, server) as channel:
        upload = party_pb2_grpc.PartyServiceStub(channel).SubmitShares()
        await upload.write(party_pb2.SubmitSharesRequest(header=header, packed=b"x"))
        error = await error_of(upload)
    assert error.kind is ErrorKind.SHARES_MALFORMED


async def test_nothing_is_taken_after_the_deadline(committee: Committee) -> None:
    spec = committee.spec(deadline_unix_ms=int(1000 * (time.time() + 0.5)))
    await committee.open(spec)

    async def over() -> bool:
        return spec.seconds_left() < 0

    await until(over, "the deadline passes")
    error = await error_of(committee.submit(spec, "ann", VOTES["ann"]))
    assert error.name == "ROUND_CLOSED", error.message


# Specs, and whose round it is


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"deadline_unix_ms": 1}, "SPEC_INVALID"),
        ({"deadline_unix_ms": int(1000 * (time.time() + 10**6))}, "SPEC_INVALID"),
        ({"dealer": "another"}, "NAME_REFUSED"),
        ({"parties": ["party-9"]}, "NAME_REFUSED"),
    ],
    ids=["past", "far-away", "other-dealer", "other-committee"],
)
async def test_a_party_opens_no_round_that_it_can_not_vouch_for(
    committee: Committee, changes: dict[str, Any], name: str
) -> None:
    error = await error_of(committee.open_at("party-0", committee.spec(**changes)))
    assert error.name == name, error.message


async def test_a_party_parses_the_spec_itself(committee: Committee) -> None:
    message = common_pb2.RoundSpec.FromString(committee.spec().wire)
    message.collusion = message.quorum
    for wire in (b"\xff\xff", message.SerializeToString()):
        request = party_pb2.OpenRoundRequest(spec=wire)
        error = await error_of(committee.stubs["party-0"].OpenRound(request, timeout=SECONDS))
        assert error.name == "SPEC_INVALID", error.message


async def test_an_open_round_keeps_its_spec(committee: Committee) -> None:
    spec = committee.spec()
    await committee.open(spec)
    softer = committee.spec(round_id=spec.round_id, quorum=1)
    error = await error_of(committee.open_at("party-0", softer))
    assert error.name == "SPEC_MISMATCH", error.message


async def test_a_round_obeys_the_coordinator_that_opened_it_alone(
    service: Service, committee: Committee
) -> None:
    spec = committee.spec()
    held = await committee.voted(spec, VOTES)
    other = Identity(Role.COORDINATOR, "usurper")
    async with service.channel(other, Identity(Role.PARTY, "party-0")) as channel:
        usurper = Committee(service.channel, {"party-0": party_pb2_grpc.PartyServiceStub(channel)})
        stub = usurper.stubs["party-0"]
        dealt = party_pb2.AwaitPreprocessingRequest(round_id=spec.round_id)
        held_by = party_pb2.ListHoldingsRequest(round_id=spec.round_id)
        for call in (
            stub.AwaitPreprocessing(dealt, timeout=SECONDS),
            stub.ListHoldings(held_by, timeout=SECONDS),
        ):
            assert (await error_of(call)).name == "ROUND_UNKNOWN"
        assert (await error_of(usurper.open_at("party-0", spec))).name == "SPEC_MISMATCH"
        outcome = await usurper.aggregate_at("party-0", spec, held)
        assert outcome.error is not None and outcome.error.name == "ROUND_UNKNOWN"
        request = party_pb2.AbandonRoundRequest(round_id=spec.round_id)
        await usurper.stubs["party-0"].AbandonRound(request, timeout=SECONDS)
    assert await committee.holdings(spec) == held
