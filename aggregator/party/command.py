"""A compute party as a process."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from aggregator.party.committee import Committee
from aggregator.party.dealer_mark import DealerMark
from aggregator.party.journal import RoundJournal
from aggregator.party.peers import PeerServicer
from aggregator.party.servicer import PartyServicer
from aggregator.party.settings import PartySettings
from aggregator.serving import dial_parties, serve
from mpc_vote.app import folder, process
from mpc_vote.app.process import CommandError
from mpc_vote.pki.identity import Credentials, Identity, Role
from mpc_vote.proto.mpcvote.v1 import party_pb2_grpc
from mpc_vote.transport import rpc


def command(arguments: Sequence[str]) -> int:
    """`mpc-vote party`."""
    return process.run(PartySettings, arguments, serve_party)


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
        peers = await dial_parties(stack, credentials, others)
        dealer_identity = Identity(Role.DEALER, settings.dealer_name)
        dealer_channel = rpc.dial(credentials, settings.dealer, dealer_identity)
        await stack.enter_async_context(dealer_channel)
        journal = stack.enter_context(
            contextlib.closing(RoundJournal(settings.data_dir / "party.db"))
        )
        peer_servicer = PeerServicer(peers)
        committee = Committee(
            name,
            tuple(settings.parties),
            settings.dealer_name,
            peers,
            peer_servicer,
            dealer_channel,
            settings.exchange_seconds,
        )
        mark = DealerMark(settings.data_dir / "dealer-caught", name)
        servicer = PartyServicer(
            committee, journal, mark, settings.pool_mib << 20, settings.deal_copies
        )
        services: list[rpc.Service] = [
            (party_pb2_grpc.add_PartyServiceServicer_to_server, servicer),
            (party_pb2_grpc.add_PeerServiceServicer_to_server, peer_servicer),
        ]
        server = rpc.Server(credentials, settings.listen, services, servicer.health)
        await serve(credentials, [server])
