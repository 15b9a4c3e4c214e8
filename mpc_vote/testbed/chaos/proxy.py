"""The wire between the roles: every connection goes through here, and every message is seen.

A caller dials a line of its own, which carries bytes and can be cut (reset, and refused from then
on) or held (nothing arrives, nobody is told). Lines end at a proxy per server, which has the
server's certificate and dials on with the caller's: the harness issues all of them. So the proxy
sees whole messages, of all methods and of the parties' links alike, and asks the tap what to do
with each.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from google.protobuf import message_factory
from grpc_health.v1 import health_pb2

from mpc_vote.pki.identity import (
    Credentials,
    Identity,
    channel_options,
    peer_identity,
    server_options,
)
from mpc_vote.proto.mpcvote.v1 import agent_pb2, dealer_pb2, label_pb2, model_pb2, party_pb2
from mpc_vote.testbed.chaos.links import EXCHANGE, LinkProxy
from mpc_vote.testbed.chaos.passing import Pair, Passing, Send
from mpc_vote.transport.frames import Kind

_READ_BYTES = 65_536
# The proxy must add no wait of its own when a server is back.
_QUICK = [("grpc.initial_reconnect_backoff_ms", 100), ("grpc.max_reconnect_backoff_ms", 100)]
END = "end"
# Streams that outlive a request.
_LASTING = "Attend"


@dataclass(frozen=True, order=True)
class MessageStep:
    """A message's place in a round: the n-th of its kind between two roles since the start.

    A message of a call that an earlier round left behind is at no place: -1.
    """

    caller: str
    server: str
    method: str
    part: str
    number: int

    def __str__(self) -> str:
        return f"{self.caller}>{self.server}:{self.method}:{self.part}:{self.number}"

    @classmethod
    def parse(cls, text: str) -> MessageStep:
        """The step of this name."""
        pair, method, part, number = text.split(":")
        caller, _, server = pair.partition(">")
        return cls(caller, server, method, part, int(number))

    @property
    def pair(self) -> Pair:
        """Who dials whom."""
        return self.caller, self.server

    @property
    def is_request(self) -> bool:
        """Whether it goes from the caller to the server."""
        return self.part.startswith("request")


@dataclass(frozen=True)
class InterceptedMessage:
    """A message at its step, as it passes: of which call, what it says, and how it goes on."""

    step: MessageStep
    call: Passing
    payload: bytes
    send: Send


Tap = Callable[[InterceptedMessage], Awaitable[None]]


class ProxiedCall(Passing):
    """One gRPC call."""

    def __init__(
        self, pair: Pair, method: str, channel: grpc.aio.Channel, numbers: Counter[str]
    ) -> None:
        super().__init__(pair, method, numbers)
        self._channel = channel

    def dial(self, seconds: float | None) -> Any:
        """The same call once more, as the same caller."""
        method: Any = self._channel.stream_stream(self.method)
        return method(timeout=seconds, wait_for_ready=True)

    async def replay(self, seconds: float) -> None:
        """Makes the call again from its recorded requests; nobody waits for the answers."""
        again = self.dial(seconds)
        with contextlib.suppress(grpc.RpcError, asyncio.InvalidStateError):
            for request in list(self.requests):
                await again.write(request)
            await again.done_writing()
            while await again.read() is not grpc.aio.EOF:
                pass


class ProxiedLink:
    """The connections of one caller to one server, as bytes."""

    def __init__(self, target: Path) -> None:
        self._target = target
        self._server: asyncio.Server | None = None
        self._carrying = asyncio.Event()
        self._carrying.set()
        # Faults may overlap: a line is whole again when the last of them is over.
        self._cuts = self._holds = 0
        self._open: set[asyncio.StreamWriter] = set()
        self.address = ""

    async def start(self) -> None:
        """Listens, on a port that stays its own until the end."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def cut(self) -> None:
        """Resets what is open and refuses what comes, until it is joined."""
        self._cuts += 1
        for writer in list(self._open):
            writer.transport.abort()

    def join(self) -> None:
        """Undoes a cut."""
        self._cuts -= 1

    def hold(self) -> None:
        """Lets no byte through, in either direction, and tells nobody, until it is released."""
        self._holds += 1
        self._carrying.clear()

    def release(self) -> None:
        """Undoes a hold; what was held is carried."""
        self._holds -= 1
        if self._holds == 0:
            self._carrying.set()

    def stop(self) -> None:
        """Ends for good."""
        self.cut()
        if self._server is not None:
            self._server.close()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._cuts:
            writer.transport.abort()
            return
        far_reader, far_writer = await asyncio.open_unix_connection(self._target)
        ends = {writer, far_writer}
        self._open |= ends
        carries = [
            asyncio.create_task(self._carry(reader, far_writer)),
            asyncio.create_task(self._carry(far_reader, writer)),
        ]
        try:
            await asyncio.wait(carries, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for end in ends:
                end.transport.abort()
            for carry in carries:
                carry.cancel()
            self._open -= ends

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while piece := await reader.read(_READ_BYTES):
                await self._carrying.wait()
                writer.write(piece)
                await writer.drain()


class ProxyNetwork:
    """All lines and proxies of a federation."""

    def __init__(
        self,
        folder: Path,
        servers: Mapping[str, str],
        pairs: Iterable[Pair],
        peers: Mapping[str, str],
    ) -> None:
        """`servers` and `peers` are the addresses of gRPC servers and, of parties, of links: those
        are what a party of lower rank dials another for."""
        self._folder = folder
        self._servers = servers
        self._peers = peers
        self._link_proxies: list[LinkProxy] = []
        self._numbers: Counter[str] = Counter()
        self._channels: dict[Pair, grpc.aio.Channel] = {}
        self._proxies: list[grpc.aio.Server] = []
        self.lines = {pair: ProxiedLink(self._socket(*pair)) for pair in pairs}
        self.tap: Tap = pass_on

    def begin(self, tap: Tap) -> None:
        """From here on messages are counted anew, and the tap decides about each."""
        self._numbers = Counter()
        self.tap = tap

    async def start(self, credentials: Mapping[str, Credentials]) -> None:
        """Opens all lines; `credentials` are of every role by its name."""
        for name in self._servers:
            proxy = grpc.aio.server(options=server_options())
            proxy.add_generic_rpc_handlers((_Handler(functools.partial(self._serve, name)),))
            tls = credentials[name].server_credentials()
            proxy.add_secure_port(f"unix:{self._socket('', name)}", tls)
            await proxy.start()
            self._proxies.append(proxy)
        for name, address in self._peers.items():
            at = f"unix:{self._socket(name, name)}"
            links = LinkProxy(name, at, address, credentials, self._counted, self._pass)
            links.start()
            self._link_proxies.append(links)
        for (caller, server), line in self.lines.items():
            await line.start()
            if caller in self._peers and server in self._peers:
                continue
            options = dict([*channel_options(credentials[server].identity), *_QUICK])
            self._channels[caller, server] = grpc.aio.secure_channel(
                self._servers[server],
                credentials[caller].channel_credentials(),
                options=list(options.items()),
            )

    async def stop(self) -> None:
        """Closes everything."""
        for line in self.lines.values():
            line.stop()
        await asyncio.gather(*(channel.close() for channel in self._channels.values()))
        await asyncio.gather(*(proxy.stop(None) for proxy in self._proxies))
        await asyncio.gather(*(proxy.stop() for proxy in self._link_proxies))

    def of(self, name: str) -> list[ProxiedLink]:
        """All lines from or to a role."""
        return [line for pair, line in self.lines.items() if name in pair]

    def to(self, name: str) -> list[ProxiedLink]:
        """All lines to a role."""
        return [line for pair, line in self.lines.items() if name == pair[1]]

    def _socket(self, caller: str, server: str) -> Path:
        peers = caller in self._peers and server in self._peers
        return self._folder / f"{server}-{'links' if peers else 'proxy'}.proxy"

    def _counted(self) -> Counter[str]:
        return self._numbers

    async def _serve(self, server: str, method: str, context: Any) -> None:
        identity: Identity | None = peer_identity(context.auth_context())
        assert identity is not None, "TLS lets nobody else in"
        pair = (identity.name, server)
        call = ProxiedCall(pair, method, self._channels[pair], self._numbers)
        onward = call.dial(context.time_remaining())
        requests = asyncio.create_task(self._requests(call, context, onward))
        streams, arrived = _methods()[method].server_streaming, False

        async def arrive(response: bytes) -> None:
            nonlocal arrived
            await context.write(response)
            arrived = True

        try:
            while (response := await onward.read()) is not grpc.aio.EOF:
                await self._pass(call, "response", response, arrive)
            if streams:
                await self._pass(call, "response", None, _nowhere)
            failure: grpc.aio.AioRpcError | None = None
        except grpc.aio.AioRpcError as error:
            failure = error
        finally:
            requests.cancel()
            onward.cancel()
        if failure is not None:
            trailing = tuple(failure.trailing_metadata() or ())
            await context.abort(failure.code(), failure.details() or "", trailing)
        if not streams and not arrived:
            # With the one answer that there is, its status was lost.
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the answer was lost")

    async def _requests(self, call: ProxiedCall, context: Any, onward: Any) -> None:
        # What the server no longer wants to hear is not an error: its status says what is.
        with contextlib.suppress(grpc.RpcError, asyncio.InvalidStateError):
            while (request := await context.read()) is not grpc.aio.EOF:
                call.requests.append(request)
                await self._pass(call, "request", request, onward.write)
            call.whole.set()
            await onward.done_writing()

    async def _pass(self, call: Passing, direction: str, payload: bytes | None, send: Send) -> None:
        kind = END if payload is None else kind_of(call.method, direction, payload)
        short = call.method.rpartition("/")[2]
        part = f"{direction}.{kind}" if kind else direction
        number = -1
        if call.numbers is self._numbers or short == _LASTING:
            key = f"{call.pair} {short} {part}"
            number = self._numbers[key]
            self._numbers[key] += 1
        step = MessageStep(*call.pair, short, part, number)
        await self.tap(InterceptedMessage(step, call, payload or b"", send))


class _Handler(grpc.GenericRpcHandler):
    """Takes every method; unary ones are streams of one message."""

    def __init__(self, serve: Callable[[str, Any], Awaitable[None]]) -> None:
        self._serve = serve

    def service(self, details: Any) -> Any:
        """gRPC asks who handles a call."""
        if details.method not in _methods():
            return None

        async def handle(_: Any, context: Any) -> None:
            await self._serve(details.method, context)

        return grpc.stream_stream_rpc_method_handler(handle)


async def pass_on(passage: InterceptedMessage) -> None:
    """What happens to a message where nothing goes wrong."""
    await passage.send(passage.payload)


async def _nowhere(_: bytes) -> None:
    """The end of a call has nothing to send."""


@functools.cache
def _methods() -> dict[str, Any]:
    """Descriptors of every method of the roles, and of health checks."""
    files = (agent_pb2, dealer_pb2, label_pb2, party_pb2, model_pb2, health_pb2)
    services = [s for file in files for s in file.DESCRIPTOR.services_by_name.values()]
    return {
        f"/{service.full_name}/{method.name}": method
        for service in services
        for method in service.methods
    }


def streams(step: MessageStep) -> bool:
    """Whether more than one message may go this way in the step's call."""
    if step.method == EXCHANGE:
        return True
    (method,) = (m for m in _methods().values() if m.name == step.method)
    return bool(method.client_streaming if step.is_request else method.server_streaming)


def decode(method: str, direction: str, payload: bytes) -> Any:
    """A message of a call, as what it is."""
    descriptor = _methods()[method]
    kind = descriptor.input_type if direction == "request" else descriptor.output_type
    return message_factory.GetMessageClass(kind).FromString(payload)


def kind_of(method: str, direction: str, payload: bytes) -> str:
    """What a message is about: the first of its fields that is set, or the kind of a frame."""
    if method == EXCHANGE:
        return Kind(payload[0]).name.lower()
    fields = decode(method, direction, payload).ListFields()
    return fields[0][0].name if fields else ""
