"""Ballots: what one agent says about one query, as integers, and how far it can move the total.

A vote is `2**fraction_bits` units. Every sensitivity here is in units and covers the rounding of
the encoding, so noise calibrated to it needs no further allowance. The bounds hold only for
ballots made by these encoders, or checked to be of their form.

Neighbouring inputs:

- *agent level*: one agent's ballot is replaced by zeros; its noise stays in the total.
- *instance level*: one record of one agent is added, removed or replaced. For the kNN ballots the
  feature map and the distance must not depend on the private records; for the others the model
  may change in any way.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mpc_vote.privacy.sensitivity import Sensitivity

IntArray = npt.NDArray[np.int64]

MAX_FRACTION_BITS = 24
"""Finer votes buy nothing: at 4 bits integer noise already costs only 1e-5 in epsilon."""

MAX_NEIGHBOURS = 1 << 31
"""With `MAX_FRACTION_BITS` it keeps every encoded ballot within an int64."""


class BallotKind(enum.Enum):
    """The forms a ballot may take."""

    ONE_HOT = "one_hot"
    KNN_FREQUENCY = "knn_frequency"
    KNN_COUNT = "knn_count"
    MULTI_LABEL = "multi_label"


ABSTAIN = -1
"""In place of a label: no vote at all, which is no more sensitive than one."""


def one_hot(labels: npt.ArrayLike, classes: int, fraction_bits: int) -> IntArray:
    """One whole vote for each predicted label, or none: (rows,) labels to (rows, classes) units."""
    unit = _unit(fraction_bits)
    _positive("classes", classes)
    given = _integers("labels", labels, 1)
    if given.size and (given.min() < ABSTAIN or given.max() >= classes):
        raise ValueError(f"labels must lie in 0..{classes - 1}: map them to class indices first")
    ballots = np.zeros((given.size, classes), dtype=np.int64)
    voting = np.flatnonzero(given != ABSTAIN)
    ballots[voting, given[voting]] = unit
    return ballots


def knn_frequency(counts: npt.ArrayLike, k: int, fraction_bits: int) -> IntArray:
    """One vote split over the neighbours' labels: floor(count * 2^f / k).

    `k` is the public number of neighbours, also where the agent has fewer records: dividing by
    its own number of records would let one record move the ballot by more than 1/k of a vote.
    """
    unit = _unit(fraction_bits)
    return _neighbours(counts, k) * unit // k


def knn_count(counts: npt.ArrayLike, k: int, fraction_bits: int) -> IntArray:
    """One vote for each neighbour: count * 2^f, at most the public `k` neighbours in a row."""
    unit = _unit(fraction_bits)
    return _neighbours(counts, k) * unit


def multi_label(scores: npt.ArrayLike, tau: int, fraction_bits: int) -> IntArray:
    """A vote of yes for each attribute scored above 1/2, the `tau` highest where there are more.

    Ties go to the lower attribute. The cap is what bounds the ballot's sensitivity.
    """
    unit = _unit(fraction_bits)
    _positive("tau", tau)
    given: npt.NDArray[np.float64] = np.asarray(scores, dtype=np.float64)
    if given.ndim != 2:
        raise ValueError(f"scores must have shape (rows, attributes), not {given.shape}")
    if np.isnan(given).any():
        raise ValueError("scores must not hold NaN: repair the model before it votes")
    ballots = np.zeros(given.shape, dtype=np.int64)
    highest = np.argsort(-given, axis=1, kind="stable")[:, :tau]
    chosen = np.take_along_axis(given, highest, axis=1) > 0.5
    np.put_along_axis(ballots, highest, np.where(chosen, unit, 0), axis=1)
    return ballots


def agent_sensitivity(
    kind: BallotKind, *, fraction_bits: int, ks: Sequence[int] = (), tau: int | None = None
) -> Sensitivity:
    """The size of one ballot; `ks` are the public k of the roster, `tau` the multi-label cap."""
    unit = _unit(fraction_bits)
    match kind:
        case BallotKind.ONE_HOT:
            # One entry of one vote.
            return Sensitivity.of_cells(1, unit)
        case BallotKind.KNN_FREQUENCY:
            # Floors of non-negative parts of one vote: sum <= 2^f, and l2 <= l1. How the vote is
            # spread over cells is the agent's secret, and no spread is known to be the worst.
            return Sensitivity(unit, unit**2)
        case BallotKind.KNN_COUNT:
            # At most k votes, by the agent with the largest k; spread as above.
            most = max(_ks(ks)) * unit
            return Sensitivity(most, most**2)
        case BallotKind.MULTI_LABEL:
            # At most tau entries of one vote each.
            cap = _tau(tau)
            return Sensitivity.of_cells(cap, unit)


def instance_sensitivity(
    kind: BallotKind, *, fraction_bits: int, ks: Sequence[int] = (), tau: int | None = None
) -> Sensitivity:
    """How far one record can move one ballot, for the agent where it moves it furthest."""
    unit = _unit(fraction_bits)
    match kind:
        case BallotKind.ONE_HOT:
            # The prediction flips: one entry loses a vote, another gains one.
            return Sensitivity.of_cells(2, unit)
        case BallotKind.KNN_FREQUENCY:
            # One neighbour is swapped for another, so two counts move by one, and
            # floor(x + d) - floor(x) <= ceil(d) with d = 2^f / k, largest for the smallest k.
            step = -(-unit // min(_ks(ks)))
            return Sensitivity.of_cells(2, step)
        case BallotKind.KNN_COUNT:
            # One neighbour is swapped for another: two counts move by one vote, whatever k is.
            return Sensitivity.of_cells(2, unit)
        case BallotKind.MULTI_LABEL:
            # Up to tau attributes of the old ballot are dropped, up to tau others taken up.
            cap = _tau(tau)
            return Sensitivity.of_cells(2 * cap, unit)


def max_entry(
    kind: BallotKind, fraction_bits: int, ks: Sequence[int] = (), tau: int | None = None
) -> int:
    """The largest value, in units, that one honest agent puts into one cell."""
    unit = _unit(fraction_bits)
    match kind:
        case BallotKind.ONE_HOT | BallotKind.KNN_FREQUENCY:
            return unit
        case BallotKind.KNN_COUNT:
            return max(_ks(ks)) * unit
        case BallotKind.MULTI_LABEL:
            _tau(tau)
            return unit


def _unit(fraction_bits: int) -> int:
    if not 0 <= fraction_bits <= MAX_FRACTION_BITS:
        raise ValueError(f"fraction_bits must lie in 0..{MAX_FRACTION_BITS}, not {fraction_bits}")
    return 1 << fraction_bits


def _positive(name: str, value: int) -> None:
    if value < 1:
        raise ValueError(f"{name} must be at least 1, not {value}")


def _tau(tau: int | None) -> int:
    if tau is None:
        raise ValueError("multi-label ballots need tau: the most attributes an agent says yes to")
    _positive("tau", tau)
    return tau


def _ks(ks: Sequence[int]) -> Sequence[int]:
    if not ks:
        raise ValueError("kNN ballots need ks: the public number of neighbours of every agent")
    for k in ks:
        _neighbour_number(k)
    return ks


def _neighbour_number(k: int) -> None:
    if not 1 <= k <= MAX_NEIGHBOURS:
        raise ValueError(f"k must lie in 1..{MAX_NEIGHBOURS}, not {k}")


def _integers(name: str, values: npt.ArrayLike, dimensions: int) -> IntArray:
    given: npt.NDArray[Any] = np.asarray(values)
    if given.ndim != dimensions:
        raise ValueError(f"{name} must have {dimensions} dimension(s), not shape {given.shape}")
    if given.size and given.dtype.kind not in "iu":
        raise ValueError(f"{name} must be integers, not {given.dtype}: round them explicitly")
    if given.dtype.kind == "u" and given.size and given.max() > np.iinfo(np.int64).max:
        raise ValueError(f"{name} must fit an int64")
    return given.astype(np.int64)


def _neighbours(counts: npt.ArrayLike, k: int) -> IntArray:
    _neighbour_number(k)
    given = _integers("counts", counts, 2)
    if given.size and (given.min() < 0 or given.max() > k or given.sum(axis=1).max() > k):
        raise ValueError(f"every row of counts must be >= 0 and sum to at most k = {k} neighbours")
    return given
