"""What stands around a servicer while it is called directly: callers, contexts and channels whose
other end says what a script tells it to."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import grpc
import grpc.aio
from cryptography.hazmat.primitives.asymmetric import ec
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from mpc_vote.pki.authority import CertificateAuthority
from mpc_vote.pki.identity import Identity, Role
from tests.security.fuzz.mutate import Call
from tests.security.fuzz.runner import Finding

_STEP_SECONDS = 0.03
_MAX_RESPONSES = 200
_MAX_METADATA = 64 << 10

Kind = TypeVar("Kind", bound=Message)


@functools.cache
def _certificate(caller: Identity) -> bytes:
    """Agents have enrolled: agents' authorities all have the same name."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        root = CertificateAuthority.create(folder / "ca")
        if caller.role is not Role.AGENT:
            return root.issue(caller, folder / "caller").certificate.read_bytes()
        agents = root.delegate_agents(folder / "agents")
        return agents.certify(caller.name, ec.generate_private_key(ec.SECP256R1()).public_key())


class Aborted(Exception):
    """The servicer refused the call, under this name."""


class Context:
    """A call's context: who calls, what it sends, and what it is told."""

    def __init__(self, caller: Identity, requests: Sequence[Message]) -> None:
        self._caller = caller
        self._requests = list(requests)
        self.received = 0
        self._news = asyncio.Event()

    def auth_context(self) -> Mapping[str, Sequence[bytes]]:
        return {"x509_pem_cert": [_certificate(self._caller)]}

    async def abort(self, code: grpc.StatusCode, message: str, trailing: Any) -> None:
        if code is grpc.StatusCode.INTERNAL:
            raise Finding(f"INTERNAL: {message}") from sys.exception()
        size = len(message.encode()) + sum(len(value) for _, value in trailing)
        if size > _MAX_METADATA:
            raise Finding(f"a refusal of {size:,} bytes") from sys.exception()
        raise Aborted(message.split()[0] + code.name) from sys.exception()

    async def requests(self) -> AsyncIterator[Message]:
        """The messages of a stream; each waits a little for what it may be an answer to."""
        for number, request in enumerate(self._requests):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_STEP_SECONDS):
                    while number > 0 and self.received <= number:
                        self._news.clear()
                        await self._news.wait()
            yield request

    def told(self) -> None:
        """The caller got a response."""
        self.received += 1
        self._news.set()


def decoded(kind: type[Kind], messages: Sequence[bytes]) -> list[Kind]:
    """As far as they are messages: gRPC itself ends a stream at the first that is none."""
    read = []
    for data in messages:
        try:
            read.append(kind.FromString(data))
        except DecodeError:
            break
    return read


async def serve(
    servicer: object,
    method: MethodDescriptor,
    caller: Identity,
    call: Call,
    *,
    alone: bool,
) -> str:
    """Calls a servicer's method as gRPC would; returns a word for the result.

    A call that is `alone` does not wait for others between its messages.
    """
    requests = decoded(GetMessageClass(method.input_type), call.messages)
    context = Context(caller, requests)
    handler: Callable[..., Any] = getattr(servicer, method.name)
    if method.client_streaming:
        request: Any = _plain(requests) if alone else context.requests()
    elif requests:
        request = requests[0]
    else:
        return "undecodable"
    try:
        work: Any = handler(request, context)
        if inspect.isasyncgen(work):
            async with contextlib.aclosing(work) as responses:
                response: Any
                async for response in responses:
                    context.told()
                    response.SerializeToString()
                    if context.received == _MAX_RESPONSES:
                        break
        else:
            response = await work
            if response is not None:
                response.SerializeToString()
    except Aborted as refusal:
        return f"{method.name} {refusal}"
    return f"{method.name} accepted"


async def _plain(requests: Sequence[Message]) -> AsyncIterator[Message]:
    for request in requests:
        yield request


class Channel:
    """A channel whose methods are answered by functions of the request."""

    address = "nowhere:1"

    def __init__(self, answers: Mapping[str, Callable[..., Any]]) -> None:
        self._answers = answers

    async def channel_ready(self) -> None:
        """It always is."""

    def get_state(self) -> grpc.ChannelConnectivity:
        """There is no connection that would stand between calls."""
        return grpc.ChannelConnectivity.IDLE

    def _method(self, path: str, *_: Any, **__: Any) -> Callable[..., Any]:
        name = path.rpartition("/")[2]
        return self._answers.get(name, unavailable)

    unary_unary = unary_stream = stream_unary = stream_stream = _method


async def unavailable(*_: Any, **__: Any) -> Any:
    """Nobody answers."""
    raise failure()


def failure(code: grpc.StatusCode = grpc.StatusCode.UNAVAILABLE) -> grpc.aio.AioRpcError:
    """What a call that fails raises."""
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details="no")


class Stream:
    """A call on a channel, whose responses are given; `more` makes those after the last."""

    def __init__(self, responses: Sequence[Message], more: Callable[[], Any] | None = None) -> None:
        self._responses = list(responses)
        self._more = more
        self.written: asyncio.Queue[Message] = asyncio.Queue()

    async def read(self) -> Any:
        await asyncio.sleep(0)
        if self._responses:
            return self._responses.pop(0)
        made = self._more() if self._more is not None else grpc.aio.EOF
        return await made if inspect.isawaitable(made) else made

    async def __aiter__(self) -> AsyncIterator[Any]:
        while (response := await self.read()) is not grpc.aio.EOF:
            yield response

    async def write(self, message: Message) -> None:
        self.written.put_nowait(message)

    async def done_writing(self) -> None:
        """Nobody minds."""

    def cancel(self) -> None:
        """Nobody minds."""
