"""From shares of ballots to the rows of a secure argmax: what every party does with its shares."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mpc_vote.csprng import Words
from mpc_vote.sharing import ShareReader, sum_blocks
from mpc_vote.spec import Spec


def row_totals(spec: Spec, readers: Sequence[ShareReader], rows: int, rank: int) -> Words:
    """This party's share of the totals of the next rows, `row_classes` to a row.

    An attribute is a row of two: half of the counted agents, and those who say yes. Half is public,
    so it is party 0's share alone; a tie is a no.
    """
    if not spec.multi_label:
        return sum_blocks(readers, rows * spec.row_classes)
    yes = sum_blocks(readers, rows)
    votes = len(readers) << spec.message.fraction_bits
    half = votes // 2 if rank == 0 else 0
    return np.stack([np.full(rows, half, dtype=np.uint64), yes], axis=1).reshape(-1)
