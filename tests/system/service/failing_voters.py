"""Models of owners' for a federation of real processes: by the queries they behave, or don't."""

from __future__ import annotations

import os
import time
from typing import Any

import numpy as np

GOOD, HANG, CRASH, NONSENSE = 0.0, 1.0, 2.0, 3.0
"""The second number of queries, by which voters are told what to do."""


def _labels(points: Any) -> Any:
    return (points[:, 0] > 0).astype(np.int64)


def hangs(points: Any) -> Any:
    if (points[:, 1] == HANG).any():
        time.sleep(3600)
    return _labels(points)


def crashes(points: Any) -> Any:
    if (points[:, 1] == CRASH).any():
        os._exit(11)
    return _labels(points)


def nonsense(points: Any) -> Any:
    if (points[:, 1] == NONSENSE).any():
        return np.full((len(points), 2), np.nan)
    return _labels(points)
