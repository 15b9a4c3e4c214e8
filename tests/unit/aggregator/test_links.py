"""Links between parties: who gets one, for how long, and what a hostile peer can't do with it.

The tests play hostile parties against the real ends. Invariants: both ends know who the other is by
its certificate; nothing of a session is delivered before all agree on it; no peer takes another's
place, memory without bound, or longer than its time; what a peer says is quoted as its own word.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import ssl
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from aggregator.party import links
from aggregator.party.links import LinkPool, LinkServer
from aggregator.party.peers import PeerChannel
from mpc_vote.errors import ErrorKind, VoteError
from mpc_vote.mpc.channel import zero_share
from mpc_vote.pki import tls
from mpc_vote.pki.identity import Role
from mpc_vote.transport import frames
from mpc_vote.transport.frames import Kind
from mpc_vote.transport.link import PROTOCOL, Link, LinkError
from tests.system.service.support import refused
from tests.unit.aggregator.links import (
    CONTEXT,
    SECONDS,
    TRIO,
    Certificates,
    answering,
    committee,
    dialled,
    hello,
    in_threads,
    joined,
    raw_link,
    until,
)

PAIR = TRIO[:2]
SEED = bytes(range(32))


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("links"))


@pytest.fixture
def own_certificates(tmp_path: Path) -> Certificates:
    """For tests that replace or revoke some."""
    return Certificates(tmp_path)


@pytest.fixture
async def server(certificates: Certificates) -> AsyncIterator[LinkServer]:
    """Party 1 of two."""
    async with answering(certificates, "party-1", ["party-0"]) as one:
        yield one


async def second(server: LinkServer, session: str = "s", timeout: float = SECONDS) -> PeerChannel:
    """The session of party 1 of two."""
    return await PeerChannel.open(session, CONTEXT, PAIR, 1, {}, server, timeout)


@contextlib.asynccontextmanager
async def pool_to(certificates: Certificates, server: LinkServer) -> AsyncIterator[LinkPool]:
    address = f"127.0.0.1:{server.port}"
    async with LinkPool(certificates.of("party-0"), address, "party-1") as pool:
        yield pool


async def error_on(raw: Link) -> VoteError:
    """What the other end says when it ends a link."""
    frame = await asyncio.wait_for(raw.receive(), SECONDS)
    assert frame.kind is Kind.ERROR
    raw.close()
    return VoteError.quoted_status(frame.content, "It")


# Sessions


async def test_everybody_gets_what_everybody_sends(certificates: Certificates) -> None:
    async with committee(certificates) as parties:
        channels = await joined(parties, "session")
        for size in (0, 1, 40_000):
            payloads = [bytes([rank]) * size for rank in range(3)]
            work = [
                functools.partial(channel.exchange, payload)
                for channel, payload in zip(channels, payloads, strict=True)
            ]
            assert await in_threads(*work) == [payloads] * 3
        shares = [zero_share(channel, 5) for channel in channels]
        assert not (shares[0] + shares[1] + shares[2]).any()
        traffic = channels[0].traffic
        assert (traffic.rounds, traffic.bytes_sent) == (3, 2 * 40_001)
        assert traffic.frame_bytes_sent == traffic.bytes_sent + 6 * frames.HEADER_BYTES
        for channel in channels:
            await channel.finish()


async def test_payloads_larger_than_any_buffer_hold_nobody_up(certificates: Certificates) -> None:
    """All send before they read: who wrote on until all is sent would wait for ever."""
    payloads = [os.urandom(6 << 20) for _ in TRIO]
    async with committee(certificates) as parties:
        channels = await joined(parties, "session")
        pairs = zip(channels, payloads, strict=True)
        work = [functools.partial(channel.exchange, payload) for channel, payload in pairs]
        assert await in_threads(*work) == [payloads] * 3
        for channel in channels:
            channel.close()


async def test_a_link_serves_one_session_after_the_other(certificates: Certificates) -> None:
    """A round pays for no handshake; sessions at the same time have links of their own."""
    async with committee(certificates) as parties:
        used = set()
        pools = [pool for party in parties for pool in party.pools.values()]
        for number in range(3):
            channels = await joined(parties, f"session-{number}")
            await in_threads(*(functools.partial(c.exchange, b"word") for c in channels))
            used |= {lease.link for channel in channels for lease in channel._leases.values()}
            for channel in channels:
                await channel.finish()
                channel.close()
            await until(lambda: all(len(pool._idle) == 1 for pool in pools), "links are kept")
        assert len(used) == 6
        both = [await joined(parties, name) for name in ("one", "other")]
        assert len({lease.link for cs in both for c in cs for lease in c._leases.values()}) == 12
        for channel in (*both[0], *both[1]):
            channel.close()


async def test_a_session_that_was_broken_off_leaves_nothing_to_the_next(
    certificates: Certificates,
) -> None:
    """Else a payload of one session could be taken for one of another."""
    async with committee(certificates) as parties:
        broken = await joined(parties, "broken")
        send = functools.partial(broken[0].exchange, b"of the broken one")
        waiting = asyncio.ensure_future(asyncio.to_thread(send))
        await asyncio.sleep(0.05)
        for channel in broken:
            channel.close()
        with refused(ErrorKind.PARTY_UNREACHABLE):
            await waiting
        channels = await joined(parties, "next")
        assert not {lease.link for c in broken for lease in c._leases.values()} & {
            lease.link for c in channels for lease in c._leases.values()
        }
        heard = await in_threads(*(functools.partial(c.exchange, b"next") for c in channels))
        assert heard == [[b"next"] * 3] * 3
        for channel in channels:
            channel.close()


async def test_a_party_that_is_done_first_takes_no_frame_back(certificates: Certificates) -> None:
    """The slower party reads its last frame after the faster one has ended the session."""
    async with (
        answering(certificates, "party-1", PAIR) as server,
        pool_to(certificates, server) as pool,
    ):
        fast, slow = await asyncio.gather(
            PeerChannel.open("s", CONTEXT, PAIR, 0, {"party-1": pool}, server, SECONDS),
            second(server),
        )
        ended = asyncio.Event()

        async def finish_first() -> None:
            await asyncio.to_thread(fast.exchange, b"x")
            await fast.finish()
            fast.close()
            ended.set()

        first = asyncio.create_task(finish_first())
        lent = slow._leases[0].link
        # It sends its own, and reads only once the other has left.
        await lent.send(frames.encode(Kind.PAYLOAD, b"y"))
        await asyncio.wait_for(ended.wait(), SECONDS)
        assert (await lent.receive(payload=1)).content == b"x"
        assert (await lent.receive()).kind is Kind.END
        await first
        slow.close()


@pytest.mark.parametrize("what", ["context", "session", "seed"])
async def test_nothing_is_delivered_before_all_agree(
    certificates: Certificates, server: LinkServer, what: str
) -> None:
    opening = asyncio.create_task(second(server))
    raw = await raw_link(certificates, server)
    context = bytes(31) + b"x" if what == "context" else CONTEXT
    await raw.send(hello("s", context, b"" if what == "seed" else SEED))
    if what == "session":
        # It is not who the session waits for, and has no part in it.
        opening.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await opening
    else:
        with refused(ErrorKind.COMMITTEE_DISAGREES, "rank 0"):
            await opening
    raw.close()


# Who is at the other end


async def test_a_link_counts_for_the_party_of_the_certificate(certificates: Certificates) -> None:
    """A party of other sessions knows this one's id, and still is not who it waits for."""
    async with answering(certificates, "party-1", ["party-0", "party-9"]) as server:
        raw = await raw_link(certificates, server, "party-9")
        await raw.send(hello("private"))
        await until(lambda: ("private", "party-9") in server._waiting, "the hello arrives")
        with refused(ErrorKind.DEADLINE, "Party party-0"):
            await server.await_link("private", "party-0", timeout=0.1)
        raw.close()


async def test_a_party_from_outside_takes_no_place(
    certificates: Certificates, server: LinkServer
) -> None:
    """Else whoever has a party's certificate of any committee could stop this one."""
    raw = await raw_link(certificates, server, "party-9")
    error = await error_on(raw)
    assert "NAME_REFUSED" in error.message and "party-9" in error.message
    assert not server._waiting and not server.open()


@pytest.mark.parametrize("role", [role for role in Role if role is not Role.PARTY])
async def test_no_other_role_gets_a_link(
    certificates: Certificates, server: LinkServer, role: Role
) -> None:
    raw = await raw_link(certificates, server, "party-0", role)
    error = await error_on(raw)
    assert "ROLE_REFUSED" in error.message
    assert not server.open()


@pytest.mark.parametrize("case", ["none", "stranger", "older TLS", "other protocol"])
async def test_a_link_needs_a_certificate_of_our_authority_and_this_protocol(
    certificates: Certificates, server: LinkServer, tmp_path: Path, case: str
) -> None:
    own = certificates.of("party-0")
    if case == "stranger":
        other = Certificates(tmp_path).of("party-0")
        context = tls.dialling_context(other, PROTOCOL)
        context.load_verify_locations(cadata=own.ca_pem.decode())
    elif case == "none":
        context = ssl.create_default_context(cadata=own.ca_pem.decode())
        context.set_alpn_protocols([PROTOCOL])
    else:
        context = tls.dialling_context(own, "h2" if case == "other protocol" else PROTOCOL)
    if case == "older TLS":
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(LinkError):
        raw = await dialled(server, context)
        # In TLS 1.3 a client hears of it afterwards.
        try:
            await raw.send(frames.PING)
            await asyncio.wait_for(raw.receive(), SECONDS)
        finally:
            raw.close()
    assert not server.open()


@pytest.mark.parametrize("case", ["another party", "another role", "stranger"])
async def test_a_party_talks_to_nobody_else_in_a_peers_place(
    certificates: Certificates, tmp_path: Path, case: str
) -> None:
    """Whatever an address leads to: the caller reads the other's certificate as well."""
    credentials = {
        "another party": certificates.of("party-2"),
        "another role": certificates.of("party-1", Role.COORDINATOR),
        "stranger": Certificates(tmp_path).of("party-1"),
    }[case]
    async with LinkServer(credentials, "127.0.0.1:0", None) as impostor:
        async with pool_to(certificates, impostor) as pool:
            with refused(ErrorKind.PARTY_UNREACHABLE, "A peer, party-1,", "certificate"):
                await pool.ping()
        assert not impostor.open()


async def test_a_certificate_with_more_names_is_that_of_nobody(
    certificates: Certificates, server: LinkServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TLS is content with any of a certificate's names; here one alone may be of the federation."""
    monkeypatch.setattr("mpc_vote.transport.link.peer_identity", lambda _: None)
    async with pool_to(certificates, server) as pool:
        with refused(ErrorKind.PARTY_UNREACHABLE, "certificate"):
            await pool.ping()


async def test_a_revoked_peer_loses_its_links_in_the_middle_of_a_session(
    own_certificates: Certificates,
) -> None:
    """At either end, and gets no other."""
    certificates = own_certificates
    async with (
        answering(certificates, "party-1", ["party-0"]) as server,
        pool_to(certificates, server) as pool,
    ):
        assert await pool.ping() > 0
        first, other = await asyncio.gather(
            PeerChannel.open("s", CONTEXT, PAIR, 0, {"party-1": pool}, server, SECONDS),
            second(server),
        )
        waiting = asyncio.ensure_future(asyncio.to_thread(other.exchange, b"x"))
        certificates.revoke("party-0", told="party-1")
        with refused(ErrorKind.PARTY_UNREACHABLE, "Party party-0", "revoked"):
            await asyncio.wait_for(waiting, SECONDS)
        # What came before that has come.
        assert await asyncio.to_thread(first.exchange, b"x") == [b"x", b"x"]
        with refused(ErrorKind.PARTY_UNREACHABLE, "Party of rank 1", "left"):
            await asyncio.to_thread(first.exchange, b"x")
        first.close()
        other.close()
        with refused(ErrorKind.ENDED_BY, "CERTIFICATE_REVOKED"):
            await pool.ping()


async def test_a_party_uses_no_link_to_a_peer_that_was_revoked(
    own_certificates: Certificates,
) -> None:
    certificates = own_certificates
    async with (
        answering(certificates, "party-1", ["party-0"]) as server,
        pool_to(certificates, server) as pool,
    ):
        await pool.ping()
        certificates.revoke("party-1", told="party-0")

        async def refuses() -> bool:
            try:
                await pool.ping()
            except VoteError as error:
                return "revoked" in error.message
            return False

        async with asyncio.timeout(SECONDS):
            while not await refuses():
                await asyncio.sleep(0.1)


async def test_links_follow_certificates_that_are_replaced(own_certificates: Certificates) -> None:
    """At both ends, while the process runs: the old ones could be revoked then."""
    certificates = own_certificates
    async with (
        answering(certificates, "party-1", ["party-0"]) as server,
        pool_to(certificates, server) as pool,
    ):
        await pool.ping()

        def serials() -> tuple[object, object]:
            (dialling,), (answered,) = pool.open(), server.open()
            assert dialling.certificate is not None and answered.certificate is not None
            return dialling.certificate.serials, answered.certificate.serials

        before = serials()
        certificates.renew("party-1")
        certificates.renew("party-0")

        async def renewed() -> bool:
            await pool.ping()
            await until(lambda: len(server.open()) == 1, "the old link is dropped")
            return all(new != old for new, old in zip(serials(), before, strict=True))

        async with asyncio.timeout(SECONDS):
            while not await renewed():
                await asyncio.sleep(0.1)


async def test_a_replaced_certificate_ends_links_between_sessions_and_no_session(
    own_certificates: Certificates,
) -> None:
    """Of the end that was dialled: the other can't see that its links are made with an old one.

    A session that has begun meanwhile goes on, and the next one has a new link.
    """
    certificates = own_certificates
    async with (
        answering(certificates, "party-1", ["party-0"]) as server,
        pool_to(certificates, server) as pool,
    ):

        async def session(name: str) -> tuple[PeerChannel, PeerChannel]:
            first = PeerChannel.open(name, CONTEXT, PAIR, 0, {"party-1": pool}, server, SECONDS)
            return await asyncio.gather(first, second(server, name))

        async def exchange_and_finish(channels: tuple[PeerChannel, PeerChannel]) -> None:
            await in_threads(*(functools.partial(c.exchange, b"word") for c in channels))
            await asyncio.gather(*(channel.finish() for channel in channels))

        def used(channels: tuple[PeerChannel, PeerChannel]) -> Link:
            return channels[0]._leases[1].link

        idle, busy = await session("idle"), await session("busy")
        await exchange_and_finish(idle)
        await until(lambda: pool._idle == [used(idle)], "it is kept")
        certificates.renew("party-1")
        await until(lambda: used(idle) not in pool.open(), "the idle link is dropped")
        assert pool.open() == [used(busy)] and not used(busy).closed
        await exchange_and_finish(busy)
        await until(lambda: not pool.open(), "it is not used again")
        after = await session("after")
        old, new = used(busy).certificate, used(after).certificate
        assert old is not None and new is not None and new.serials != old.serials
        await exchange_and_finish(after)


async def test_a_session_that_begins_while_its_link_is_retired_goes_on(
    certificates: Certificates, server: LinkServer
) -> None:
    """Word of it and the hello may pass each other on the way."""
    async with pool_to(certificates, server) as pool:
        await pool.ping()
        (answered,), (dialling,) = server.open(), pool.open()

        async def lease() -> PeerChannel:
            parties = {"party-1": pool}
            return await PeerChannel.open("s", CONTEXT, PAIR, 0, parties, server, SECONDS)

        opening = asyncio.create_task(lease())
        await until(lambda: not pool._idle, "the link is taken")
        answered.retire()
        channels = await asyncio.gather(opening, second(server))
        assert dialling.retired and channels[0]._leases[1].link is dialling
        await in_threads(*(functools.partial(c.exchange, b"word") for c in channels))
        await asyncio.gather(*(channel.finish() for channel in channels))
        await until(lambda: not pool.open(), "it is not used again")


# What a peer can't have this party keep


async def test_a_peer_that_opens_many_links_takes_no_place_of_others(
    certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "_MAX_LINKS", 2)
    async with answering(certificates, "party-1", ["party-0", "party-2"]) as server:
        raws = [await raw_link(certificates, server) for _ in range(2)]
        for number, raw in enumerate(raws):
            await raw.send(hello(f"session-{number}"))
        await until(lambda: len(server._waiting) == 2, "the hellos arrive")
        third = await raw_link(certificates, server)
        assert "SERVICE_BUSY" in (await error_on(third)).message
        # What is awaited of another peer has its place.
        other = await raw_link(certificates, server, "party-2")
        await other.send(hello("theirs"))
        await until(lambda: ("theirs", "party-2") in server._waiting, "the other's arrives")
        for raw in (*raws, other):
            raw.close()
        await until(lambda: not server._waiting and not server.open(), "all places are free")


async def test_links_that_a_peer_does_not_read_end_with_their_session(
    certificates: Certificates, server: LinkServer
) -> None:
    """More than the connection holds: what the peer does not read must not stay."""
    raw = await raw_link(certificates, server)
    await raw.send(hello("s", zero_seed=SEED))
    session = await second(server, timeout=0.5)
    with refused(ErrorKind.DEADLINE, "A peer"):
        await asyncio.to_thread(session.exchange, bytes(32 << 20))
    session.close()
    await until(lambda: not server.open(), "the link is gone")
    raw.close()


async def test_a_session_that_can_not_begin_lets_go_of_the_links_that_came(
    certificates: Certificates,
) -> None:
    """A peer that holds on to them would have this party keep more with every round."""
    async with answering(certificates, "party-2", PAIR) as server:
        context = tls.dialling_context(certificates.of("party-0"), PROTOCOL)
        raw = await dialled(server, context, "party-2")
        await raw.send(hello("s"))
        with refused(ErrorKind.DEADLINE, "Party party-1"):
            await PeerChannel.open("s", CONTEXT, TRIO, 2, {}, server, 0.5)
        await until(lambda: not server.open(), "the link is dropped")
        raw.close()


async def test_a_peer_that_hangs_up_leaves_nothing_waiting(
    certificates: Certificates, server: LinkServer
) -> None:
    """A party that is hung up on again and again must not run out of places for sessions."""
    raw = await raw_link(certificates, server)
    await raw.send(hello("deserted"))
    await until(lambda: bool(server._waiting), "the hello arrives")
    raw.close()
    await until(lambda: not server._waiting and not server.open(), "it is forgotten")


async def test_a_hello_waits_for_its_session_for_so_long(
    certificates: Certificates, server: LinkServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "_HELLO_SECONDS", 0.1)
    raw = await raw_link(certificates, server)
    await raw.send(hello("nobody's"))
    assert "DEADLINE" in (await error_on(raw)).message
    assert not server._waiting


async def test_a_caller_that_does_not_make_the_handshake_is_cut_off(
    server: LinkServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "_HANDSHAKE_SECONDS", 0.1)
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    assert await asyncio.wait_for(reader.read(), SECONDS) == b""
    await until(lambda: not server._shaking, "nothing is kept of it")
    writer.close()


async def test_callers_without_a_certificate_keep_no_peer_out(
    certificates: Certificates, server: LinkServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are many and say nothing; a peer's handshake is over before it is the oldest."""
    monkeypatch.setattr(links, "_MAX_HANDSHAKES", 4)
    silent = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(6)]
    await until(lambda: len(server._shaking) == 4, "all places are taken")
    async with pool_to(certificates, server) as pool:
        await pool.ping()
    # What was given up is over for both ends, and no more than that.
    oldest = [await asyncio.wait_for(reader.read(), SECONDS) for reader, _ in silent[:3]]
    assert oldest == [b"", b"", b""] and len(server._shaking) == 3
    for _, writer in silent:
        writer.close()


async def test_a_party_opens_a_session_once(certificates: Certificates, server: LinkServer) -> None:
    first, again = [await raw_link(certificates, server) for _ in range(2)]
    await first.send(hello("s"))
    await until(lambda: bool(server._waiting), "the first arrives")
    await again.send(hello("s"))
    error = await error_on(again)
    assert "COMMITTEE_DISAGREES" in error.message and "twice" in error.message
    first.close()


LARGE = frames.encode(Kind.HELLO, bytes(frames.MAX_HELLO_BYTES + 1))


@pytest.mark.parametrize(
    "sent",
    [
        LARGE,
        frames.encode(Kind.PAYLOAD, b"x"),
        frames.END,
        2 * frames.LAST,
        bytes(9),
        b"\xff" * 64,
    ],
    ids=["a long hello", "a payload", "an end", "two retirements", "zeros", "ones"],
)
async def test_what_may_not_come_outside_a_session_ends_the_link(
    certificates: Certificates, server: LinkServer, sent: bytes
) -> None:
    raw = await raw_link(certificates, server)
    await raw.send(sent)
    await until(lambda: not server.open(), "the link is dropped")
    with pytest.raises(LinkError):
        await asyncio.wait_for(raw.receive(), SECONDS)
    raw.close()


async def test_a_hello_that_can_not_be_read_is_refused(
    certificates: Certificates, server: LinkServer
) -> None:
    raw = await raw_link(certificates, server)
    await raw.send(frames.encode(Kind.HELLO, b"\xff\xff"))
    assert "MESSAGE_UNREADABLE" in (await error_on(raw)).message


# In an exchange


LIE = VoteError(ErrorKind.DEALER_CAUGHT, session="s", why="so I say")
IN_EXCHANGE = {
    "another length": (frames.encode(Kind.PAYLOAD, b"long"), ErrorKind.COMMITTEE_DISAGREES),
    "another number": (frames.encode(Kind.PAYLOAD, b"x", 1), ErrorKind.COMMITTEE_DISAGREES),
    "a ping": (frames.PING, ErrorKind.COMMITTEE_DISAGREES),
    "a hello": (hello("s"), ErrorKind.COMMITTEE_DISAGREES),
    "no frame": (b"\xff" * 64, ErrorKind.COMMITTEE_DISAGREES),
    "its retirement": (frames.LAST, ErrorKind.COMMITTEE_DISAGREES),
    "its end": (frames.END, ErrorKind.PARTY_UNREACHABLE),
    "an error": (
        frames.encode(Kind.ERROR, LIE.to_status().SerializeToString()),
        ErrorKind.ENDED_BY,
    ),
    "an error that can't be read": (frames.encode(Kind.ERROR, b"\xff"), ErrorKind.ENDED_BY),
    "an endless error": (
        bytes([Kind.ERROR]) + bytes(4) + b"\xff" * 4,
        ErrorKind.COMMITTEE_DISAGREES,
    ),
}


@pytest.mark.parametrize("case", IN_EXCHANGE)
async def test_what_comes_in_the_place_of_a_payload_is_blamed_on_its_sender(
    certificates: Certificates, server: LinkServer, case: str
) -> None:
    """And not on the coordinator, whose call waits for the session, nor on whom the peer names."""
    sent, kind = IN_EXCHANGE[case]
    raw = await raw_link(certificates, server)
    await raw.send(hello("s", zero_seed=SEED))
    session = await second(server)
    await raw.send(sent)
    with refused(kind, "party-0" if kind is ErrorKind.ENDED_BY else "rank 0"):
        await asyncio.to_thread(session.exchange, b"x")
    session.close()
    raw.close()


async def test_a_peer_that_leaves_before_its_hello_has_left_and_does_not_disagree(
    certificates: Certificates, server: LinkServer
) -> None:
    """It may have waited in vain for another; who knows why says so."""
    async with pool_to(certificates, server) as pool:
        opening = asyncio.create_task(
            PeerChannel.open("s", CONTEXT, PAIR, 0, {"party-1": pool}, server, SECONDS)
        )
        await until(lambda: bool(server._waiting), "the hello arrives")
        server.forget("s")
        with refused(ErrorKind.PARTY_UNREACHABLE, "Party of rank 1", "left the session"):
            await opening


async def test_a_peer_that_says_nothing_is_waited_for_so_long(
    certificates: Certificates, server: LinkServer
) -> None:
    raw = await raw_link(certificates, server)
    await raw.send(hello("s", zero_seed=SEED))
    session = await second(server, timeout=0.3)
    with refused(ErrorKind.DEADLINE, "A peer"):
        await asyncio.to_thread(session.exchange, b"x")
    session.close()
    raw.close()


async def test_a_session_that_is_closed_ends_its_thread_at_once(
    certificates: Certificates, server: LinkServer
) -> None:
    """Whoever cancels a round must not leave a thread waiting for a peer."""
    raw = await raw_link(certificates, server)
    await raw.send(hello("s", zero_seed=SEED))
    session = await second(server)
    waiting = asyncio.ensure_future(asyncio.to_thread(session.exchange, b"x"))
    await asyncio.sleep(0.05)
    started = time.monotonic()
    session.close()
    with refused(ErrorKind.PARTY_UNREACHABLE):
        await waiting
    assert time.monotonic() - started < SECONDS
    raw.close()


async def test_a_link_that_broke_is_made_again(certificates: Certificates) -> None:
    async with contextlib.AsyncExitStack() as stack:
        server = await stack.enter_async_context(answering(certificates, "party-1", ["party-0"]))
        port = server.port
        pool = await stack.enter_async_context(pool_to(certificates, server))
        await pool.ping()
        await server.__aexit__()
        with refused(ErrorKind.PARTY_UNREACHABLE, "A peer, party-1,", "refused"):
            await pool.ping()
        credentials = certificates.of("party-1")
        async with LinkServer(credentials, f"127.0.0.1:{port}", ["party-0"]):
            assert await pool.ping() > 0


async def test_a_session_that_outlives_its_partys_links_ends_quietly(
    certificates: Certificates,
) -> None:
    """As where a party is told to stop while it makes preprocessing for a round to come."""
    async with committee(certificates) as parties:
        channels = await joined(parties, "session")
    for channel in channels:
        channel.close()


async def test_an_address_in_use_is_said(certificates: Certificates, server: LinkServer) -> None:
    with refused(ErrorKind.PORT_IN_USE):
        LinkServer(certificates.of("party-1"), f"127.0.0.1:{server.port}", None)
