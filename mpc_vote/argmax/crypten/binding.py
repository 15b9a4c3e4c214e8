"""CrypTen on this project's channel, dealer and randomness.

CrypTen as it ships draws masks from mt19937 seeded with 32 effective bits, lets rank 0 know every
triple, and talks over unauthenticated gloo with pickle. None of that is used here. `bound(channel,
preprocessing)` makes CrypTen's tensors in the current thread run on
  - our channel: only all-to-all reductions exist, everything else is refused;
  - our preprocessing: parts dealt by the dealer;
  - our CSPRNG: the four import sites of CrypTen's generators are replaced, and its generator table
    holds marks that torch's own random functions can't take, so a site that was missed fails
    instead of leaking.
Sessions are bound per thread, so several can run in one process.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from mpc_vote.argmax.crypten.triples import TripleKind, Triples
from mpc_vote.compat import import_crypten
from mpc_vote.mpc.channel import Channel
from mpc_vote.mpc.preprocessing import Preprocessing
from mpc_vote.mpc.prg import SeedStream, Words, new_seed

crypten = import_crypten()
import crypten.common.functions.maximum as maximum  # noqa: E402
import crypten.common.rng as crypten_rng  # noqa: E402
import crypten.communicator as crypten_communicator  # noqa: E402
import crypten.mpc as crypten_mpc  # noqa: E402
import crypten.mpc.primitives.arithmetic as crypten_arithmetic  # noqa: E402
import crypten.mpc.primitives.binary as crypten_binary  # noqa: E402
import crypten.mpc.provider.tfp_provider as crypten_tfp  # noqa: E402
import crypten.mpc.provider.ttp_provider as crypten_ttp  # noqa: E402
from crypten.mpc.primitives import ArithmeticSharedTensor, BinarySharedTensor  # noqa: E402
from crypten.mpc.provider.provider import TupleProvider  # noqa: E402

RANDOM_SITES = (crypten_arithmetic, crypten_binary, crypten_tfp, crypten_ttp, crypten_rng)


@dataclass(frozen=True)
class _Mark:
    """Stands in CrypTen's generator table where a torch generator was."""

    name: str


_COMBINE = {
    torch.distributed.ReduceOp.SUM: np.add,
    torch.distributed.ReduceOp.BXOR: np.bitwise_xor,
}


class Communicator(crypten_communicator.Communicator):  # type: ignore[misc]
    """CrypTen's communicator on a channel. What it inherits and does not define here is refused."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def get_rank(self) -> int:
        return self._channel.rank

    def get_world_size(self) -> int:
        return self._channel.size

    def all_reduce(
        self,
        input: torch.Tensor | list[torch.Tensor],
        op: Any = torch.distributed.ReduceOp.SUM,
        batched: bool = False,
    ) -> torch.Tensor | list[torch.Tensor]:
        """Opens shares: everybody sends its own, everybody adds (or xors) them all."""
        tensors = input if isinstance(input, list) else [input]
        payload = b"".join(t.contiguous().numpy().tobytes() for t in tensors)
        received = [np.frombuffer(p, dtype=np.int64) for p in self._channel.exchange(payload)]
        combine = _COMBINE[op]
        opened = torch.from_numpy(combine.reduce(received))
        sizes = [t.numel() for t in tensors]
        parts = torch.split(opened, sizes)
        results = [part.reshape(t.shape) for part, t in zip(parts, tensors, strict=True)]
        return results if batched else results[0]


class DealtProvider(TupleProvider):  # type: ignore[misc]
    """CrypTen's provider on dealt preprocessing; kinds that no argmax needs are refused."""

    NAME = "dealt"

    def __init__(self, preprocessing: Preprocessing) -> None:
        super().__init__()
        self._preprocessing = preprocessing

    def generate_additive_triple(
        self, size0: torch.Size, size1: torch.Size, op: str, device: Any = None
    ) -> tuple[Any, Any, Any]:
        if op != "mul" or size0 != size1:
            raise NotImplementedError(f"no preprocessing for {op} of {size0} and {size1}")
        part = self._preprocessing.take(Triples(TripleKind.PRODUCT, size0.numel()))
        return _arithmetic(part.a, size0), _arithmetic(part.b, size0), _arithmetic(part.c, size0)

    def generate_binary_triple(
        self, size0: torch.Size, size1: torch.Size, device: Any = None
    ) -> tuple[Any, Any, Any]:
        if size0 != size1:
            raise NotImplementedError(
                f"no preprocessing for the conjunction of {size0} and {size1}"
            )
        part = self._preprocessing.take(Triples(TripleKind.CONJUNCTION, size0.numel()))
        return _binary(part.a, size0), _binary(part.b, size0), _binary(part.c, size0)

    def B2A_rng(self, size: torch.Size, device: Any = None) -> tuple[Any, Any]:
        part = self._preprocessing.take(Triples(TripleKind.BIT, size.numel()))
        return _arithmetic(part.c, size), _binary(part.a, size)


def _tensor(words: Words, size: torch.Size) -> torch.Tensor:
    return torch.from_numpy(words.view(np.int64).copy()).reshape(size)


def _arithmetic(words: Words, size: torch.Size) -> Any:
    return ArithmeticSharedTensor.from_shares(_tensor(words, size), precision=0)


def _binary(words: Words, size: torch.Size) -> Any:
    return BinarySharedTensor.from_shares(_tensor(words, size), precision=0)


@dataclass
class CryptenSession:
    """What CrypTen of a thread runs on."""

    channel: Channel
    preprocessing: Preprocessing = field(repr=False)
    communicator: Communicator
    provider: DealtProvider
    streams: dict[str, SeedStream] = field(repr=False)


_current = threading.local()


def current_session() -> CryptenSession:
    """The session of this thread."""
    session: CryptenSession | None = getattr(_current, "session", None)
    if session is None:
        raise RuntimeError("CrypTen is used outside of bound(channel, preprocessing)")
    return session


def _random_words(size: Any, generator: Any) -> torch.Tensor:
    stream = current_session().streams[generator.name if generator is not None else "local"]
    shape = torch.Size(size)
    return _tensor(stream.words(shape.numel()), shape)


def random_ring_element(
    size: Any, ring_size: int = 2**64, generator: Any = None, **_: Any
) -> torch.Tensor:
    """Replaces CrypTen's `generate_random_ring_element`."""
    if ring_size != 2**64:
        raise NotImplementedError(f"ring of size {ring_size}")
    return _random_words(size, generator)


def random_kbit_tensor(
    size: Any, bitlength: int | None = None, generator: Any = None, **_: Any
) -> torch.Tensor:
    """Replaces CrypTen's `generate_kbit_random_tensor`."""
    words = _random_words(size, generator)
    return words if bitlength in (None, 64) else words & ((1 << int(bitlength or 0)) - 1)


def _patch() -> None:
    """Once, at import: see the module's docstring."""
    crypten_communicator.get = lambda: current_session().communicator
    crypten_mpc.get_default_provider = lambda: current_session().provider
    for site in RANDOM_SITES:
        if hasattr(site, "generate_random_ring_element"):
            site.generate_random_ring_element = random_ring_element
        if hasattr(site, "generate_kbit_random_tensor"):
            site.generate_kbit_random_tensor = random_kbit_tensor
    for name, table in crypten.generators.items():
        table.clear()
        table[torch.device("cpu")] = _Mark(name)
    # The helpers of argmax override this while they recurse; it is never to be anything else, or
    # sessions in two threads could see each other's override.
    crypten.cfg.functions.max_method = "pairwise"


def _refuse_debug_modes() -> None:
    if crypten.cfg.debug.debug_mode or crypten.cfg.debug.validation_mode:
        raise RuntimeError("CrypTen's debug modes open secrets: switch them off")


_patch()


@contextlib.contextmanager
def bound(channel: Channel, preprocessing: Preprocessing) -> Iterator[None]:
    """Runs CrypTen of this thread on the given session."""
    _refuse_debug_modes()
    if getattr(_current, "session", None) is not None:
        raise RuntimeError("this thread runs a session already")
    streams = {
        "prev": channel.previous_stream,
        "next": channel.next_stream,
        "local": SeedStream(new_seed()),
    }
    _current.session = CryptenSession(
        channel, preprocessing, Communicator(channel), DealtProvider(preprocessing), streams
    )
    try:
        yield
    finally:
        _current.session = None


def shared(words: Words, shape: Sequence[int]) -> Any:
    """An integer MPCTensor whose share at this party is `words`."""
    return crypten_mpc.MPCTensor.from_shares(_tensor(words, torch.Size(shape)), precision=0)


def zero_share(count: int) -> Words:
    """This party's part of a fresh sharing of zero, to re-randomise what leaves the committee."""
    share = ArithmeticSharedTensor.PRZS(torch.Size([count])).share
    words: Words = share.numpy().view(np.uint64)
    return words


def one_hot_argmax(tensor: Any, method: str) -> Words:
    """This party's share of CrypTen's argmax along the rows, with the given method."""
    winners = maximum._argmax_helper(tensor, dim=1, one_hot=True, method=method)
    words: Words = winners.share.numpy().view(np.uint64)
    return words
