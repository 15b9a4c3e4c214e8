"""What the owner of data is told before anything is spent: settings that don't suit the data."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mpc_vote.data.dataset import Dataset
from mpc_vote.data.readers.report import unsuited


def owner_warnings(
    data: Dataset, k: int, delta: float, classes: Sequence[str] | None = None
) -> list[str]:
    """A sentence for each setting that does not suit these records; k is 0 without neighbours.

    They follow from private data, so they are for its owner alone.
    """
    records, counts = len(data), {}
    if not data.multi_label:
        names = classes or [f"class {number}" for number in range(data.classes)]
        counted = np.bincount(data.y, minlength=data.classes).tolist()
        counts = dict(zip(names, counted, strict=True))
    found = unsuited(records, counts, k)
    if delta * records > 1:
        found.append(
            f"delta is {delta:g}, above one over the {records} records: such a guarantee holds "
            f"even if some record is published as it is; set --delta below {1 / records:.1g}"
        )
    return found
