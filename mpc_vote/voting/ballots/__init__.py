"""The kinds of ballots.

A kind is a class with the interface `BallotKind` in a module of its own, registered here, and a
value of the enum in `common.proto`; nothing else lists the kinds that there are.
"""

from __future__ import annotations

from mpc_vote.registry import Registry
from mpc_vote.voting.ballots.kind import BallotCode, BallotKind, IntArray
from mpc_vote.voting.ballots.knn_count import KnnCount
from mpc_vote.voting.ballots.knn_frequency import KnnFrequency
from mpc_vote.voting.ballots.multi_label import MultiLabel
from mpc_vote.voting.ballots.one_hot import ABSTAIN, OneHot

__all__ = [
    "ABSTAIN",
    "BALLOTS",
    "KNN_COUNT",
    "KNN_FREQUENCY",
    "MULTI_LABEL",
    "ONE_HOT",
    "BallotCode",
    "BallotKind",
    "IntArray",
]

BALLOTS: Registry[BallotKind] = Registry("kind of ballot")

ONE_HOT = BALLOTS.register(OneHot())
KNN_FREQUENCY = BALLOTS.register(KnnFrequency())
KNN_COUNT = BALLOTS.register(KnnCount())
MULTI_LABEL = BALLOTS.register(MultiLabel())
