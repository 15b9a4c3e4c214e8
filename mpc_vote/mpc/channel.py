"""What an engine needs of the network: one primitive, in which all parties send at once.

`exchange` costs one one-way delay: nobody waits for a reply before sending. Every implementation
counts what it really sends, and bounds every wait by a deadline.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from mpc_vote.mpc.prg import SeedStream, Words


@dataclass
class Traffic:
    """Rounds and payload bytes as they went over a channel.

    `frame_bytes_sent` counts what was sent with the headers of its frames. TLS adds 22 bytes to
    each 16 KiB of that.
    """

    rounds: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0
    frame_bytes_sent: int = 0


class Openings(Protocol):
    """Parties that open values to each other."""

    rank: int
    size: int
    traffic: Traffic

    def exchange(self, payload: bytes) -> Sequence[bytes]:
        """Sends `payload` to every other party; returns what each rank sent, one's own included.

        All parties send as many bytes.
        """
        ...


class Channel(Openings, Protocol):
    """A session among the parties of one aggregation."""

    # Streams of the zero sharing, one common with the rank before, one with the rank after. They
    # belong to the session and are read on, never from the start: a mask serves once.
    previous_stream: SeedStream
    next_stream: SeedStream


def zero_share(channel: Channel, count: int) -> Words:
    """This party's share of a fresh sharing of zero, modulo 2^64.

    Added to shares that leave the committee it makes them uniform but for their sum, even to the
    dealer, who knows all correlated randomness: the streams are the parties' own.
    """
    return channel.next_stream.words(count) - channel.previous_stream.words(count)
