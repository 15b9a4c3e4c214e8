"""Which rows of a file are asked about: representatives of all, chosen by the client."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mpc_vote.app.config import ConfigError
from mpc_vote.app.process import CommandError
from mpc_vote.tasks import Task

_SEED = 0


def select(
    rows: npt.NDArray[Any], count: int, task: Task | None, weights: Path | None
) -> npt.NDArray[np.int64]:
    """The places of so many representatives, in the task's features or among the rows as they are.

    It looks at public rows alone, and so costs no privacy.
    """
    # What a task's features take is installed where they are used.
    from mpc_vote.learning.features import for_task
    from mpc_vote.learning.features.maps import FEATURE_MAPS
    from mpc_vote.learning.query_selection import representatives

    if not 1 <= count <= len(rows):
        raise ConfigError(f"--select: there are {len(rows)} rows to choose from, not {count}")
    try:
        points = FEATURE_MAPS["raw"] if task is None else for_task(task, weights)
        return representatives(points(rows), count, _SEED)
    except (ValueError, ImportError) as error:
        raise CommandError(f"can't select queries: {error}") from error
