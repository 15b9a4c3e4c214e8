"""The table engine in place of `x.argmax()`, for any CrypTen user's tensor of integers.

    from mpc_vote.argmax import integer_tensor, secure_argmax
    from mpc_vote.compat import import_crypten

    crypten = import_crypten()  # works with today's torch, which `import crypten` does not
    crypten.init()
    x = integer_tensor(torch.tensor([[3, 9, 4]]), src=0)
    secure_argmax(x, dim=1, one_hot=False).get_plain_text()

Within `mpc_vote.argmax.crypten.binding.bound` it runs on that session's channel and dealer, and all
that `mpc_vote.argmax.table.engine` says holds. In a plain CrypTen process there is no dealer: it
runs on CrypTen's communicator, and rank 0 deals, as in CrypTen's default provider. Rank 0 then
knows every mask and, being a party, sees every opening: it can compute all values by itself,
colluding with nobody, and deals unchecked. It is trusted with everything, the others with nothing;
and the transport is as safe as CrypTen's is.

Unlike CrypTen's argmax, a tie goes to the lower index. Values must be below 2^(bits-2) in absolute
value: nobody can check that on shares, so `integer_tensor` checks it before it shares. Tensors in
fixed point, CrypTen's default, are refused: scaled values soon leave that range.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from mpc_vote.argmax.one_hot import Rotation
from mpc_vote.argmax.one_hot import one_hot as rotate
from mpc_vote.argmax.table.engine import TableArgmax
from mpc_vote.argmax.table.grouping import choose_groups
from mpc_vote.argmax.table.level import MAX_BITS
from mpc_vote.compat import import_crypten
from mpc_vote.mpc.channel import Openings, Traffic
from mpc_vote.mpc.preprocessing import Item, P, Preprocessing
from mpc_vote.mpc.prg import SEED_BYTES, new_seed

_WORD_BITS = 64
_BINDING = "mpc_vote.argmax.crypten.binding"


def integer_tensor(values: torch.Tensor, src: int = 0, bits: int = MAX_BITS) -> Any:
    """Shares whole numbers as an MPCTensor; refuses what `secure_argmax` could get wrong."""
    if not isinstance(values, torch.Tensor):
        raise ValueError(f"a torch tensor is wanted, not a {type(values).__name__}")
    if values.is_floating_point() or values.is_complex() or values.dtype == torch.bool:
        raise ValueError(f"integers are wanted, not {values.dtype}: scale and round them first")
    largest = TableArgmax(bits).largest_total(1)
    if values.numel() and max(values.max().item(), -values.min().item()) > largest:
        raise ValueError(f"a value exceeds {largest}, the most that is compared right: scale down")
    return import_crypten().cryptensor(values, precision=0, src=src)


def argmax_plan(
    rows: int, classes: int, parties: int, one_hot: bool = True, bits: int = MAX_BITS
) -> list[Item[Any]]:
    """The preprocessing of one `secure_argmax`, for sessions that ask the dealer beforehand."""
    engine = _engine(rows, classes, parties, bits)
    hot = [Rotation(rows, classes)] if one_hot and classes > 1 else []
    return [*engine.plan(rows, classes, parties), *hot]


def secure_argmax(
    x: Any,
    dim: int | None = None,
    keepdim: bool = False,
    one_hot: bool = True,
    *,
    bits: int = MAX_BITS,
) -> Any:
    """The position of the largest element along `dim`, or among all: one-hot or as an index.

    Arguments and shapes are those of CrypTen's `argmax`.
    """
    crypten = import_crypten()
    if not isinstance(x, crypten.mpc.MPCTensor):
        raise ValueError(f"an MPCTensor is wanted, not a {type(x).__name__}")
    if x.ptype != crypten.mpc.arithmetic:
        raise ValueError("arithmetic shares are wanted: convert with x.to(crypten.mpc.arithmetic)")
    if x.encoder._scale != 1:
        raise ValueError(
            "the tensor is in fixed point: share integers with integer_tensor, "
            "or with crypten.cryptensor(values, precision=0)"
        )
    share = x.share
    last = share.reshape(1, -1) if dim is None else share.movedim(dim, -1)
    classes = last.shape[-1]
    if share.numel() == 0:
        raise ValueError("an empty tensor has no largest element")
    rows = share.numel() // classes
    channel, preprocessing = _session()
    engine = _engine(rows, classes, channel.size, bits)
    totals = np.ascontiguousarray(last.numpy()).reshape(-1).view(np.uint64)
    labels = engine.winners(totals, classes, channel, preprocessing)
    if not one_hot:
        result = labels.reshape(last.shape[:-1])
        if dim is None:
            result = result.reshape(())
        elif keepdim:
            result = np.expand_dims(result, dim % share.dim())
        return _tensor(result, x)
    if classes == 1:
        hot = np.full((rows, 1), int(channel.rank == channel.size - 1), np.uint64)
    else:
        item = Rotation(rows, classes)
        hot = rotate(labels, item, preprocessing.take(item), channel)
    hot = hot.reshape(last.shape)
    return _tensor(hot.reshape(share.shape) if dim is None else np.moveaxis(hot, -1, dim), x)


def _engine(rows: int, classes: int, parties: int, bits: int) -> TableArgmax:
    groups = choose_groups(rows, classes, parties, round_trip=0.0)
    return TableArgmax(bits, groups, label_bits=_WORD_BITS)


def _tensor(words: Any, like: Any) -> Any:
    share = torch.from_numpy(np.array(words, order="C").view(np.int64))
    result = like.new([])
    result._tensor = like._tensor.shallow_copy()
    result.share = share
    return result


def _session() -> tuple[Openings, Preprocessing]:
    binding = sys.modules.get(_BINDING)
    if binding is not None:
        # Once bound, CrypTen has no other communicator: outside of a session this raises.
        session = binding.current_session()
        return session.channel, session.preprocessing
    communicator = import_crypten().communicator.get()
    channel = _CommunicatorChannel(communicator)
    return channel, _FirstPartyPreprocessing(communicator)


class _CommunicatorChannel:
    """Openings over CrypTen's own communicator."""

    def __init__(self, communicator: Any) -> None:
        self._communicator = communicator
        self.rank = int(communicator.get_rank())
        self.size = int(communicator.get_world_size())
        self.traffic = Traffic()

    def exchange(self, payload: bytes) -> Sequence[bytes]:
        gathered = self._communicator.all_gather(_as_words(payload))
        self.traffic.rounds += 1
        self.traffic.bytes_sent += len(payload) * (self.size - 1)
        self.traffic.bytes_received += len(payload) * (self.size - 1)
        return [_as_bytes(words, len(payload)) for words in gathered]


class _FirstPartyPreprocessing:
    """Rank 0 draws everybody's seed and makes the corrections of the last rank: it knows all."""

    def __init__(self, communicator: Any) -> None:
        self._communicator = communicator
        self._rank = int(communicator.get_rank())
        self._last = int(communicator.get_world_size()) - 1
        self._index = 0
        self._seeds: list[bytes] = []
        if self._rank == 0:
            self._seeds = [new_seed() for _ in range(self._last + 1)]
            for rank in range(1, self._last + 1):
                communicator.send(_as_words(self._seeds[rank]), rank)
            self._seed = self._seeds[0]
        else:
            self._seed = self._receive(SEED_BYTES)

    def take(self, item: Item[P]) -> P:
        correction = None
        if self._rank == 0:
            correction = item.correct(self._seeds, self._index)
            if self._last > 0:
                self._communicator.send(_as_words(correction), self._last)
                correction = None
        elif self._rank == self._last:
            correction = self._receive(item.correction_bytes)
        part = item.expand(self._seed, self._index, correction)
        self._index += 1
        return part

    def _receive(self, size: int) -> bytes:
        blank = torch.empty((size + 7) // 8, dtype=torch.long)
        return _as_bytes(self._communicator.recv(blank, 0), size)


def _as_words(payload: bytes) -> torch.Tensor:
    padded = payload + bytes(-len(payload) % 8)
    return torch.from_numpy(np.frombuffer(padded, np.int64).copy())


def _as_bytes(words: torch.Tensor, size: int) -> bytes:
    return words.numpy().tobytes()[:size]
