"""What the kinds have in common that count neighbours: a public k, and counts of at most k."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import numpy.typing as npt

from mpc_vote.voting.ballots.kind import MAX_NEIGHBOURS, BallotKind, IntArray, integers


class NeighbourBallot(BallotKind):
    """A ballot made of the labels of an agent's k nearest records: a voter gives their counts,
    (queries, classes)."""

    wants = "integers of shape (queries, classes), none below 0 and at most k in a row"
    needs_k: ClassVar[bool] = True

    def encode(
        self, votes: npt.ArrayLike, *, classes: int, fraction_bits: int, k: int = 0, tau: int = 0
    ) -> IntArray:
        counts = _counts(votes, k)
        if counts.shape[1] != classes:
            raise ValueError(f"counts must have {classes} classes, not {counts.shape[1]}")
        return self._encode(counts, fraction_bits, k)

    @abstractmethod
    def _encode(self, counts: IntArray, fraction_bits: int, k: int) -> IntArray:
        """Counts in units."""


def checked_ks(ks: Sequence[int]) -> Sequence[int]:
    """The public k of agents, of which there must be one at least."""
    if not ks:
        raise ValueError("kNN ballots need ks: the public number of neighbours of every agent")
    for k in ks:
        _check_k(k)
    return ks


def _check_k(k: int) -> None:
    if not 1 <= k <= MAX_NEIGHBOURS:
        raise ValueError(f"k must lie in 1..{MAX_NEIGHBOURS}, not {k}")


def _counts(votes: npt.ArrayLike, k: int) -> IntArray:
    _check_k(k)
    given = integers("counts", votes, 2)
    if given.size and (given.min() < 0 or given.max() > k or given.sum(axis=1).max() > k):
        raise ValueError(f"every row of counts must be >= 0 and sum to at most k = {k} neighbours")
    return given
