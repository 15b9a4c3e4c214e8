"""Openings and preprocessing of the table engine in a plain CrypTen process.

Openings go over CrypTen's own communicator. Preprocessing comes from whom CrypTen's setting
`mpc.provider` names for its triples, and so the trust is CrypTen's:

`TFP`, its default: rank 0 deals. It draws everybody's seed and makes the corrections, which are its
own. It knows every mask and, being a party, sees every opening: it can compute all values by
itself, colluding with nobody. It is trusted with everything, the others with nothing.

`TTP`: a process of its own deals. Each party draws its seed and sends it there; rank 0 tells what
is wanted, and gets the corrections, as it does in CrypTen. Any P-1 parties together learn nothing,
as long as the third party colludes with none of them: with one it knows every value. The third
party chooses the items' numbers, so that rank 0 can't have one seed's stream used twice.

In both cases whoever deals is not checked, and the transport is as safe as CrypTen's is: plain TCP,
without authentication or encryption, so a seed that is sent can be read on the way.

In the terms of `mpc_vote.mpc.preprocessing`, CrypTen's rank 0 is the last party, whom corrections
are for: ranks are counted backwards here.
"""

from __future__ import annotations

import dataclasses
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from mpc_vote.argmax.one_hot import Rotation
from mpc_vote.argmax.table.level import LevelTables
from mpc_vote.compat import import_crypten
from mpc_vote.mpc.channel import Traffic
from mpc_vote.mpc.preprocessing import Item, P
from mpc_vote.mpc.prg import SEED_BYTES, new_seed

_ITEMS: dict[str, type[Item[Any]]] = {kind.wire_name: kind for kind in (LevelTables, Rotation)}
_SEED_TAG = 77
"""Keeps seeds apart from CrypTen's own messages to its third party."""


class CommunicatorChannel:
    """Openings over CrypTen's communicator."""

    def __init__(self, communicator: Any) -> None:
        self._communicator = communicator
        self.size = int(communicator.get_world_size())
        self.rank = self.size - 1 - int(communicator.get_rank())
        self.traffic = Traffic()

    def exchange(self, payload: bytes) -> Sequence[bytes]:
        gathered = self._communicator.all_gather(_as_words(payload))
        self.traffic.rounds += 1
        self.traffic.bytes_sent += len(payload) * (self.size - 1)
        self.traffic.bytes_received += len(payload) * (self.size - 1)
        return [_as_bytes(words, len(payload)) for words in reversed(gathered)]


class ProviderPreprocessing(ABC):
    """Preprocessing for one party's whole CrypTen session; it begins with fresh seeds."""

    def __init__(self, communicator: Any) -> None:
        self.communicator = communicator
        self.channel = CommunicatorChannel(communicator)
        self._last = self.channel.rank == self.channel.size - 1
        self._seed = self._agree()
        self._index = 0
        self._corrections: deque[bytes] = deque()

    @abstractmethod
    def _agree(self) -> bytes:
        """This party's seed, which whoever deals knows as well."""

    @abstractmethod
    def _deal(self, items: Sequence[Item[Any]]) -> list[bytes]:
        """The last party's corrections of these items, the next ones."""

    def prepare(self, items: Sequence[Item[Any]]) -> None:
        """Has these items dealt, before they are taken in this order."""
        if self._last:
            self._corrections.extend(self._deal(items))

    def take(self, item: Item[P]) -> P:
        """This party's share of the next item."""
        correction = self._corrections.popleft() if self._last else None
        part = item.expand(self._seed, self._index, correction)
        self._index += 1
        return part


class FirstParty(ProviderPreprocessing):
    """CrypTen's rank 0 deals: it knows all."""

    def _agree(self) -> bytes:
        self._seeds = [new_seed() for _ in range(self.channel.size)] if self._last else []
        self._dealt = 0
        # Each party is sent its own seed alone; of one party CrypTen's scatter makes nonsense.
        words = [_as_words(seed) for seed in reversed(self._seeds)]
        mine = words[0] if len(words) == 1 else self._scatter(words)
        return _as_bytes(mine, SEED_BYTES)

    def _scatter(self, words: Sequence[torch.Tensor]) -> torch.Tensor:
        mine: torch.Tensor = self.communicator.scatter(words, 0, size=(SEED_BYTES // 8,))
        return mine

    def _deal(self, items: Sequence[Item[Any]]) -> list[bytes]:
        corrections = [
            item.correct(self._seeds, index) for index, item in enumerate(items, self._dealt)
        ]
        self._dealt += len(items)
        return corrections


class ThirdParty(ProviderPreprocessing):
    """CrypTen's trusted third party deals, once `serve` has taught it how."""

    def _agree(self) -> bytes:
        seed = new_seed()
        sending = torch.distributed.isend(
            _as_words(seed),
            dst=self.communicator.get_ttp_rank(),
            group=self.communicator.ttp_group,
            tag=_SEED_TAG,
        )
        if self._last:
            self._request("table_seeds")
        _finish(sending)
        return seed

    def _deal(self, items: Sequence[Item[Any]]) -> list[bytes]:
        wanted = [(item.wire_name, dataclasses.asdict(item)) for item in items]  # type: ignore[call-overload]
        dealt = _as_bytes(self._request("table_corrections", wanted))
        corrections, start = [], 0
        for item in items:
            corrections.append(dealt[start : start + item.correction_bytes])
            start += item.correction_bytes
        return corrections

    def _request(self, function: str, *arguments: Any) -> torch.Tensor:
        client = import_crypten().mpc.provider.ttp_provider.TTPClient.get()
        answer: torch.Tensor = client.ttp_request(function, None, *arguments)
        return answer


def serve() -> None:
    """Teaches CrypTen's third party, if this process becomes one, to deal for the table engine."""
    server = import_crypten().mpc.provider.TTPServer
    server.table_seeds = _collect_seeds
    server.table_corrections = _correct


def _collect_seeds(self: Any) -> torch.Tensor:
    """At the third party: each party's seed, for a session that begins."""
    size = import_crypten().communicator.get().get_world_size()
    seeds = []
    for rank in range(size):
        words = torch.empty(SEED_BYTES // 8, dtype=torch.long)
        _finish(torch.distributed.irecv(words, src=rank, group=self.ttp_group, tag=_SEED_TAG))
        seeds.append(_as_bytes(words, SEED_BYTES))
    self.table_session = (seeds[::-1], 0)
    return torch.zeros(1, dtype=torch.long)


def _correct(self: Any, wanted: Sequence[tuple[str, dict[str, Any]]]) -> torch.Tensor:
    """At the third party: corrections of the next items, one after the other."""
    seeds, index = self.table_session
    items = [_ITEMS[name].read(fields) for name, fields in wanted]
    self.table_session = (seeds, index + len(items))
    return _as_words(b"".join(item.correct(seeds, index + n) for n, item in enumerate(items)))


_PROVIDERS: dict[str, type[ProviderPreprocessing]] = {"TFP": FirstParty, "TTP": ThirdParty}
_sessions: weakref.WeakKeyDictionary[Any, ProviderPreprocessing] = weakref.WeakKeyDictionary()


def provided() -> ProviderPreprocessing:
    """This party's session with CrypTen's communicator and provider; all parties ask for it at the
    same time."""
    crypten = import_crypten()
    communicator, name = crypten.communicator.get(), crypten.cfg.mpc.provider
    if name not in _PROVIDERS:
        known = " or ".join(_PROVIDERS)
        raise ValueError(
            f"CrypTen's provider {name} deals no tables: set cfg.mpc.provider to {known}"
        )
    session = _sessions.get(communicator)
    if not isinstance(session, _PROVIDERS[name]):
        session = _sessions[communicator] = _PROVIDERS[name](communicator)
    return session


def _finish(work: torch.distributed.Work | None) -> None:
    # None is for processes outside of the group, which ours never are.
    assert work is not None
    work.wait()


def _as_words(payload: bytes) -> torch.Tensor:
    padded = payload + bytes(-len(payload) % 8)
    return torch.from_numpy(np.frombuffer(padded, np.int64).copy())


def _as_bytes(words: torch.Tensor, size: int | None = None) -> bytes:
    return words.numpy().tobytes()[:size]
