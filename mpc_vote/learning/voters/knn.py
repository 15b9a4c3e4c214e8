"""Votes of nearest neighbours (kNN-DPFL): the labels of an agent's k points nearest to a query.

The privacy of a count ballot rests on one fact: adding, removing or replacing one private point
changes at most one neighbour of a query. That holds only if a point's distance does not depend on
the other points and ties are broken in one fixed order. Hence no BLAS, whose rounding depends on a
point's place in its block, and always faiss's heap, which orders by distance and then by index.

A squared distance that is too large for a float32 is no distance: such a point is not a neighbour,
which the point and the query alone decide, and where all are too far nobody votes.

The same neighbours can cast one vote, for the label that most of them have, so that they take part
in one round with models. Nothing of the above makes that vote less sensitive: one record may turn
it from one class to another, and so it is accounted like any model's (`one_hot`): k times more than
counts for the same margins.
"""

from __future__ import annotations

from collections.abc import Iterator

import faiss
import numpy as np
import numpy.typing as npt

from mpc_vote.data.dataset import (
    Dataset,
    FloatArray,
    LabelArray,
    check_attributes,
    check_labels,
    check_points,
)
from mpc_vote.learning.features.maps import FeatureMap, feature_map
from mpc_vote.learning.voters import Voter, VoterOptions
from mpc_vote.learning.voters.sight import sight
from mpc_vote.tasks.task import MAX_RADIUS
from mpc_vote.voting.ballots import (
    ABSTAIN,
    KNN_COUNT,
    KNN_FREQUENCY,
    MULTI_LABEL,
    ONE_HOT,
    BallotKind,
)

_NEVER = 2**31 - 1
# Numbers about the neighbours of some queries that are in memory at a time.
_HELD = 1 << 20


def make(data: Dataset | None, options: VoterOptions) -> Voter:
    """The voter of nearest neighbours for classes, or for attributes; where the task bounds what a
    record contributes, one that keeps to it."""
    k, features = options.k, sight(options)
    if data is None:
        raise ValueError("neighbours are looked for in the agent's records: pass --data")
    if data.multi_label:
        return AttributeVoter(data.x, data.y, data.classes, k, features=features)
    radius = None if options.task is None else options.task.vote.radius
    bound = None if options.task is None else options.task.vote.max_contributions
    if bound is not None and radius is not None:
        from mpc_vote.learning.voters.bounded import BoundedVoter

        return BoundedVoter(data, k, radius, bound, features=features, reach=options.reach)
    return KnnVoter(
        data.x, data.y, data.classes, k, features=features, reach=options.reach, radius=radius
    )


class KnnVoter:
    """An agent's private points, ready to be asked for the labels nearest to public queries (the
    paper's Algorithm 3).

    With a `reach`, only neighbours within a distance count: that from the query to the nearest such
    share of the *other queries*; with a `radius`, only those within that. Both are public, so the
    sensitivity stays; and an agent that never saw a query's class abstains instead of voting for
    the likeliest wrong one.
    """

    kinds: tuple[BallotKind, ...] = (KNN_COUNT, KNN_FREQUENCY, ONE_HOT)

    def __init__(
        self,
        x: FloatArray,
        y: LabelArray,
        classes: int,
        k: int,
        *,
        features: str | FeatureMap = "raw",
        reach: float | None = None,
        radius: float | None = None,
    ) -> None:
        check_points(x)
        check_labels(y, classes)
        if len(x) != len(y):
            raise ValueError(f"there are {len(x)} points but {len(y)} labels")
        check_neighbours(len(x), k, reach, radius)
        self.classes = classes
        self.k = k
        self._shape = x.shape[1:]
        self._reach = reach
        self._radius = radius
        self._features = feature_map(features) if isinstance(features, str) else features
        self._labels = y.copy()
        self._index = _index(self._features(x))

    def vote(self, queries: FloatArray, kind: BallotKind) -> npt.NDArray[np.int64]:
        """See `Voter`."""
        counts = self.counts(queries)
        return majority(counts) if kind is ONE_HOT else counts

    def counts(self, queries: FloatArray) -> npt.NDArray[np.int64]:
        """Labels of the nearest points per query, (rows, classes); a row sums to at most k."""
        check_points(queries)
        if queries.shape[1:] != self._shape:
            raise ValueError(f"a query has shape {queries.shape[1:]}, the points {self._shape}")
        if len(queries) == 0:
            return np.zeros((0, self.classes), dtype=np.int64)
        vectors = self._features(queries)
        limit = limits(vectors, self._reach, self._radius)
        votes = np.zeros((len(queries), self.classes), dtype=np.int64)
        for rows in blocks(len(queries), min(self.k, self._index.ntotal)):
            distances, nearest = _nearest(self._index, vectors[rows], self.k)
            counted = np.isfinite(distances) & (distances <= limit[rows, None])
            at = np.nonzero(counted)[0] * self.classes + self._labels[nearest[counted]]
            found = np.bincount(at, minlength=len(nearest) * self.classes)
            votes[rows] = found.reshape(len(nearest), self.classes)
        return votes


class AttributeVoter:
    """Multi-label neighbours: an attribute's score is its share among the nearest points.

    One point may move scores by a lot where there are few: what bounds a multi-label ballot is the
    cap on the attributes that it says yes to, whatever the scores are. So its k is not public.
    """

    kinds: tuple[BallotKind, ...] = (MULTI_LABEL,)
    k = 0

    def __init__(
        self,
        x: FloatArray,
        y: LabelArray,
        attributes: int,
        k: int,
        *,
        features: str | FeatureMap = "raw",
    ) -> None:
        check_points(x)
        check_attributes(y, attributes)
        if len(x) != len(y) or len(x) == 0 or k < 1:
            raise ValueError("attributes need as many rows as there are points, and k at least 1")
        self._k = k
        self._shape = x.shape[1:]
        self._features = feature_map(features) if isinstance(features, str) else features
        self._attributes = y.copy()
        self._index = _index(self._features(x))

    def vote(self, queries: FloatArray, kind: BallotKind) -> npt.NDArray[np.float64]:
        """See `Voter`."""
        return self.scores(queries)

    def scores(self, queries: FloatArray) -> npt.NDArray[np.float64]:
        """Scores from 0 to 1, (rows, attributes); all 0 for a query that is far from everything."""
        check_points(queries)
        if queries.shape[1:] != self._shape:
            raise ValueError(f"a query has shape {queries.shape[1:]}, the points {self._shape}")
        vectors = self._features(queries)
        known, attributes = self._attributes.shape
        shares = np.zeros((len(queries), attributes))
        for rows in blocks(len(queries), min(self._k, known) * attributes):
            distances, nearest = _nearest(self._index, vectors[rows], self._k)
            found = np.isfinite(distances)
            held = (self._attributes[nearest] * found[:, :, None]).sum(axis=1)
            shares[rows] = held / np.maximum(found.sum(axis=1), 1)[:, None]
        return shares


def majority(counts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The label that most neighbours have, the lower one of equals; `ABSTAIN` where nobody is
    within reach."""
    return np.where(counts.any(axis=1), np.argmax(counts, axis=1), ABSTAIN).astype(np.int64)


def check_neighbours(records: int, k: int, reach: float | None, radius: float | None) -> None:
    """Refuses what no neighbours can be found by."""
    if records == 0:
        raise ValueError("an agent without points can't vote")
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}")
    if reach is not None and not 0 < reach < 1:
        raise ValueError(f"reach must lie strictly between 0 and 1, got {reach}")
    if radius is not None and not 0 < radius <= MAX_RADIUS:
        raise ValueError(f"a radius must be positive, at most {MAX_RADIUS:g}, got {radius}")


def limits(queries: FloatArray, reach: float | None, radius: float | None) -> FloatArray:
    """The squared distance from each query within which neighbours count; infinite if all do."""
    found = np.full(len(queries), np.inf, dtype=np.float32)
    if reach is not None:
        found = _reached(queries, reach)
    if radius is not None:
        found = np.minimum(found, np.float32(radius * radius))
    return found


def _reached(queries: FloatArray, reach: float) -> FloatArray:
    """Squared distance within which the nearest `reach` of the other queries lie, at least one.

    Infinite where too few of them have a distance at all.
    """
    if len(queries) < 2:
        return np.full(len(queries), np.inf, dtype=np.float32)
    rank = max(1, int(reach * (len(queries) - 1)))
    index, radius = _index(queries), np.empty(len(queries), dtype=np.float32)
    for rows in blocks(len(queries), rank + 1):
        distances, _ = _nearest(index, queries[rows], rank + 1)
        radius[rows] = distances[:, -1]
    return radius


def blocks(rows: int, each: int, most: int = _HELD) -> Iterator[slice]:
    """Rows in turn, so many at a time that what is held of them, `each` numbers a row, is bounded:
    whoever asks chooses how many rows there are."""
    step = max(1, min(most, _HELD // each))
    return (slice(start, start + step) for start in range(0, rows, step))


def _index(points: FloatArray) -> faiss.IndexFlatL2:
    """An exact index that holds its own copy of the points."""
    index = faiss.IndexFlatL2(points.shape[1])
    index.add(points)
    return index


def _nearest(
    index: faiss.IndexFlatL2, queries: FloatArray, k: int
) -> tuple[FloatArray, npt.NDArray[np.int64]]:
    """Squared distances and places of the k nearest points, or of all, nearest first.

    Where faiss finds fewer, as distances overflow, the rest are infinitely far, at no place of use.
    """
    faiss.omp_set_num_threads(1)
    faiss.cvar.distance_compute_blas_threshold = _NEVER
    faiss.cvar.distance_compute_min_k_reservoir = _NEVER
    distances, nearest = index.search(queries, min(k, index.ntotal))
    return np.where(nearest < 0, np.float32(np.inf), distances), nearest
