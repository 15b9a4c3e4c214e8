"""The ways in which an agent may vote, for `mpc-vote audit` to attack."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from mpc_vote.data.dataset import Dataset
from mpc_vote.learning.features import for_task
from mpc_vote.learning.features.maps import FEATURE_MAPS, FeatureMap
from mpc_vote.learning.voters import Voter, VoterOptions, make_voter
from mpc_vote.learning.voters.knn import AttributeVoter, KnnVoter
from mpc_vote.tasks import (
    CategoryColumn,
    Features,
    ImageInput,
    Input,
    NumberColumn,
    TableInput,
    Task,
    Vote,
)
from mpc_vote.testbed.audit.hostile import DataShape
from mpc_vote.testbed.audit.sensitivity import VoterSetup
from mpc_vote.voting.ballots import MULTI_LABEL, ONE_HOT

REACHES = (None, 0.1, 0.5)
_SHAPE = (8, 8)
# Unlabelled points from which a network learns when to abstain.
_PUBLIC = 40
# Scales of all sizes, so that numbers are clipped, vanish beside others, or are all there is.
TABLE = TableInput(
    (
        NumberColumn("usual", 0.0, 1.0),
        NumberColumn("fine", 1e6, 1e-6),
        NumberColumn("coarse", -1.0, 1e11),
        CategoryColumn("category", ("a", "b", "c")),
        NumberColumn("further", 0.5, 0.1),
    ),
    "label",
)


def styles(
    k: int = 20, classes: int = 3, tau: int = 2, shape: tuple[int, ...] = _SHAPE
) -> list[VoterSetup]:
    """Every voter with every feature map, reach and ballot that it knows."""
    points = [DataShape(shape, classes, k)] * len(FEATURE_MAPS)
    pictures = ImageInput(shape[-2], shape[-1], channels=1)
    rows = [DataShape(schema.shape, classes, k, schema=schema) for schema in (TABLE, pictures)]
    maps: list[str | FeatureMap] = [*FEATURE_MAPS, _map("standard", TABLE), _map("unit", pictures)]
    names = [*FEATURE_MAPS, "standard of tables", "unit of images"]
    found = [
        style
        for name, features, terrain in zip(names, maps, [*points, *rows], strict=True)
        for style in neighbour_styles(name, features, terrain, tau)
    ]
    public = np.random.default_rng(0).normal(size=(_PUBLIC, *shape)).astype(np.float32)
    networks = [
        VoterSetup(name, ONE_HOT, DataShape(shape, classes, k), _maker("network", options))
        for name, options in (
            ("local model", VoterOptions()),
            ("local model that abstains", VoterOptions(public=public)),
        )
    ]
    return [*found, *networks]


def neighbour_styles(
    name: str, features: str | FeatureMap, terrain: DataShape, tau: int = 2
) -> list[VoterSetup]:
    """Votes of neighbours by one feature map, which in a report goes by this name."""
    neighbours = [
        VoterSetup(
            "neighbours", kind, terrain, _neighbours(features, terrain.k, reach), name, reach
        )
        for reach in REACHES
        for kind in KnnVoter.kinds
    ]
    # One record of few moves the most scores past a half.
    few = replace(terrain, classes=terrain.classes + 2, k=max(1, terrain.k // 4), multi_label=True)
    attributes = VoterSetup(
        "attributes", MULTI_LABEL, few, _attributes(features, few.k), name, tau=tau
    )
    return [*neighbours, attributes]


def _map(name: str, schema: Input) -> FeatureMap:
    return for_task(Task("audited", ("a", "b"), schema, Features(name), Vote(ONE_HOT)))


def _neighbours(
    features: str | FeatureMap, k: int, reach: float | None
) -> Callable[[Dataset], Voter]:
    return lambda data: KnnVoter(data.x, data.y, data.classes, k, features=features, reach=reach)


def _attributes(features: str | FeatureMap, k: int) -> Callable[[Dataset], Voter]:
    return lambda data: AttributeVoter(data.x, data.y, data.classes, k, features=features)


def _maker(name: str, options: VoterOptions) -> Callable[[Dataset], Voter]:
    return lambda data: make_voter(name, data, options)
