"""What the owner of data is told before anything is spent: settings that don't suit the data."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mpc_vote.data.dataset import Dataset
from mpc_vote.data.readers.report import outvoted

_SHARE = 3


def owner_warnings(
    data: Dataset, k: int, delta: float, classes: Sequence[str] | None = None
) -> list[str]:
    """A sentence for each setting that does not suit these records; k is 0 without neighbours.

    They follow from private data, so they are for its owner alone.
    """
    records, found = len(data), []
    if _SHARE * k > records:
        found.append(
            f"k is {k}, and there are {records} records: with more than a third of them voting on "
            f"every query, votes say little about it; a k up to {max(1, records // _SHARE)} would "
            "suit this data"
        )
    elif not data.multi_label:
        names = classes or [f"class {number}" for number in range(data.classes)]
        counts = np.bincount(data.y, minlength=data.classes).tolist()
        found += outvoted(dict(zip(names, counts, strict=True)), k)
    if delta * records > 1:
        found.append(
            f"delta is {delta:g}, above one over the {records} records: such a guarantee holds "
            f"even if some record is published as it is; set --delta below {1 / records:.1g}"
        )
    return found
