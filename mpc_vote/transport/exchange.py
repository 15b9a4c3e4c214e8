"""One exchange over links: a payload to every peer, and one from each, in the caller's thread.

All is sent before anything is awaited, and while a peer is slow to read the others' payloads are
read: so nobody waits for a peer that waits for it, however large payloads are. No message is handed
from one thread to another.
"""

from __future__ import annotations

import contextlib
import select
import time
from collections.abc import Sequence

from mpc_vote.transport.frames import HEADER_BYTES, FrameError, Header, Kind
from mpc_vote.transport.link import Frame, Link, LinkError, reason

# Encrypted at a time: enough to be quick, little enough to be sent while the rest is encrypted.
_WRITE_BYTES = 1 << 17


class Interrupted(Exception):
    """An exchange that one link has ended: by a frame that is no payload, or none at all."""

    def __init__(self, link: Link, cause: Frame | LinkError | FrameError) -> None:
        self.link = link
        self.cause = cause
        super().__init__(str(cause))


class _Transfer:
    """The part of one link: a frame that goes out, and one like it that comes in."""

    def __init__(self, link: Link, header: Header, frame: bytes) -> None:
        self.link = link
        self._header, self._expected = header, frame[:HEADER_BYTES]
        self._unwritten, self._unsent = memoryview(frame), memoryview(b"")
        self._into, self._at = memoryview(bytearray(HEADER_BYTES)), 0
        self._begun = False

    def advance(self) -> int:
        """Sends and reads what is possible; what to wait for next, or 0 where all is done."""
        try:
            sent, received = self._send(), self._receive()
        except (LinkError, FrameError) as error:
            raise Interrupted(self.link, error) from error
        except OSError as error:
            raise Interrupted(self.link, LinkError(reason(error))) from error
        return (0 if sent else select.POLLOUT) | (0 if received else select.POLLIN)

    def begin(self) -> int:
        """Sends what the connection takes at once; what to wait for next."""
        # If that fails, so does what follows.
        with contextlib.suppress(OSError):
            if self._send():
                return select.POLLIN
        return select.POLLIN | select.POLLOUT

    def _send(self) -> bool:
        """Sends what the connection takes; whether that was all."""
        try:
            while self._unwritten or self._unsent:
                if not self._unsent:
                    piece = self._unwritten[:_WRITE_BYTES]
                    self._unwritten = self._unwritten[_WRITE_BYTES:]
                    self._unsent = memoryview(self.link.encrypted(piece))
                self._unsent = self._unsent[self.link.put(self._unsent) :]
        except BlockingIOError:
            return False
        return True

    def _receive(self) -> bool:
        """Reads what has come, no further than the frame's end; whether that was all of it."""
        try:
            while True:
                while self._at < len(self._into):
                    self._at += self.link.pull(self._into[self._at :])
                if self._begun:
                    return True
                self._begin()
        except BlockingIOError:
            return False

    def _begin(self) -> None:
        """Once a header has come, makes room for what it announces."""
        if self._into != self._expected:
            # In the place of a payload a peer may say that it leaves; there is room for no other.
            self._header = Header.parse(bytes(self._into))
        self._into, self._at, self._begun = memoryview(bytearray(self._header.length)), 0, True

    def payload(self) -> bytes:
        """What has come."""
        content = bytes(self._into)
        if self._header.kind is not Kind.PAYLOAD:
            raise Interrupted(self.link, Frame(self._header.kind, content))
        return content


def exchange(links: Sequence[Link], payload: bytes, number: int, seconds: float) -> list[bytes]:
    """Sends a payload on every link and returns what came on each: as many bytes, under the same
    number.

    A TimeoutError says that it took longer than these seconds.
    """
    deadline = time.monotonic() + seconds
    header = Header(Kind.PAYLOAD, number, len(payload))
    frame = bytes(header) + payload
    taken: list[Link] = []
    try:
        for link in links:
            _take(link)
            taken.append(link)
        return _carry([_Transfer(link, header, frame) for link in links], deadline)
    finally:
        for link in taken:
            link.release()


def _take(link: Link) -> None:
    try:
        link.take()
    except LinkError as error:
        raise Interrupted(link, error) from error


def _carry(transfers: Sequence[_Transfer], deadline: float) -> list[bytes]:
    """What came of each transfer."""
    poll, under_way, received = select.poll(), dict[int, _Transfer](), dict[_Transfer, bytes]()
    for transfer in transfers:
        at = transfer.link.fileno()
        poll.register(at, transfer.begin())
        under_way[at] = transfer
    # What comes may have been read along with what came before.
    ready = [at for at, transfer in under_way.items() if transfer.link.buffered]
    while True:
        for at in ready:
            transfer = under_way[at]
            if wants := transfer.advance():
                poll.modify(at, wants)
            else:
                poll.unregister(at)
                received[transfer] = transfer.payload()
        if len(received) == len(transfers):
            return [received[transfer] for transfer in transfers]
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        ready = [at for at, _ in poll.poll(1_000 * left)]
