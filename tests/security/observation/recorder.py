"""Runs a role as `mpc-vote` does, and writes down everything it says, hears and stores.

    python recorder.py FOLDER -- party --certs ...

In FOLDER it leaves `messages.bin` (every gRPC message, serialised, and every frame of a link
between parties, sent or received), `deeds.txt` (every file opened for writing, every program
started, every socket connected by Python itself) and, for an agent, `truth.npz`: the ballot, noise
and shares that only it may know, for a party `coins.bin`. The role behaves as it would without:
what passes is looked at, never changed. Only a coordinator can be told which groups to choose
(`MPC_VOTE_TEST_GROUPS=4,3`), as it would for other distances or sizes.
"""

from __future__ import annotations

import os
import struct
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import grpc
import grpc.aio
import numpy as np

SENT, RECEIVED = "sent", "received"
FRAME = "/mpcvote.v1.PeerLink/Frame"
GROUPS = "MPC_VOTE_TEST_GROUPS"

_HEADER = struct.Struct("<BHI")
_DIRECTIONS = (SENT, RECEIVED)
_CALLS = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")
_DEEDS = {"subprocess.Popen", "socket.connect", "socket.sendto", "sqlite3.connect"}
_MOVES = {"os.rename", "os.link", "os.symlink"}

Coder = Callable[[Any], Any]


@dataclass(frozen=True)
class Message:
    """One message as it passed: its method, which way it went, its bytes."""

    method: str
    direction: str
    content: bytes


class Journal:
    """Messages, appended to a file as they pass."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab", buffering=0)
        self._lock = threading.Lock()

    def write(self, method: str, direction: str, content: bytes) -> None:
        name = method.encode()
        header = _HEADER.pack(_DIRECTIONS.index(direction), len(name), len(content))
        with self._lock:
            self._file.write(header + name + content)

    def serializer(self, method: str, inner: Coder | None) -> Coder:
        """`inner`, with what it gives noted as sent."""

        def serialize(message: Any) -> Any:
            content = inner(message) if inner else message
            self.write(method, SENT, content)
            return content

        return serialize

    def deserializer(self, method: str, inner: Coder | None) -> Coder:
        """`inner`, with what it takes noted as received."""

        def deserialize(content: Any) -> Any:
            self.write(method, RECEIVED, content)
            return inner(content) if inner else content

        return deserialize


def read_messages(path: Path) -> Iterator[Message]:
    """What a journal holds, in order; an unfinished last record is an error."""
    data = path.read_bytes()
    position = 0
    while position < len(data):
        direction, name, size = _HEADER.unpack_from(data, position)
        start = position + _HEADER.size + name
        position = start + size
        if position > len(data):
            raise ValueError(f"{path} ends in the middle of a message")
        method = data[start - name : start].decode()
        yield Message(method, _DIRECTIONS[direction], data[start:position])


def watch_channels(journal: Journal) -> None:
    """Notes what passes on every channel dialled from now on."""
    dial = grpc.aio.secure_channel

    def secure_channel(*args: Any, **options: Any) -> grpc.aio.Channel:
        channel = dial(*args, **options)
        for name in _CALLS:
            setattr(channel, name, _recorded_call(journal, getattr(channel, name)))
        return channel

    grpc.aio.secure_channel = secure_channel
    # Nothing may leave by a way that is not watched.
    grpc.aio.insecure_channel = _refused
    grpc.secure_channel = grpc.insecure_channel = _refused


def _recorded_call(journal: Journal, make: Callable[..., Any]) -> Callable[..., Any]:
    def call(
        method: str,
        request_serializer: Coder | None = None,
        response_deserializer: Coder | None = None,
        **options: Any,
    ) -> Any:
        return make(
            method,
            request_serializer=journal.serializer(method, request_serializer),
            response_deserializer=journal.deserializer(method, response_deserializer),
            **options,
        )

    return call


def _refused(*_: Any, **__: Any) -> Any:
    raise AssertionError("a channel that the recorder does not watch")


def watch_servers(journal: Journal) -> None:
    """Notes what passes on every server made from now on."""
    make = grpc.aio.server

    def server(*args: Any, **options: Any) -> Any:
        made: Any = make(*args, **options)
        add_generic = made.add_generic_rpc_handlers
        add_registered = made.add_registered_method_handlers

        def generic(handlers: Sequence[grpc.GenericRpcHandler]) -> None:
            add_generic([_RecordedHandler(journal, handler) for handler in handlers])

        def registered(service: str, handlers: Mapping[str, Any]) -> None:
            recorded = {
                name: _recorded_handler(journal, f"/{service}/{name}", handler)
                for name, handler in handlers.items()
            }
            add_registered(service, recorded)

        made.add_generic_rpc_handlers = generic
        made.add_registered_method_handlers = registered
        return made

    grpc.aio.server = server


class _RecordedHandler(grpc.GenericRpcHandler):
    def __init__(self, journal: Journal, inner: grpc.GenericRpcHandler) -> None:
        self._journal = journal
        self._inner = inner

    def service(self, handler_call_details: Any) -> Any:
        handler = self._inner.service(handler_call_details)
        method = handler_call_details.method
        return handler and _recorded_handler(self._journal, method, handler)


def _recorded_handler(journal: Journal, method: str, handler: Any) -> Any:
    return handler._replace(
        request_deserializer=journal.deserializer(method, handler.request_deserializer),
        response_serializer=journal.serializer(method, handler.response_serializer),
    )


def watch_links(journal: Journal) -> None:
    """At a party: notes every frame of its links."""
    from aggregator.party import peers
    from mpc_vote.transport.exchange import exchange
    from mpc_vote.transport.frames import Kind, encode
    from mpc_vote.transport.link import Frame, Link

    send, receive = Link.send, Link.receive

    async def sending(self: Link, frame: bytes) -> None:
        journal.write(FRAME, SENT, frame)
        await send(self, frame)

    async def receiving(self: Link, *expected: int) -> Frame:
        frame = await receive(self, *expected)
        journal.write(FRAME, RECEIVED, encode(frame.kind, frame.content, frame.number))
        return frame

    def exchanging(links: Sequence[Link], payload: bytes, number: int, seconds: float) -> Any:
        for _ in links:
            journal.write(FRAME, SENT, encode(Kind.PAYLOAD, payload, number))
        payloads = exchange(links, payload, number, seconds)
        for one in payloads:
            journal.write(FRAME, RECEIVED, encode(Kind.PAYLOAD, one, number))
        return payloads

    cast(Any, Link).send, cast(Any, Link).receive = sending, receiving
    cast(Any, peers).exchange = exchanging


def watch_deeds(path: Path) -> None:
    """Notes what the process writes, starts and connects to, one line each."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if event == "open":
            name, _, flags = args
            if isinstance(name, int) or not flags & (os.O_WRONLY | os.O_RDWR):
                return
            what = name
        elif event in _MOVES:
            what = args[1]
        elif event in _DEEDS:
            what = args[1] if event.startswith("socket.") else args[0]
        else:
            return
        what = os.fsdecode(what) if isinstance(what, bytes | os.PathLike) else what
        os.write(file, f"{event} {what}\n".encode())

    sys.addaudithook(hook)


def watch_ballots(path: Path) -> None:
    """At an agent: keeps what it alone may know, to look for it elsewhere."""
    from agent_node import participation
    from mpc_vote.privacy.noise import SkellamSampler
    from mpc_vote.voting.aggregation import share_ballot

    draw = SkellamSampler.sample
    drawn: list[Any] = []

    def sample(self: SkellamSampler, *args: Any, **options: Any) -> Any:
        drawn.append(draw(self, *args, **options))
        return drawn[-1]

    def shared(spec: Any, name: str, noisy: Any) -> Any:
        shares = share_ballot(spec, name, noisy)
        assert len(drawn) == (0 if spec.message.verified else 1)
        noise = sum(drawn, np.zeros_like(noisy))
        explicit = spec.explicit_rank(name)
        np.savez(
            path,
            ballot=noisy - noise,
            noise=noise,
            explicit=explicit,
            residual=np.frombuffer(shares[explicit].packed, dtype=np.uint8),
            seeds=np.array([list(share.seed or bytes(32)) for share in shares], dtype=np.uint8),
        )
        return shares

    cast(Any, SkellamSampler).sample = sample
    cast(Any, participation).share_ballot = shared


def watch_coins(path: Path) -> None:
    """At a party: keeps its coins, to look for them elsewhere, and when it drew them."""
    from aggregator.party.journal import RoundJournal
    from mpc_vote.verified import summation

    fresh, mark = summation.fresh_bytes, RoundJournal.aggregate
    order = path.with_name("order.txt")

    def note(what: str) -> None:
        with order.open("a") as file:
            file.write(f"{what}\n")

    def marked(self: RoundJournal, round_id: str) -> bool:
        done = mark(self, round_id)
        note("marked")
        return done

    def watched() -> Any:
        note("drawn")
        take = fresh()

        def kept(size: int) -> bytes:
            drawn = take(size)
            with path.open("ab") as file:
                file.write(drawn)
            return drawn

        return kept

    summation.fresh_bytes = watched
    cast(Any, RoundJournal).aggregate = marked


def fix_groups(sizes: str) -> None:
    """At a coordinator: these groups for every round, in three rounds for each level."""
    from mpc_vote.argmax import registry
    from mpc_vote.argmax.engine import Schedule

    groups = tuple(int(size) for size in sizes.split(",") if size)
    cast(Any, registry).choose_schedule = lambda *_: Schedule(groups)


def main(arguments: Sequence[str]) -> int:
    """Runs the command after `--` under watch."""
    folder, mark, *command = arguments
    if mark != "--":
        raise SystemExit(__doc__)
    out = Path(folder)
    out.mkdir(parents=True, exist_ok=True)
    journal = Journal(out / "messages.bin")
    watch_channels(journal)
    watch_servers(journal)
    if command[0] == "party":
        watch_links(journal)
    if command[0] == "agent":
        watch_ballots(out / "truth.npz")
    if command[0] == "party":
        watch_coins(out / "coins.bin")
    if command[0] == "coordinator" and (sizes := os.environ.get(GROUPS)) is not None:
        fix_groups(sizes)
    watch_deeds(out / "deeds.txt")

    from mpc_vote import cli

    return cli.main(command)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
