"""The committee as one of its parties sees it: who is in it, and the connections to the others."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

import grpc

from aggregator.party.peers import PeerChannel, PeerServicer
from mpc_vote.errors import ErrorKind, VoteError
from mpc_vote.transport import rpc


@dataclass(frozen=True)
class Committee:
    """Parties in rank order and their dealer, by name, with this party's channels to them."""

    name: str
    parties: tuple[str, ...]
    dealer: str
    peers: Mapping[str, grpc.aio.Channel]
    peer_servicer: PeerServicer
    dealer_channel: grpc.aio.Channel
    exchange_seconds: float

    @property
    def rank(self) -> int:
        """Of this party."""
        return self.parties.index(self.name)

    @property
    def is_last(self) -> bool:
        """Whether corrections are this party's."""
        return self.rank == len(self.parties) - 1

    async def join(self, session_id: str, context: bytes) -> PeerChannel:
        """A channel to all peers for a session, once all agree on its context."""
        return await PeerChannel.open(
            session_id,
            context,
            self.parties,
            self.rank,
            self.peers,
            self.peer_servicer,
            self.exchange_seconds,
        )

    async def answers(self) -> bool:
        """Whether all peers and the dealer answer."""
        return await rpc.answers([*self.peers.values(), self.dealer_channel])

    async def round_trips(self) -> list[float]:
        """To each peer, in seconds."""
        return await asyncio.gather(*(rpc.round_trip(peer) for peer in self.peers.values()))

    async def check_reach(self) -> None:
        """Refuses a round that could not be counted, before any agent spends anything on it."""
        others = {f"Party {name}": channel for name, channel in self.peers.items()}
        others["The dealer"] = self.dealer_channel
        await asyncio.gather(*(self._reach(*other) for other in others.items()))

    async def _reach(self, who: str, channel: grpc.aio.Channel) -> None:
        try:
            await rpc.reach(channel, who)
        except VoteError as error:
            why = f"party {self.name} has no connection to it"
            if error.kind is ErrorKind.ENDED_BY:
                why = f"it tells party {self.name}: {error.values['why'].rstrip('.')}"
            raise VoteError(ErrorKind.PARTY_UNREACHABLE, who=who, why=why) from error
