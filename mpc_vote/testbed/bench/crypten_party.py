"""One party of `mpc-vote bench crypten`: a plain CrypTen process, with nothing of the service's.

It is started with CrypTen's own environment variables (`RANK`, `WORLD_SIZE`, `RENDEZVOUS`) and a
job as JSON; rank 0 prints what was measured. With provider TTP the last process is the third party.

All parties know the inputs, so that each can check every result against plain torch.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from mpc_vote.app.process import die_with_parent
from mpc_vote.argmax import register_max_method
from mpc_vote.argmax.provider import provided
from mpc_vote.compat import import_crypten

BOUND = 128
"""No value of the inputs, nor of a score, exceeds it."""

_PICTURE = 8
_CLOSE = 1e-2
"""What CrypTen's truncations may do to a value."""


@dataclass(frozen=True)
class CryptenJob:
    """What all parties do."""

    methods: list[str]
    provider: str
    rows: int
    classes: int
    repeats: int


@dataclass(frozen=True)
class CryptenProgram:
    """A program on a CrypTen tensor, its input, and what plain torch makes of it."""

    inputs: torch.Tensor
    encrypted: Callable[[Any], Any]
    plain: Callable[[torch.Tensor], torch.Tensor]


def programs(job: CryptenJob) -> dict[str, CryptenProgram]:
    """By name; the inputs are public and the same at all parties."""
    generator = torch.Generator().manual_seed(job.rows * 1_009 + job.classes)
    # Steps of a quarter: exact in fixed point. In a row all differ, since CrypTen breaks ties at
    # random, and after a product no two are closer than its truncation is wrong.
    order = torch.rand(job.rows, job.classes, generator=generator).argsort(dim=1)
    scores = (order - job.classes // 2) * min(0.25, BOUND / job.classes)
    pictures = torch.randint(-400, 400, (job.rows, 1, _PICTURE, _PICTURE), generator=generator) / 4
    prices = torch.arange(1, job.classes + 1) / 4
    secret = import_crypten().cryptensor(prices, src=0)
    return {
        "argmax": CryptenProgram(
            scores,
            lambda x: x.argmax(dim=1, one_hot=False),
            lambda x: x.argmax(dim=1).float(),
        ),
        "max": CryptenProgram(scores, lambda x: x.max(dim=1)[0], lambda x: x.max(dim=1)[0]),
        "min": CryptenProgram(scores, lambda x: x.min(dim=1)[0], lambda x: x.min(dim=1)[0]),
        "max_pool2d": CryptenProgram(
            pictures,
            lambda x: x.max_pool2d(2),
            lambda x: torch.nn.functional.max_pool2d(x, 2),
        ),
        # Arithmetic, a decision, and arithmetic that goes on with it.
        "classify": CryptenProgram(
            scores,
            lambda x: ((x * 0.5 + 1).argmax(dim=1) * secret).sum(dim=1),
            lambda x: prices[(x * 0.5 + 1).argmax(dim=1)],
        ),
    }


def main(text: str) -> None:
    """Measures, method by method in turn, and prints a list of rows at rank 0."""
    die_with_parent()
    torch.set_num_threads(1)
    job = CryptenJob(**json.loads(text))
    crypten = import_crypten()
    register_max_method()
    crypten.cfg.mpc.provider = job.provider
    crypten.cfg.functions.max_bound = BOUND
    crypten.init()
    communicator = crypten.communicator.get()
    if communicator.get_rank() == communicator.get_world_size():
        crypten.mpc.provider.TTPServer()
        return
    # Seeds are agreed upon once in a session.
    provided()
    rows = [row for name, program in programs(job).items() for row in _measure(job, name, program)]
    if communicator.get_rank() == 0:
        print(json.dumps(rows), flush=True)
    crypten.uninit()


def _measure(job: CryptenJob, name: str, program: CryptenProgram) -> list[dict[str, Any]]:
    crypten = import_crypten()
    x = crypten.cryptensor(program.inputs, src=0)
    want = program.plain(program.inputs)
    rows: dict[str, dict[str, Any]] = {
        method: {"program": name, "method": method, "seconds": [], "right": True}
        for method in job.methods
    }
    # The first turn warms up, and counts what is sent.
    for turn in range(job.repeats + 1):
        for method, row in rows.items():
            settings = {"functions.max_method": method, "communicator.verbose": turn == 0}
            with crypten.cfg.temp_override(settings):
                communicator = crypten.communicator.get()
                communicator.barrier()
                crypten.reset_communication_stats()
                start = time.perf_counter()
                result = program.encrypted(x)
                seconds = time.perf_counter() - start
            if turn == 0:
                row["rounds"] = communicator.comm_rounds
                row["bytes"] = communicator.comm_bytes
            else:
                row["seconds"].append(seconds)
            got = result.get_plain_text()
            row["right"] &= got.shape == want.shape and bool(((got - want).abs() < _CLOSE).all())
    return list(rows.values())


def command_line(job: CryptenJob) -> list[str]:
    """What starts a party of this job."""
    return [
        sys.executable,
        "-m",
        "mpc_vote.testbed.bench.crypten_party",
        json.dumps(dataclasses.asdict(job)),
    ]


if __name__ == "__main__":
    main(sys.argv[1])
