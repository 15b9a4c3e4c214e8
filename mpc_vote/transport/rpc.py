"""gRPC the way every role does it: mutual TLS, callers checked by role, errors from the catalogue.

A servicer's method says who may call it with `@allowed(...)`, or with `@anybody`; `Server` refuses
to start with a method that doesn't. Methods for anybody live on servers of their own, which ask
callers for no certificate, and no other methods do. Health says SERVING only while the role's own
check says that it can do its work.

A connection outlives what was true when it was made. So servers look at the caller's certificate on
every call, and end the calls of those that have expired or been revoked since; and channels make
new connections when their own certificate has been replaced.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import inspect
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Self, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from mpc_vote.errors import ErrorKind, VoteError
from mpc_vote.pki import revocation
from mpc_vote.pki.identity import (
    Credentials,
    Identity,
    Role,
    channel_options,
    open_server_options,
    peer_identity,
    server_options,
)
from mpc_vote.transport import health
from mpc_vote.transport.validity import objection

log = logging.getLogger(__name__)

_PACKAGE = "mpcvote.v1"
_HEALTH_SECONDS = 1.0
_GRACE_SECONDS = 2.0
_PROBE_SECONDS = 3.0
_TRIPS = 5
_DRAIN_SECONDS = 5.0
_OPEN_CALLS = 32
_RENEWAL_SECONDS = 1.0
_RETIRED = 2

_caller: contextvars.ContextVar[Identity] = contextvars.ContextVar("caller")

# A generated function that adds a servicer to a server, and the servicer.
Service = tuple[Callable[..., None], object]
_ANYBODY = "anybody"
Method = TypeVar("Method", bound=Callable[..., Any])
Response = TypeVar("Response")


def caller() -> Identity:
    """Who made the call that is being served."""
    return _caller.get()


def allowed(*roles: Role, upload: bool = False) -> Callable[[Method], Method]:
    """Marks a servicer's method with the roles that may call it, and guards it.

    `upload` is for calls whose caller sends all it has before it listens.
    """

    def decorate(method: Method) -> Method:
        name = method.__name__

        def admit(context: grpc.aio.ServicerContext[Any, Any]) -> None:
            identity = peer_identity(context.auth_context())
            if identity is None:
                raise VoteError(ErrorKind.UNAUTHENTICATED)
            if identity.role not in roles:
                want = ", ".join(role.value for role in roles)
                raise VoteError(ErrorKind.ROLE_REFUSED, who=identity, method=name, want=want)
            _caller.set(identity)

        if inspect.isasyncgenfunction(method):

            @functools.wraps(method)
            async def stream(self: Any, request: Any, context: Any) -> AsyncIterator[Any]:
                async with _reported(context, name, request if upload else None):
                    admit(context)
                    async with contextlib.aclosing(method(self, request, context)) as events:
                        async for event in events:
                            yield event

            guarded: Any = stream
        else:

            @functools.wraps(method)
            async def unary(self: Any, request: Any, context: Any) -> Any:
                async with _reported(context, name, request if upload else None):
                    admit(context)
                    return await method(self, request, context)

            guarded = unary
        guarded.__allowed__ = roles
        guarded.__upload__ = upload
        result: Method = guarded
        return result

    return decorate


def anybody(method: Method) -> Method:
    """Marks a servicer's unary method that needs no certificate: it doesn't know its caller.

    So it must bound what it does for one.
    """

    @functools.wraps(method)
    async def unary(self: Any, request: Any, context: Any) -> Any:
        async with _reported(context, method.__name__, None):
            return await method(self, request, context)

    guarded: Any = unary
    guarded.__allowed__ = _ANYBODY
    result: Method = guarded
    return result


@contextlib.asynccontextmanager
async def _reported(
    context: Any, name: str, upload: AsyncIterator[Any] | None
) -> AsyncIterator[None]:
    """Turns an exception into a status with details; what is not in the catalogue is logged."""
    try:
        yield
    except VoteError as error:
        if upload is not None:
            await _drain(upload)
        await _abort(context, error)
    except DecodeError:
        # Of a stream's messages: a call with a single one fails before it gets here.
        await _abort(context, VoteError(ErrorKind.MESSAGE_UNREADABLE, method=name))
    except (asyncio.CancelledError, grpc.aio.AbortError, GeneratorExit):
        raise
    except Exception as error:
        log.exception("%s failed", name)
        who = type(error).__name__
        await _abort(context, VoteError(ErrorKind.INTERNAL, who=name, why=who))


async def _drain(upload: AsyncIterator[Any]) -> None:
    """Lets a caller finish, for a while: its grpc.aio would put INTERNAL in the place of a status
    that comes in the middle of a write."""
    with contextlib.suppress(Exception):
        async with asyncio.timeout(_DRAIN_SECONDS):
            async for _ in upload:
                pass


async def _abort(context: Any, error: VoteError) -> None:
    log.info("refused: %s: %s", error.name, error.message)
    await context.abort(error.kind.status, error.message, error.trailing_metadata())


class _Door(grpc.aio.ServerInterceptor):
    """Looks at every caller's certificate: when a call begins, and while it lasts."""

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials
        self._calls: dict[asyncio.Task[Any], revocation.Peer | None] = {}
        self._ended: dict[asyncio.Task[Any], VoteError] = {}

    def look(self) -> None:
        """Ends the calls of callers whose certificate is no longer good."""
        for task, peer in self._calls.items():
            error = objection(self._credentials, peer)
            if error is not None and task not in self._ended:
                self._ended[task] = error
                task.cancel()

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        sides = (handler.request_streaming, handler.response_streaming)
        kind = "_".join("stream" if streams else "unary" for streams in sides)
        return handler._replace(**{kind: self._guarded(getattr(handler, kind))})

    def _guarded(self, method: Callable[..., Any]) -> Callable[..., Any]:
        upload = getattr(method, "__upload__", False)
        if inspect.isasyncgenfunction(method):

            async def stream(request: Any, context: Any) -> AsyncIterator[Any]:
                async with (
                    self._admitted(context, request if upload else None),
                    contextlib.aclosing(method(request, context)) as events,
                ):
                    async for event in events:
                        yield event

            return stream

        async def unary(request: Any, context: Any) -> Any:
            async with self._admitted(context, request if upload else None):
                return await method(request, context)

        return unary

    @contextlib.asynccontextmanager
    async def _admitted(
        self, context: Any, upload: AsyncIterator[Any] | None
    ) -> AsyncIterator[None]:
        peer = revocation.peer(context.auth_context())
        error = objection(self._credentials, peer)
        if error is not None:
            if upload is not None:
                await _drain(upload)
            await _abort(context, error)
        task = asyncio.current_task()
        assert task is not None
        self._calls[task] = peer
        try:
            yield
        except asyncio.CancelledError:
            if task in self._ended:
                task.uncancel()
                await _abort(context, self._ended[task])
            raise
        finally:
            del self._calls[task]
            self._ended.pop(task, None)


class Server:
    """A role's server on one address; `open_to_anybody` for methods that are."""

    def __init__(
        self,
        credentials: Credentials,
        listen: str,
        services: Sequence[Service],
        check: Callable[[], Awaitable[Mapping[str, bool]]],
        *,
        open_to_anybody: bool = False,
    ) -> None:
        # Servers need these packages, clients don't.
        from grpc_health.v1 import health_pb2_grpc
        from grpc_reflection.v1alpha import reflection

        from mpc_vote.transport import health_service

        self._door = _Door(credentials)
        if open_to_anybody:
            self._server = grpc.aio.server(
                options=open_server_options(), maximum_concurrent_rpcs=_OPEN_CALLS
            )
            tls = credentials.open_server_credentials()
        else:
            self._server = grpc.aio.server(options=server_options(), interceptors=[self._door])
            tls = credentials.server_credentials()
        self._health = health_service.Health()
        self._check = check
        self._listen = listen
        self._names = [_service_name(servicer, open_to_anybody) for _, servicer in services]
        for register, servicer in services:
            register(servicer, self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        reflected = [*self._names, health_service.SERVICE_NAME, reflection.SERVICE_NAME]
        reflection.enable_server_reflection(reflected, self._server)
        try:
            self.port = self._server.add_secure_port(listen, tls)
        except RuntimeError as error:
            raise VoteError(ErrorKind.PORT_IN_USE, address=listen) from error
        if self.port == 0:
            raise VoteError(ErrorKind.PORT_IN_USE, address=listen)
        self._watch: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Serves; health follows within a second."""
        # The health servicer begins with SERVING, before anybody has checked.
        await self._health.set("", health.NOT_SERVING)
        await self._server.start()
        self._watch = asyncio.create_task(self._follow_health())

    async def stop(self) -> None:
        """Says NOT_SERVING, lets calls end, closes."""
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)
        await self._health.enter_graceful_shutdown()
        await self._server.stop(_GRACE_SECONDS)

    async def _follow_health(self) -> None:
        while True:
            self._door.look()
            try:
                states = dict(await self._check())
            except Exception:
                log.exception("the health check failed")
                states = {}
            # The server as a whole serves while every one of its services does.
            states[""] = bool(states) and all(states.values())
            for name in ["", *self._names]:
                serving = states.get(name, False)
                await self._health.set(name, health.SERVING if serving else health.NOT_SERVING)
            await asyncio.sleep(_HEALTH_SECONDS)


def _service_name(servicer: object, open_to_anybody: bool) -> str:
    """The full name of the service that a servicer implements, once all its methods are guarded."""
    base = next(c for c in type(servicer).__mro__ if c.__module__.endswith("_pb2_grpc"))
    for name, _ in inspect.getmembers(base, inspect.isfunction):
        who = getattr(getattr(servicer, name), "__allowed__", None)
        if who is None:
            raise TypeError(f"{type(servicer).__name__}.{name} does not say who may call it")
        if (who == _ANYBODY) is not open_to_anybody:
            raise TypeError(f"{type(servicer).__name__}.{name} does not belong on this server")
    return f"{_PACKAGE}.{base.__name__.removesuffix('Servicer')}"


class AuthenticatedChannel(grpc.aio.Channel):
    """A channel on which only `server` can answer: its certificate is checked for role and name.

    Calls go over a connection that was made with the newest credentials. Those under way when the
    credentials are replaced stay on the connection that they began on.
    """

    def __init__(self, credentials: Credentials, address: str, server: Identity) -> None:
        self.address = address
        self._server = server
        self._credentials = credentials.newest()
        self._retired: list[grpc.aio.Channel] = []
        self._inner = self._connect()

    async def renewed(self) -> None:
        """Returns when calls from now on would go over another connection than before."""
        used = self._credentials
        while used.connects_like(used.newest()):
            await asyncio.sleep(_RENEWAL_SECONDS)

    def _connect(self) -> grpc.aio.Channel:
        tls = self._credentials.channel_credentials()
        return grpc.aio.secure_channel(self.address, tls, options=channel_options(self._server))

    def _newest(self) -> grpc.aio.Channel:
        newest = self._credentials.newest()
        if not newest.connects_like(self._credentials):
            self._credentials = newest
            # Dropped, and so closed, when all calls on it must have ended long ago.
            self._retired = [*self._retired, self._inner][-_RETIRED:]
            self._inner = self._connect()
        return self._inner

    def _call(self, kind: str, *args: Any, **options: Any) -> Any:
        def call(*given: Any, **more: Any) -> Any:
            return getattr(self._newest(), kind)(*args, **options)(*given, **more)

        return call

    def unary_unary(self, *args: Any, **options: Any) -> Any:
        return self._call("unary_unary", *args, **options)

    def unary_stream(self, *args: Any, **options: Any) -> Any:
        return self._call("unary_stream", *args, **options)

    def stream_unary(self, *args: Any, **options: Any) -> Any:
        return self._call("stream_unary", *args, **options)

    def stream_stream(self, *args: Any, **options: Any) -> Any:
        return self._call("stream_stream", *args, **options)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self, grace: float | None = None) -> None:
        await asyncio.gather(*(one.close(grace) for one in (*self._retired, self._inner)))

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        return self._newest().get_state(try_to_connect)

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        await self._newest().wait_for_state_change(last_observed_state)

    async def channel_ready(self) -> None:
        await self._newest().channel_ready()


def dial(credentials: Credentials, address: str, server: Identity) -> AuthenticatedChannel:
    """A channel on which only `server` can answer."""
    return AuthenticatedChannel(credentials, address, server)


def dial_anonymously(ca_pem: bytes, address: str, server: Identity) -> grpc.aio.Channel:
    """A channel of a caller that has no certificate, on which only `server` can answer."""
    credentials = grpc.ssl_channel_credentials(ca_pem)
    return grpc.aio.secure_channel(address, credentials, options=channel_options(server))


async def _ask_health(channel: grpc.aio.Channel, service: str = "") -> int:
    """What a server says of its health, or of one service's."""
    ask: grpc.aio.UnaryUnaryMultiCallable[str, int]
    ask = channel.unary_unary(health.CHECK, health.request, health.status)
    return await ask(service, timeout=_PROBE_SECONDS)


async def is_serving(channel: grpc.aio.Channel, service: str = "") -> bool:
    """Whether a server on the channel answers and says that it, or one service, can work."""
    try:
        return await _ask_health(channel, service) == health.SERVING
    except grpc.RpcError:
        return False


def readable(response: Response | None, method: str) -> Response:
    """A response; in the place of one that can't be read gRPC gives None, and goes on."""
    if response is None:
        raise VoteError(ErrorKind.MESSAGE_UNREADABLE, method=method)
    return response


async def reach(channel: grpc.aio.Channel, who: str) -> None:
    """Raises, with the server's own error message, if no call gets through to it."""
    try:
        await _ask_health(channel)
    except grpc.RpcError as error:
        raise VoteError.quoted(error, who) from error


async def round_trip(channel: grpc.aio.Channel) -> float:
    """Seconds that the quickest of a few calls takes, which is a round trip and little more."""
    seconds = []
    for _ in range(_TRIPS):
        started = time.monotonic()
        with contextlib.suppress(grpc.RpcError):
            await _ask_health(channel)
        seconds.append(time.monotonic() - started)
    return min(seconds)


async def answers(channels: Iterable[grpc.aio.Channel]) -> bool:
    """Whether every server can be reached and authenticated, whatever its own health."""

    async def one(channel: grpc.aio.Channel) -> bool:
        try:
            await asyncio.wait_for(channel.channel_ready(), _PROBE_SECONDS)
        except TimeoutError:
            return False
        return True

    return all(await asyncio.gather(*(one(channel) for channel in channels)))
