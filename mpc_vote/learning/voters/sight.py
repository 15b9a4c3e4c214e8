"""What a voter of ours sees of inputs: the task's features, or those of an option."""

from __future__ import annotations

import numpy as np

from mpc_vote.data.dataset import FloatArray, PointArray
from mpc_vote.learning.features import for_task
from mpc_vote.learning.features.maps import FeatureMap, feature_map, raw
from mpc_vote.learning.voters import VoterOptions
from mpc_vote.tasks import ImageInput

_RAW = "raw"
_WHITE = np.float32(255)


def sight(options: VoterOptions) -> FeatureMap:
    """Vectors to compare; rows that are no inputs of the task are refused."""
    task = options.task
    if task is None:
        return feature_map(options.features)
    see = for_task(task, options.weights)

    def checked(rows: PointArray) -> FloatArray:
        task.input.check(rows)
        return see(rows)

    return checked


def picture_sight(options: VoterOptions) -> FeatureMap:
    """As `sight`, but that what is compared as it is keeps its shape: a network can look at
    pictures, in which bytes become 0 to 1."""
    task = options.task
    if task is None:
        return _as_is if options.features == _RAW else feature_map(options.features)
    if task.features.map != _RAW:
        return sight(options)

    def checked(rows: PointArray) -> FloatArray:
        task.input.check(rows)
        if isinstance(task.input, ImageInput):
            return rows.astype(np.float32) / _WHITE
        return rows.astype(np.float32)

    return checked


def _as_is(rows: PointArray) -> FloatArray:
    return rows if rows.dtype == np.float32 else raw(rows).reshape(rows.shape)
