"""Chooses the groups of the table engine: fewer rounds against fewer comparisons.

All pairs at once take three rounds and C(C-1)/2 comparisons per row; groups of g take three rounds
for each level and about C(g-1)/2 comparisons. Which is quicker depends on how long a round takes,
so the model is: each round half a round trip and a fixed overhead, each comparison and each
contestant a little computation, and their bits on the wire. The constants were fitted to what
`mpc-vote bench` measures; `mpc-vote bench groups` compares the choice with the alternatives.
"""

from __future__ import annotations

from functools import cache

from mpc_vote.argmax.table.level import MAX_GROUP

# Seconds, on one core of a common server.
_ROUND_SECONDS = 1.0e-3
_PAIR_SECONDS = 40e-9
_CONTESTANT_SECONDS = 300e-9
# Bytes that each comparison and each contestant puts on the wire to each peer.
_PAIR_BYTES = 7 / 8
_CONTESTANT_BYTES = 4.0
# Networks are assumed to carry what they commonly do, the less the farther: 10 Gbit/s at 0.1 ms,
# 100 Mbit/s from 10 ms on.
_NEAR_RATE = 1.25e9
_FAR_RATE = 12.5e6
_FAR_SECONDS = 10e-3

_ROUNDS_PER_LEVEL = 3


def choose_groups(rows: int, classes: int, parties: int, round_trip: float) -> tuple[int, ...]:
    """Group sizes by level, for the least time by the model; empty if all should meet at once."""
    rate = min(_NEAR_RATE, _FAR_RATE * max(1.0, _FAR_SECONDS / max(round_trip, 1e-6)))
    wire = (parties - 1) / rate
    pair = rows * (_PAIR_SECONDS + wire * _PAIR_BYTES)
    contestant = rows * (_CONTESTANT_SECONDS + wire * _CONTESTANT_BYTES)
    level = _ROUNDS_PER_LEVEL * (round_trip / 2 + _ROUND_SECONDS)

    @cache
    def best(left: int) -> tuple[float, tuple[int, ...]]:
        if left <= 1:
            return 0.0, ()
        options = []
        for size in range(2, min(left, MAX_GROUP) + 1):
            groups = -(-left // size)
            seconds, rest = best(groups)
            here = groups * (size * (size - 1) / 2 * pair + size * contestant)
            options.append((level + here + seconds, (size, *rest)))
        return min(options)

    groups = best(classes)[1]
    return () if len(groups) == 1 else groups
