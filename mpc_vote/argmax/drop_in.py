"""The table engine in place of `x.argmax()`, for any CrypTen user's tensor of a known range.

    from mpc_vote.argmax import secure_argmax
    from mpc_vote.compat import import_crypten

    crypten = import_crypten()  # works with today's torch, which `import crypten` does not
    crypten.init()
    x = crypten.cryptensor(torch.tensor([[0.25, 9.5, 4.0]]), src=0)
    secure_argmax(x, dim=1, one_hot=False, bound=10).get_plain_text()

`mpc_vote.argmax.switch` makes it one of CrypTen's own `max_method`s, for `max` and `min` as well.

Within `mpc_vote.argmax.crypten.binding.bound` it runs on that session's channel and dealer, and all
that `mpc_vote.argmax.table.engine` says holds. In a plain CrypTen process it runs on CrypTen's
communicator and provider, and whom that trusts is in `mpc_vote.argmax.provider`: by default rank 0,
with everything.

Unlike with CrypTen's argmax, a tie goes to the lower index. The result is a CrypTen tensor of whole
numbers, as CrypTen's own is. Values may not exceed `bound` in absolute value: nobody can check that
on shares, and a row with a value beyond has a wrong result.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from mpc_vote.argmax.engine import MAX_CLASSES
from mpc_vote.argmax.one_hot import MAX_ROTATED, Rotation
from mpc_vote.argmax.one_hot import one_hot as rotate
from mpc_vote.argmax.provider import ProviderPreprocessing, provided
from mpc_vote.argmax.registry import TABLE
from mpc_vote.argmax.table.engine import TableArgmax
from mpc_vote.argmax.table.grouping import choose_groups
from mpc_vote.argmax.table.level import MAX_BITS
from mpc_vote.compat import import_crypten
from mpc_vote.mpc.channel import Openings
from mpc_vote.mpc.preprocessing import Item, Preprocessing
from mpc_vote.mpc.prg import Words

LARGEST = TableArgmax(MAX_BITS).largest_total(1)
"""What is compared right may not exceed this in absolute value, in units of the encoding."""

_WORD_BITS = 64
_BINDING = "mpc_vote.argmax.crypten.binding"


def integer_tensor(values: torch.Tensor, src: int = 0, bound: int = LARGEST) -> Any:
    """Shares whole numbers as an MPCTensor; refuses what `secure_argmax` could get wrong."""
    if not isinstance(values, torch.Tensor):
        raise ValueError(f"a torch tensor is wanted, not a {type(values).__name__}")
    if values.is_floating_point() or values.is_complex() or values.dtype == torch.bool:
        raise ValueError(f"integers are wanted, not {values.dtype}: scale and round them first")
    largest = min(bound, LARGEST)
    if values.numel() and max(values.max().item(), -values.min().item()) > largest:
        raise ValueError(f"a value exceeds {largest}, the most that is compared right: scale down")
    return import_crypten().cryptensor(values, precision=0, src=src)


def argmax_plan(
    rows: int, classes: int, parties: int, one_hot: bool = True, bound: int = LARGEST
) -> list[Item[Any]]:
    """The preprocessing of one `secure_argmax`, for sessions that ask the dealer beforehand."""
    engine = _engine(rows, classes, parties, bound)
    blocks = _blocks(engine, rows, classes)
    return [item for block in blocks for item in _items(engine, block, classes, parties, one_hot)]


def secure_argmax(
    x: Any,
    dim: int | None = None,
    keepdim: bool = False,
    one_hot: bool = True,
    *,
    bound: float | None = None,
) -> Any:
    """The position of the largest element along `dim`, or among all: one-hot or as an index.

    Arguments and shapes are those of CrypTen's `argmax`. No value may exceed `bound` in absolute
    value: the less it is, the less is computed and sent. It may be left out for integers, which
    then may not exceed 2^29 - 1.
    """
    largest = _checked(x, bound)
    share = x.share
    last = share.reshape(1, -1) if dim is None else share.movedim(dim, -1)
    classes = last.shape[-1]
    if share.numel() == 0:
        raise ValueError("an empty tensor has no largest element")
    if classes > MAX_CLASSES:
        raise ValueError(
            f"the largest of {classes} elements is wanted, and {MAX_CLASSES} is the most: take the "
            "largest of parts first, then the largest of these"
        )
    totals = np.ascontiguousarray(last.numpy()).reshape(-1, classes).view(np.uint64)
    found = _found(totals, one_hot, largest)
    if one_hot:
        hot = found.reshape(last.shape)
        return _tensor(hot.reshape(share.shape) if dim is None else np.moveaxis(hot, -1, dim))
    index = found.reshape(last.shape[:-1])
    if dim is None:
        index = index.reshape(())
    elif keepdim:
        index = np.expand_dims(index, dim % share.dim())
    return _tensor(index)


def _checked(x: Any, bound: float | None) -> int:
    """The bound of a tensor that can be taken, in units of its encoding."""
    crypten = import_crypten()
    if not isinstance(x, crypten.mpc.MPCTensor):
        raise ValueError(f"an MPCTensor is wanted, not a {type(x).__name__}")
    if x.ptype != crypten.mpc.arithmetic:
        raise ValueError("arithmetic shares are wanted: convert with x.to(crypten.mpc.arithmetic)")
    if x.device.type != "cpu":
        raise ValueError(f"the table runs on the CPU, not on {x.device}: move x there with x.cpu()")
    scale = int(x.encoder._scale)
    if bound is None:
        if scale != 1:
            raise ValueError("the tensor is in fixed point: state its range with bound")
        return LARGEST
    if isinstance(bound, bool) or not isinstance(bound, int | float) or not 0 < bound < math.inf:
        raise ValueError(f"the bound of a tensor's values is a positive number, not {bound!r}")
    largest = math.ceil(bound * scale)
    if largest > LARGEST:
        raise ValueError(
            f"values up to {bound:g} in units of 1/{scale} leave the table's range: the bound may "
            f"be {LARGEST // scale} here; scale the values down, or use a lower precision"
        )
    return largest


def _found(totals: Words, one_hot: bool, bound: int) -> Words:
    """This party's shares of the winners' indices, (rows,), or one-hot, (rows, classes)."""
    rows, classes = totals.shape
    channel, preprocessing = _session()
    engine = _engine(rows, classes, channel.size, bound)
    parts, start = [], 0
    for block in _blocks(engine, rows, classes):
        if isinstance(preprocessing, ProviderPreprocessing):
            preprocessing.prepare(_items(engine, block, classes, channel.size, one_hot))
        part = totals[start : start + block].reshape(-1)
        start += block
        labels = engine.winners(part, classes, channel, preprocessing)
        parts.append(_hot(labels, classes, channel, preprocessing) if one_hot else labels)
    return np.concatenate(parts)


def _hot(labels: Words, classes: int, channel: Openings, preprocessing: Preprocessing) -> Words:
    if classes == 1:
        return np.full((labels.size, 1), int(channel.rank == channel.size - 1), np.uint64)
    item = Rotation(labels.size, classes)
    return rotate(labels, item, preprocessing.take(item), channel)


def _engine(rows: int, classes: int, parties: int, bound: int) -> TableArgmax:
    bits = TABLE.ring_bits(bound)
    # Labels stay with the parties: that takes three rounds for each level.
    groups = choose_groups(rows, classes, parties, round_trip=0.0, bits=bits)
    return TableArgmax(bits, groups, label_bits=_WORD_BITS)


def _blocks(engine: TableArgmax, rows: int, classes: int) -> Iterator[int]:
    """Rows of each run, to bound its memory."""
    most = max(1, min(engine.block_rows(classes), MAX_ROTATED // Rotation(1, classes).places))
    for start in range(0, rows, most):
        yield min(most, rows - start)


def _items(
    engine: TableArgmax, rows: int, classes: int, parties: int, one_hot: bool
) -> list[Item[Any]]:
    hot = [Rotation(rows, classes)] if one_hot and classes > 1 else []
    return [*engine.plan(rows, classes, parties), *hot]


def _tensor(words: Any) -> Any:
    share = torch.from_numpy(np.array(words, order="C").view(np.int64))
    return import_crypten().mpc.MPCTensor.from_shares(share, precision=0)


def _session() -> tuple[Openings, Preprocessing]:
    binding = sys.modules.get(_BINDING)
    if binding is not None:
        # Once bound, CrypTen has no other communicator: outside of a session this raises.
        session = binding.current_session()
        return session.channel, session.preprocessing
    provider = provided()
    return provider.channel, provider
