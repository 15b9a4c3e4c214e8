"""Parts for a demo whose number of agents is not known beforehand, as when containers are scaled.

Agent number n always holds part n, whoever else is there. The first eight are large, the further
ones small, as organisations are; no large one knows all classes, and no point is held twice.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from mpc_vote.data.embedded import load_embedded
from mpc_vote.data.partition import Partition, split_skewed

_PUBLIC, _TEST = 500, 500
_LARGE, _HOLDERS = 8, 6
_SMALL, _SMALL_SIZE = 24, 25
_SEED = 0


def demo_partition() -> Partition:
    """The same parts in every process."""
    digits = load_embedded()
    order = np.random.default_rng(_SEED).permutation(len(digits)).astype(np.int64)
    few, many = np.split(order, [_SMALL * _SMALL_SIZE])
    large = split_skewed(digits.take(many), _LARGE, _PUBLIC, _TEST, _SEED, _HOLDERS)
    small = [
        digits.take(rows, f"{digits.name}/agent-{number}")
        for number, rows in enumerate(np.split(few, _SMALL), start=_LARGE)
    ]
    return replace(large, private=(*large.private, *small))


def part_number(agent: str) -> int:
    """Which part an agent holds, by the number at the end of its name."""
    _, _, digits = agent.rpartition("-")
    if not digits.isdigit() or int(digits) >= _LARGE + _SMALL:
        raise ValueError(
            f"the demo has parts for agents named like agent-0 to agent-{_LARGE + _SMALL - 1}, "
            f"not {agent!r}"
        )
    return int(digits)
