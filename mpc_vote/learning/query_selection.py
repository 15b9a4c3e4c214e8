"""Which public points to ask the committee about: a choice that costs no privacy.

Every answer costs privacy, so a few points have to represent all. Representatives of clusters cover
the public data evenly, where random points repeat the common and miss the rare; and being typical
of their surroundings they are what agents agree on, so that the noise overturns fewer labels.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from mpc_vote.data.dataset import FloatArray, LabelArray, check_points

Selector = Callable[[FloatArray, int, int], LabelArray]
"""Takes feature vectors (n, d), how many to ask and a seed; gives distinct rows in rising order."""

_CANDIDATES = 8
_PASSES = 30

_Doubles = npt.NDArray[np.float64]


def random_points(features: FloatArray, count: int, seed: int) -> LabelArray:
    """Rows drawn at random: what any other selection is compared with."""
    _check(features, count)
    rows = np.random.default_rng(seed).choice(len(features), count, replace=False)
    return np.sort(rows).astype(np.int64)


def representatives(features: FloatArray, count: int, seed: int) -> LabelArray:
    """For each of `count` clusters (k-means) the row nearest to its centre.

    Distances are Euclidean: give unit vectors where a vector's length says nothing.
    """
    _check(features, count)
    points = features.astype(np.float64)
    points -= points.mean(axis=0)
    centres = points[_spread(points, count, np.random.default_rng(seed))]
    home = np.full(len(points), -1)
    for _ in range(_PASSES):
        nearest = _distances(points, centres).argmin(axis=1)
        if np.array_equal(nearest, home):
            break
        home = nearest
        for cluster in np.unique(home):
            centres[cluster] = points[home == cluster].mean(axis=0)
    distances = _distances(points, centres)
    chosen: list[int] = []
    for cluster in range(count):
        row = int(distances[:, cluster].argmin())
        chosen.append(row)
        distances[row] = np.inf
    return np.sort(np.array(chosen, dtype=np.int64))


SELECTORS: dict[str, Selector] = {"random": random_points, "clusters": representatives}


def selector(name: str) -> Selector:
    """The way to select queries of this name."""
    try:
        return SELECTORS[name]
    except KeyError:
        known = ", ".join(SELECTORS)
        raise ValueError(
            f"the query selection {name!r} is unknown; choose one of: {known}"
        ) from None


def _spread(points: _Doubles, count: int, rng: np.random.Generator) -> list[int]:
    """Starting centres far from each other: k-means++ with the best of several draws at a time."""
    chosen = [int(rng.integers(len(points)))]
    gap = _distances(points, points[chosen])[:, 0]
    while len(chosen) < count:
        gap[chosen] = 0.0
        total = gap.sum()
        if total > 0:
            draws = rng.choice(len(points), _CANDIDATES, p=gap / total)
        else:
            draws = np.setdiff1d(np.arange(len(points)), chosen)[:1]
        gaps = np.minimum(gap[:, None], _distances(points, points[draws]))
        best = int(gaps.sum(axis=0).argmin())
        chosen.append(int(draws[best]))
        gap = gaps[:, best]
    return chosen


def _distances(points: _Doubles, centres: _Doubles) -> _Doubles:
    """Squared distances, (points, centres)."""
    square = (points**2).sum(axis=1)[:, None] + (centres**2).sum(axis=1)
    return np.asarray(np.maximum(square - 2 * points @ centres.T, 0.0))


def _check(features: FloatArray, count: int) -> None:
    check_points(features)
    if features.ndim != 2:
        raise ValueError(f"features must be vectors, (n, d), got shape {features.shape}")
    if not 1 <= count <= len(features):
        raise ValueError(f"ask about 1 to {len(features)} public points, not {count}")
