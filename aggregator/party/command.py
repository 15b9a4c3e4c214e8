"""A compute party as a process."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from aggregator.party.committee import Committee
from aggregator.party.dealer_mark import DealerMark
from aggregator.party.journal import RoundJournal
from aggregator.party.links import LinkPool, LinkServer
from aggregator.party.servicer import PartyServicer
from aggregator.party.settings import PartySettings
from aggregator.party.stock import Stock
from aggregator.serving import serve
from mpc_vote.app import folder, process
from mpc_vote.app.process import CommandError
from mpc_vote.pki.identity import Credentials, Identity, Role
from mpc_vote.proto.mpcvote.v1 import party_pb2_grpc
from mpc_vote.transport import rpc


def command(arguments: Sequence[str]) -> int:
    """`mpc-vote party`."""
    process.keep_freed_memory()
    return process.run(PartySettings, arguments, serve_party)


async def serve_party(settings: PartySettings) -> None:
    """Runs a party until it is told to stop."""
    credentials = Credentials.load(settings.certs, Role.PARTY)
    name = credentials.identity.name
    parties = tuple(settings.peers)
    if name not in parties:
        raise CommandError(
            f"the certificate names party {name}, which is not among the parties "
            f"({', '.join(parties)}); use its own certificate or add it"
        )
    rank = parties.index(name)
    async with contextlib.AsyncExitStack() as stack:
        stack.enter_context(folder.held(settings.data_dir))
        server = LinkServer(credentials, settings.peer_listen, parties[:rank])
        link_server = await stack.enter_async_context(server)
        pools = {
            peer: LinkPool(credentials, settings.peers[peer], peer) for peer in parties[rank + 1 :]
        }
        for pool in pools.values():
            await stack.enter_async_context(pool)
        dealer_identity = Identity(Role.DEALER, settings.dealer_name)
        dealer_channel = rpc.dial(credentials, settings.dealer, dealer_identity)
        await stack.enter_async_context(dealer_channel)
        journal = stack.enter_context(
            contextlib.closing(RoundJournal(settings.data_dir / "party.db"))
        )
        committee = Committee(
            name,
            parties,
            settings.dealer_name,
            pools,
            link_server,
            dealer_channel,
            settings.exchange_seconds,
        )
        mark = DealerMark(settings.data_dir / "dealer-caught", name)
        stock = Stock(settings.stock_mib << 20, settings.stock_seconds)
        servicer = PartyServicer(
            committee, journal, mark, settings.pool_mib << 20, settings.deal_copies, stock
        )
        services = [(party_pb2_grpc.add_PartyServiceServicer_to_server, servicer)]
        await serve(
            credentials, [rpc.Server(credentials, settings.listen, services, servicer.health)]
        )
