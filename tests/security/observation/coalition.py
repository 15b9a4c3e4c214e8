"""What any P-1 parties see together, and whether two worlds can be told apart by it.

This is for CrypTen's engine: its items and openings are taken apart here.

A world fixes the ballots. One run of it shares them, lets a committee find the winners, and keeps
what each coalition of all parties but one holds afterwards, as named strings of bytes of a fixed
size: what came to it as it came, and what it can make of it by pooling. Pooling means adding up
the shares, opening the frames of all parties, and taking the coalition's own parts of the masks
off the openings: what is left hides behind the honest party's part alone.

Worlds are compared on many runs by how often each byte value occurs in a string, how often in the
differences of neighbouring words, and how often each single bit of it is set.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, reduce
from itertools import zip_longest

import numpy as np
import numpy.typing as npt
from scipy import stats

from mpc_vote.argmax.crypten.engine import CryptenArgmax
from mpc_vote.argmax.crypten.triples import TripleKind, TriplePart, Triples
from mpc_vote.mpc import sharing
from mpc_vote.mpc.channel import Channel
from mpc_vote.mpc.in_process import LocalPreprocessing, run_committee
from mpc_vote.mpc.preprocessing import Item, P, Preprocessing
from mpc_vote.mpc.prg import SeedStream, Words, new_seed
from mpc_vote.mpc.sharing import Share, ShareReader, sum_blocks

Ballots = Sequence[npt.NDArray[np.int64]]
Split = Callable[[npt.NDArray[np.int64], int, int, int], list[Share]]
View = dict[str, bytes]

RING_BITS = 64
FEW = 5
MAX_RUNS = 255


@dataclass
class _Party:
    """What one party holds at the end of a run."""

    shares: list[Share]
    seed: bytes
    items: list[Triples] = field(default_factory=list)
    parts: list[TriplePart] = field(default_factory=list)
    exchanges: list[list[Words]] = field(default_factory=list)
    label_share: Words = field(default_factory=lambda: np.zeros(0, dtype=np.uint64))


class _TappedChannel:
    """A channel, with every exchange kept."""

    def __init__(self, inner: Channel, party: _Party) -> None:
        self._inner = inner
        self._party = party
        self.rank, self.size, self.traffic = inner.rank, inner.size, inner.traffic
        self.previous_stream: SeedStream = inner.previous_stream
        self.next_stream: SeedStream = inner.next_stream

    def exchange(self, payload: bytes) -> Sequence[bytes]:
        received = self._inner.exchange(payload)
        self._party.exchanges.append([np.frombuffer(one, dtype="<u8") for one in received])
        return received


class _TappedPreprocessing:
    """Preprocessing, with every part kept."""

    def __init__(self, inner: Preprocessing, party: _Party) -> None:
        self._inner = inner
        self._party = party

    def take(self, item: Item[P]) -> P:
        part = self._inner.take(item)
        assert isinstance(item, Triples) and isinstance(part, TriplePart)
        self._party.items.append(item)
        self._party.parts.append(part)
        return part


@dataclass(frozen=True)
class Committee:
    """How runs are made; all but the engine is replaced only to show that a leak is seen."""

    parties: int
    engine: CryptenArgmax
    split: Split = sharing.split
    dealer_seed: Callable[[int], bytes] = lambda rank: new_seed()
    opens_labels: bool = False

    def run(self, ballots: Ballots) -> tuple[View, Words]:
        """One run: the views of all coalitions, and the labels."""
        uploads = [
            self.split(ballot, self.parties, number % self.parties, RING_BITS)
            for number, ballot in enumerate(ballots)
        ]
        seeds = [self.dealer_seed(rank) for rank in range(self.parties)]
        parties = [
            _Party([upload[rank] for upload in uploads], seeds[rank])
            for rank in range(self.parties)
        ]
        classes = ballots[0].shape[1]

        def program(channel: Channel, _: Preprocessing) -> None:
            party = parties[channel.rank]
            tapped = _TappedChannel(channel, party)
            preprocessing = _TappedPreprocessing(LocalPreprocessing(seeds, channel.rank), party)
            readers = [ShareReader(share, RING_BITS) for share in party.shares]
            totals = sum_blocks(readers, ballots[0].size)
            party.label_share = self.engine.run(totals, classes, tapped, preprocessing)
            if self.opens_labels:
                tapped.exchange(party.label_share.tobytes())

        run_committee(self.parties, program)
        view = dict(_common(parties))
        for honest in range(self.parties):
            pool = [party for rank, party in enumerate(parties) if rank != honest]
            for name, content in _pooled(pool, ballots[0].size):
                view[f"all but party {honest}: {name}"] = content
        return view, _sum(party.label_share for party in parties)


def _common(parties: Sequence[_Party]) -> Iterator[tuple[str, bytes]]:
    """What every party sees, and so every coalition: the frames of all, and what they open."""
    strings: dict[str, list[Words]] = {}
    for frames, item in zip_longest(parties[0].exchanges, parties[0].items):
        kind = item.kind.name.lower() if item else "no item"
        strings.setdefault(f"frames, {kind}", []).extend(frames)
        strings.setdefault(f"openings, {kind}", []).append(_opened(frames, item))
    return ((name, np.concatenate(words).tobytes()) for name, words in strings.items())


def _pooled(pool: Sequence[_Party], cells: int) -> Iterator[tuple[str, bytes]]:
    """What a coalition alone holds, and what it can make of it."""
    for number in range(len(pool[0].shares)):
        shares = [party.shares[number] for party in pool]
        held = [ShareReader(share, RING_BITS).take(cells) for share in shares]
        yield f"shares of agent {number}", b"".join(s.seed + s.packed for s in shares)
        yield f"expanded shares of agent {number}", np.concatenate(held).tobytes()
        yield f"sum of shares of agent {number}", _sum(held).tobytes()
    yield "dealt seeds", b"".join(party.seed for party in pool)
    yield "label shares", np.concatenate([party.label_share for party in pool]).tobytes()
    yield "sum of label shares", _sum(party.label_share for party in pool).tobytes()

    strings: dict[str, list[Words]] = {}
    for number, item in enumerate(pool[0].items):
        kind = item.kind.name.lower()
        parts = [party.parts[number] for party in pool]
        opened = _opened(pool[0].exchanges[number], item)
        strings.setdefault(f"openings less own masks, {kind}", []).append(
            _less_own_masks(opened, item, parts)
        )
        dependent = _xor if item.kind is TripleKind.CONJUNCTION else _sum
        strings.setdefault(f"dealt, {kind}", []).append(dependent(part.c for part in parts))
    for name, words in strings.items():
        yield name, np.concatenate(words).tobytes()


def _opened(frames: Sequence[Words], item: Triples | None) -> Words:
    """What an exchange opens; every item of the engine goes with one exchange."""
    shared_by_xor = item is not None and item.kind is not TripleKind.PRODUCT
    return _xor(frames) if shared_by_xor else _sum(frames)


def _less_own_masks(opened: Words, item: Triples, parts: Sequence[TriplePart]) -> Words:
    """Products open x - a and y - b, conjunctions x ^ a and y ^ b, bits x ^ a."""
    if item.kind is TripleKind.PRODUCT:
        less: Words = opened + np.concatenate([_sum(p.a for p in parts), _sum(p.b for p in parts)])
    elif item.kind is TripleKind.CONJUNCTION:
        less = opened ^ np.concatenate([_xor(p.a for p in parts), _xor(p.b for p in parts)])
    else:
        less = opened ^ _xor(p.a for p in parts)
    return less


def _sum(words: Iterator[Words] | Sequence[Words]) -> Words:
    return reduce(np.add, words)


def _xor(words: Iterator[Words] | Sequence[Words]) -> Words:
    return reduce(np.bitwise_xor, words)


class Profile:
    """What the views of one world's runs look like, taken together."""

    def __init__(self) -> None:
        self.runs = 0
        self.values: dict[str, npt.NDArray[np.int64]] = {}
        self.bits: dict[str, npt.NDArray[np.uint8]] = {}

    def add(self, view: View) -> None:
        """Counts one more run."""
        if self.runs and view.keys() != self.bits.keys():
            raise ValueError("two runs showed different things")
        if self.runs == MAX_RUNS:
            raise ValueError(f"a bit is counted in a byte: {MAX_RUNS} runs at most")
        self.runs += 1
        for name, content in view.items():
            data = np.frombuffer(content, dtype=np.uint8)
            steps = np.diff(data[: len(data) // 8 * 8].view("<u8")).view(np.uint8)
            for what, counted in ((name, data), (f"{name}, differences", steps)):
                histogram = np.bincount(counted, minlength=256)
                self.values[what] = self.values.get(what, 0) + histogram
            bits = np.unpackbits(data)
            self.bits[name] = self.bits[name] + bits if name in self.bits else bits


def differences(one: Profile, other: Profile, false_alarm: float) -> set[str]:
    """Strings in which two worlds differ; with equal ones, any at all with this probability.

    Half of the probability is for the byte values (chi-square of two samples, one test for each
    string and its differences), half for the single bits (Fisher's exact test, one per bit).
    """
    if one.runs != other.runs or one.bits.keys() != other.bits.keys():
        raise ValueError("profiles of different runs")
    suspicious = set()
    limit = false_alarm / 2 / len(one.values)
    for name, counts in one.values.items():
        if _same_distribution(counts, other.values[name]) < limit:
            suspicious.add(name)
    table = _fisher(one.runs)
    limit = false_alarm / 2 / sum(len(counts) for counts in one.bits.values())
    for name, bits in one.bits.items():
        if table[bits, other.bits[name]].min() < limit:
            suspicious.add(name)
    return suspicious


def _same_distribution(one: npt.NDArray[np.int64], other: npt.NDArray[np.int64]) -> float:
    """The p-value of a chi-square test; values too rare for it are taken as one."""
    both = np.stack([one, other])
    rare = both.sum(axis=0) < 2 * FEW
    cells = np.column_stack([both[:, ~rare], both[:, rare].sum(axis=1)])
    cells = cells[:, cells.sum(axis=0) >= 2 * FEW]
    if cells.shape[1] < 2:
        return 1.0
    return float(stats.chi2_contingency(cells, correction=False).pvalue)


@lru_cache(maxsize=2)
def _fisher(runs: int) -> npt.NDArray[np.float64]:
    """Two-sided p-values by how many runs of either world had a bit set."""
    table = np.ones((runs + 1, runs + 1))
    for ones in range(2 * runs + 1):
        here = np.arange(max(0, ones - runs), min(runs, ones) + 1)
        mass = stats.hypergeom(2 * runs, ones, runs).pmf(here)
        likelier = mass[None, :] > mass[:, None] * (1 + 1e-9)
        table[here, ones - here] = np.where(likelier, 0.0, mass[None, :]).sum(axis=1)
    return table
