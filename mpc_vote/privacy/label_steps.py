"""What one query shows of a record or an agent: the steps that an account is made of.

A query's cells have independent noise Z of one law, and the class with the largest noisy total is
released. Neighbours move a cell by exactly `move` units, or two cells in opposite directions. Give
the adversary the noise of all cells that don't move: it has the same law in both worlds, so a query
is a mixture over it, and the worst case of the mixture bounds the mixture. What is left:

- `totals`: the noisy total of a cell that moves is seen itself. One version: Z against Z + move.
- `thresholds`: one cell moves, and only the label is seen. Whether it is that cell's class depends
  on one threshold, and else the label is known. A version for every threshold.
- `flips`: one cell loses what another one gains. The label is either of them or the best of the
  others, which is known: three outcomes, by the leads of both over the others. A version for all
  pairs of leads and both orders of a tie between the two. A lead so low that the class can't win
  leaves a threshold: cells that only lose or only gain are covered.

Each has its versions in both directions: worlds swapped are versions, too. Ties go to an order of
the classes that is public, or to one drawn without looking at the votes.

Where labels are seen a law is cut: of a tail below `CUT` all mass goes to its first place. A label
changes with a probability below twice that, in either world, whatever the version.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

import numpy as np

from mpc_vote.privacy.profiles import Cover, FloatArray, Grid, cover_pairs, cover_versions


class Seen(StrEnum):
    """What the adversary sees of a cell or two that move."""

    TOTALS = "totals"
    THRESHOLD = "threshold"
    FLIP = "flip"


CUT = {Seen.TOTALS: 0.0, Seen.THRESHOLD: 2.0**-80, Seen.FLIP: 2.0**-60}
"""The tail from which a law is cut. Twice this bounds the probability that it changes a label."""

MOST_PLACES = {Seen.TOTALS: 1 << 20, Seen.THRESHOLD: 1 << 13, Seen.FLIP: 2400}
"""Of a law that was cut: sums of more probabilities would be less exact than is accounted for; of
flips there are as many versions as pairs of places."""


class Fineness(NamedTuple):
    """Of a grid: the distance of ratios in standard deviations of the loss, places in it, and how
    far ratios go; beyond, they count as the last."""

    ratio: float
    places: int
    reach: float


COARSE = Fineness(1 / 16, 1, 16.0)
"""For costs that may be some parts in a thousand too high."""

_FINENESS = {
    Seen.TOTALS: Fineness(1 / 32, 2, 16.0),
    Seen.THRESHOLD: Fineness(1 / 32, 2, 16.0),
    Seen.FLIP: Fineness(1 / 12, 1, 12.0),
}


def loss_scale(seen: Seen, law: FloatArray, move: int) -> float:
    """About the mu^2 of what moves, if all totals were seen: for grids, where any is sound."""
    places = np.arange(len(law), dtype=np.float64)
    mean = float(law @ places)
    cells = 2 if seen is Seen.FLIP else 1
    return float(cells * move**2 / (law @ (places - mean) ** 2))


def cover_step(seen: Seen, law: FloatArray, move: int, fineness: Fineness | None = None) -> Cover:
    """All versions of a step under noise of a law: its probabilities at successive integers."""
    law = cut_law(check_law(law), CUT[seen])
    if not isinstance(move, int) or isinstance(move, bool) or move < 1:
        raise ValueError(f"a move is a positive number of units, not {move!r}")
    most = MOST_PLACES[seen]
    if len(law) > most:
        raise ValueError(
            f"a law over {len(law)} places is too fine for this account, which takes {most}: let "
            "a vote be fewer units"
        )
    fineness = fineness or _FINENESS[seen]
    ratio = fineness.ratio * loss_scale(seen, law, move) ** 0.5
    grid = Grid(ratio, fineness.places, round(fineness.reach / fineness.ratio))
    if seen is Seen.TOTALS:
        return cover_pairs(grid, *both_ways(*_moved(law, move)))
    if seen is Seen.THRESHOLD:
        return cover_versions(grid, *both_ways(*thresholds(law, move)))
    return cover_versions(grid, *flips(law, move))


def check_law(law: FloatArray) -> FloatArray:
    """A law whose probabilities are not negative and add up to 1, or a ValueError."""
    law = np.asarray(law, dtype=np.float64)
    if law.ndim != 1 or len(law) < 2 or not (law >= 0).all() or abs(law.sum() - 1) > 2.0**-40:
        raise ValueError("a law is a list of probabilities that add up to 1, of two places or more")
    return law


def cut_law(law: FloatArray, tail: float) -> FloatArray:
    """With all of both tails below `tail` at their first place."""
    first = int(np.argmax(np.cumsum(law) > tail))
    last = len(law) - int(np.argmax(np.cumsum(law[::-1]) > tail))
    kept = law[first:last].copy()
    kept[0] += law[:first].sum()
    kept[-1] += law[last:].sum()
    return kept


def both_ways(p: FloatArray, q: FloatArray) -> tuple[FloatArray, FloatArray]:
    """The versions and their worlds swapped."""
    return np.concatenate([p, q]), np.concatenate([q, p])


def _moved(law: FloatArray, move: int) -> tuple[FloatArray, FloatArray]:
    still, moved = (np.zeros((1, len(law) + move)) for _ in range(2))
    still[0, : len(law)] = law
    moved[0, move:] = law
    return moved, still


def thresholds(law: FloatArray, move: int) -> tuple[FloatArray, FloatArray]:
    """A cell that loses `move`: P and Q of (its class, another one), for every threshold."""
    lead = np.arange(-move, len(law) + move + 1)
    return _wins(law, lead), _wins(law, lead - move)


def _wins(law: FloatArray, lead: np.ndarray[tuple[int], np.dtype[np.int64]]) -> FloatArray:
    """P(lead + Z >= 0) and the rest, each a sum of positive terms. A lead of n is one by which the
    n largest places of the law win."""
    above = np.r_[0.0, np.cumsum(law[::-1])]
    below = np.r_[np.cumsum(law)[::-1], 0.0]
    at = np.clip(lead, 0, len(law))
    return np.stack([above[at], below[at]], axis=1)


def flips(law: FloatArray, move: int) -> tuple[FloatArray, FloatArray]:
    """One cell loses, another gains `move`: P and Q of (the first, the second, another class).

    With leads x and y over the best of the others, the first wins with probability U(x, y) =
    sum over v >= 0 of P(x + Z = v) P(y + Z <= v), the second one's v being smaller in the other
    order of ties; and U(x, y) = U(x - 1, y - 1) + P(Z = -x) P(Z <= -y): a sum along a diagonal.
    """
    places = len(law)
    lead = np.arange(places + 4 * move + 1) - 2 * move
    just = np.r_[np.zeros(2 * move + 1), law[::-1], np.zeros(2 * move)]  # P(Z = -lead)
    wins, below = _wins(law, lead).T  # below: P(y + Z < 0)
    upto = _wins(law, lead - 1)[:, 1]  # P(y + Z <= 0)
    ps, qs = [], []
    for first, second in ((upto, below), (below, upto)):
        worlds = np.stack(
            [
                _diagonals(np.outer(just, first), wins),
                _diagonals(np.outer(just, second), wins).T,
                np.outer(below, below),
            ],
            axis=-1,
        )
        ps.append(worlds[move:, :-move].reshape(-1, 3))
        qs.append(worlds[:-move, move:].reshape(-1, 3))
    return np.concatenate(ps), np.concatenate(qs)


def _diagonals(terms: FloatArray, alone: FloatArray) -> FloatArray:
    """Running sums along diagonals; in the first column the other class can't win."""
    terms[:, 0] = alone
    for row in range(1, len(terms)):
        terms[row, 1:] += terms[row - 1, :-1]
    return terms
