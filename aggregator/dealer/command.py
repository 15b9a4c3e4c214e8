"""The dealer as a process."""

from __future__ import annotations

from collections.abc import Sequence

from aggregator.dealer.servicer import DealerServicer
from aggregator.dealer.settings import DealerSettings
from aggregator.serving import serve
from mpc_vote.app import process
from mpc_vote.pki.identity import Credentials, Role
from mpc_vote.proto.mpcvote.v1 import dealer_pb2_grpc
from mpc_vote.transport import rpc


def command(arguments: Sequence[str]) -> int:
    """`mpc-vote dealer`."""
    return process.run(DealerSettings, arguments, serve_dealer)


async def serve_dealer(settings: DealerSettings) -> None:
    """Runs a dealer until it is told to stop."""
    credentials = Credentials.load(settings.certs, Role.DEALER)
    servicer = DealerServicer()
    services = [(dealer_pb2_grpc.add_DealerServiceServicer_to_server, servicer)]
    await serve(credentials, [rpc.Server(credentials, settings.listen, services, servicer.health)])
