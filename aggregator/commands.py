"""The server-side roles as processes: each wires its parts together, serves, and stops in good
order."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence

import grpc

from aggregator.admission import Defaults
from aggregator.archive import Archive
from aggregator.attendance import Attendance
from aggregator.dealer import DealerServicer
from aggregator.enrolment import EnrolmentServicer, RenewalServicer
from aggregator.labels import LabelServicer
from aggregator.models import ModelServicer
from aggregator.party import PartyServicer
from aggregator.peers import PeerServicer
from aggregator.rounds import RoundRunner
from aggregator.settings import CoordinatorSettings, DealerSettings, PartySettings
from aggregator.tally import Tally
from aggregator.tokens import Tokens
from mpc_vote import folder, pem, process, rpc
from mpc_vote.authority import AgentAuthority
from mpc_vote.config import ConfigError
from mpc_vote.identity import Credentials, Identity, Role
from mpc_vote.privacy.ledger import Budget, Ledger
from mpc_vote.process import CommandError
from mpc_vote.proto.mpcvote.v1 import (
    agent_pb2_grpc,
    dealer_pb2_grpc,
    enrolment_pb2_grpc,
    label_pb2_grpc,
    model_pb2_grpc,
    party_pb2_grpc,
)

log = logging.getLogger(__name__)


def dealer(arguments: Sequence[str]) -> int:
    """`mpc-vote dealer`."""
    return process.run(DealerSettings, arguments, serve_dealer)


def party(arguments: Sequence[str]) -> int:
    """`mpc-vote party`."""
    return process.run(PartySettings, arguments, serve_party)


def coordinator(arguments: Sequence[str]) -> int:
    """`mpc-vote coordinator`."""
    return process.run(CoordinatorSettings, arguments, serve_coordinator)


async def serve_dealer(settings: DealerSettings) -> None:
    """Runs a dealer until it is told to stop."""
    credentials = Credentials.load(settings.certs, Role.DEALER)
    servicer = DealerServicer()
    services = [(dealer_pb2_grpc.add_DealerServiceServicer_to_server, servicer)]
    await _serve(credentials, [rpc.Server(credentials, settings.listen, services, servicer.health)])


async def serve_party(settings: PartySettings) -> None:
    """Runs a party until it is told to stop."""
    credentials = Credentials.load(settings.certs, Role.PARTY)
    name = credentials.identity.name
    if name not in settings.parties:
        raise CommandError(
            f"the certificate names party {name}, which is not among the parties "
            f"({', '.join(settings.parties)}); use its own certificate or add it"
        )
    async with contextlib.AsyncExitStack() as stack:
        stack.enter_context(folder.held(settings.data_dir))
        others = {n: address for n, address in settings.parties.items() if n != name}
        peers = await _dial_parties(stack, credentials, others)
        dealer_identity = Identity(Role.DEALER, settings.dealer_name)
        dealer_channel = rpc.dial(credentials, settings.dealer, dealer_identity)
        await stack.enter_async_context(dealer_channel)
        tally = stack.enter_context(contextlib.closing(Tally(settings.data_dir / "party.db")))
        peer_servicer = PeerServicer(peers)
        servicer = PartyServicer(
            name,
            list(settings.parties),
            settings.dealer_name,
            tally,
            peers,
            peer_servicer,
            dealer_channel,
            settings.exchange_seconds,
            settings.pool_mib << 20,
            settings.deal_copies,
            settings.data_dir / "dealer-caught",
        )
        services: list[rpc.Service] = [
            (party_pb2_grpc.add_PartyServiceServicer_to_server, servicer),
            (party_pb2_grpc.add_PeerServiceServicer_to_server, peer_servicer),
        ]
        server = rpc.Server(credentials, settings.listen, services, servicer.health)
        # CrypTen and torch take seconds to import: before the first round, not in it.
        await asyncio.to_thread(warm_up)
        await _serve(credentials, [server])


async def serve_coordinator(settings: CoordinatorSettings) -> None:
    """Runs a coordinator until it is told to stop."""
    credentials = Credentials.load(settings.certs, Role.COORDINATOR)
    async with contextlib.AsyncExitStack() as stack:
        stack.enter_context(folder.held(settings.data_dir))
        parties = await _dial_parties(stack, credentials, settings.parties)
        archive = stack.enter_context(contextlib.closing(Archive(settings.data_dir)))
        budget = Budget(settings.budget_agent, settings.budget_instance, settings.delta)
        owner = str(credentials.identity)
        ledger = stack.enter_context(
            contextlib.closing(Ledger(settings.data_dir / "ledger.db", budget, owner))
        )
        for round_id in archive.fail_interrupted():
            log.warning("round %s was interrupted by a restart and has failed", round_id)
        for agent, accepted in settings.accept_ledgers.items():
            archive.accept_ledger(agent, accepted)
            log.info("agent %s is known by ledger %s", agent, accepted)
        attendance = Attendance(archive, settings.revoked_agents)
        runner = RoundRunner(archive, ledger, attendance, parties, settings.aggregate_seconds)
        defaults = Defaults(
            parties=tuple(settings.parties),
            dealer=settings.dealer_name,
            engine=settings.engine,
            sigma=settings.sigma,
            least_sigma=settings.least_sigma,
            delta=settings.delta,
            quorum_fraction=settings.quorum_fraction,
            collusion=settings.collusion,
            answer_seconds=settings.answer_seconds,
            least_neighbours=settings.least_neighbours,
            most_neighbours=settings.most_neighbours,
        )
        labels = LabelServicer(
            archive, ledger, attendance, runner, parties, defaults, settings.max_open_rounds
        )
        stack.push_async_callback(labels.stop)
        models = ModelServicer(archive, settings.delta)
        authority = _agent_authority(settings, credentials)
        renewal = RenewalServicer(authority, settings.revoked_agents)

        async def health() -> Mapping[str, bool]:
            return {
                **await labels.health(),
                **await models.health(),
                **await renewal.health(),
            }

        services: list[rpc.Service] = [
            (label_pb2_grpc.add_LabelServiceServicer_to_server, labels),
            (agent_pb2_grpc.add_AgentServiceServicer_to_server, attendance),
            (model_pb2_grpc.add_ModelServiceServicer_to_server, models),
            (enrolment_pb2_grpc.add_RenewalServiceServicer_to_server, renewal),
        ]

        async def close() -> None:
            # Clients hear why their rounds end, and agents need not be cut off.
            await labels.stop()
            attendance.stop()

        servers = [rpc.Server(credentials, settings.listen, services, health)]
        if settings.enrol_listen is not None:
            if authority is None:
                raise ConfigError(
                    "--agent-authority: is missing: --enrol-listen needs it to sign agents"
                )
            tokens = Tokens(settings.data_dir / "enrolment.db")
            stack.enter_context(contextlib.closing(tokens))
            servers.append(_enrolment(settings.enrol_listen, credentials, tokens, authority))
        await _serve(credentials, servers, close)


def _agent_authority(
    settings: CoordinatorSettings, credentials: Credentials
) -> AgentAuthority | None:
    """The authority for agents, if this coordinator has one."""
    if settings.agent_authority is None:
        return None
    authority = AgentAuthority.load(settings.agent_authority)
    trusted = pem.parse_certificates(credentials.ca_pem, settings.certs / "ca.pem")
    if authority.root not in trusted:
        raise CommandError(
            f"the agents' authority in {settings.agent_authority} is under another root than "
            f"{settings.certs / 'ca.pem'}, so nobody would accept its agents"
        )
    return authority


def _enrolment(
    listen: str, credentials: Credentials, tokens: Tokens, authority: AgentAuthority
) -> rpc.Server:
    """The server on which agents enrol, apart from the one that asks for certificates."""
    servicer = EnrolmentServicer(tokens, authority)
    services = [(enrolment_pb2_grpc.add_EnrolmentServiceServicer_to_server, servicer)]
    server = rpc.Server(credentials, listen, services, servicer.health, open_to_anybody=True)
    log.info("agents enrol on %s", listen)
    return server


async def _nothing() -> None:
    """Most roles have nothing to end before their server."""


async def _serve(
    credentials: Credentials,
    servers: Sequence[rpc.Server],
    close: Callable[[], Awaitable[None]] = _nothing,
) -> None:
    # What is imported stays: a collection that looks through all of it would hold calls up.
    gc.freeze()
    async with process.until_stopped() as stopped:
        for server in servers:
            await server.start()
        log.info("%s serves on port %d", credentials.identity, servers[0].port)
        try:
            await stopped.wait()
        finally:
            await close()
            await asyncio.gather(*(server.stop() for server in servers))
            log.info("%s stopped", credentials.identity)


async def _dial_parties(
    stack: contextlib.AsyncExitStack, credentials: Credentials, parties: Mapping[str, str]
) -> dict[str, grpc.aio.Channel]:
    channels: dict[str, grpc.aio.Channel] = {}
    for name, address in parties.items():
        channel = rpc.dial(credentials, address, Identity(Role.PARTY, name))
        channels[name] = await stack.enter_async_context(channel)
    return channels


def warm_up() -> None:
    """Imports what the first count would else wait for."""
    import torch

    import mpc_vote.argmax.crypten_binding  # noqa: F401

    # Parties of one machine share its cores; the tensors are small, and one thread is as fast.
    torch.set_num_threads(1)
