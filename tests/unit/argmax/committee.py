"""A committee in one process that shares totals, runs an engine and keeps what went by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mpc_vote.argmax.engine import Engine, LabelCode
from mpc_vote.mpc import ring
from mpc_vote.mpc.channel import Channel, Traffic
from mpc_vote.mpc.in_process import run_committee
from mpc_vote.mpc.preprocessing import Item, P, Preprocessing
from mpc_vote.mpc.prg import SeedStream, Words, new_seed

Totals = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Recorded:
    """A committee's run and all that went by, in rank order."""

    classes: int
    code: LabelCode
    shares: list[Words]
    taken: list[list[Item[Any]]]
    sent: list[list[bytes]]
    traffic: list[Traffic]

    @property
    def labels(self) -> list[int]:
        """The winners, as the coordinator reads them from what each party sends."""
        rows = len(self.shares[0]) // self.code.per_row
        sent = [self.code.unpack(self.code.pack(share), rows) for share in self.shares]
        return [int(label) for label in self.code.labels(np.add.reduce(sent))]

    @property
    def sizes(self) -> list[list[int]]:
        """How many bytes each rank sent in each round."""
        return [[len(payload) for payload in sent] for sent in self.sent]

    @property
    def rounds(self) -> set[int]:
        """Rounds as the channels counted them."""
        return {traffic.rounds for traffic in self.traffic}


class Recorder:
    """A channel and a preprocessing that note what goes through them."""

    def __init__(self, channel: Channel, preprocessing: Preprocessing) -> None:
        self._channel, self._preprocessing = channel, preprocessing
        self.rank, self.size, self.traffic = channel.rank, channel.size, channel.traffic
        self.previous_stream = channel.previous_stream
        self.next_stream = channel.next_stream
        self.taken: list[Item[Any]] = []
        self.sent: list[bytes] = []

    def exchange(self, payload: bytes) -> Sequence[bytes]:
        self.sent.append(payload)
        return self._channel.exchange(payload)

    def take(self, item: Item[P]) -> P:
        self.taken.append(item)
        return self._preprocessing.take(item)


def share(totals: Totals, parties: int, bits: int = ring.WORD_BITS) -> list[Words]:
    """A fresh sharing modulo 2^bits, in words whose other bits mean nothing."""
    flat = np.ascontiguousarray(totals, dtype=np.int64).reshape(-1).view(np.uint64)
    masks = [SeedStream(new_seed()).words(flat.size) for _ in range(parties - 1)]
    rest = flat - np.add.reduce(masks)
    if bits < ring.WORD_BITS:
        rest += SeedStream(new_seed()).words(flat.size) << np.uint64(bits)
    return [*masks, rest]


def record(engine: Engine, parties: int, totals: Totals) -> Recorded:
    """One run on rows of totals."""
    shares = share(totals, parties, engine.ring_bits)
    classes = totals.shape[1]

    def program(channel: Channel, preprocessing: Preprocessing) -> tuple[Words, Recorder]:
        recorder = Recorder(channel, preprocessing)
        return engine.run(shares[channel.rank], classes, recorder, recorder), recorder

    results = run_committee(parties, program)
    recorders = [recorder for _, recorder in results]
    return Recorded(
        classes,
        engine.label_code(classes),
        [labels for labels, _ in results],
        [recorder.taken for recorder in recorders],
        [recorder.sent for recorder in recorders],
        [recorder.traffic for recorder in recorders],
    )
