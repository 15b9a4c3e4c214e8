"""The relay: bytes arrive whole and in order, late if told to, and ends are passed on."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from mpc_vote.app.config import ConfigError, load
from mpc_vote.cli.relay import RelaySettings
from mpc_vote.testbed.cluster import free_ports
from mpc_vote.transport.relay import Pipe, Relay

SECONDS = 20


@asynccontextmanager
async def echo() -> AsyncIterator[str]:
    """A server that sends back what it gets, and ends when its caller does."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def sent_and_received(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    data = os.urandom(1 << 20)

    async def send() -> None:
        writer.write(data)
        await writer.drain()
        writer.write_eof()

    _, back = await asyncio.wait_for(asyncio.gather(send(), reader.read(-1)), SECONDS)
    writer.close()
    return back == data


async def test_bytes_and_ends_pass_over_tcp() -> None:
    listen = f"127.0.0.1:{free_ports(1)[0]}"
    async with echo() as target, Relay(listen, target).running():
        streams = await asyncio.open_connection("127.0.0.1", int(listen.rpartition(":")[2]))
        assert await sent_and_received(*streams)


async def test_bytes_and_ends_pass_over_a_socket_file(tmp_path: Path) -> None:
    path = tmp_path / "x.sock"
    path.touch()  # left by an earlier run
    async with echo() as target, Relay(f"unix:{path}", target, delay=0.01, rate=5e6).running():
        assert await sent_and_received(*await asyncio.open_unix_connection(path))


async def test_a_round_trip_takes_both_delays() -> None:
    listen = f"127.0.0.1:{free_ports(1)[0]}"
    async with echo() as target, Relay(listen, target, delay=0.05).running():
        reader, writer = await asyncio.open_connection("127.0.0.1", int(listen.rpartition(":")[2]))
        started = time.monotonic()
        writer.write(b"x")
        assert await asyncio.wait_for(reader.read(1), SECONDS) == b"x"
        assert time.monotonic() - started >= 0.1
        writer.close()


async def test_a_target_that_is_not_there_ends_the_connection() -> None:
    listen, nobody = (f"127.0.0.1:{port}" for port in free_ports(2))
    async with Relay(listen, nobody).running():
        reader, writer = await asyncio.open_connection("127.0.0.1", int(listen.rpartition(":")[2]))
        assert await asyncio.wait_for(reader.read(), SECONDS) == b""
        writer.close()


def test_a_pipe_sends_one_piece_after_the_other() -> None:
    pipe = Pipe(delay=0.5, rate=100.0)
    assert pipe.due(50, now=10.0) == pytest.approx(11.0)
    assert pipe.due(50, now=10.0) == pytest.approx(11.5)
    assert pipe.due(50, now=20.0) == pytest.approx(21.0)


def test_a_fast_pipe_only_delays() -> None:
    assert Pipe(delay=0.5, rate=None).due(1 << 30, now=1.0) == 1.5


@pytest.mark.parametrize(
    "options",
    [
        [],
        ["--links", "nowhere=127.0.0.1:1"],
        ["--links", "127.0.0.1:1=127.0.0.1:2", "--delay-ms=-1"],
    ],
)
def test_bad_links_are_refused(options: list[str]) -> None:
    with pytest.raises(ConfigError):
        load(RelaySettings, options)
