"""One data folder, one process; one agent's name, one ledger and one process.

Invariants: a process that finds its folder in use ends before it opens anything there, and nothing
that the other does is disturbed; an agent that may have forgotten what it spent takes nobody's
seat, and both sides say so.
"""

from __future__ import annotations

import secrets
import shutil
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from mpc_vote.errors import ErrorKind, VoteError
from mpc_vote.pki.identity import Role
from mpc_vote.privacy.ledger import LedgerView
from mpc_vote.proto.mpcvote.v1 import label_pb2
from mpc_vote.testbed.cluster import free_ports
from tests.system.service.support import (
    Group,
    Service,
    attends,
    cancelled,
    command,
    error_of,
    ghost,
    until,
)

ROLES = {"coordinator": Role.COORDINATOR, "party-0": Role.PARTY, "north": Role.AGENT}


def data_of(service: Service, name: str) -> Path:
    return service.cluster.directory / "data" / name


def log_of(service: Service, name: str) -> str:
    return (service.cluster.directory / "logs" / f"{name}.log").read_text()


def flags(service: Service, name: str, **changes: str) -> list[str]:
    """The settings with which a role of the cluster runs, but for an address of its own."""
    cluster = service.cluster
    port, peer_port = free_ports(2)
    given = {
        "certs": str(cluster.certs(ROLES[name], name)),
        "data-dir": str(data_of(service, name)),
    }
    if name in cluster.agents:
        given |= {"coordinator": cluster.coordinator_address, **cluster.agents[name]}
    else:
        given["listen"] = f"127.0.0.1:{port}"
    if name in cluster.party_addresses:
        given["dealer"] = cluster.dealer_address
        given["peer-listen"] = f"127.0.0.1:{peer_port}"
        given["peers"] = ",".join(f"{n}={a}" for n, a in cluster.peer_addresses.items())
    else:
        given["parties"] = ",".join(f"{n}={a}" for n, a in cluster.party_addresses.items())
    return [f"--{key.replace('_', '-')}={value}" for key, value in (given | changes).items()]


async def whole(service: Service) -> None:
    async with service.client() as client:
        await until(lambda: attends(client, *service.cluster.agents), "all agents attend")
        await until(client.is_ready, "the service is ready")


async def label_with_all(service: Service, farms: Group) -> None:
    queries = farms.queries(10)
    async with service.client() as client:
        result = await client.label(queries, farms.plan(quorum=len(farms.ks)))
    assert (result.labels == farms.winners(queries)).all()


# Folders


@pytest.mark.parametrize("name", ROLES)
async def test_a_second_process_on_a_folder_ends_and_says_whose_it_is(
    fragile: Service, farms: Group, name: str
) -> None:
    pid = fragile.cluster.children[name].process.pid
    second = command(ROLES[name].value, *flags(fragile, name))
    assert second.returncode == 1
    assert f"{data_of(fragile, name)} is in use by process {pid} on " in second.stderr
    await label_with_all(fragile, farms)


async def test_a_second_coordinator_leaves_a_live_round_alone(fragile: Service) -> None:
    lone = Group(shape=(2,), classes=9, ks={}, spread=1.0)
    plan = lone.plan(quorum=1, collusion=0, request_id=f"live-{secrets.token_hex(4)}")
    async with (
        ghost(fragile, "lone", classes=9) as agent,
        fragile.client() as client,
        cancelled(client.label(lone.queries(1), plan)),
    ):
        spec = await agent.announced()
        assert command("coordinator", *flags(fragile, "coordinator")).returncode == 1
        found = await client.round(spec.round_id)
        assert found.round.state == label_pb2.ROUND_STATE_OPEN


@pytest.mark.parametrize("name", ROLES)
async def test_a_folder_is_free_as_soon_as_its_process_is_killed(
    fragile: Service, farms: Group, name: str
) -> None:
    cluster, before = fragile.cluster, len(log_of(fragile, name))
    cluster.stop_child(name, signal.SIGKILL)
    if name in cluster.agents:
        cluster.start_agent(name)
    elif name in cluster.party_addresses:
        cluster.start_party(name)
    else:
        cluster.start_coordinator()

    async def back() -> bool:
        cluster.check()
        told = log_of(fragile, name)[before:]
        return "serves on port" in told or f"attending as {name}" in told

    async def labels() -> bool:
        # Its peers may not have noticed yet that it was gone, and connect again a moment later.
        try:
            await label_with_all(fragile, farms)
        except VoteError as error:
            assert error.name.endswith("_UNREACHABLE"), error.message
            return False
        return True

    await until(back, f"{name} is back")
    await whole(fragile)
    await until(labels, "the service labels with all")


def test_a_ledger_of_somebody_else_is_refused(fragile: Service, tmp_path: Path) -> None:
    """An agent that is given another's folder must not spend from it."""
    folder = tmp_path / "data"
    folder.mkdir()
    shutil.copy(data_of(fragile, "south") / "ledger.db", folder)
    done = command("agent", *flags(fragile, "north", **{"data-dir": str(folder)}))
    assert done.returncode == 1
    assert "is the ledger of agent/south, not of agent/north" in done.stderr


# Seats


@contextmanager
def restarted(service: Service, settings: Mapping[str, str]) -> Iterator[None]:
    """The coordinator has other settings inside, and is started anew afterwards."""
    cluster = service.cluster
    plain = cluster.coordinator_settings
    for chosen in ({**plain, **settings}, plain):
        cluster.stop_child("coordinator")
        cluster.coordinator_settings = chosen
        cluster.start_coordinator()
        if chosen is not plain:
            yield


@pytest.mark.slow
async def test_an_agent_that_lost_its_ledger_takes_no_seat_until_it_is_accepted(
    fragile: Service, farms: Group, tmp_path: Path
) -> None:
    """Not even after the coordinator's restart, nor while nobody sits there."""
    cluster = fragile.cluster
    cluster.stop_child("north")
    lost = dict(cluster.agents["north"])
    fresh = tmp_path / "fresh"
    cluster.agents = {**cluster.agents, "north": {**lost, "data-dir": str(fresh)}}
    before, started = len(log_of(fragile, "coordinator")), len(log_of(fragile, "north"))

    async def told() -> bool:
        return "which is not the one known here" in log_of(fragile, "north")[started:]

    async with fragile.client() as client:
        try:
            with restarted(fragile, {}):
                cluster.start_agent("north")
                await until(told, "the agent logs why it does not attend")
                with LedgerView(fresh / "ledger.db") as ledger:
                    assert ledger.owner == "agent/north"
                warning = f"agent north announced ledger {ledger.ledger_id}, but is known by"
                assert warning in log_of(fragile, "coordinator")[before:]
                await until(lambda: attends(client, "south", "east"), "the others are back")
                assert not await attends(client, "north")
            accepted = {"accept-ledgers": f"north={ledger.ledger_id}"}
            with restarted(fragile, accepted):
                await whole(fragile)
                await label_with_all(fragile, farms)
        finally:
            cluster.stop_child("north")
            cluster.agents = {**cluster.agents, "north": lost}
            with LedgerView(data_of(fragile, "north") / "ledger.db") as ledger:
                old = {"accept-ledgers": f"north={ledger.ledger_id}"}
            with restarted(fragile, old):
                cluster.start_agent("north")
                await whole(fragile)
    await whole(fragile)


async def test_a_copy_of_an_agent_takes_no_seat_while_the_agent_sits_there(
    fragile: Service,
) -> None:
    """The same certificate and ledger, in another process."""
    before = len(log_of(fragile, "coordinator"))
    async with fragile.client() as client:
        async with ghost(fragile, "twin", classes=9):
            error = await error_of(_attend(fragile, "twin"))
            assert error.kind is ErrorKind.SEAT_TAKEN
            assert "agent twin attends already" in log_of(fragile, "coordinator")[before:]
            assert await attends(client, "twin")

        async def gone() -> bool:
            return not await attends(client, "twin")

        await until(gone, "the seat is free")
        await _attend(fragile, "twin")


async def _attend(service: Service, name: str) -> None:
    async with ghost(service, name, classes=9):
        pass


async def test_an_agent_that_says_nothing_of_its_ledger_is_turned_away(fragile: Service) -> None:
    async with ghost(fragile, "mute", classes=9):
        pass
    error = await error_of(_mute(fragile))
    assert error.kind is ErrorKind.SPEC_INVALID and "process_id" in error.message


async def _mute(service: Service) -> None:
    async with ghost(service, "mute", classes=9, process_id="not random"):
        pass
