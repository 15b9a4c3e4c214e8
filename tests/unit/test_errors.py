"""An error says the same thing on both ends of a real connection, whatever went wrong."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import string
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2

from mpc_vote.errors import MAX_VALUE_CHARACTERS, ErrorKind, VoteError

METHOD = "/test.Service/Call"
SECONDS = 10.0
DETAILS = "grpc-status-details-bin"

Handler = Callable[[bytes, Any], Awaitable[bytes]]


def values_for(kind: ErrorKind) -> dict[str, object]:
    """One value per field of the sentence: a number where the sentence formats a number."""
    found: dict[str, object] = {}
    for _, name, spec, _ in string.Formatter().parse(kind.sentence):
        if name and name != "field":
            found[name] = 0.25 if spec and spec.endswith("g") else f"the-{name}"
    return found


def make(kind: ErrorKind, **extra: Any) -> VoteError:
    return VoteError(kind, **{**values_for(kind), **extra})


def detail(status: status_pb2.Status, kind: type[Message]) -> Any:
    """The one detail of a type in a status, or None."""
    found = []
    for packed in status.details:
        message = kind()
        if packed.Is(message.DESCRIPTOR):
            packed.Unpack(message)
            found.append(message)
    assert len(found) <= 1
    return found[0] if found else None


def refusing(error: VoteError) -> Handler:
    async def handler(request: bytes, context: Any) -> bytes:
        await context.abort(error.kind.status, error.message, error.trailing_metadata())
        raise AssertionError("abort returned")

    return handler


@contextlib.asynccontextmanager
async def serving(handler: Handler) -> AsyncIterator[grpc.aio.Channel]:
    """A channel to a real server on loopback whose one method is `handler`."""
    server = grpc.aio.server()
    methods: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
        "Call": grpc.unary_unary_rpc_method_handler(handler)
    }
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("test.Service", methods),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield channel
    finally:
        await server.stop(None)


def raw_method(
    channel: grpc.aio.Channel, path: str = METHOD
) -> grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]:
    return channel.unary_unary(path)


async def call(channel: grpc.aio.Channel, seconds: float = SECONDS) -> VoteError:
    """What the client makes of the server's refusal."""
    with pytest.raises(grpc.RpcError) as caught:
        await raw_method(channel)(b"", timeout=seconds)
    return VoteError.from_rpc(caught.value, "The server")


async def sent_status(error: VoteError) -> tuple[grpc.StatusCode, status_pb2.Status]:
    """The status that a client of any language finds in the trailing metadata."""
    async with serving(refusing(error)) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await raw_method(channel)(b"", timeout=SECONDS)
    raw = dict(caught.value.trailing_metadata())[DETAILS]
    return caught.value.code(), status_pb2.Status.FromString(raw)


@pytest.mark.parametrize("kind", ErrorKind, ids=lambda kind: kind.name)
class TestEveryEntry:
    def test_the_sentence_has_every_value_in_it(self, kind: ErrorKind) -> None:
        error = make(kind, field="sigma")
        for value in values_for(kind).values():
            assert str(value) in error.message
        assert "{" not in error.message
        assert str(error) == error.message

    def test_the_sentence_is_one_a_person_can_read(self, kind: ErrorKind) -> None:
        message = make(kind, field="sigma").message
        assert message == " ".join(message.split())
        # Two sentences end in what the caller passes as the reason.
        assert message.endswith((".", "the-why"))

    def test_the_status_is_one_that_a_refusal_can_have(self, kind: ErrorKind) -> None:
        assert kind.status is not grpc.StatusCode.OK
        assert make(kind, field="sigma").to_status().code == kind.status.value[0]

    def test_a_missing_value_is_a_mistake_of_the_caller(self, kind: ErrorKind) -> None:
        if values_for(kind):
            with pytest.raises(KeyError):
                VoteError(kind)
        else:
            assert VoteError(kind).values == {}


def test_no_two_entries_are_aliases() -> None:
    # enum folds members of equal value into one: two names with one sentence would be one error.
    assert len(ErrorKind.__members__) == len(list(ErrorKind))


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        (ErrorKind.QUERIES_EMPTY, grpc.StatusCode.INVALID_ARGUMENT),
        (ErrorKind.REQUEST_ID_REUSED, grpc.StatusCode.ALREADY_EXISTS),
        (ErrorKind.UNAUTHENTICATED, grpc.StatusCode.UNAUTHENTICATED),
        (ErrorKind.ROLE_REFUSED, grpc.StatusCode.PERMISSION_DENIED),
        (ErrorKind.PARTY_UNREACHABLE, grpc.StatusCode.UNAVAILABLE),
        (ErrorKind.SERVICE_BUSY, grpc.StatusCode.RESOURCE_EXHAUSTED),
        (ErrorKind.BUDGET_EXHAUSTED, grpc.StatusCode.RESOURCE_EXHAUSTED),
        (ErrorKind.ROUND_UNKNOWN, grpc.StatusCode.NOT_FOUND),
        (ErrorKind.ROUND_AGGREGATED, grpc.StatusCode.FAILED_PRECONDITION),
        (ErrorKind.COMMITTEE_DISAGREES, grpc.StatusCode.ABORTED),
        (ErrorKind.DEADLINE, grpc.StatusCode.DEADLINE_EXCEEDED),
        (ErrorKind.INTERNAL, grpc.StatusCode.INTERNAL),
    ],
    ids=lambda value: value.name,
)
def test_status_mapping(kind: ErrorKind, status: grpc.StatusCode) -> None:
    assert kind.status is status


async def test_every_entry_survives_the_wire() -> None:
    for kind in ErrorKind:
        error = make(kind, field="sigma", retry_after=1.5)
        async with serving(refusing(error)) as channel:
            got = await call(channel)
        assert got.kind is kind
        assert got.name == kind.name
        assert got.message == str(got) == error.message
        assert got.values == error.values
        assert got.field == "sigma"
        assert got.retry_after == pytest.approx(1.5)


async def test_an_error_can_be_passed_on_as_it_came() -> None:
    error = make(ErrorKind.SERVICE_BUSY, retry_after=2.0)
    async with serving(refusing(error)) as channel:
        first = await call(channel)
    async with serving(refusing(first)) as channel:
        second = await call(channel)
    assert second.to_status() == error.to_status()


async def test_error_info_carries_the_stable_name_and_the_values() -> None:
    code, status = await sent_status(make(ErrorKind.CLASSES_RANGE, got=1, low=2, high=9))
    info = detail(status, error_details_pb2.ErrorInfo)
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert (info.reason, info.domain) == ("CLASSES_RANGE", "mpc-vote")
    assert dict(info.metadata) == {"got": "1", "low": "2", "high": "9"}


async def test_a_field_is_named_in_bad_request_and_only_then() -> None:
    error = make(ErrorKind.CLASSES_RANGE, field="plan.classes")
    _, status = await sent_status(error)
    (violation,) = detail(status, error_details_pb2.BadRequest).field_violations
    assert (violation.field, violation.description) == ("plan.classes", error.message)
    _, status = await sent_status(make(ErrorKind.CLASSES_RANGE))
    assert detail(status, error_details_pb2.BadRequest) is None


async def test_a_quota_is_named_in_quota_failure_and_only_then() -> None:
    error = make(ErrorKind.BUDGET_EXHAUSTED, level="agent")
    _, status = await sent_status(error)
    (violation,) = detail(status, error_details_pb2.QuotaFailure).violations
    assert (violation.subject, violation.description) == ("agent", error.message)
    _, status = await sent_status(make(ErrorKind.ROUND_CLOSED))
    assert detail(status, error_details_pb2.QuotaFailure) is None


async def test_a_time_to_wait_is_named_in_retry_info_and_only_then() -> None:
    _, status = await sent_status(make(ErrorKind.SERVICE_BUSY, retry_after=2.5))
    retry = detail(status, error_details_pb2.RetryInfo)
    assert retry.retry_delay.ToMilliseconds() == 2_500
    _, status = await sent_status(make(ErrorKind.SERVICE_BUSY))
    assert detail(status, error_details_pb2.RetryInfo) is None


async def test_a_name_of_a_newer_version_stays_readable() -> None:
    status = make(ErrorKind.ROUND_UNKNOWN).to_status()
    info = error_details_pb2.ErrorInfo(reason="FROM_THE_FUTURE", domain="mpc-vote")
    info.metadata["planet"] = "mars"
    status.message = "The round is on another planet. Wait for the rocket."
    del status.details[:]
    status.details.add().Pack(info)

    async def handler(request: bytes, context: Any) -> bytes:
        metadata = ((DETAILS, status.SerializeToString()),)
        await context.abort(grpc.StatusCode.NOT_FOUND, status.message, metadata)
        raise AssertionError("abort returned")

    async with serving(handler) as channel:
        error = await call(channel)
    assert error.kind is ErrorKind.INTERNAL
    assert error.message == "The round is on another planet. Wait for the rocket."
    assert error.values == {"planet": "mars"}


@pytest.mark.parametrize("reason", ["UNKNOWN_DOMAIN", "ROUND_UNKNOWN"])
async def test_details_of_another_system_are_not_taken_for_ours(reason: str) -> None:
    status = status_pb2.Status(code=5, message="not ours")
    status.details.add().Pack(error_details_pb2.ErrorInfo(reason=reason, domain="other.example"))

    async def handler(request: bytes, context: Any) -> bytes:
        metadata = ((DETAILS, status.SerializeToString()),)
        await context.abort(grpc.StatusCode.NOT_FOUND, status.message, metadata)
        raise AssertionError("abort returned")

    async with serving(handler) as channel:
        error = await call(channel)
    assert error.kind is ErrorKind.PARTY_UNREACHABLE
    assert "not found" in error.message


@pytest.mark.parametrize("broken", ["status", "detail"])
async def test_garbage_in_the_details_is_an_answer_like_any_other(broken: str) -> None:
    if broken == "status":
        raw = b"\xff\xff\xff"
    else:
        status = make(ErrorKind.ROUND_UNKNOWN).to_status()
        status.details[0].value = b"\xff\xff\xff"
        raw = status.SerializeToString()

    async def handler(request: bytes, context: Any) -> bytes:
        await context.abort(grpc.StatusCode.ABORTED, "no", ((DETAILS, raw),))
        raise AssertionError("abort returned")

    async with serving(handler) as channel:
        error = await call(channel)
    assert error.kind is ErrorKind.PARTY_UNREACHABLE
    assert error.message.startswith("The server does not answer (aborted).")


async def test_a_dead_port_is_told_in_a_sentence() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            error = await call(channel)
    assert error.kind is ErrorKind.PARTY_UNREACHABLE
    assert error.message == (
        "The server does not answer (connection refused). Check that it runs and that the address "
        "and its certificate are right."
    )


@contextlib.asynccontextmanager
async def dialling_tls(port: int) -> AsyncIterator[grpc.aio.Channel]:
    """A channel that speaks TLS, and waits for its handshake a fraction of a second only."""
    tls, short = grpc.ssl_channel_credentials(), [("grpc.min_reconnect_backoff_ms", 200)]
    async with grpc.aio.secure_channel(f"127.0.0.1:{port}", tls, options=short) as channel:
        yield channel


async def test_a_server_that_hangs_is_not_told_to_have_a_wrong_certificate() -> None:
    """The kernel takes connections for a process that is stopped."""
    with socket.socket() as hung:
        hung.bind(("127.0.0.1", 0))
        hung.listen()
        async with dialling_tls(hung.getsockname()[1]) as channel:
            error = await call(channel)
    assert error.kind is ErrorKind.PARTY_UNREACHABLE
    assert "(it takes the connection and then says nothing: busy or stopped?)" in error.message


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (b"", "it hung up during the TLS handshake"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "what answers there does not speak TLS"),
    ],
)
async def test_a_server_that_speaks_no_tls_is_told_as_such(said: bytes, told: str) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(65_536)
        writer.write(said)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, dialling_tls(port) as channel:
        error = await call(channel)
    assert error.message.startswith(f"The server does not answer ({told})")


async def test_a_server_that_is_too_slow_is_a_deadline() -> None:
    async def slow(request: bytes, context: Any) -> bytes:
        await asyncio.Event().wait()
        raise AssertionError("never reached")

    async with serving(slow) as channel:
        error = await call(channel, seconds=0.2)
    assert error.kind is ErrorKind.ANSWER_LATE
    assert "The server did not answer in time" in error.message


async def test_a_server_without_the_method_is_told_in_a_sentence() -> None:
    async def handler(request: bytes, context: Any) -> bytes:
        return b""

    async with serving(handler) as channel:
        with pytest.raises(grpc.RpcError) as caught:
            await raw_method(channel, "/test.Service/Other")(b"", timeout=SECONDS)
    error = VoteError.from_rpc(caught.value, "The server")
    assert error.kind is ErrorKind.PARTY_UNREACHABLE
    assert "unimplemented" in error.message


def test_an_error_without_a_status_is_still_told() -> None:
    error = VoteError.from_rpc(grpc.RpcError("socket fell off"), "The dealer")
    assert error.kind is ErrorKind.PARTY_UNREACHABLE
    assert error.message.startswith("The dealer does not answer (unknown).")


def test_what_a_caller_sent_does_not_come_back_at_full_length() -> None:
    """Metadata has little room: an error that doesn't fit would arrive as none."""
    error = VoteError(ErrorKind.ROUND_UNKNOWN, field="round_id", round="x" * 1_000_000)
    assert len(error.message) < MAX_VALUE_CHARACTERS + 100
    assert error.values["round"].endswith("...")
    assert sum(len(value) for _, value in error.trailing_metadata()) < 4 * MAX_VALUE_CHARACTERS


def test_what_a_caller_sent_stays_on_its_line() -> None:
    """In a log it would else forge lines, and steer the terminal of whoever reads it."""
    error = VoteError(ErrorKind.ROUND_UNKNOWN, round="x\n2030 WARNING \x1b[2J\u202e\ud800é")
    assert error.message.isprintable()
    assert error.values["round"] == r"x\n2030 WARNING \x1b[2J\u202e\ud800é"


@pytest.mark.parametrize("seconds", [-(2**63), -1, 2**62])
def test_a_peers_time_to_wait_is_one_that_can_be_waited(seconds: int) -> None:
    """And passed on to whoever asked this side."""
    status = make(ErrorKind.SERVICE_BUSY, retry_after=1.0).to_status()
    retry = error_details_pb2.RetryInfo()
    retry.retry_delay.seconds = seconds
    status.details[-1].Pack(retry)
    metadata = grpc.aio.Metadata((DETAILS, status.SerializeToString()))
    code = grpc.StatusCode.RESOURCE_EXHAUSTED
    sent = grpc.aio.AioRpcError(code, grpc.aio.Metadata(), metadata)
    error = VoteError.from_rpc(sent, "The peer")
    assert error.retry_after is not None
    assert 0 <= error.retry_after <= 86_400
    assert error.to_status().message == status.message


def _sent(error: VoteError) -> grpc.aio.AioRpcError:
    """As a peer's call ends with it."""
    metadata = grpc.aio.Metadata(*error.trailing_metadata())
    return grpc.aio.AioRpcError(error.kind.status, grpc.aio.Metadata(), metadata)


@pytest.mark.parametrize("kind", ErrorKind)
def test_what_a_peer_says_is_passed_on_as_its_own_word(kind: ErrorKind) -> None:
    """Not under a name, with a hint to come back, or as a sentence of whoever passes it on."""
    said = make(kind, retry_after=1.0)
    error = VoteError.quoted(_sent(said), "The dealer")
    assert error.kind is ErrorKind.ENDED_BY
    assert error.retry_after is None and error.field == ""
    assert error.message.startswith("The dealer ended the session")
    assert error.message.endswith(f"{kind.name}: {said.message}")


def test_a_peers_silence_is_not_quoted() -> None:
    metadata = grpc.aio.Metadata()
    silent = grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, metadata, metadata, details="no")
    assert VoteError.quoted(silent, "The dealer").kind is ErrorKind.PARTY_UNREACHABLE


@pytest.mark.parametrize("sign", ["\n", "\r", "\x1b[2J", "\0", "\u2028", "\u202e"])
def test_no_text_of_a_peer_begins_a_line_or_steers_a_terminal(sign: str) -> None:
    ours = VoteError(ErrorKind.DEAL_ENDED, session="s", why=f"no{sign}root: all is well")
    status = make(ErrorKind.DEAL_ENDED).to_status()
    status.message = f"no{sign}root: all is well"
    metadata = grpc.aio.Metadata((DETAILS, status.SerializeToString()))
    sent = grpc.aio.AioRpcError(grpc.StatusCode.ABORTED, grpc.aio.Metadata(), metadata)
    for error in (ours, VoteError.from_rpc(sent, "The dealer")):
        assert error.message.isprintable() and "root: all is well" in error.message
        assert all(value.isprintable() for value in error.values.values())


async def test_nobody_writes_lines_of_its_own_into_anothers_error() -> None:
    """What a caller sent comes back spelt out, and so does what a server answers with."""
    forged = "x\n2026-01-01 INFO all is well\r\x1b[2J\u2028"
    mine = VoteError(ErrorKind.ROUND_UNKNOWN, round=forged)
    status = mine.to_status()
    status.message = forged

    async def forge(request: bytes, context: Any) -> bytes:
        trailing = ((DETAILS, status.SerializeToString()),)
        await context.abort(mine.kind.status, "no", trailing)
        raise AssertionError("abort returned")

    async with serving(forge) as channel:
        theirs = await call(channel)
    for error in (mine, theirs):
        assert error.message.isprintable() and "x\\n2026" in error.message


def test_what_a_party_says_is_told_to_clients_as_its_saying() -> None:
    """It may name another party; its kind and what it is about stay."""
    said = VoteError(ErrorKind.DEALER_REFUSED, who="party-0", path="dealer-caught")
    error = VoteError.relayed(_sent(said), "Party party-2")
    assert error.kind is said.kind and error.values == said.values
    assert error.message == str(error) == f"Party party-2 says: {said.message}"
