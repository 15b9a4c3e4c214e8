"""A radius and a bound on contributions, by a public rule: from a sample and what is planned.

The sample stands for the queries and, which may be wrong, for the records. The radius is the least
that leaves 95 of 100 of its points their share of the others, the task's reach. The bound is how
many of the planned queries 95 of 100 points would contribute to: few records leave before queries
end, and those lie where many others are. Nothing private has a part in it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from mpc_vote.data.dataset import FloatArray
from mpc_vote.learning.voters.bounded import distances_between
from mpc_vote.learning.voters.knn import blocks, limits

_SHARE = 0.95
# Of a large sample so many points will do.
_MOST = 2_048
_DIGITS = 4


@dataclass(frozen=True)
class ContributionBound:
    """How near a query must be to count a record, and how often a record is counted."""

    radius: float
    max_contributions: int


def suggest_bound(vectors: FloatArray, reach: float, planned_queries: int) -> ContributionBound:
    """For points of a public sample as the task's feature map gives them."""
    if len(vectors) < 2:
        raise ValueError("a radius takes a sample of two rows or more")
    chosen = np.linspace(0, len(vectors) - 1, min(len(vectors), _MOST)).astype(np.int64)
    points = np.ascontiguousarray(vectors[chosen])
    limit = limits(points, reach, None)
    radius = _rounded_up(math.sqrt(float(np.quantile(limit, _SHARE))))
    if not 0 < radius < math.inf:
        raise ValueError("the sample's rows are all alike or too far apart: give --radius yourself")
    limit = limits(points, reach, radius)
    near = np.zeros(len(points), dtype=np.int64)
    for rows in blocks(len(points), len(points)):
        near += (distances_between(points[rows], points) <= limit[rows, None]).sum(axis=0)
    # A point is near itself, which says nothing of others.
    shares = (near - 1) / (len(points) - 1)
    most = math.ceil(float(np.quantile(shares, _SHARE)) * planned_queries)
    return ContributionBound(radius, max(1, most))


def _rounded_up(number: float) -> float:
    """To a few digits, as people write it in a file."""
    if not 0 < number < math.inf:
        return number
    digits = _DIGITS - 1 - math.floor(math.log10(number))
    return math.ceil(number * 10.0**digits) / 10.0**digits
