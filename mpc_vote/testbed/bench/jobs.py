"""What the driver of a benchmark and a party that is measured tell each other, a JSON line each.

Every request gets one answer. The totals of a job, and all shares of them, follow from its public
seed: nothing in a benchmark is secret, and so every label can be checked.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from typing import Annotated, Literal

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from mpc_vote.app.config import Engine as EngineOption
from mpc_vote.argmax.engine import Engine
from mpc_vote.mpc.prg import Words

Integers = npt.NDArray[np.int64]

# Numbers that are near each other: about every second row has several winners.
_SMALL = 3


class _Message(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ArgmaxJob(_Message):
    """One secure argmax: `parties` in rank order, over `rows` rows of `classes` totals."""

    session: str
    parties: tuple[str, ...]
    engine: EngineOption
    bits: int
    groups: tuple[int, ...]
    two_rounds: bool = False
    rows: int
    classes: int
    seed: str
    repeat: int

    def make_engine(self) -> Engine:
        """The engine that the job asks for."""
        return self.engine.make(self.bits, self.groups, self.two_rounds)

    def digest(self) -> bytes:
        """What the parties must agree on."""
        return hashlib.sha256(self.model_dump_json().encode()).digest()

    def totals(self) -> Integers:
        """The totals, a row each, of four kinds in turn.

        Small ones with many ties, the ends of the engine's range, all of that range, all equal.
        """
        largest = self.make_engine().largest_total(self.classes)
        shape = (self.rows, self.classes)
        rng = self._rng("totals")
        anywhere = rng.integers(-largest, largest, shape, endpoint=True)
        kinds = [
            rng.integers(0, _SMALL, shape, endpoint=True),
            rng.choice(np.array([-largest, 1 - largest, largest - 1, largest]), shape),
            anywhere,
            np.repeat(anywhere[:, :1], self.classes, axis=1),
        ]
        kind = (np.arange(self.rows) + self.repeat) % len(kinds)
        totals: Integers = np.choose(kind[:, None], kinds)
        return totals

    def share(self, rank: int) -> Words:
        """One party's shares of the totals, row by row."""
        if rank > 0:
            return self._drawn_share(rank)
        share: Words = self.totals().reshape(-1).view(np.uint64).copy()
        for other in range(1, len(self.parties)):
            share -= self._drawn_share(other)
        return share

    def winners(self) -> Integers:
        """What the parties must find; ties go to the lower class."""
        labels: Integers = self.totals().argmax(axis=1)
        return labels

    def _drawn_share(self, rank: int) -> Words:
        cells = self.rows * self.classes
        return self._rng(f"share {rank}").integers(0, 1 << 64, cells, dtype=np.uint64)

    def _rng(self, purpose: str) -> np.random.Generator:
        text = f"{self.seed}/{self.repeat}/{purpose}"
        return np.random.default_rng(list(hashlib.sha256(text.encode()).digest()))


class Probe(_Message):
    """Asks for the round trip to each of these peers, by name and address."""

    kind: Literal["probe"] = "probe"
    peers: dict[str, str]


class SizePreprocessing(_Message):
    """Asks how much preprocessing a job takes."""

    kind: Literal["size_preprocessing"] = "size_preprocessing"
    job: ArgmaxJob


class Prepare(_Message):
    """Asks a party to have all of a job's preprocessing, and links to all peers.

    `peers` are the parties of higher rank, which it dials.
    """

    kind: Literal["prepare"] = "prepare"
    job: ArgmaxJob
    peers: dict[str, str]


class Go(_Message):
    """Starts what was prepared, at a moment of the machine's monotonic clock: the parties, all on
    this machine, begin at once."""

    kind: Literal["go"] = "go"
    at: float


class Ready(_Message):
    """The party can go on; with the round trips in seconds if they were asked for."""

    kind: Literal["ready"] = "ready"
    round_trips: dict[str, float] = {}


class PreprocessingSize(_Message):
    """Memory that a party's preprocessing of a job takes."""

    kind: Literal["preprocessing_size"] = "preprocessing_size"
    preprocessing_bytes: int


class PartyMeasurement(_Message):
    """What one party measured, and its shares of the labels.

    Seconds from the common start to the last label share; processor seconds of the whole process in
    that time; payload bytes sent to all peers together, and the same with the frames' headers;
    bytes that the dealer sent before; the most memory that the process held meanwhile.
    """

    kind: Literal["measurement"] = "measurement"
    seconds: float
    cpu_seconds: float
    rounds: int
    bytes_sent: int
    frame_bytes_sent: int
    dealer_bytes: int
    peak_memory_bytes: int
    label_shares: str

    @staticmethod
    def encode(packed: bytes) -> str:
        """Label shares as text."""
        return base64.b64encode(packed).decode()

    def decode(self) -> bytes:
        """The label shares of this party, packed."""
        return base64.b64decode(self.label_shares, validate=True)


class Failure(_Message):
    """The party could not do it."""

    kind: Literal["failure"] = "failure"
    error: str


Request = Annotated[Probe | SizePreprocessing | Prepare | Go, Field(discriminator="kind")]
Answer = Annotated[
    Ready | PreprocessingSize | PartyMeasurement | Failure, Field(discriminator="kind")
]

REQUESTS: TypeAdapter[Request] = TypeAdapter(Request)
ANSWERS: TypeAdapter[Answer] = TypeAdapter(Answer)


def reveal(job: ArgmaxJob, outcomes: Sequence[PartyMeasurement]) -> Integers:
    """The labels that the parties' shares add up to."""
    code = job.make_engine().label_code(job.classes)
    shares = [code.unpack(outcome.decode(), job.rows) for outcome in outcomes]
    return code.labels(np.add.reduce(shares)).astype(np.int64)
