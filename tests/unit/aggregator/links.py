"""Certificates of a small committee, and ends of links to play a party with."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import shutil
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path

from aggregator.party.links import LinkPool, LinkServer
from aggregator.party.peers import PeerChannel
from mpc_vote.pki import tls
from mpc_vote.pki.authority import CertificateAuthority
from mpc_vote.pki.identity import Credentials, Identity, Role
from mpc_vote.proto.mpcvote.v1 import party_pb2
from mpc_vote.transport import frames, link
from mpc_vote.transport.frames import Kind
from mpc_vote.transport.link import PROTOCOL, Link

SECONDS = 30.0
"""Longer than anything here takes on a busy machine; only a failing test waits for it."""

TRIO = ("party-0", "party-1", "party-2")
CONTEXT = bytes(32)


@dataclasses.dataclass
class Certificates:
    """An authority and what it issued."""

    directory: Path

    def __post_init__(self) -> None:
        self.authority = CertificateAuthority.create(self.directory / "ca")

    def folder(self, who: Identity) -> Path:
        return self.directory / who.role / who.name

    def of(self, name: str, role: Role = Role.PARTY) -> Credentials:
        who = Identity(role, name)
        if not self.folder(who).exists():
            self.authority.issue(who, self.folder(who))
        return Credentials.load(self.folder(who))

    def renew(self, name: str) -> None:
        who = Identity(Role.PARTY, name)
        self.authority.issue(who, self.folder(who), overwrite=True)

    def revoke(self, name: str, told: str) -> None:
        """As one party hears of it."""
        self.authority.revoke(self.authority.issued_to(f"party/{name}"))
        crl = self.directory / "ca" / "crl.pem"
        shutil.copy(crl, self.folder(Identity(Role.PARTY, told)) / "crl.pem")


@contextlib.asynccontextmanager
async def answering(
    certificates: Certificates, name: str, peers: Sequence[str] | None
) -> AsyncIterator[LinkServer]:
    async with LinkServer(certificates.of(name), "127.0.0.1:0", peers) as server:
        yield server


async def dialled(server: LinkServer, context: ssl.SSLContext, name: str = "party-1") -> Link:
    """A link from the handshake on, for whoever has this context."""
    raw = Link(await link.connect(f"127.0.0.1:{server.port}"))
    try:
        async with asyncio.timeout(SECONDS):
            await raw.shake(context, Identity(Role.PARTY, name))
    except BaseException:
        raw.close()
        raise
    return raw


async def raw_link(
    certificates: Certificates, server: LinkServer, name: str = "party-0", role: Role = Role.PARTY
) -> Link:
    """The end of a party that sends what it likes to party-1."""
    return await dialled(server, tls.dialling_context(certificates.of(name, role), PROTOCOL))


def hello(session: str, context: bytes = CONTEXT, zero_seed: bytes = b"") -> bytes:
    content = party_pb2.SessionHello(session_id=session, context=context, zero_seed=zero_seed)
    return frames.encode(Kind.HELLO, content.SerializeToString())


@dataclasses.dataclass
class Party:
    """One party of a committee, with its links."""

    rank: int
    server: LinkServer
    pools: Mapping[str, LinkPool]

    async def join(
        self, session: str, context: bytes = CONTEXT, timeout: float = SECONDS
    ) -> PeerChannel:
        return await PeerChannel.open(
            session, context, TRIO, self.rank, self.pools, self.server, timeout
        )


@contextlib.asynccontextmanager
async def committee(certificates: Certificates) -> AsyncIterator[list[Party]]:
    """Three parties that dial each other."""
    async with contextlib.AsyncExitStack() as stack:
        servers = {
            name: await stack.enter_async_context(answering(certificates, name, TRIO[:rank]))
            for rank, name in enumerate(TRIO)
        }
        parties = []
        for rank, name in enumerate(TRIO):
            pools = {}
            for peer in TRIO[rank + 1 :]:
                address = f"127.0.0.1:{servers[peer].port}"
                pool = LinkPool(certificates.of(name), address, peer)
                pools[peer] = await stack.enter_async_context(pool)
            parties.append(Party(rank, servers[name], pools))
        yield parties


async def joined(parties: Sequence[Party], session: str) -> list[PeerChannel]:
    return await asyncio.gather(*(party.join(session) for party in parties))


async def until(test: Callable[[], bool], what: str) -> None:
    try:
        async with asyncio.timeout(SECONDS):
            while not test():
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise AssertionError(f"this did not happen: {what}") from None


async def in_threads(*work: Callable[[], Sequence[bytes]]) -> list[Sequence[bytes]]:
    """What computing threads do, at once."""
    threads: list[Awaitable[Sequence[bytes]]] = [asyncio.to_thread(one) for one in work]
    return await asyncio.wait_for(asyncio.gather(*threads), SECONDS)
