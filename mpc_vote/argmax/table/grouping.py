"""Chooses the schedule of the table engine: fewer rounds against fewer comparisons.

All pairs at once take three rounds and C(C-1)/2 comparisons per row; groups of g take three rounds
for each level and about C(g-1)/2 comparisons. Two rounds take all pairs, with twice the
coefficients, and a number for each class to the coordinator. Which is quicker depends on how long a
round takes, so the model is: each round half a round trip and a fixed overhead, each comparison and
each contestant a little computation, and their bits on the wire. The constants were fitted to what
`mpc-vote bench` measures; `mpc-vote bench groups` compares the choice with the alternatives.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from mpc_vote.argmax.engine import Schedule
from mpc_vote.argmax.table.comparison import DIGIT_BITS, MAX_BITS, MAX_GROUP
from mpc_vote.argmax.table.marks import MAX_MARKED

# Seconds, on one core of a common server.
_ROUND_SECONDS = 0.3e-3
# For each bit that a comparison opens, and each contestant that meets others.
_BIT_SECONDS = 4e-9
_CONTESTANT_SECONDS = 10e-9
# In two rounds a comparison is evaluated twice, and modulo a prime; and there is more to draw.
_MARKED_BIT_SECONDS = 7e-9
_MARKED_SECONDS = 1e-3
# Networks are assumed to carry what they commonly do, the less the farther: what a core encrypts
# and decrypts if they are near, 100 Mbit/s from 10 ms on. Bytes a second to each peer.
_NEAR_RATE = 4e8
_FAR_RATE = 12.5e6
_FAR_SECONDS = 10e-3

_ROUNDS_PER_LEVEL = 3


@dataclass(frozen=True)
class _Costs:
    """Seconds of a round, and for all rows together of a comparison and of a contestant."""

    round: float
    pair: float
    marked_pair: float
    contestant: float


def _costs(bits: int, rows: int, parties: int, round_trip: float) -> _Costs:
    opened = 2 * -(-(bits - 1) // DIGIT_BITS) - 1
    rate = min(_NEAR_RATE, _FAR_RATE * max(1.0, _FAR_SECONDS / max(round_trip, 1e-6)))
    wire = (parties - 1) / rate / 8
    return _Costs(
        round=round_trip / 2 + _ROUND_SECONDS,
        pair=rows * opened * (_BIT_SECONDS + wire),
        marked_pair=rows * opened * (_MARKED_BIT_SECONDS + wire),
        # Its total, and about half as many bits of its number of wins, or of what marks the winner.
        contestant=rows * (_CONTESTANT_SECONDS + 1.5 * bits * wire),
    )


def choose_schedule(
    bits: int, rows: int, classes: int, parties: int, round_trip: float
) -> Schedule:
    """What takes the least time by the model."""
    costs = _costs(bits, rows, parties, round_trip)
    seconds, groups = _grouped(costs, classes)
    if 1 < classes <= MAX_MARKED:
        level = _level(classes, costs.marked_pair, costs.contestant)
        if _MARKED_SECONDS + 2 * costs.round + level < seconds:
            return Schedule(two_rounds=True)
    return Schedule(groups)


def choose_groups(
    rows: int, classes: int, parties: int, round_trip: float, bits: int = MAX_BITS
) -> tuple[int, ...]:
    """Group sizes by level, in three rounds each; empty if all should meet at once."""
    return _grouped(_costs(bits, rows, parties, round_trip), classes)[1]


def _level(size: int, pair: float, contestant: float) -> float:
    return size * (size - 1) / 2 * pair + size * contestant


def _grouped(costs: _Costs, classes: int) -> tuple[float, tuple[int, ...]]:
    """The least seconds in three rounds for each level, and the groups."""

    @cache
    def best(left: int) -> tuple[float, tuple[int, ...]]:
        if left <= 1:
            return 0.0, ()
        options = []
        for size in range(2, min(left, MAX_GROUP) + 1):
            groups = -(-left // size)
            seconds, rest = best(groups)
            here = groups * _level(size, costs.pair, costs.contestant)
            options.append((_ROUNDS_PER_LEVEL * costs.round + here + seconds, (size, *rest)))
        return min(options)

    seconds, groups = best(classes)
    return seconds, () if len(groups) == 1 else groups
