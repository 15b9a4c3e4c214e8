"""PATE and Private-kNN: what the vote would give if all private data lay in one place.

Both trust a curator with the pooled records, so they are references, not federated methods. The
curator adds Gaussian noise to the totals and releases the largest cell of each query.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mpc_vote.data.assignment import deal_iid
from mpc_vote.data.dataset import Dataset, FloatArray, LabelArray
from mpc_vote.data.partition import hand_out
from mpc_vote.learning.features.maps import FeatureMap, raw
from mpc_vote.learning.voters.knn import KnnVoter
from mpc_vote.privacy.mechanisms import Clipped, GaussianVote, Mechanism, PoissonGaussian
from mpc_vote.privacy.sensitivity import Sensitivity
from mpc_vote.voting.ballots import KNN_COUNT, ONE_HOT, IntArray


@dataclass(frozen=True, eq=False)
class CentralTotals:
    """Totals in votes, (queries, classes), and what one release of noisy labels costs."""

    totals: IntArray
    sigma: float
    mechanism: Mechanism

    def release(self, seed: int) -> LabelArray:
        """The label of each query; a second release with another seed costs as much again."""
        noise = np.random.default_rng(seed).normal(scale=self.sigma, size=self.totals.shape)
        return np.asarray(np.argmax(self.totals + noise, axis=1), dtype=np.int64)


def pool(parts: Sequence[Dataset]) -> Dataset:
    """All agents' records in one dataset."""
    if not parts or len({(part.shape, part.classes, part.y.ndim) for part in parts}) != 1:
        raise ValueError("pooling needs one or more parts of one shape and the same classes")
    x, y = (np.concatenate(arrays) for arrays in zip(*((p.x, p.y) for p in parts), strict=True))
    return Dataset("pooled", x, y, parts[0].classes)


def teacher_parts(pooled: Dataset, teachers: int, seed: int) -> tuple[Dataset, ...]:
    """Disjoint random parts of the pooled records, one for each of PATE's teachers."""
    return hand_out(pooled, deal_iid(len(pooled), teachers, None, seed))


def pate(predictions: npt.NDArray[np.int64], classes: int, sigma: float) -> CentralTotals:
    """PATE's GNMax (Papernot et al. 2018, "Scalable Private Learning with PATE").

    `predictions` holds the class that each teacher says of each query, (teachers, queries). A
    record sits in one teacher's part, so it moves one ballot; the records of an agent may sit in
    all parts, and move all ballots.
    """
    if predictions.ndim != 2 or 0 in predictions.shape:
        raise ValueError(f"predictions must be (teachers, queries), got {predictions.shape}")
    teachers, queries = predictions.shape
    totals = np.zeros((queries, classes), dtype=np.int64)
    for labels in predictions:
        totals += ONE_HOT.encode(labels, classes=classes, fraction_bits=0)
    mechanism = GaussianVote(
        queries,
        sigma**2,
        # Every teacher takes its vote from one cell to another.
        agent=Sensitivity(2 * teachers, 2 * teachers**2),
        instance=ONE_HOT.instance_sensitivity(fraction_bits=0),
    )
    return CentralTotals(totals, sigma, mechanism)


def private_knn(
    pooled: Dataset,
    queries: FloatArray,
    k: int,
    sampling: float,
    sigma: float,
    seed: int,
    *,
    features: FeatureMap = raw,
) -> CentralTotals:
    """Private-kNN (Zhu et al. 2020, "Private-kNN: Practical Differential Privacy for Computer
    Vision"): neighbours in a sample that is drawn anew for each query.

    Every record is in the sample with probability `sampling`. Where it is, adding or removing it
    swaps one neighbour for another: two cells move by a vote. That is the loss accounted for; a
    replaced record counts as one removed and one added. No bound is known for a whole agent.
    """
    if pooled.multi_label:
        raise ValueError("Private-kNN takes one class per point, not attributes")
    instance = KNN_COUNT.instance_sensitivity(fraction_bits=0, ks=[k])
    change = Clipped(math.sqrt(instance.l2_squared))
    mechanism = PoissonGaussian(len(queries), sampling, sigma, agent=None, instance=change)
    points, asked = features(pooled.x), features(queries)
    coins = np.random.default_rng(seed)
    totals = np.zeros((len(asked), pooled.classes), dtype=np.int64)
    for row in range(len(asked)):
        sample = coins.random(len(points)) < sampling
        if sample.any():
            voter = KnnVoter(points[sample], pooled.y[sample], pooled.classes, k)
            totals[row] = voter.counts(asked[row : row + 1])[0]
    return CentralTotals(totals, sigma, mechanism)
