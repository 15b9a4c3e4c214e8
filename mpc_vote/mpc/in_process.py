"""A whole committee in one process, one thread per party: for simulation and for tests.

It runs the same engines on the same preprocessing as the service; only the network is missing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from mpc_vote.mpc.channel import Channel, Traffic
from mpc_vote.mpc.preprocessing import Item, P, Preprocessing
from mpc_vote.mpc.prg import SeedStream, new_seed

T = TypeVar("T")
_WAIT_SECONDS = 60.0


class _Board:
    """Where the parties of a session lay down their payloads."""

    def __init__(self, size: int) -> None:
        self.payloads: list[bytes] = [b""] * size
        self.barrier = threading.Barrier(size, timeout=_WAIT_SECONDS)
        self.zero_seeds = [new_seed() for _ in range(size)]


class LocalChannel:
    """A channel among threads."""

    def __init__(self, board: _Board, rank: int) -> None:
        self._board = board
        self.rank = rank
        self.size = len(board.payloads)
        self.traffic = Traffic()
        self.previous_stream = SeedStream(board.zero_seeds[rank - 1])
        self.next_stream = SeedStream(board.zero_seeds[rank])

    def exchange(self, payload: bytes) -> Sequence[bytes]:
        self._board.payloads[self.rank] = payload
        self._board.barrier.wait()
        received = list(self._board.payloads)
        self._board.barrier.wait()
        self.traffic.rounds += 1
        self.traffic.bytes_sent += len(payload) * (self.size - 1)
        self.traffic.bytes_received += sum(map(len, received)) - len(payload)
        return received


class LocalPreprocessing:
    """Preprocessing expanded on the spot from the seeds of all parties."""

    def __init__(self, seeds: Sequence[bytes], rank: int) -> None:
        self._seeds = seeds
        self._rank = rank
        self._index = 0

    def take(self, item: Item[P]) -> P:
        last = self._rank == len(self._seeds) - 1
        correction = item.correct(self._seeds, self._index) if last else None
        part = item.expand(self._seeds[self._rank], self._index, correction)
        self._index += 1
        return part


def run_committee(parties: int, program: Callable[[Channel, Preprocessing], T]) -> list[T]:
    """Runs `program` once per party and returns the results in rank order."""
    board = _Board(parties)
    seeds = [new_seed() for _ in range(parties)]

    def party(rank: int) -> T:
        try:
            return program(LocalChannel(board, rank), LocalPreprocessing(seeds, rank))
        except BaseException:
            board.barrier.abort()
            raise

    with ThreadPoolExecutor(parties) as pool:
        futures = [pool.submit(party, rank) for rank in range(parties)]
        errors = [error for f in futures if (error := f.exception()) is not None]
        for error in errors:
            if not isinstance(error, threading.BrokenBarrierError):
                raise error
        return [f.result() for f in futures]
