"""Votes of nearest neighbours where a record contributes to a bounded number of queries.

A record contributes to a query if it lies within the task's radius of it, whether or not it is then
among the k nearest. After `max_contributions` of these it takes part no more: it is left out before
the k nearest are taken, and nobody is told. So at most that many queries differ between neighbours
that have the record or don't, however many are asked (`docs/privacy.md`, contribution bounds). The
proof needs each of the following, and `mpc_vote.testbed.audit.contributions` finds what breaks it:

- Whether a record is counted at a query depends on the task, the batch and that record alone: on a
  distance that no other record has a part in, and on how often it was counted before.
- Queries of a batch are taken in the order of its rows, which is public.
- Records at one distance are taken in the order of their names, then labels, which does not depend
  on the file that they come from.

All distances are computed, and all counters looked at, whichever records they are of: how long that
takes says little of what is found. Blocks of queries and records bound what is in memory.
"""

from __future__ import annotations

import faiss
import numpy as np
import numpy.typing as npt

from mpc_vote.data.dataset import Dataset, FloatArray, check_points
from mpc_vote.data.identity import IdentityArray
from mpc_vote.learning.features.maps import FeatureMap, feature_map
from mpc_vote.learning.voters.knn import blocks, check_neighbours, limits
from mpc_vote.voting.ballots import KNN_COUNT, KNN_FREQUENCY, BallotKind

UsedArray = npt.NDArray[np.uint32]
"""How often each record was counted."""

CountArray = npt.NDArray[np.int64]

# Of queries at a time, and of records: what a processor keeps near it.
_QUERIES = 256
_RECORDS = 1024
_MAPPED = 4096
_OUT = np.uint64(2**64 - 1)


class BoundedVoter:
    """An agent's private points, each of which answers `bound` queries within `radius` at most.

    Records are in the order of their names, `identities`; `used` has a number for each of them.
    """

    kinds: tuple[BallotKind, ...] = (KNN_COUNT, KNN_FREQUENCY)

    def __init__(
        self,
        data: Dataset,
        k: int,
        radius: float,
        bound: int,
        *,
        features: str | FeatureMap = "raw",
        reach: float | None = None,
    ) -> None:
        check_neighbours(len(data), k, reach, radius)
        if data.multi_label:
            raise ValueError("attributes have no bound on contributions")
        if bound < 1:
            raise ValueError(f"a record contributes at least once, not {bound} times")
        self.k = k
        self.bound = bound
        self._classes = data.classes
        self._shape = data.shape
        self._reach, self._radius = reach, radius
        self._features = feature_map(features) if isinstance(features, str) else features
        names = data.identities()
        by_label = np.argsort(data.y, kind="stable")
        order = by_label[np.argsort(names[by_label], kind="stable")]
        self.identities: IdentityArray = names[order]
        self._labels = data.y[order]
        self._vectors = self._mapped(data, order)

    def _mapped(self, data: Dataset, order: npt.NDArray[np.int64]) -> FloatArray:
        """Features in this order, a part at a time: what they are made of may be as large."""
        parts = (order[start : start + _MAPPED] for start in range(0, len(order), _MAPPED))
        first = self._features(data.x[next(parts)])
        vectors = np.empty((len(order), first.shape[1]), dtype=np.float32)
        vectors[: len(first)] = first
        for number, part in enumerate(parts, 1):
            vectors[number * _MAPPED :][: len(part)] = self._features(data.x[part])
        return vectors

    def vote(self, queries: npt.NDArray[np.generic], kind: BallotKind) -> CountArray:
        """As if no record had been counted yet: what is sent is for `answer`, and a keeper of
        counters."""
        return self.answer(queries, np.zeros(len(self._labels), np.uint32))[0]

    def answer(
        self, queries: npt.NDArray[np.generic], used: UsedArray
    ) -> tuple[CountArray, UsedArray]:
        """Labels of the nearest that still take part, (queries, classes), and how often each record
        was counted after that."""
        check_points(queries)
        if queries.shape[1:] != self._shape:
            raise ValueError(f"a query has shape {queries.shape[1:]}, the points {self._shape}")
        used = used.copy()
        counts = np.zeros((len(queries), self._classes), dtype=np.int64)
        if len(queries) == 0:
            return counts, used
        vectors = np.ascontiguousarray(self._features(queries))
        limit = limits(vectors, self._reach, self._radius)
        for rows in blocks(len(queries), min(self.k, len(used)), _QUERIES):
            nearest = self._nearest(vectors[rows], limit[rows], used)
            found = nearest != _OUT
            labels = self._labels[(nearest[found] & np.uint64(0xFFFFFFFF)).astype(np.int64)]
            at = np.nonzero(found)[0] * self._classes + labels
            told = np.bincount(at, minlength=len(nearest) * self._classes)
            counts[rows] = told.reshape(len(nearest), self._classes)
        return counts, used

    def _nearest(
        self, queries: FloatArray, limit: FloatArray, used: UsedArray
    ) -> npt.NDArray[np.uint64]:
        """The k nearest for each of some queries, as keys by distance and then place; `used` is
        brought up to date."""
        nearest = np.full((len(queries), 0), _OUT)
        for start in range(0, len(used), _RECORDS):
            part = slice(start, start + _RECORDS)
            distances = distances_between(queries, self._vectors[part])
            within = distances <= limit[:, None]
            counted = self._counted(within, used[part])
            used[part] += counted.sum(axis=0, dtype=np.uint32)
            keys = _keys(distances, start)
            keys[~counted] = _OUT
            nearest = _least(np.concatenate([nearest, keys], axis=1), self.k)
        return nearest

    def _counted(self, within: npt.NDArray[np.bool_], used: UsedArray) -> npt.NDArray[np.bool_]:
        """Of the records within reach of each query, in order, those that still take part."""
        upto = np.cumsum(within, axis=0, dtype=np.uint32)
        return within & (upto.astype(np.uint64) + used <= self.bound)


def distances_between(queries: FloatArray, records: FloatArray) -> FloatArray:
    """Squared distances, (queries, records), each of one pair alone and right to the same bit
    whatever stands beside it: no matrix product."""
    found = np.empty((len(queries), len(records)), dtype=np.float32)
    faiss.omp_set_num_threads(1)
    faiss.pairwise_extra_distances(  # type: ignore[attr-defined]  # its stubs lack it
        queries.shape[1],
        len(queries),
        faiss.swig_ptr(queries),
        len(records),
        faiss.swig_ptr(records),
        faiss.METRIC_L2,
        0.0,
        faiss.swig_ptr(found),
    )
    return found


def _keys(distances: FloatArray, start: int) -> npt.NDArray[np.uint64]:
    """Numbers in the order of distance, then place: floats that are not negative are in the order
    of their bits."""
    places = np.arange(start, start + distances.shape[1], dtype=np.uint64)
    return (distances.view(np.uint32).astype(np.uint64) << np.uint64(32)) | places


def _least(keys: npt.NDArray[np.uint64], k: int) -> npt.NDArray[np.uint64]:
    """The k least of each row."""
    return np.partition(keys, k - 1, axis=1)[:, :k] if keys.shape[1] > k else keys
