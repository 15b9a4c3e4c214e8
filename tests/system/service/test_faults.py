"""Processes die, freeze and come back; the service loses nothing and needs no other restart.

Invariants: a round ends either complete or failed with a reason that names who is missing; no
recorded spend is ever lost; the next round works once the dead process is back, without touching
any other.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import socket
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from agent_node.policy import Policy
from agent_node.serving import Serving
from agent_node.settings import AgentSettings
from mpc_vote.app import config
from mpc_vote.client import AsyncLabelClient, LabelResult, Progress
from mpc_vote.errors import ErrorKind, VoteError
from mpc_vote.pki.identity import Identity, Role
from mpc_vote.privacy.ledger import Ledger
from mpc_vote.proto.mpcvote.v1 import (
    common_pb2,
    label_pb2,
    party_pb2,
    party_pb2_grpc,
)
from mpc_vote.transport import rpc
from mpc_vote.voting.ballots import ONE_HOT
from mpc_vote.voting.spec import Spec
from tests.system.service.support import (
    SECONDS,
    Group,
    Service,
    attends,
    cancelled,
    error_of,
    ghost,
    refused,
    until,
)

COORDINATOR = Identity(Role.COORDINATOR, "coordinator")
FREE, PAID = "Nothing was spent.", "stays charged: epsilon "


@contextlib.contextmanager
def frozen(service: Service, name: str) -> Iterator[None]:
    """The process holds its connections and does nothing inside."""
    process = psutil.Process(service.cluster.children[name].process.pid)
    process.suspend()
    try:
        yield
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.resume()


def kill(service: Service, name: str) -> None:
    service.cluster.stop_child(name, signal.SIGKILL)


async def whole(service: Service) -> None:
    """Waits until the service can label with all agents again."""
    async with service.client() as client:
        await until(lambda: attends(client, *service.cluster.agents), "all agents attend")
        await until(client.is_ready, "the service is ready")


async def serving(service: Service, server: Identity, name: str) -> bool:
    async with service.channel(Identity(Role.CLIENT, "client"), server) as channel:
        return await rpc.is_serving(channel, f"mpcvote.v1.{name}")


async def stops_serving(service: Service, server: Identity, name: str) -> None:
    async def stopped() -> bool:
        return not await serving(service, server, name)

    await until(stopped, f"{server} says that {name} does not serve")


async def misses_its_dealer(service: Service) -> None:
    """Waits until all have noticed: till then, being ready says nothing of the dealer's return."""
    for party in service.cluster.party_addresses:
        await stops_serving(service, Identity(Role.PARTY, party), "PartyService")
    await stops_serving(service, COORDINATOR, "LabelService")


async def label_with_all(service: Service, farms: Group) -> LabelResult:
    """A request that needs every agent, and is answered right."""
    queries = farms.queries(10)
    async with service.client() as client:
        result = await client.label(queries, farms.plan(quorum=3))
    assert (result.labels == farms.winners(queries)).all()
    return result


@contextlib.asynccontextmanager
async def preparing(
    client: AsyncLabelClient, farms: Group, agents: int, **plan: object
) -> AsyncIterator[asyncio.Task[LabelResult]]:
    """A request for which exactly this many agents are prepared so far."""
    reached = asyncio.Event()

    async def follow() -> LabelResult:
        async for event in client.stream(farms.queries(10), farms.plan(**plan)):
            if isinstance(event, LabelResult):
                return event
            assert isinstance(event, Progress)
            if event.stage == "preparing" and event.done == agents:
                reached.set()
        raise AssertionError("no result")

    task = asyncio.create_task(follow())
    waiting = asyncio.create_task(reached.wait())
    await asyncio.wait({task, waiting}, timeout=SECONDS, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    assert reached.is_set(), task
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


# Agents


async def test_a_killed_agent_is_missed_and_rejoins_by_itself(
    fragile: Service, farms: Group
) -> None:
    kill(fragile, "north")
    async with fragile.client() as client:

        async def gone() -> bool:
            return not await attends(client, "north")

        await until(gone, "its death is noticed")
        queries = farms.queries(10)
        result = await client.label(queries, farms.plan(quorum=2))
        assert (result.labels == farms.winners(queries, agents=["south", "east"])).all()
        with refused(ErrorKind.QUORUM_RANGE, "3 does not fit 2 agents"):
            await client.label(queries, farms.plan(quorum=3))
    fragile.cluster.start_agent("north")
    await whole(fragile)
    await label_with_all(fragile, farms)


async def test_an_agent_whose_second_stream_ends_is_heard_on_its_first(fragile: Service) -> None:
    """A process that takes over its own seat, and fails at it, must not fall silent for ever."""
    async with fragile.client() as client:

        async def answers(classes: int) -> bool:
            agents = (await client.service()).agents
            return [agent.offer.classes for agent in agents if agent.agent == "mover"] == [classes]

        async with ghost(fragile, "mover", classes=8, process_id="0" * 32):
            async with ghost(fragile, "mover", classes=9, process_id="0" * 32):
                await until(lambda: answers(9), "the second stream is the one that counts")
            await until(lambda: answers(8), "the first one counts again")


async def test_an_agent_that_dies_in_a_round_is_named_and_not_waited_for(
    fragile: Service, farms: Group
) -> None:
    queries = farms.queries(10)
    async with fragile.client() as client:
        with frozen(fragile, "north"):
            async with preparing(client, farms, 2, quorum=2, answer_seconds=3_000) as task:
                assert not task.done(), "an agent that is here is waited for"
                kill(fragile, "north")
                result = await asyncio.wait_for(task, SECONDS)
    assert (result.labels == farms.winners(queries, agents=["south", "east"])).all()
    assert result.contributors == 2
    assert result.absences.keys() == {"north"}
    assert result.absences["north"] == "had not answered when the round ended"
    fragile.cluster.start_agent("north")
    await whole(fragile)


async def test_a_round_below_its_quorum_fails_at_the_deadline_and_says_who_is_missing(
    fragile: Service, farms: Group
) -> None:
    async with fragile.client() as client:
        with frozen(fragile, "north"):
            async with preparing(client, farms, 2, quorum=3, answer_seconds=2) as task:
                with refused(
                    ErrorKind.QUORUM_MISSED,
                    "2 of 3 needed agents",
                    "north: had not answered when the round ended",
                ):
                    await asyncio.wait_for(task, SECONDS)
        failed = (await client.rounds())[-1]
        assert failed.state == label_pb2.ROUND_STATE_FAILED
        assert "QUORUM_MISSED" in failed.reason
        assert failed.round_id not in [s.round_id for s in fragile.spends()], "nothing was spent"
    # The agent wakes to a round that is over, and answers the next one.
    await label_with_all(fragile, farms)


async def test_an_agents_refusal_reaches_the_client(service: Service, labs: Group) -> None:
    """Agents decide for themselves; the client learns who did not take part, and why."""
    queries = labs.queries(12)
    async with (
        service.extra_agent("miser", labs, budget_instance="0.001", k="9"),
        service.extra_agent("hasty", labs, max_queries="11", k="9"),
        service.client() as client,
    ):
        result = await client.label(queries, labs.plan(sigma=0.5, quorum=2))
        assert (result.labels == labs.winners(queries)).all()
        assert result.contributors == 2
        assert result.absences.keys() == {"miser", "hasty"}
        assert result.absences["miser"].startswith("BUDGET_EXHAUSTED: The instance-level")
        assert "12 queries are over the limit of 11" in result.absences["hasty"]
        # With two of four out, three can't be had: the round ends before its deadline.
        with refused(ErrorKind.QUORUM_UNAFFORDABLE, "miser: BUDGET_EXHAUSTED", "hasty"):
            await client.label(queries, labs.plan(sigma=0.5, quorum=3))


async def test_an_agent_that_wants_more_noise_is_left_out(service: Service, labs: Group) -> None:
    async with (
        service.extra_agent("wary", labs, min_sigma="7", k="9"),
        service.client() as client,
    ):
        rosters = []
        for sigma in (0.5, 7.0):
            result = await client.label(labs.queries(3), labs.plan(sigma=sigma, quorum=2))
            assert result.spec is not None
            rosters.append({entry.agent for entry in result.spec.roster})
    assert rosters == [{"lab-0", "lab-1"}, {"lab-0", "lab-1", "wary"}]


REFUSED_SPECS: dict[str, tuple[dict[str, Any], str]] = {
    "too little noise": ({"sigma": 1.0}, "SIGMA_BELOW_POLICY"),
    "too small a quorum": ({"quorum": 1, "collusion": 0}, "POLICY_REFUSED"),
    "too few colluding": ({"collusion": 0}, "POLICY_REFUSED"),
    "too many queries": ({"queries": 51}, "POLICY_REFUSED"),
    "another committee": ({"parties": ["party-0", "party-9"]}, "POLICY_REFUSED"),
    "another dealer": ({"dealer": "friend"}, "POLICY_REFUSED"),
    "another k": ({"roster": [("me", 6), ("you", 5), ("they", 5)]}, "POLICY_REFUSED"),
    "not on the roster": ({"roster": [("you", 5), ("they", 5), ("we", 5)]}, "POLICY_REFUSED"),
    "other classes": ({"classes": 4}, "POLICY_REFUSED"),
    "other queries": ({"query_shape": [9]}, "POLICY_REFUSED"),
    "a past deadline": ({"deadline_unix_ms": 1}, "POLICY_REFUSED"),
}


@pytest.mark.parametrize("case", [*REFUSED_SPECS, "nothing"])
def test_an_agent_believes_its_own_settings_and_no_coordinator(case: str, tmp_path: Path) -> None:
    """A coordinator that ignores what an agent announced gets nothing out of it."""
    changes, name = REFUSED_SPECS.get(case, ({}, ""))
    given: dict[str, Any] = {
        "round_id": "round",
        "queries_digest": bytes(32),
        "queries": 50,
        "query_dtype": common_pb2.DTYPE_FLOAT32,
        "query_shape": [5],
        "classes": 3,
        "ballot": common_pb2.BALLOT_KIND_KNN_COUNT,
        "fraction_bits": 4,
        "sigma": 2.0,
        "roster": [("me", 5), ("you", 5), ("they", 5)],
        "quorum": 3,
        "collusion": 1,
        "parties": ["party-0", "party-1"],
        "dealer": "dealer",
        "engine": common_pb2.ENGINE_CRYPTEN_PAIRWISE,
        "ring_bits": 64,
        "deadline_unix_ms": int(1000 * (time.time() + 60)),
        **changes,
    }
    given["roster"] = [common_pb2.RosterEntry(agent=a, k=k) for a, k in given["roster"]]
    spec = Spec.seal(common_pb2.RoundSpec(**given))
    settings = config.load(
        AgentSettings,
        [
            "--certs=x",
            "--data=x",
            "--data-dir=x",
            "--coordinator=h:1",
            "--parties=party-0=h:1,party-1=h:1",
            "--min-sigma=2",
            "--min-quorum=2",
            "--min-collusion=1",
            "--max-queries=50",
        ],
    )
    offer = common_pb2.Offer(
        classes=3,
        query_dtype=common_pb2.DTYPE_FLOAT32,
        query_shape=[5],
        ballots=[common_pb2.BALLOT_KIND_KNN_COUNT],
        k=5,
    )
    nobody: Any = None
    serving = Serving(offer, nobody, "knn")
    with Ledger(tmp_path / "ledger.db", None) as ledger:
        policy = Policy("me", settings, ledger)
        if not name:
            policy.check(spec, serving)
            policy.charge(spec)
            with refused(ErrorKind.POLICY_REFUSED, "it was answered before"):
                policy.charge(spec)
            return
        with pytest.raises(VoteError) as caught:
            policy.check(spec, serving)
        assert caught.value.name == name, caught.value.message
        assert not ledger.spends()


# Parties and the dealer


def party_spec(service: Service) -> bytes:
    """A round that the test opens by hand."""
    message = common_pb2.RoundSpec(
        round_id=secrets.token_hex(16),
        queries_digest=bytes(32),
        queries=1,
        query_dtype=common_pb2.DTYPE_FLOAT32,
        query_shape=[2],
        classes=2,
        ballot=common_pb2.BALLOT_KIND_ONE_HOT,
        fraction_bits=4,
        sigma=1.0,
        roster=[common_pb2.RosterEntry(agent="ann")],
        quorum=1,
        parties=service.cluster.party_addresses,
        dealer="dealer",
        engine=common_pb2.ENGINE_CRYPTEN_PAIRWISE,
        ring_bits=64,
        deadline_unix_ms=int(1000 * (time.time() + 600)),
    )
    return Spec.seal(message).wire


async def open_by_hand(service: Service, party: Identity, spec: bytes) -> None:
    async with service.channel(COORDINATOR, party) as channel:
        stub = party_pb2_grpc.PartyServiceStub(channel)
        await stub.OpenRound(party_pb2.OpenRoundRequest(spec=spec), timeout=SECONDS)


async def test_a_party_that_dies_fails_the_round_by_name_and_comes_back_alone(
    fragile: Service, farms: Group
) -> None:
    survivor, victim = Identity(Role.PARTY, "party-0"), Identity(Role.PARTY, "party-1")
    spec = party_spec(fragile)
    await open_by_hand(fragile, victim, spec)
    async with fragile.client() as client:
        # In the middle of a round, of which nothing comes: it fails, the charge stays.
        lone = Group(shape=(2,), classes=9, ks={}, spread=1.0)
        plan = lone.plan(quorum=1, collusion=0)
        async with ghost(fragile, "ghost", classes=9) as agent:
            asked = asyncio.create_task(client.label(np.zeros((1, 2), np.float32), plan))
            round_id = (await agent.announced()).round_id
            await agent.prepare(round_id)
            kill(fragile, "party-1")
            await agent.decline(round_id)
        with refused(ErrorKind.PARTY_UNREACHABLE, "Party party-1 does not answer", PAID):
            await asyncio.wait_for(asked, SECONDS)
        failed = (await client.rounds())[-1]
        assert failed.state == label_pb2.ROUND_STATE_FAILED
        assert "party-1" in failed.reason
        charged = fragile.spends()
        assert charged[-1].round_id == failed.round_id
        # While it is dead: refused before anything is charged, and health says so.
        with refused(ErrorKind.PARTY_UNREACHABLE, "Party party-1 does not answer", FREE):
            await client.label(farms.queries(5), farms.plan())
        assert fragile.spends() == charged
        await stops_serving(fragile, COORDINATOR, "LabelService")
        await stops_serving(fragile, survivor, "PartyService")
        await stops_serving(fragile, COORDINATOR, "AgentService")
    fragile.cluster.start_party("party-1")
    await whole(fragile)
    assert await serving(fragile, survivor, "PartyService")
    await label_with_all(fragile, farms)
    # It has forgotten the shares, and remembers that it ever took that round.
    error = await error_of(open_by_hand(fragile, victim, spec))
    assert error.name == "ROUND_SPENT", error.message


async def test_without_the_dealer_nothing_is_spent_and_its_return_is_enough(
    fragile: Service, farms: Group
) -> None:
    kill(fragile, "dealer")
    charged = fragile.spends()
    await misses_its_dealer(fragile)
    async with fragile.client() as client:
        with refused(ErrorKind.PARTY_UNREACHABLE, "The dealer does not answer", FREE):
            await client.label(farms.queries(5), farms.plan())
    assert fragile.spends() == charged
    fragile.cluster.start_dealer()
    await whole(fragile)
    await label_with_all(fragile, farms)


@pytest.mark.slow
async def test_a_dealer_that_stands_still_or_dies_fails_rounds_by_name_and_they_cost_nothing(
    fragile: Service, farms: Group
) -> None:
    charged = fragile.spends()
    async with fragile.client() as client:
        with (
            frozen(fragile, "dealer"),
            refused(ErrorKind.PARTY_UNREACHABLE, "The dealer does not answer", FREE),
        ):
            await client.label(farms.queries(10), farms.plan())
        kill(fragile, "dealer")
        with refused(ErrorKind.PARTY_UNREACHABLE, "The dealer does not answer", FREE):
            await client.label(farms.queries(10), farms.plan())
    assert fragile.spends() == charged
    await misses_its_dealer(fragile)
    fragile.cluster.start_dealer()
    await whole(fragile)
    await label_with_all(fragile, farms)


# The coordinator


async def test_a_coordinator_that_dies_in_a_round_fails_it_and_keeps_the_charge(
    fragile: Service, farms: Group
) -> None:
    """The only agent that can answer has been told to send, and never does."""
    lone = Group(shape=(2,), classes=9, ks={}, spread=1.0)
    queries = np.zeros((1, 2), np.float32)
    plan = lone.plan(quorum=1, collusion=0, request_id="interrupted")
    async with (
        ghost(fragile, "ghost", classes=9) as agent,
        fragile.client() as client,
        cancelled(client.label(queries, plan)) as task,
    ):
        interrupted = (await agent.announced()).round_id
        assert interrupted not in [spend.round_id for spend in fragile.spends()]
        await agent.prepare(interrupted)
        kill(fragile, "coordinator")
        with refused(ErrorKind.COORDINATOR_UNREACHABLE, "The coordinator at", "does not answer"):
            await asyncio.wait_for(task, SECONDS)
    charged = fragile.spends()
    assert charged[-1].round_id == interrupted
    fragile.cluster.start_coordinator()
    await whole(fragile)
    async with fragile.client() as client:
        found = (await client.round(interrupted)).round
        assert found.state == label_pb2.ROUND_STATE_FAILED
        assert "restarted" in found.reason
        # Asking again under the same name tells so, and is not a second round.
        with refused(ErrorKind.ROUND_FAILED, "restarted"):
            await client.label(queries, plan)
    assert fragile.spends() == charged
    await label_with_all(fragile, farms)


async def test_an_unprepared_quorum_costs_nobody_anything(fragile: Service) -> None:
    """One of two is prepared, the other refuses: neither is told to send, nothing is charged."""
    pair = Group(shape=(2,), classes=8, ks={}, spread=1.0)
    before = fragile.spends()
    async with (
        ghost(fragile, "willing", classes=8) as willing,
        ghost(fragile, "unwilling", classes=8) as unwilling,
        fragile.client() as client,
        cancelled(client.label(np.zeros((1, 2), np.float32), pair.plan(quorum=2))) as task,
    ):
        spec = await willing.announced()
        await unwilling.announced()
        await unwilling.decline(spec.round_id, "its budget is spent")
        with refused(ErrorKind.QUORUM_MISSED, "Nothing was spent", "its budget is spent"):
            await asyncio.wait_for(task, SECONDS)
    assert fragile.spends() == before


async def test_a_round_that_fails_uncharged_gives_promised_budgets_back(
    fragile: Service, farms: Group
) -> None:
    """The agent's budget is for either round; the first fails long before its deadline."""
    loners = replace(farms, classes=4)
    vote = {
        "sigma": 25.0,
        "ballot": ONE_HOT,
        "collusion": 0,
        "answer_seconds": 60,
        "agreement": None,
    }
    async with (
        fragile.extra_agent("keeper", loners, voter="network", budget_instance="2.35"),
        fragile.client() as client,
    ):
        async with (
            ghost(fragile, "ghost", classes=loners.classes, shape=loners.shape) as agent,
            preparing(client, loners, 1, quorum=2, **vote) as task,
        ):
            await agent.decline((await agent.announced()).round_id)
            with refused(ErrorKind.QUORUM_MISSED, "Nothing was spent"):
                await asyncio.wait_for(task, SECONDS)
        result = await client.label(loners.queries(100), loners.plan(quorum=1, **vote))
        assert result.contributors == 1
        with refused(ErrorKind.QUORUM_UNAFFORDABLE, "BUDGET_EXHAUSTED"):
            await client.label(loners.queries(10), loners.plan(quorum=1, **vote))


async def test_a_coordinator_that_is_stopped_tells_its_clients(
    fragile: Service, farms: Group
) -> None:
    coordinator = fragile.cluster.children["coordinator"]
    async with fragile.client() as client:
        with frozen(fragile, "north"):
            async with preparing(client, farms, 2, quorum=3) as task:
                coordinator.process.send_signal(signal.SIGTERM)
                with refused(ErrorKind.SHUTTING_DOWN, "The coordinator is shutting down"):
                    await asyncio.wait_for(task, SECONDS)
    await asyncio.to_thread(coordinator.process.wait, SECONDS)
    fragile.cluster.stop_child("coordinator")
    assert coordinator.process.returncode == 0, coordinator.last_words()
    assert "Traceback" not in coordinator.log.read_text()
    fragile.cluster.start_coordinator()
    await whole(fragile)
    await label_with_all(fragile, farms)


# The end


STOPPED_BY = {
    "dealer": signal.SIGINT,
    "party-0": signal.SIGTERM,
    "party-1": signal.SIGINT,
    "coordinator": signal.SIGTERM,
    "north": signal.SIGINT,
    "south": signal.SIGTERM,
}


async def test_every_role_stops_in_good_order_and_nothing_is_left(
    fragile: Service, farms: Group
) -> None:
    """Then all of them start again, for whoever comes after."""
    await whole(fragile)
    cluster = fragile.cluster
    children = dict(cluster.children)
    for name, number in STOPPED_BY.items():
        cluster.stop_child(name, number)
    cluster.stop()
    for name, child in children.items():
        assert child.process.returncode == 0, f"{name}: {child.last_words()}"
        assert "Traceback" not in child.log.read_text().rpartition(" stopped")[2], name
    assert not cluster.children
    assert not [child for child in children.values() if psutil.pid_exists(child.process.pid)]
    addresses = [cluster.coordinator_address, cluster.dealer_address]
    for address in [*addresses, *cluster.party_addresses.values()]:
        host, _, port = address.rpartition(":")
        with socket.socket() as one:
            assert one.connect_ex((host, int(port))) != 0, address
    mine = {process.pid for process in psutil.Process(os.getpid()).children(recursive=True)}
    assert not mine & {child.process.pid for child in children.values()}
    assert np.isfinite(cluster.peak_memory_bytes) and cluster.peak_memory_bytes > 0
    cluster.start()
    await whole(fragile)
