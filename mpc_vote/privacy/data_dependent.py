"""What a vote loses on the data at hand: less than at worst where the winner wins by far.

The private vote releases, per query, the argmax of the totals plus Gaussian noise (GNMax). Where
the gaps between the winner and the others are wide, a neighbour hardly changes the outcome.

Who may rely on it, and when:

- Whoever sees the labels only. One who knows a part of the noise is not covered.
- `variance` is that of the noise in the totals exactly. More noise is *not* safe here: it lowers
  the loss at worst, but raises the chance that another class wins.
- The noise is Gaussian. Nothing here is proved for the Skellam noise that rounds add.
- One argmax per query, and queries fixed before any label was seen.

A bound computed from the votes says something about the votes. It is itself private, so whatever
here takes histograms returns a `Private`. To publish one, see
`mpc_vote.privacy.smooth_sensitivity`.
"""

from __future__ import annotations

import math
import warnings
from typing import Generic, NoReturn, SupportsIndex, TypeVar

import numpy as np
import numpy.typing as npt

from mpc_vote.privacy import accountant
from mpc_vote.privacy.mechanisms import FloatArray, GaussianVote, Level

T = TypeVar("T")

_ROUND_UP = 1 + 2.0**-36
_SLACK = 2.0**-40  # covers, in units of q, what cancels in the sums below
_LEAST_LOG_Q = -1e9  # a larger q is always sound, and keeps the arithmetic finite
_FAR = 37.0  # where erfc is still a normal double, and the series is right to 1e-12
_CHUNK = 1024


class Private(Generic[T]):
    """A value that must not be shown: printing, logging and formatting hide it.

    It has no float(), no order and no JSON form, and refuses to be pickled or copied. It guards
    against slips, not against someone who means to look.
    """

    __slots__ = ("__value",)

    def __init__(self, value: T) -> None:
        self.__value = value

    def for_the_data_owner_only(self) -> T:
        """The value, for eyes that may see the votes themselves: it has no privacy guarantee."""
        return self.__value

    def __repr__(self) -> str:
        return "<private: depends on the votes; publish it through smooth_sensitivity.release>"

    def __format__(self, spec: str) -> str:
        return repr(self)

    def __reduce_ex__(self, protocol: SupportsIndex, /) -> NoReturn:
        raise TypeError("a private value is neither pickled nor copied")


class PaperBoundWarning(UserWarning):
    """Someone used the paper's data-dependent formula, which has no valid proof."""


def curve(
    histograms: npt.ArrayLike, vote: GaussianVote, level: Level, orders: npt.ArrayLike
) -> Private[FloatArray]:
    """Bounds the Renyi divergence of all queries' labels together, at every order.

    `histograms` are the totals without noise, (queries, classes), in the units of `vote`. For each
    neighbour, in both directions, the labels of these data diverge by no more than this: per query
    the least of `sound_bound`, `theorem6_bound` and the data-independent bound, summed since the
    noise of each query is fresh.
    """
    return Private(_composed(checked(histograms, vote), vote, level, checked_orders(orders)))


def epsilon(
    histograms: npt.ArrayLike, vote: GaussianVote, level: Level, delta: float
) -> Private[float]:
    """The epsilon of `curve` at `delta` by the tight conversion, at most the worst case's."""
    worst = accountant.epsilon([vote], level, delta)
    rdp = _composed(checked(histograms, vote), vote, level, accountant.ORDERS)
    found = float(tight_epsilon(rdp, accountant.ORDERS, delta).min())
    return Private(min(worst, found))


def sound_bound(log_q: npt.ArrayLike, orders: npt.ArrayLike, rate: float) -> FloatArray:
    """Bounds the Renyi divergence, both ways, of two outcomes that rarely miss the same class.

    Returns (number of log_q, number of orders). Let P and P' be the outcomes' distributions and j
    a class that each misses with probability at most q. `rate` = r bounds the divergence of every
    order u by u r, as D2^2 / (2 sigma^2) does for Gaussian noise. With L = log(1/q), if L >= a^2 r:

        D_a <= min(a r, log[(1-q)^(1-a) + exp(-L - a r + 2 a sqrt(L r))] / (a - 1)),

    else a r. Proof: class j adds P(j)^a P'(j)^(1-a) <= (1-q)^(1-a) to the sum of p^a p'^(1-a). By
    Hoelder with exponent u/a, u >= a, the others add at most
    exp(a (u-1) D_u / u) q^(1-a/u) <= exp(a (u-1) r - L (1 - a/u)), least at u = sqrt(L/r). Only
    what P and P' share was used, so the bound holds both ways. It grows with q.
    """
    size, a = _grid(log_q, orders)
    q = np.exp(-size)
    with np.errstate(over="ignore", divide="ignore"):  # infinite where the bound says nothing
        winner = np.expm1((1 - a) * np.log1p(-q))
        others = np.exp(-size - a * rate + 2 * a * np.sqrt(size * rate))
    return _least(size >= a**2 * rate, winner + others, q, a, rate)


def theorem6_bound(log_q: npt.ArrayLike, orders: npt.ArrayLike, rate: float) -> FloatArray:
    """The same by Papernot et al., "Scalable Private Learning with PATE" (2018), Theorem 6.

    Let the outcome on D miss class j with probability at most q, let m2 > 1, 1 < a <= m1,
    e1 = m1 r, e2 = m2 r, q e^e2 < 1 and q <= e^((m2-1) e2) / (m1/(m1-1) m2/(m2-1))^m2. Then

        D_a(M(D) || M(D')) <= log[(1-q) A^(a-1) + q B^(a-1)] / (a-1),
        A = (1-q) / (1 - (q e^e2)^((m2-1)/m2)),  B = e^e1 / q^(1/(m1-1)).

    Here m2 = sqrt(L/r), m1 = m2 + 1, and A <= B is checked too: the theorem needs the right side to
    grow with q, and given A >= 1 its derivative is at least (m1-a)/(m1-1) (B^(a-1) - A^(a-1)); A
    grows and B falls with q, so to check at q is enough. The theorem speaks of q on its first
    argument; as the q of this module bounds both data sets', it applies in both directions.
    """
    size, a = _grid(log_q, orders)
    q = np.exp(-size)
    root = np.sqrt(size / rate)
    applies = (root > 1) & (a <= root + 1)
    m2 = np.maximum(root, 1 + 1e-9)
    e2 = m2 * rate
    applies &= -size <= (m2 - 1) * e2 - m2 * (np.log1p(m2) - np.log(m2 - 1))
    applies &= size > e2
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        log_a = np.log1p(-q) - np.log1p(-np.exp((e2 - size) * (m2 - 1) / m2))
        log_b = e2 + rate + size / m2
        applies &= log_a <= log_b
        winner = np.expm1(np.log1p(-q) + (a - 1) * log_a)
        others = np.exp(-size + (a - 1) * log_b)
    return _least(applies, winner + others, q, a, rate)


def paper_curve(
    histograms: npt.ArrayLike, sigma: float, s: float, orders: npt.ArrayLike
) -> Private[FloatArray]:
    """The formula printed in Zhu et al., to compare with only: it is NOT a proved bound.

    "Voting-based Approaches for Differentially Private Federated Learning", the theorem on large
    margins: with m the margin of the two largest totals in votes and C classes,

        2 C e^-x + log(1 + exp((2a-1) a s / (2 sigma^2) - x + log(C) / 2)) / (a - 1),
        x = m^2 / (8 sigma^2), s = 1 at the agent level, 2/k for kNN at the instance level.

    The amplification lemma it rests on is false: it takes q under D where the proof needs the
    neighbour's, and one voter between two classes refutes it (see the tests). The theorem is
    unproved: x enters its second term whole (m^2/8), where the lemma's sqrt(q) gives half (m^2/16).
    On the data tried so far it stayed above the exact divergence, which proves nothing.
    """
    warnings.warn(
        "the paper's data-dependent formula is no privacy bound: its lemma is false (q is taken "
        "under D where the neighbour D' is needed) and its theorem unproved (exponent /8 where "
        "the proof gives /16); use data_dependent.curve",
        PaperBoundWarning,
        stacklevel=2,
    )
    votes, a = _checked_totals(histograms), checked_orders(orders)
    ordered = np.sort(votes, axis=1)
    x = ((ordered[:, -1] - ordered[:, -2]) ** 2 / (8 * sigma**2))[:, None]
    classes = votes.shape[1]
    inner = (2 * a - 1) * a * s / (2 * sigma**2) - x + math.log(classes) / 2
    values = 2 * classes * np.exp(-x) + np.logaddexp(0, inner) / (a - 1)
    return Private(np.asarray(values.sum(axis=0), dtype=np.float64))


def tight_epsilon(rdp: FloatArray, orders: FloatArray, delta: float) -> FloatArray:
    """The conversion of `accountant.epsilon`, at every order: each is a valid epsilon."""
    accountant.check_delta(delta)
    return accountant.tight_conversion(orders, rdp, delta) * _ROUND_UP


def log_tail(x: FloatArray) -> FloatArray:
    """log Phi(-x): exact to rounding, and from above where erfc underflows."""
    near = np.log(_erfc(np.minimum(x, _FAR) / math.sqrt(2)) / 2)
    far = np.maximum(x, _FAR)
    i = far**-2
    series = np.log1p(-i * (1 - i * (3 - i * (15 - 105 * i))))  # cut after a term that adds
    asymptotic = -(far**2) / 2 - np.log(far * math.sqrt(2 * math.pi)) + series
    return np.where(x < _FAR, near, asymptotic)


def _log_misses(totals: FloatArray, vote: GaussianVote, level: Level) -> FloatArray:
    """Log of the sum over j != j* of Phi(-(gap_j - g) / (sqrt(2) sigma)), for every row.

    j* is the winner without noise, gap_j = n_j* - n_j, and g, the l1 sensitivity, is the most that
    a neighbour moves any gap: so by the union bound the sum, where it is below 1, is at least the
    chance that these data or any neighbour's miss j*.
    """
    moved = vote.sensitivity(level).l1
    ordered = np.sort(totals, axis=1)
    gaps = ordered[:, -1:] - ordered[:, :-1]
    terms = log_tail((gaps - moved) / math.sqrt(2 * vote.variance))
    return np.asarray(np.logaddexp.reduce(terms, axis=1), dtype=np.float64)


def per_query(log_q: FloatArray, vote: GaussianVote, level: Level, a: FloatArray) -> FloatArray:
    """The least of the bounds for every log_q (rows) and order (columns)."""
    rate = vote.sensitivity(level).l2_squared / (2 * vote.variance)
    return np.minimum(sound_bound(log_q, a, rate), theorem6_bound(log_q, a, rate))


def checked(histograms: npt.ArrayLike, vote: GaussianVote) -> FloatArray:
    """The totals as floats; refuses other noise and a wrong shape, and quotes no vote."""
    if not isinstance(vote, GaussianVote):
        raise TypeError(f"proved for Gaussian noise only, not for a {type(vote).__name__}")
    totals = _checked_totals(histograms)
    if len(totals) != vote.queries:
        raise ValueError(f"{len(totals)} histograms for a vote of {vote.queries} queries")
    return totals


def checked_orders(orders: npt.ArrayLike) -> FloatArray:
    """The orders as a vector; each must be finite and above 1."""
    given: FloatArray = np.atleast_1d(np.asarray(orders, dtype=np.float64))
    if given.ndim != 1 or not ((given > 1) & np.isfinite(given)).all():
        raise ValueError("orders must be finite numbers above 1")
    return given


def _checked_totals(histograms: npt.ArrayLike) -> FloatArray:
    totals: FloatArray = np.asarray(histograms, dtype=np.float64)
    if totals.ndim != 2 or totals.shape[1] < 2:
        raise ValueError(f"histograms must have shape (queries, classes), not {totals.shape}")
    if not (np.abs(totals) < 2.0**53).all():
        raise ValueError("histograms must hold finite counts below 2^53")
    return totals


def _composed(totals: FloatArray, vote: GaussianVote, level: Level, a: FloatArray) -> FloatArray:
    total = np.zeros(len(a))
    for start in range(0, len(totals), _CHUNK):
        log_q = _log_misses(totals[start : start + _CHUNK], vote, level)
        total += per_query(log_q, vote, level, a).sum(axis=0)
    return total


def _erfc(x: FloatArray) -> FloatArray:
    return np.fromiter(map(math.erfc, x.ravel()), np.float64, x.size).reshape(x.shape)


def _grid(log_q: npt.ArrayLike, orders: npt.ArrayLike) -> tuple[FloatArray, FloatArray]:
    """log(1/q) as a column, with q in (0, 1], and the orders as a row."""
    given: FloatArray = np.atleast_1d(np.asarray(log_q, dtype=np.float64))
    return -np.clip(given, _LEAST_LOG_Q, 0.0)[:, None], checked_orders(orders)[None, :]


def _least(
    applies: npt.NDArray[np.bool_], excess: FloatArray, q: FloatArray, a: FloatArray, rate: float
) -> FloatArray:
    """From the sum of p^a p'^(1-a), less 1, to the divergence; never above a * rate."""
    worst = np.broadcast_to(a * rate, excess.shape)
    bound = np.log1p(np.where(applies, excess, 0.0) + _SLACK * a * q) / (a - 1)
    found = np.where(applies, np.minimum(bound, worst), worst)
    return found * _ROUND_UP + np.finfo(np.float64).tiny
