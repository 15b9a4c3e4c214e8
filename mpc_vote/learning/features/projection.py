"""A feature map learnt from public points alone: their principal directions.

Noise falls on every parameter of a model, so a model with few inputs tolerates more of it. Public
points say which few; using them costs no privacy.
"""

from __future__ import annotations

import numpy as np

from mpc_vote.data.dataset import FloatArray, check_points
from mpc_vote.learning.features.maps import FeatureMap, raw


def project(public: FloatArray, dimensions: int) -> FeatureMap:
    """The map onto the first principal directions, with public points of mean square norm 1."""
    check_points(public)
    points = raw(public).astype(np.float64)
    most = min(len(points) - 1, points.shape[1])
    if not 1 <= dimensions <= most:
        raise ValueError(f"there are 1 to {most} directions in these points, not {dimensions}")
    centre = points.mean(axis=0)
    _, spreads, directions = np.linalg.svd(points - centre, full_matrices=False)
    size = np.sqrt((spreads[:dimensions] ** 2).sum() / len(points))
    if not size > 0:
        raise ValueError("the public points are all the same: there are no directions in them")
    basis = (directions[:dimensions].T / size).astype(np.float32)
    offset = centre.astype(np.float32)

    def mapped(x: FloatArray) -> FloatArray:
        # One at a time: a point's bits must not depend on the others, or neighbours would.
        found: FloatArray = np.empty((len(x), dimensions), dtype=np.float32)
        for row, point in zip(found, raw(x) - offset, strict=True):
            row[:] = point @ basis
        return found

    return mapped
