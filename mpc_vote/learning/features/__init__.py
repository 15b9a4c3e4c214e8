"""Fixed maps from inputs to vectors, in which neighbours are looked for."""

from __future__ import annotations

from mpc_vote.learning.features.by_task import check_features, check_weights, for_task
from mpc_vote.learning.features.maps import FeatureMap

__all__ = ["FeatureMap", "check_features", "check_weights", "for_task"]
