"""The committee as one of its parties sees it: who is in it, and the connections to the others."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

import grpc

from aggregator.party.links import LinkPool, LinkServer
from aggregator.party.peers import PeerChannel
from mpc_vote.errors import ErrorKind, VoteError
from mpc_vote.transport import rpc


@dataclass(frozen=True)
class Committee:
    """Parties in rank order and their dealer, by name, with this party's connections to them: it
    dials those of higher rank, and those of lower rank dial it."""

    name: str
    parties: tuple[str, ...]
    dealer: str
    pools: Mapping[str, LinkPool]
    link_server: LinkServer
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
            self.pools,
            self.link_server,
            self.exchange_seconds,
        )

    async def answers(self) -> bool:
        """Whether all peers and the dealer answer."""
        try:
            await asyncio.gather(*map(self._reach, self._peers()))
        except VoteError:
            return False
        return await rpc.answers([self.dealer_channel])

    async def round_trips(self) -> list[float]:
        """To each peer of higher rank, in seconds: those of lower rank measure the way to it."""
        return await asyncio.gather(*(pool.round_trip() for pool in self.pools.values()))

    async def check_reach(self) -> None:
        """Refuses a round that could not be counted, before any agent spends anything on it."""
        await asyncio.gather(*map(self._reach, self._peers()), self._reach_dealer())

    def _peers(self) -> list[str]:
        return [name for name in self.parties if name != self.name]

    async def _reach(self, peer: str) -> None:
        if peer not in self.pools:
            if not await self.link_server.reached_by(peer):
                raise self._unreached(f"Party {peer}")
            return
        try:
            await self.pools[peer].ping()
        except VoteError as error:
            raise self._unreached(f"Party {peer}", error) from error

    async def _reach_dealer(self) -> None:
        try:
            await rpc.reach(self.dealer_channel, "The dealer")
        except VoteError as error:
            raise self._unreached("The dealer", error) from error

    def _unreached(self, who: str, error: VoteError | None = None) -> VoteError:
        why = f"party {self.name} has no connection to it"
        if error is not None and error.kind is ErrorKind.ENDED_BY:
            why = f"it tells party {self.name}: {error.values['why'].rstrip('.')}"
        return VoteError(ErrorKind.PARTY_UNREACHABLE, who=who, why=why)
