"""The ways in which an agent may vote, for `mpc-vote audit` to attack."""

from __future__ import annotations

from functools import partial

from agent_node.voting import make_voter
from mpc_vote.app.config import Method
from mpc_vote.learning.features.maps import FEATURE_MAPS
from mpc_vote.testbed.audit.hostile import Terrain
from mpc_vote.testbed.audit.sensitivity import Style
from mpc_vote.voting.ballots import BallotKind
from mpc_vote.voting.spec import KNN_BALLOTS

REACHES = (None, 0.1, 0.5)
_SHAPE = (8, 8)


def styles(
    k: int = 20, classes: int = 3, tau: int = 2, shape: tuple[int, ...] = _SHAPE
) -> list[Style]:
    """Every voter with every feature map, reach and ballot that it knows."""
    by_class = Terrain(shape, classes, k)
    # One record of few moves the most scores past a half.
    few = max(1, k // 4)
    by_attribute = Terrain(shape, classes + 2, few, multi_label=True)
    neighbours = [
        Style(
            "neighbours",
            kind,
            by_class,
            partial(make_voter, method=Method.KNN, neighbours=k, features=features, reach=reach),
            features,
            reach,
        )
        for features in FEATURE_MAPS
        for reach in REACHES
        for kind in KNN_BALLOTS
    ]
    attributes = [
        Style(
            "attributes",
            BallotKind.MULTI_LABEL,
            by_attribute,
            partial(make_voter, method=Method.KNN, neighbours=few, features=features),
            features,
            tau=tau,
        )
        for features in FEATURE_MAPS
    ]
    model = Style(
        "local model",
        BallotKind.ONE_HOT,
        by_class,
        partial(make_voter, method=Method.AE, neighbours=k),
    )
    return [*neighbours, *attributes, model]
