"""The ways in which an agent may vote, for `mpc-vote audit` to attack."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from mpc_vote.data.dataset import Dataset
from mpc_vote.learning.features.maps import FEATURE_MAPS
from mpc_vote.learning.voters import Voter, VoterOptions, make_voter
from mpc_vote.testbed.audit.hostile import DataShape
from mpc_vote.testbed.audit.sensitivity import VoterSetup
from mpc_vote.voting.ballots import KNN_COUNT, KNN_FREQUENCY, MULTI_LABEL, ONE_HOT

REACHES = (None, 0.1, 0.5)
_SHAPE = (8, 8)
_PUBLIC = 60


def styles(
    k: int = 20, classes: int = 3, tau: int = 2, shape: tuple[int, ...] = _SHAPE
) -> list[VoterSetup]:
    """Every voter with every feature map, reach and ballot that it knows."""
    by_class = DataShape(shape, classes, k)
    # One record of few moves the most scores past a half.
    few = max(1, k // 4)
    by_attribute = DataShape(shape, classes + 2, few, multi_label=True)
    neighbours = [
        VoterSetup(
            "neighbours",
            kind,
            by_class,
            _maker("knn", VoterOptions(k, features, reach)),
            features,
            reach,
        )
        for features in FEATURE_MAPS
        for reach in REACHES
        for kind in (KNN_FREQUENCY, KNN_COUNT, ONE_HOT)
    ]
    attributes = [
        VoterSetup(
            "attributes",
            MULTI_LABEL,
            by_attribute,
            _maker("knn", VoterOptions(few, features)),
            features,
            tau=tau,
        )
        for features in FEATURE_MAPS
    ]
    public = by_class.points(np.random.default_rng(0), _PUBLIC)
    models = [
        VoterSetup(name, ONE_HOT, by_class, _maker("network", options))
        for name, options in (
            ("local model that abstains", VoterOptions(public=public)),
            ("local model", VoterOptions()),
        )
    ]
    return [*neighbours, *attributes, *models]


def _maker(name: str, options: VoterOptions) -> Callable[[Dataset], Voter]:
    return lambda data: make_voter(name, data, options)
